"""Logs of other agents: told apart by content, counted right, the same kinds of mistakes, and what
each does not hold is reported.

The small logs in `other_agents/` are ours; real ones lie beside the public Claude Code sessions
(`traces_other`) and are never committed.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.trace import Opaque, Session, Text, TurnUsage
from composer_replication.data.ingestion.counts import FileReport
from composer_replication.data.ingestion.file_results import FileResult
from composer_replication.data.ingestion.find_logs import find_logs, other_files
from composer_replication.data.ingestion.formats.known_formats import FORMATS
from composer_replication.data.sites.find_sites import find_sites
from tests.data.ingestion.naive_other_counts import NAIVE
from tests.data.ingestion.reading import read_all, read_text

LOGS = Path(__file__).parent / "other_agents"
NO_OTHERS = (
    "real logs of other agents are not here: a folder traces_other beside the public sessions"
)

# File -> format, sessions, (messages of the model, calls, results, failed calls), and the sites by
# hand: turn, category and kind.
OURS = {
    "codex.jsonl": (
        "codex",
        1,
        (7, 7, 7, 4),
        [
            (4, "mistake", "shell_missing_path"),
            (7, "mistake", "edit_no_match"),
            (11, "mistake", "shell_unknown_command"),
            (13, "failed_check", "test_failed"),
            (15, "rejected", "user_rejected"),
        ],
    ),
    "gemini_cli.json": (
        "gemini_cli",
        1,
        (6, 6, 6, 5),
        [
            (1, "mistake", "file_missing"),
            (4, "mistake", "edit_no_match"),
            (6, "mistake", "shell_missing_path"),
            (8, "failed_check", "test_failed"),
            (10, "rejected", "user_rejected"),
        ],
    ),
    "gemini_cli_lines.jsonl": (
        "gemini_cli_lines",
        1,
        (2, 2, 2, 1),
        [(1, "mistake", "file_missing")],
    ),
    "swe_agent.traj": (
        "swe_agent",
        1,
        (4, 4, 4, 2),
        [
            (2, "mistake", "shell_missing_path"),
            (4, "mistake", "edit_no_match"),
            (6, "mistake", "other"),
        ],
    ),
    "mini_swe_agent.traj.json": (
        "mini_swe_agent",
        1,
        (3, 3, 2, 2),
        [(2, "mistake", "shell_missing_path"), (4, "failed_check", "test_failed")],
    ),
    "mini_swe_agent_list.traj.json": (
        "mini_swe_agent",
        1,
        (3, 2, 2, 1),
        [(2, "mistake", "shell_missing_path")],
    ),
    "openhands.json": (
        "openhands",
        1,
        (4, 4, 4, 3),
        [
            (2, "mistake", "shell_missing_path"),
            (5, "mistake", "edit_no_match"),
            (7, "failed_check", "test_failed"),
        ],
    ),
    "openhands_sdk_lines.jsonl": (
        "openhands_sdk_lines",
        1,
        (3, 3, 3, 2),
        [(2, "mistake", "shell_missing_path"), (5, "rejected", "user_rejected")],
    ),
    "opencode.json": (
        "opencode",
        1,
        (6, 6, 5, 5),
        [
            (2, "mistake", "file_missing"),
            (2, "failed_check", "test_failed"),
            (5, "mistake", "edit_no_match"),
            (7, "mistake", "shell_missing_path"),
            (9, "rejected", "user_rejected"),
        ],
    ),
    "atif.json": (
        "atif",
        1,
        (3, 3, 3, 1),
        [(2, "mistake", "shell_missing_path"), (5, "mistake", "bad_arguments")],
    ),
    "pi.jsonl": (
        "pi",
        1,
        (3, 3, 3, 3),
        [
            (2, "mistake", "file_missing"),
            (2, "failed_check", "test_failed"),
            (6, "mistake", "edit_no_match"),
        ],
    ),
    "copilot_cli.jsonl": (
        "copilot_cli",
        1,
        (2, 2, 2, 2),
        [(2, "mistake", "file_missing"), (2, "failed_check", "test_failed")],
    ),
    "cline/1788256800000/api_conversation_history.json": (
        "cline",
        1,
        (5, 4, 3, 3),
        [
            (2, "mistake", "file_missing"),
            (5, "failed_check", "test_failed"),
            (9, "rejected", "user_rejected"),
        ],
    ),
    "cline_native.messages.json": (
        "cline",
        1,
        (2, 1, 1, 1),
        [(2, "mistake", "file_missing")],
    ),
    "cline_cli.messages.json": (
        "cline_cli",
        1,
        (5, 5, 5, 5),
        [
            (2, "mistake", "file_missing"),
            (2, "mistake", "shell_missing_path"),
            (5, "mistake", "edit_no_match"),
            (7, "mistake", "unknown_tool"),
            (9, "permission", "permission_denied"),
        ],
    ),
    "messages_lines.jsonl": (
        "messages_lines",
        2,
        (4, 2, 2, 0),
        [(2, "mistake", "shell_missing_path"), (4, "mistake", "file_missing")],
    ),
    "messages_anthropic.json": (
        "messages",
        1,
        (2, 1, 1, 1),
        [(1, "mistake", "file_missing")],
    ),
}
# Real files, the same, with the sites counted by category.
REAL = {
    "codex_rollout_communique.jsonl": ("codex", 1, (13, 22, 22, 0), {}),
    "codex_rollout_entirecontext.jsonl": ("codex", 1, (1, 0, 0, 0), {}),
    "codex_rollout_hk_compacted.jsonl": (
        "codex",
        1,
        (195, 187, 187, 0),
        {"failed_check": 4, "mistake": 1},
    ),
    "gemini_cli_ab-2b9748b105-0.json": ("gemini_cli", 1, (11, 9, 9, 0), {}),
    "gemini_cli_9c-53780d06b7-0.json": ("gemini_cli", 1, (6, 4, 4, 0), {}),
    "sweagent_function_calling.traj": ("swe_agent", 1, (11, 11, 11, 1), {"mistake": 1}),
    "miniswe_local.traj.json": ("mini_swe_agent", 1, (2, 2, 2, 0), {}),
    "miniswe_github_issue.traj.json": (
        "mini_swe_agent",
        1,
        (10, 10, 10, 2),
        {"mistake": 1, "failed_check": 1},
    ),
    "openhands_basic_events.json": ("openhands", 1, (2, 2, 1, 0), {}),
    "atif_openhands.json": ("atif", 1, (2, 2, 1, 0), {}),
    "atif_terminus2.json": ("atif", 1, (3, 0, 0, 0), {}),
    "pi_ohmypi_small.jsonl": ("pi", 1, (7, 7, 7, 0), {}),
    "pi_ohmypi_mid.jsonl": ("pi", 1, (13, 13, 13, 0), {}),
    "pi_large-session.jsonl": (
        "pi",
        1,
        (439, 391, 373, 19),
        {"corrected": 10, "failed_check": 27, "interrupted": 2, "mistake": 3},
    ),
    "pi_before-compaction.jsonl": (
        "pi",
        1,
        (471, 454, 448, 12),
        {"blamed": 1, "corrected": 3, "failed_check": 12, "interrupted": 2, "mistake": 4},
    ),
    "copilot_cli_events.jsonl": ("copilot_cli", 1, (35, 108, 108, 3), {"mistake": 3}),
}


def counts_of(report: FileReport) -> tuple[int, int, int, int]:
    value = report.to_json()
    return (
        value["model_messages"],
        value["tool_use"],
        value["tool_result"],
        value["is_error"],
    )


def sites_of(session: Session) -> list[tuple[int, str, str]]:
    found = find_sites(session, settings=SitesSettings())
    return [(site.turn, site.category, site.kind) for site in found]


def read_ours(name: str) -> FileResult:
    (result,) = read_all(LOGS / name)
    return result


def only_session(name: str) -> Session:
    (session,) = read_ours(name).sessions
    return session


@pytest.fixture(scope="session")
def others_dir(traces_dir: Path) -> Path:
    """The folder of real logs of other agents, beside the public sessions."""
    folder = traces_dir.parent / "traces_other"
    if not folder.is_dir():
        pytest.skip(NO_OTHERS)
    return folder


# ---- every format --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_each_log_gives_the_counts_and_sites_that_were_counted_by_hand(name: str) -> None:
    log_format, num_sessions, counts, sites = OURS[name]
    result = read_ours(name)
    report = result.report
    assert (report.format, report.status, len(result.sessions)) == (
        log_format,
        "read",
        num_sessions,
    ), report.why
    assert counts_of(report) == counts == NAIVE[log_format](LOGS / name)
    assert [site for session in result.sessions for site in sites_of(session)] == sites


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_real_logs_give_the_counts_of_an_independent_reader(name: str, others_dir: Path) -> None:
    log_format, num_sessions, counts, categories = REAL[name]
    (result,) = read_all(others_dir / name)
    assert (result.report.format, len(result.sessions)) == (log_format, num_sessions)
    assert counts_of(result.report) == counts == NAIVE[log_format](others_dir / name)
    sites = [site for session in result.sessions for site in sites_of(session)]
    assert {c: [s[1] for s in sites].count(c) for c in {s[1] for s in sites}} == categories


# File -> messages of the model, those with a usage, output, read from and written to the cache, $.
# Summed from the raw records with a few lines of Python and jq.
USAGE = {
    "atif_openhands.json": (2, 2, 80, 0, 0, 0.0014),
    "atif_terminus2.json": (3, 3, 160, 0, 0, 0.0072),
    "codex_rollout_communique.jsonl": (13, 13, 3445, 275_840, 0, 0.0),
    "gemini_cli_ab-2b9748b105-0.json": (11, 10, 1812, 113_854, 0, 0.0),
    "openhands_basic_events.json": (2, 2, 1312, 3482, 4640, 0.0),
    "pi_before-compaction.jsonl": (471, 471, 187_895, 54_693_675, 1_685_320, 42.5959),
    "pi_large-session.jsonl": (439, 439, 83_156, 43_229_469, 4_296_232, 30.3302),
}


@pytest.mark.real
@pytest.mark.parametrize("name", USAGE)
def test_real_logs_give_the_tokens_and_dollars_that_they_report(
    name: str, others_dir: Path
) -> None:
    turns = [
        turn
        for result in read_all(others_dir / name)
        for session in result.sessions
        for turn in session.turns
        if turn.role == "assistant"
    ]
    reported = [turn.usage for turn in turns if turn.usage is not None]
    assert USAGE[name] == (
        len(turns),
        len(reported),
        sum(usage.output_tokens for usage in reported),
        sum(usage.cached_tokens for usage in reported),
        sum(usage.cache_write_tokens for usage in reported),
        round(sum(usage.usd or 0.0 for usage in reported), 4),
    )
    assert all(t.context_tokens >= t.usage.cached_tokens for t in turns if t.usage is not None)


def test_steps_of_opencode_and_pi_report_their_own_usage() -> None:
    for name, expected in {"opencode.json": (5, 45, 4500), "pi.jsonl": (3, 27, 2700)}.items():
        usages = [turn.usage for turn in only_session(name).turns if turn.usage is not None]
        sums = (sum(u.output_tokens for u in usages), sum(u.cached_tokens for u in usages))
        assert (len(usages), *sums) == expected


@pytest.mark.parametrize("name", OURS)
def test_content_decides_what_a_file_is_and_never_its_name(name: str, tmp_path: Path) -> None:
    shutil.copy(LOGS / name, tmp_path / "renamed.jsonl")
    (log,) = find_logs([tmp_path])
    assert log.format == OURS[name][0]
    assert log.format in FORMATS
    assert other_files([tmp_path]) == {}


@pytest.mark.parametrize("name", OURS)
def test_sessions_survive_the_disk(name: str, tmp_path: Path) -> None:
    sessions = read_ours(name).sessions
    write_sessions(tmp_path / "s.jsonl", sessions)
    assert tuple(read_sessions(tmp_path / "s.jsonl")) == sessions


@pytest.mark.parametrize("name", OURS)
def test_a_copy_of_a_log_is_a_duplicate_and_gives_no_session(name: str, tmp_path: Path) -> None:
    for copy in ("a.jsonl", "b.jsonl"):
        shutil.copy(LOGS / name, tmp_path / copy)
    results = read_all(tmp_path)
    assert [r.report.status for r in results] == ["read", "duplicate"]
    assert sum(len(r.sessions) for r in results) == OURS[name][1]


@pytest.mark.parametrize("name", OURS)
def test_no_damage_of_a_log_crashes(name: str, tmp_path: Path) -> None:
    """Every value of the log, one at a time, becomes something of another type."""
    text = (LOGS / name).read_text("utf-8")
    for old in ('"role"', '"content"', '"type"', '"id"', '"call_id"', '"arguments"', '"text"'):
        for new in ("7", "null", "[1]", '{"a": {"b": []}}'):
            broken = text.replace(f"{old}: ", f"{old}: {new}, {old[:-1]}x" + '": ')
            report = read_text(tmp_path, broken).report
            assert report.status in ("read", "damaged", "empty", "foreign", "refused"), report.why
    for cut in range(0, len(text), max(1, len(text) // 40)):
        assert read_text(tmp_path, text[:cut]).report.status != "unreadable"


# ---- Codex CLI -----------------------------------------------------------------------------------


def test_codex_joins_parallel_calls_and_keeps_people_apart_from_the_program() -> None:
    session = only_session("codex.jsonl")
    assert [c.id for c in session.turns[4].calls] == ["call_1", "call_2"]
    assert session.turns[4].context_tokens == 900
    assert [(t.role, t.author, t.tag) for t in session.turns[:4]] == [
        ("system", "harness", ""),
        ("user", "harness", "reminder"),
        ("user", "harness", "reminder"),
        ("user", "human", ""),
    ]
    assert session.turns[17].is_interrupt
    assert (session.cwd, session.repository) == ("/home/dev/shop", "acme/shop")
    assert session.source.versions == ("0.169.0",)


def test_codex_goes_on_after_a_compaction_with_what_the_record_holds() -> None:
    session = only_session("codex.jsonl")
    before = [i for i in session.context_indices(21) if i < 20]
    assert before == [0, 3, 18, 19]  # the prompt, the kept message, the summary
    assert [session.turns[i].text for i in (3, 18)] == [
        "fix the total\n",
        "Summary: the total is 3 now.",
    ]
    assert session.turns[19].tag == "compact_summary"
    assert [e.kind for e in session.events] == ["compaction"]


def test_codex_counts_what_it_does_not_know_and_says_what_it_lacks() -> None:
    report = read_ours("codex.jsonl").report
    assert report.raw.unknown_types == {"shiny_new_record": 1}
    assert report.raw.damage == [(40, "cut short")]
    assert report.lacks == (
        "schemas of tools (taken from the calls)",
        "whether a call failed, in 1 of 7 results",
    )


def codex_session(tmp_path: Path, *items: dict[str, Any]) -> tuple[Session, FileReport]:
    """A rollout with these items after a prompt, as a session, and the report of its file."""
    meta = {"type": "session_meta", "payload": {"id": "s-1", "cwd": "/home/dev/shop"}}
    prompt = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]}
    rows = [meta, *({"type": "response_item", "payload": item} for item in (prompt, *items))]
    log = tmp_path / "rollout.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (result,) = read_all(log)
    (session,) = result.sessions
    return session, result.report


def test_codex_searches_for_tools_with_a_call_that_has_a_result(tmp_path: Path) -> None:
    """As Codex's own sources define it: `call_id` is null where the provider ran the search."""
    call = {"type": "tool_search_call", "execution": "client", "arguments": {"query": "calendar"}}
    found = {"type": "tool_search_output", "execution": "client", "tools": [{"name": "agenda"}]}
    session, report = codex_session(
        tmp_path,
        {**call, "call_id": "t1", "status": "completed"},
        {**found, "call_id": "t1", "status": "completed"},
        {**call, "call_id": "t2"},
        {**found, "call_id": "t2", "status": "failed", "tools": []},
        {**call, "call_id": None, "execution": "server"},
        {**found, "call_id": None, "execution": "server", "status": "completed"},
    )
    calls = [call for turn in session.turns for call in turn.calls]
    assert [(c.id, c.name, c.arguments) for c in calls] == [
        (name, "tool_search", {"query": "calendar"}) for name in ("t1", "t2")
    ]
    results = [result for turn in session.turns for result in turn.results]
    assert [(r.call_id, r.text, r.is_error) for r in results] == [
        ("t1", '[{"name": "agenda"}]', False),
        ("t2", "[]", True),
    ]
    assert report.raw.opaque_blocks == {"tool_search_call": 1, "tool_search_output": 1}
    assert report.raw.unknown_types == {}


