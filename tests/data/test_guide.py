"""The earlier guide's names: sessions to states to marked examples; the mistaken message is marked
by call id."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from composer_replication.compat.guide_errors import default_classify_error
from composer_replication.compat.guide_ingestion import (
    ClaudeCodeIngester,
    claude_states_to_trace_examples,
)
from composer_replication.compat.guide_types import TraceExample, TraceTurn
from composer_replication.core.errors import DataError


def _assistant(number: int, *blocks: dict[str, Any]) -> dict[str, Any]:
    message = {
        "id": f"m{number}",
        "role": "assistant",
        "model": "claude-x",
        "content": list(blocks),
    }
    return {"type": "assistant", "uuid": f"a{number}", "sessionId": "s1", "message": message}


def _result(number: int, call: str, text: str, *, error: bool) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call, "content": text, "is_error": error}
    return {
        "type": "user",
        "uuid": f"r{number}",
        "sessionId": "s1",
        "message": {"role": "user", "content": [block]},
    }


def _call(call: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two parallel calls; the first fails, its result comes last, and another message is in
    between."""
    records = [
        {
            "type": "user",
            "uuid": "u0",
            "sessionId": "s1",
            "message": {"role": "user", "content": "Fix the parser"},
        },
        _assistant(
            1,
            _call("c1", "Read", file_path="src/nowhere.py"),
            _call("c2", "Read", file_path="src/parser.py"),
        ),
        _result(2, "c2", "1 def parse(): ...", error=False),
        _result(3, "c1", "File does not exist.", error=True),
        _assistant(4, {"type": "text", "text": "I will look for it."}),
        _assistant(5, _call("c3", "Bash", command="pytest -q")),
        _result(6, "c3", "Exit code 1\n1 failed, 3 passed", error=True),
        _assistant(7, {"type": "text", "text": "A test fails."}),
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def test_states_hold_what_the_model_saw(log: Path) -> None:
    states = list(ClaudeCodeIngester().ingest(log).to_states())
    assert [s.state_id for s in states] == ["s1:1", "s1:4", "s1:5", "s1:7"]
    assert [m["role"] for m in states[0].messages] == ["user"]
    assert [m["role"] for m in states[1].messages] == ["user", "assistant", "tool", "tool"]
    assert states[1].messages[3] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "File does not exist.",
        "is_error": True,
    }
    assert states[1].messages[1] is states[2].messages[1], "the prefix is shared, not copied"
    assert states[0].student_action["tool_calls"][0]["function"] == {
        "name": "Read",
        "arguments": '{"file_path": "src/nowhere.py"}',
    }


def test_the_mistaken_message_is_marked_and_the_failed_check_is_not(log: Path) -> None:
    (example,) = claude_states_to_trace_examples(
        ClaudeCodeIngester().ingest(log).to_states(), final_reward=0.5
    )
    assert example.final_reward == 0.5
    assert {i: t.error_kind for i, t in enumerate(example.turns) if t.error_kind} == {
        1: "file_missing"
    }
    assert example.turns[1].error_meta["call_id"] == "c1"


def test_the_users_function_renames_or_leaves_out(log: Path) -> None:
    states = list(ClaudeCodeIngester().ingest(log).to_states())
    (renamed,) = claude_states_to_trace_examples(states, error_kind_fn=default_classify_error)
    assert {i: t.error_kind for i, t in enumerate(renamed.turns) if t.error_kind} == {
        1: "file_not_found"
    }
    (left_out,) = claude_states_to_trace_examples(states, error_kind_fn=lambda text: None)
    assert not any(t.error_kind for t in left_out.turns)


def test_recovery_is_the_turn_after_the_error_and_warns(log: Path) -> None:
    states = list(ClaudeCodeIngester().ingest(log).to_states())
    with pytest.warns(UserWarning, match="the turn after an error"):
        (example,) = claude_states_to_trace_examples(states, site="recovery")
    assert [i for i, t in enumerate(example.turns) if t.error_kind] == [4]


def test_conversations_that_do_not_continue_one_another_are_apart(log: Path) -> None:
    states = list(ClaudeCodeIngester().ingest(log).to_states())
    assert len(list(claude_states_to_trace_examples([*states, *states]))) == 2


def test_what_is_not_trained_in_the_guides_examples(log: Path) -> None:
    """A message that is rejected, renamed to nothing, cut off, or context of a later conversation
    is never trained; every other one once."""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    no = "The user doesn't want to proceed with this tool use. The tool use was rejected"
    records += [
        _assistant(8, _call("c4", "Edit", file_path="src/parser.py")),
        _result(9, "c4", no, error=True),
    ]
    summary = {
        "role": "user",
        "content": "This session is being continued from a previous conversation. Summary: ...",
    }
    records += [
        {"type": "system", "subtype": "compact_boundary", "uuid": "b10", "sessionId": "s1",
        "parentUuid": None,
         "compactMetadata": {"preservedMessages": {"uuids": ["a7"]}}},
        {"type": "user", "uuid": "u11", "sessionId": "s1", "isCompactSummary": True,
        "message": summary},
        _assistant(12, {"type": "text", "text": "Going on."}),
    ]  # fmt: skip
    log.write_text("".join(json.dumps(r) + "\n" for r in records))
    states = list(ClaudeCodeIngester().ingest(log).to_states())
    before, after = claude_states_to_trace_examples(states, error_kind_fn=lambda text: None)
    texts = {"before": [], "after": []}
    for name, example in (("before", before), ("after", after)):
        texts[name] = [
            (t.content or t.tool_calls[0]["id"], t.trained)
            for t in example.turns
            if t.role == "assistant"
        ]
    assert texts["before"] == [
        ("c1", False), ("I will look for it.", True), ("c3", True), ("A test fails.", True),
        ("c4", False),
    ]  # fmt: skip
    assert texts["after"] == [("A test fails.", False), ("Going on.", True)]


