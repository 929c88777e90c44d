"""Hints end to end: one per mistake, a count where there is none, and what each one refers to."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest

import composer_replication.data.hints.write as write_module
from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.errors import ConfigError, SiteError
from composer_replication.core.site import Hint
from composer_replication.core.trace import Session, ToolSpec
from composer_replication.data.hints.context import SiteContext, site_context
from composer_replication.data.hints.templates import TEMPLATES
from composer_replication.data.hints.write import HintReport, write_hints
from composer_replication.data.hints.writers import (
    BUILT_IN,
    KNOWS,
    WRITERS,
    used_hindsight,
)
from tests.data.sites.builder import bash, calls, failed, find, human, one_call, results, session

MISSING = "<tool_use_error>File does not exist.</tool_use_error>"
TOOLS = (
    ToolSpec(
        name="Read",
        description="Reads a file",
        parameters={
            "properties": {"limit": {"type": "integer"}, "file_path": {"type": "string"}},
            "required": ["file_path"],
        },
    ),
    ToolSpec(
        name="Edit",
        parameters={
            "properties": {"mode": {"enum": ["a", "b"]}, "n": {"type": ["integer", "null"]}}
        },
    ),
)


def report(log: Session, **settings: Any) -> HintReport:
    return write_hints(log, find(log), settings=HintsSettings(**settings))


def hint(log: Session, **settings: Any) -> Hint:
    got = report(log, **settings)
    assert len(got.hints) == 1, got
    return got.hints[0]


def test_the_site_of_a_hint_its_length_its_overlap_and_what_it_knows() -> None:
    got = hint(
        one_call(
            "Edit",
            {"file_path": "src/app.py", "old_string": "the region"},
            "String to replace not found in file.",
        )
    )
    assert (got.site_id, got.kind, got.writer, got.knows) == (
        "s1:1:c1",
        "edit_no_match",
        "reread",
        ("kind", "call"),
    )
    assert "Read `app.py` first: copy the old text" in got.text
    assert got.num_words == len(got.text.split())
    words = got.text.lower().replace("`", " ").replace(".", " ").replace(",", " ").split()
    assert got.overlap == pytest.approx(
        sum(
            w in {"edit", "file_path", "src", "app", "py", "old_string", "the", "region"}
            for w in words
        )
        / len(words),
        abs=1e-4,
    )
    assert got.overlap > 0


def test_only_mistakes_get_hints_and_the_rest_is_counted() -> None:
    log = session(
        human("x"),
        calls(("a", "Edit", {"file_path": "f"}), bash("b", "pytest")),
        results(
            ("a", "The user doesn't want to proceed with this tool use.", True),
            ("b", "Exit code 1\n1 failed", True),
        ),
    )
    got = report(log)
    assert (got.hints, got.refused, got.left_out) == ((), (), 2)


def test_a_kind_without_anything_to_say_is_counted_not_guessed() -> None:
    got = report(
        one_call(
            "Read",
            {"path": "x.py"},
            "InputValidationError: Read failed due to the following issue:",
        )
    )
    assert (got.hints, got.without) == ((), {"bad_arguments": 1})


def test_a_site_of_another_session_is_refused() -> None:
    first, second = (
        one_call("Read", {"file_path": "x"}, MISSING),
        one_call("Read", {"file_path": "x"}, MISSING, id="s2"),
    )
    with pytest.raises(SiteError, match="not of session"):
        write_hints(second, find(first), settings=HintsSettings())


# the writers --------------------------------------------------------------------------------------


def test_an_unknown_tool_is_answered_with_the_tools_on_offer() -> None:
    wrong = "<tool_use_error>Error: No such tool available: Raed</tool_use_error>"
    got = hint(one_call("Raed", {}, wrong, tools=TOOLS, tools_origin="log"))
    assert got.text == "Reminder: available tools: Read, Edit."
    assert got.knows == ("kind", "tools")


def test_tools_inferred_from_calls_leave_out_names_that_never_worked() -> None:
    wrong = "<tool_use_error>Error: No such tool available: Raed</tool_use_error>"
    log = session(
        human("x"),
        calls(("a", "Read", {"file_path": "ok"}), ("b", "Raed", {}), ("c", "Wriet", {})),
        results(("a", "1"), ("b", wrong, True), ("c", wrong, True)),
        tools=(ToolSpec(name="Raed"), ToolSpec(name="Read"), ToolSpec(name="Wriet")),
        tools_origin="reconstructed",
    )
    first = report(log).hints[0]
    assert first.text == "Reminder: available tools: Read."
    assert first.knows == ("kind", "tools:reconstructed")


def test_bad_arguments_are_answered_with_the_schema() -> None:
    wrong = (
        "<tool_use_error>InputValidationError: Read failed due to the following"
        " issue:</tool_use_error>"
    )
    got = hint(one_call("Read", {"path": "a"}, wrong, tools=TOOLS, tools_origin="log"))
    assert got.text == "Reminder: the tool Read takes file_path: string (required), limit: integer."
    assert got.knows == ("kind", "call", "schema")
    enums = hint(one_call("Edit", {"x": 1}, wrong, tools=TOOLS, tools_origin="log"))
    assert "mode: one of a|b, n: integer or null" in enums.text


def test_without_a_schema_in_the_log_only_calls_that_worked_before_speak() -> None:
    wrong = (
        "<tool_use_error>InputValidationError: Read failed due to the following"
        " issue:</tool_use_error>"
    )
    inferred = {
        "tools": (ToolSpec(name="Read", parameters={"properties": {"path": {"type": "string"}}}),),
        "tools_origin": "reconstructed",
    }
    assert report(one_call("Read", {"path": "a"}, wrong, **inferred)).without == {
        "bad_arguments": 1
    }
    log = session(
        human("x"),
        calls(("a", "Read", {"file_path": "ok", "limit": 3})),
        results(("a", "1")),
        calls(("b", "Read", {"path": "a"})),
        failed("b", wrong),
        **inferred,
    )
    assert (
        hint(log).text
        == "Reminder: calls of Read that worked in this session used the arguments file_path,"
        " limit."
    )
    assert hint(log).knows == ("kind", "call", "calls_seen")


@pytest.mark.parametrize(
    ("tool", "arguments", "text", "known"),
    [
        (
            "Write",
            {"file_path": "plan.md"},
            "File has not been read yet. Read it first",
            ("kind", "call"),
        ),
        (
            "Edit",
            {"file_path": "a.go"},
            "<tool_use_error>Found 3 matches of the string to replace",
            ("kind", "call"),
        ),
        ("Edit", {"file_path": "a.go"}, "File has been modified since read", ("kind", "call")),
        (
            "Read",
            {"file_path": "src/pkg/"},
            "EISDIR: illegal operation on a directory, read",
            ("kind", "call"),
        ),
        (
            "Bash",
            {"command": "echo 1 > d/a.txt"},
            "Exit code 1\n(eval):1: no such file or directory: d/a.txt",
            ("kind", "error_text", "call"),
        ),
    ],
)
def test_a_hint_that_names_a_file_says_where_it_has_the_name_from(
    tool: str, arguments: Any, text: str, known: tuple[str, ...]
) -> None:
    assert hint(one_call(tool, arguments, text)).knows == known


def test_in_a_shell_the_name_of_a_directory_is_what_the_error_told() -> None:
    log = one_call("Bash", {"command": "cat src"}, "Exit code 1\ncat: src: Is a directory")
    assert used_hindsight(
        WRITERS["is_directory"], site_context(log, find(log)[0]), text="`src` is a directory"
    ) == ("kind", "error_text")


@pytest.mark.parametrize(
    ("tool", "arguments", "text", "advice"),
    [
        (
            "Write",
            {"file_path": "/p/plan.md"},
            "File has not been read yet. Read it first",
            "Read `plan.md` first",
        ),
        (
            "Edit",
            {"file_path": "a.go"},
            "<tool_use_error>Found 3 matches of the string to replace",
            "stands in `a.go` more than once",
        ),
        (
            "Edit",
            {"file_path": "a.go"},
            "No changes to make: old_string and new_string are exactly the same.",
            "must differ",
        ),
        ("Edit", {"file_path": "a.go"}, "File has been modified since read", "Read `a.go` first"),
        (
            "Read",
            {"file_path": "a.jsonl"},
            "File content (3MB) exceeds maximum allowed size",
            "Search in `a.jsonl` first, or read only a part of it:",
        ),
        (
            "Read",
            {"file_path": "src/pkg/"},
            "EISDIR: illegal operation on a directory, read",
            "list the files of `pkg`: it is a directory",
        ),
        (
            "Bash",
            {"command": "curl h?a=1"},
            "Exit code 1\n(eval):1: no matches found: h?a=1",
            "Quote every argument",
        ),
        (
            "Bash",
            {"command": "python -c 'x = ('"},
            'Exit code 1\n  File "<string>", line 1\n    x = (\n        ^\nSyntaxError: x',
            "here-document",
        ),
        (
            "Bash",
            {"command": 'jq ".a ! b"'},
            "Exit code 3\njq: error: syntax error",
            "single quotes",
        ),
        (
            "Bash",
            {"command": "jq '.a ! b'"},
            "Exit code 3\njq: error: syntax error",
            "syntax of the expression",
        ),
        ("Read", {"file_path": "x.py"}, MISSING, "list the folder above this path, or search"),
        (
            "Bash",
            {"command": "pytest 't"},
            "Exit code 2\nbash: -c: line 1: unexpected EOF while looking for matching `''",
            "every quote",
        ),
        (
            "Bash",
            {"command": "X=$(ls) && (a"},
            "Exit code 1\n(eval):1: parse error near `('",
            "command line simple",
        ),
        (
            "Bash",
            {"command": "gh pr diff 1 --stat"},
            "Exit code 1\nunknown flag: --stat",
            "use only options and subcommands that it lists",
        ),
        (
            "Bash",
            {"command": "gh pr diff 1 -- a b"},
            "Exit code 1\naccepts at most 1 arg(s), received 3",
            "Run `gh pr diff --help` first: it says how many",
        ),
        (
            "Bash",
            {"command": "echo 1 > out/x.txt"},
            "Exit code 1\n(eval):1: no such file or directory: out/x.txt",
            "Run `mkdir -p` on the folder of `x.txt` first",
        ),
    ],
)
def test_each_kind_has_its_sentence(
    tool: str, arguments: dict[str, Any], text: str, advice: str
) -> None:
    assert advice in hint(one_call(tool, arguments, text)).text


READ = ("a", "Read", {"file_path": "/w/a.go"})
SHOWN = "   1\tfunc main() {\n   2\t\tprintln(1)"


def edit_after(*before: Any, old: str = "func main() {\n  println(1)") -> str:
    """The hint on an edit whose old text is not in the file, after some turns."""
    wrong = ("w", "Edit", {"file_path": "/w/a.go", "old_string": old, "new_string": "x"})
    return hint(
        session(
            human("x"), *before, calls(wrong), failed("w", "String to replace not found in file.")
        )
    ).text


def did(call: tuple[str, str, dict[str, Any]], text: str = "ok") -> tuple[Any, Any]:
    return calls(call), results((call[0], text))


@pytest.mark.parametrize(
    ("before", "advice"),
    [
        ((), "Read `a.go` first"),
        (did(READ, SHOWN), "was read above: copy it"),
        ((*did(READ, SHOWN), *did(bash("b", "grep -n println a.go"))), "was read above: copy it"),
        ((*did(READ, SHOWN), *did(("b", "Grep", {"path": "/w/a.go"}))), "was read above: copy it"),
        ((*did(READ, SHOWN), *did(bash("b", "go test ./..."))), "was read above: copy it"),
        (did(READ, "   900\tend of another region"), "Call Read on `a.go` first"),
        (
            (*did(READ, SHOWN), *did(("b", "Edit", {"file_path": "/w/a.go"}))),
            "Call Read on `a.go` again: copy",
        ),
        (
            (*did(READ, SHOWN), *did(bash("b", "sed -i s/a/b/ a.go"))),
            "Call Read on `a.go` again: copy",
        ),
        ((*did(READ, SHOWN), *did(bash("b", "gofmt -w ."))), "Call Read on `a.go` again: copy"),
        (
            (*did(READ, SHOWN), *did(bash("b", "git checkout main"))),
            "Call Read on `a.go` again: copy",
        ),
    ],
)
def test_what_was_just_read_is_to_be_copied_and_what_was_not_is_to_be_read(
    before: tuple[Any, ...], advice: str
) -> None:
    assert advice in edit_after(*before)


def test_a_brace_alone_says_nothing_about_the_region() -> None:
    assert "Call Read on `a.go` first: copy" in edit_after(
        *did(READ, "   1\t}"), old="}\n\nreturn nothing_of_the_kind"
    )


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("A=1 time go test ./...", "Exit code 127\n(eval):1: command not found: time"),
        ("go build && A=1 time ./app", "Exit code 1\n(eval):1: parse error near `time'"),
    ],
)
def test_a_keyword_of_the_shell_is_not_said_to_be_missing(command: str, text: str) -> None:
    log = session(
        human("x"), *did(bash("a", "time go version")), calls(bash("w", command)), failed("w", text)
    )
    assert (
        hint(log).text
        == "A keyword of the shell comes first in its command, and assignments behind it."
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "text", "advice"),
    [
        (
            "Read",
            {"file_path": "a.txt", "limit": 500},
            "File content (31441 tokens) exceeds maximum allowed tokens",
            "Search in `a.txt` first, or read far fewer lines",
        ),
        (
            "Bash",
            {"command": "ls; echo ==="},
            "Exit code 1\n(eval):1: == not found",
            "begins with an equals sign",
        ),
        (
            "Bash",
            {"command": "npm run tset"},
            "Exit code 1\nnpm error Missing script: tset",
            "Run `npm run` first",
        ),
        (
            "Bash",
            {"command": "git show v1:a.md"},
            "Exit code 128\nfatal: path 'a.md' exists on disk, but not in 'v1'",
            "git ls-tree",
        ),
        (
            "Bash",
            {"command": "gh api graphql -f query='{ a { body(truncate: 80) } }'"},
            "Exit code 1\n{}gh: Field 'body' doesn't accept argument 'truncate'",
            "schema of the interface",
        ),
    ],
)
def test_a_hint_speaks_of_what_went_wrong(
    tool: str, arguments: dict[str, Any], text: str, advice: str
) -> None:
    assert advice in hint(one_call(tool, arguments, text)).text


@pytest.mark.parametrize(
    ("command", "text", "wrong"),
    [
        ("gh pr diff 1 --stat", "Exit code 1\nunknown flag: --stat", "--stat"),
        ("gti log", "Exit code 127\n(eval):1: command not found: gti", "gti"),
    ],
)
def test_the_wrong_word_is_not_said_again(command: str, text: str, wrong: str) -> None:
    """Naming it makes it likelier, in a prohibition too."""
    log = session(
        human("x"), *did(bash("a", "git status")), calls(bash("w", command)), failed("w", text)
    )
    assert wrong not in hint(log).text


def test_an_explored_path_has_a_hint_where_it_is_trained_on() -> None:
    log = session(
        human("x"),
        *did(("a", "Glob", {"pattern": "*"}), "/w/src/cart.py"),
        calls(bash("w", "ls /w/lib/cart.py")),
        failed("w", "Exit code 1\nls: /w/lib/cart.py: No such file or directory"),
    )
    assert report(log).hints == ()
    sites = find(log, explored_paths="mistake")
    assert [h.text for h in write_hints(log, sites, settings=HintsSettings()).hints] == [
        "Paths seen so far that exist: /w/src/cart.py. Use one of these if it is what is meant;"
        " else list the folder first."
    ]


def test_an_unknown_command_names_those_that_worked() -> None:
    log = session(
        human("x"),
        calls(bash("a", "ls && git status && grep x y"), bash("b", "nope2 x")),
        results(("a", "ok"), ("b", "Exit code 127\n(eval):1: command not found: nope2", True)),
        calls(bash("c", "gti log")),
        failed("c", "Exit code 127\n(eval):1: command not found: gti"),
    )
    got = report(log)
    assert [h.text for h in got.hints] == [
        "Use the commands that worked so far: git, grep, ls. Run `command -v` before any other."
    ]
    assert got.hints[0].knows == ("kind", "error_text", "commands_seen")
    # nothing had worked when the first one was made
    assert got.without == {"shell_unknown_command": 1}


def test_a_repeated_call_is_told_where_its_answer_stands() -> None:
    read = {"file_path": "a.py"}
    log = session(
        human("x"),
        calls(("a", "Read", read)),
        results(("a", "1")),
        calls("hm"),
        calls(("b", "Read", read)),
        results(("b", "1")),
    )
    assert "this call was made 3 messages above" in hint(log).text


def test_an_unknown_ref_is_answered_with_branches_seen() -> None:
    log = session(
        human("x"),
        calls(bash("a", "git branch -a"), bash("s", "git status")),
        results(("a", "* main\n  feature/login\n  remotes/origin/main"), ("s", "On branch main")),
        calls(bash("b", "git diff feature/logn")),
        failed(
            "b",
            "Exit code 128\nfatal: ambiguous argument 'feature/logn': unknown revision or path not"
            " in the working tree.",
        ),
    )
    assert hint(log).text == "Branches seen so far: feature/login."


def test_every_writer_says_what_it_knows_and_every_template_is_used() -> None:
    assert set(WRITERS.values()) <= set(KNOWS)
    assert set(BUILT_IN) == {w.__name__ for w in KNOWS}
    folder = Path(write_module.__file__).parent
    source = "".join(path.read_text("utf-8") for path in folder.glob("*writers.py"))
    unused = [name for name in TEMPLATES if f'fill("{name}"' not in source and name != "rules"]
    assert unused == []


# writers of the user ------------------------------------------------------------------------------


def mine(context: SiteContext) -> str | None:
    return f"Mind the {context.site.tool} rule." if context.call else None


def none_at_all(context: SiteContext) -> str | None:
    return None


def blank(context: SiteContext) -> str | None:
    return " ... "


def a_list(context: SiteContext) -> list[str]:
    return ["no"]


def long_winded(context: SiteContext) -> str | None:
    return "word " * 121


def pastes_the_error(context: SiteContext) -> str | None:
    return context.evidence.text if context.evidence else None


HERE = __name__


def test_a_writer_of_the_user_by_import_path_or_a_built_in_by_name() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    got = hint(log, writers={"file_missing": f"{HERE}:mine"})
    assert (got.text, got.writer, got.knows) == ("Mind the Read rule.", f"{HERE}:mine", ("custom",))
    assert hint(log, writers={"file_missing": "well_formed_call"}).writer == "well_formed_call"
    assert report(log, writers={"file_missing": f"{HERE}:none_at_all"}).without == {
        "file_missing": 1
    }


@pytest.mark.parametrize(("name", "reason"), [("blank", "empty"), ("long_winded", "too_long")])
def test_a_hint_that_is_empty_or_too_long_is_refused_with_the_reason(
    name: str, reason: str
) -> None:
    got = report(
        one_call("Read", {"file_path": "x.py"}, MISSING), writers={"file_missing": f"{HERE}:{name}"}
    )
    assert (got.hints, got.refusals) == ((), {reason: 1})
    assert got.refused[0].site_id == "s1:1:c1"


def test_the_longest_hint_allowed_is_a_setting() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    assert report(log, writers={"file_missing": f"{HERE}:long_winded"}, max_words=121).refused == ()


def test_the_text_of_the_error_is_not_a_hint() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    assert report(log, writers={"file_missing": f"{HERE}:pastes_the_error"}).refusals == {
        "quotes_later_text": 1
    }


def test_a_writer_that_cannot_be_used_is_named() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    with pytest.raises(ConfigError, match=r"hints\.writers\.file_missing"):
        report(log, writers={"file_missing": "no_such_writer"})
    with pytest.raises(ConfigError, match="returned list"):
        report(log, writers={"file_missing": f"{HERE}:a_list"})


# rules --------------------------------------------------------------------------------------------

RULES = """# House rules
Read everything twice.

