"""The calls to a reader model: its questions, asked together, and what came back.

    requests = reader_requests(question, text, about="s1#4", settings=settings, schema=schema,
                               redactor=redactor)
    replies = await ask_all([("s1", r) for r in requests], parse, teacher=teacher, asker=asker)
    replies.votes, replies.void       # [("s1", vote), ...], {"not JSON": 1}

`parse` raises BadReading for an answer that deviates from the schema in any way: it is no vote.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from composer_replication.core.config.reader_settings import (
    CandidateReaderSettings,
    ReaderSettings,
)
from composer_replication.core.errors import BudgetError, ComposerError, TeacherError
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Answer
from composer_replication.core.teacher import Request, Teacher
from composer_replication.core.trace import HARNESS, Text, Turn
from composer_replication.data.teachers.asking import Asker

_Subject = TypeVar("_Subject")
_Vote = TypeVar("_Vote")


class BadReading(Exception):
    """A reading in the wrong form; the message gives the reason and quotes nothing of it."""


@dataclass(slots=True)
class Replies(Generic[_Subject, _Vote]):
    """What came back to the questions, in their order, each with what it was asked about.

    `answers` are all that came, `votes` those that could be read; `void` counts the others by
    reason. `stopped` is the error that ended the asking early. Example: Replies().votes -> []
    """

    answers: list[tuple[_Subject, Answer]] = field(default_factory=list)
    votes: list[tuple[_Subject, _Vote]] = field(default_factory=list)
    void: Counter[str] = field(default_factory=Counter)
    stopped: ComposerError | None = None


def reader_requests(
    question: str,
    text: str,
    *,
    about: str,
    settings: ReaderSettings | CandidateReaderSettings,
    schema: Mapping[str, Any],
    redactor: Redactor,
) -> Iterator[Request]:
    """One question about a text, redacted, as often as `settings.votes` says.

    Example: [r.about for r in reader_requests(question, text, about="s1#4", ...)] -> ["s1#4.0"]
    """
    turns = (
        Turn(role="system", author=HARNESS, blocks=(Text(question),)),
        Turn(role="user", author=HARNESS, blocks=(Text(redactor.text(text)),)),
    )
    for vote in range(settings.votes):
        yield Request(
            turns=turns,
            max_tokens=settings.answer_tokens,
            temperature=settings.temperature,
            sample=vote,
            schema=schema,
            about=f"{about}.{vote}",
        )


async def ask_all(
    requests: Sequence[tuple[_Subject, Request]],
    parse: Callable[[_Subject, str], _Vote],
    *,
    teacher: Teacher,
    asker: Asker,
) -> Replies[_Subject, _Vote]:
    """Ask every question, or take its answer from the asker's ledger, which books the cost; an
    error does not lose what others were answered.

    Example: await ask_all([("s1", request)], parse, teacher=teacher, asker=asker)
    """
    outcomes = await asyncio.gather(*(_ask(asker, teacher, request) for _, request in requests))
    replies = Replies[_Subject, _Vote]()
    for (subject, _), answer in zip(requests, outcomes, strict=True):
        if isinstance(answer, BudgetError) or (isinstance(answer, TeacherError) and answer.for_all):
            replies.stopped = replies.stopped or answer
        if isinstance(answer, ComposerError):
            replies.void["not answered"] += 1
            continue
        replies.answers.append((subject, answer))
        try:
            replies.votes.append((subject, parse(subject, answer.turn.text)))
        except BadReading as error:
            replies.void[str(error)] += 1
    return replies


async def _ask(asker: Asker, teacher: Teacher, request: Request) -> Answer | ComposerError:
    try:
        bought = await asker.ask(teacher, request)
    except (TeacherError, BudgetError) as error:
        return error
    reply = bought.reply
    return Answer(
        site_id=request.about,
        teacher=teacher.name,
        family=teacher.family,
        turn=reply.turn,
        usd=bought.usd,
        problem=reply.problem,
        request=bought.key,
    )


def reading_json(text: str) -> Any:
    """The JSON value of a reader's answer, without a code fence around it; raises BadReading.

    >>> reading_json('```json\\n{"mistakes": []}\\n```')
    {'mistakes': []}
    """
    body = text.strip()
    if body.startswith("```") and body.endswith("```"):
        body = body.removesuffix("```").partition("\n")[2]
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadReading("not JSON") from None
