"""What an agent program sends and gets, whichever of the wire formats it speaks.

    request = ClientRequest(
        wire="chat",
        messages=(ClientMessage.other(Turn(role="user", author=HUMAN, blocks=(Text("Fix it."),))),),
        tools=(ToolSpec(name="Bash"),),
    )
    reply = record.answer(request)          # serve/episode_record.py
    reply.message.calls[0].id               # minted here: the client sends it back with the result

A message of the student is recognised by the ids of its calls, or by its text if it has none, never
by its arguments: programs reorder keys, add defaults and drop white space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from composer_replication.core.errors import DataError
from composer_replication.core.trace import ToolSpec, Turn

Wire = Literal["chat", "messages", "responses"]
Finish = Literal["stop", "calls", "length"]
Purpose = Literal["main", "subagent", "compaction", "side"]
"""What a request is for: the task, a subagent's, a summary that replaces the conversation, or
something beside it (a title, a probe)."""


class RefusedRequestError(DataError):
    """A request that cannot be answered, as the client is told; `kind` is the wire's word for it,
    `param` the field that is to blame.

    Example: RefusedRequestError("the body is not JSON", kind="invalid_request_error")
    """

    def __init__(
        self,
        what: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
    ):
        super().__init__(what, where="the request of the agent program")
        self.status, self.kind, self.param = status, kind, param


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMessage:
    """One message of a request as turns; one of the student's has `role` "assistant".

    `turns` are the message as the client sends it: a message with results is a turn per result.
    """

    turns: tuple[Turn, ...]

    @classmethod
    def other(cls, *turns: Turn) -> Self:
        """A message of somebody else than the student."""
        return cls(turns=turns)

    @property
    def is_students(self) -> bool:
        """Whether the client says that the student wrote it."""
        return bool(self.turns) and self.turns[0].role == "assistant"

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The ids of its calls, in order."""
        return tuple(call.id for turn in self.turns for call in turn.calls)

    @property
    def text(self) -> str:
        """Its text without white space around it, by which a message without calls is known."""
        return "\n".join(turn.text for turn in self.turns).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One request for a message of the student.

    `max_tokens` 0 = the client names no limit. `parallel` = a message may hold several calls,
    `logprobs` = the answer shall hold the log-prob of each token. `namespaces` are those of tools
    that have one, by tool; `freeform` are tools whose input is one text. `left_out` counts what has
    no place in a prompt, by what it is.
    """

    wire: Wire
    messages: tuple[ClientMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    model: str = "student"
    stream: bool = False
    max_tokens: int = 0
    parallel: bool = True
    logprobs: bool = False
    purpose: Purpose = "main"
    agent: str = ""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    freeform: frozenset[str] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)
    digest: str = ""

    @property
    def offer(self) -> str:
        """The tools on offer as one text: another offer begins another conversation."""
        rows = [[tool.name, tool.description, tool.parameters] for tool in self.tools]
        return json.dumps(rows, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentReply:
    """The student's message as the client gets it, with ids of the calls that were minted here.

    `message` holds the text, the thinking and the calls that can be carried out; `tokens` are the
    text and the log-prob of each token that was sampled for it.
    """

    id: str
    message: Turn
    finish: Finish
    prompt_tokens: int
    sampled_tokens: int
    tokens: tuple[tuple[str, float], ...] = ()


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """A call's arguments as the JSON text that goes over the wire.

    >>> arguments_text({"path": "ö.py", "line": 3})
    '{"path": "ö.py", "line": 3}'
    """
    return json.dumps(dict(arguments), ensure_ascii=False)


def read_arguments(value: Any) -> dict[str, Any]:
    """The arguments of a call that a client sends back, as an object or as JSON text.

    A text that is no JSON object is kept under "input".

    >>> read_arguments('{"path": "a.py"}'), read_arguments("ls")
    ({'path': 'a.py'}, {'input': 'ls'})
    """
    if isinstance(value, Mapping):
        return dict(value)
    try:
        read = json.loads(value or "{}")
    except (ValueError, RecursionError, TypeError):
        read = value
    return read if isinstance(read, dict) else {"input": str(value)}
