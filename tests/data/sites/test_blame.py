"""Which edit broke a check that failed later."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.site import Site
from composer_replication.core.trace import Session, Turn
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.blame import check_of, findings
from tests.data.sites.builder import bash, calls, failed, find, human, results, session

TRACEBACKS = Path(__file__).parent / "tracebacks"
"""What pytest 9, unittest and python 3.11 said of one fault in line 9 of price.txt."""
CHECK = "golangci-lint run ./..."
RED = "Exit code 1\n{}:{}:2: Error return value is not checked (errcheck)\n1 issues"


def edit(call_id: str, path: str, old: str, new: str) -> tuple[Turn, Turn]:
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    return calls((call_id, "Edit", arguments)), results((call_id, "has been updated", False))


def written(call_id: str, path: str, content: str) -> tuple[Turn, Turn]:
    arguments = {"file_path": path, "content": content}
    return calls((call_id, "Write", arguments)), results((call_id, "created", False))


def red(call_id: str, path: str, line: int) -> tuple[Turn, Turn]:
    return calls(bash(call_id, CHECK)), failed(call_id, RED.format(path, line))


def green(call_id: str) -> tuple[Turn, Turn]:
    return calls(bash(call_id, CHECK)), results((call_id, "0 issues", False))


def blamed(log: Session, **settings: object) -> list[Site]:
    return [site for site in find(log, **settings) if site.kind == "broke_check"]


def two_edits(*after: Turn) -> Session:
    """Edit `bad` writes line 2, edit `good` line 5; the check fails at line 2."""
    return session(
        human("go"),
        *written("w", "/w/cli/a.go", "one\ntwo\nthree\nfour\nfive"),
        *green("g0"),
        *edit("bad", "/w/cli/a.go", "two", "save()"),
        *edit("good", "/w/cli/a.go", "five", "print()"),
        *red("r1", "cli/a.go", 2),
        *after,
    )


def test_the_edit_that_wrote_the_line_is_blamed_and_not_the_last_one() -> None:
    log = two_edits(*edit("fix", "/w/cli/a.go", "save()", "must(save())"), *green("g1"))
    (site,) = blamed(log)
    assert (site.call_id, site.turn, site.evidence) == ("bad", 5, (10,))
    assert (site.category, site.rule, site.confidence) == ("blamed", "blame_line_fixed", 0.65)
    assert site.bars_lm_ce and not site.is_target
    (trained,) = blamed(log, train_kinds=("broke_check",), min_confidence=0.6)
    assert trained.is_target


def test_lines_that_moved_are_followed() -> None:
    moved = edit("above", "/w/cli/a.go", "one", "zero\nhalf\none")
    log = session(
        human("go"),
        *written("w", "/w/cli/a.go", "one\ntwo\nthree"),
        *green("g0"),
        *edit("bad", "/w/cli/a.go", "two", "save()"),
        *moved,
        *red("r1", "cli/a.go", 4),
    )
    assert [site.call_id for site in blamed(log)] == ["bad"]


def test_without_a_fix_of_these_lines_the_blame_is_not_sure() -> None:
    for after in ((), (*edit("x", "/w/cli/a.go", "three", "3"), *green("g1"))):
        (site,) = blamed(two_edits(*after), train_kinds=("broke_check",), min_confidence=0.6)
        assert (site.rule, site.is_target) == ("blame_line", False)


def test_an_edit_after_which_the_check_was_green_is_not_blamed() -> None:
    log = session(
        human("go"),
        *written("w", "/w/cli/a.go", "one\ntwo"),
        *green("g0"),
        *edit("x", "/w/cli/b.go", "p", "q"),
        *red("r1", "cli/a.go", 2),
    )
    assert blamed(log) == []


def test_findings_at_two_edits_blame_nobody_and_are_counted_on_the_check() -> None:
    text = RED.format("cli/a.go", 2) + "\ncli/a.go:5:1: unused (unused)"
    log = session(
        human("go"),
        *written("w", "/w/cli/a.go", "one\ntwo\nthree\nfour\nfive"),
        *edit("x", "/w/cli/a.go", "two", "save()"),
        *edit("y", "/w/cli/a.go", "five", "print()"),
        calls(bash("r1", CHECK)),
        failed("r1", text),
    )
    (check,) = [site for site in find(log) if site.call_id == "r1"]
    assert (check.category, check.rule) == ("failed_check", "blame_ambiguous")
    assert blamed(log) == []


def test_a_file_of_the_same_name_elsewhere_blames_nobody() -> None:
    log = session(
        human("go"),
        calls(("p", "Read", {"file_path": "/w/web/a.go"})),
        results(("p", "1\tx", False)),
        *written("w", "/w/cli/a.go", "one\ntwo"),
        *red("r1", "a.go", 2),
    )
    assert blamed(log) == []


def test_what_a_command_may_have_moved_is_forgotten() -> None:
    log = session(
        human("go"),
        *written("w", "/w/cli/a.go", "one\ntwo"),
        calls(bash("c", "git stash pop")),
        results(("c", "ok", False)),
        *red("r1", "cli/a.go", 2),
    )
    assert blamed(log) == []


def test_the_expectations_of_a_failing_test_are_no_findings() -> None:
    text = "a_test.go:12: got 1, want 2\na.go:7: panic"
    assert [f.path for f in findings(text, is_test=True)] == ["a.go"]
    assert len(list(findings("a_test.go:12:3: undefined: helper", is_test=True))) == 1
    assert check_of("cd x && go test ./... 2>&1 | tail") == check_of("go test ./...")


def test_the_hint_names_the_kind_of_error_and_never_the_fix() -> None:
    log = two_edits(*edit("fix", "/w/cli/a.go", "save()", "must(save())"), *green("g1"))
    sites = blamed(log, train_kinds=("broke_check",), min_confidence=0.6)
    (hint,) = write_hints(log, sites, settings=HintsSettings()).hints
    assert hint.text == (
        "Look through the new lines before you write them: they hold an error that is ignored, or"
        " returned as it came."
    )
    assert hint.knows == ("kind", "error_text")


def test_findings_of_taste_are_a_rule_of_their_own_and_type_errors_are_read() -> None:
    long_line = "Exit code 1\ncli/a.go:2:1: line is 120 characters long (lll)"
    log = session(
        human("go"),
        *written("w", "/w/cli/a.go", "one\ntwo"),
        *edit("x", "/w/cli/a.go", "two", "a very long line"),
        calls(bash("r1", CHECK)),
        failed("r1", long_line),
        calls(bash("t1", "pnpm exec tsc --noEmit | tail")),
        results(("t1", "cli/a.go(1,2): error TS2322: Type 'a' is not assignable", False)),
    )
    assert {(s.call_id, s.rule) for s in blamed(log)} == {("x", "blame_style"), ("w", "blame_line")}


@pytest.mark.parametrize(
    ("output", "command"),
    [
        ("pytest_short", "python -m pytest -q --tb=short"),
        ("pytest_long", "python -m pytest -q"),
        ("pytest_line", "python -m pytest -q --tb=line"),
        ("unittest", "python -m unittest"),
    ],
)
def test_a_frame_of_a_traceback_gets_its_error_and_a_hint_of_its_kind(
    output: str, command: str
) -> None:
    new = (TRACEBACKS / "price.txt").read_text("utf-8")
    old = new.replace("item.count", 'item["count"]')
    seen = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(old.splitlines(), 1))
    log = session(
        human("go"),
        calls(("w", "Read", {"file_path": "/w/shop/price.py"})),
        results(("w", seen, False)),
        *edit("bad", "/w/shop/price.py", old.splitlines()[-1], new.splitlines()[-1]),
        calls(bash("r1", command)),
        failed("r1", (TRACEBACKS / f"{output}.txt").read_text("utf-8")),
    )
    (site,) = blamed(log, train_kinds=("broke_check",), min_confidence=0.5)
    assert site.call_id == "bad" and "price.py" in site.detail and "AttributeError" in site.detail
    (hint,) = write_hints(log, [site], settings=HintsSettings()).hints
    assert hint.text == (
        "Look through the new lines before you write them: they hold a field, method or attribute"
        " that does not exist."
    )


@pytest.mark.parametrize(
    ("program", "returned", "fault"),
    [
        ("mypy", "str(sum(prices))", "a value of the wrong type"),
        (
            "ruff check",
            "sum(prices) + shipping",
            "a name that is not defined or not imported there",
        ),
    ],
)
def test_the_finding_of_a_checker_gives_a_hint_of_its_kind(
    program: str, returned: str, fault: str
) -> None:
    """What mypy 2.4 and ruff 0.17 said of two lines."""
    output = (TRACEBACKS / f"{program.split()[0]}.txt").read_text("utf-8")
    code = f"def total(prices: list[int]) -> int:\n    return {returned}\n"
    log = session(
        human("go"),
        *written("bad", "/w/totals.py", code),
        calls(bash("r1", f"{program} totals.py")),
        failed("r1", f"Exit code 1\n{output}"),
    )
    (site,) = blamed(log, train_kinds=("broke_check",), min_confidence=0.5)
    (hint,) = write_hints(log, [site], settings=HintsSettings()).hints
    assert hint.text == f"Look through the new lines before you write them: they hold {fault}."


def test_a_finding_of_taste_is_one_where_ruff_writes_its_rule_above_the_place() -> None:
    text = "E501 Line too long (120 > 100)\n --> totals.py:2:101\n  |\nFound 1 error."
    log = session(
        human("go"),
        *written("bad", "/w/totals.py", "one\ntwo\n"),
        calls(bash("r1", "ruff check totals.py")),
        failed("r1", f"Exit code 1\n{text}"),
    )
    assert [site.rule for site in blamed(log)] == ["blame_style"]


def test_each_traceback_ends_with_its_own_error() -> None:
    frame = 'Traceback (most recent call last):\n  File "/w/{}.py", line 3, in f\n    g()\n{}'
    text = "\n".join(
        frame.format(name, error) for name, error in (("a", ""), ("b", "shop.errors.BadError: 1"))
    )
    assert [(f.path, f.error) for f in findings(text, is_test=False)] == [
        ("/w/a.py", ""),
        ("/w/b.py", "shop.errors.BadError: 1"),
    ]
