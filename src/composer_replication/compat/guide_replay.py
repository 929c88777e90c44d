"""The earlier guide's `replay_trace`: states in, each teacher's actions out, under a ceiling.

    actions = await replay_trace(states=sessions.to_states(), max_total_usd=2.0)
    actions["s1:7"]              # {"kimi": {"role": "assistant", "content": ..., ...}, "glm": ...}
    actions.problems             # {"glm: cut_off": 2, ...}: calls without a message; a warning too

Differences from the guide: cost is booked before each call, so a call begins only if
`max_total_usd` has room for its worst case; otherwise it raises BudgetError, and everything bought
so far is in the ledger for the next run. Teachers are offered the tools of the session. Inside the
project a step is a turn of a Session, and the verb is `recompose replay`.
"""

from __future__ import annotations

import asyncio
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_replication.compat.guide_ingestion import states_of
from composer_replication.compat.guide_types import TraceState
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import BudgetError, ConfigError, DataError, TeacherError
from composer_replication.core.pseudonyms import store_key
from composer_replication.core.redact import Redactor
from composer_replication.core.teacher import Request, Teacher, worst_usd
from composer_replication.core.trace import Segment, Session, SourceRef, ToolSpec, Turn
from composer_replication.data.chat import from_chat, to_chat, tool_from_chat, tool_to_chat
from composer_replication.data.ingestion.logged_tools import is_refusal, tools_from_calls
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.open import check_no_batch, limits_of
from composer_replication.data.teachers.openai_compatible import OpenAICompatible

DEFAULT_LEDGER = Path("recompose") / "guide"
"""The default folder of the ledger, below the current folder."""
_MAX_KINDS_SHOWN = 6


async def replay_trace(
    *,
    states: Iterable[TraceState | Mapping[str, Any] | Session],
    teachers: Mapping[str, TeacherSettings] | Sequence[Teacher] = DEFAULT_TEACHERS,
    max_total_usd: float | None = None,
    tools: Sequence[ToolSpec] = (),
    ledger: str | Path | None = None,
    max_tokens: int = 1024,
) -> TeacherActions:
    """Return what each teacher would have done: state id -> teacher's name -> its chat message.

    `states` may be dictionaries of their fields, or sessions from an ingester. `teachers` are
    settings by name, whose keys come from the environment, or teacher objects. `tools` replace
    those of the states; if neither gives any, they are inferred from the session's calls. `ledger`
    is a folder or file that keeps the answers, next to the `redaction.key` that names secrets; the
    default is DEFAULT_LEDGER. `max_total_usd` is the ceiling of all calls in that ledger, earlier
    runs included; with 0 or None nothing is paid for, and the error for None gives the worst-case
    cost. Calls without a message are counted in `problems` and in a warning. Raises BudgetError at
    the ceiling, TeacherError for a rejected key or model, ConfigError for settings that this
    function cannot use.
    """
    all_states = list(states_of(states))
    if twice := [
        state_id
        for state_id, num in Counter(state.state_id for state in all_states).items()
        if num > 1
    ]:
        raise DataError(
            "two states have one id",
            where=twice[0],
            fix="answers are given by id: give each state its own",
        )
    tools_of_states = tools_at(all_states, tools)
    settings_by_name = teachers if isinstance(teachers, Mapping) else {}
    async with AsyncExitStack() as stack:
        opened_teachers = [
            await stack.enter_async_context(_open_teacher(name, state))
            for name, state in settings_by_name.items()
        ]
        everyone: list[Teacher] = [
            *opened_teachers,
            *(() if isinstance(teachers, Mapping) else teachers),
        ]
        if not everyone:
            raise ConfigError(
                "no teacher", where="replay_trace(teachers=)", fix="leave it out, or name one"
            )
        file = _ledger_file(DEFAULT_LEDGER if ledger is None else Path(ledger))
        # The placeholders of secrets are part of a request: with another key it would be bought
        # again.
        redactor = Redactor(key=store_key(file.parent))
        requests = {
            state.state_id: _request(state, specs, redactor, max_tokens)
            for state, specs in zip(all_states, tools_of_states, strict=True)
            if state.messages
        }
        book = stack.enter_context(Ledger(file, max_usd=max_total_usd or 0.0))
        run = _ReplayCall(
            Asker(book, limits=limits_of(settings_by_name.values())),
            {state.state_id: {} for state in all_states},
        )
        if max_total_usd is None:
            _check_ceiling(run.asker, everyone, requests.values(), book)
        run.problems["no message before the state"] += len(all_states) - len(requests)
        errors = await asyncio.gather(
            *(run.ask_teacher(teacher, requests) for teacher in everyone), return_exceptions=True
        )
        _warn(run, num_calls=len(everyone) * len(requests), file=file)
        for error in errors:
            if error is not None:
                raise error
    families = {teacher.name: teacher.family for teacher in everyone}
    tools_of = {
        state.state_id: tuple(map(tool_to_chat, specs))
        for state, specs in zip(all_states, tools_of_states, strict=True)
    }
    # in the order of the teachers, whoever answered first
    actions = {
        state_id: {t.name: answers[t.name] for t in everyone if t.name in answers}
        for state_id, answers in run.actions.items()
    }
    return TeacherActions(
        actions, usd=run.usd, families=families, tools=tools_of, problems=dict(+run.problems)
    )


