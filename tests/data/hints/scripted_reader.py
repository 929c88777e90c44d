"""Readers that are functions instead of models. They read only the numbered text that a real one
would be sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from composer_replication.core.teacher import Request
from composer_replication.core.trace import Text, Turn
from composer_replication.data.teachers.scripted import Scripted

HEAD = re.compile(r"^#(\d+) (.*)$", re.MULTILINE)
CALL = re.compile(r"^call (c\d+) (\S+)", re.MULTILINE)
Says = Callable[[str, int], Any]


def window_text(request: Request) -> str:
    return request.turns[-1].text


def reader(respond: Says) -> Scripted:
    """A reader that answers `respond(text of the window, number of the vote)`: a text, or a value
    that becomes JSON."""

    def act(request: Request) -> Turn:
        response = respond(window_text(request), request.sample)
        return Turn(
            role="assistant",
            author="reader",
            blocks=(Text(response if isinstance(response, str) else json.dumps(response)),),
        )

    return Scripted("reader", "scripted", act)


def mistake(
    message: int,
    call: str | None,
    evidence: int,
    *,
    sure: bool = True,
    hint: str = "Look before you read.",
) -> dict[str, Any]:
    return {"message": message, "call": call, "evidence": evidence, "sure": sure, "hint": hint}


def flags_every_error(text: str, vote: int) -> dict[str, Any]:
    """The stand-in that CI scores: it names the call of every result marked as an error, whatever
    the error is."""
    message_of_call: dict[str, int] = {}
    mistakes: list[dict[str, Any]] = []
    heads = list(HEAD.finditer(text))
    for place, head in enumerate(heads):
        number, title = int(head[1]), head[2]
        body = text[head.end() : heads[place + 1].start() if place + 1 < len(heads) else len(text)]
        if title == "assistant":
            message_of_call |= {call[1]: number for call in CALL.finditer(body)}
        elif (result := re.fullmatch(r"result of (c\d+) \(error\)", title)) and result[
            1
        ] in message_of_call:
            mistakes.append(
                mistake(
                    message_of_call[result[1]],
                    result[1],
                    number,
                    hint="Check that what the call names is there.",
                )
            )
    return {"mistakes": mistakes}