def test_codex_hears_from_another_agent(tmp_path: Path) -> None:
    """The message of a subagent is in the context, from the program and not from a person."""
    sealed = {"type": "encrypted_content", "encrypted_content": "gAAA"}
    message = {"type": "agent_message", "author": "/root/review", "recipient": "/root"}
    session, report = codex_session(
        tmp_path,
        {**message, "content": [{"type": "input_text", "text": "Found 3 keys."}, sealed]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So."}],
        },
        {**message, "content": [sealed]},
    )
    heard = [session.turns[1], session.turns[3]]
    assert [(t.role, t.author, t.tag) for t in heard] == [
        ("user", "harness", "task_notification")
    ] * 2
    assert [t.blocks for t in heard] == [(Text("Found 3 keys."),), (Opaque("agent_message", ""),)]
    assert report.raw.unknown_types == {}


def test_a_codex_log_of_the_first_versions_is_read(tmp_path: Path) -> None:
    rows = [
        {"id": "r1", "timestamp": "2025-06-01T10:00:00Z", "instructions": "Be brief.", "git": {}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {
            "type": "function_call",
            "name": "shell",
            "call_id": "c1",
            "arguments": json.dumps({"command": ["bash", "-lc", "cat nope"]}),
        },
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": json.dumps(
                {
                    "output": "cat: nope: No such file or directory",
                    "metadata": {"exit_code": 1, "duration_seconds": 0.0},
                }
            ),
        },
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (session,) = read_text(tmp_path, text).sessions
    assert [turn.role for turn in session.turns] == ["system", "user", "assistant", "tool"]
    assert session.turns[1].author == "human"
    assert sites_of(session) == [(2, "mistake", "shell_missing_path")]


