"""`extract_dpo_pairs`, `DJNormalizer` and `replay_and_normalize_trace`, as the earlier public
framework's guide names them.

    pairs = extract_dpo_pairs(states=states, teacher_actions=actions, agreement_threshold=2)
    normalizer = DJNormalizer("with_disagreement_filter")
    good = normalizer.normalize(pairs)                     # normalizer.report says why the others are gone
    actions, good = await replay_and_normalize_trace(states=states, max_total_usd=2.0)

What differs: a vote is that of a model family, actions are compared and not their text, the model
that wrote the trace has no say, and both messages of a pair are judged by themselves.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from composer_replication.compat.guide_ingestion import states_of
from composer_replication.compat.guide_replay import TeacherActions, replay_trace
from composer_replication.compat.guide_types import MappingDataclass, TraceState
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.site import Answer, Preference
from composer_replication.core.trace import Session, Turn
from composer_replication.data.chat import from_chat, to_chat, tool_from_chat
from composer_replication.data.curate.curator import Curator, Dropped, DropReport
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with
from composer_replication.data.curate.foreign import curate_foreign
from composer_replication.data.curate.pair import Pair, messages_hash, side_of, tail_of
from composer_replication.data.curate.pair_export import flat_prompt
from composer_replication.data.curate.recipe import load_recipe
from composer_replication.data.replay.actions import ComparisonContext
from composer_replication.data.replay.agree import Agreement, agree
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS

Message = Mapping[str, Any]
Actions = Mapping[str, Message | str]
"""What each teacher would do at one state: model id -> a chat message, or its text."""
Replay = Callable[..., Awaitable[Mapping[str, Any]]]
States = Iterable[TraceState | Mapping[str, Any] | Session]


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOPair(MappingDataclass):
    """Two messages at a state: as flat text, and as the chat messages that they were;
    pair["chosen"] reads as pair.chosen does.

    Example: DPOPair(state_id="s1:7", state_messages=[...], chosen="Read {...}", rejected="Bash
    {...}", n_teachers_agreeing=3)
    """

    state_id: str
    state_messages: list[dict[str, Any]]
    chosen: str
    rejected: str
    n_teachers_agreeing: int = 0
    chosen_message: dict[str, Any] | None = None
    rejected_message: dict[str, Any] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tools", tuple(self.tools))


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizedDPOPair(MappingDataclass):
    """A pair that a recipe kept, flat (`prompt`, `chosen`, `rejected`) and as chat messages;
    `provenance` as it came, and the recipe.

    ComposerDataCollator takes it as it is.
    """

    state_id: str
    prompt: str
    chosen: str
    rejected: str
    prompt_messages: list[dict[str, Any]]
    chosen_messages: list[dict[str, Any]]
    rejected_messages: list[dict[str, Any]]
    n_teachers_agreeing: int = 0
    tools: tuple[dict[str, Any], ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)


class NormalizedTrace(NamedTuple):
    """What `replay_and_normalize_trace` gives, e.g. actions, pairs = await
    replay_and_normalize_trace(...)."""

    teacher_actions: Mapping[str, Any]
    pairs: list[NormalizedDPOPair]


def extract_dpo_pairs(
    *,
    states: States,
    teacher_actions: Sequence[Actions] | Mapping[str, Actions],
    agreement_threshold: int = 2,
    tools: Iterable[Message] = (),
    families: Mapping[str, str] | None = None,
) -> list[DPOPair]:
    """The states at which at least `agreement_threshold` model families would have done the same,
    and something else than the trace.

    `teacher_actions` has one entry per state, in their order or by `state_id`. An answer that is no
    message (arguments that do not parse) has no vote; a warning counts those, and the states
    without any answer. The family of the model that wrote the trace has none either, where the
    state says who that was. `families` says whose model a teacher's name stands for; without it
    what `replay_trace` knows of its teachers does, else the name itself has to tell. `tools` stand
    for those that `replay_trace` offered, or that the states carry. Only `replay_trace` knows what
    an answer cost: for other `teacher_actions` the provenance has no `usd`.
    """
    known = list(states_of(states))
    given = tuple(dict(tool) for tool in tools)
    bought = teacher_actions if isinstance(teacher_actions, TeacherActions) else None
    makers = {**(bought.families if bought is not None else {}), **(families or {})}
    unread: Counter[str] = Counter()
    num_silent = 0
    pairs = []
    for number, state in enumerate(known):
        if not isinstance(teacher_actions, Mapping) and number >= len(teacher_actions):
            raise DataError(
                f"{len(teacher_actions)} entries of teacher_actions, and more states",
                where=state.state_id,
            )
        actions = (
            teacher_actions.get(state.state_id, {})
            if isinstance(teacher_actions, Mapping)
            else teacher_actions[number]
        )
        own = from_chat(state.student_action)
        paid = bought.usd.get(state.state_id, {}) if bought is not None else {}
        read = [
            _answer(state.state_id, teacher, said, makers, paid)
            for teacher, said in actions.items()
        ]
        answers = [answer for answer in read if answer is not None]
        unread.update(
            teacher for teacher, answer in zip(actions, read, strict=True) if answer is None
        )
        num_silent += not actions
        offered = (
            given
            or (bought.tools.get(state.state_id, ()) if bought is not None else ())
            or state.tools
        )
        scene = ComparisonContext(offered=frozenset(tool_from_chat(tool).name for tool in offered))
        verdict = agree(
            own,
            answers,
            min_families=agreement_threshold,
            student_family=family_of(state.author),
            comparison=scene,
        )
        if verdict.outcome == "pair" and verdict.chosen is not None:
            chosen = verdict.chosen.turn
            pairs.append(
                DPOPair(
                    state_id=state.state_id,
                    state_messages=state.messages,
                    chosen=side_of(chosen).text,
                    rejected=side_of(own).text,
                    n_teachers_agreeing=len(verdict.teachers),
                    chosen_message=to_chat(chosen)[0],
                    rejected_message=to_chat(own)[0],
                    tools=tuple(offered),
                    provenance=_provenance(verdict, state, priced=bought is not None),
                )
            )
    _warn(unread, num_silent, len(known))
    return pairs


def _warn(unread: Counter[str], num_silent: int, num_states: int) -> None:
    told = [
        f"{num} answers of {teacher} are no messages and have no vote"
        for teacher, num in unread.items()
    ]
    told += [f"{num_silent} of {num_states} states have no answer"] if num_silent else []
    if told:
        warnings.warn(f"extract_dpo_pairs: {'; '.join(told)}", UserWarning, stacklevel=3)


def _provenance(verdict: Agreement, state: TraceState, *, priced: bool) -> dict[str, Any]:
    """What is known of a pair; a price that nobody told is left out, for it is not 0."""
    record = verdict.record()
    if not priced:
        record.pop("usd")
    return {**record, "teachers": list(verdict.teachers), "author": state.author}


def _answer(
    state_id: str,
    teacher: str,
    said: Message | str,
    families: Mapping[str, str],
    paid: Mapping[str, float],
) -> Answer | None:
    try:
        turn = from_chat(
            {"role": "assistant", "content": said}
            if isinstance(said, str)
            else {"role": "assistant", **said}
        )
    except DataError:
        return None
    family = families.get(teacher) or family_of(teacher)
    return Answer(
        site_id=state_id,
        teacher=teacher,
        family=family,
        turn=replace(turn, author=teacher),
        usd=paid.get(teacher, 0.0),
    )


class DJNormalizer:
    """Keeps the pairs that a recipe has nothing against, e.g.
    DJNormalizer("default").normalize(pairs).

    `engine="data_juicer"` counts with the real one, whose Python is `data_juicer_python`, and runs
    every other operator of its (mappers, simhash, perplexity). `report`, `dropped` and `rewritten`
    (messages that a mapper changed) speak of the last call.
    """

    def __init__(
        self,
        recipe: str | Path = "default",
        *,
        engine: Literal["embedded", "data_juicer"] = "embedded",
        data_juicer_python: str | Path = "",
    ) -> None:
        if engine not in ("embedded", "data_juicer"):
            raise ConfigError(
                f"unknown engine {engine!r}",
                where="DJNormalizer.engine",
                fix='"embedded" or "data_juicer"',
            )
        self.recipe = load_recipe(recipe, foreign=engine == "data_juicer")
        self.engine = DataJuicer(Path(data_juicer_python)) if engine == "data_juicer" else None
        self.report: DropReport | None = None
        self.dropped: tuple[Dropped, ...] = ()
        self.rewritten: Mapping[str, int] = {}

    def normalize(self, pairs: Iterable[DPOPair | Message]) -> list[NormalizedDPOPair]:
        """The pairs that are kept, in both shapes; a pair may be a dictionary of its fields."""
        known = [DPOPair.of(pair, where=f"pair {number}") for number, pair in enumerate(pairs)]
        inner = [_judged(pair, number) for number, pair in enumerate(known)]
        self.rewritten = {}
        if self.engine is not None and self.recipe.foreign:
            judged = curate_foreign(self.engine, self.recipe, inner)
            curator, inner, verdicts, self.rewritten = (
                judged.curator(),
                judged.pairs,
                judged.dropped,
                dict(judged.rewritten),
            )
        elif self.engine is not None:
            curator, both = curate_with(self.engine, self.recipe, inner)
            verdicts = [dropped for _, dropped in both]
        else:
            curator = Curator(self.recipe)
            verdicts = [curator.judge(pair) for pair in inner]
        self.report, self.dropped = (
            curator.report(),
            tuple(dropped for dropped in verdicts if dropped is not None),
        )
        kept = [number for number, dropped in enumerate(verdicts) if dropped is None]
        return [_normalized(known[number], inner[number], self.recipe.name) for number in kept]

    def normalize_file(self, source: str | Path, target: str | Path) -> DropReport:
        """A file of DPO pairs (one JSON object a line) to a file of normalized ones; returns the
        report."""
        pairs = [
            DPOPair.of(row, where=f"{source}:{number}") for number, row in read_lines(Path(source))
        ]
        write_lines(Path(target), map(asdict, self.normalize(pairs)))
        assert self.report is not None
        return self.report


def _judged(pair: DPOPair, number: int) -> Pair:
    """A pair of the guide as it is judged. Where only flat text is there, that text is the
    message."""
    context = tuple(from_chat(message) for message in pair.state_messages)
    tools = {tool.name: tool for tool in map(tool_from_chat, pair.tools)}
    scene = ComparisonContext(offered=frozenset(tools))
    chosen, rejected = (
        _turn(pair.chosen_message, pair.chosen),
        _turn(pair.rejected_message, pair.rejected),
    )
    session_id = pair.state_id.rpartition(":")[0] or pair.state_id
    return Pair(
        id=f"{pair.state_id}#{number}",
        chosen=side_of(chosen, comparison=scene),
        rejected=side_of(rejected, comparison=scene),
        state=messages_hash(pair.state_messages),
        tail=tail_of(context),
        preference=Preference(
            session_id=session_id,
            turn=len(context),
            chosen=chosen,
            rejected=rejected,
            evidence=pair.provenance,
        ),
        tools=tools,
        context=context,
    )


def _turn(message: Message | None, text: str) -> Turn:
    return from_chat(message if message is not None else {"role": "assistant", "content": text})


def _normalized(pair: DPOPair, inner: Pair, recipe: str) -> NormalizedDPOPair:
    return NormalizedDPOPair(
        state_id=pair.state_id,
        prompt=flat_prompt(inner.context),
        chosen=inner.chosen.text,
        rejected=inner.rejected.text,
        prompt_messages=pair.state_messages,
        chosen_messages=to_chat(inner.chosen.turn),
        rejected_messages=to_chat(inner.rejected.turn),
        n_teachers_agreeing=pair.n_teachers_agreeing,
        tools=pair.tools,
        provenance={**inner.preference.evidence, "recipe": recipe},
    )


async def replay_and_normalize_trace(
    *,
    states: States,
    teachers: Any = None,
    max_total_usd: float | None = None,
    agreement_threshold: int = 2,
    normalizer: DJNormalizer | None = None,
    replay: Replay = replay_trace,
    tools: Iterable[Message] = (),
    ledger: str | Path | None = None,
) -> NormalizedTrace:
    """Ask the teachers at every state, keep what enough families agree on, and of that what the
    recipe keeps: (actions, pairs).

    `teachers`, `max_total_usd` and `ledger` are those of `replay_trace`, DEFAULT_TEACHERS unless
    given; BudgetError where the ceiling is reached. A `replay` of your own is given a ledger only
    where one is named. A `normalizer` of your own has the report of what its recipe drops; without
    one a warning counts it.
    """
    known, offered = list(states_of(states)), [dict(tool) for tool in tools]
    asked = DEFAULT_TEACHERS if teachers is None else teachers
    specs = tuple(map(tool_from_chat, offered))
    place = {} if ledger is None else {"ledger": ledger}
    actions = await replay(
        states=known, teachers=asked, max_total_usd=max_total_usd, tools=specs, **place
    )
    pairs = extract_dpo_pairs(
        states=known,
        teacher_actions=actions,
        agreement_threshold=agreement_threshold,
        tools=offered,
        families=_families(asked),
    )
    if normalizer is not None:
        return NormalizedTrace(actions, normalizer.normalize(pairs))  # the caller holds its report
    ours = DJNormalizer()
    kept = ours.normalize(pairs)
    if ours.dropped:
        reasons = ", ".join(
            f"{reason} ({num})"
            for reason, num in Counter(one.reason for one in ours.dropped).most_common()
        )
        warnings.warn(
            f"the recipe {ours.recipe.name!r} drops {len(ours.dropped)} of {len(pairs)} pairs:"
            f" {reasons}",
            UserWarning,
            stacklevel=2,
        )
    return NormalizedTrace(actions, kept)


def _families(teachers: Any) -> dict[str, str]:
    """Whose models the teachers are, as far as they say so themselves."""
    if isinstance(teachers, Mapping):
        return {name: one.family or family_of(one.model) for name, one in teachers.items()}
    return {one.name: one.family for one in teachers if hasattr(one, "family")}


def replay_and_normalize_trace_sync(**arguments: Any) -> NormalizedTrace:
    """`replay_and_normalize_trace` for code that is not asynchronous; takes the same arguments.

    Raises ConfigError where an event loop runs already, as in a notebook: await the other there.
    """
    if _a_loop_runs():
        raise ConfigError(
            "an event loop runs here already, as in a notebook",
            where="replay_and_normalize_trace_sync",
            fix="await replay_and_normalize_trace(...) with the same arguments",
        )
    return asyncio.run(replay_and_normalize_trace(**arguments))


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
