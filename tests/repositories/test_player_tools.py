"""The tools of a player: what they answer, and that the detectors of logs read their mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.config.root import Config
from composer_replication.core.trace import (
    ENVIRONMENT,
    HUMAN,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.repositories.playing.player_tool_specs import AGENT_TOOLS
from composer_replication.repositories.playing.player_tools import AgentTools
from composer_replication.repositories.sandbox.episode_tree import (
    EpisodeTree,
    PreparedTree,
    prepared_tree,
)
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox
from tests.repositories.shop import make_shop, needs_walls

pytestmark = needs_walls
CART, TOML = "/repo/shop/cart.py", "/repo/pyproject.toml"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedTree]:
    with prepared_tree(make_shop(tmp_path_factory.mktemp("shop"))) as tree:
        yield tree


@pytest.fixture
def tools(prepared: PreparedTree) -> Iterator[AgentTools]:
    with EpisodeTree(TreeSandbox(), prepared) as tree:
        yield AgentTools(tree, command_s=10)


def call(tools: AgentTools, name: str, **arguments: Any) -> str:
    """The text of a result, with "! " before an error's."""
    result = tools.answer(ToolCall("c", name, arguments))
    return f"! {result.text}" if result.is_error else result.text


def bash(tools: AgentTools, command: str, **more: Any) -> str:
    return call(tools, "Bash", command=command, **more)


def refused(text: str) -> str:
    return f"! <tool_use_error>{text}</tool_use_error>"


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("Read", {"file_path": "/repo/shop/cash.py"}, "File does not exist."),
    ("Read", {"file_path": "/repo/shop/cart.txt"}, "File does not exist. Did you mean cart.py?"),
    (
        "Edit",
        {"file_path": TOML, "old_string": "1.2", "new_string": "1.3"},
        "File has not been read yet. Read it first before writing to it.",
    ),
    (
        "Write",
        {"file_path": TOML, "content": ""},
        "File has not been read yet. Read it first before writing to it.",
    ),
    ("Read", {"file_path": CART}, ""),
    (
        "Edit",
        {"file_path": CART, "old_string": "no such text", "new_string": "x"},
        "String to replace not found in file.\nString: no such text",
    ),
    (
        "Edit",
        {"file_path": CART, "old_string": "def total", "new_string": "def sum"},
        "Found 2 matches of the string to replace, but replace_all is false. To replace all"
        " occurrences, set replace_all to true. To replace only one occurrence, please provide more"
        " context to uniquely identify the instance.\nString: def total",
    ),
    (
        "Edit",
        {"file_path": CART, "old_string": "total", "new_string": "total"},
        "No changes to make: old_string and new_string are exactly the same.",
    ),
    ("Grep", {"pattern": "x", "path": "shop/commands"}, "Path does not exist: shop/commands"),
    ("Edits", {}, "Error: No such tool available: Edits"),
    (
        "Read",
        {"path": CART},
        "InputValidationError: Read failed due to the following issue:\nThe required parameter"
        " `file_path` is missing",
    ),
    (
        "Bash",
        {"command": "cat shop/cash.py"},
        "Exit code 1\ncat: shop/cash.py: No such file or directory",
    ),
    (
        "Bash",
        {"command": "pythn -m pytest"},
        "Exit code 127\nbash: line 1: pythn: command not found",
    ),
]
"""Calls, and their errors as recorded sessions of Claude Code show them."""


def recorded(rows: list[tuple[ToolCall, ToolResult]], name: str) -> Session:
    turns = [Turn(role="user", author=HUMAN, blocks=(Text("Mend the cart."),))]
    for made, result in rows:
        turns.append(Turn(role="assistant", author="me", blocks=(made,)))
        turns.append(Turn(role="tool", author=ENVIRONMENT, blocks=(result,)))
    return Session(
        id=name,
        source=SourceRef(file="f", format="rollout"),
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
        tools=AGENT_TOOLS,
        tools_origin="log",
        cwd="/repo",
    )


def seen_in(session: Session) -> list[Any]:
    """Each site with its hint, without the session's name."""
    config = Config()
    sites = find_sites(session, settings=SitesSettings())
    report = write_hints(session, sites, settings=config.hints)
    hints = {hint.site_id: (hint.kind, hint.text) for hint in report.hints}
    return [
        (s.turn, s.category, s.kind, s.call_id, s.tool, s.detail, hints.get(s.id)) for s in sites
    ]