def test_a_forked_codex_session_does_not_train_its_beginning_twice(tmp_path: Path) -> None:
    def goes_on(role: str, text: str) -> str:
        part = [{"type": "input_text", "text": text}]
        payload = {"type": "message", "role": role, "content": part}
        return json.dumps({"timestamp": "t", "type": "response_item", "payload": payload}) + "\n"

    *lines, _ = (LOGS / "codex.jsonl").read_text("utf-8").splitlines(keepends=True)
    text = "".join(lines)
    (tmp_path / "a.jsonl").write_text(text + goes_on("assistant", "Pushed."), "utf-8")
    fork = text.replace("-000000000001", "-000000000002") + goes_on("user", "try another way")
    (tmp_path / "b.jsonl").write_text(fork, "utf-8")
    sessions = [session for result in read_all(tmp_path) for session in result.sessions]
    assert [(s.id[-1], s.copied, len(s.turns)) for s in sessions] == [("2", 0, 23), ("1", 22, 23)]


# ---- Gemini CLI ----------------------------------------------------------------------------------


def test_gemini_lines_keep_the_last_state_of_a_message_and_leave_out_what_was_rewound() -> None:
    session = only_session("gemini_cli_lines.jsonl")
    assert [turn.text for turn in session.turns if turn.role == "user"] == [
        "fix the total",
        "go on",
    ]
    assert all(result.text for turn in session.turns for result in turn.results)
    assert session.cwd == "/home/dev/shop"


