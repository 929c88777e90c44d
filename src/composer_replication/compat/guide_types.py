"""Data types of the earlier public framework's guide, for code that was written against it.

    TraceState      one step: the messages before it, and what the model then wrote
    TraceTurn       one message, with the kind of the mistake it makes, if any
    TraceExample    a conversation with such marks and a final reward

They are plain chat messages. The guide had them as dictionaries, so state["messages"] reads as
state.messages does, and every function that takes one of them also takes a dictionary of its
fields. Inside the project a conversation is a Session (core/trace.py), a mistake a Site.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self, cast

from composer_replication.core.errors import DataError
from composer_replication.core.trace import Text, ToolCall, ToolResult, Turn

# The guide's text tag. Nothing here reads or writes it: errors are found by call id.
TOOL_ERROR_TAG = "[TOOL_RESULT (ERROR)]"


class MappingDataclass(Mapping[str, Any]):
    """A dataclass that also reads as a dictionary: pair["chosen"], {**state, "state_id": "s2"}."""

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
        """Return the record itself, or one made of a dictionary.

        Raises DataError for an unknown key, or a missing one.

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
        dataclass_fields = fields(cls)  # pyright: ignore[reportArgumentType]
        required = [
            f.name
            for f in dataclass_fields
            if f.default is MISSING and f.default_factory is MISSING
        ]
        if missing := [name for name in required if name not in value]:
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
    """One step of a session, e.g. TraceState("s1:7", messages, {"role": "assistant", ...}).

    `messages` are chat messages in the shape of an OpenAI request; a tool message has `is_error`.
    An action given as text becomes an assistant message. `answers` are the tool messages that
    answered the action; they show how the last step of a session ended, which no later state does.
    `author` is the model that wrote the action, "" if unknown. `tools` are those on offer, as in a
    request; () if unknown.
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
    """One message; `error_kind` names its mistake, if any, `error_meta` holds facts for a hint.

    `trained` = a model wrote it at this step and nothing speaks against cross-entropy on it; only
    assistant messages are trained. `is_error` belongs to tool messages. `error_meta["hint"]` is the
    hint that the package wrote for it, "" if it has none.

    Example: TraceTurn(role="assistant", tool_calls=({"id": "c1", ...},),
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
        # OpenAI sends None as the content of a message with calls.
        object.__setattr__(self, "content", self.content or "")
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls or ()))

    def turn(self) -> Turn:
        """Return the message as a Turn.

        Raises DataError for an unknown role, or a call whose arguments are not JSON.
        """
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
    """A conversation with marked assistant messages, a final reward, and the tools on offer.

    Example: TraceExample(turns=[{"role": "user", "content": "Hi."}], final_reward=1.0)
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