def test_the_detectors_of_logs_read_a_players_mistakes(tools: AgentTools) -> None:
    played: list[tuple[ToolCall, ToolResult]] = []
    logged: list[tuple[ToolCall, ToolResult]] = []
    for number, (name, arguments, error) in enumerate(MISTAKES):
        made = ToolCall(f"c{number}", name, arguments)
        result = tools.answer(made)
        text = error if name == "Bash" else f"<tool_use_error>{error}</tool_use_error>"
        expected = ToolResult(made.id, text, True) if error else dataclasses.replace(result)
        played.append((made, result))
        logged.append((made, expected))
        assert (result.text, result.is_error) == (expected.text, expected.is_error)
    rows = seen_in(recorded(played, "s"))
    assert rows == seen_in(recorded(logged, "s"))
    assert {(kind, tool) for _, category, kind, _, tool, _, _ in rows if category == "mistake"} >= {
        ("file_missing", "Read"),
        ("edit_not_read", "Edit"),
        ("edit_not_read", "Write"),
        ("edit_no_match", "Edit"),
        ("edit_multi_match", "Edit"),
        ("edit_no_change", "Edit"),
        ("file_missing", "Grep"),
        ("unknown_tool", "Edits"),
        ("bad_arguments", "Read"),
    }
    assert sum(hint is not None for *_, hint in rows) >= 8
    assert any(tool == "Bash" for _, _, _, _, tool, _, _ in rows)


def test_read_numbers_lines(tools: AgentTools) -> None:
    assert call(tools, "Read", file_path=TOML) == (
        '     1→[project]\n     2→name = "shop"\n     3→version = "1.2"\n     4→'
    )
    assert call(tools, "Read", file_path="pyproject.toml", offset=2, limit=1) == (
        '     2→name = "shop"'
    )
    shorter = "is shorter than the provided offset (9). The file has 4 lines."
    assert shorter in call(tools, "Read", file_path=TOML, offset=9)
    assert "contents are empty" in call(tools, "Read", file_path="/repo/shop/__init__.py")
    assert call(tools, "Read", file_path="/repo/shop") == refused(
        "EISDIR: illegal operation on a directory, read"
    )
    bash(tools, "seq 1 100000 > long; printf 'a\\0b' > raw.bin")
    assert "exceeds maximum allowed size" in call(tools, "Read", file_path="/repo/long")
    assert call(tools, "Read", file_path="/repo/long", offset=70_000, limit=1) == " 70000→70000"
    assert "binary .bin file" in call(tools, "Read", file_path="/repo/raw.bin")


def test_edit_and_write_keep_what_was_read(tools: AgentTools) -> None:
    call(tools, "Read", file_path=TOML)
    edit = {"file_path": TOML, "old_string": "1.2", "new_string": "1.3"}
    assert call(tools, "Edit", **edit) == f"The file {TOML} has been updated successfully."
    again = {"file_path": TOML, "old_string": "1.3", "new_string": "1.4"}
    assert "updated" in call(tools, "Edit", **again)  # its own change needs no second look
    bash(tools, f"sed -i s/1.4/1.5/ {TOML}")
    assert "has been modified since read" in call(tools, "Edit", **again)
    assert "has been modified since read" in call(tools, "Write", file_path=TOML, content="x")
    call(tools, "Read", file_path=TOML, limit=1)
    everywhere = {"old_string": "o", "new_string": "0", "replace_all": True}
    assert call(tools, "Edit", file_path=TOML, **everywhere).endswith(
        "All occurrences of 'o' were successfully replaced with '0'."
    )
    assert bash(tools, f"cat {TOML}") == '[pr0ject]\nname = "sh0p"\nversi0n = "1.5"'
    new = "/repo/a/b.py"
    assert call(tools, "Write", file_path=new, content="b = 1\r\n") == (
        f"File created successfully at: {new}"
    )
    change = {"old_string": "b = 1\n", "new_string": "b = 2\n"}
    assert "updated" in call(tools, "Edit", file_path=new, **change)
    assert bash(tools, "od -c a/b.py | head -1").endswith("b       =       2  \\r  \\n")
    assert "updated" in call(tools, "Edit", file_path="/repo/n.py", old_string="", new_string="n")