def test_what_an_ingester_gives_goes_straight_into_the_adapter(log: Path) -> None:
    sessions = ClaudeCodeIngester().ingest(log)
    (example,) = claude_states_to_trace_examples(sessions)
    assert [example] == list(claude_states_to_trace_examples(sessions.to_states()))
    assert [example] == list(
        claude_states_to_trace_examples([dict(state) for state in sessions.to_states()])
    )
    assert [tool["function"]["name"] for tool in example.tools] == ["Bash", "Read"]


def test_a_marked_turn_carries_the_hint_that_the_package_writes(log: Path) -> None:
    error = "<tool_use_error>Error: No such tool available: Reed</tool_use_error>"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    records += [
        _assistant(8, _call("c4", "Reed", file_path="a.py"), _call("c5", "Rede", file_path="a.py"))
    ]
    records += [
        _result(9, "c4", error, error=True),
        _result(10, "c5", error.replace("Reed", "Rede"), error=True),
    ]
    log.write_text("".join(json.dumps(r) + "\n" for r in records))
    (example,) = claude_states_to_trace_examples(ClaudeCodeIngester().ingest(log))
    first, second = (t.error_meta["hint"] for t in example.turns if t.error_kind)
    assert "list the folder" in first and "Bash" in second and "Read" in second


def test_turns_and_examples_are_keywords_or_dictionaries() -> None:
    call = {"id": "c1", "function": {"name": "read", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Fix it."},
        {"role": "assistant", "content": None, "tool_calls": [call], "error_kind": "file_missing"},
    ]
    example = TraceExample(turns=turns, final_reward=0.5)  # pyright: ignore[reportArgumentType] - dictionaries are the test
    assert (
        example == TraceExample.of({"turns": turns, "final_reward": 0.5})
        and example["final_reward"] == 0.5
    )
    assert example.turns[1] == TraceTurn(
        role="assistant", content="", tool_calls=(call,), error_kind="file_missing"
    )
    assert (
        example.turns[1]["error_kind"] == "file_missing"
        and dict(example.turns[0])["content"] == "Fix it."
    )
    with pytest.raises(DataError, match=r"a TraceTurn has no 'txt' \(at a TraceExample, turn 0\)"):
        TraceExample.of({"turns": [{"role": "user", "txt": "x"}]})


@pytest.mark.parametrize(
    "text",
    ["network error", "Network is unreachable", "Error: fetch failed", "getaddrinfo EAI_AGAIN api",
    "Could not connect to server",
     "Read timed out.", "curl: (6) Could not resolve host: x",
     "Temporary failure in name resolution", "connect ECONNREFUSED 127.0.0.1"],
)  # fmt: skip
def test_errors_of_the_network_are_connection_errors(text: str) -> None:
    assert default_classify_error(text) == "connection_error"
    assert default_classify_error("the network layer has a bug") == "tool_error"


@pytest.mark.parametrize(
    ("kind", "text"),
    [("command_not_found", "fish: Unknown command: foo"),
    ("command_not_found", "The term 'foo' is not recognized as the name of a cmdlet"),
     ("command_not_found", "Error: spawn git ENOENT"),
     ("command_not_found", "/usr/bin/env: 'node': No such file or directory"),
     ("file_not_found", "cat: env: No such file or directory"),
     ("file_not_found", "The system cannot find the file specified."),
     ("file_not_found", "error: pathspec 'x' did not match any file(s) known to git"),
     ("permission_denied", "Access is denied."),
     ("permission_denied", "remote: Permission to a/b.git denied to c."),
     ("permission_denied", "PermissionError: [Errno 13] x"),
     ("syntax_error", "TabError: inconsistent use of tabs"),
     ("connection_error", "ConnectionResetError: [Errno 104]"),
     ("connection_error", "net::ERR_CONNECTION_REFUSED"),
     ("tool_error", "String to replace not found in file."),
     ("tool_error", "TimeoutError: the command took 120 s")],
)  # fmt: skip
def test_everyday_errors_have_the_guides_kinds(kind: str, text: str) -> None:
    assert default_classify_error(text) == kind


def test_a_long_error_takes_no_longer_than_its_length() -> None:
    """240 KB of the beginning of a sentence took 14 s: each of them looked for its end in all the
    rest."""
    began = time.process_time()
    for piece in ("permission to use ", "env: ", "permission to ", "spawn ", "file "):
        assert default_classify_error(piece * (400_000 // len(piece))) == "tool_error"
    assert time.process_time() - began < 8.0
