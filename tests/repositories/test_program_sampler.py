"""An agent program plays the tasks of a repository in the sandbox, with the student's messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.rollout_settings import (
    EvaluateSettings,
    RepoSettings,
    RolloutSettings,
)
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.rundir import RunDir
from composer_replication.core.trace import Turn
from composer_replication.evaluation.players import play_one, player_of
from composer_replication.repositories.making.make_repo_tasks import TaskSettings
from composer_replication.repositories.playing import program_sampler
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.program_files import program_files
from composer_replication.repositories.playing.program_sampler import ProgramSampler
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.rollouts.episode import Rollout, episode_name
from composer_replication.rollouts.groups import sample_groups
from composer_replication.rollouts.sampling import Sampling
from tests.cli.workspace import recompose
from tests.repositories.shop import needs_walls
from tests.repositories.test_repo_train import SETTINGS
from tests.repositories.workplace import playing_shop, repo_work
from tests.serve.clients import QWEN, message, scripted

pytestmark = needs_walls
PROGRAM = Path(__file__).with_name("agent_program.py")
PLAYER = f"{sys.executable} {PROGRAM} {{url}} {{task}}"
DONE = message("Done.")


@pytest.fixture(scope="module")
def playable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayableTasks]:
    settings = TaskSettings(functions=4, classes=0, bugs=0)
    with playing_shop(tmp_path_factory.mktemp("tasks"), settings=settings) as tasks:
        yield tasks


@pytest.fixture
def play(playable: PlayableTasks, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Play the first task once for each script."""

    def run(*scripts: Sequence[Turn], player: str = PLAYER, **options: Any) -> list[Rollout]:
        writers = (scripted(script, version=1) for script in scripts)
        monkeypatch.setattr(program_sampler, "_writers", lambda *_, **__: writers)
        settings = settings_of(player, **options)
        envs = [env_of(playable) for _ in scripts]
        return ProgramSampler(settings)(
            None,
            envs,
            renderer=QWEN,
            settings=Sampling(max_new_tokens=2000, max_context_tokens=30_000),
            author="tiny",
            label="step-1:",
            version=1,
        )

    return run


def settings_of(player: str, **options: Any) -> RolloutSettings:
    repo = RepoSettings(program_folders=(str(PROGRAM.parent),), **options)
    return RolloutSettings(env="repo", player=player, repo=repo)


def env_of(playable: PlayableTasks) -> RepoEnv:
    return RepoEnv(total_task(playable), playable, max_turns=20, command_s=20)


def total_task(playable: PlayableTasks) -> RepoTask:
    (task,) = [task for task in playable.tasks if task.symbol == "total"]
    return task


def bash(command: str) -> Turn:
    return message("", ("bash", {"command": command}))


def answer(playable: PlayableTasks) -> list[Turn]:
    """The messages of a player that knows the answer, and runs the tests."""
    task = total_task(playable)
    (path,) = task.paths
    text = (playable.repository(task).checkout.folder / path).read_text("utf-8")
    write = f"cat > {path} <<'EOF'\n{text}EOF"
    return [bash("ls"), bash(write), bash("python -m pytest -q 2>&1 | tail -1"), DONE]


def test_a_program_earns_what_the_judge_says_and_every_token_is_kept(
    playable: PlayableTasks, play: Callable[..., list[Rollout]]
) -> None:
    solved, idle = play(answer(playable), [DONE])
    assert (solved.reward, idle.reward) == (1.0, 0.0)
    assert solved.measures["calls"] == 3 and solved.measures["finished"] == 1
    written = [t.sampled.ids for t in solved.session.turns if t.sampled is not None]
    assert written == [tuple(scripted([]).ids_of(turn)) for turn in answer(playable)]
    results = [result.text for turn in solved.session.turns for result in turn.results]
    assert "passed" in str(results[-1]) and "failed" not in str(results[-1])
    assert (solved.version, solved.session.id) == (1, f"step-1:{total_task(playable).id}:0")


def test_an_attempt_earns_nothing_whatever_the_tool_is_called(
    playable: PlayableTasks, play: Callable[..., list[Rollout]]
) -> None:
    (hacked,) = play([bash("cat /proc/1/environ"), *answer(playable)])
    assert hacked.reward == 0.0 and hacked.measures["hack_attempts"] > 0


