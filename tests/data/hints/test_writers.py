"""What a hint says holds where it stands, and what it advises can be done there."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.core.trace import Segment, Session, ToolSpec, Turn
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.seen import relative_from
from tests.data.hints.test_write import hint, report
from tests.data.sites.builder import bash, calls, failed, find, human, results, session

NOT_THERE = "<tool_use_error>Path does not exist: x</tool_use_error>"
NO_MATCH = "<tool_use_error>String to replace not found in file.</tool_use_error>"
READ = ToolSpec(
    name="Read",
    parameters={
        "properties": {"file_path": {"type": "string"}, "offset": {"type": "number"}, "limit": {"type": "number"}},
        "required": ["file_path"],
    },
)


def did(call: tuple[str, str, dict[str, Any]], text: str = "ok", error: bool | None = None) -> tuple[Turn, Turn]:
    return calls(call), results((call[0], text, error))


def after(*before: Turn, call: tuple[str, str, dict[str, Any]], text: str, **more: Any) -> list[str]:
    """The hints on a last call that failed."""
    log = session(human("x"), *before, calls(call), failed(call[0], text), **more)
    return [h.text for h in report(log).hints if h.site_id.endswith(call[0])]


# a file that is too large


def too_large(size: str) -> str:
    return f"File content ({size}) exceeds maximum allowed tokens (25000)."


@pytest.mark.parametrize(
    ("earlier", "size", "words"),
    [
        ((), "25413 tokens", "read far fewer lines"),
        (did(("a", "Read", {"file_path": "/w/a.txt"}), too_large("37280 tokens"), True), "25413 tokens", "read far fewer lines"),
        (did(("a", "Read", {"file_path": "/w/a.txt"}), too_large("25413 tokens"), True), "25413 tokens", "cut it by characters"),
        (did(("a", "Read", {"file_path": "/w/b.txt"}), too_large("25413 tokens"), True), "25413 tokens", "read far fewer lines"),
    ],
)
def test_fewer_lines_are_not_advised_where_they_gave_the_same_size(earlier: tuple[Turn, ...], size: str, words: str) -> None:
    (text,) = after(*earlier, call=("w", "Read", {"file_path": "/w/a.txt", "limit": 500}), text=too_large(size))
    assert words in text and "as well" not in text
    assert ("far fewer" in text) == (words != "cut it by characters")


def test_of_a_whole_file_no_line_range_is_promised() -> None:
    """It may be one line: what can be done with every file is to read a part of it."""
    (text,) = after(call=("w", "Read", {"file_path": "/w/a.txt"}), text=too_large("25413 tokens"))
    assert text == "`a.txt` is too large to read at once: search in it, or read only a part of it."


# arguments


REFUSED = "<tool_use_error>InputValidationError: {}</tool_use_error>"


@pytest.mark.parametrize(
    ("tool", "arguments", "said", "words"),
    [
        ("Read", {}, REFUSED.format("Read was called with input that could not be parsed as JSON."), "one complete JSON object"),
        (
            "Read",
            {"file_path": "a", "offset": "695"},
            REFUSED.format("Read failed:\nThe parameter `offset` type is expected as `number` but provided as `string`"),
            "the value of offset is a plain number",
        ),
        ("Grep", {"pattern": "(?<=a)b"}, "regex parse error:\n look-around, including look-ahead, is not supported", "no look-around"),
        ("Grep", {"pattern": "a("}, "regex parse error:\n    a(\n     ^\nerror: unclosed group", "backslash before each bracket"),
        ("Task", {"subagent_type": "x"}, "<tool_use_error>InputValidationError: Agent type 'x' not found.</tool_use_error>", ""),
        ("Read", {"file_path": "a", "pages": "x"}, "<tool_use_error>Invalid pages parameter: x</tool_use_error>", ""),
        (
            "Read",
            {"path": "a"},
            REFUSED.format("Read failed:\nAn unexpected parameter `path` was provided"),
            "arguments file_path",
        ),
        ("Read", {"file_path": "a"}, REFUSED.format("Read failed:\nThe required parameter `x` is missing"), ""),
    ],
)
def test_a_refused_call_is_answered_by_what_was_refused(tool: str, arguments: dict[str, Any], said: str, words: str) -> None:
    """Without a schema in the log; names that were right are not listed."""
    worked = did(("a", tool, {"file_path": "ok"} if tool == "Read" else {"pattern": "x"}))
    got = after(*worked, call=("w", tool, arguments), text=said)
    assert [words in text for text in got] == [True] * bool(words), got


@pytest.mark.parametrize(
    ("arguments", "said", "hints"),
    [
        ({"path": "a"}, "Read failed due to the following issue:", 1),
        ({"file_path": 3}, "Read failed due to the following issue:", 1),
        ({"file_path": "a"}, "Read failed: the file must not be a link", 0),
    ],
)
def test_a_schema_is_given_where_the_arguments_do_not_fit_it(arguments: dict[str, Any], said: str, hints: int) -> None:
    got = after(call=("w", "Read", arguments), text=REFUSED.format(said), tools=(READ,), tools_origin="log")
    assert [text[:27] for text in got] == ["Reminder: the tool Read tak"] * hints


# paths


@pytest.mark.parametrize(
    ("before", "call", "hints"),
    [
        ((), ("w", "Read", {"file_path": "/w/src/a.py"}), 1),
        (did(("a", "Glob", {"pattern": "**/a.py"}), "No files found"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(bash("a", "ls src"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(bash("a", "cd src && ls"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(bash("a", "ls lib"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 1),
        (did(("a", "Glob", {"pattern": "src/*.py"}), "src/b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(("a", "Glob", {"pattern": "**/*.go"}), "src/b.go"), ("w", "Read", {"file_path": "/w/src/a.py"}), 1),
        (did(bash("a", "git ls-files"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(bash("a", "find /w -type f | head -50"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(bash("a", "find /w/lib -type f"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 1),
        ((), ("w", "Glob", {"pattern": "*.py", "path": "/w/src"}), 0),
        ((), bash("w", "gofmt -l ./cmd/..."), 0),
        ((), bash("w", "go build ./cmd"), 0),
    ],
)
def test_to_list_first_is_advised_where_nobody_looked(before: tuple[Turn, ...], call: tuple[str, str, dict[str, Any]], hints: int) -> None:
    missing = "Exit code 2\nstat ./cmd/...: no such file or directory\nmain module (m) does not contain package m/cmd"
    text = NOT_THERE if call[1] != "Bash" else missing
    assert after(*before, call=call, text=text, cwd="/w") == [
        "Before this path is used, list the folder above it or search for its name."
    ] * hints  # fmt: skip


@pytest.mark.parametrize(
    ("moved", "wrong", "folder"),
    [
        ("cd go", "go/cmd/a.go", "/w/go"),  # it stands there already
        ("cd go", "./go/cmd/a.go", "/w/go"),
        ("cd web", "go/cmd/a.go", "/w/web"),  # the path holds from above
        ("cd go", "/w/go/cmd/b.go", None),
        ("cd go", "lib/c.go", None),
        ("true", "lib/c.go", None),
        ("cd $X", "go/cmd/a.go", None),
    ],
)
def test_where_the_shell_stands_is_said_where_that_makes_a_path_wrong(moved: str, wrong: str, folder: str | None) -> None:
    seen = (*did(("s", "Glob", {"pattern": "**"}), "/w/go/cmd/a.go\n/w/x.md"), *did(bash("m", moved)))
    error = f"Exit code 1\nwc: {wrong}: No such file or directory"
    log = session(human("x"), *seen, calls(bash("w", f"wc {wrong}")), failed("w", error), cwd="/w")
    context = site_context(log, find(log)[0])
    assert relative_from(context) == folder
    if folder:
        assert hint(log).text == (
            f"A relative path starts in {folder} here, for the shell stands there. Paths seen so far that exist: /w/go/cmd/a.go."
        )


def test_a_folder_in_which_the_shell_stands_already() -> None:
    text = "Exit code 1\n(eval):cd:1: no such file or directory: web"
    moved = did(bash("m", "cd web && npm ci"))
    assert after(*moved, call=bash("w", "cd web && npm test"), text=text, cwd="/w") == [
        "The shell stands in /w/web here: a relative path starts there."
    ]


def test_a_path_that_was_refused_above_is_said_to_have_been() -> None:
    read = ("a", "Read", {"file_path": "/w/a.py"})
    again = ("w", "Read", {"file_path": "/w/a.py"})
    assert "refused above" in after(*did(read, NOT_THERE, True), call=again, text=NOT_THERE, cwd="/w")[0]
    made = did(("m", "Write", {"file_path": "/w/a.py"}))
    assert "refused above" not in "".join(after(*did(read, NOT_THERE, True), *made, call=again, text=NOT_THERE, cwd="/w"))


# edits


def edit(call_id: str, old: str) -> tuple[str, str, dict[str, Any]]:
    return call_id, "Edit", {"file_path": "/w/a.go", "old_string": old, "new_string": "x"}


OLD = "func main() {\n\tprintln(1)"
SHOWN = did(("a", "Read", {"file_path": "/w/a.go"}), "   1\tfunc main() {\n   2\t\tprintln(1)")
ODD = did(("a", "Read", {"file_path": "/w/a.go"}), "   1→func \x9bmain() {\n   2→\tprintln(1)")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (SHOWN, "copy it from that result"),
        (did(bash("a", "sed -n 1,9p a.go"), "func main() {\n  println(1)"), "copy it from that result"),
        (did(bash("a", "grep -n main a.go"), "1:func main() {"), "copy it from that result"),
        (ODD, "a character that does not show"),
        ((*SHOWN, *did(edit("b", OLD), NO_MATCH, True)), "a character that does not show"),
        ((*SHOWN, *did(edit("b", "quite another text"), NO_MATCH, True)), "copy it from that result"),
        ((*did(edit("b", OLD), NO_MATCH, True), *SHOWN), "copy it from that result"),
        ((*SHOWN, *did(edit("b", OLD), NO_MATCH, True), *did(edit("c", "other text"))), "read again the region"),
    ],
)
def test_a_copy_that_failed_is_not_advised_again(before: tuple[Turn, ...], words: str) -> None:
    (text,) = after(*before, call=edit("w", OLD), text=NO_MATCH)
    assert words in text[:1].lower() + text[1:]


def test_what_was_read_above_is_to_be_read_again_where_that_no_longer_counts() -> None:
    not_read, stale = "File has not been read yet. Read it first before writing to it.", "File has been modified since read"
    assert "has to be read with" in after(call=edit("w", OLD), text=not_read)[0]
    assert "no longer counts: read it again" in after(*SHOWN, call=edit("w", OLD), text=not_read)[0]
    assert "has to be read with" in after(*did(("a", "Read", {"file_path": "/w/b/a.go"})), call=edit("w", OLD), text=not_read)[0]
    assert "has to be read with" in after(*did(bash("a", "cat /w/a.go")), call=edit("w", OLD), text=not_read)[0]
    assert "has changed since it was read above" in after(*SHOWN, call=edit("w", OLD), text=stale)[0]


# the rest


def test_an_answer_that_is_cleared_is_not_said_to_be_in_view() -> None:
    read = {"file_path": "a.py"}
    again = (calls(("b", "Read", read)), failed("b", "File unchanged since last read."))
    turns = (human("x"), *did(("a", "Read", read), "1"), calls("hm"), *again)
    assert "in view" in hint(session(*turns)).text
    cleared = (Segment(start=0, end=4), Segment(start=4, end=6, context=((0, 4),), cleared=("a",)))
    log = Session(id="s1", source=session(*turns).source, turns=turns, segments=cleared)
    assert report(log).hints == ()


def test_a_here_document_is_not_advised_to_who_wrote_one() -> None:
    error = 'Exit code 1\n  File "<stdin>", line 1\n    x = (\n        ^\nSyntaxError: x'
    assert after(call=bash("w", "python - <<'EOF'\nx = (\nEOF"), text=error) == []
    assert "here-document" in after(call=bash("w", "python -c 'x = ('"), text=error.replace("<stdin>", "<string>"))[0]


@pytest.mark.parametrize(
    ("command", "usage", "hints"),
    [
        ("find src -name x -o -name y", "Usage: rtk find [OPTIONS] <PATTERN>", 0),  # what refused it stands between
        ("rtk find src -name x -o -name y", "Usage: rtk find [OPTIONS] <PATTERN>", 1),
        ("/usr/bin/find src -name x -o -name y", "usage: find [path] [expression]", 1),
    ],
)
def test_the_help_of_a_program_that_the_line_does_not_name_is_not_advised(command: str, usage: str, hints: int) -> None:
    got = after(call=bash("w", command), text=f"Exit code 2\nerror: unexpected argument '-o' found\n\n{usage}")
    assert len(got) == hints