class TeacherActions(dict[str, dict[str, dict[str, Any]]]):
    """State id -> teacher's name -> its message, with costs, families, tools and problems.

    `usd` is what each message cost when it was bought, by state id and teacher; `families` are the
    teachers' model families, `tools` those on offer by state id; `problems` counts the calls
    without a message, by reason.
    Examples: actions["s1:7"]["glm"]["content"]; actions.usd["s1:7"] -> {"glm": 0.0021};
    actions.problems -> {"kimi: unknown_tool": 3}
    """

    def __init__(
        self,
        actions: Mapping[str, dict[str, dict[str, Any]]],
        *,
        usd: Mapping[str, Mapping[str, float]],
        families: Mapping[str, str],
        tools: Mapping[str, tuple[dict[str, Any], ...]],
        problems: Mapping[str, int],
    ) -> None:
        super().__init__(actions)
        self.usd, self.families, self.tools, self.problems = usd, families, tools, problems


@dataclass(slots=True)
class _ReplayCall:
    """The state of one call of `replay_trace`: the actions so far."""

    asker: Asker
    actions: dict[str, dict[str, dict[str, Any]]]
    usd: dict[str, dict[str, float]] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)

    async def ask_teacher(self, teacher: Teacher, requests: Mapping[str, Request]) -> None:
        """Ask one teacher about every state in order; count the calls without a message."""
        for state_id, request in requests.items():
            try:
                bought = await self.asker.ask(teacher, request)
            except BudgetError as error:
                fix = (
                    "everything bought so far is kept there: give a higher max_total_usd, which"
                    " counts earlier calls too, and call it again"
                )
                raise BudgetError(error.what, where=error.where, fix=fix) from error
            except TeacherError as error:
                if error.for_all:
                    raise
                self.problems[f"{teacher.name}: failed: {error.what}"] += 1
                continue
            if bought.reply.problem:
                self.problems[f"{teacher.name}: {bought.reply.problem}"] += 1
                continue
            self.actions[state_id][teacher.name] = to_chat(bought.reply.turn)[0]
            self.usd.setdefault(state_id, {})[teacher.name] = bought.usd


def tools_at(
    states: Sequence[TraceState], tools: Sequence[ToolSpec] = ()
) -> list[tuple[ToolSpec, ...]]:
    """Return the tools on offer at each state: `tools`, else the state's, else inferred from calls.

    Inferred are all names called in its session; the session's id is the state's id up to the last
    colon.
    Example: tools_at([TraceState("s1:7", messages, action)]) -> [(ToolSpec(name="Read", ...),)]
    """
    without_tools: dict[str, list[TraceState]] = {}
    for state in states:
        if not (tools or state.tools):
            without_tools.setdefault(_session_of(state), []).append(state)
    inferred = {session: _infer_tools(group) for session, group in without_tools.items()}
    return [
        tuple(tools) or tuple(map(tool_from_chat, state.tools)) or inferred[_session_of(state)]
        for state in states
    ]


