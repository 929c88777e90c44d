"""`replay_trace` as the earlier public framework's guide names it: states in, each teacher's actions out, under a ceiling.

    actions = await replay_trace(states=sessions.to_states(), teachers=DEFAULT_TEACHERS, max_total_usd=2.0)
    actions["s1:7"]              # {"kimi": {"role": "assistant", "content": ..., "tool_calls": [...]}, "glm": ..., "deepseek": ...}

What differs: money is booked before each call, so `max_total_usd` cannot be overshot; where it is reached BudgetError comes, and with a
`ledger` everything bought so far is there for the next call. Answers that cannot be used are left out. Inside the project a step is a turn
of a Session, and the verb is `recompose replay`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from composer_replication.core.config.teachers import TeacherSettings
from composer_replication.core.errors import ConfigError, TeacherError
from composer_replication.core.guide import TraceState
from composer_replication.core.pseudonyms import store_key
from composer_replication.core.redact import Redactor
from composer_replication.core.teacher import Request, Teacher
from composer_replication.core.trace import Segment, Session, SourceRef, ToolSpec
from composer_replication.data.chat import from_chat, to_chat
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.data.replay.families import family_of
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.open import limits_of
from composer_replication.data.teachers.openai_compatible import OpenAICompatible


async def replay_trace(
    *,
    states: Iterable[TraceState],
    teachers: Mapping[str, TeacherSettings] | Sequence[Teacher] = DEFAULT_TEACHERS,
    max_total_usd: float = 0.0,
    tools: Sequence[ToolSpec] = (),
    ledger: str | Path | None = None,
    max_tokens: int = 1024,
) -> dict[str, dict[str, dict[str, Any]]]:
    """What each teacher would have done at each state: state id -> teacher's name -> its message in the shape of a chat response.

    `teachers` are settings by name, whose keys come from the environment, or teachers of your own. `ledger` is a folder or file that keeps
    the answers, and beside it `redaction.key`, by which secrets are named; without one they are forgotten. A ceiling of 0 pays for nothing.
    Raises BudgetError at the ceiling, TeacherError for a key or model that is not accepted.
    """
    async with AsyncExitStack() as stack:
        path = Path(ledger) if ledger is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = path / LEDGER_NAME if path.is_dir() else path
        book = stack.enter_context(Ledger(file, max_usd=max_total_usd))
        named = teachers if isinstance(teachers, Mapping) else {}
        asked = [await stack.enter_async_context(_opened(name, one)) for name, one in named.items()]
        everyone: list[Teacher] = [*asked, *(() if isinstance(teachers, Mapping) else teachers)]
        if not everyone:
            raise ConfigError("no teacher", where="replay_trace(teachers=)", fix="leave it out, or name one")
        asker = Asker(book, limits=limits_of(named.values()))
        redactor = Redactor(key=store_key(file.parent))  # the names of secrets are part of a request: another key would buy it again
        requests = {state.state_id: _request(state, tools, redactor, max_tokens) for state in states}
        found: dict[str, dict[str, dict[str, Any]]] = {state_id: {} for state_id in requests}

        async def in_order(teacher: Teacher) -> None:
            for state_id, request in requests.items():
                try:
                    bought = await asker.ask(teacher, request)
                except TeacherError as error:
                    if error.for_all:
                        raise
                    continue
                if not bought.reply.problem:
                    found[state_id][teacher.name] = to_chat(bought.reply.turn)[0]

        done = await asyncio.gather(*map(in_order, everyone), return_exceptions=True)
        for error in done:
            if error is not None:
                raise error
    return found


def _opened(name: str, settings: TeacherSettings) -> OpenAICompatible:
    whole = settings if settings.family else settings.model_copy(update={"family": family_of(settings.model)})
    return OpenAICompatible(name, whole, environ=os.environ)


def _request(state: TraceState, tools: Sequence[ToolSpec], redactor: Redactor, max_tokens: int) -> Request:
    turns = tuple(map(from_chat, state.messages))
    session = Session(
        id=state.state_id, source=SourceRef(file=""), turns=turns, segments=(Segment(start=0, end=len(turns)),), tools=tuple(tools)
    )
    clean = redact_session(session, redactor)
    return Request(turns=clean.turns, tools=clean.tools, max_tokens=max_tokens, about=state.state_id)
