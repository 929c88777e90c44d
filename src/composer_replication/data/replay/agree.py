"""Weigh the answers to one turn: do enough model families agree on something better?

    verdict = agree(student_turn, answers, min_families=3)
    verdict.outcome          # "pair": `verdict.chosen` is preferred to what the student did
    verdict.record()         # tier, families, evidence and prices, as they are stored on the pair

A family has one vote, however many of its models answer: models of one family make the same
mistakes, and agreement of many models is weak evidence anyhow (Correlated Errors, arXiv
2506.07962). With two of three, slips of the teachers gave wrong majorities at 5-8 % of the turns,
which was enough to destroy the student; so the default of `replay.min_families` is unanimity of
three. For the same reason a pair can be made to need evidence besides the votes: an error that the
student's own call raised, or a measured gap.

The tiers, from strict to loose: "exact" (both do the same), "target" (the same kind of tool on the
same file or program), "intent" (the same kind of step), "judge" (a model says so). A looser tier
counts only if the stricter ones decided nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

from composer_replication.core.site import Answer
from composer_replication.core.trace import Turn
from composer_replication.data.replay.actions import (
    NO_CONTEXT,
    ComparisonContext,
    MessageAction,
    canonical_action,
    intents,
    tool_targets,
)

Outcome = Literal["pair", "agreed", "no_consensus", "none"]
Tier = Literal["exact", "target", "intent", "judge"]
TIERS: tuple[Tier, ...] = get_args(Tier)
MIN_AGREED = 2
"""The fewest families that agree with the student: one alone is no agreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A model that says whether two messages are the same step; None = undecided, counts as no.

    A judge of the student's family, or of a family whose answer it would compare, favours its own
    (Preference Leakage, arXiv 2502.01534): such a judge is not asked. `name` and `usd`, what it was
    paid at this turn, are for the pair's record.
    Example: Judge(family="mistral", same=lambda first, second: first.text == second.text)
    """

    family: str
    same: Callable[[Turn, Turn], bool | None]
    name: str = ""
    usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The verdict on the answers to one turn.

    Outcomes: "pair": at least `min_families` families gave `chosen`, and the student did something
    else. "agreed": at least two families did what the student did, and no other action has as many.
    "no_consensus": neither, and no other action has a majority against the student's. "none": no
    pair and no anchor, for one of these reasons:

    - no_text_or_call: the student did nothing that could be compared
    - too_few_families: fewer than two families besides the student's own answered
    - outvoted: at least two families, more than gave the student's action, gave another one: too
      few for a pair, too many for an anchor
    - after_error: the environment had just reported the error to student and teachers alike
    - erred: the student's call raised an error, so the turn is no anchor even if the teachers would
      have made the same mistake
    - no_evidence: nothing but agreement speaks for the other action, and evidence is required
    - no_judge: the only tier was the judge, and none may be asked

    `families` are those that gave `chosen` or, for "agreed", the student's action; `prices` are the
    dollars paid at this turn, by teacher and judge; `judge` names the judge if its word decided.
    `votes` are the actions that teachers voted for at `tier`: 0 is the student's, the others are
    numbered from the one with the most families; a teacher without a vote is not in it.
    """

    outcome: Outcome
    reason: str = ""
    tier: Tier = "exact"
    chosen: Answer | None = None
    families: tuple[str, ...] = ()
    teachers: tuple[str, ...] = ()
    num_families: int = 0
    num_own_family: int = 0
    evidence: tuple[str, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict)
    judge: str = ""
    votes: Mapping[str, int] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return what is stored on a pair.

        >>> Agreement(outcome="pair", families=("a", "b"), num_families=3).record()["of"]
        3
        """
        families = {"tier": self.tier, "families": list(self.families), "of": self.num_families}
        if self.judge:
            families["judge"] = self.judge
        return {
            **families,
            "own_family_left_out": self.num_own_family,
            "evidence": list(self.evidence),
            "usd": dict(self.prices),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredTurn:
    """A turn, what the student did there, and what the teachers would have done."""

    session_id: str
    turn: int
    student_turn: Turn
    answers: tuple[Answer, ...]
    comparison: ComparisonContext = NO_CONTEXT
    student_family: str = ""
    after_error: bool = False
    erred: bool = False
    evidence: tuple[str, ...] = ()


def weigh_answers(
    answered: AnsweredTurn,
    *,
    min_families: int,
    tiers: Sequence[Tier] = ("exact",),
    judge: Judge | None = None,
    need_evidence: bool = False,
) -> Agreement:
    """Call `agree` with the fields of an answered turn."""
    return agree(
        answered.student_turn,
        answered.answers,
        min_families=min_families,
        student_family=answered.student_family,
        after_error=answered.after_error,
        erred=answered.erred,
        comparison=answered.comparison,
        tiers=tiers,
        judge=judge,
        evidence=answered.evidence,
        need_evidence=need_evidence,
    )


def agree(
    student_turn: Turn,
    answers: Sequence[Answer],
    *,
    min_families: int,
    student_family: str = "",
    after_error: bool = False,
    erred: bool = False,
    comparison: ComparisonContext = NO_CONTEXT,
    tiers: Sequence[Tier] = ("exact",),
    judge: Judge | None = None,
    evidence: Sequence[str] = (),
    need_evidence: bool = False,
) -> Agreement:
    """Weigh the answers to one turn against what the student did there.

    `student_family` is the family of the turn's author: its answers are left out, and counted.
    `after_error`: the turn follows an error result; it can be an anchor, but no pair. `erred`: the
    turn's own call raised an error; it can make a pair, but no anchor. `evidence` names what else
    speaks against the student's action; with `need_evidence` there is no pair without any.
    """
    others = of_other_families(answers, student_family)
    prices: dict[str, float] = defaultdict(float)
    for answer in answers:
        prices[answer.teacher] += answer.usd
    if judge is not None and judge.usd:
        prices[judge.name] += judge.usd
    num_families = len({answer.family for answer in others})
    verdict_of = partial(
        Agreement,
        num_families=num_families,
        num_own_family=len(answers) - len(others),
        evidence=tuple(evidence),
        prices=dict(prices),
    )
    if not canonical_action(student_turn, comparison).parts:
        return verdict_of(outcome="none", reason="no_text_or_call")
    if num_families < MIN_AGREED:
        return verdict_of(outcome="none", reason="too_few_families")
    # The strictest tier that decides wins; if none does, the strictest tier's reason is reported.
    first_undecided: Agreement | None = None
    for tier in tiers:
        key = _key_of_tier(
            tier,
            student_turn,
            others,
            comparison=comparison,
            judge=judge,
            student_family=student_family,
        )
        if key is None:
            continue
        judge_name = judge.name if tier == "judge" and judge is not None else ""
        verdict = _weigh_tier(
            student_turn,
            others,
            key,
            partial(verdict_of, tier=tier, judge=judge_name),
            min_families=min_families,
            after_error=after_error,
            erred=erred,
        )
        if verdict.outcome == "pair" and need_evidence and not evidence:
            return replace(verdict, outcome="none", reason="no_evidence", chosen=None)
        if verdict.outcome in ("pair", "agreed") or verdict.reason == "after_error":
            return verdict
        first_undecided = first_undecided or verdict
    return first_undecided or verdict_of(outcome="none", reason="no_judge")


ActionKey = Callable[[Turn], Hashable]
"""The key by which a tier compares messages: equal keys are the same vote, an empty key is none."""


def of_other_families(answers: Iterable[Answer], student_family: str) -> list[Answer]:
    """Return the answers that count: those of families other than the student's ("" = unknown)."""
    return [answer for answer in answers if not student_family or answer.family != student_family]


