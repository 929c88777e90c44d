"""Judges pairs one after the other, and single answers while replay runs; says of each dropped one
which operator dropped it and why.

    curator = Curator(load_recipe("default"))
    for pair in pairs:
        if dropped := curator.judge(pair):
            dropped.reason, dropped.detail         # "tool_offered_filter", "chosen: there is no tool 'Reed'"
    curator.report()                               # kept, dropped by reason, by side and by split

Held-out pairs have to come first where there are any: a training pair that stands there, too, then
drops as its duplicate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.trace import ToolSpec, Turn
from composer_replication.data.curate import structure
from composer_replication.data.curate.duplicates import ExactDuplicates, NearDuplicates, key_of
from composer_replication.data.curate.language import guess
from composer_replication.data.curate.pair import Pair, PairSide, side_of
from composer_replication.data.curate.recipe import EXACT, NEAR, Recipe, RecipeStep
from composer_replication.data.curate.similarity import Likeness, likeness_by
from composer_replication.data.curate.statistics import STATISTICS

Check = Callable[[Pair], str]
"""What is wrong with a pair, "" where nothing is."""
Count = Callable[[PairSide], str]
"""What a number of one message has against it, "" where it is within its bounds."""
Renders = Callable[[Pair], str]
"""What a student's chat template has against a pair, "" where it takes both messages."""
LEAKS = "leaks_held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A pair that is not trained on: which operator said so, and its words."""

    pair_id: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """What became of the pairs: dropped by reason, and kept by split; repositories and sessions
    that still have pairs."""

    recipe: str
    pairs: int
    kept: int
    dropped: Mapping[str, int]
    kept_train: int
    kept_held_out: int
    sessions: int
    repositories: int
    answers_refused: Mapping[str, int]


@dataclass(slots=True)
class Curator:
    """A recipe at work. `renders` tries a student's chat template; without it that operator has
    nothing to say, and says so in `idle`."""

    recipe: Recipe
    renders: Renders | None = None
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    idle: tuple[str, ...] = ()
    _checks: list[tuple[str, Check]] = field(default_factory=list)
    _counts: list[tuple[str, Count | None]] = field(default_factory=list)
    _held_out: set[str] = field(default_factory=set)
    _units: dict[str, set[str]] = field(
        default_factory=lambda: {"session": set(), "repository": set()}
    )
    _kept_any_training: bool = False

    def __post_init__(self) -> None:
        for step in self.recipe.steps:
            if (step.name in STATISTICS and step.side != "rejected") or step.name in _SIDE_CHECKS:
                self._counts.append(
                    (step.name, _count_of(step) if step.name in STATISTICS else None)
                )
            if step.name == "chat_template_filter" and self.renders is None:
                self.idle = (*self.idle, step.name)
            else:
                self._checks.append((step.name, self._check_of(step)))

    def judge(self, pair: Pair) -> Dropped | None:
        """The first operator that has something against a pair; None where the pair is kept."""
        if pair.held_out and self._kept_any_training:
            raise DataError(
                "a held-out pair came after training pairs",
                where=pair.id,
                fix="judge the held-out pairs first",
            )
        for name, check in self._checks:
            if detail := check(pair):
                reason = (
                    LEAKS
                    if name in (EXACT, NEAR) and not pair.held_out and detail in self._held_out
                    else name
                )
                self.counts[reason] += 1
                return Dropped(pair_id=pair.id, reason=reason, detail=detail)
        self._keep(pair)
        return None

    def _keep(self, pair: Pair) -> None:
        self.counts["kept held_out" if pair.held_out else "kept train"] += 1
        self._units["session"].add(pair.preference.session_id)
        self._units["repository"].add(pair.repository or pair.preference.session_id)
        if pair.held_out:
            self._held_out.add(pair.id)
        else:
            self._kept_any_training = True

    def check_answer(self, turn: Turn, *, tools: Mapping[str, ToolSpec]) -> str:
        """What the recipe has against an answer by itself, before it may vote: "" or
        "words_num_filter: 0 words ...".

        Operators that compare, and those of duplicates, have no say here.
        """
        side = side_of(turn)
        for name, count in self._counts:
            if detail := _SIDE_CHECKS[name](side, tools) if count is None else count(side):
                self.refused[name] += 1
                return f"{name}: {detail}"
        return ""

    def report(self) -> DropReport:
        """What became of the pairs so far."""
        kept = {side: self.counts[f"kept {side}"] for side in ("train", "held_out")}
        dropped = {
            reason: count
            for reason, count in self.counts.most_common()
            if not reason.startswith("kept ")
        }
        return DropReport(
            recipe=self.recipe.name,
            pairs=sum(self.counts.values()),
            kept=sum(kept.values()),
            dropped=dropped,
            kept_train=kept["train"],
            kept_held_out=kept["held_out"],
            sessions=len(self._units["session"]),
            repositories=len(self._units["repository"]),
            answers_refused=dict(self.refused),
        )

    def _check_of(self, step: RecipeStep) -> Check:
        parameters = step.parameters
        if step.name in STATISTICS:
            return partial(_statistic, _count_of(step), step.side)
        if step.name in _SIDE_CHECKS:
            both = step.name == "answer_not_empty_filter"
            return partial(_side_check, _SIDE_CHECKS[step.name], both)
        if step.name == EXACT:
            return _exact(ExactDuplicates(), parameters)
        if step.name == NEAR:
            window, threshold = parameters["window_size"], parameters["jaccard_threshold"]
            return NearDuplicates(
                threshold=threshold,
                window=window,
                lowercase=parameters["lowercase"],
                side=step.side,
            ).first
        if step.name == "chat_template_filter" and self.renders is not None:
            return self.renders
        return _PAIR_CHECKS[step.name](parameters)


