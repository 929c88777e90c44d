"""`recompose train` on tasks of a repository: what is drawn, what is held out, a resumed run."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from composer_replication.core.config.rollout_settings import RepoSettings, RolloutSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.repositories.playing.repo_source import draw_tasks, split_tasks
from composer_replication.repositories.python.judging.python_judge import NOT_REPLAYED
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.rollouts.groups import Group, Groups
from composer_replication.rollouts.task_history import RECENT, TaskHistory, TaskSuccess
from composer_replication.rollouts.task_source import open_world
from tests.cli.workspace import recompose
from tests.repositories.shop import needs_walls
from tests.repositories.workplace import repo_work

SETTINGS = """
[student]
model = "student"
[rollouts]
env = "repo"
groups = 2
group_size = 2
max_new_tokens = 6
max_context_tokens = 8192
repo = { turns = 2, command_s = 5 }
[train]
steps = 2
checkpoint_every = 1
micro_tokens = 8192
policy = { weight = 1.0 }
lm_ce = { weight = 0.0 }
health = { monitor_tasks = 1, kl_episodes = 1 }
"""


def a_task(name: str, repository: str = "shop") -> RepoTask:
    return RepoTask(
        id=name,
        repository=repository,
        base="b",
        kind="bug",
        symbol="",
        detail="",
        edits={},
        removed={},
        statement="",
        must_pass=[],
        must_keep=[],
        held_out=[],
        difficulty=1,
        cpu_s=0.0,
    )


TASKS = [a_task(f"{name}-{n}", name) for name in "abcdef" for n in range(5)]


def test_held_out_repositories_are_never_trained_on() -> None:
    split = split_tasks(TASKS, RepoSettings(held_out=("b", "e")))
    assert {task.repository for task in split.held_out} == {"b", "e"}
    assert {task.repository for task in split.train} == set("acdf")
    by_hash = split_tasks(TASKS, RepoSettings(held_out_share=0.5))
    hidden = {task.repository for task in by_hash.held_out}
    assert 0 < len(hidden) < 6 and not hidden & {task.repository for task in by_hash.train}
    more = [*TASKS, a_task("g-0", "g")]
    kept = {task.repository for task in split_tasks(more, RepoSettings(held_out_share=0.5)).train}
    assert not hidden & kept  # another repository moves none of them into training
    assert split_tasks(TASKS, RepoSettings(held_out_share=0.0)).held_out == ()


def checked(task: RepoTask, risk: str) -> RepoTask:
    return replace(task, residual_risk=risk)


def test_only_replayed_tasks_are_used_if_asked() -> None:
    """Neither trained on nor held out: a task that only the tests decide."""
    risks = ("none known", "its tests compare a.B, whose == is code", f"{NOT_REPLAYED} (no values)")
    tasks = [checked(task, risks[n % 3]) for n, task in enumerate(TASKS)]
    settings = RepoSettings(held_out=("b",), replayed_only=True)
    split = split_tasks(tasks, settings)
    used = {task.id for task in (*split.train, *split.held_out)}
    assert used == {task.id for n, task in enumerate(tasks) if n % 3 != 2}
    everything = split_tasks(tasks, RepoSettings(held_out=("b",)))
    assert len(everything.train) + len(everything.held_out) == len(TASKS)
    with pytest.raises(ConfigError, match="not known of 1 of 30 tasks") as raised:
        split_tasks([*tasks[:-1], TASKS[-1]], settings)
    assert raised.value.fix == "recompose tasks check"
    with pytest.raises(ConfigError, match="none of 30 tasks is replayed"):
        split_tasks([checked(task, risks[2]) for task in TASKS], settings)


def test_a_single_repositorys_tasks_are_split() -> None:
    split = split_tasks(TASKS[:5], RepoSettings())
    assert len(split.held_out) == 1 and len(split.train) == 4


def test_a_split_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no task is of the repository 'x'"):
        split_tasks(TASKS, RepoSettings(held_out=("x",)))
    with pytest.raises(ConfigError, match="every task is held out"):
        split_tasks(TASKS, RepoSettings(held_out=tuple("abcdef")))
    settings = RolloutSettings(env="repo", repo=RepoSettings(tasks=str(tmp_path)))
    with (
        open_world("repo", settings=settings) as source,
        pytest.raises(DataError, match="no tasks"),
    ):
        next(source.train(0))


def test_tasks_at_the_edge_of_ability_come_first() -> None:
    tasks = TASKS[:12]
    known = {task.id: TaskSuccess(passed=0, played=RECENT) for task in tasks[:4]}
    known |= {task.id: TaskSuccess(passed=RECENT, played=RECENT) for task in tasks[4:8]}
    known |= {task.id: TaskSuccess(passed=RECENT // 2, played=RECENT) for task in tasks[8:]}
    early: list[str] = []
    for seed in range(200):
        stream = draw_tasks(tasks, seed=seed, successes=known, floor=0.02)
        drawn = [task.id for task in itertools.islice(stream, 12)]
        assert len(set(drawn)) == 12
        early += drawn[:4]
    share = sum(name in {task.id for task in tasks[8:]} for name in early) / len(early)
    assert 0.6 < share < 0.95  # the floor keeps the others in the draw


def groups_of(*rows: tuple[str, tuple[float, ...]]) -> Groups:
    def rollouts(name: str, rewards: tuple[float, ...]) -> tuple[Any, ...]:
        return tuple(
            SimpleNamespace(reward=reward, episode=f"{name}:{number}")
            for number, reward in enumerate(rewards)
        )

    made = [Group(name, rollouts(name, rewards)) for name, rewards in rows]
    return Groups(groups=tuple(made[:1]), flat=tuple(made[1:]), num_extra=0)


def test_a_step_sees_earlier_steps_only_and_a_resume_the_same(tmp_path: Path) -> None:
    file = tmp_path / "curriculum.jsonl"
    history = TaskHistory(file)
    history.record(0, groups_of(("a", (1.0, 0.0)), ("b", (0.0, 0.0))))
    history.record(1, groups_of(("a", (1.0, 1.0)), ("c", (1.0, 1.0))))
    assert history.before(0) == {}
    assert history.before(1)["a"] == TaskSuccess(passed=1, played=2)
    resumed = TaskHistory(file)
    assert resumed.before(2) == history.before(2)
    assert resumed.measures(1) == {
        "tasks/played": 3.0,
        "tasks/always_solved": 1.0,
        "tasks/never_solved": 1.0,
    }
    resumed.record(1, groups_of(("a", (0.0, 0.0))))  # the step runs again after a kill
    assert TaskHistory(file).before(2) == {
        "a": TaskSuccess(passed=1, played=4),
        "b": TaskSuccess(passed=0, played=2),
    }


def test_only_recent_plays_count() -> None:
    history = TaskHistory()
    for step in range(40):
        history.record(step, groups_of(("a", (float(step > 30),) * 4)))
    assert history.before(40)["a"] == TaskSuccess(passed=RECENT, played=RECENT)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return repo_work(tmp_path, SETTINGS)


@needs_walls
@pytest.mark.train
def test_a_run_plays_repositories_and_goes_on(work: Path) -> None:
    assert recompose("train", "--name", "whole", cwd=work).code == 0
    runs = work / "recompose" / "runs"
    rows = metrics(runs / "whole")
    assert [row["rollouts/episodes"] for row in rows] == [4, 4]
    assert all(row["rollouts/lost"] == 0 for row in rows)
    assert rows[-1]["tasks/played"] >= 2
    curriculum = (runs / "whole" / "curriculum.jsonl").read_text("utf-8")
    assert len(curriculum.splitlines()) == 2
    assert recompose("train", "--name", "cut", "--train.steps", "1", cwd=work).code == 0
    more = ("--train.steps", "2", "--accept-changes")
    resumed = recompose("train", "--resume", "cut", *more, cwd=work)
    assert resumed.code == 0, resumed.err
    assert (runs / "cut" / "curriculum.jsonl").read_text("utf-8") == curriculum


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
