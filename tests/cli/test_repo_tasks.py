"""`recompose tasks`: from a folder to tasks, what is refused, and what a person sees."""

from __future__ import annotations

import json
import shutil
import sys
import venv
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from composer_replication.cli import repo_tasks_check, repo_tasks_make
from composer_replication.repositories.judged import JudgedEpisode
from composer_replication.repositories.judging import original_check
from composer_replication.repositories.making.make_repo_tasks import PACKAGES
from tests.cli.workspace import recompose
from tests.repositories.shop import make_shop, needs_walls

FEW = ("--python", sys.executable, "--functions", "1", "--bugs", "1", "--classes", "0")


def without_packages(work: Path) -> None:
    """Reading the packages of these tests' interpreter would take most of a minute."""
    metadata = work / "recompose" / "tasks" / "environments" / "shop" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / PACKAGES).write_text("", encoding="ascii")


@needs_walls
def test_a_repository_becomes_tasks_that_can_be_listed(tmp_path: Path) -> None:
    make_shop(tmp_path / "shop")
    without_packages(tmp_path)
    made = recompose("tasks", "make", "shop", *FEW, cwd=tmp_path)
    assert made.code == 0, made.out + made.err
    assert "shop" in made.out and "tasks check" in made.out
    again = recompose("tasks", "make", "shop", *FEW, "--json", cwd=tmp_path)
    (row,) = json.loads(again.out)["repositories"].values()
    assert row["made"] == {"function": 1, "bug": 1} and json.loads(again.out)["tasks"] == 2
    listed = recompose("tasks", "list", cwd=tmp_path)
    assert "These tests fail now and must pass" in listed.out and "2 tasks" in listed.out


@needs_walls
def test_a_folder_without_tests_is_skipped_and_the_others_are_not(tmp_path: Path) -> None:
    make_shop(tmp_path / "shop")
    (tmp_path / "empty").mkdir()
    without_packages(tmp_path)
    made = recompose("tasks", "make", "empty", "shop", *FEW, cwd=tmp_path)
    assert made.code == 1 and "skipped  empty" in made.out and "no Python files" in made.out
    assert (tmp_path / "recompose" / "tasks" / "tasks.jsonl").exists()


def test_a_folder_that_is_not_there_is_named_before_anything_is_made(tmp_path: Path) -> None:
    make_shop(tmp_path / "shop")
    made = recompose("tasks", "make", "shop", "nosuch", *FEW, cwd=tmp_path)
    assert made.code == 2 and "nosuch is no folder" in made.err
    assert not (tmp_path / "recompose" / "tasks").exists()


