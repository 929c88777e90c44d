"""The earlier guide's `extract_dpo_pairs`, `DJNormalizer` and `replay_and_normalize_trace`.

    pairs = extract_dpo_pairs(states=states, teacher_actions=actions, agreement_threshold=2)
    normalizer = DJNormalizer("with_disagreement_filter")
    good = normalizer.normalize(pairs)                     # normalizer.report counts the others
    actions, good = await replay_and_normalize_trace(states=states, max_total_usd=2.0)

Differences from the guide: a model family has one vote, actions are compared instead of their text,
the model that wrote the trace does not vote, and each message of a pair is judged by itself.
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
"""What each teacher would do at one state: model id -> chat message, or its text."""
Replay = Callable[..., Awaitable[Mapping[str, Any]]]
States = Iterable[TraceState | Mapping[str, Any] | Session]


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOPair(MappingDataclass):
    """Two messages at a state, as flat text and as chat messages; also reads as a dictionary.

    Example: DPOPair(state_id="s1:7", state_messages=[...], chosen="Read {}", rejected="Bash {}")
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
    """A pair that a recipe kept, flat (`prompt`, `chosen`, `rejected`) and as chat messages.

    `provenance` is the DPOPair's, with the recipe added. ComposerDataCollator takes it directly.
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
    """The result of `replay_and_normalize_trace`."""

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
    """Return a pair for each state at which enough model families agree on another action.

    `teacher_actions` has one entry per state, in their order or by `state_id`. An answer that is
    not a message (arguments that do not parse) has no vote; a warning counts those, and the states
    without any answer. The family of the model that wrote the trace has no vote either, if the
    state gives its author. `families` maps a teacher's name to its family; the default is what
    `replay_trace` knows of its teachers, else the name itself. `tools` replace those that
    `replay_trace` offered, or that the states carry. Only `replay_trace` knows the cost of an
    answer: for other `teacher_actions` the provenance has no `usd`.
    """
    all_states = list(states_of(states))
    tool_rows = tuple(dict(tool) for tool in tools)
    bought = teacher_actions if isinstance(teacher_actions, TeacherActions) else None
    family_of_teacher = {**(bought.families if bought is not None else {}), **(families or {})}
    unparsed: Counter[str] = Counter()
    num_silent = 0
    pairs = []
    for number, state in enumerate(all_states):
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
        student_turn = from_chat(state.student_action)
        paid = bought.usd.get(state.state_id, {}) if bought is not None else {}
        parsed = [
            _answer(
                state.state_id,
                teacher=teacher,
                message=answer_message,
                families=family_of_teacher,
                paid=paid,
            )
            for teacher, answer_message in actions.items()
        ]
        answers = [answer for answer in parsed if answer is not None]
        unparsed.update(
            teacher for teacher, answer in zip(actions, parsed, strict=True) if answer is None
        )
        num_silent += not actions
        offered = (
            tool_rows
            or (bought.tools.get(state.state_id, ()) if bought is not None else ())
            or state.tools
        )
        comparison = ComparisonContext(
            offered=frozenset(tool_from_chat(tool).name for tool in offered)
        )
        verdict = agree(
            student_turn,
            answers,
            min_families=agreement_threshold,
            student_family=family_of(state.author),
            comparison=comparison,
        )
        if verdict.outcome == "pair" and verdict.chosen is not None:
            chosen = verdict.chosen.turn
            pairs.append(
                DPOPair(
                    state_id=state.state_id,
                    state_messages=state.messages,
                    chosen=side_of(chosen).text,
                    rejected=side_of(student_turn).text,
                    n_teachers_agreeing=len(verdict.teachers),
                    chosen_message=to_chat(chosen)[0],
                    rejected_message=to_chat(student_turn)[0],
                    tools=tuple(offered),
                    provenance=_provenance(verdict, state, priced=bought is not None),
                )
            )
    _warn(unparsed, num_silent, len(all_states))
    return pairs


def _warn(unparsed: Counter[str], num_silent: int, num_states: int) -> None:
    parts = [
        f"{num} answers of {teacher} are no messages and have no vote"
        for teacher, num in unparsed.items()
    ]
    parts += [f"{num_silent} of {num_states} states have no answer"] if num_silent else []
    if parts:
        warnings.warn(f"extract_dpo_pairs: {'; '.join(parts)}", UserWarning, stacklevel=3)


def _provenance(verdict: Agreement, state: TraceState, *, priced: bool) -> dict[str, Any]:
    """Return the provenance of a pair; an unknown price is left out, because it is not 0."""
    record = verdict.record()
    if not priced:
        record.pop("usd")
    return {**record, "teachers": list(verdict.teachers), "author": state.author}


def _answer(
    state_id: str,
    *,
    teacher: str,
    message: Message | str,
    families: Mapping[str, str],
    paid: Mapping[str, float],
) -> Answer | None:
    try:
        turn = from_chat(
            {"role": "assistant", "content": message}
            if isinstance(message, str)
            else {"role": "assistant", **message}
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
    """Keeps the pairs that pass a recipe, e.g. DJNormalizer("default").normalize(pairs).

    `engine="data_juicer"` runs the statistics on real data-juicer, whose Python is
    `data_juicer_python`, and allows all of its operators (mappers, simhash, perplexity). `report`,
    `dropped` and `rewritten` (messages that a mapper changed) are those of the last call.
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
        """Return the pairs that are kept, in both shapes; a pair may be a dictionary."""
        dpo_pairs = [DPOPair.of(pair, where=f"pair {number}") for number, pair in enumerate(pairs)]
        inner = [_as_pair(pair, number) for number, pair in enumerate(dpo_pairs)]
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
            curator, judged_pairs = curate_with(self.engine, self.recipe, inner)
            verdicts = [dropped for _, dropped in judged_pairs]
        else:
            curator = Curator(self.recipe)
            verdicts = [curator.judge(pair) for pair in inner]
        self.report, self.dropped = (
            curator.report(),
            tuple(dropped for dropped in verdicts if dropped is not None),
        )
        kept_numbers = [number for number, dropped in enumerate(verdicts) if dropped is None]
        return [
            _normalized(dpo_pairs[number], inner[number], self.recipe.name)
            for number in kept_numbers
        ]

    def normalize_file(self, source: str | Path, target: str | Path) -> DropReport:
        """Normalize a JSON-lines file of DPO pairs into another one; return the report."""
        pairs = [
            DPOPair.of(row, where=f"{source}:{number}") for number, row in read_lines(Path(source))
        ]
        write_lines(Path(target), map(asdict, self.normalize(pairs)))
        assert self.report is not None
        return self.report


