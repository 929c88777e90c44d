"""Teachers and requests for tests: the test decides a teacher's answers, prices and failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.core.teacher import Price, Request, TeacherReply, Usage
from composer_replication.core.trace import Text, ToolCall, ToolSpec, Turn

READ = ToolSpec(
    name="read",
    description="Reads a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}},
)
DOLLAR_A_TOKEN = Price(input_usd_per_mtok=1e6)


def request(text: str = "go", *, about: str = "s1:1:-", max_tokens: int = 10) -> Request:
    """A request of one message."""
    turn = Turn(role="user", author="human", blocks=(Text(text),))
    return Request(turns=(turn,), tools=(READ,), max_tokens=max_tokens, about=about)


def reply(text: str = "Done.", *, usd: float | None = 0.0, **usage: Any) -> TeacherReply:
    """An answer with this text and this cost."""
    return TeacherReply(
        turn=Turn(role="assistant", author="m", blocks=(Text(text),)), usage=Usage(usd=usd, **usage)
    )


def calling(name: str, **arguments: Any) -> Turn:
    """A message with one call."""
    return Turn(role="assistant", author="m", blocks=(ToolCall("c1", name, arguments),))


@dataclass
class FakeTeacher:
    """A teacher that does what `act` says; one token of the prompt costs a dollar by default."""

    act: Callable[[Request], Awaitable[TeacherReply]]
    name: str = "made"
    family: str = "made"
    provider: str = "here"
    price: Price = DOLLAR_A_TOKEN
    input_tokens: int = 1
    salt: str = "made"

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"model": self.salt} if self.salt else {}

    def most_input_tokens(self, request: Request) -> int:
        return self.input_tokens

    async def ask(self, request: Request) -> TeacherReply:
        return await self.act(request)


def says(text: str = "Done.", *, usd: float | None = 0.25, **fields: Any) -> FakeTeacher:
    """A teacher that always gives the same answer."""

    async def act(asked: Request) -> TeacherReply:
        return reply(text, usd=usd)

    return FakeTeacher(act, **fields)