def _session_of(state: TraceState) -> str:
    return state.state_id.rpartition(":")[0] or state.state_id


def _infer_tools(group: Iterable[TraceState]) -> tuple[ToolSpec, ...]:
    # States share their message objects: each is read once.
    messages = {
        id(m): m for state in group for m in (*state.messages, state.student_action, *state.answers)
    }
    turns = [turn for message in messages.values() if (turn := _read_or_none(message)) is not None]
    refused = {
        r.call_id for turn in turns for r in turn.results if r.is_error and is_refusal(r.text)
    }
    return tools_from_calls((call for turn in turns for call in turn.calls), refused=refused)


def _read_or_none(message: Mapping[str, Any]) -> Turn | None:
    """Return a message as a turn, or None if it cannot be read: sending it raises the error."""
    try:
        return from_chat(message)
    except DataError:
        return None


def _check_ceiling(
    asker: Asker, teachers: Sequence[Teacher], requests: Iterable[Request], book: Ledger
) -> None:
    """Raise BudgetError with the worst-case cost if any call would have to be paid for."""
    worst = [
        worst_usd(teacher, request)
        for request in requests
        for teacher in teachers
        if teacher.identity and asker.find(teacher, request) is None
    ]
    if paid := [usd for usd in worst if usd]:
        ceiling = math.ceil((sum(paid) + book.totals().booked_usd) * 100) / 100
        raise BudgetError(
            f"no ceiling is given, and {len(paid)} calls could cost ${sum(paid):.4f} at most",
            where="replay_trace(max_total_usd=)",
            fix=(
                f"give one, e.g. max_total_usd={ceiling:.2f}, which has room for all of them; fewer"
                " are asked under a lower one"
            ),
        )


def _warn(run: _ReplayCall, *, num_calls: int, file: Path) -> None:
    if num := run.problems.total():
        shown_kinds = [
            f"{name} ({number})" for name, number in run.problems.most_common(_MAX_KINDS_SHOWN)
        ]
        num_hidden = len(+run.problems) - len(shown_kinds)
        more = f", and {num_hidden} other kinds" if num_hidden > 0 else ""
        text = (
            f"replay_trace: {num} times no message came of {num_calls} calls:"
            f" {', '.join(shown_kinds)}{more}; answers are kept in {file}"
        )
        warnings.warn(text, UserWarning, stacklevel=2)


def _ledger_file(path: Path) -> Path:
    """Return the ledger's file: LEDGER_NAME in a folder, or in a new path without a suffix."""
    return path / LEDGER_NAME if path.is_dir() or not (path.exists() or path.suffix) else path


def _open_teacher(name: str, settings: TeacherSettings) -> OpenAICompatible:
    if settings.kind == "local":
        example = (
            f"LocalTeacher({name!r}, settings) with settings.family set, e.g."
            " teachers=[LocalTeacher(...), OpenAICompatible(...)]"
        )
        raise ConfigError(
            f"teacher {name!r} is a model of this machine (kind = 'local')",
            where="replay_trace(teachers=)",
            fix=f"hand it in: {example}",
        )
    check_no_batch(name, settings, where="replay_trace(teachers=)")
    with_family = (
        settings
        if settings.family
        else settings.model_copy(update={"family": family_of(settings.model)})
    )
    return OpenAICompatible(name, with_family, environ=os.environ)


def _request(
    state: TraceState, tools: tuple[ToolSpec, ...], redactor: Redactor, max_tokens: int
) -> Request:
    turns = tuple(map(from_chat, state.messages))
    session = Session(
        id=state.state_id,
        source=SourceRef(file=""),
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        tools=tools,
    )
    clean = redact_session(session, redactor)
    return Request(
        turns=clean.turns, tools=clean.tools, max_tokens=max_tokens, about=state.state_id
    )