def test_an_earlier_copy_of_a_gemini_session_is_a_duplicate(tmp_path: Path) -> None:
    value = json.loads((LOGS / "gemini_cli.json").read_text("utf-8"))
    (tmp_path / "new.json").write_text(json.dumps(value, indent=1), "utf-8")
    value["messages"] = value["messages"][:3]
    value["messages"][-1]["toolCalls"] = []  # written before the call
    (tmp_path / "old.json").write_text(json.dumps(value, indent=1), "utf-8")
    assert [(r.report.file, r.report.status) for r in read_all(tmp_path)] == [
        ("new.json", "read"),
        ("old.json", "duplicate"),
    ]


# ---- SWE-agent and mini-swe-agent ----------------------------------------------------------------


def test_swe_agent_calls_whose_ids_repeat_are_numbered() -> None:
    session = only_session("swe_agent.traj")
    assert list(session.calls()) == ["call_a", "call_b", "call_a~2", "call_c"]
    assert all(ref.result is not None for ref in session.calls().values())
    assert session.cwd == "/testbed"


def test_a_refused_answer_of_mini_swe_agent_has_no_call() -> None:
    session = only_session("mini_swe_agent_list.traj.json")
    assert [len(turn.calls) for turn in session.turns if turn.role == "assistant"] == [1, 0, 1]
    assert [turn.tag for turn in session.turns if turn.role == "user"] == ["", "meta"]
    report = read_ours("mini_swe_agent_list.traj.json").report
    assert "ids of calls (numbered here)" in report.lacks and "the model" in report.lacks


