"""What a hint says is true at its place, and what it advises can be done there."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.core.trace import Segment, Session, ToolSpec, Turn
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.seen import track_places
from tests.data.hints.test_write import hint, report
from tests.data.sites.builder import bash, calls, failed, find, human, results, session

NOT_THERE = "<tool_use_error>Path does not exist: x</tool_use_error>"
NO_MATCH = "<tool_use_error>String to replace not found in file.</tool_use_error>"
READ = ToolSpec(
    name="Read",
    parameters={
        "properties": {
            "file_path": {"type": "string"},
            "offset": {"type": "number"},
            "limit": {"type": "number"},
        },
        "required": ["file_path"],
    },
)


def did(
    call: tuple[str, str, dict[str, Any]], text: str = "ok", error: bool | None = None
) -> tuple[Turn, Turn]:
    return calls(call), results((call[0], text, error))


def after(
    *before: Turn, call: tuple[str, str, dict[str, Any]], text: str, **more: Any
) -> list[str]:
    """The hints on a last call that failed."""
    log = session(human("x"), *before, calls(call), failed(call[0], text), **more)
    return [h.text for h in report(log).hints if h.site_id.endswith(call[0])]


# a file that is too large


def too_large(size: str) -> str:
    return f"File content ({size}) exceeds maximum allowed tokens (25000)."


@pytest.mark.parametrize(
    ("earlier", "size", "advice"),
    [
        ((), "25413 tokens", "read far fewer lines"),
        (
            did(("a", "Read", {"file_path": "/w/a.txt"}), too_large("37280 tokens"), True),
            "25413 tokens",
            "read far fewer lines",
        ),
        (
            did(("a", "Read", {"file_path": "/w/a.txt"}), too_large("25413 tokens"), True),
            "25413 tokens",
            "cut it by characters",
        ),
        (
            did(("a", "Read", {"file_path": "/w/b.txt"}), too_large("25413 tokens"), True),
            "25413 tokens",
            "read far fewer lines",
        ),
    ],
)
def test_fewer_lines_are_not_advised_where_they_gave_the_same_size(
    earlier: tuple[Turn, ...], size: str, advice: str
) -> None:
    (text,) = after(
        *earlier, call=("w", "Read", {"file_path": "/w/a.txt", "limit": 500}), text=too_large(size)
    )
    assert advice in text and "as well" not in text
    assert ("far fewer" in text) == (advice != "cut it by characters")


def test_of_a_whole_file_no_line_range_is_promised() -> None:
    """It may be one line: what can be done with every file is to read a part of it."""
    (text,) = after(call=("w", "Read", {"file_path": "/w/a.txt"}), text=too_large("25413 tokens"))
    assert text == (
        "Search in `a.txt` first, or read only a part of it: the whole file is too large to read at"
        " once."
    )


# arguments


REFUSED = "<tool_use_error>InputValidationError: {}</tool_use_error>"


@pytest.mark.parametrize(
    ("tool", "arguments", "error", "advice"),
    [
        (
            "Read",
            {},
            REFUSED.format("Read was called with input that could not be parsed as JSON."),
            "one complete JSON object",
        ),
        (
            "Read",
            {"file_path": "a", "offset": "695"},
            REFUSED.format(
                "Read failed:\nThe parameter `offset` type is expected as `number` but provided as"
                " `string`"
            ),
            "the value of offset is a plain number",
        ),
        (
            "Grep",
            {"pattern": "(?<=a)b"},
            "regex parse error:\n look-around, including look-ahead, is not supported",
            "without groups that look around",
        ),
        (
            "Grep",
            {"pattern": "a("},
            "regex parse error:\n    a(\n     ^\nerror: unclosed group",
            "backslash before each bracket",
        ),
        (
            "Task",
            {"subagent_type": "x"},
            "<tool_use_error>InputValidationError: Agent type 'x' not found.</tool_use_error>",
            "",
        ),
        (
            "Read",
            {"file_path": "a", "pages": "x"},
            "<tool_use_error>Invalid pages parameter: x</tool_use_error>",
            "",
        ),
        (
            "Read",
            {"path": "a"},
            REFUSED.format("Read failed:\nAn unexpected parameter `path` was provided"),
            "arguments file_path",
        ),
        (
            "Read",
            {"file_path": "a"},
            REFUSED.format("Read failed:\nThe required parameter `x` is missing"),
            "",
        ),
    ],
)
def test_a_refused_call_is_answered_by_what_was_refused(
    tool: str, arguments: dict[str, Any], error: str, advice: str
) -> None:
    """Without a schema in the log; names that were right are not listed."""
    worked = did(("a", tool, {"file_path": "ok"} if tool == "Read" else {"pattern": "x"}))
    got = after(*worked, call=("w", tool, arguments), text=error)
    assert [advice in text for text in got] == [True] * bool(advice), got


@pytest.mark.parametrize(
    ("arguments", "error", "hints"),
    [
        ({"path": "a"}, "Read failed due to the following issue:", 1),
        ({"file_path": 3}, "Read failed due to the following issue:", 1),
        ({"file_path": "a"}, "Read failed: the file must not be a link", 0),
    ],
)
def test_a_schema_is_given_where_the_arguments_do_not_fit_it(
    arguments: dict[str, Any], error: str, hints: int
) -> None:
    got = after(
        call=("w", "Read", arguments), text=REFUSED.format(error), tools=(READ,), tools_origin="log"
    )
    assert [text[:27] for text in got] == ["Reminder: the tool Read tak"] * hints


# paths


@pytest.mark.parametrize(
    ("before", "call", "hints"),
    [
        ((), ("w", "Read", {"file_path": "/w/src/a.py"}), 1),
        (
            did(("a", "Glob", {"pattern": "**/a.py"}), "No files found"),
            ("w", "Read", {"file_path": "/w/src/a.py"}),
            0,
        ),
        (did(bash("a", "ls src"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(bash("a", "cd src && ls"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (did(bash("a", "ls lib"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 1),
        (
            did(("a", "Glob", {"pattern": "src/*.py"}), "src/b.py"),
            ("w", "Read", {"file_path": "/w/src/a.py"}),
            0,
        ),
        (
            did(("a", "Glob", {"pattern": "**/*.go"}), "src/b.go"),
            ("w", "Read", {"file_path": "/w/src/a.py"}),
            1,
        ),
        (did(bash("a", "git ls-files"), "b.py"), ("w", "Read", {"file_path": "/w/src/a.py"}), 0),
        (
            did(bash("a", "find /w -type f | head -50"), "b.py"),
            ("w", "Read", {"file_path": "/w/src/a.py"}),
            0,
        ),
        (
            did(bash("a", "find /w/lib -type f"), "b.py"),
            ("w", "Read", {"file_path": "/w/src/a.py"}),
            1,
        ),
        ((), ("w", "Glob", {"pattern": "*.py", "path": "/w/src"}), 0),
        ((), bash("w", "gofmt -l ./cmd/..."), 0),
        ((), bash("w", "go build ./cmd"), 0),
    ],
)
def test_to_list_first_is_advised_where_nobody_looked(
    before: tuple[Turn, ...], call: tuple[str, str, dict[str, Any]], hints: int
) -> None:
    missing = (
        "Exit code 2\nstat ./cmd/...: no such file or directory\nmain module (m) does not contain"
        " package m/cmd"
    )
    text = NOT_THERE if call[1] != "Bash" else missing
    texts = after(*before, call=call, text=text, cwd="/w")
    assert len(texts) == hints
    assert all("first: list the folder above this path, or search for" in text for text in texts)
    looked = {before[0].calls[0].name for text in texts if before}
    shell = {"Bash": "Call Bash with `ls` or `find` first"}
    assert all(text.startswith(shell.get(n, f"Call {n} first")) for n in looked for text in texts)


@pytest.mark.parametrize(
    ("moved", "wrong"),
    [
        ("cd go", "go/cmd/a.go"),
        ("cd go", "./go/cmd/a.go"),
        ("cd web", "go/cmd/a.go"),
        ("cd $X", "go/cmd/a.go"),
        ("cd /w/go", "go/cmd/a.go"),
    ],
)
def test_where_a_path_holds_is_said_in_full_and_not_where_the_shell_stands(
    moved: str, wrong: str
) -> None:
    """A shell that was set back or started anew stands elsewhere, and no message tells."""
    earlier_turns = (
        *did(("s", "Glob", {"pattern": "**"}), "/w/go/cmd/a.go\n/w/lib/cmd/a.go"),
        *did(bash("m", moved)),
    )
    (text,) = after(
        *earlier_turns,
        call=bash("w", f"wc {wrong}"),
        text=f"Exit code 1\nwc: {wrong}: No such file or directory",
        cwd="/w",
    )
    assert text.startswith("Paths seen so far that exist: /w/go/cmd/a.go.")


def test_a_folder_in_which_the_shell_may_stand_already() -> None:
    text = "Exit code 1\n(eval):cd:1: no such file or directory: web"
    moved = did(bash("m", "cd web && npm ci"))
    got = after(*moved, call=bash("w", "cd web && npm test"), text=text, cwd="/w")
    assert "stands" not in "".join(got) and "/w/web" not in "".join(got)


@pytest.mark.parametrize(
    ("lines", "stands"),
    [
        (["cd web"], "/w/web"),
        (["cd web && npm ci 2>&1 | tail -5"], "/w/web"),
        (["cd web 2>/dev/null; ls"], None),  # nothing tells whether it worked
        (["cd web || true"], None),
        # it worked again: the shell was set back in between
        (["cd web && npm ci", "cd web && npm test"], None),
        (["cd web/app", "cd web/app"], None),
        (["cd web", "cd app"], "/w/web/app"),
        (["cd web; ls", "cd /w/web && ls"], "/w/web"),
        (["(cd web && npm ci)"], "/w"),
    ],
)
def test_the_shell_stands_where_a_cd_led_that_worked_for_certain(
    lines: list[str], stands: str | None
) -> None:
    turns = [turn for i, line in enumerate(lines) for turn in did(bash(f"m{i}", line))]
    log = session(
        human("x"),
        *turns,
        calls(bash("w", "cat a")),
        failed("w", "Exit code 1\ncat: a: No such file or directory"),
        cwd="/w",
    )
    assert track_places(site_context(log, find(log)[-1])).cwd == stands


MISSING = "Exit code 1\ncat: {}: No such file or directory"


@pytest.mark.parametrize(
    ("before", "call", "missing", "cwd", "hints"),
    [
        ((), "cat out/log.txt", "out/log.txt", "/w", 1),
        (
            did(bash("a", "./build.sh > log && cat out/log.txt")),
            "cat out/log.txt",
            "out/log.txt",
            "/w",
            0,
        ),
        (did(bash("a", "go build -o /w/bin/tool .")), "cat /w/bin/tool", "/w/bin/tool", "/w", 0),
        (
            did(bash("a", "go build -o /w/bin/tool . && git checkout old")),
            "cat /w/bin/tool",
            "/w/bin/tool",
            "/w",
            1,
        ),
        (
            did(bash("a", "go build -o /w/bin/tool ."), "Exit code 1", True),
            "cat /w/bin/tool",
            "/w/bin/tool",
            "/w",
            1,
        ),
        ((), "cat /d/work/a.txt", "/d/work/a.txt", "C:\\work", 0),
        ((), "cat /d/work/a.txt", "/d/work/a.txt", "/home/me", 1),
    ],
)
def test_to_list_first_is_no_help_where_the_path_was_used_above(
    before: tuple[Turn, ...], call: str, missing: str, cwd: str, hints: int
) -> None:
    got = after(*before, call=bash("w", call), text=MISSING.format(missing), cwd=cwd)
    assert ["list the folder" in text for text in got] == [True] * hints


@pytest.mark.parametrize(
    ("before", "advice"),
    [
        ((), "Run `npm run` first"),
        (
            did(bash("a", "cd /w/web && npm run build")),
            "Run `cd /w/web` first: this task ran there before",
        ),
        (did(bash("a", "npm run build")), ""),  # here, it seems: where, is not known
        (
            did(bash("a", "cd /w/web && npm run build"), "Exit code 1", True),
            "Run `npm run` first",
        ),
    ],
)
def test_a_task_that_ran_above_is_defined_where_it_ran(
    before: tuple[Turn, ...], advice: str
) -> None:
    got = after(
        *before,
        call=bash("w", "cd /w/api && npm run build"),
        text='Exit code 1\nnpm error Missing script: "build"',
        cwd="/w/web",
    )
    assert [advice in text for text in got] == [True] * bool(advice or got), got


def test_a_path_that_was_refused_above_is_said_to_have_been() -> None:
    read = ("a", "Read", {"file_path": "/w/a.py"})
    again = ("w", "Read", {"file_path": "/w/a.py"})
    assert (
        "refused above"
        in after(*did(read, NOT_THERE, True), call=again, text=NOT_THERE, cwd="/w")[0]
    )
    written = did(("m", "Write", {"file_path": "/w/a.py"}))
    assert "refused above" not in "".join(
        after(*did(read, NOT_THERE, True), *written, call=again, text=NOT_THERE, cwd="/w")
    )


# edits


def edit(call_id: str, old: str) -> tuple[str, str, dict[str, Any]]:
    return call_id, "Edit", {"file_path": "/w/a.go", "old_string": old, "new_string": "x"}


OLD = "func main() {\n\tprintln(1)"
SHOWN = did(("a", "Read", {"file_path": "/w/a.go"}), "   1\tfunc main() {\n   2\t\tprintln(1)")
SPACED = did(("a", "Read", {"file_path": "/w/a.go"}), "   1→func main() {\n   2→  println(1)")
NOT_WANTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."
ODD = did(("a", "Read", {"file_path": "/w/a.go"}), "   1→func \x9bmain() {\n   2→\tprintln(1)")


@pytest.mark.parametrize(
    ("before", "advice"),
    [
        (SHOWN, "copy it from that result"),
        (
            did(bash("a", "sed -n 1,9p a.go"), "func main() {\n  println(1)"),
            "copy it from that result",
        ),
        (did(bash("a", "grep -n main a.go"), "1:func main() {"), "copy it from that result"),
        (ODD, "a character that does not show"),
        # the same characters: nothing is hidden there
        ((*SHOWN, *did(edit("b", OLD), NO_MATCH, True)), "call Read on `a.go` again: copy"),
        (
            (*SPACED, *did(edit("b", OLD), NO_MATCH, True)),
            "a character that does not show, or other blanks",
        ),
        ((*SHOWN, *did(edit("b", OLD), NOT_WANTED, True)), "copy it from that result"),
        (
            (*SHOWN, *did(edit("b", "quite another text"), NO_MATCH, True)),
            "copy it from that result",
        ),
        ((*did(edit("b", OLD), NO_MATCH, True), *SHOWN), "copy it from that result"),
        (
            (*SHOWN, *did(edit("b", OLD), NO_MATCH, True), *did(edit("c", "other text"))),
            "call Read on `a.go` again: copy",
        ),
    ],
)
def test_a_copy_that_failed_is_not_advised_again(before: tuple[Turn, ...], advice: str) -> None:
    (text,) = after(*before, call=edit("w", OLD), text=NO_MATCH)
    assert advice in text[:1].lower() + text[1:]


def test_what_was_read_above_is_to_be_read_again_where_that_no_longer_counts() -> None:
    not_read, stale = (
        "File has not been read yet. Read it first before writing to it.",
        "File has been modified since read",
    )
    assert "Read `a.go` first" in after(call=edit("w", OLD), text=not_read)[0]
    assert (
        "Call Read on `a.go` first: what stands of this file above does not count"
        in after(*SHOWN, call=edit("w", OLD), text=not_read)[0]
    )
    assert (
        "Call Read on `a.go` first"
        in after(
            *did(("a", "Read", {"file_path": "/w/b/a.go"})), call=edit("w", OLD), text=not_read
        )[0]
    )
    assert (
        "Read `a.go` first: a file can"
        in after(*did(bash("a", "cat /w/a.go")), call=edit("w", OLD), text=not_read)[0]
    )
    switched = did(bash("s", "git checkout main"))
    assert (
        "has changed since it was read above"
        in after(*SHOWN, *switched, call=edit("w", OLD), text=stale)[0]
    )
    assert (
        "has changed since it was read above"
        in after(*SHOWN, *did(edit("e", "x")), call=edit("w", OLD), text=stale)[0]
    )


@pytest.mark.parametrize(
    ("before", "category"),
    [
        (SHOWN, "environment"),
        ((*SHOWN, *did(("b", "Read", {"file_path": "/w/b.go"}))), "environment"),
        # three messages: read it again
        ((*SHOWN, *did(("b", "Read", {"file_path": "/w/b.go"})), *did(bash("c", "ls"))), "mistake"),
        ((*SHOWN, *did(bash("s", "git checkout main"))), "mistake"),
        ((*SHOWN, *did(edit("e", "x"))), "mistake"),
        ((*did(edit("e", "x")), *SHOWN), "environment"),
        (did(("a", "Read", {"file_path": "/w/a.go"}), "File does not exist.", True), "mistake"),
        (did(("a", "Read", {"file_path": "/w/b.go"})), "mistake"),
        ((), "mistake"),
    ],
)
def test_a_file_that_changed_right_after_it_was_read_is_nobodys_mistake(
    before: tuple[Turn, ...], category: str
) -> None:
    stale = "File has been modified since read, either by the user or by a linter."
    log = session(human("x"), *before, calls(edit("w", OLD)), failed("w", stale))
    assert [s.category for s in find(log) if s.call_id == "w"] == [category]
    assert (category == "mistake") == any(h.site_id.endswith("w") for h in report(log).hints)


def replaced(old: str, new: str) -> tuple[str, str, dict[str, Any]]:
    return "r", "Edit", {"file_path": "/w/a.go", "old_string": old, "new_string": new}


@pytest.mark.parametrize(
    ("before", "is_said"),
    [
        ((*SHOWN, *did(replaced(OLD, "func run(args) {\n\tprintln(2)"), NOT_WANTED, True)), True),
        ((*SHOWN, *did(replaced("quite another", "func run(args) {"), NO_MATCH, True)), True),
        ((*SHOWN, *did(replaced(OLD, "func run(args) {\n\tprintln(2)"))), False),
        ((*SHOWN, *did(replaced(OLD, "func other() {"), NOT_WANTED, True)), False),
        (
            (
                *SHOWN,
                *did(replaced(OLD, "func run(args) {"), NOT_WANTED, True),
                *did(("v", "Write", {"file_path": "/w/a.go"})),
            ),
            False,
        ),
    ],
)
def test_the_text_of_an_edit_that_was_not_applied_is_not_in_the_file(
    before: tuple[Turn, ...], is_said: bool
) -> None:
    (text,) = after(*before, call=edit("w", "func run(args) {\n\tprintln(2)"), text=NO_MATCH)
    said = (
        "first: an earlier edit of this file failed, so it still holds what stood there before it."
    )
    assert (text == f"Call Read on `a.go` {said}") == is_said
    assert "does not show" not in text


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
    assert (
        "here-document"
        in after(call=bash("w", "python -c 'x = ('"), text=error.replace("<stdin>", "<string>"))[0]
    )


@pytest.mark.parametrize(
    ("command", "usage", "hints"),
    [
        # what refused it stands between
        ("find src -name x -o -name y", "Usage: rtk find [OPTIONS] <PATTERN>", 0),
        ("rtk find src -name x -o -name y", "Usage: rtk find [OPTIONS] <PATTERN>", 1),
        ("/usr/bin/find src -name x -o -name y", "usage: find [path] [expression]", 1),
    ],
)
def test_the_help_of_a_program_that_the_line_does_not_name_is_not_advised(
    command: str, usage: str, hints: int
) -> None:
    got = after(
        call=bash("w", command),
        text=f"Exit code 2\nerror: unexpected argument '-o' found\n\n{usage}",
    )
    assert len(got) == hints
