"""Tasks: the same from the same seed, honest tests, and splits that share neither tasks nor tool
sets."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from composer_replication.core.errors import ConfigError
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import KINDS, Task, make_task, make_tasks
from composer_replication.workshop.vocabulary import (
    NEW_FILES,
    NEW_NAMES,
    NEW_PARAMETERS,
    Split,
)
from composer_replication.workshop.workshop_env import run_tests

SPLITS: tuple[Split, ...] = ("train", "monitor", "heldout", "words")


@pytest.fixture(scope="module")
def by_split() -> dict[Split, list[Task]]:
    return {split: make_tasks(1500, seed=11, split=split) for split in SPLITS}


def test_a_seed_is_a_task_in_every_process() -> None:
    code = (
        "from composer_replication.workshop.tasks import *; print([t.id for t in"
        " make_tasks(30, seed=4, split='heldout')])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": s, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for s in ("1", "2")
    }
    assert runs == {f"{[t.id for t in make_tasks(30, seed=4, split='heldout')]}\n"}
    assert make_task(5) == make_task(5)
    assert not {t.id for t in make_tasks(50, seed=1)} & {t.id for t in make_tasks(50, seed=2)}


def test_the_id_stands_for_the_whole_task(by_split: dict[Split, list[Task]]) -> None:
    everything = [task for tasks in by_split.values() for task in tasks]
    assert len({task.id for task in everything}) == len(everything)


def test_no_task_and_no_tool_set_of_training_is_held_out(by_split: dict[Split, list[Task]]) -> None:
    keys = {
        split: {key for task in tasks for key in task.keys} for split, tasks in by_split.items()
    }
    tools = {split: {task.tools.key for task in tasks} for split, tasks in by_split.items()}
    for first_split, other_split in (
        ("train", "heldout"),
        ("train", "monitor"),
        ("monitor", "heldout"),
        ("train", "words"),
        ("heldout", "words"),
    ):
        assert keys[first_split] and not keys[first_split] & keys[other_split], (
            first_split,
            other_split,
        )
    for held_out in ("heldout", "words"):
        assert not (tools["train"] | tools["monitor"]) & tools[held_out]
        assert len(tools[held_out]) > 30


def test_the_words_of_the_words_split_stand_in_no_other(by_split: dict[Split, list[Task]]) -> None:
    new = {*NEW_FILES, *NEW_NAMES, *(p for pair in NEW_PARAMETERS for p in pair)}
    for split in ("train", "monitor", "heldout"):
        for task in by_split[split]:
            shown = " ".join((task.prompt, *task.files, *(t for t in task.files.values())))
            assert not new & set(re.findall(r"\w+", shown))
    for task in by_split["words"]:
        assert {path.removesuffix(".py") for path in task.files} <= set(NEW_FILES)


def test_traps_and_kinds_are_as_frequent_in_every_split(by_split: dict[Split, list[Task]]) -> None:
    for tasks in by_split.values():
        # 1 - .65 * .75 = .51
        assert 0.46 < sum(task.tools.trap for task in tasks) / len(tasks) < 0.57
        assert {kind for kind in KINDS if any(task.kind == kind for task in tasks)} == set(KINDS)


def test_every_task_fails_as_it_is_and_passes_as_it_should_be(
    by_split: dict[Split, list[Task]], sandbox: Sandbox
) -> None:
    for tasks in by_split.values():
        for task in tasks[:60]:
            start = run_tests(task, task.files, sandbox=sandbox)
            assert start.failures and not start.all_pass
            assert len(start.failures) == len(task.targets)
            files = dict(task.files)
            for target in task.targets:
                files[target.path] = files[target.path].replace(target.before, target.after)
            assert run_tests(task, files, sandbox=sandbox).all_pass
            assert not task.changed_elsewhere(files)


def test_hidden_tests_see_what_the_visible_one_does_not(sandbox: Sandbox) -> None:
    for seed in range(40):
        task = make_task(seed, kind="fix")
        target = task.targets[0]
        head = target.before.partition("return")[0]
        files = dict(task.files)
        files[target.path] = files[target.path].replace(
            target.before, f"{head}return {task.visible[0].expected}"
        )
        test_results = run_tests(task, files, sandbox=sandbox)
        assert not test_results.failures and not test_results.all_pass


def test_anything_else_that_changed_is_seen() -> None:
    task = make_task(3, kind="set")
    target = task.targets[0]
    right = {
        **task.files,
        target.path: task.files[target.path].replace(target.before, target.after),
    }
    other_path = next(path for path in task.files if path != target.path)
    assert not task.changed_elsewhere(right)
    assert task.changed_elsewhere({**right, other_path: right[other_path] + "# a comment\n"})
    assert task.changed_elsewhere({**right, target.path: right[target.path] + "\n"})
    assert task.changed_elsewhere(
        {
            **right,
            target.path: right[target.path].replace(target.after, f"{target.after}\nextra = 1"),
        }
    )
    assert task.changed_elsewhere({**right, "new.py": ""})
    assert task.changed_elsewhere(
        {path: text for path, text in right.items() if path != other_path}
    )
    neighbour = next(line for line in task.files[target.path].splitlines() if line != target.before)
    assert task.changed_elsewhere(
        {**right, target.path: right[target.path].replace(neighbour, neighbour + "0")}
    )


def test_the_budget_is_the_shortest_way() -> None:
    assert [make_task(1, kind=kind).budget for kind in KINDS] == [4, 5, 5, 8]


def test_an_unknown_split_is_an_error() -> None:
    wrong: Any = "test"
    with pytest.raises(ConfigError, match=r"splits: .*heldout"):
        make_task(1, split=wrong)


def test_the_key_of_a_value_is_its_name_and_file_whatever_is_asked() -> None:
    """Else "set depth" in training would be "change depth" in the held-out tasks."""
    change, find = make_task(1, kind="change"), make_task(1, kind="set")
    assert change.keys == ((change.targets[0].name, change.targets[0].path),)
    assert replace(find, kind="change").keys == find.keys