def test_mini_swe_agent_reports_the_tokens_the_price_and_the_time_of_a_message() -> None:
    (turn, *_) = [turn for _, turn in only_session("mini_swe_agent.traj.json").assistant_turns()]
    assert turn.usage == TurnUsage(output_tokens=30, cached_tokens=800, usd=0.002)
    assert (turn.context_tokens, turn.written_at) == (900, 1788256800.5)


def test_swe_agent_s_last_step_is_read_from_the_trajectory_if_the_history_ends_before_it(
    tmp_path: Path,
) -> None:
    value = json.loads((LOGS / "swe_agent.traj").read_text("utf-8"))
    last = {"action": "submit\n", "observation": "diff --git a/x b/x", "response": "I submit."}
    (whole,) = read_text(tmp_path, json.dumps(value)).sessions
    steps = value["trajectory"]
    value["trajectory"] = [*steps, *[last] * (len(list(whole.assistant_turns())) + 1 - len(steps))]
    (session,) = read_text(tmp_path, json.dumps(value)).sessions
    added = session.turns[len(whole.turns) :]
    assert [turn.role for turn in added] == ["assistant", "tool"]
    assert [(c.name, c.arguments) for c in added[0].calls] == [("submit", {})]


def test_an_edit_that_swe_agent_refuses_is_a_mistake_however_long_it_is(tmp_path: Path) -> None:
    """Its own tools are no shell commands: as one, this edit was a failed check."""
    edit = "edit 13:13\n    return [x for x in (1, 2)\nend_of_edit"
    refusal = "Your proposed edit has introduced new syntax error(s).\n\nERRORS:\n- E999"
    value = {
        "trajectory": [{"action": edit, "observation": refusal}],
        "history": [
            {"role": "system", "content": "You edit."},
            {"role": "user", "content": "fix it"},
            {"role": "assistant", "content": "I edit.", "action": edit},
            {"role": "user", "content": refusal},
        ],
    }
    (session,) = read_text(tmp_path, json.dumps(value)).sessions
    assert [call.name for call in session.turns[2].calls] == ["edit"]
    assert sites_of(session) == [(2, "mistake", "other")]


