"""`replay_trace` as the earlier public framework's guide names it: states in, each teacher's
actions out, under a ceiling.

    actions = await replay_trace(states=sessions.to_states(), teachers=DEFAULT_TEACHERS, max_total_usd=2.0)
    actions["s1:7"]              # {"kimi": {"role": "assistant", "content": ..., "tool_calls": [...]}, "glm": ..., "deepseek": ...}
    actions.problems             # {"glm: cut_off": 2, ...}: what brought no message, which a warning tells as well

What differs: money is booked before each call, so calls begin only while `max_total_usd` has room
for their worst case; where it has none BudgetError comes, and everything bought so far is in the
ledger for the next call. Teachers are offered the tools of the session. Inside the project a step
is a turn of a Session, and the verb is `recompose replay`.
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
from composer_replication.data.teachers.open import limits_of
from composer_replication.data.teachers.openai_compatible import OpenAICompatible

DEFAULT_LEDGER = Path("recompose") / "guide"
"""The folder that keeps what is bought where no other is named; under the folder that a run of the
program is in."""
_TOLD = 6


async def replay_trace(
    *,
    states: Iterable[TraceState | Mapping[str, Any] | Session],
    teachers: Mapping[str, TeacherSettings] | Sequence[Teacher] = DEFAULT_TEACHERS,
    max_total_usd: float | None = None,
    tools: Sequence[ToolSpec] = (),
    ledger: str | Path | None = None,
    max_tokens: int = 1024,
) -> TeacherActions:
    """What each teacher would have done at each state: state id -> teacher's name -> its message in
    the shape of a chat response.

    `states` may be dictionaries of their fields, or sessions as an ingester gives them. `teachers`
    are settings by name, whose keys come from the environment, or teachers of your own. `tools`
    stand for those that the states carry; where neither says, they are inferred from the session's
    calls. `ledger` is a folder or file that keeps the answers, and beside it `redaction.key`, by
    which secrets are named; without one it is DEFAULT_LEDGER. `max_total_usd` is the ceiling of all
    calls in that ledger, of earlier runs as well; 0 and None pay for nothing, and None says what
    asking would cost at most. What brings no message is counted in `problems`, and a warning says
    so. Raises BudgetError at the ceiling, TeacherError for a key or model that is not accepted,
    ConfigError for settings that cannot be asked from here.
    """
    known = list(states_of(states))
    if twice := [
        state_id for state_id, num in Counter(one.state_id for one in known).items() if num > 1
    ]:
        raise DataError(
            "two states have one id",
            where=twice[0],
            fix="answers are given by id: give each state its own",
        )
    offered = tools_at(known, tools)
    named = teachers if isinstance(teachers, Mapping) else {}
    async with AsyncExitStack() as stack:
        asked = [await stack.enter_async_context(_opened(name, one)) for name, one in named.items()]
        everyone: list[Teacher] = [*asked, *(() if isinstance(teachers, Mapping) else teachers)]
        if not everyone:
            raise ConfigError(
                "no teacher", where="replay_trace(teachers=)", fix="leave it out, or name one"
            )
        file = _ledger_file(DEFAULT_LEDGER if ledger is None else Path(ledger))
        # the names of secrets are part of a request: another key would buy it again
        redactor = Redactor(key=store_key(file.parent))
        requests = {
            one.state_id: _request(one, specs, redactor, max_tokens)
            for one, specs in zip(known, offered, strict=True)
            if one.messages
        }
        book = stack.enter_context(Ledger(file, max_usd=max_total_usd or 0.0))
        run = _ReplayCall(
            Asker(book, limits=limits_of(named.values())), {one.state_id: {} for one in known}
        )
        if max_total_usd is None:
            _say_the_bill(run.asker, everyone, requests.values(), book)
        run.problems["no message before the state"] += len(known) - len(requests)
        done = await asyncio.gather(
            *(run.teacher(teacher, requests) for teacher in everyone), return_exceptions=True
        )
        _warn(run, num_calls=len(everyone) * len(requests), file=file)
        for error in done:
            if error is not None:
                raise error
    families = {teacher.name: teacher.family for teacher in everyone}
    tools_of = {
        one.state_id: tuple(map(tool_to_chat, specs))
        for one, specs in zip(known, offered, strict=True)
    }
    return TeacherActions(
        run.found, usd=run.usd, families=families, tools=tools_of, problems=dict(+run.problems)
    )


class TeacherActions(dict[str, dict[str, dict[str, Any]]]):
    """State id -> teacher's name -> its message; beside them what was paid and offered, whose
    models they are, and what brought no message.

    `usd` is what each message cost when it was bought, by state id and teacher; `tools` are those
    on offer, by state id; `problems` has what was left out, by name and number.
    Example: actions["s1:7"]["glm"]["content"]; actions.usd["s1:7"] -> {"glm": 0.0021};
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
    """One call of `replay_trace`: what its teachers have said so far."""

    asker: Asker
    found: dict[str, dict[str, dict[str, Any]]]
    usd: dict[str, dict[str, float]] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)

    async def teacher(self, teacher: Teacher, requests: Mapping[str, Request]) -> None:
        """Every state in order; what brings no message is counted."""
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
            self.found[state_id][teacher.name] = to_chat(bought.reply.turn)[0]
            self.usd.setdefault(state_id, {})[teacher.name] = bought.usd


