"""What was wrong and what would have been right, by kind of mistake: only from what was in view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_hints, record_to_json
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Decision, Hint
from composer_replication.core.trace import Session, ToolCall, ToolSpec
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.decisions import decision_of
from tests.data.sites.builder import bash, calls, failed, human, one_call, only, results, session

REFUSED = "<tool_use_error>InputValidationError: {}</tool_use_error>"
TOOLS = (
    ToolSpec(
        name="Read",
        parameters={
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "limit": {"type": "integer"},
                "offset": {"type": "integer"},
                "mode": {"enum": ["text", "bytes"]},
            },
            "required": ["file_path"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(name="Edit"),
    ToolSpec(name="Glob"),
    ToolSpec(name="Bash"),
)
LOGGED = {"tools": TOOLS, "tools_origin": "log"}


def decided(log: Session) -> Decision:
    found = decision_of(site_context(log, only(log)))
    assert found is not None
    return found


def one(tool: str, arguments: dict[str, Any], error: str) -> Decision:
    return decided(one_call(tool, arguments, error, **LOGGED))


@pytest.mark.parametrize(
    ("error", "tool"),
    [
        ("File has not been read yet. Read it first before writing to it.", "Edit"),
        ("String to replace not found in file.", "Edit"),
        ("File has been modified since read.", "Edit"),
    ],
)
def test_in_place_of_an_edit_that_cannot_succeed_the_file_is_read(error: str, tool: str) -> None:
    arguments = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
    found = one(tool, arguments, f"<tool_use_error>{error}</tool_use_error>")
    assert found == Decision(part="tool", wrong="Edit", right=("Read",))


def test_where_the_text_is_in_view_the_copy_was_wrong_and_not_the_tool() -> None:
    """The hint says to copy it from above; measured as Read against Edit, it would seem to harm."""
    wrong = {"file_path": "a.py", "old_string": "return  total", "new_string": "return 0"}
    no_match = "<tool_use_error>String to replace not found in file.</tool_use_error>"
    log = session(
        human("go"),
        calls(("c1", "Read", {"file_path": "a.py"})),
        results(("c1", "1\treturn total")),
        calls(("c2", "Edit", wrong)),
        failed("c2", no_match),
        **LOGGED,
    )
    assert decided(log) == Decision(part="value", argument="old_string")
    other = session(
        human("go"),
        calls(("c1", "Read", {"file_path": "a.py"})),
        results(("c1", "1\treturn other")),
        calls(("c2", "Edit", wrong)),
        failed("c2", no_match),
        **LOGGED,
    )
    assert decided(other) == Decision(part="tool", wrong="Edit", right=("Read",))


def test_an_unknown_tool_has_all_tools_on_offer_as_its_right_side() -> None:
    found = one("read_flie", {}, "Error: No such tool available: read_flie")
    assert found == Decision(part="tool", wrong="read_flie", right=("Read", "Edit", "Glob", "Bash"))


def test_a_wrong_name_of_an_argument_has_those_of_the_schema() -> None:
    found = one("Read", {"path": "a.py"}, REFUSED.format("unexpected parameter `path`"))
    assert found == Decision(part="argument", wrong="path", right=("file_path",))
    extra = one("Read", {"file_path": "a.py", "n": 3}, REFUSED.format("unexpected parameter `n`"))
    assert extra == Decision(part="argument", wrong="n", right=("limit", "offset", "mode"))
    missing = one("Read", {"limit": 3}, REFUSED.format("parameter `file_path` is missing"))
    assert missing == Decision(part="argument", right=("file_path",))
    value = one("Read", {"file_path": "a.py", "mode": "hex"}, REFUSED.format("invalid `mode`"))
    assert value == Decision(part="value", argument="mode", right=("text", "bytes"))


def test_without_a_schema_the_arguments_that_worked_are_right() -> None:
    log = session(
        human("go"),
        calls(("c1", "fetch", {"url": "http://x"})),
        results(("c1", "ok")),
        calls(("c2", "fetch", {"address": "http://y"})),
        failed("c2", REFUSED.format("unexpected parameter `address`")),
    )
    assert decided(log) == Decision(part="argument", wrong="address", right=("url",))


def test_a_missing_path_has_the_paths_that_the_hint_lists_and_else_a_listing() -> None:
    missing = "<tool_use_error>File does not exist.</tool_use_error>"
    seen = session(
        human("go"),
        calls(("c1", "Glob", {"pattern": "**/*.py"})),
        results(("c1", "src/utils.py\nsrc/main.py")),
        calls(("c2", "Read", {"file_path": "src/utlis.py"})),
        failed("c2", missing),
        **LOGGED,
    )
    assert decided(seen) == Decision(part="value", argument="file_path", right=("src/utils.py",))
    assert one("Read", {"file_path": "/w/a.py"}, missing) == Decision(
        part="tool", wrong="Read", right=("Glob",)
    )


def test_a_folder_is_listed_and_a_large_file_read_in_part() -> None:
    folder = one("Read", {"file_path": "src"}, "EISDIR: illegal operation on a directory, read")
    assert folder == Decision(part="tool", wrong="Read", right=("Glob",))
    large = "File content (30000 tokens) exceeds maximum allowed tokens (25000)."
    whole = one("Read", {"file_path": "a.py"}, large)
    assert whole == Decision(part="argument", right=("limit", "offset"))
    part = one("Read", {"file_path": "a.py", "limit": 9000}, large)
    assert part == Decision(part="tool", wrong="Read")  # no tool on offer that searches


def test_in_a_command_line_it_is_the_word_that_the_error_names() -> None:
    log = session(
        human("go"),
        calls(bash("c1", "golangci-lint run --out-format=tab")),
        failed("c1", "Exit code 3\nError: unknown flag: --out-format"),
        **LOGGED,
    )
    found = decided(log)
    # nothing in view says which option is right
    assert found == Decision(part="value", wrong="--out-format", argument="command")


def test_of_kinds_without_a_right_side_only_the_part_is_known() -> None:
    multi = "<tool_use_error>Found 2 matches of the string to replace</tool_use_error>"
    arguments = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
    assert one("Edit", arguments, multi) == Decision(part="value", argument="old_string")
    theirs = {"path": "a.py", "old_str": "x", "new_str": "y"}
    assert one("Edit", theirs, multi) == Decision(part="value", argument="old_str")


def test_a_decision_survives_its_file_and_a_strange_one_is_named(tmp_path: Path) -> None:
    found = Decision(part="value", wrong="b", argument="path", right=("c", "d"))
    hint = Hint(site_id="s1:7:c1", text="t", writer="w", kind="k", decision=found)
    path = tmp_path / "hints.jsonl"
    write_lines(path, [record_to_json(hint)])
    assert list(read_hints(path)) == [hint]
    path.write_text(json.dumps({**record_to_json(hint), "decision": {"part": "mood"}}) + "\n")
    with pytest.raises(DataError, match="'part'"):
        list(read_hints(path))


def test_the_corrected_call_differs_in_the_one_part() -> None:
    call = ToolCall("c1", "Read", {"path": "src/a.py", "n": 3})
    missing = Decision(part="argument", right=("limit",)).with_text(call, "limit")
    assert list(missing.arguments) == ["path", "n", "limit"]
    assert Decision(part="tool", wrong="Read").with_text(call, "Glob").name == "Glob"
    whole = Decision(part="value", argument="n").with_text(call, "x")
    assert whole.arguments == {"path": "src/a.py", "n": "x"}
