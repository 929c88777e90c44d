"""Single pairs for the curation tests; real_shaped.py makes many."""

from __future__ import annotations

from typing import Any

from composer_replication.core.site import Preference
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
from composer_replication.data.curate.pair import Pair, session_pairs

TOOLS = (
    ToolSpec(
        name="Read",
        parameters={
            "type": "object",
            "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["file_path"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(
        name="Bash",
        parameters={
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    ),
)
TEXT = (
    "the test reads its limit from config and fails because nobody set it so let us look at what"
    " main does with the value first"
)


def say(text: str, *, author: str = "student") -> Turn:
    return Turn(role="assistant", author=author, blocks=(Text(text),) if text else ())


def call(
    name: str,
    *,
    message_text: str = "",
    call_id: str = "c1",
    author: str = "student",
    **arguments: Any,
) -> Turn:
    return Turn(
        role="assistant",
        author=author,
        blocks=(
            *([Text(message_text)] if message_text else []),
            ToolCall(call_id, name, arguments),
        ),
    )


def session(
    student_turn: Turn,
    *,
    id: str = "s1",
    task: str = "Fix the failing test.",
    file_text: str = "x = 1",
    repository: str = "acme/app",
    tools: tuple[ToolSpec, ...] = TOOLS,
) -> Session:
    """A request, a file that was read, and then the student's own message at turn 3."""
    turns = (
        Turn(role="user", author="human", blocks=(Text(task),)),
        call("Read", call_id="r0", file_path="a.py"),
        Turn(role="tool", author="environment", blocks=(ToolResult("r0", file_text, False),)),
        student_turn,
    )
    segments = (Segment(start=0, end=len(turns)),)
    return Session(
        id=id,
        source=SourceRef(file="f"),
        turns=turns,
        segments=segments,
        tools=tools,
        tools_origin="log",
        repository=repository,
    )


def pair(
    chosen: Turn,
    rejected: Turn,
    *,
    held_out: bool = False,
    evidence: dict[str, Any] | None = None,
    **about: Any,
) -> Pair:
    recorded = session(rejected, **about)
    default_evidence = {
        "tier": "exact",
        "families": ["a", "b", "c"],
        "of": 3,
        "evidence": ["own_errored:x"],
        "usd": {"kimi": 0.002},
    }
    preference = Preference(
        session_id=recorded.id,
        turn=3,
        chosen=chosen,
        teachers=("kimi", "glm"),
        evidence=evidence or default_evidence,
    )
    return next(session_pairs(recorded, [preference], held_out=held_out))