def tools_at(
    states: Sequence[TraceState], tools: Sequence[ToolSpec] = ()
) -> list[tuple[ToolSpec, ...]]:
    """The tools on offer at each state, in order: `tools`, else those the state carries, else one
    per name called in its session.

    A session is what stands before the last colon of the state's id.
    Example: tools_at([TraceState("s1:7", messages, action)]) -> [(ToolSpec(name="Read", ...),)]
    """
    silent: dict[str, list[TraceState]] = {}
    for state in states:
        if not (tools or state.tools):
            silent.setdefault(_session_of(state), []).append(state)
    inferred = {session: _inferred(group) for session, group in silent.items()}
    return [
        tuple(tools) or tuple(map(tool_from_chat, state.tools)) or inferred[_session_of(state)]
        for state in states
    ]


def _session_of(state: TraceState) -> str:
    return state.state_id.rpartition(":")[0] or state.state_id


def _inferred(group: Iterable[TraceState]) -> tuple[ToolSpec, ...]:
    # States share their messages: each is read once.
    messages = {
        id(m): m for state in group for m in (*state.messages, state.student_action, *state.answers)
    }
    turns = [turn for message in messages.values() if (turn := _readable(message)) is not None]
    refused = {
        r.call_id for turn in turns for r in turn.results if r.is_error and is_refusal(r.text)
    }
    return tools_from_calls((call for turn in turns for call in turn.calls), refused=refused)


def _readable(message: Mapping[str, Any]) -> Turn | None:
    """A message that can be read; one that cannot says nothing about tools, and is refused by name
    where it would be sent."""
    try:
        return from_chat(message)
    except DataError:
        return None


def _say_the_bill(
    asker: Asker, teachers: Sequence[Teacher], requests: Iterable[Request], book: Ledger
) -> None:
    """Raises BudgetError where something would have to be paid for."""
    worst = [
        worst_usd(one, request)
        for request in requests
        for one in teachers
        if one.identity and asker.kept(one, request) is None
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
        told = [f"{name} ({number})" for name, number in run.problems.most_common(_TOLD)]
        rest = len(+run.problems) - len(told)
        more = f", and {rest} other kinds" if rest > 0 else ""
        text = (
            f"replay_trace: {num} times no message came of {num_calls} calls:"
            f" {', '.join(told)}{more}; answers are kept in {file}"
        )
        warnings.warn(text, UserWarning, stacklevel=2)


def _ledger_file(path: Path) -> Path:
    """A folder, or a new name without an ending, keeps the ledger under its usual name."""
    return path / LEDGER_NAME if path.is_dir() or not (path.exists() or path.suffix) else path


def _opened(name: str, settings: TeacherSettings) -> OpenAICompatible:
    if settings.kind == "local":
        how = (
            f"LocalTeacher({name!r}, settings) with settings.family set, e.g."
            " teachers=[LocalTeacher(...), OpenAICompatible(...)]"
        )
        raise ConfigError(
            f"teacher {name!r} is a model of this machine (kind = 'local')",
            where="replay_trace(teachers=)",
            fix=f"hand it in: {how}",
        )
    whole = (
        settings
        if settings.family
        else settings.model_copy(update={"family": family_of(settings.model)})
    )
    return OpenAICompatible(name, whole, environ=os.environ)


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
