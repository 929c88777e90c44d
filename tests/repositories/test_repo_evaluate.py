"""`recompose evaluate` on tasks of repositories: which tasks, which rows, a player that solves."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_sessions
from composer_replication.core.config.rollout_settings import (
    EvaluateSettings,
    RepoSettings,
    RolloutSettings,
)
from composer_replication.core.errors import DataError
from composer_replication.core.trace import Text, Turn
from composer_replication.evaluation.success import EpisodeResult, episode_result, play_tasks
from composer_replication.evaluation.table import evaluation_table
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.playing.scripted_solver import solving
from composer_replication.repositories.repo_task import RepoTask, read_tasks
from composer_replication.rollouts.task_source import UnseenTask, open_world
from tests.cli.workspace import recompose
from tests.repositories.shop import needs_walls
from tests.repositories.workplace import repo_work
from tests.rollouts.small_world import Parrot, message_ids

pytestmark = [needs_walls, pytest.mark.train]
SETTINGS = """
[student]
model = "student"
[rollouts]
env = "repo"
groups = 2
group_size = 3
max_new_tokens = 32
max_context_tokens = 8192
repo = { turns = 2, command_s = 5, held_out = ["kiosk"] }
[train]
steps = 1
micro_tokens = 8192
policy = { weight = 1.0, length = { weight = 0.1 } }
lm_ce = { weight = 0.0 }
health = { monitor_tasks = 1, kl_episodes = 1 }
[evaluate]
tasks = 3
samples = 200
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluated")
    repo_work(folder, SETTINGS, repositories=("shop", "kiosk"))
    for flags in (
        ("main",),
        ("null", "--train.placebo", "permuted_penalties", "--train.learning_rate", "3e-4"),
    ):
        result = recompose("train", "--name", *flags, cwd=folder)
        assert result.code == 0, result.err
    return folder


def test_a_run_its_start_and_its_placebo_play_the_held_out_repository(work: Path) -> None:
    result = recompose("evaluate", "main", "--against", "placebo=null", "--json", cwd=work)
    assert result.code == 0, result.err
    run = work / "recompose" / "runs" / "main"
    table = json.loads((run / "evaluation.json").read_text("utf-8"))
    assert [row["name"] for row in table["rows"]] == ["before", "placebo", "after"]
    assert table["env"] == "tasks of your repositories"
    for row in table["rows"]:
        assert row["n"] == 3 and row["success_low"] <= row["success"] <= row["success_high"]
        episodes = list(read_sessions(run / "evaluation" / f"{row['name']}.jsonl"))
        assert {session.source.file.rpartition("-")[0] for session in episodes} == {"kiosk"}
    compared = [(pair["a"], pair["b"]) for pair in table["paired"]]
    assert compared == [("after", "before"), ("after", "placebo"), ("placebo", "before")]
    assert all(pair["low"] <= pair["difference"] <= pair["high"] for pair in table["paired"])
    notes = " ".join(table["notes"])
    assert "not played again" in notes and "not yours" not in notes
    assert recompose("report", "main", cwd=work).code == 0


def test_the_held_out_repositories_are_those_of_the_run(work: Path) -> None:
    """Today's settings hold out another repository: the run's count."""
    flags = ("--rollouts.repo.held_out", "shop", "--dry-run")
    assert recompose("evaluate", "main", *flags, cwd=work).code == 0
    run = work / "recompose" / "runs" / "main"
    played = json.loads((run / "curriculum.jsonl").read_text("utf-8").splitlines()[0])["tasks"]
    assert {name.rpartition("-")[0] for name in played} == {"shop"}


def test_a_task_that_a_run_was_trained_on_is_refused(work: Path) -> None:
    """The placebo run held out something else."""
    file = work / "recompose" / "runs" / "null" / "curriculum.jsonl"
    text = file.read_text("utf-8")
    kiosk = [t for t in tasks_of(work) if t.repository == "kiosk"]
    row = {"step": 0, "tasks": {task.id: [0, 2] for task in kiosk}}
    try:
        file.write_text(json.dumps(row) + "\n", "utf-8")
        refused = recompose("evaluate", "main", "--against", "placebo=null", cwd=work)
    finally:
        file.write_text(text, "utf-8")
    words = " ".join(refused.err.replace("│", " ").split())
    assert refused.code == 1 and "placebo was trained on kiosk-" in words


@pytest.mark.parametrize("flag", ["--evaluate.tasks", "--tasks"])
def test_more_tasks_than_are_held_out(work: Path, flag: str) -> None:
    refused = recompose("evaluate", "main", flag, "99", cwd=work)
    assert refused.code == 1 and "set evaluate.tasks = " in refused.err
    assert "and 99 are asked for" in " ".join(refused.err.replace("│", " ").split())


def tasks_of(work: Path) -> list[RepoTask]:
    return read_tasks(work / "recompose" / "tasks" / "tasks.jsonl")


