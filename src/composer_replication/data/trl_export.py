"""Sessions in TRL's columns, as JSON text: a row per message of the model, with its context.

    rows = TrlRows(session, barred={7})
    rows.size                                     # (42, 1_310_720): rows, and bytes of their lines
    for row in rows:
        row.text                                  # '{"prompt":[...],"completion":[...],"tools":[]}'

TRL ("Dataset formats and types"): conversational prompt-completion; the arguments of a call are an
object. A message that is mistaken, or that a person stopped (`barred`), is never a completion. A
message is in the context of all later ones, so its JSON text is made once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.core.jsonl import dumps
from composer_replication.core.trace import Session, Turn
from composer_replication.data.chat import to_chat, tool_to_chat

_AROUND = len('{"prompt":[],"completion":[],"tools":}\n')


@dataclass(frozen=True, slots=True)
class TrlMessages:
    """The messages of a turn: their JSON texts with commas between, and the bytes of these."""

    text: str
    size: int


@dataclass(frozen=True, slots=True)
class TrlRow:
    """A row: the turn of its completion, and the JSON texts of its columns."""

    turn: int
    context: Sequence[TrlMessages]
    written: TrlMessages
    tools: TrlMessages

    @property
    def prompt(self) -> str:
        """The column `prompt`."""
        return f"[{','.join(part.text for part in self.context)}]"

    @property
    def completion(self) -> str:
        """The column `completion`."""
        return f"[{self.written.text}]"

    @property
    def text(self) -> str:
        """The row as one JSON text."""
        return (
            f'{{"prompt":{self.prompt},"completion":{self.completion},"tools":{self.tools.text}}}'
        )

    @property
    def size(self) -> int:
        """The bytes of the row as a line, which are known before its text is made."""
        prompt = sum(part.size for part in self.context) + len(self.context) - 1
        return _AROUND + prompt + self.written.size + self.tools.size


class TrlRows:
    """The rows of a session; `barred` are turns that no row may teach.

    Messages that another session holds too (`copied`) are context only.
    """

    def __init__(self, session: Session, *, barred: Collection[int] = ()) -> None:
        self.session, self.barred = session, barred
        self.tools = _part(dumps([tool_to_chat(tool) for tool in session.tools]))
        self._names = {call_id: ref.call.name for call_id, ref in session.calls().items()}
        self._made: dict[tuple[int, tuple[str, ...]], TrlMessages] = {}

    def __iter__(self) -> Iterator[TrlRow]:
        for index, turn in self.session.assistant_turns():
            if index in self.barred or not (turn.text or turn.calls):
                continue
            before = self.session.context_indices(index)
            context = [part for other in before if (part := self._messages(other, at=index)).text]
            if context:
                yield TrlRow(index, context, self._messages(index, at=index), self.tools)

    @property
    def size(self) -> tuple[int, int]:
        """How many rows there are, and the bytes of their lines."""
        sizes = [row.size for row in self]
        return len(sizes), sum(sizes)

    def texts(self) -> Iterator[str]:
        """Every text that a row contains, once."""
        for _ in self:
            pass
        yield self.tools.text
        yield from (part.text for part in self._made.values())

    def _messages(self, index: int, *, at: int) -> TrlMessages:
        turn = self.session.turn_in_view(index, at=at)
        is_whole = turn is self.session.turns[index]
        key = index, () if is_whole else self.session.segment_of(at).cleared
        if key not in self._made:
            self._made[key] = _part(",".join(map(dumps, _chat(turn, self._names))))
        return self._made[key]


def _part(text: str) -> TrlMessages:
    return TrlMessages(text, len(text.encode("utf-8")))


def _chat(turn: Turn, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The chat messages of a turn as TRL has them: arguments are objects, a result has its tool's
    name."""
    messages = to_chat(turn)
    for message in messages:
        message.pop("is_error", None)
        if message["role"] == "tool":
            message["name"] = names.get(message.pop("tool_call_id"), "")
    if turn.calls:
        messages[0]["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
            for c in turn.calls
        ]
    return messages
