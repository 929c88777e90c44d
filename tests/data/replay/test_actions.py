"""When two messages do the same thing: exactly, on the same target, or for the same purpose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from composer_replication.core.trace import (
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.replay.actions import (
    NO_CONTEXT,
    ComparisonContext,
    canonical_action,
    comparison_context,
    intents,
    tool_targets,
)
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.replay.viewed_files import (
    apply_change,
    files_in_view,
    resulting_change,
    shown_text,
)

REPO = ComparisonContext(cwd="/work/app")


def turn(*calls: tuple[str, dict[str, Any]], text: str = "") -> Turn:
    blocks = tuple(
        ToolCall(f"c{n}-{text}", name, arguments) for n, (name, arguments) in enumerate(calls)
    )
    return Turn(role="assistant", author="m", blocks=((Text(text),) if text else ()) + blocks)


def bash(command: str, **more: Any) -> Turn:
    return turn(("Bash", {"command": command, **more}))


def edit(old: str, new: str, *, path: str = "a.py", name: str = "Edit", **more: Any) -> Turn:
    return turn((name, {"file_path": path, "old_string": old, "new_string": new, **more}))


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (bash("ls  -l   src"), bash("ls -l src"), True),
        (bash("ls src"), bash("ls src", description="List the sources", timeout=3000), True),
        (bash("ls src"), bash("ls src", run_in_background=True), False),
        (bash("cd /work/app && ls"), bash("ls"), True),
        (bash("cd /work/app/src && ls"), bash("ls"), False),
        (bash("git -C /work/app status"), bash("git status"), True),
        (bash("cat /work/app/src/a.py"), bash("cat src/a.py"), True),
        (bash("cat /work/application/a.py"), bash("cat lication/a.py"), False),
        (bash("echo 'a  b'"), bash("echo 'a b'"), False),
        (bash('grep "a  b" x'), bash('grep "a b" x'), False),
        (bash("cat <<E\na  b\nE"), bash("cat <<E\na b\nE"), False),
        (bash("ls src"), turn(("exec_command", {"command": "ls src"})), True),
        (
            turn(("Read", {"file_path": "/work/app/a.py"})),
            turn(("Read", {"file_path": "a.py"})),
            True,
        ),
        (turn(("Read", {"file_path": "./a.py"})), turn(("Read", {"file_path": "a.py"})), True),
        (
            turn(("Read", {"file_path": "a.py"})),
            turn(("Read", {"file_path": "a.py", "limit": 9})),
            False,
        ),
        (turn(("Read", {"file_path": "a.py"})), turn(("read_file", {"file_path": "a.py"})), False),
        (
            turn(("Task", {"description": "a", "prompt": "x"})),
            turn(("Task", {"description": "b", "prompt": "x"})),
            False,
        ),
        (turn(("A", {}), ("B", {})), turn(("B", {}), ("A", {}), text="both"), True),
        (turn(("A", {}), ("B", {})), turn(("A", {})), False),
        # a set: the same call twice does it once
        (turn(("A", {}), ("A", {})), turn(("A", {})), True),
    ],
)
def test_exactly_the_same(first: Turn, second: Turn, same: bool) -> None:
    assert (canonical_action(first, REPO) == canonical_action(second, REPO)) is same


def test_a_name_that_is_not_on_offer_is_not_repaired() -> None:
    scene = ComparisonContext(offered=frozenset({"Bash"}))
    wrong, right = turn(("shell", {"command": "ls"})), bash("ls")
    assert canonical_action(wrong, scene) != canonical_action(right, scene) and tool_targets(
        wrong, scene
    ) != tool_targets(right, scene)
    assert intents(wrong, scene) == {"other"} and intents(right, scene) == {"list"}
    # if nobody knows what was on offer
    assert canonical_action(wrong) == canonical_action(right)


FILE = "def f(x):\n    return 1\n\n\ndef g(x):\n    return 1\n"
SEEN = ComparisonContext(files={"a.py": FILE})


def test_edits_count_by_what_the_file_would_read() -> None:
    small = edit("f(x):\n    return 1", "f(x):\n    return 2")
    large = edit("def f(x):\n    return 1\n", "def f(x):\n    return 2\n")
    one_edit = turn(
        ("Write", {"file_path": "a.py", "content": FILE.replace("return 1", "return 2", 1)})
    )
    steps = turn(("MultiEdit", {"file_path": "a.py", "edits": [
        {"old_string": "f(x):\n    return 1", "new_string": "f(x):\n    return 3"},
        {"old_string": "return 3", "new_string": "return 2"},
    ]}))  # fmt: skip
    twice = Turn(role="assistant", author="m", blocks=(
        *edit("f(x):\n    return 1", "f(x):\n    return 3").blocks,
        *replace(edit("return 3", "return 2")).blocks,
    ))  # fmt: skip
    assert len({canonical_action(t, SEEN) for t in (small, large, one_edit, steps, twice)}) == 1
    assert canonical_action(small) != canonical_action(large)  # unknown without the file
    # the same letters change, in another place
    elsewhere = edit("g(x):\n    return 1", "g(x):\n    return 2")
    assert canonical_action(elsewhere, SEEN) != canonical_action(small, SEEN)


def test_an_edit_that_would_be_refused_equals_only_itself() -> None:
    ambiguous, everywhere = (
        edit("return 1", "return 2"),
        edit("return 1", "return 2", replace_all=True),
    )
    absent = edit("return 7", "return 2")
    actions = [canonical_action(t, SEEN) for t in (ambiguous, everywhere, absent)]
    assert len(set(actions)) == 3 and actions[0] == canonical_action(ambiguous)
    assert canonical_action(everywhere, SEEN) == canonical_action(
        turn(("Write", {"file_path": "a.py", "content": FILE.replace("1", "2")})), SEEN
    )


def read(path: str, text: str, *, error: bool = False) -> list[Turn]:
    call_id = f"r-{path}-{len(text)}"
    asked = Turn(
        role="assistant", author="m", blocks=(ToolCall(call_id, "Read", {"file_path": path}),)
    )
    return [
        asked,
        Turn(role="tool", author="environment", blocks=(ToolResult(call_id, text, error),)),
    ]


def test_files_are_followed_through_reads_writes_and_edits() -> None:
    numbered = "     1→import os\n     2→x = 1\n\n<system-reminder>be careful</system-reminder>"
    change = edit("x = 1", "x = 2", path="/r/a.py")
    worked = Turn(
        role="tool", author="environment", blocks=(ToolResult(change.calls[0].id, "ok", None),)
    )
    refused = replace(worked, blocks=(ToolResult(change.calls[0].id, "String not found", True),))
    turns = (*read("/r/a.py", numbered), *read("b.py", "gone", error=True))
    assert files_in_view(turns) == {"/r/a.py": "import os\nx = 1"}
    assert files_in_view((*turns, change, worked))["/r/a.py"] == "import os\nx = 2"
    assert files_in_view((*turns, change, refused))["/r/a.py"] == "import os\nx = 1"
    # it worked, so the file is not what it was thought to be
    assert files_in_view((*turns, edit("y", "z", path="/r/a.py"), worked)) == {}
    recorded = Session(
        id="s",
        source=SourceRef(file=""),
        turns=(*turns, change),
        segments=(Segment(start=0, end=5),),
        cwd="/r",
        tools=(ToolSpec(name="Edit"),),
    )
    assert comparison_context(recorded, 4) == ComparisonContext(
        cwd="/r", offered=frozenset({"Edit"}), files={"a.py": "import os\nx = 1"}
    )


def test_texts_and_changes() -> None:
    assert shown_text("1\tx\n2\ty") == "x\ny" and shown_text("plain\ntext 1→2") == "plain\ntext 1→2"
    assert (
        apply_change("aa", (("a", "b", True),)) == "bb"
        and apply_change(None, (("a", "b", False),)) is None
    )
    assert resulting_change("abc", "abc") == (3, "", "") and resulting_change("aa", "aaa") == (
        2,
        "",
        "a",
    ) == resulting_change("aa", "aaa")
    assert resulting_change("", "x") == (0, "", "x")


@pytest.mark.parametrize(
    ("message", "aim", "intent"),
    [
        (bash("uv run pytest -x tests/a.py"), (":shell:", "pytest tests/a.py"), "run_test"),
        (bash("npm test"), (":shell:", "npm test"), "run_test"),
        (bash("cat a.py | head -5"), (":shell:", "cat a.py ; head"), "read"),
        (bash("rg foo src"), (":shell:", "rg foo src"), "search"),
        (bash("git push"), (":shell:", "git push"), "run"),
        (turn(("Grep", {"pattern": "x", "path": "src"})), (":search:", "src"), "search"),
        (edit("a", "b"), (":edit:", "a.py"), "edit"),
        (turn(("Write", {"file_path": "a.py", "content": "z"})), (":edit:", "a.py"), "edit"),
        (turn(("Read", {"file_path": "a.py", "limit": 2})), (":read:", "a.py"), "read"),
        (turn(("mcp__x", {"q": 1})), ("mcp__x", '{"q":1}'), "other"),
        (turn(text="Which one?"), ("", ""), "ask"),
        (turn(text="Done."), ("", ""), "finish"),
    ],
)
def test_targets_and_purposes(message: Turn, aim: tuple[str, str], intent: str) -> None:
    assert tool_targets(message) == {aim} and intents(message) == {intent}


def test_silence_has_neither() -> None:
    assert (
        not tool_targets(turn())
        and not intents(turn())
        and not canonical_action(turn(), NO_CONTEXT).parts
    )


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("claude-opus-4-5-20251101", "anthropic"),
        ("us.anthropic.claude-3-5-sonnet-v2:0", "anthropic"), ("sonnet-5", "anthropic"),
        ("gpt-5.4-codex", "openai"), ("o3-mini", "openai"),
        ("openrouter/qwen/qwen3-coder:free", "alibaba"),
        ("my-qwen3-finetune", "alibaba"),
        ("deepseek-r1-distill-qwen-32b", "deepseek"),
        ("z-ai/glm-5", "zhipu"), ("nvidia/llama-3.3-nemotron", "meta"), ("foo3", "foo3"),
        ("accounts/fireworks/models/kimi-k2", "moonshot"), ("solo", "solo"),
        ("stepwise", "stepwise"), ("human", ""), (None, ""),
    ],
)  # fmt: skip
def test_families_are_makers(model: str | None, family: str) -> None:
    assert family_of(model) == family
