"""A logged session with one mistake, whose outcome under every message is known, and a scripted
student."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from composer_replication.core.site import Hint, Site
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
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
from tests.rollouts.small_world import Parrot, message_ids

MODEL = "claude-test-1"
MISTAKE, ERROR = "MISTAKENWORD", "REFUSEDWORD"


def _schema(*names: str, required: Sequence[str]) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TOOLS = (
    ToolSpec(name="Read", parameters=_schema("path", "limit", required=["path"])),
    ToolSpec(
        name="Edit",
        parameters=_schema(
            "path", "old_string", "new_string", required=["path", "old_string", "new_string"]
        ),
    ),
    ToolSpec(name="Write", parameters=_schema("path", "content", required=["path", "content"])),
    ToolSpec(name="Bash", parameters=_schema("command", required=["command"])),
    ToolSpec(name="Bare"),
)


def call(name: str, /, _id: str = "x", **arguments: Any) -> ToolCall:
    return ToolCall(_id, name, arguments)


def assistant_turn(*blocks: Any) -> Turn:
    """A message of a model."""
    return Turn(
        role="assistant",
        author=MODEL,
        blocks=tuple(Text(b) if isinstance(b, str) else b for b in blocks),
    )


def answered(call_id: str, text: str, *, error: bool = False) -> Turn:
    return Turn(role="tool", author="environment", blocks=(ToolResult(call_id, text, error),))


MISTAKES: dict[str, tuple[ToolCall, str]] = {
    "unknown_tool": (
        call("Reed", "c3", path="src/a.py", note=MISTAKE),
        f"No such tool available: Reed {ERROR}",
    ),
    "bad_arguments": (
        call("Read", "c3", file=MISTAKE),
        f"InputValidationError: Read failed: path is missing {ERROR}",
    ),
    "file_missing": (call("Read", "c3", path=f"src/{MISTAKE}.py"), f"File does not exist. {ERROR}"),
    "edit_not_read": (
        call("Edit", "c3", path="src/b.py", old_string=MISTAKE, new_string="y"),
        f"File has not been read yet. {ERROR}",
    ),
    "edit_no_match": (
        call("Edit", "c3", path="src/a.py", old_string=MISTAKE, new_string="y"),
        f"String to replace not found {ERROR}",
    ),
    "shell_bad_option": (
        call("Bash", "c3", command=f"ls --{MISTAKE}"),
        f"ls: unrecognized option '--{MISTAKE}' {ERROR}",
    ),
    "repeated_call": (call("Read", "c3", path="src/a.py"), f"Wasted call {ERROR}"),
}


def session(
    kind: str = "unknown_tool",
    name: str = "s1",
    *,
    origin: str = "log",
    repository: str = "acme/app",
) -> Session:
    """A listing, a read, the mistake at turn 5, its error at 6, and the later turns."""
    wrong, error = MISTAKES[kind]
    turns = (
        Turn(role="user", author="human", blocks=(Text("Fix the file."),)),
        assistant_turn("I look.", call("Bash", "c1", command="ls src")),
        answered("c1", "a.py\nb.py"),
        assistant_turn(call("Read", "c2", path="src/a.py")),
        answered("c2", "x = 1"),
        assistant_turn("Now this.", wrong),
        answered("c3", error, error=True),
        assistant_turn(f"Sorry, {ERROR}."),
    )
    return Session(
        id=name,
        source=SourceRef(file="log.jsonl", format="claude_code"),
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        tools=TOOLS if origin == "log" else (),
        tools_origin="log" if origin == "log" else "none",
        cwd="/app",
        repository=repository,
    )


def site(kind: str = "unknown_tool", name: str = "s1") -> Site:
    tool = MISTAKES[kind][0].name
    return Site(
        session_id=name,
        turn=5,
        call_id="c3",
        kind=kind,
        detector="tool_error",
        evidence=(6,),
        tool=tool,
        author=MODEL,
    )


def hint(kind: str = "unknown_tool", name: str = "s1") -> Hint:
    return Hint(
        site_id=site(kind, name).id,
        text="Reminder: available tools: Read, Edit, Bash.",
        writer="available_tools",
        kind=kind,
    )


@cache
def renderer() -> Renderer:
    """Of a tokenizer that was trained on this very session."""
    texts = [str(block) for turn in session().turns for block in turn.blocks]
    tokenizer = train_tiny_tokenizer(
        [
            *texts,
            (
                "tool_call name arguments path command content old_string new_string Read Edit"
                " Write Bash"
            ),
        ]
    )
    return Renderer.for_tokenizer(tokenizer)


def parrot(*messages: Turn | Sequence[int]) -> Parrot:
    """A student that writes these messages, one after the other."""
    script = [message_ids(renderer(), m) if isinstance(m, Turn) else list(m) for m in messages]
    return Parrot(len(renderer().tokenizer), script)