def action_key(tier: Tier, comparison: ComparisonContext = NO_CONTEXT) -> ActionKey:
    """Return the key function of a tier, with "exact" in place of "judge": nobody is asked here.

    Example: key = action_key("target"); key(first) == key(second)
    """
    if tier == "target":
        return lambda turn: tool_targets(turn, comparison)
    if tier == "intent":
        return lambda turn: intents(turn, comparison)
    return lambda turn: canonical_action(turn, comparison).parts


def _key_of_tier(
    tier: Tier,
    student_turn: Turn,
    answers: Sequence[Answer],
    *,
    comparison: ComparisonContext,
    judge: Judge | None,
    student_family: str,
) -> ActionKey | None:
    if tier != "judge":
        return action_key(tier, comparison)
    families = {student_family, *(answer.family for answer in answers)}
    return (
        _group_by_judge(student_turn, answers, judge, comparison=comparison)
        if judge is not None and judge.family not in families
        else None
    )


def _group_by_judge(
    student_turn: Turn, answers: Sequence[Answer], judge: Judge, *, comparison: ComparisonContext
) -> ActionKey:
    """Return a key by the judge's groups: a message joins the first leader that it equals."""
    leaders: list[Turn] = []
    group_of_action: dict[MessageAction, int] = {}
    for turn in (student_turn, *(answer.turn for answer in answers)):
        action = canonical_action(turn, comparison)
        if not action.parts or action in group_of_action:
            continue
        group_number = next(
            (number for number, leader in enumerate(leaders) if judge.same(leader, turn)),
            len(leaders),
        )
        if group_number == len(leaders):
            leaders.append(turn)
        group_of_action[action] = group_number
    return lambda turn: (
        str(group_of_action[action]) if (action := canonical_action(turn, comparison)).parts else ""
    )


