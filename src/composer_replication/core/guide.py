"""Data types of the earlier public framework's guide, for code that was written against it.

    TraceState      one step: the messages before it, and what the model then wrote
    TraceTurn       one message, with the kind of the mistake it makes, if any
    TraceExample    a conversation with such marks and a final reward

They are plain chat messages. Inside the project a conversation is a Session (core/trace.py) and a mistake is a Site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOOL_ERROR_TAG = "[TOOL_RESULT (ERROR)]"  # the guide's text tag; nothing here reads or writes it, errors are found by call id


@dataclass(frozen=True, slots=True)
class TraceState:
    """One step of a session, e.g. TraceState("s1:7", [{"role": "user", ...}, ...], {"role": "assistant", ...}).

    `messages` are chat messages in the shape of an OpenAI request; a tool message says whether it `is_error`. `answers` are the tool
    messages that answered the action; they show how the last step of a session ended, which no later state does. `author` is the model
    that wrote the action, "" where nobody knows. `tools` are those on offer, as a request names them; () where the state does not say.
    """

    state_id: str
    messages: list[dict[str, Any]]
    student_action: dict[str, Any]
    answers: tuple[dict[str, Any], ...] = ()
    author: str = ""
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTurn:
    """One message; `error_kind` names the mistake it makes (None = none), `error_meta` holds what a hint may use.

    `trained` = a model wrote it at this step and nothing speaks against cross-entropy on it; only assistant messages are trained.

    Example: TraceTurn(role="assistant", content="", tool_calls=({"id": "c1", ...},), error_kind="file_not_found")
    """

    role: str
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    error_kind: str | None = None
    error_meta: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceExample:
    """A conversation in which some assistant messages are marked, and the reward of its end."""

    id: str
    turns: tuple[TraceTurn, ...]
    final_reward: float = 0.0