def _statistic(count: Count, only: str, pair: Pair) -> str:
    """Every side is counted by itself: no number of one side is ever used for the other."""
    for name, side in pair.sides_of(only):
        if detail := count(side):
            return f"{name}: {detail}"
    return ""


def _count_of(step: RecipeStep) -> Count:
    statistic, parameters = STATISTICS[step.name], step.parameters
    words = (statistic.field if step.side else parameters["text_key"]) == "words"
    least, most = parameters[statistic.least[0]], parameters[statistic.most[0]]
    bound = statistic.bound if least <= 0 else None

    def count(side: PairSide) -> str:
        if words and side.calls:
            return ""
        text = side.words if words else side.text
        if bound is not None and bound(text, parameters) <= most:
            return ""
        value = statistic.count(text, parameters)
        if least <= value <= most:
            return ""
        return (
            f"{value:.3g} is below {least:g}" if value < least else f"{value:.6g} is above {most:g}"
        )

    return count


_SIDE_CHECKS: Mapping[str, structure.SideCheck] = {
    "answer_not_empty_filter": structure.no_action,
    "tool_offered_filter": structure.not_offered,
    "tool_arguments_filter": structure.misfitting,
    "call_ids_filter": structure.doubled_ids,
}


def _side_check(check: structure.SideCheck, both: bool, pair: Pair) -> str:
    for name, side in pair.sides if both else pair.sides[:1]:
        if detail := check(side, pair.tools):
            return f"{name}: {detail}"
    return ""


def _exact(seen: ExactDuplicates, parameters: Mapping[str, Any]) -> Check:
    how = {name: parameters[name] for name in ("lowercase", "ignore_non_character")}
    return lambda pair: seen.first(key_of(pair, side=parameters["text_key"], **how), pair.id)


def _evidence(parameters: Mapping[str, Any]) -> Check:
    def check(pair: Pair) -> str:
        evidence = pair.preference.evidence
        if parameters["need"] and not evidence.get("evidence"):
            return "nothing but agreement speaks for it"
        tier = evidence.get("tier", "")
        return (
            ""
            if tier in parameters["tiers"]
            else f"the answers agree by {tier or 'nothing known'} only"
        )

    return check


def _same_language(parameters: Mapping[str, Any]) -> Check:
    def check(pair: Pair) -> str:
        if not pair.chosen.prose or not pair.rejected.prose:
            return ""
        chosen = guess(pair.chosen.prose)
        if not chosen.language or chosen.score < parameters["min_score"]:
            return ""
        rejected = guess(pair.rejected.prose)
        sure = rejected.language and rejected.score >= parameters["min_score"]
        return (
            f"chosen is {chosen.language}, rejected {rejected.language}"
            if sure and chosen.language != rejected.language
            else ""
        )

    return check


def _language(parameters: Mapping[str, Any]) -> Check:
    wanted = [parameters["lang"]] if isinstance(parameters["lang"], str) else parameters["lang"]

    def check(pair: Pair) -> str:
        for name, side in pair.sides:
            found = guess(side.prose)
            if (
                found.language
                and found.score >= parameters["min_score"]
                and found.language not in wanted
            ):
                return f"{name}: {found.language}"
        return ""

    return check


def _disagreement(parameters: Mapping[str, Any]) -> Check:
    alike: Likeness = likeness_by(parameters["embed"], setting="disagreement_filter.embed")

    def check(pair: Pair) -> str:
        if parameters["field"] == "words" and (pair.chosen.calls or pair.rejected.calls):
            return ""
        value = alike(pair.chosen.text, pair.rejected.text)
        least, most = parameters["min_likeness"], parameters["max_likeness"]
        return (
            ""
            if least <= value <= most
            else f"likeness {value:.2f} is not within {least:g} and {most:g}"
        )

    return check


_PAIR_CHECKS: Mapping[str, Callable[[Mapping[str, Any]], Check]] = {
    "chosen_differs_filter": lambda parameters: structure.same_action,
    "chat_shape_filter": lambda parameters: structure.no_chat,
    "evidence_filter": _evidence,
    "same_language_filter": _same_language,
    "language_id_score_filter": _language,
    "disagreement_filter": _disagreement,
}