# ---- OpenHands, OpenCode, ATIF, pi, Cline --------------------------------------------------------


def test_events_in_files_of_their_own_are_one_session_with_models_tokens_and_prices() -> None:
    """Each event was read as a session of its own."""
    (result,) = read_all(LOGS / "openhands_folder")
    assert (result.report.format, result.report.status) == ("openhands_folder", "read")
    (session,) = result.sessions
    lines = only_session("openhands_sdk_lines.jsonl").turns
    assert [turn.blocks for turn in session.turns] == [turn.blocks for turn in lines]
    authors = [turn.author for _, turn in session.assistant_turns()]
    assert authors == ["openai/student", "openai/student", None]
    usages = [turn.usage for _, turn in session.assistant_turns()]
    assert usages == [
        TurnUsage(output_tokens=30, cached_tokens=800, cache_write_tokens=50, usd=0.001),
        TurnUsage(output_tokens=20, cached_tokens=900, usd=0.002),
        None,
    ]
    assert (session.id, session.cwd) == ("0a1b", "/w")


def test_an_event_without_its_conversation_is_read_alone(tmp_path: Path) -> None:
    event = LOGS / "openhands_folder" / "0a1b" / "events" / "event-00001-e1.json"
    shutil.copy(event, tmp_path)
    assert [log.format for log in find_logs([tmp_path])] == ["openhands_sdk_lines"]


