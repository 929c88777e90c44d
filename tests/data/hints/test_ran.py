"""Programs that certainly exist, where a project's own program ran, whose help is in view, and
branches."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from composer_replication.core.trace import Turn
from composer_replication.data.hints.context import SiteContext, site_context
from composer_replication.data.hints.ran import branches_shown, commands_that_worked
from tests.data.hints.test_write import hint, report
from tests.data.sites.builder import bash, calls, failed, find, human, results, session

UNKNOWN = "Exit code 127\n(eval):1: command not found: gti"


def did(command: str, text: str = "", error: bool | None = None, **more: Any) -> tuple[Turn, Turn]:
    tool_call = bash(f"c{crc32((command + text).encode())}", command, **more)
    return calls(tool_call), results((tool_call[0], text, error))


def before(
    *turns: Turn, command: str = "gti log", text: str = UNKNOWN, cwd: str = "/w"
) -> SiteContext:
    log = session(human("x"), *turns, calls(bash("w", command)), failed("w", text), cwd=cwd)
    return site_context(log, next(s for s in find(log) if s.call_id == "w"))


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("git status && ls", ["git", "ls"]),
        ("git status && ls | grep x", ["git", "grep"]),
        ("git status; ls", ["ls"]),
        ("git status || ls", []),
        ("docker ps 2>/dev/null | head -10", ["head"]),
        ("brew services list 2>/dev/null | grep x || echo none", []),
        ("docker ps 2>/dev/null", []),
        ("(cd x && git log)", []),
        ("if git diff --quiet; then ls; fi", []),
        ("for f in a b; do sed -n 1p $f; done", []),
        ("sleep 100 &", []),
        # it is there for a project only, or for this line only
        ("npx tsc", []),
        ("uv run ruff check", []),
        ("source .venv/bin/activate && ruff check", []),
        ("PATH=$PATH:/opt/go/bin go version", []),
        ("sudo systemctl status x", ["systemctl"]),
        # it says nothing that anybody would need to know
        ("cd x && echo y", []),
    ],
)
def test_a_program_worked_where_its_own_exit_status_says_so(
    command: str, programs: list[str]
) -> None:
    assert commands_that_worked(before(*did(command, "text"))) == programs


@pytest.mark.parametrize(
    "earlier_turns",
    [
        did("docker ps 2>&1", "Exit code 127\n(eval):1: command not found: docker", True),
        did("docker ps 2>&1 | head", "(eval):1: command not found: docker"),
        did("which docker", "docker not found"),
        did("which docker", "/usr/bin/which: no docker in (/usr/bin)"),
        did("make up", "/bin/sh: 1: docker: not found"),
        did("make up", 'exec: "docker": executable file not found in $PATH'),
    ],
)
def test_a_program_of_which_anything_says_that_it_is_missing_did_not_work(
    earlier_turns: tuple[Turn, Turn],
) -> None:
    fine = did("docker ps", "CONTAINER ID")
    assert "docker" not in commands_that_worked(before(*fine, *earlier_turns))
    assert "docker" in commands_that_worked(before(*earlier_turns, *fine))  # installed since


def test_a_command_in_the_background_has_not_ended_well() -> None:
    assert commands_that_worked(before(*did("pnpm dev", "running", run_in_background=True))) == []


def test_the_folder_is_named_where_a_projects_own_program_ran() -> None:
    ran = did("cd /w/web && npx vitest run", "1 passed")
    missing = {
        "command": "cd /w && npx vitest run",
        "text": "Exit code 127\nsh: line 1: vitest: command not found",
    }
    log = session(
        human("x"),
        *ran,
        calls(bash("w", missing["command"])),
        failed("w", missing["text"]),
        cwd="/w",
    )
    got = hint(log)
    assert (
        got.text
        == "Run `cd /w/web` first: the program that this line needs ran there before, in the same"
        " way, and the project has it there."
    )
    assert got.knows == ("kind", "error_text", "commands_seen")
    same = session(
        human("x"),
        *ran,
        calls(bash("w", "cd /w/web && npx vitest run")),
        failed("w", missing["text"]),
        cwd="/w",
    )
    assert report(same).hints == ()  # there it ran, and there it fails: that is no help
    elsewhere = did("cd /w/web && which vitest && npx vitest run", "vitest not found")
    log = session(
        human("x"),
        *elsewhere,
        calls(bash("w", missing["command"])),
        failed("w", missing["text"]),
        cwd="/w",
    )
    assert report(log).hints == ()


@pytest.mark.parametrize(
    ("help_turns", "advice"),
    [
        (did("gh pr diff --help", "Usage:\n\n\n  --patch\n  --name-only"), "stands above"),
        (
            did("gh pr diff --help | head -4", "Usage:\n\n\n  --patch"),
            "Run `gh pr diff --help` first",
        ),
        (did("gh --help", "Usage:\n\n\n  pr\n  issue"), "Run `gh pr diff --help` first"),
        (did("git diff --help", "Usage:\n\n\n  --stat\n  -p"), "Run `gh pr diff --help` first"),
        (
            did("gh pr diff 2 --stat 2>&1 | head", "unknown flag: --stat"),
            "was refused above already",
        ),
        (
            did("gh pr diff 2 --color 2>&1 | head", "unknown flag: --color"),
            "Run `gh pr diff --help` first",
        ),
    ],
)
def test_help_that_stands_above_is_not_to_be_asked_for_again(
    help_turns: tuple[Turn, Turn], advice: str
) -> None:
    log = session(
        human("x"),
        *help_turns,
        calls(bash("w", "gh pr diff 1 --stat")),
        failed("w", "Exit code 1\nunknown flag: --stat"),
    )
    assert any(advice in h.text for h in report(log).hints if h.site_id.endswith("w")), [
        h.text for h in report(log).hints
    ]


def test_branches_that_git_named_and_did_not_delete() -> None:
    earlier_turns = (
        *did("git status", "On branch dev"),
        *did("git branch", "  dev\n* main\n  old"),
        *did("git checkout fix/a", "Switched to branch 'fix/a'"),
    )
    assert branches_shown(before(*earlier_turns)) == ["dev", "main", "old", "fix/a"]
    assert branches_shown(
        before(*earlier_turns, *did("git branch -D old", "Deleted branch old (was 12)."))
    ) == [
        "dev",
        "main",
        "fix/a",
    ]
    assert branches_shown(before(*earlier_turns, *did("git branch -m old new", ""))) == [
        "dev",
        "main",
        "fix/a",
    ]


def test_a_rename_with_one_operand_renames_the_branch_that_is_checked_out() -> None:
    earlier_turns = (
        *did("git branch", "* main\n  old"),
        *did("git checkout fix/a", "Switched to branch 'fix/a'"),
    )
    renamed = did("git branch -m fix/b && git status", "On branch fix/b")
    assert branches_shown(before(*earlier_turns, *renamed)) == ["main", "old", "fix/b"]
    unknown = did("git branch -m fix/b && git status", "On branch fix/b")
    assert branches_shown(before(*unknown)) == ["fix/b"]


@pytest.mark.parametrize(
    ("earlier_turns", "hints"),
    [
        ((), ["Run `git branch --all` first: it lists the branches by name."]),
        (did("git branch", "* main\n  release"), []),
        (did("git branch", "* main\n  feature/lgoin"), ["Branches seen so far: feature/lgoin."]),
    ],
)
def test_branches_are_named_where_one_is_alike_and_else_to_be_listed(
    earlier_turns: tuple[Turn, ...], hints: list[str]
) -> None:
    error = "Exit code 1\nfatal: invalid reference: feature/logn"
    log = session(
        human("x"), *earlier_turns, calls(bash("w", "git switch feature/logn")), failed("w", error)
    )
    assert [h.text for h in report(log).hints] == hints


def test_programs_that_worked_are_no_answer_to_a_missing_module() -> None:
    error = "Exit code 1\n/usr/bin/python: No module named pytset"
    log = session(
        human("x"), *did("git status"), calls(bash("w", "python -m pytset")), failed("w", error)
    )
    assert report(log).without == {"shell_unknown_command": 1}


@pytest.mark.parametrize(
    ("worked", "hints"), [("git status", 1), ("svn log && ls", 0), ("svn log && ls && cat x", 1)]
)
def test_a_few_programs_that_worked_say_nothing_unless_one_is_alike(
    worked: str, hints: int
) -> None:
    log = session(human("x"), *did(worked), calls(bash("w", "gti log")), failed("w", UNKNOWN))
    assert len(report(log).hints) == hints