def test_a_program_that_does_not_come_to_an_end_earns_nothing(
    playable: PlayableTasks, play: Callable[..., list[Rollout]]
) -> None:
    (out_of_turns,) = play([*answer(playable)[:-1], *[bash("true")] * 4], turns=5)
    assert out_of_turns.reward == 0.0 and "exit code" in out_of_turns.failure
    (late,) = play([*answer(playable)[:-1], bash("sleep 60")], program_s=8.0)
    assert late.reward == 0.0 and "stopped after 8 s" in late.failure


def test_a_program_that_asks_for_nothing_is_an_error(play: Callable[..., list[Rollout]]) -> None:
    with pytest.raises(DataError, match=r"asked for no message.*gone wrong"):
        play([DONE], player="sh -c 'echo gone wrong; exit 4'")
    with pytest.raises(ConfigError, match="no-such-agent is not installed"):
        play([DONE], player="no-such-agent {task}")


def test_the_conversations_of_an_episode_count_once_in_their_group(
    playable: PlayableTasks, play: Callable[..., list[Rollout]]
) -> None:
    solved, idle = play(answer(playable), [DONE])
    other = [
        [solved, _again(solved, 1), idle],
        [idle, _again(idle, 1), _again(idle, 2), solved],
    ]
    rows = iter(other)
    makers = [lambda: env_of(playable)] * 2
    groups = sample_groups(
        makers, num_groups=1, size=2, sample=lambda envs, label: next(rows), label="s:"
    )
    (group,) = groups.groups
    assert group.rewards == (1.0, 0.0) and group.advantages == (0.5, -0.5)
    assert len(group.rollouts) == 3


def _again(rollout: Rollout, number: int) -> Rollout:
    """Another conversation of the same episode."""
    from dataclasses import replace

    session = replace(rollout.session, id=f"{rollout.session.id}.{number}")
    return replace(rollout, session=session, episode=episode_name(rollout))


def test_the_files_of_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = tmp_path / "lib" / "node_modules" / "agent"
    modules.mkdir(parents=True)
    (modules / "cli.js").write_text("#!/usr/bin/env node\n", "utf-8")
    (modules / "native").write_bytes(b"\x7fELF....")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, target in (("agent", "cli.js"), ("fast", "native")):
        (modules / target).chmod(0o755)
        (folder / name).symlink_to(modules / target)
    (folder / "node").write_text("#!/bin/sh\n", "utf-8")
    (folder / "node").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin")
    files = program_files(("agent", "-p", "x"))
    assert files.command == ("/player/bin/node", "/player/node_modules/agent/cli.js", "-p", "x")
    assert (str(tmp_path / "lib" / "node_modules"), "/player/node_modules") in files.read_only
    assert program_files(("fast",)).command == ("/player/node_modules/agent/native",)
    assert program_files((sys.executable, "a.py")).command == (sys.executable, "a.py")


def test_a_run_is_trained_and_played_by_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student is random: it writes nonsense, which the program takes as its last message."""
    program = (
        f'env = "repo"\nplayer = "{PLAYER}"\n'
        f'repo = {{ turns = 3, program_folders = ["{PROGRAM.parent}"] }}\n'
    )
    settings = SETTINGS.replace('env = "repo"\n', program)
    settings = settings.replace("repo = { turns = 2, command_s = 5 }\n", "")
    work = repo_work(tmp_path, settings)
    done = recompose("train", "--name", "a", "--train.steps", "1", cwd=work)
    assert done.code == 0, done.err
    run = work / "recompose" / "runs" / "a"
    (metrics,) = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    assert metrics["rollouts/success"] == 0.0 and metrics["tasks/played"] == 2
    (step,) = map(json.loads, (run / "curriculum.jsonl").read_text("utf-8").splitlines())
    assert [played for _, played in step["tasks"].values()] == [2, 2]
    monkeypatch.chdir(work)
    after = player_of(RunDir(run), name="after")
    rollouts = after.config.rollouts
    tasks = EvaluateSettings(tasks=1)
    played = play_one(after, settings=tasks, limits=rollouts, seed=3, env="repo", world=rollouts)
    assert [episode.reward for episode in played.episodes] == [0.0]
    assert played.episodes[0].tokens > 0
    other = recompose("train", "--name", "b", "--train.backend", "monarch", cwd=work)
    assert other.code and "plays by itself, without an agent program" in other.err
    with pytest.raises(ValueError, match="player is about tasks of your repositories"):
        RolloutSettings(env="workshop", player="codex")