def _as_pair(pair: DPOPair, number: int) -> Pair:
    """Return a guide's pair as a Pair; a message given as flat text only has no calls."""
    context = tuple(from_chat(message) for message in pair.state_messages)
    tools = {tool.name: tool for tool in map(tool_from_chat, pair.tools)}
    comparison = ComparisonContext(offered=frozenset(tools))
    chosen, rejected = (
        _turn(pair.chosen_message, pair.chosen),
        _turn(pair.rejected_message, pair.rejected),
    )
    session_id = pair.state_id.rpartition(":")[0] or pair.state_id
    return Pair(
        id=f"{pair.state_id}#{number}",
        chosen=side_of(chosen, comparison=comparison),
        rejected=side_of(rejected, comparison=comparison),
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
    """Ask the teachers at every state, extract pairs, and return (actions, pairs that are kept).

    `teachers` (default: DEFAULT_TEACHERS), `max_total_usd` and `ledger` are those of
    `replay_trace`. A `replay` function of your own gets a ledger only if one is given. With a
    `normalizer` of your own read its report for dropped pairs; without one a warning counts them.
    Raises BudgetError at the ceiling.
    """
    all_states, offered = list(states_of(states)), [dict(tool) for tool in tools]
    chosen_teachers = DEFAULT_TEACHERS if teachers is None else teachers
    specs = tuple(map(tool_from_chat, offered))
    ledger_argument = {} if ledger is None else {"ledger": ledger}
    actions = await replay(
        states=all_states,
        teachers=chosen_teachers,
        max_total_usd=max_total_usd,
        tools=specs,
        **ledger_argument,
    )
    pairs = extract_dpo_pairs(
        states=all_states,
        teacher_actions=actions,
        agreement_threshold=agreement_threshold,
        tools=offered,
        families=_families(chosen_teachers),
    )
    if normalizer is not None:
        return NormalizedTrace(actions, normalizer.normalize(pairs))  # the caller holds its report
    default_normalizer = DJNormalizer()
    kept_pairs = default_normalizer.normalize(pairs)
    if default_normalizer.dropped:
        reasons = ", ".join(
            f"{reason} ({num})"
            for reason, num in Counter(
                dropped.reason for dropped in default_normalizer.dropped
            ).most_common()
        )
        warnings.warn(
            f"the recipe {default_normalizer.recipe.name!r} drops {len(default_normalizer.dropped)}"
            f" of {len(pairs)} pairs: {reasons}",
            UserWarning,
            stacklevel=2,
        )
    return NormalizedTrace(actions, kept_pairs)


def _families(teachers: Any) -> dict[str, str]:
    """Return the families of the teachers, as far as they are known."""
    if isinstance(teachers, Mapping):
        return {
            name: teacher.family or family_of(teacher.model) for name, teacher in teachers.items()
        }
    return {teacher.name: teacher.family for teacher in teachers if hasattr(teacher, "family")}


def replay_and_normalize_trace_sync(**arguments: Any) -> NormalizedTrace:
    """Run `replay_and_normalize_trace` from synchronous code, with the same arguments.

    Raises ConfigError if an event loop is already running, as in a notebook: use `await` there.
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