def played(work: Path, messages: list[Turn], *, compact_tokens: int = 0) -> list[EpisodeResult]:
    """Two held-out tasks, played by a model that writes the given messages."""
    from tests.training.scripted import renderer, tokenizer

    folder = work / "recompose" / "tasks"
    limits = RolloutSettings(
        env="repo",
        max_new_tokens=4000,
        max_context_tokens=30_000,
        batch_episodes=1,
        repo=RepoSettings(tasks=str(folder), held_out=("kiosk",), compact_tokens=compact_tokens),
    )
    ids = [message_ids(renderer(), message) for message in messages]
    model = Parrot(len(tokenizer()), ids)
    model.config.max_position_embeddings = 30_000
    settings = EvaluateSettings(tasks=2, samples=200)
    with open_world("repo", settings=limits) as source:
        options: dict[str, Any] = {"settings": settings, "limits": limits, "seed": 1}
        return play_tasks(model, renderer=renderer(), source=source, **options)


def test_a_player_that_solves_a_task_is_seen(work: Path) -> None:
    done = Turn(role="assistant", author=None, blocks=(Text("Done."),))
    before = played(work, [done, done])
    with PlayableTasks(work / "recompose" / "tasks") as playable:
        (task,) = [task for task in playable.tasks if task.id == before[0].task_id]
        script = list(solving(task, base=playable.repository(task).checkout.folder))
    messages = [
        Turn(role="assistant", author=None, blocks=tuple(calls)) if calls else done
        for calls in script
    ]
    # a command may answer differently the second time
    messages.insert(1, bash("date +%s%N"))
    after = played(work, [*messages, done])
    assert [e.reward for e in (*before, *after)] == [0.0, 0.0, 1.0, 0.0]
    with open_world("repo") as source:
        table = evaluation_table(
            {"before": before, "after": after},
            settings=EvaluateSettings(tasks=2, samples=200),
            seed=1,
            metadata=source.metadata,
            own_env="repo",
        )
    assert table["paired"][0]["difference"] == 0.5


def test_what_an_episode_tried_is_in_the_evaluation(work: Path) -> None:
    done = Turn(role="assistant", author=None, blocks=(Text("Done."),))
    before = played(work, [done, done])
    after = played(work, [bash("cat /proc/1/environ"), done, done])
    assert [len(episode.attempts) for episode in after] == [1, 0]
    with open_world("repo") as source:
        table = evaluation_table(
            {"before": before, "after": after},
            settings=EvaluateSettings(tasks=2, samples=200),
            seed=1,
            metadata=source.metadata,
        )
    rows = {row["name"]: row for row in table["rows"]}
    assert rows["before"]["hacked"] == 0 and "hacks" not in rows["before"]
    assert (rows["after"]["hacked"], rows["after"]["hacks"]) == (1, {"reads of the system": 1})


def test_a_player_that_summarises_its_context_solves_a_task(work: Path) -> None:
    """Each result brings the context to the number; what was edited before a summary stays."""
    done = Turn(role="assistant", author=None, blocks=(Text("Done."),))
    first = played(work, [done, done])[0]
    with PlayableTasks(work / "recompose" / "tasks") as playable:
        (task,) = [task for task in playable.tasks if task.id == first.task_id]
        script = [s for s in solving(task, base=playable.repository(task).checkout.folder) if s]
    messages: list[Turn] = []
    for number, calls in enumerate(script):
        messages.append(Turn(role="assistant", author=None, blocks=tuple(calls)))
        words = Text(f"Step {number} is done.")
        messages.append(Turn(role="assistant", author=None, blocks=(words,)))
    solved, other = played(work, [*messages, done, done], compact_tokens=100)
    assert (solved.reward, other.reward) == (1.0, 0.0) and not other.later
    parts = [solved.session, *solved.later]
    assert len(parts) == len(script) + 1
    assert {session.outcome for session in parts} == {1.0}
    for number, session in enumerate(parts[1:]):
        assert f"Step {number} is done." in session.turns[2].text
    assert len([turn for turn in solved.joined_session.turns if turn.sampled]) == len(messages) + 1
    sampled = [t.sampled for p in parts for _, t in p.assistant_turns() if t.sampled]
    assert solved.tokens == sum(len(message.ids) for message in sampled)


def test_a_hint_behind_a_summary_is_seen(work: Path) -> None:
    done = Turn(role="assistant", author=None, blocks=(Text("Done."),))
    (solved, _) = played(work, [bash("ls"), done, done, done], compact_tokens=100)
    (behind,) = solved.later
    hinted = replace(behind.turns[2], blocks=(Text(behind.turns[2].text + " Read b.py first."),))
    turns = (*behind.turns[:2], hinted, *behind.turns[3:])
    options: dict[str, Any] = {"measures": {}, "ended": "done", "max_chars": 100_000}
    with PlayableTasks(work / "recompose" / "tasks") as playable:
        (task,) = [task for task in playable.tasks if task.id == solved.task_id]
        make = partial(RepoEnv, task, playable, max_turns=4, command_s=5)
        unseen = UnseenTask(id=task.id, kind=task.kind, split="monitor", make=make)
        episode_result(unseen, solved.session, later=[behind], **options)
        with pytest.raises(DataError, match="does not begin with the unchanged task"):
            later = [replace(behind, turns=turns)]
            episode_result(unseen, solved.session, later=later, **options)


def bash(command: str) -> Turn:
    from composer_replication.core.trace import ToolCall

    call = ToolCall("x", "Bash", {"command": command})
    return Turn(role="assistant", author=None, blocks=(call,))
