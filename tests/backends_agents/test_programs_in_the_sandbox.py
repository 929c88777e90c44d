"""Real agent programs play a task of a repository inside the sandbox, and the judge rewards it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from composer_replication.core.config.rollout_settings import RepoSettings, RolloutSettings
from composer_replication.repositories.making.make_repo_tasks import TaskSettings
from composer_replication.repositories.playing import program_sampler
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.program_sampler import ProgramSampler
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.rollouts.sampling import Sampling
from tests.repositories.shop import needs_walls
from tests.repositories.workplace import playing_shop
from tests.serve.clients import QWEN, message, scripted

pytestmark = [pytest.mark.backend, needs_walls]
TESTS = "python -m pytest -q 2>&1 | tail -1"


def mini_script(path: str, text: str) -> list[Any]:
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    return [
        message("Write.", ("bash", {"command": f"cat > {path} <<'EOF'\n{text}EOF"})),
        message("Test.", ("bash", {"command": TESTS})),
        message("", ("bash", {"command": done})),
    ]


def claude_script(path: str, text: str) -> list[Any]:
    file_path = f"/repo/{path}"
    return [
        message("I look.", ("Read", {"file_path": file_path})),
        message("", ("Write", {"file_path": file_path, "content": text})),
        message("", ("Bash", {"command": TESTS})),
        message("Done."),
    ]


def codex_script(path: str, text: str) -> list[Any]:
    return [
        message("", ("exec_command", {"cmd": f"cat > {path} <<'EOF'\n{text}EOF"})),
        message("", ("exec_command", {"cmd": TESTS})),
        message("Done."),
    ]


def opencode_script(path: str, text: str) -> list[Any]:
    file_path = f"/repo/{path}"
    return [
        message("I look.", ("read", {"filePath": file_path})),
        message("", ("write", {"filePath": file_path, "content": text})),
        message("", ("bash", {"command": TESTS, "description": "tests"})),
        message("Done."),
    ]


SCRIPTS = {
    "mini-swe-agent": ("mini", mini_script),
    "claude-code": ("claude", claude_script),
    "codex": ("codex", codex_script),
    "opencode": ("opencode", opencode_script),
}


@pytest.fixture(scope="module")
def playable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayableTasks]:
    settings = TaskSettings(functions=4, classes=0, bugs=0)
    with playing_shop(tmp_path_factory.mktemp("tasks"), settings=settings) as tasks:
        yield tasks


@pytest.mark.parametrize("player", SCRIPTS)
def test_a_program_earns_a_task_inside_the_sandbox(
    player: str,
    playable: PlayableTasks,
    needs_program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, script_of = SCRIPTS[player]
    needs_program(program)
    (task,) = [task for task in playable.tasks if task.symbol == "total"]
    (path,) = task.paths
    text = (playable.repository(task).checkout.folder / path).read_text("utf-8")
    script = script_of(path, text)
    writer = scripted(script)
    monkeypatch.setattr(program_sampler, "_writers", lambda *_, **__: iter([writer]))
    settings = RolloutSettings(env="repo", player=player, repo=RepoSettings(program_s=150))
    first, *_ = ProgramSampler(settings)(
        None,
        [RepoEnv(task, playable, max_turns=20, command_s=20)],
        renderer=QWEN,
        settings=Sampling(max_new_tokens=2000, max_context_tokens=60_000),
        author="tiny",
    )
    assert first.reward == 1.0, (first.failure, first.session.turns[-3:])
    results = [result.text for turn in first.session.turns for result in turn.results]
    assert any("passed" in text and "failed" not in text for text in results)
    sampled = [t.sampled.ids for _, t in first.session.assistant_turns() if t.sampled is not None]
    assert sampled == [tuple(writer.ids_of(turn)) for turn in script]
