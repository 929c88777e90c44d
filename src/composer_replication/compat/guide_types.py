"""Data types of the earlier public framework's guide, for code that was written against it.

    TraceState      one step: the messages before it, and what the model then wrote
    TraceTurn       one message, with the kind of the mistake it makes, if any
    TraceExample    a conversation with such marks and a final reward

They are plain chat messages, and the guide held them as dictionaries: state["messages"] reads as
state.messages does, and whatever takes one of them takes a dictionary of its fields as well. Inside
the project a conversation is a Session (core/trace.py), a mistake a Site.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self, cast

from composer_replication.core.errors import DataError
from composer_replication.core.trace import Text, ToolCall, ToolResult, Turn

# the guide's text tag; nothing here reads or writes it, errors are found by call id
TOOL_ERROR_TAG = "[TOOL_RESULT (ERROR)]"


class MappingDataclass(Mapping[str, Any]):
    """A dataclass that reads as a dictionary too: pair["chosen"], dict(pair), {**state, "state_id":
    "s2"}."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in _names(type(self)):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names(type(self)))

    def __len__(self) -> int:
        return len(_names(type(self)))

    @classmethod
    def of(cls, value: Self | Mapping[str, Any], *, where: str = "") -> Self:
        """The record itself, or one made of a dictionary; raises DataError for a key that it does
        not have, or one that is missing.

        >>> TraceTurn.of({"role": "user", "content": "Fix it."}).content
        'Fix it.'
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise DataError(
                f"{type(value).__name__} is no {cls.__name__}",
                where=where,
                fix=f"give one, or a dictionary of {_listed(cls)}",
            )
        if unknown := sorted(str(name) for name in value if name not in _names(cls)):
            raise DataError(
                f"a {cls.__name__} has no {unknown[0]!r}", where=where, fix=f"it has {_listed(cls)}"
            )
        known = fields(cls)  # pyright: ignore[reportArgumentType]
        needed = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING]
        if missing := [name for name in needed if name not in value]:
            raise DataError(
                f"a {cls.__name__} without {missing[0]!r}",
                where=where,
                fix=f"it has {_listed(cls)}",
            )
        return cls(**value)


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def _listed(kind: Any) -> str:
    return ", ".join(_names(kind))


@dataclass(frozen=True, slots=True)
class TraceState(MappingDataclass):
    """One step of a session, e.g. TraceState("s1:7", [{"role": "user", ...}, ...], {"role":
    "assistant", ...}).

    `messages` are chat messages in the shape of an OpenAI request; a tool message says whether it
    `is_error`. An action that is given as text becomes the message that says it. `answers` are the
    tool messages that answered the action; they show how the last step of a session ended, which no
    later state does. `author` is the model that wrote the action, "" where nobody knows. `tools`
    are those on offer, as a request names them; () where the state does not say.
    """

    state_id: str
    messages: list[dict[str, Any]]
    student_action: dict[str, Any]
    answers: tuple[dict[str, Any], ...] = ()
    author: str = ""
    tools: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        action = cast(Any, self.student_action)
        if isinstance(action, str):
            object.__setattr__(self, "student_action", {"role": "assistant", "content": action})
        object.__setattr__(self, "answers", tuple(self.answers))
        object.__setattr__(self, "tools", tuple(self.tools))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTurn(MappingDataclass):
    """One message; `error_kind` names the mistake it makes (None = none), `error_meta` holds what a
    hint may use.

    `trained` = a model wrote it at this step and nothing speaks against cross-entropy on it; only
    assistant messages are trained. `is_error` is a tool message's. `error_meta["hint"]` is the hint
    that the package wrote for it, "" where it has none to give.

    Example: TraceTurn(role="assistant", content="", tool_calls=({"id": "c1", ...},),
    error_kind="file_not_found")
    """

    role: str
    content: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    error_kind: str | None = None
    error_meta: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = True
    is_error: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.content or "", str):
            raise DataError(
                "the content of a turn is text", where=f"a {self.role} turn", fix="join its parts"
            )
        # None beside calls, as OpenAI has it
        object.__setattr__(self, "content", self.content or "")
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls or ()))

    def turn(self) -> Turn:
        """The message as the project has it; raises DataError for an unknown role, or a call whose
        arguments are not JSON."""
        if self.role == "tool":
            return Turn(
                role="tool",
                author=None,
                blocks=(ToolResult(self.tool_call_id or "", self.content, self.is_error),),
            )
        if self.role not in ("system", "user", "assistant"):
            raise DataError(
                f"unknown role {self.role!r}", fix="use system, user, assistant or tool"
            )
        text = (Text(self.content),) if self.content else ()
        return Turn(
            role=self.role, author=None, blocks=text + tuple(_call(c) for c in self.tool_calls)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceExample(MappingDataclass):
    """A conversation in which some assistant messages are marked, and the reward of its end;
    `tools` are those that were on offer.

    Example: TraceExample(turns=[{"role": "user", "content": "Hi."}, {"role": "assistant",
    "content": "Hello."}], final_reward=1.0)
    """

    turns: tuple[TraceTurn, ...]
    final_reward: float = 0.0
    id: str = ""
    tools: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        turns = tuple(
            TraceTurn.of(turn, where=f"{self.id or 'a TraceExample'}, turn {n}")
            for n, turn in enumerate(self.turns)
        )
        object.__setattr__(self, "turns", turns)
        object.__setattr__(self, "tools", tuple(self.tools))


def _call(call: Mapping[str, Any]) -> ToolCall:
    try:
        function = call["function"]
        arguments = function["arguments"]
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return ToolCall(call["id"], function["name"], parsed)
    except json.JSONDecodeError as error:
        raise DataError(
            f"the arguments of call {call.get('id')!r} are not JSON: {error}"
        ) from error
    except (KeyError, TypeError) as error:
        raise DataError(
            f"not a tool call: {error!r}", fix='a call is {"id", "function": {"name", "arguments"}}'
        ) from error
