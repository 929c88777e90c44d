"""Real agent programs play against the endpoint.

A script solves the task, a model of random weights writes nonsense. Every sampled token is
recorded, with the log-prob of a re-scoring.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampling import EpisodeLimits, Sampling
from composer_replication.serve.endpoint import Endpoint
from composer_replication.serve.episode_record import EpisodeRecord
from composer_replication.serve.play import play_episode
from composer_replication.serve.recorded_sessions import CHANGED, played_rollouts
from composer_replication.serve.student_writers import LocalWriter, Writer
from tests.rollouts.small_world import tiny
from tests.serve.clients import QWEN, message, scripted
from tests.serve.test_serve_chat import check_logprobs

pytestmark = pytest.mark.backend
CALC = "def add(a, b):\n    return a - b\n"
TEST = """\
import unittest

from calc import add


class AddTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)
"""
TASK = "The test fails. Fix calc.py, run the tests, then stop."
RUN, FIX = "python3 -m unittest 2>&1 | tail -3", "sed -i 's/a - b/a + b/' calc.py"
MOST_MESSAGES = 3  # what a model of random weights writes has no end otherwise
TITLE = message("Fix calc.py")  # opencode asks for one beside the task
SCRIPTS: dict[str, tuple[str, list[Any]]] = {
    "mini-swe-agent": (
        "mini",
        [
            message("I look.", ("bash", {"command": "cat calc.py"})),
            message("I forgot the call."),
            message("Fix.", ("bash", {"command": FIX}), ("bash", {"command": RUN})),
            message("", ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})),
        ],
    ),
    "claude-code": (
        "claude",
        [
            message("I look.", ("Read", {"file_path": "calc.py"}), ("Bash", {"command": "ls"})),
            message(
                "",
                (
                    "Edit",
                    {
                        "file_path": "calc.py",
                        "old_string": "return a - b",
                        "new_string": "return a + b",
                    },
                ),
            ),
            message("", ("Bash", {"command": RUN, "timeout": 60000.0})),
            message("Done."),
        ],
    ),
    "codex": (
        "codex",
        [
            message("I look.", ("exec_command", {"cmd": "cat calc.py"})),
            message("", ("exec_command", {"cmd": FIX}), ("exec_command", {"cmd": RUN})),
            message("Done."),
        ],
    ),
    "opencode": (
        "opencode",
        [
            message("I look.", ("read", {"filePath": "calc.py"})),
            message(
                "",
                (
                    "edit",
                    {
                        "filePath": "calc.py",
                        "oldString": "return a - b",
                        "newString": "return a + b",
                    },
                ),
            ),
            message("", ("bash", {"command": RUN, "timeout": 60000.0, "description": "tests"})),
            message("Done."),
        ],
    ),
}


def play(
    player: str, writer: Writer, folder: Path, *, settings: Sampling
) -> tuple[EpisodeRecord, list[Rollout]]:
    """One episode in a small repository whose test fails."""
    tree = folder / "tree"
    tree.mkdir()
    (tree / "calc.py").write_text(CALC, "utf-8")
    (tree / "test_calc.py").write_text(TEST, "utf-8")
    chat_format = ChatFormat.of(QWEN, author="tiny")
    record = EpisodeRecord("calc:0", chat_format=chat_format, writer=writer, settings=settings)
    with Endpoint(socket=folder / "socket") as endpoint:
        play_episode(
            record,
            endpoint,
            player=player,
            task=TASK,
            tree=tree,
            folder=folder,
            timeout_s=150,
        )
    return record, played_rollouts(record, reward=1.0)


def check_every_token(record: EpisodeRecord, rollouts: list[Rollout]) -> None:
    """What was sampled is what is trained on, once each."""
    sampled = [t.sampled.ids for r in record.replies for t in r.turns if t.sampled is not None]
    trained = [
        t.sampled.ids
        for rollout in rollouts
        for _, t in rollout.session.assistant_turns()
        if t.sampled is not None
    ]
    assert sampled and sorted(trained) == sorted(sampled)


@pytest.mark.parametrize("player", SCRIPTS)
def test_a_program_solves_a_task(
    player: str, tmp_path: Path, needs_program: Callable[[str], None]
) -> None:
    program, script = SCRIPTS[player]
    needs_program(program)
    settings = Sampling(max_new_tokens=1000, max_context_tokens=60_000)
    writer = scripted(script, others={"side": [TITLE]})
    record, rollouts = play(player, writer, tmp_path, settings=settings)
    judged = subprocess.run(
        [sys.executable, "-m", "unittest", "-q"], cwd=tmp_path / "tree", capture_output=True
    )
    assert judged.returncode == 0
    check_every_token(record, rollouts)
    title = tuple(writer.ids_of(TITLE))
    written = [t.sampled.ids for r in record.replies for t in r.turns if t.sampled is not None]
    assert [ids for ids in written if ids != title] == [tuple(writer.ids_of(m)) for m in script]
    assert written.count(title) == (player == "opencode")
    changed = [e for r in rollouts for e in r.session.events if e.kind == CHANGED]
    assert bool(changed) == (player == "claude-code")


@pytest.mark.parametrize("player", SCRIPTS)
def test_a_model_s_episode_is_recorded_with_its_log_probs(
    player: str, tmp_path: Path, needs_program: Callable[[str], None]
) -> None:
    needs_program(SCRIPTS[player][0])
    model = tiny(len(QWEN.tokenizer), max_position_embeddings=40_000)
    limits = EpisodeLimits(max_turns=MOST_MESSAGES)
    settings = Sampling(max_new_tokens=40, max_context_tokens=40_000, seed=1, limits=limits)
    stop = ChatFormat.of(QWEN, author="tiny").stop_ids(model)
    writer = LocalWriter(model, settings=settings, stop=stop)
    record, rollouts = play(player, writer, tmp_path, settings=settings)
    check_every_token(record, rollouts)
    assert len(list(record.replies)) <= MOST_MESSAGES
    check_logprobs(model, rollouts[0])
