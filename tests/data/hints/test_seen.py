"""Paths, commands and branches that the context has shown, and only those."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.core.trace import Segment, Session, SourceRef, Turn
from composer_replication.data.hints.context import json_scalars, site_context, turn_text
from composer_replication.data.hints.rules import rule_for_kind, rule_for_tool, split_rules
from composer_replication.data.hints.seen import known_paths_near, seen_paths, track_places
from tests.data.sites.builder import bash, calls, failed, find, human, results, session

MISSING = "<tool_use_error>File does not exist.</tool_use_error>"


def at_the_end(*before: Turn, wrong: str = "nope.py", **more: Any) -> Any:
    """The context of a Read of a missing file after some turns."""
    log = session(
        human("x"),
        *before,
        calls(("w", "Read", {"file_path": wrong})),
        failed("w", MISSING),
        **more,
    )
    return site_context(log, next(s for s in find(log) if s.call_id == "w"))


def did(
    call: tuple[str, str, dict[str, Any]], text: str, error: bool | None = None
) -> tuple[Turn, Turn]:
    return calls(call), results((call[0], text, error))


@pytest.mark.parametrize(
    ("call", "text", "paths"),
    [
        (("a", "Read", {"file_path": "/w/a.py"}), "1\timport b.py", ["/w/a.py"]),
        (("a", "Glob", {"pattern": "*"}), "/w/a.py\n/w/b/c.py", ["/w/a.py", "/w/b/c.py"]),
        (("a", "LS", {"path": "/w"}), "- src/\n  - src/a.py", ["src/", "src/a.py"]),
        (
            ("a", "Grep", {"pattern": "x"}),
            "Found 2 files\nsrc/a.py\nsrc/b.py",
            ["src/a.py", "src/b.py"],
        ),
        (
            ("a", "Grep", {"pattern": "x"}),
            "src/a.py:12:import os.path\nsrc/b.py-13-y",
            ["src/a.py", "src/b.py"],
        ),
        (bash("a", "git ls-files | head"), "go.mod\ncmd/x.go", ["go.mod", "cmd/x.go"]),
        (bash("a", "find . -name '*.go'"), "./cmd/x.go\n./y.go", ["./cmd/x.go", "./y.go"]),
        (bash("a", "ls src"), "a.py\nb.py", ["src/a.py", "src/b.py"]),
        (
            bash("a", "ls -la"),
            (
                "total 8\ndrwxr-xr-x  3 dev staff 96 Jan  3 10:00 .\n-rw-r--r--  1 dev staff 120"
                " Jan  3 10:00 a.py"
            ),
            ["a.py"],
        ),
        (bash("a", "grep -rl x src"), "src/a.py\nsrc/b.py", ["src/a.py", "src/b.py"]),
        (bash("a", "rg --files src"), "src/a.py", ["src/a.py"]),
        (bash("a", "./scripts/run.sh"), "fine", ["./scripts/run.sh"]),
        # no evidence that it exists
        (bash("a", "cat notes"), "src/a.py", []),
        (bash("a", "ls a b"), "a:\nx.py\nb:\ny.py", []),
        (bash("a", "ls src && find ."), "a.py", []),
        (("a", "WebFetch", {"url": "u"}), "src/a.py", []),
    ],
)
def test_only_listings_reads_and_runs_that_worked_show_paths(
    call: tuple[str, str, dict[str, Any]], text: str, paths: list[str]
) -> None:
    assert seen_paths(at_the_end(*did(call, text))) == paths


def test_a_failed_call_shows_no_path_and_a_removed_one_is_forgotten() -> None:
    assert seen_paths(at_the_end(*did(("a", "Read", {"file_path": "a.py"}), MISSING, True))) == []
    turns = did(bash("a", "git ls-files"), "src/a.py\nsrc/b.py")
    assert seen_paths(at_the_end(*turns, *did(bash("b", "rm src/a.py"), ""))) == ["src/b.py"]
    assert seen_paths(at_the_end(*turns, *did(bash("b", "git mv src/b.py src/c.py"), ""))) == [
        "src/a.py",
        "src/c.py",
    ]


LISTED = did(bash("l", "git ls-files"), "a.go\ndata.go\ndir/b.go\nsrc/a.go")


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("rm a.go", ["data.go", "dir/b.go", "src/a.go"]),
        ("rm -rf dir", ["a.go", "data.go", "src/a.go"]),
        ("mv a.go z.go", ["data.go", "dir/b.go", "src/a.go", "/w/z.go"]),
        ("mv dir other", ["a.go", "data.go", "src/a.go", "/w/other"]),
        ("cd src && rm a.go && cd ..", ["a.go", "data.go", "dir/b.go"]),
        ("git checkout other-branch", []),
        ("ls | xargs rm", []),
        ("echo rm a.go", ["a.go", "data.go", "dir/b.go", "src/a.go"]),
    ],
)
def test_a_path_is_named_until_a_line_removes_it(command: str, paths: list[str]) -> None:
    assert seen_paths(at_the_end(*LISTED, *did(bash("c", command), ""), cwd="/w")) == paths


def test_what_a_failed_line_may_have_removed_is_not_named_and_what_it_may_have_made_neither() -> (
    None
):
    move = did(bash("c", "mv a.go z.go && false"), "Exit code 1", True)
    assert seen_paths(at_the_end(*LISTED, *move, cwd="/w")) == ["data.go", "dir/b.go", "src/a.go"]
    assert "/w/z.go" not in seen_paths(
        at_the_end(*LISTED, *did(bash("c", "mv a.go z.go; ls"), ""), cwd="/w")
    )


def test_a_line_without_end_costs_the_paths_and_no_time() -> None:
    assert seen_paths(at_the_end(*LISTED, *did(bash("c", "rm x;" * 20_000), ""), cwd="/w")) == []


def test_a_path_that_was_refused_since_is_not_named() -> None:
    refused = did(("r", "Read", {"file_path": "/w/a.go"}), MISSING, True)
    assert "a.go" not in seen_paths(at_the_end(*LISTED, *refused, cwd="/w"))
    listed = did(bash("r", "ls /w/dir"), "Exit code 1\nls: /w/dir: No such file or directory", True)
    assert "dir/b.go" not in seen_paths(at_the_end(*LISTED, *listed, cwd="/w"))


def test_a_tool_that_removes_or_moves_files_is_believed() -> None:
    moved = did(("m", "mcp__fs__move_file", {"source": "a.go", "destination": "src/a.go"}), "ok")
    assert seen_paths(at_the_end(*LISTED, *moved, cwd="/w")) == ["data.go", "dir/b.go"]


def test_what_a_call_out_of_view_removed_is_gone_all_the_same() -> None:
    turns = (
        human("x"),
        *LISTED,
        *did(bash("r", "rm a.go"), ""),
        calls(("w", "Read", {"file_path": "b.py"})),
        failed("w", MISSING),
    )
    log = Session(
        id="s1",
        source=SourceRef(file="a"),
        turns=turns,
        cwd="/w",
        segments=(Segment(start=0, end=5), Segment(start=5, end=7, context=((0, 3),))),
    )
    assert "a.go" not in seen_paths(site_context(log, find(log)[0]))


def test_a_listing_is_read_from_where_the_shell_stood() -> None:
    moved = (*did(bash("a", "cd src"), ""), *did(bash("b", "ls"), "x.py\ny.py"))
    # the shell is still in that folder
    assert seen_paths(at_the_end(*moved, cwd="/w")) == ["x.py", "y.py"]
    back = did(bash("c", "ls lib"), "z.py\n\nShell cwd was reset to /w")
    assert seen_paths(at_the_end(*moved, *back, cwd="/w")) == [
        "/w/src/x.py",
        "/w/src/y.py",
        "/w/src/lib/z.py",
    ]
    assert seen_paths(
        at_the_end(*did(bash("a", "cd src && ls"), "x.py"), *did(bash("b", "cd .."), ""), cwd="/w")
    ) == ["/w/src/x.py"]
    lost = did(bash("a", "cd $X && ls"), "x.py")
    assert seen_paths(at_the_end(*lost, cwd="/w")) == []
    codex = did(("a", "exec_command", {"cmd": "cd src && ls"}), "x.py")
    # there each call starts anew
    assert seen_paths(at_the_end(*codex, cwd="/w")) == ["/w/src/x.py"]
    assert (
        track_places(
            at_the_end(*did(bash("a", "cd src && false"), "Exit code 1", True), cwd="/w")
        ).cwd
        is None
    )


@pytest.mark.parametrize(
    ("call", "text", "paths"),
    [
        (bash("a", "find . -name '*.py' | sed 's/a/b/'"), "b.py", []),
        (bash("a", "find . -name '*.py' | xargs -n1 basename"), "b.py", []),
        (bash("a", "find . -name '*.py' | sort | head"), "./b.py", ["./b.py"]),
        (bash("a", "ls src || echo none"), "none", []),
        (bash("a", "ls src/a.py"), "src/a.py", ["src/a.py"]),
        (bash("a", "ls -F src"), "run*\nlink@\nlib/", ["src/link", "src/lib/"]),
        (bash("a", "git ls-files -d"), "gone.py", []),
        (bash("a", "find . -name x -delete -print"), "./x", []),
        (bash("a", "./a.sh; ./b.sh"), "", []),
        (bash("a", "cat x | ls src"), "a.py", []),
        (
            ("a", "LS", {"path": "/w"}),
            "- /w/\n  - a.py\n  - lib/\n    - b.py\n  - c.py",
            ["/w/", "/w/a.py", "/w/lib/", "/w/lib/b.py", "/w/c.py"],
        ),
        (
            ("a", "Grep", {"pattern": "x", "path": "c.yaml", "output_mode": "content"}),
            "main.py\nhost.name: x",
            [],
        ),
    ],
)
def test_a_listing_that_is_changed_on_its_way_shows_no_path(
    call: tuple[str, str, dict[str, Any]], text: str, paths: list[str]
) -> None:
    assert seen_paths(at_the_end(*did(call, text))) == paths


def test_the_wrong_path_in_the_same_words_is_given_in_full() -> None:
    """`cd /tmp && ./run.sh` fails; "./run.sh exists" would only repeat it."""
    log = session(
        human("x"),
        *did(bash("a", "./tools/run.sh"), "fine"),
        calls(bash("w", "cd /tmp/x && ./tools/run.sh")),
        failed("w", "Exit code 127\n(eval):1: no such file or directory: ./tools/run.sh"),
        cwd="/w",
    )
    assert known_paths_near(site_context(log, find(log)[0])) == ["/w/tools/run.sh"]


def test_a_folder_is_not_offered_for_a_program() -> None:
    log = session(
        human("x"),
        *did(("a", "Glob", {"pattern": "*"}), "/w/go/x.py"),
        calls(bash("w", "~/bin/go build")),
        failed("w", "Exit code 127\n/bin/bash: line 1: /home/me/bin/go: No such file or directory"),
        cwd="/home/me",
    )
    assert known_paths_near(site_context(log, find(log)[0])) == []


def test_what_came_after_the_site_or_was_cleared_is_not_seen() -> None:
    listing = did(("a", "Glob", {"pattern": "*"}), "src/a.py")
    turns = (
        human("x"),
        *listing,
        calls(("w", "Read", {"file_path": "b.py"})),
        failed("w", MISSING),
        *did(("z", "Glob", {"pattern": "b*"}), "lib/b.py"),
    )

    def seen(*segments: Segment) -> list[str]:
        log = Session(id="s1", source=SourceRef(file="a"), turns=turns, segments=segments)
        return seen_paths(site_context(log, find(log)[0]))

    assert seen(Segment(start=0, end=7)) == ["src/a.py"]
    assert (
        seen(Segment(start=0, end=3), Segment(start=3, end=7, context=((0, 3),), cleared=("a",)))
        == []
    )
    assert seen(Segment(start=0, end=3), Segment(start=3, end=7, context=((0, 1),))) == []


def near(wrong: str, *paths: str, **more: Any) -> list[str]:
    return known_paths_near(
        at_the_end(*did(("a", "Glob", {"pattern": "*"}), "\n".join(paths)), wrong=wrong, **more)
    )


@pytest.mark.parametrize(
    ("wrong", "seen_path", "offered"),
    [
        (
            "src/app/setup.go",
            "src/cli/setup.go src/app/main.go src/cli/setup_test.go docs/readme.md",
            ["src/cli/setup.go"],
        ),
        ("cmd/summarize.go", "cmd/summarise.go cmd/other.go", ["cmd/summarise.go"]),
        ("/w/.golangci.yml", "/w/.golangci.yaml /w/go.mod", ["/w/.golangci.yaml"]),
        ("/w/user-list.ts", "/w/UserLists.ts /w/user.ts.bak", ["/w/UserLists.ts"]),
        (
            "/w/cli/git_operations.go",
            "/w/cli/gitutil/operations.go",
            ["/w/cli/gitutil/operations.go"],
        ),
        # a file of the same folder, of the same family or beside it is another file
        ("src/app/nothing_like.go", "src/app/main.go", []),
        ("cmd/manual_commit_hooks.go", "cmd/manual_commit_types.go cmd/manual_commit.go", []),
        ("src/date_2026_01.md", "src/date_2026_02.md", []),
        ("src/text_test.go", "src/text.go", []),
        ("src/app/setup.go", "src/app/setup.css src/cli/setup.css", ["src/app/setup.css"]),
        # names that many folders hold mean nothing by themselves
        ("lib/README.md", "docs/README.md README.md", []),
        ("go/cmd/main.go", "/w/old/cmd/main.go", ["/w/old/cmd/main.go"]),
        ("x/a.py", "p/a.py q/a.py r/a.py s/a.py s/x/a.py", ["s/x/a.py"]),
        # a folder is no file
        ("cmd/summarize/summarize.go", "cmd/summarize/", []),
    ],
)
def test_only_a_path_whose_name_is_like_the_wrong_one_is_offered(
    wrong: str, seen_path: str, offered: list[str]
) -> None:
    assert near(wrong, *seen_path.split()) == offered


def test_what_was_read_just_now_is_not_what_another_read_means() -> None:
    """Who has just read a/f.go and reads b/f.go means another file; an edit, or a read long after,
    may well mean it."""
    read = did(("r", "Read", {"file_path": "/w/a/f.go"}), "1\tx")
    assert known_paths_near(at_the_end(*read, wrong="/w/b/f.go", cwd="/w")) == []
    later = (turn for i in range(6) for turn in did((f"t{i}", "TodoWrite", {}), "ok"))
    assert known_paths_near(at_the_end(*read, *later, wrong="/w/b/f.go", cwd="/w")) == ["/w/a/f.go"]
    log = session(
        human("x"),
        *read,
        calls(("w", "Edit", {"file_path": "/w/b/f.go"})),
        failed("w", MISSING),
        cwd="/w",
    )
    assert known_paths_near(site_context(log, find(log)[0])) == ["/w/a/f.go"]


def test_where_nothing_seen_is_near_nothing_is_offered() -> None:
    assert near("lib/zebra.rs", "src/cli/setup.go", "docs/readme.md") == []
    assert near("src/a.py", "src/a.py") == []  # the wrong path itself is no remedy


def test_relative_and_absolute_spellings_are_the_same_path() -> None:
    assert near("/w/a.py", "a.py", cwd="/w") == []
    assert near("/w/x/a.py", "a.py", "./a.py", cwd="/w") == ["a.py"]


def test_a_folder_of_that_name_is_offered_where_a_file_in_it_was_seen() -> None:
    log = session(
        human("x"),
        *did(("a", "Glob", {"pattern": "*"}), "cmd/cli/session/state.go"),
        calls(bash("w", "cd session && ls")),
        failed("w", "Exit code 1\n(eval):cd:1: no such file or directory: session"),
    )
    assert known_paths_near(site_context(log, find(log)[0])) == ["cmd/cli/session"]


def test_rules_are_bullets_and_paragraphs() -> None:
    text = "# Title\nOne line\nof two.\n\n1. First\n   more\n* Second\n```\n- code\n```\n"
    assert split_rules(text) == ("One line of two.", "First more", "Second")


def test_which_rule_names_a_tool_or_a_kind() -> None:
    rules = (
        "Read the docs.",
        "Avoid Bash loops",
        "the Bash tool is last resort",
        "For edit no match, re-read.",
        "mcp__db__query is slow",
    )
    assert rule_for_tool(rules, "Read") is None
    assert rule_for_tool(rules, "Bash") == rules[2]
    assert rule_for_tool(rules, "mcp__db__query") == rules[4]
    assert rule_for_tool(rules, "") is None
    assert rule_for_kind(rules, "edit_no_match") == rules[3]
    assert rule_for_kind(rules, "file_missing") is None


def test_every_word_of_a_message_is_its_text() -> None:
    turn = calls("say", ("c", "Edit", {"a": ["x", 1, None], "b": {"c": True}}))
    assert turn_text(turn).split("\n") == ["say", "Edit", "a", "x", "1", "null", "b", "c", "true"]
    assert list(json_scalars(1.5)) == ["1.5"]


def test_what_the_failing_command_names_itself_is_not_offered() -> None:
    """It exists, and the command failed with it: to use it is to do the same again."""
    earlier_turns = did(
        ("a", "Glob", {"pattern": "**"}), "/w/go/cmd/server/main.go\n/w/old/cmd/server/main.go"
    )
    error = "Exit code 1\ncat: /w/cmd/server: No such file or directory"
    offered = []
    for command in ("cat cmd/server", "cat go/cmd/server cmd/server"):
        log = session(
            human("x"), *earlier_turns, calls(bash("w", command)), failed("w", error), cwd="/w"
        )
        (site,) = find(log)
        offered.append([path.rstrip("/") for path in known_paths_near(site_context(log, site))])
    assert offered == [["/w/go/cmd/server", "/w/old/cmd/server"], ["/w/old/cmd/server"]]
