"""A teacher that is a function: for tests, demonstrations, and rules that can say what is right.

teacher = Scripted("oracle", family="rules", act=lambda request: Turn(role="assistant",
author="oracle", blocks=(Text("Done."),)))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.core.teacher import FREE, Price, Request, TeacherReply
from composer_replication.core.trace import Turn


@dataclass(frozen=True, slots=True)
class Scripted:
    """Answers with `act(request)`, free of charge; its answers are not kept, because only the
    function knows what they depend on."""

    name: str
    family: str
    act: Callable[[Request], Turn]
    provider: str = "scripted"
    price: Price = FREE

    @property
    def identity(self) -> Mapping[str, Any]:
        """Empty: nothing is kept."""
        return {}

    def most_input_tokens(self, request: Request) -> int:
        """It reads no tokens."""
        return 0

    async def ask(self, request: Request) -> TeacherReply:
        """What the function says."""
        return TeacherReply(turn=self.act(request))
