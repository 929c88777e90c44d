"""`extract_dpo_pairs`, `DJNormalizer` and `replay_and_normalize_trace`, as the earlier public framework's guide names them.

    pairs = extract_dpo_pairs(states=states, teacher_actions=actions, agreement_threshold=2)
    normalizer = DJNormalizer("with_disagreement_filter")
    good = normalizer.normalize(pairs)                     # normalizer.report says why the others are gone

What differs: a vote is that of a model family, actions are compared and not their text, the model that wrote the trace has no say, and both
messages of a pair are judged by themselves.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.guide import TraceState
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.site import Answer, Preference
from composer_replication.core.trace import Turn
from composer_replication.data.chat import from_chat, to_chat, tool_from_chat
from composer_replication.data.curate.curator import Curator, Dropped, DropReport
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with
from composer_replication.data.curate.export import flat_prompt
from composer_replication.data.curate.pair import Pair, messages_hash, side_of, tail_of
from composer_replication.data.curate.recipe import load_recipe
from composer_replication.data.replay.actions import Scene
from composer_replication.data.replay.agree import agree
from composer_replication.data.replay.families import family_of

Message = Mapping[str, Any]
Actions = Mapping[str, Message | str]
"""What each teacher would do at one state: model id -> a chat message, or its text."""
Replay = Callable[..., Awaitable[Sequence[Actions]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOPair:
    """Two messages at a state: as flat text, and as the chat messages that they were.

    Example: DPOPair(state_id="s1:7", state_messages=[...], chosen="Read {...}", rejected="Bash {...}", n_teachers_agreeing=3)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizedDPOPair:
    """A pair that a recipe kept, flat (`prompt`, `chosen`, `rejected`) and as chat messages; `provenance` as it came, and the recipe."""

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


def extract_dpo_pairs(
    *,
    states: Iterable[TraceState],
    teacher_actions: Sequence[Actions] | Mapping[str, Actions],
    agreement_threshold: int = 2,
    tools: Iterable[Message] = (),
) -> list[DPOPair]:
    """The states at which at least `agreement_threshold` model families would have done the same, and something else than the trace.

    `teacher_actions` has one entry per state, in their order or by `state_id`. An answer that is no message (arguments that do not parse)
    has no vote. The family of the model that wrote the trace has none either, where the state says who that was.
    """
    offered = tuple(dict(tool) for tool in tools)
    scene = Scene(offered=frozenset(tool_from_chat(tool).name for tool in offered))
    pairs = []
    for number, state in enumerate(states):
        if not isinstance(teacher_actions, Mapping) and number >= len(teacher_actions):
            raise DataError(f"{len(teacher_actions)} entries of teacher_actions, and more states", where=state.state_id)
        actions = teacher_actions.get(state.state_id, {}) if isinstance(teacher_actions, Mapping) else teacher_actions[number]
        own = from_chat(state.student_action)
        answers = [answer for teacher, said in actions.items() if (answer := _answer(state.state_id, teacher, said)) is not None]
        verdict = agree(own, answers, min_families=agreement_threshold, own_family=family_of(state.author), scene=scene)
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
                    tools=offered,
                    provenance={**verdict.record(), "teachers": list(verdict.teachers), "author": state.author},
                )
            )
    return pairs


def _answer(state_id: str, teacher: str, said: Message | str) -> Answer | None:
    try:
        turn = from_chat({"role": "assistant", "content": said} if isinstance(said, str) else {"role": "assistant", **said})
    except DataError:
        return None
    return Answer(site_id=state_id, teacher=teacher, family=family_of(teacher), turn=replace(turn, author=teacher))