@needs_walls
def test_the_check_says_on_each_task_what_a_judgement_takes_and_cannot_exclude(
    tmp_path: Path,
) -> None:
    make_shop(tmp_path / "shop")
    without_packages(tmp_path)
    assert recompose("tasks", "make", "shop", *FEW, cwd=tmp_path).code == 0
    assert "residual risk not known yet" in recompose("tasks", "list", cwd=tmp_path).out
    unsolvable = _with_a_task_that_the_original_does_not_solve(tmp_path / "recompose" / "tasks")
    checked = recompose("tasks", "check", "--json", cwd=tmp_path)
    assert checked.code == 0, checked.out + checked.err
    facts = json.loads(checked.out)
    assert list(facts["refused"]) == [unsolvable] and facts["tasks"] == 2
    listed = json.loads(recompose("tasks", "list", "--json", cwd=tmp_path).out)["tasks"]
    assert unsolvable not in {task["id"] for task in listed}
    for task in listed:
        assert task["judge_s"] > 0 and task["residual_risk"]
    assert "residual risk: " in recompose("tasks", "list", cwd=tmp_path).out
    again = json.loads(recompose("tasks", "check", "--json", cwd=tmp_path).out)
    assert again["checked"] == 0 and again["tasks"] == 2
    attempts = (tmp_path / "recompose" / "tasks" / "attempts.jsonl").read_text("utf-8")
    assert "the judge refuses the original" in attempts.splitlines()[-1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with two tasks; a test works on a copy of it."""
    place = tmp_path_factory.mktemp("made")
    make_shop(place / "shop")
    without_packages(place)
    assert recompose("tasks", "make", "shop", *FEW, cwd=place).code == 0
    return place


def a_copy(made: Path, target: Path) -> dict[str, str]:
    """Copy a work folder; returns the lists that a failed check has to leave as they were."""
    shutil.copytree(made, target, dirs_exist_ok=True)
    return the_lists(target)


def the_lists(work: Path) -> dict[str, str]:
    names = ("tasks.jsonl", "attempts.jsonl")
    return {name: (work / "recompose" / "tasks" / name).read_text("utf-8") for name in names}


def interpreter_without_pytest(folder: Path) -> Path:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    return folder / "bin" / "python"


@needs_walls
def test_an_interpreter_that_runs_no_test_replaces_no_other(made: Path, tmp_path: Path) -> None:
    before = a_copy(made, tmp_path)
    bare = str(interpreter_without_pytest(tmp_path / "bare"))
    failed = recompose("tasks", "make", "shop", *FEW[2:], "--python", bare, cwd=tmp_path)
    assert failed.code == 1 and "the interpreter needs pytest" in failed.out + failed.err
    assert the_lists(tmp_path) == before
    checked = json.loads(recompose("tasks", "check", "--json", cwd=tmp_path).out)
    assert (checked["checked"], checked["refused"], checked["tasks"]) == (2, {}, 2)


@needs_walls
@pytest.mark.parametrize("lost", ["pytest", "dependency"])
def test_a_broken_environment_stops_the_check_and_takes_no_task(
    lost: str, made: Path, tmp_path: Path
) -> None:
    before = a_copy(made, tmp_path)
    folder = tmp_path / "recompose" / "tasks"
    if lost == "pytest":
        bare = interpreter_without_pytest(tmp_path / "bare")
        (folder / "environments" / "shop" / "interpreter.txt").write_text(str(bare), "utf-8")
    else:
        (base,) = (folder / "base").iterdir()
        (base / "tests" / "conftest.py").write_text("import gone_with_an_update\n", "utf-8")
    stopped = recompose("tasks", "check", cwd=tmp_path)
    assert stopped.code == 1, stopped.out + stopped.err
    words = {"pytest": "the interpreter needs pytest", "dependency": "no longer runs its tests"}
    assert words[lost] in stopped.err and "left" not in stopped.out
    assert the_lists(tmp_path) == before


@needs_walls
def test_a_judgement_that_did_not_end_is_tried_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = a_copy(made, tmp_path)
    late = JudgedEpisode(reward=0.0, reason="late", method="strong", unfinished=True)
    with monkeypatch.context() as patch:
        patch.setattr(original_check, "judge_changes", lambda *_, **__: late)
        checked = recompose("tasks", "check", cwd=tmp_path)
    assert checked.code == 0 and checked.out.count("was not judged: late") == 2
    assert "2 tasks not judged" in checked.out and the_lists(tmp_path) == before
    again = json.loads(recompose("tasks", "check", "--json", cwd=tmp_path).out)
    assert (again["checked"], again["not_judged"], again["refused"]) == (2, {}, {})


@needs_walls
def test_an_original_that_earns_now_and_then_is_refused(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_copy(made, tmp_path)
    rewards = iter([1.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(
        original_check,
        "judge_changes",
        lambda *_, **__: JudgedEpisode(reward=next(rewards), reason="a coin", method="strong"),
    )
    facts = json.loads(recompose("tasks", "check", "--json", cwd=tmp_path).out)
    assert list(facts["refused"].values()) == ["a coin (judgement 3 of 3)"] and facts["tasks"] == 1


@needs_walls
def test_a_run_past_its_limit_decides_nothing(made: Path, tmp_path: Path) -> None:
    before = a_copy(made, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(original_check, "LIMIT_S", 0.05)
        patch.setattr(original_check, "_try_environment", lambda *_: None)
        late = json.loads(recompose("tasks", "check", "--json", cwd=tmp_path).out)
    assert (late["checked"], len(late["not_judged"]), late["refused"]) == (0, 2, {})
    assert the_lists(tmp_path) == before


def _with_a_task_that_the_original_does_not_solve(folder: Path) -> str:
    """Add a twin of the first task that asks for a test which is not there; returns its id."""
    file = folder / "tasks.jsonl"
    row = json.loads(file.read_text("utf-8").splitlines()[0])
    row |= {"id": "shop-unsolvable", "must_pass": ["tests/test_cart.py::test_that_is_not_there"]}
    file.write_text(file.read_text("utf-8") + json.dumps(row) + "\n", "utf-8")
    return row["id"]


def interrupted_after(count: int, made: Callable[..., Iterator[Any]]) -> Callable[..., Any]:
    """A generator function that Ctrl-C ends."""

    def made_until_ctrl_c(*arguments: Any, **options: Any) -> Iterator[Any]:
        yield from islice(made(*arguments, **options), count)
        raise KeyboardInterrupt

    return made_until_ctrl_c


@needs_walls
def test_what_was_interrupted_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    make_shop(tmp_path / "shop")
    without_packages(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        until = interrupted_after(1, repo_tasks_make.make_repo_tasks)
        patch.setattr(repo_tasks_make, "make_repo_tasks", until)
        stopped = recompose("tasks", "make", "shop", *FEW, cwd=tmp_path)
    assert stopped.code == 130
    assert "interrupted; 1 tasks are made, 0 of them checked" in stopped.err
    assert "to go on where it stopped: run the same command again" in stopped.err
    again = recompose("tasks", "make", "shop", *FEW, cwd=tmp_path)
    assert "goes on: 1 tasks were made before, and 0 changes refused" in again.out
    assert again.out.count("goes on") == 1 and "goes on" not in stopped.out
    with pytest.MonkeyPatch.context() as patch:
        until = interrupted_after(1, repo_tasks_check.check_originals)
        patch.setattr(repo_tasks_check, "check_originals", until)
        stopped = recompose("tasks", "check", cwd=tmp_path)
    assert stopped.code == 130
    assert "interrupted; 2 tasks are made, 1 of them checked" in stopped.err
    assert "to go on where it stopped: recompose tasks check" in stopped.err
    assert "1 of 2 tasks were checked before" in recompose("tasks", "check", cwd=tmp_path).out


@needs_walls
def test_the_table_says_what_the_folder_holds_also_of_runs_that_asked_for_more(
    tmp_path: Path,
) -> None:
    make_shop(tmp_path / "shop")
    without_packages(tmp_path)
    at_first = ("--python", sys.executable, "--functions", "3", "--bugs", "2", "--classes", "0")
    first = json.loads(recompose("tasks", "make", "shop", *at_first, "--json", cwd=tmp_path).out)
    fewer = recompose("tasks", "make", "shop", *FEW, cwd=tmp_path)
    rows = [line.split() for line in fewer.out.splitlines()]
    assert ["repository", "function", "class", "bug", "history", "tasks", "new", "seconds"] in rows
    (counts,) = [row[1:-1] for row in rows if row[:1] == ["shop"]]
    assert counts == ["3", "0", "2", "0", "5", "0"]
    again = json.loads(recompose("tasks", "make", "shop", *FEW, "--json", cwd=tmp_path).out)
    ((one,), (other,)) = (value["repositories"].values() for value in (first, again))
    assert (one["new"], other["new"], again["tasks"]) == (5, 0, 5)
    for what in ("made", "refused", "cpu_s"):
        assert one[what] == other[what]


def test_two_repositories_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    for parent in ("a", "b"):
        make_shop(tmp_path / parent / "shop")
    made = recompose("tasks", "make", "a/shop", "b/shop", *FEW, cwd=tmp_path)
    assert made.code == 2 and "a/shop and b/shop have the same name" in made.err
    assert not (tmp_path / "recompose" / "tasks").exists()


@pytest.mark.parametrize("kind", ["functions", "classes", "bugs", "history"])
def test_fewer_than_no_tasks_cannot_be_wanted(kind: str, tmp_path: Path) -> None:
    make_shop(tmp_path / "shop")
    made = recompose("tasks", "make", "shop", f"--{kind}", "-1", cwd=tmp_path)
    assert made.code == 2 and f"--{kind} -1 is no number of tasks" in made.err
    assert not (tmp_path / "recompose" / "tasks").exists()


@pytest.mark.parametrize("what", ["list", "check"])
def test_a_word_that_is_not_taken_is_refused(what: str, tmp_path: Path) -> None:
    refused = recompose("tasks", what, "extra", cwd=tmp_path)
    assert refused.code == 2 and f"extra is not taken: it {what}s all tasks" in refused.err


@needs_walls
def test_a_run_that_skipped_every_repository_wrote_nothing(made: Path, tmp_path: Path) -> None:
    a_copy(made, tmp_path)
    (tmp_path / "empty").mkdir()
    skipped = recompose("tasks", "make", "empty", *FEW, cwd=tmp_path)
    assert skipped.code == 1 and "skipped  empty" in skipped.out
    assert "wrote" not in skipped.out and "tasks check" not in skipped.out


def test_a_call_without_a_repository_says_what_is_missing(tmp_path: Path) -> None:
    assert recompose("tasks", "make", cwd=tmp_path).code == 2
    assert "no tasks" in recompose("tasks", "list", cwd=tmp_path).err