def test_the_shell_keeps_its_folder_within_the_repository(tools: AgentTools) -> None:
    assert bash(tools, "cd shop && ls") == "__init__.py\ncart.py"
    assert bash(tools, "pwd; echo aside >&2") == "/repo/shop\naside"
    assert call(tools, "Grep", pattern="class Cart") == "Found 1 file\ncart.py"
    assert bash(tools, "cd /tmp") == "Shell cwd was reset to /repo"
    assert bash(tools, "pwd; cd shop; false") == "! Exit code 1\n/repo"
    assert bash(tools, "pwd") == "/repo"
    assert bash(tools, "true") == ""
    assert bash(tools, "echo out; sleep 9", timeout=300) == "! Command timed out after 0.3s\nout"


def test_a_long_result_is_kept_in_a_file(tools: AgentTools) -> None:
    shown = bash(tools, "seq 20000")
    assert shown.startswith("<persisted-output>\nOutput too large (106KB). Full output saved to: ")
    assert len(shown) < 2300 and shown.endswith("\n...\n</persisted-output>")
    path = shown.partition("saved to: ")[2].partition("\n")[0]
    assert bash(tools, f"tail -1 {path}") == "20000"


def test_grep(tools: AgentTools) -> None:
    assert call(tools, "Grep", pattern="def total") == "Found 1 file\nshop/cart.py"
    assert call(tools, "Grep", pattern="nothing") == "No files found"
    content = {"output_mode": "content"}
    assert call(tools, "Grep", pattern="nothing", **content) == "No matches found"
    assert call(tools, "Grep", pattern="def TOTAL", **{"-i": True, "-A": 1}, **content) == (
        "shop/cart.py:4:def total(prices, tax=0):\n"
        '/repo/shop/cart.py-5-    """Add up prices.\n--\n'
        "shop/cart.py:36:    def total(self):\n"
        '/repo/shop/cart.py-37-        """What all costs."""'
    )
    first = call(tools, "Grep", pattern="total", path="shop/cart.py", head_limit=1, **content)
    assert first == (
        "4:def total(prices, tax=0):\n\n[Showing results with pagination = limit: 1, offset: 0]"
    )
    assert call(tools, "Grep", pattern="total", output_mode="count") == (
        "shop/cart.py:3\ntests/test_cart.py:5\n\nFound 8 total occurrences across 2 files."
    )
    assert call(tools, "Grep", pattern="total", glob="test_*.py") == (
        "Found 1 file\ntests/test_cart.py"
    )
    spanning = {"pattern": r"prices\.\s+A second", "multiline": True, "-n": False, **content}
    assert call(tools, "Grep", **spanning).startswith('shop/cart.py:    """Add up prices.')
    assert "regex parse error" in call(tools, "Grep", pattern="(")


def test_a_pattern_that_takes_for_ever_ends(tools: AgentTools, prepared: PreparedTree) -> None:
    bash(tools, "python -c \"print('a' * 60 + 'b')\" > shop/a.txt")
    found = call(tools, "Grep", pattern="(a+)+$", path="shop/a.txt")
    assert found.startswith(refused("The operation timed out.")[:40])


def test_glob(tools: AgentTools) -> None:
    assert set(call(tools, "Glob", pattern="**/*.py").splitlines()) == {
        "/repo/shop/__init__.py",
        "/repo/shop/cart.py",
        "/repo/tests/test_cart.py",
    }
    assert call(tools, "Glob", pattern="*.js") == "No files found"
    assert call(tools, "Glob", pattern="*", path="no") == refused("Directory does not exist: no")
    bash(tools, "touch f{1..150}.txt")
    rows = call(tools, "Glob", pattern="*.txt").splitlines()
    assert len(rows) == 101 and rows[-1].startswith("(Results are truncated.")


def test_wrong_arguments_are_named(tools: AgentTools) -> None:
    assert "type is expected as `string`" in call(tools, "Bash", command=3)
    assert "unexpected parameter `cwd`" in call(tools, "Bash", command="ls", cwd="/")
    assert tools.num_calls == tools.num_errors == 2