class DJNormalizer:
    """Keeps the pairs that a recipe has nothing against, e.g. DJNormalizer("default").normalize(pairs).

    `engine="data_juicer"` counts with the real one, whose Python is `data_juicer_python`. `report` and `dropped` speak of the last call.
    """

    def __init__(
        self,
        recipe: str | Path = "default",
        *,
        engine: Literal["embedded", "data_juicer"] = "embedded",
        data_juicer_python: str | Path = "",
    ) -> None:
        if engine not in ("embedded", "data_juicer"):
            raise ConfigError(f"unknown engine {engine!r}", where="DJNormalizer.engine", fix='"embedded" or "data_juicer"')
        self.recipe = load_recipe(recipe)
        self.engine = DataJuicer(Path(data_juicer_python)) if engine == "data_juicer" else None
        self.report: DropReport | None = None
        self.dropped: tuple[Dropped, ...] = ()

    def normalize(self, pairs: Iterable[DPOPair]) -> list[NormalizedDPOPair]:
        """The pairs that are kept, in both shapes."""
        given = [(pair, _judged(pair, number)) for number, pair in enumerate(pairs)]
        if self.engine is not None:
            curator, judged = curate_with(self.engine, self.recipe, [inner for _, inner in given])
            verdicts = [dropped for _, dropped in judged]
        else:
            curator = Curator(self.recipe)
            verdicts = [curator.judge(inner) for _, inner in given]
        self.report, self.dropped = curator.report(), tuple(dropped for dropped in verdicts if dropped is not None)
        return [_normalized(*both, self.recipe.name) for both, dropped in zip(given, verdicts, strict=True) if dropped is None]

    def normalize_file(self, source: str | Path, target: str | Path) -> DropReport:
        """A file of DPO pairs (one JSON object a line) to a file of normalized ones; returns the report."""
        pairs = [_pair_from(row, where=f"{source}:{number}") for number, row in read_lines(Path(source))]
        write_lines(Path(target), map(asdict, self.normalize(pairs)))
        assert self.report is not None
        return self.report


def _pair_from(row: Mapping[str, Any], *, where: str) -> DPOPair:
    try:
        return DPOPair(**{**row, "tools": tuple(row.get("tools", ()))})
    except TypeError as error:
        raise DataError(f"not a DPO pair: {error}", where=where, fix="state_id, state_messages, chosen and rejected are needed") from error


def _judged(pair: DPOPair, number: int) -> Pair:
    """A pair of the guide as it is judged. Where only flat text is there, that text is the message."""
    context = tuple(from_chat(message) for message in pair.state_messages)
    tools = {tool.name: tool for tool in map(tool_from_chat, pair.tools)}
    scene = Scene(offered=frozenset(tools))
    chosen, rejected = _turn(pair.chosen_message, pair.chosen), _turn(pair.rejected_message, pair.rejected)
    session_id = pair.state_id.rpartition(":")[0] or pair.state_id
    return Pair(
        id=f"{pair.state_id}#{number}",
        chosen=side_of(chosen, scene=scene),
        rejected=side_of(rejected, scene=scene),
        state=messages_hash(pair.state_messages),
        tail=tail_of(context),
        preference=Preference(session_id=session_id, turn=len(context), chosen=chosen, rejected=rejected, evidence=pair.provenance),
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
        provenance={**pair.provenance, "recipe": recipe},
    )


async def replay_and_normalize_trace(
    *,
    states: Sequence[TraceState],
    teachers: Sequence[Any] | None = None,
    max_total_usd: float | None = None,
    agreement_threshold: int = 2,
    normalizer: DJNormalizer | None = None,
    replay: Replay | None = None,
    tools: Iterable[Message] = (),
) -> list[NormalizedDPOPair]:
    """Ask the teachers at every state, keep what enough families agree on, and of that what the recipe keeps.

    `replay` is `replay_trace` unless given; teachers and the ceiling go to it.
    """
    ask = replay if replay is not None else _replay_trace()
    given = {"teachers": teachers, "max_total_usd": max_total_usd}
    actions = await ask(states=states, **{name: value for name, value in given.items() if value is not None})
    pairs = extract_dpo_pairs(states=states, teacher_actions=actions, agreement_threshold=agreement_threshold, tools=tools)
    return (normalizer if normalizer is not None else DJNormalizer()).normalize(pairs)


def replay_and_normalize_trace_sync(**arguments: Any) -> list[NormalizedDPOPair]:
    """`replay_and_normalize_trace` for code that is not asynchronous; takes the same arguments."""
    return asyncio.run(replay_and_normalize_trace(**arguments))


def _replay_trace() -> Replay:
    """By its public name, so that this module needs nothing of the teachers until somebody is asked."""
    return importlib.import_module("composer_replication").replay_trace