def _weigh_tier(
    student_turn: Turn,
    others: Sequence[Answer],
    key: ActionKey,
    verdict_of: Callable[..., Agreement],
    *,
    min_families: int,
    after_error: bool,
    erred: bool,
) -> Agreement:
    """Return the verdict of one tier."""
    # 1. Count families per action, the student's apart from its rivals.
    student_action, votes = key(student_turn), supporters(others, key)
    student_votes = votes.get(student_action, frozenset())
    rivals = {action: families for action, families in votes.items() if action != student_action}
    most = max(map(len, rivals.values()), default=0)
    best = [action for action, families in rivals.items() if len(families) == most]
    verdict_of = partial(verdict_of, votes=_votes(others, key, votes, student_action))
    # 2. A pair: one rival has enough families and more than the student's action.
    if most >= min_families and len(best) == 1 and most > len(student_votes):
        if after_error:
            return verdict_of(outcome="none", reason="after_error")
        chosen_answers = [
            answer
            for answer in others
            if key(answer.turn) == best[0] and answer.family in rivals[best[0]]
        ]
        return verdict_of(
            outcome="pair",
            chosen=_most_common_answer(chosen_answers),
            families=tuple(sorted(rivals[best[0]])),
            teachers=_teacher_names(chosen_answers),
        )
    # 3. An anchor: at least two families join the student, whose call did not fail.
    if erred:
        return verdict_of(outcome="none", reason="erred")
    if len(student_votes) >= MIN_AGREED and most < len(student_votes):
        chosen_answers = [
            answer
            for answer in others
            if key(answer.turn) == student_action and answer.family in student_votes
        ]
        return verdict_of(
            outcome="agreed",
            families=tuple(sorted(student_votes)),
            teachers=_teacher_names(chosen_answers),
        )
    if after_error:
        return verdict_of(outcome="none", reason="after_error")
    if most >= MIN_AGREED and most > len(student_votes):
        return verdict_of(outcome="none", reason="outvoted")
    return verdict_of(outcome="no_consensus", teachers=_teacher_names(others))


def supporters(answers: Sequence[Answer], key: ActionKey) -> dict[Hashable, frozenset[str]]:
    """Return the families that gave each action.

    A family votes for what most of its models did; if they are divided, it has no vote.
    """
    by_family: dict[str, Counter[Hashable]] = defaultdict(Counter)
    for answer in answers:
        by_family[answer.family][key(answer.turn)] += 1
    votes: dict[Hashable, set[str]] = defaultdict(set)
    for family, actions in by_family.items():
        most_common, *runner_up = actions.most_common(2)
        if most_common[0] and (not runner_up or runner_up[0][1] < most_common[1]):
            votes[most_common[0]].add(family)
    return {action: frozenset(families) for action, families in votes.items()}


def _votes(
    answers: Sequence[Answer],
    key: ActionKey,
    votes: Mapping[Hashable, frozenset[str]],
    student_action: Hashable,
) -> dict[str, int]:
    """Return the number of the action for which each teacher's answer counted as a vote."""
    rivals = sorted((a for a in votes if a != student_action), key=lambda a: -len(votes[a]))
    numbers = {student_action: 0, **{action: i for i, action in enumerate(rivals, start=1)}}
    return {
        answer.teacher: numbers[action]
        for answer in answers
        if answer.family in votes.get(action := key(answer.turn), ())
    }


def _most_common_answer(answers: Sequence[Answer]) -> Answer:
    """Return the answer whose exact action most of them gave; of equals the first."""
    counts = Counter(canonical_action(answer.turn) for answer in answers)
    return max(answers, key=lambda answer: counts[canonical_action(answer.turn)])


def _teacher_names(answers: Sequence[Answer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer.teacher for answer in answers))
