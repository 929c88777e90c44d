"""Judge pairs one by one, and single answers during replay; name the operator that drops one.

    curator = Curator(load_recipe("default"))
    for pair in pairs:
        if dropped := curator.judge(pair):
            dropped.reason, dropped.detail  # "tool_offered_filter", "chosen: there is no tool 'X'"
    curator.report()                        # kept, dropped by reason and by split

Held-out pairs come first: a training pair that repeats one is then dropped as its duplicate, not
the other way round.
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
from composer_replication.data.curate.language import guess_language
from composer_replication.data.curate.pair import Pair, PairSide, side_of
from composer_replication.data.curate.recipe import EXACT, NEAR, Recipe, RecipeStep
from composer_replication.data.curate.similarity import Likeness, likeness_by
from composer_replication.data.curate.statistics import STATISTICS

Check = Callable[[Pair], str]
"""Returns what is wrong with a pair, "" = nothing."""
BoundCheck = Callable[[PairSide], str]
"""Returns how a statistic of one message is out of bounds, "" = it is within them."""
TemplateCheck = Callable[[Pair], str]
"""Returns why a student's chat template cannot render a pair, "" = it can."""
LEAKS = "leaks_held_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A pair that is not trained on: the operator that dropped it, and the operator's reason."""

    pair_id: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropReport:
    """The numbers of pairs dropped by reason and kept by split, and of sessions with kept pairs."""

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
    """Applies a recipe to pairs.

    `renders` tries a student's chat template; without it the operator for that is listed in `idle`.
    """

    recipe: Recipe
    renders: TemplateCheck | None = None
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    idle: tuple[str, ...] = ()
    _checks: list[tuple[str, Check]] = field(default_factory=list)
    _answer_checks: list[tuple[str, BoundCheck | None]] = field(default_factory=list)
    _held_out: set[str] = field(default_factory=set)
    _units: dict[str, set[str]] = field(
        default_factory=lambda: {"session": set(), "repository": set()}
    )
    _kept_any_training: bool = False

    def __post_init__(self) -> None:
        for step in self.recipe.steps:
            if (step.name in STATISTICS and step.side != "rejected") or step.name in _SIDE_CHECKS:
                self._answer_checks.append(
                    (step.name, _bound_check(step) if step.name in STATISTICS else None)
                )
            if step.name == "chat_template_filter" and self.renders is None:
                self.idle = (*self.idle, step.name)
            else:
                self._checks.append((step.name, self._make_check(step)))

    def judge(self, pair: Pair) -> Dropped | None:
        """Return what the first objecting operator says about a pair; None if the pair is kept."""
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
        """Return the recipe's objection to a single answer before it votes, "" if there is none.

        Operators that compare messages or look for duplicates are not applied.
        """
        side = side_of(turn)
        for name, count in self._answer_checks:
            if detail := _SIDE_CHECKS[name](side, tools) if count is None else count(side):
                self.refused[name] += 1
                return f"{name}: {detail}"
        return ""

    def report(self) -> DropReport:
        """Return the numbers of pairs kept and dropped so far."""
        num_kept = {side: self.counts[f"kept {side}"] for side in ("train", "held_out")}
        dropped = {
            reason: count
            for reason, count in self.counts.most_common()
            if not reason.startswith("kept ")
        }
        return DropReport(
            recipe=self.recipe.name,
            pairs=sum(self.counts.values()),
            kept=sum(num_kept.values()),
            dropped=dropped,
            kept_train=num_kept["train"],
            kept_held_out=num_kept["held_out"],
            sessions=len(self._units["session"]),
            repositories=len(self._units["repository"]),
            answers_refused=dict(self.refused),
        )

    def _make_check(self, step: RecipeStep) -> Check:
        parameters = step.parameters
        if step.name in STATISTICS:
            return partial(_check_bound, _bound_check(step), step.side)
        if step.name in _SIDE_CHECKS:
            is_pair_check = step.name == "answer_not_empty_filter"
            return partial(_check_sides, _SIDE_CHECKS[step.name], is_pair_check)
        if step.name == EXACT:
            return _exact_check(ExactDuplicates(), parameters)
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


def _check_bound(bound_check: BoundCheck, side_name: str, pair: Pair) -> str:
    """Check each side by its own number, never by the other side's."""
    for name, side in pair.sides_of(side_name):
        if detail := bound_check(side):
            return f"{name}: {detail}"
    return ""


def _bound_check(step: RecipeStep) -> BoundCheck:
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


def _check_sides(check: structure.SideCheck, on_both_sides: bool, pair: Pair) -> str:
    for name, side in pair.sides if on_both_sides else pair.sides[:1]:
        if detail := check(side, pair.tools):
            return f"{name}: {detail}"
    return ""


def _exact_check(duplicates: ExactDuplicates, parameters: Mapping[str, Any]) -> Check:
    settings = {name: parameters[name] for name in ("lowercase", "ignore_non_character")}
    return lambda pair: duplicates.first(
        key_of(pair, side=parameters["text_key"], **settings), pair.id
    )


def _evidence_check(parameters: Mapping[str, Any]) -> Check:
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


def _same_language_check(parameters: Mapping[str, Any]) -> Check:
    def check(pair: Pair) -> str:
        if not pair.chosen.prose or not pair.rejected.prose:
            return ""
        chosen = guess_language(pair.chosen.prose)
        if not chosen.language or chosen.score < parameters["min_score"]:
            return ""
        rejected = guess_language(pair.rejected.prose)
        is_sure = rejected.language and rejected.score >= parameters["min_score"]
        return (
            f"chosen is {chosen.language}, rejected {rejected.language}"
            if is_sure and chosen.language != rejected.language
            else ""
        )

    return check


def _language_check(parameters: Mapping[str, Any]) -> Check:
    wanted = [parameters["lang"]] if isinstance(parameters["lang"], str) else parameters["lang"]

    def check(pair: Pair) -> str:
        for name, side in pair.sides:
            guess = guess_language(side.prose)
            if (
                guess.language
                and guess.score >= parameters["min_score"]
                and guess.language not in wanted
            ):
                return f"{name}: {guess.language}"
        return ""

    return check


def _disagreement_check(parameters: Mapping[str, Any]) -> Check:
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
    "evidence_filter": _evidence_check,
    "same_language_filter": _same_language_check,
    "language_id_score_filter": _language_check,
    "disagreement_filter": _disagreement_check,
}
