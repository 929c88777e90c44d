"""The demonstration logs (one or more per era) and, if present, the public sessions: nothing is
lost and nothing is counted twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import FileResult, ingest
from composer_replication.data.ingestion.counts import session_counts
from composer_replication.data.ingestion.find_logs import find_logs
from tests.data.ingestion.naive_counts import naive_counts

LOGS = Path(__file__).parents[3] / "examples" / "demo_logs"
NAMES = sorted(p.relative_to(LOGS).as_posix() for p in LOGS.rglob("*.jsonl"))


@pytest.fixture(scope="module")
def results() -> dict[str, FileResult]:
    return {r.report.file: r for r in ingest(find_logs([LOGS]))}


def by_version(results: dict[str, FileResult], version: str) -> list[Session]:
    return [s for r in results.values() for s in r.sessions if s.source.versions == (version,)]


def test_demo_logs_are_what_the_script_writes(repository_root: Path) -> None:
    script = repository_root / "examples" / "make_demo_logs.py"
    completed = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_a_plain_walk_over_the_lines(
    results: dict[str, FileResult], name: str
) -> None:
    report = results[name].report.to_json()
    expected = naive_counts(LOGS / name)
    assert {key: report[key] for key in expected} == expected
    assert report["status"] == "read"
    assert not report["damage"]
    assert not report["unknown_types"]


def test_public_sessions_give_the_expected_counts(traces_dir: Path, repository_root: Path) -> None:
    expected = {
        e["file"]: e
        for e in json.loads((repository_root / "tests" / "traces_expected.json").read_text("utf-8"))
    }
    results = {r.report.file: r for r in ingest(find_logs([traces_dir]))}
    differences = []
    for name, counts in expected.items():
        report = results[name].report.to_json()
        differences += [
            (name, key, value, report.get(key))
            for key, value in counts.items()
            if report.get(key) != value
        ]
        if not report["progress_subagents"]:
            # from the sessions alone
            assert session_counts(results[name].sessions)["tool_use"] == counts["tool_use"]
    assert not differences


def test_sessions_survive_the_disk(results: dict[str, FileResult], tmp_path: Path) -> None:
    sessions = [s for r in results.values() for s in r.sessions]
    write_sessions(tmp_path / "s.jsonl", sessions)
    assert list(read_sessions(tmp_path / "s.jsonl")) == sessions


def test_version_1_has_its_subagent_apart_and_its_repeated_record_once(
    results: dict[str, FileResult],
) -> None:
    main, side = by_version(results, "1.0.71")
    assert main.parent is None
    task = next(c for t in main.turns for c in t.calls if c.name == "Task")
    assert side.parent is not None
    assert (side.parent.session_id, side.parent.call_id) == (main.id, task.id)
    assert side.turns[0].text == task.arguments["prompt"]
    assert (side.turns[0].author, side.turns[0].tag) == ("claude-opus-4-1-20250805", "task")
    assert [t.text for t in main.turns].count(main.turns[-1].text) == 1
    assert all(t.text != side.turns[0].text for t in main.turns)


def test_compaction_leaves_the_summary_and_what_was_preserved(
    results: dict[str, FileResult],
) -> None:
    main = by_version(results, "2.1.30")[0]
    summary = next(i for i, t in enumerate(main.turns) if t.tag == "compact_summary")
    context = main.context(summary + 1)
    # the last call, its result, the summary
    assert [t.tag for t in context] == ["", "", "compact_summary"]
    assert context[1].results[0].call_id == context[0].calls[0].id
    later = main.context(len(main.turns) - 1)
    assert len(later) == len(main.turns) - 1 - summary + 2


def test_cleared_results_read_as_cleared_only_afterwards(results: dict[str, FileResult]) -> None:
    main = by_version(results, "2.1.30")[0]
    boundary = next(e.turn for e in main.events if e.kind == "microcompaction")
    cleared = main.segment_of(boundary).cleared
    assert len(cleared) == 1
    result_turn = main.calls()[cleared[0]].result_turn
    assert result_turn is not None
    after = main.turn_in_view(result_turn, at=boundary + 1).results[0].text
    before = (
        main.turn_in_view(
            result_turn, at=result_turn + 1 if result_turn + 1 < boundary else result_turn
        )
        .results[0]
        .text
    )
    assert after == "[Old tool result content cleared]" != before


def test_going_back_leaves_the_abandoned_messages_out(results: dict[str, FileResult]) -> None:
    main = by_version(results, "2.1.30")[0]
    asked = [
        i
        for i, t in enumerate(main.turns)
        if t.text.startswith("Write it as a click command called export")
    ]
    assert len(asked) == 2
    context = main.context_indices(asked[1] + 1)
    assert asked[0] in context  # it was answered from there on
    assert not set(range(asked[0] + 1, asked[1])) & set(context)


def test_steering_in_mid_turn_is_an_event_or_a_message_of_the_human(
    results: dict[str, FileResult],
) -> None:
    assert [e.text for e in by_version(results, "2.1.30")[0].events if e.kind == "queued"] == [
        "keep the titles as headings"
    ]
    queued = [t for s in by_version(results, "2.1.220") for t in s.turns if t.tag == "queued"]
    assert [(t.author, t.text) for t in queued] == [("human", "low_tides as well please")]


def test_progress_subagent_is_a_session_of_its_own(results: dict[str, FileResult]) -> None:
    main, side = by_version(results, "2.1.30")
    report = next(r.report for r in results.values() if main in r.sessions)
    assert side.parent is not None
    assert side.parent.call_id in {c.id for t in main.turns for c in t.calls if c.name == "Task"}
    assert report.to_json()["progress_subagents"]["assistant_messages"] == 2
    assert report.to_json()["assistant_messages"] == sum(t.role == "assistant" for t in main.turns)


def test_synthetic_record_is_an_event_but_counted_as_a_message(
    results: dict[str, FileResult],
) -> None:
    main = by_version(results, "2.1.39")[0]
    assert [e.text for e in main.events if e.kind == "synthetic"] == ["API Error: 529 overloaded"]
    assert all("529" not in t.text for t in main.turns)
    counts = session_counts([main])
    assert counts["assistant_messages"] == counts["model_messages"] + 1


def test_blocking_hook_names_the_call_it_blocked(results: dict[str, FileResult]) -> None:
    for version in ("2.1.220", "2.1.280"):
        main = next(s for s in by_version(results, version) if s.parent is None)
        event = next(e for e in main.events if e.kind == "hook_blocked")
        assert event.call_id is not None
        ref = main.calls()[event.call_id]
        assert ref.call.name == "Edit"
        assert ref.turn < event.turn
        assert main.turns[event.turn].tag == "hook"


def test_subagent_with_its_own_file_is_linked_by_the_agent_id(
    results: dict[str, FileResult],
) -> None:
    main = next(s for s in by_version(results, "2.1.220") if s.parent is None)
    side = next(s for s in by_version(results, "2.1.220") if s.parent is not None)
    assert side.parent is not None
    call = next(c for t in main.turns for c in t.calls if c.name == "Agent")
    assert (side.parent.session_id, side.parent.call_id) == (main.id, call.id)


@pytest.mark.parametrize("version", ["2.1.280", "2.1.284"])
def test_newest_era_has_system_prompt_tools_and_reminders_from_the_log(
    results: dict[str, FileResult], version: str
) -> None:
    session = by_version(results, version)[0]
    # even where the snapshot stands behind the first message in the file
    assert session.turns[0].role == "system"
    assert session.turns[0].text.startswith("You are a coding agent")
    assert session.tools_origin == "log"
    read = next(t for t in session.tools if t.name == "Read")
    assert read.parameters["required"] == ["file_path"]
    assert any(
        t.tag == "reminder" and t.author == "harness" and t.text.startswith("<system-reminder>")
        for t in session.turns
    )


def test_older_eras_have_tools_from_the_calls_and_say_so(results: dict[str, FileResult]) -> None:
    session = by_version(results, "2.0.76")[0]
    assert session.tools_origin == "reconstructed"
    bash = next(t for t in session.tools if t.name == "Bash")
    assert bash.parameters["required"] == ["command"]


def test_every_author_is_who_wrote_it(results: dict[str, FileResult]) -> None:
    for result in results.values():
        for session in result.sessions:
            for turn in session.turns:
                if turn.role == "assistant":
                    assert turn.author
                    assert turn.author.startswith("claude-")
                elif turn.role == "tool":
                    assert turn.author == "environment"
                elif turn.role == "user":
                    assert (turn.author == "human") == (turn.tag in ("", "queued"))
