"""Episodes as Claude Code logs: a log reads back as the episode, to the token, and leads back to
its task."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.errors import SessionError
from composer_replication.core.trace import Session, Text, ToolCall, Turn
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.claude_code_writer import write_claude_code
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.replay.ask import failed_turns
from composer_replication.rollouts.sampler import Sampling
from composer_replication.workshop.demonstrators import FAMILIES, teacher_turn
from composer_replication.workshop.record_episodes import record_logs, renders_to
from composer_replication.workshop.recorded_task import (
    task_of,
    to_log_session,
    was_recorded_here,
)
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.scripted_teachers import ask_scripted, fails_here
from composer_replication.workshop.workshop_env import WorkshopEnv
from tests.rollouts.small_world import parroted, tiny
from tests.tokens.students import CASES, renderer
from tests.workshop.recordings import SLACK, STUDENT, ingested, played_messages, record, tasks_of

SEED, COUNT = 31, 12
SECRET = "gh" + "p_" + "a7Zk" * 9


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    recorded = record(
        folder, sandbox, seed=SEED, messages=list(played_messages(tasks_of(SEED, COUNT), sandbox))
    )
    assert len(recorded.paths) == COUNT and not recorded.left_out
    return folder


@pytest.fixture(scope="module")
def sessions(logs: Path) -> list[Session]:
    return ingested(logs)


def by_task(sessions: list[Session]) -> dict[str, Session]:
    return {session.cwd: session for session in sessions}


@pytest.mark.parametrize(("family", "fixture"), CASES)
def test_a_session_read_back_renders_to_the_ids_of_the_rollout(
    tmp_path: Path, sandbox: Sandbox, family: str, fixture: str
) -> None:
    render, (task,) = renderer(family, fixture), tasks_of(SEED, 1)
    (messages,) = played_messages([task], sandbox)
    recorded = record(tmp_path, sandbox, seed=SEED, messages=[messages], render=render)
    # the ids of calls are part of the sampled text, and a rollout gives calls new ids
    if family in ("mistral-v7", "mistral-v11"):
        assert recorded.paths == () and recorded.left_out == {"other_tokens": 1}
        return
    (path,) = recorded.paths
    rollout = parroted(render, messages, env=WorkshopEnv(task, sandbox=sandbox, slack=SLACK))
    (session,) = ingested(path)
    ids = render.render(session.turns, tools=session.tools).ids
    assert ids[: len(rollout.ids)] == rollout.ids and len(rollout.ids) > 200
    assert all(turn.sampled is None for turn in session.turns)


def test_nothing_of_the_episode_but_ids_and_outcome_is_lost(
    sessions: list[Session], sandbox: Sandbox
) -> None:
    pairs_of_task = by_task(sessions)
    for number, task in enumerate(tasks_of(SEED, COUNT)):
        session = pairs_of_task[f"/workshop/train/{SEED}-{number}"]
        assert session.tools == task.tools.specs() and session.tools_origin == "log"
        assert [turn.role for turn in session.turns[:3]] == ["system", "user", "assistant"]
        assert session.turns[1].text == task.prompt and session.copied == 0
        assert {turn.author for turn in session.turns if turn.role == "assistant"} == {STUDENT}
        assert all(ref.result is not None for ref in session.calls().values())
        assert (
            session.source.format == "claude_code"
            and session.origin == "trace"
            and session.outcome is None
        )


def test_no_log_looks_like_a_copy_of_another(logs: Path) -> None:
    """Call ids of rollouts are c0, c1, ... in every episode; a reader takes an id that it has met
    for a copied turn."""
    reports = [result.report for result in ingest(find_logs([logs]))]
    assert len(reports) == COUNT and {report.status for report in reports} == {"read"}
    assert (
        sum(
            report.num_copied_turns + report.raw.duplicates + report.raw.copied_inside
            for report in reports
        )
        == 0
    )
    assert not any(
        report.raw.unknown_types or report.raw.unknown_attachments or report.raw.damaged_lines
        for report in reports
    )


def test_the_same_seed_gives_the_same_bytes_and_folders_are_named_as_claude_code_does(
    logs: Path, tmp_path: Path, sandbox: Sandbox
) -> None:
    record(tmp_path, sandbox, seed=SEED, messages=list(played_messages(tasks_of(SEED, 2), sandbox)))
    files = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.jsonl"))
    assert [path.parts[0] for path in files] == [
        f"-workshop-train-{SEED}-0",
        f"-workshop-train-{SEED}-1",
    ]
    assert all((logs / path).read_bytes() == (tmp_path / path).read_bytes() for path in files)


def test_the_task_is_found_again_and_tried(sessions: list[Session], sandbox: Sandbox) -> None:
    pairs_of_task = by_task(sessions)
    for number, task in enumerate(tasks_of(SEED, 4)):
        assert task_of(pairs_of_task[f"/workshop/train/{SEED}-{number}"], sandbox=sandbox) == task


def test_a_session_of_another_task_is_refused(sessions: list[Session], sandbox: Sandbox) -> None:
    session, other_session = sessions[0], sessions[1]
    with pytest.raises(SessionError, match="no folder of the workshop"):
        task_of(replace(session, cwd="/home/dev/inkwell"), sandbox=sandbox)
    with pytest.raises(SessionError, match="tools are not those"):
        task_of(replace(session, tools=session.tools[:-1]), sandbox=sandbox)
    with pytest.raises(SessionError):
        task_of(replace(session, cwd=other_session.cwd), sandbox=sandbox)
    result = session.turns[3].results[0]
    changed = replace(session.turns[3], blocks=(replace(result, text=result.text + "\nx = 1"),))
    with pytest.raises(SessionError, match="turn 3 is not what this task answers"):
        task_of(
            replace(session, turns=(*session.turns[:3], changed, *session.turns[4:])),
            sandbox=sandbox,
        )
    assert was_recorded_here(session) and not was_recorded_here(
        replace(session, cwd="/workshop/train/../x")
    )


def test_the_teachers_answer_in_the_state_of_that_turn(
    sessions: list[Session], sandbox: Sandbox
) -> None:
    session = next(s for s in sessions if sum(bool(t.calls) for t in s.turns) >= 3)
    env = WorkshopEnv(task_of(session, sandbox=sandbox), sandbox=sandbox, slack=20)
    env.open()
    for number, turn in enumerate(session.turns):
        if turn.role != "assistant":
            continue
        answers = ask_scripted(session, number, sandbox)
        assert [answer.family for answer in answers] == list(FAMILIES)
        assert [answer.turn.blocks for answer in answers] == [
            teacher_turn(env, family=family).blocks for family in FAMILIES
        ]
        assert {answer.site_id for answer in answers} == {f"{session.id}:{number}:-"}
        env.reply(turn)


def test_a_message_is_tried_in_the_state_of_its_turn(
    sessions: list[Session], sandbox: Sandbox
) -> None:
    """The recorded message fails there exactly if it did in the log, and a tool that nobody offers
    always does."""
    outcomes: set[bool] = set()
    for session in sessions[:12]:
        failed = failed_turns(session)
        for number, turn in enumerate(session.turns):
            if turn.role == "assistant" and turn.calls:
                outcomes.add(number in failed)
                assert fails_here(session, number, turn, sandbox) == (number in failed)
                wrong = replace(turn, blocks=(ToolCall("x", "no_such_tool", {}),))
                assert fails_here(session, number, wrong, sandbox)
    assert outcomes == {True, False}


def test_what_a_log_cannot_hold_is_left_out_and_counted(tmp_path: Path, sandbox: Sandbox) -> None:
    (good,) = played_messages(tasks_of(SEED, 1), sandbox)
    recorded = record(
        tmp_path,
        sandbox,
        seed=SEED,
        messages=[good, ["<tool_call>\n{oops\n</tool_call>", "Done."], [""]],
    )
    assert len(recorded.paths) == 1 and recorded.left_out == {
        "malformed_call": 1,
        "other_tokens": 1,
    }
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1


def test_an_episode_with_a_secret_never_reaches_the_disk(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even for a moment: a run that is killed between writing a log and reading it back would
    leave it there."""
    written: list[str] = []

    def write(session: Session, folder: Path) -> Path:
        path = write_claude_code(session, folder)
        written.append(path.read_text(encoding="utf-8"))
        return path

    monkeypatch.setattr("composer_replication.workshop.record_episodes.write_claude_code", write)
    (good,) = played_messages(tasks_of(SEED, 1), sandbox)
    recorded = record(tmp_path, sandbox, seed=SEED, messages=[good, [f"The key is {SECRET}."]])
    assert len(recorded.paths) == 1 and recorded.left_out == {"secret": 1}
    assert len(written) == 1 and SECRET not in written[0]
    assert not any(
        SECRET.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


def test_a_random_student_is_recorded_or_counted(tmp_path: Path, sandbox: Sandbox) -> None:
    render = renderer("qwen3", "qwen3")
    settings = Sampling(max_new_tokens=12, max_context_tokens=4096, seed=3)
    model = tiny(len(render.tokenizer), seed=3)
    recorded = record_logs(
        model,
        renderer=render,
        settings=settings,
        seed=4,
        num_sessions=6,
        folder=tmp_path,
        sandbox=sandbox,
    )
    assert (
        len(recorded.paths) + sum(recorded.left_out.values()) == 6
        and recorded.left_out
        and recorded.success == 0.0
    )


def test_another_tokenisation_is_noticed(sandbox: Sandbox) -> None:
    render, (task,) = renderer("qwen3", "qwen3"), tasks_of(SEED, 1)
    rollout = parroted(render, ["Done."], env=WorkshopEnv(task, sandbox=sandbox))
    session = to_log_session(rollout.session, seed="31-0", split="train")
    assert renders_to(session, rollout, renderer=render)
    last = Turn(role="assistant", author=STUDENT, blocks=(Text("Done!"),))
    assert not renders_to(
        replace(session, turns=(*session.turns[:-1], last)), rollout, renderer=render
    )
    assert not renders_to(replace(session, tools=session.tools[::-1]), rollout, renderer=render)


def test_asking_needs_no_torch() -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "numpy", "accelerate")))
import composer_replication.cli.replay, composer_replication.workshop.scripted_teachers
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