- On a file missing error, list the folder
  before anything else.
- Use `Grep`, not grep.
```
- not a rule: edit_no_match
```
"""


def test_a_rule_that_names_the_kind_comes_first_and_one_that_names_the_tool_last(
    tmp_path: Path,
) -> None:
    (tmp_path / "CLAUDE.md").write_text(RULES)
    settings = {"rules_file": str(tmp_path / "CLAUDE.md")}
    got = hint(one_call("Read", {"file_path": "x.py"}, MISSING), **settings)
    assert (got.text, got.writer, got.knows) == (
        "On a file missing error, list the folder before anything else.",
        "rules",
        ("kind", "rules"),
    )
    wrong = "<tool_use_error>Something new about this</tool_use_error>"
    assert (
        hint(one_call("Grep", {"pattern": "x"}, wrong), **settings).text == "Use `Grep`, not grep."
    )
    # "Read everything" names no tool
    assert report(one_call("Read", {"file_path": "x"}, wrong), **settings).without == {"other": 1}
    assert (
        hint(one_call("Edit", {"file_path": "x"}, "String to replace not found"), **settings).writer
        == "reread"
    )


def test_rules_that_cannot_be_read_are_an_error_of_the_setting(tmp_path: Path) -> None:
    log = one_call("Read", {"file_path": "x"}, MISSING)
    with pytest.raises(ConfigError, match=r"hints\.rules_file"):
        report(log, rules_file=str(tmp_path / "absent.md"))
    (tmp_path / "big.md").write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(ConfigError, match="1048577 bytes"):
        report(log, rules_file=str(tmp_path / "big.md"))


def test_a_recovery_site_gets_a_hint_of_its_kind() -> None:
    log = session(
        human("x"),
        calls(("c1", "Edit", {"file_path": "a.py"})),
        failed("c1", "File has not been read yet. Read it first"),
        calls("ok"),
    )
    with pytest.warns(UserWarning):
        sites = find(log, site="recovery")
    got = write_hints(log, sites, settings=HintsSettings())
    assert [h.site_id for h in got.hints] == ["s1:3:-"]


def breaking_writer(context: SiteContext) -> str:
    raise LookupError("no such hint")


def test_a_writer_of_the_users_that_raises_is_named_with_its_cause() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    with pytest.raises(
        ConfigError,
        match=r"breaking_writer raised LookupError: no such hint on session s1.*test_write.py",
    ) as caught:
        report(log, writers={"file_missing": f"{__name__}:breaking_writer"})
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_mistyped_writer_is_answered_with_the_nearest() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    with pytest.raises(ConfigError, match="did you mean 'known_paths'"):
        report(log, writers={"file_missing": "known_pahts"})


def test_a_mistyped_kind_is_warned_of_once_and_a_kind_in_the_sites_not_at_all() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    with pytest.warns(UserWarning, match="'file_misssing' is no kind.*did you mean 'file_missing'"):
        report(log, writers={"file_misssing": "known_paths"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report(log, writers={"file_misssing": "known_paths"})
        own_sites = [dataclasses.replace(site, kind="of_my_own") for site in find(log)]
        write_hints(
            log,
            own_sites,
            settings=HintsSettings(
                writers={"of_my_own": "known_paths", "file_missing": "known_paths"}
            ),
        )