def test_a_call_that_opencode_refuses_has_failed(tmp_path: Path) -> None:
    """OpenCode runs its tool "invalid" instead, which ends "completed"."""
    words = "Model tried to call unavailable tool 'frobnicate'. Available tools: bash, edit."
    value = json.loads((LOGS / "opencode.json").read_text("utf-8"))
    part = next(p for m in value["messages"] for p in m["parts"] if p["type"] == "tool")
    part["tool"] = "invalid"
    part["state"] = {
        "status": "completed",
        "input": {"tool": "frobnicate", "error": words},
        "output": f"The arguments provided to the tool are invalid: {words}",
        "metadata": {"truncated": False},
    }
    (session,) = read_text(tmp_path, json.dumps(value)).sessions
    assert sites_of(session)[0] == (2, "mistake", "unknown_tool")


def test_openhands_calls_of_one_response_are_one_message() -> None:
    session = only_session("openhands.json")
    assert [c.id for c in session.turns[2].calls] == ["c1", "c2"]
    assert [tool.name for tool in session.tools] == ["execute_bash", "str_replace_editor"]
    assert session.tools_origin == "log"
    assert session.turns[2].context_tokens == 700


def test_opencode_steps_are_messages_and_a_compaction_leaves_the_summary() -> None:
    session = only_session("opencode.json")
    assert [len(turn.calls) for _, turn in session.assistant_turns()] == [2, 1, 1, 1, 0, 1]
    assert [session.turns[i].text for i in session.context_indices(14)] == [
        "What did we do so far?",
        "Summary: the total is wrong.",
        "don't push",
    ]
    assert [event.kind for event in session.events] == ["compaction", "interrupted"]
    assert "the system prompt" in read_ours("opencode.json").report.lacks


def test_a_database_of_opencode_gives_the_same_session_as_its_export(tmp_path: Path) -> None:
    value = json.loads((LOGS / "opencode.json").read_text("utf-8"))
    info, path = value["info"], tmp_path / "opencode.db"
    with sqlite3.connect(path) as database:
        database.executescript(
            "CREATE TABLE session (id, directory, parent_id, version, time_created);"
            "CREATE TABLE message (id, session_id, time_created, data);"
            "CREATE TABLE part (id, message_id, session_id, data);"
        )
        row = (info["id"], info["directory"], None, info["version"], info["time"]["created"])
        database.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", row)
        for message in value["messages"]:
            head, name = message["info"], message["info"]["id"]
            data = json.dumps({k: v for k, v in head.items() if k != "id"})
            row = (name, info["id"], head["time"]["created"], data)
            database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", row)
            for part in message["parts"]:
                row = (part["id"], name, info["id"], json.dumps(part))
                database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
    (result,) = read_all(tmp_path)
    assert (result.report.format, result.report.status) == ("opencode_database", "read")
    (session,), exported = result.sessions, only_session("opencode.json")
    assert (session.id, session.cwd) == (exported.id, exported.cwd)
    assert session.turns == exported.turns and session.segments == exported.segments


