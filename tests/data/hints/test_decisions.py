"""What was wrong and what would have been right, by kind of mistake: only from what was in view."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from composer_replication.core.codec import read_hints, record_to_json
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Decision, Hint
from composer_replication.core.trace import Session, ToolCall, ToolSpec, Turn
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.decisions import decision_of
from composer_replication.data.hints.writers import WRITERS
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
    """The decision of the hint that the built-in writer gives."""
    context = site_context(log, only(log))
    found = decision_of(context, WRITERS[context.site.kind](context) or "")
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


@pytest.mark.parametrize(
    ("tools", "arguments", "expected"),
    [
        ("Read Grep Bash", {}, Decision(part="tool", wrong="Read", right=("Grep",))),
        ("Read Edit Bash", {}, Decision(part="tool", wrong="Read", right=("Bash",))),
        ("Read Edit", {}, Decision(part="argument", right=("limit", "offset"))),
        # neither a search nor a smaller part can be said
        ("Read Edit", {"limit": 9000}, Decision(part="tool", wrong="Read")),
    ],
)
def test_a_large_file_is_searched_as_the_hint_says_and_else_read_in_part(
    tools: str, arguments: dict[str, Any], expected: Decision
) -> None:
    offered = tuple(replace(TOOLS[0], name=name) for name in tools.split())
    log = one_call(
        "Read",
        {"file_path": "a.py", **arguments},
        "File content (30000 tokens) exceeds maximum allowed tokens (25000).",
        tools=offered,
        tools_origin="log",
    )
    assert decided(log) == expected


def test_an_edit_that_changes_nothing_is_preceded_by_a_read() -> None:
    same = {"file_path": "a.py", "old_string": "x", "new_string": "x"}
    found = one("Edit", same, "No changes to make: old_string and new_string are exactly the same.")
    assert found == Decision(part="tool", wrong="Edit", right=("Read",))


def ran(line: str, text: str = "ok") -> tuple[Turn, Turn]:
    call_id = f"c{crc32(line.encode())}"
    return calls(bash(call_id, line)), results((call_id, text))


LS_FILES = ran("git ls-files", "src/data.py\nlib/a.py\ntarget/x.txt\nsrc/util.py")
IN_WEB = ran("cd /w/web && npx tsc --noEmit")
GRIP_RAN = ran("grip x")
NO_FILE = "Exit code 1\nwc: {}: No such file or directory"


@pytest.mark.parametrize(
    ("before", "line", "error", "right_line"),
    [
        # The word that the error names, and not the same letters in another word.
        (
            LS_FILES,
            "cp src/data.py /tmp/data.py && wc -l a.py",
            NO_FILE.format("a.py"),
            "cp src/data.py /tmp/data.py && wc -l lib/a.py",
        ),
        # of two words the one of the program that the error names
        (
            LS_FILES,
            "echo a.py && wc -l a.py",
            NO_FILE.format("a.py"),
            "echo a.py && wc -l lib/a.py",
        ),
        (
            LS_FILES,
            'wc -l "a.py" | sort',
            NO_FILE.format("a.py"),
            'wc -l "lib/a.py" | sort',
        ),
        (
            GRIP_RAN,
            "cd /targrep && cat grep.txt | grep x",
            "Exit code 127\n(eval):1: command not found: grep",
            "cd /targrep && cat grep.txt | grip x",
        ),
        # No word of the line is it: not known.
        (LS_FILES, "wc -l {a.py,b.py}", NO_FILE.format("a.py"), None),
        # What the hint says to run first, from the word on in which the line differs from it.
        (
            (),
            "cat x; git show main:src/utl.py",
            "Exit code 128\nfatal: path 'src/utl.py' does not exist in 'main'",
            "cat x; git ls-tree --name-only main:src/utl.py",
        ),
        (
            (),
            'echo "echo A" > /tmp/new/.env && cat /tmp/new/.env',
            "Exit code 1\n(eval):1: no such file or directory: /tmp/new/.env",
            'mkdir -p "echo A" > /tmp/new/.env && cat /tmp/new/.env',
        ),
        (
            IN_WEB,
            "cd /w/api && npx tsc --noEmit",
            "Exit code 127\nsh: tsc: command not found",
            "cd /w/web && npx tsc --noEmit",
        ),
        (
            (*IN_WEB, *ran("cd /w")),
            "npx tsc --noEmit",
            "Exit code 127\nsh: tsc: command not found",
            "cd /w/web tsc --noEmit",
        ),
        (
            (),
            "golangci-lint run --out-format=tab ./...",
            "Exit code 3\nError: unknown flag: --out-format",
            "golangci-lint run --help ./...",
        ),
        (
            (),
            "cd web && git log --frmat=x",
            "Exit code 128\nfatal: unrecognized argument: --frmat=x",
            "cd web && git log -h",
        ),
        (
            (),
            "cat -A f",
            "Exit code 1\ncat: illegal option -- A\nusage: cat [-belnstuv] [file ...]",
            "man cat -A f",
        ),
        # The help stands above already: which of its options is right, is not said.
        (
            ran("rg --help", "Usage:\n\n\n  -n\n  -l"),
            "rg --numbers x",
            "Exit code 2\nrg: unrecognized flag --numbers",
            None,
        ),
    ],
)
def test_in_a_command_line_the_decision_is_where_the_hint_leads_elsewhere(
    before: tuple[Turn, ...], line: str, error: str, right_line: str | None
) -> None:
    log = session(
        human("go"), *before, calls(bash("w", line)), failed("w", error), cwd="/w", **LOGGED
    )
    found = decided(log)
    call = ToolCall("w", "Bash", {"command": line})
    lines = [found.with_text(call, right).arguments["command"] for right in found.right]
    assert lines == ([] if right_line is None else [right_line])
    assert (found.part, found.argument) == ("value", "command")


def test_where_only_a_tool_can_look_the_tool_is_wrong_and_else_the_program() -> None:
    line, error = "wc -l a.py", NO_FILE.format("a.py")
    assert one("Bash", {"command": line}, error) == Decision(
        part="tool", wrong="Bash", right=("Glob",)
    )
    shell_only = {"tools": (TOOLS[3],), "tools_origin": "log"}
    found = decided(one_call("Bash", {"command": line}, error, **shell_only))
    assert found == Decision(part="value", wrong="wc", argument="command", right=("ls", "find"))


def test_a_hint_of_the_users_own_is_taken_to_advise_what_the_built_in_one_would() -> None:
    arguments = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
    log = one_call("Edit", arguments, "File has not been read yet. Read it first.", **LOGGED)
    context = site_context(log, only(log))
    own = decision_of(context, "Look at the file.")
    assert own == decided(log) == Decision(part="tool", wrong="Edit", right=("Read",))


def test_of_kinds_without_a_right_side_only_the_part_is_known() -> None:
    multi = "<tool_use_error>Found 2 matches of the string to replace</tool_use_error>"
    arguments = {"file_path": "a.py", "old_string": "x", "new_string": "y"}
    assert one("Edit", arguments, multi) == Decision(part="value", argument="old_string")
    theirs = {"path": "a.py", "old_str": "x", "new_str": "y"}
    assert one("Edit", theirs, multi) == Decision(part="value", argument="old_str")


SAVE = "def save(rows):\n"


@pytest.mark.parametrize("kind", ["broke_check", "taken_back"])
@pytest.mark.parametrize(
    ("arguments", "decision"),
    [
        (  # what stands above and below the new lines was there before
            {"old_string": f"{SAVE}    pass\n", "new_string": f"{SAVE}    write(row)\n    pass\n"},
            Decision(part="value", wrong="    write(row)\n", argument="new_string"),
        ),
        (
            {"old_str": "a\n", "new_str": "a\na\n"},
            Decision(part="value", wrong="a\n", argument="new_str", occurrence=1),
        ),
        (
            {"old_string": "a\nb\n", "new_string": "a\n"},
            Decision(part="value", argument="new_string"),
        ),
        ({"content": "x = 1\n"}, Decision(part="value", argument="content")),
        ({}, Decision(part="call")),
    ],
)
def test_of_an_edit_that_is_judged_later_the_new_lines_are_the_decision(
    kind: str, arguments: dict[str, str], decision: Decision
) -> None:
    log = one_call("Edit", {"file_path": "a.py", **arguments}, "String not found", **LOGGED)
    context = site_context(log, replace(only(log), kind=kind))
    assert decision_of(context, "any") == decision


def test_a_decision_survives_its_file_and_a_strange_one_is_named(tmp_path: Path) -> None:
    found = Decision(part="value", wrong="b", argument="path", occurrence=2, right=("c", "d"))
    hint = Hint(site_id="s1:7:c1", text="t", writer="w", kind="k", decision=found)
    path = tmp_path / "hints.jsonl"
    write_lines(path, [record_to_json(hint)])
    assert list(read_hints(path)) == [hint]
    # as written before a decision had an occurrence: the first one
    old = dict(record_to_json(hint)["decision"])
    del old["occurrence"]
    path.write_text(json.dumps({**record_to_json(hint), "decision": old}) + "\n")
    assert [h.decision for h in read_hints(path)] == [replace(found, occurrence=0)]
    path.write_text(json.dumps({**record_to_json(hint), "decision": {"part": "mood"}}) + "\n")
    with pytest.raises(DataError, match="'part'"):
        list(read_hints(path))


def test_the_corrected_call_differs_in_the_one_part() -> None:
    call = ToolCall("c1", "Read", {"path": "src/a.py", "n": 3})
    missing = Decision(part="argument", right=("limit",)).with_text(call, "limit")
    assert list(missing.arguments) == ["path", "n", "limit"]
    assert Decision(part="tool", wrong="Read").with_text(call, "Glob").name == "Glob"
    second = Decision(part="value", wrong="a", argument="path", occurrence=1)
    line = ToolCall("c1", "Bash", {"path": "aa"})
    assert second.with_text(line, "b").arguments == {"path": "ab"}
    assert replace(second, occurrence=2).with_text(line, "b") == line  # it holds no third
    whole = Decision(part="value", argument="n").with_text(call, "x")
    assert whole.arguments == {"path": "src/a.py", "n": "x"}
