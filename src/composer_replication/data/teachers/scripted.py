"""A teacher that is a function: for tests, demonstrations, and rules that can say what is right.

teacher = Scripted("oracle", family="rules", act=lambda request: Turn(role="assistant",
author="oracle", blocks=(Text("Done."),)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from composer_replication.core.teacher import FreeTeacher, Request, TeacherReply
from composer_replication.core.trace import Turn


@dataclass(frozen=True, slots=True)
class Scripted(FreeTeacher):
    """Answers with `act(request)`, free of charge; its answers are not kept, because only the
    function knows what they depend on."""

    name: str
    family: str
    act: Callable[[Request], Turn]
    provider: str = "scripted"

    async def ask(self, request: Request) -> TeacherReply:
        """The function's reply."""
        return TeacherReply(turn=self.act(request))