def test_the_folders_of_earlier_opencode_versions_are_read_by_their_session_file() -> None:
    results = read_all(LOGS / "opencode_storage")
    assert [r.report.format for r in results] == ["opencode_storage"]
    assert counts_of(results[0].report) == (1, 2, 2, 2)


def test_atif_keeps_tools_flags_and_the_model_of_each_step() -> None:
    session = only_session("atif.json")
    assert [turn.author for _, turn in session.assistant_turns()] == [
        "gpt-5",
        "gpt-5-mini",
        "gpt-5",
    ]
    assert session.tools_origin == "log" and session.tools[0].name == "bash"
    assert [r.is_error for turn in session.turns for r in turn.results] == [None, None, True]


def test_pi_goes_back_and_compacts_with_what_was_in_context() -> None:
    session = only_session("pi.jsonl")
    went_back, after_summary = 5, 9
    assert session.context_indices(went_back + 1) == (0, 1, went_back)
    assert session.context_indices(after_summary + 1) == (0, 8, 6, 7, after_summary)
    assert session.turns[8].tag == "compact_summary"


def test_cline_keeps_what_the_editor_added_apart_from_what_a_person_typed() -> None:
    session = only_session("cline/1788256800000/api_conversation_history.json")
    assert (session.id, session.cwd) == ("1788256800000", "/home/dev/shop")
    assert [(t.author, t.tag) for t in session.turns if t.role == "user"] == [
        ("human", ""),
        ("harness", "reminder"),
        ("harness", "reminder"),
        ("harness", "meta"),
        ("harness", "reminder"),
    ]
    assert session.turns[0].text == "fix the total"
    assert session.turns[5].calls[0].arguments == {
        "command": "make test",
        "requires_approval": "false",
    }


def test_a_call_of_cline_s_cli_failed_if_one_of_its_items_did() -> None:
    """It was read as messages of an API: no result was known to have failed, and their texts,
    the tokens, the model and the folder were lost."""
    session = only_session("cline_cli.messages.json")
    assert (session.id, session.cwd) == ("1788256800000_a1b2c", "/w")
    assert session.source.versions == ("3.0.65",)
    assert [(t.role, t.author) for t in session.turns[:3]] == [
        ("system", "harness"),
        ("user", "human"),
        ("assistant", "student"),
    ]
    assert session.turns[1].text == "fix the total"
    assert session.turns[2].usage == TurnUsage(output_tokens=40, cached_tokens=900)
    assert (session.turns[2].context_tokens, session.turns[2].written_at) == (1100, 1788256801.0)
    (read,) = session.turns[3].results
    assert read.text.startswith("Error reading file: ENOENT")
    assert read.text.endswith("[/w/total.py]\n1 | total = 2")
    assert read_ours("cline_cli.messages.json").report.lacks == (
        "schemas of tools (taken from the calls)",
    )


def test_a_folder_of_every_agents_logs_is_read_in_one_go() -> None:
    results = read_all(LOGS)
    assert all(r.report.status in ("read", "duplicate") for r in results)
    assert {r.report.format for r in results} == set(FORMATS) - {
        "openhands_sdk",
        "opencode_database",
    }


def test_unknown_content_is_not_read_and_said() -> None:
    from composer_replication.data.ingestion.formats.known_formats import sniff_format

    assert sniff_format(Path(__file__)) is None
    assert sniff_format(LOGS / "nowhere.json") is None
