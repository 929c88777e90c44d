"""Hints name the right action in the session's own words, and neither the mistaken operand nor a
prohibition."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.site import Site
from composer_replication.core.trace import ToolSpec, Turn
from composer_replication.data.hints.context import SiteContext, site_context
from composer_replication.data.hints.mistaken import prohibition
from composer_replication.data.hints.ran import help_line
from composer_replication.data.hints.templates import TEMPLATES
from tests.data.hints.test_write import MISSING, hint, report
from tests.data.hints.test_writers import after, did
from tests.data.sites.builder import bash, calls, failed, human, one_call, results, session

HERE = __name__
NOT_READ = "File has not been read yet. Read it first before writing to it."
NOT_THERE = "Exit code 1\nls: lib/cart.py: No such file or directory"


def tools(*names: str) -> dict[str, object]:
    return {"tools": tuple(ToolSpec(name=name) for name in names), "tools_origin": "log"}


def says_never(context: SiteContext) -> str | None:
    return "Never guess a path."


def names_it(context: SiteContext) -> str | None:
    return "Was x.py meant?"


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_forbids_anything(name: str) -> None:
    assert prohibition(TEMPLATES[name]) == ""


@pytest.mark.parametrize(
    ("offered", "advice"),
    [
        (("Bash", "Edit", "Read"), "Call Read on `a.py` first"),
        (("run_shell", "edit", "read_file"), "Call read_file on `a.py` first"),
        (("Bash", "Edit"), "Read `a.py` first"),
    ],
)
def test_a_file_is_to_be_read_with_the_tool_that_this_session_has(
    offered: tuple[str, ...], advice: str
) -> None:
    (text,) = after(call=("w", "Edit", {"file_path": "/w/a.py"}), text=NOT_READ, **tools(*offered))
    assert text.startswith(advice)


@pytest.mark.parametrize(
    ("offered", "advice"),
    [
        (("Bash", "Glob", "Read"), "Call Glob first"),
        (("Read", "list_dir"), "Call list_dir first"),
        (("Bash", "Read"), "Call Bash with `ls` or `find` first"),
        (("Read",), "Look around first"),
    ],
)
def test_folders_are_to_be_listed_with_the_tool_that_this_session_has(
    offered: tuple[str, ...], advice: str
) -> None:
    (text,) = after(
        call=("w", "Read", {"file_path": "/w/a.py"}), text=MISSING, cwd="/w", **tools(*offered)
    )
    assert text.startswith(advice)


def test_of_an_inferred_list_a_tool_that_never_worked_is_not_named() -> None:
    inferred = {"tools": (ToolSpec(name="Read"),), "tools_origin": "reconstructed"}
    edit = ("w", "Edit", {"file_path": "/w/a.py"})
    (text,) = after(call=edit, text=NOT_READ, **inferred)
    assert text.startswith("Read `a.py` first")
    worked = did(("a", "Read", {"file_path": "/w/b.py"}))
    (text,) = after(*worked, call=edit, text=NOT_READ, **inferred)
    assert text.startswith("Call Read on `a.py` first")


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("golangci-lint run --out-format=x 2>&1 | head", "Run `golangci-lint run --help` first"),
        ("pip install --out-format x", "Run `pip install --help` first"),
        ("ruff check --out-format x", "Run `ruff check --help` first"),
        # not in the table: a first word with which the program ran above
        ("nix build --out-format x", "Run `nix build --help` first"),
        ("nix other --out-format x", "Run `nix --help` first"),
        ("grep word --out-format", "Run `grep --help` first"),
        # modules and runners: as the line runs them
        ("python -m pytest --out-format", "Run `python -m pytest --help` first"),
        ("python -c 'x' --out-format", "Check this program's help first"),
        ("gh pr diff 1 --out-format", "Run `gh pr diff --help` first"),
        ("git log --out-format", "Run `git log -h` first"),
        ("npx tsc --out-format", "Run `npx tsc --help` first"),
    ],
)
def test_the_help_is_named_by_the_line_that_prints_it(command: str, advice: str) -> None:
    above = (*did(bash("a", "nix build src")), *did(bash("b", "grep word a.py")))
    (text,) = after(
        *above, call=bash("w", command), text="Exit code 3\nError: unknown flag: --out-format"
    )
    assert text.startswith(advice) and "out-format" not in text


@pytest.mark.parametrize(
    ("command", "error", "advice"),
    [
        (
            "cat -A f",
            "cat: illegal option -- A\nusage: cat [-belnstuv] [file ...]",
            "Run `man cat` first",
        ),
        ("cat -Y f", "cat: invalid option -- 'Y'\nTry 'cat --help'", "Run `cat --help` first"),
    ],
)
def test_a_program_of_bsd_has_a_manual_page_and_no_help_option(
    command: str, error: str, advice: str
) -> None:
    (text,) = after(call=bash("w", command), text=f"Exit code 1\n{error}")
    assert text.startswith(advice)


USAGE = "Usage:\n  cart [flags]\n  cart [command]\n\nAvailable Commands:"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("A=1 bash bin/run.sh --version 2>&1 | head -5", "bash bin/run.sh --help"),
        ("cp a.env .env && bash bin/run.sh --version | head -5", "bash bin/run.sh --help"),
        ("cat > x <<'EOF'\nA=1\nEOF\nbash bin/run.sh --version", "bash bin/run.sh --help"),
        ("bash $HOME/run.sh --version", ""),
        ("bash a.sh --version; bash b.sh --version", ""),
    ],
)
def test_the_help_of_a_script_is_asked_for_as_the_line_runs_it(command: str, line: str) -> None:
    log = session(human("x"), calls(bash("w", command)), failed("w", USAGE))
    site = Site(
        session_id="s1", turn=1, kind="shell_bad_option", detector="d", evidence=(2,), call_id="w"
    )
    assert help_line(site_context(log, site)) == line


def test_the_advice_to_read_the_help_quotes_no_later_message_that_reads_it() -> None:
    log = session(
        human("x"),
        calls(bash("w", "rg --out-format x")),
        failed("w", "Exit code 2\nrg: unrecognized flag --out-format"),
        calls(bash("h", "rg --help | head -40")),
        results(("h", "Usage")),
    )
    assert hint(log).text.startswith("Run `rg --help` first")


def test_a_built_in_hint_that_names_the_mistaken_operand_is_refused() -> None:
    got = report(
        one_call("Read", {"file_path": "x.py"}, MISSING), writers={"file_missing": "reread"}
    )
    (refusal,) = got.refused
    assert (got.hints, refusal.reason, refusal.detail) == ((), "names_the_mistake", "x.py")


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ((), 1),
        (did(("a", "Read", {"file_path": "x.py"}), "1"), 0),  # with success: no sign of a mistake
        (did(("a", "Read", {"file_path": "x.py"}), MISSING, True), 1),
        (did(("a", "Read", {"file_path": "lib/x.py"}), "1"), 1),
    ],
)
def test_an_operand_that_a_call_used_with_success_may_be_named(
    before: tuple[Turn, ...], refused: int
) -> None:
    log = session(
        human("x"), *before, calls(("w", "Read", {"file_path": "x.py"})), failed("w", MISSING)
    )
    got = report(log, writers={"file_missing": "reread"})
    assert [r.reason for r in got.refused if r.site_id.endswith("w")] == (
        ["names_the_mistake"] * refused
    )


def test_a_longer_path_that_ends_like_the_wrong_one_is_not_the_wrong_one() -> None:
    listed = did(("a", "Glob", {"pattern": "*"}), "/w/src/lib/cart.py")
    (text,) = after(*listed, call=("w", "Read", {"file_path": "lib/cart.py"}), text=MISSING)
    assert "/w/src/lib/cart.py" in text


@pytest.mark.parametrize("writer", ["says_never", "names_it"])
def test_a_persons_own_words_are_kept_and_counted(writer: str) -> None:
    got = report(
        one_call("Read", {"file_path": "x.py"}, MISSING),
        writers={"file_missing": f"{HERE}:{writer}"},
    )
    assert (len(got.hints), got.refused, got.warned) == (1, (), 1)


def test_a_rule_that_forbids_is_kept_and_counted(tmp_path: Path) -> None:
    (tmp_path / "RULES.md").write_text("- file_missing: never guess a path.\n", "utf-8")
    log = one_call("Read", {"file_path": "x.py"}, MISSING)
    got = report(log, rules_file=str(tmp_path / "RULES.md"))
    assert "never" in got.hints[0].text and got.warned == 1
    assert hint(log).text != got.hints[0].text and report(log).warned == 0
