"""Do the answers agree? Compared in tiers from strict to loose; families have votes, models have
not; and a pair needs more than votes.

    verdict = agree(own, answers, min_families=3)
    verdict.outcome          # "pair": `verdict.chosen` is preferred to what the student did
    verdict.record()         # tier, families, evidence and prices, as they are stored on the pair

Families are counted, not models: models of one family make the same mistakes, and agreement of many
models is weak evidence anyhow (Correlated Errors, arXiv 2506.07962). With two of three, slips of
the teachers gave wrong majorities at 5-8 % of the places, which was enough to destroy the student;
so the default of `replay.min_families` is unanimity of three. For the same reason agreement alone
can be asked to bring evidence: an error that the student's own call raised, or a gap that somebody
measured.

Tiers: "exact" (the same would be done), "target" (the same kind of tool on the same file or
program), "intent" (the same sort of step), "judge" (a model says so). A looser tier is looked at
only where the stricter ones gave nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
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
"""So many families must give the student's own action before they count as agreeing with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Somebody who says whether two messages amount to the same; None = undecided, which counts as
    no.

    A judge of the student's family, or of a family whose answer it would judge, favours its own
    (Preference Leakage, arXiv 2502.01534): such a judge is not asked. `name` and `usd` are who it
    is and what it was paid at this place, for the pair's record.
    Example: Judge(family="mistral", same=lambda one, other: one.text == other.text)
    """

    family: str
    same: Callable[[Turn, Turn], bool | None]
    name: str = ""
    usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What came of the answers at one turn.

    "pair": `chosen` was given by at least `min_families` families and is not what the student did.
    "agreed": at least two families did what the student did, and no other action has as many.
    "no_consensus": neither, and no other action has a majority against the student's. "none": no
    pair and no anchor, for `reason`: no_text_or_call (the student did nothing that could be
    compared), too_few_families (fewer than two that are not the student's own), outvoted (at least
    two families, and more than gave the student's action, gave another one: too few for a pair, too
    many for an anchor), after_error (the environment had just said what was wrong, so the student
    was told and the teachers, too), erred (its own call raised an error: never an anchor, even
    where the teachers would have made the same mistake), no_evidence (the families agree on another
    action, and nothing but their agreement speaks for it). `families` are those that gave `chosen`
    or, for "agreed", the student's action; `prices` are the dollars paid to every teacher here and
    to the judge; `judge` is who that was, where its word decided.
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

    def record(self) -> dict[str, Any]:
        """What is stored on a pair, e.g. {"tier": "exact", "families": ["a", "b"], "of": 3,
        "evidence": ["own_errored"], "usd": {...}}."""
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
    """One turn, what the student did there, and what the teachers would have done."""

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
    """`agree` on a place, e.g. weigh_answers(place, min_families=3).outcome -> "pair"."""
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

    `own_family` is the family of the turn's author: its answers are left out, and counted.
    `after_error`: the turn follows an error result; only agreement counts there. `erred`: the
    turn's own call raised an error; it can lose a pair, but is no anchor. `evidence` names what
    else speaks against the student's action; with `need_evidence` there is no pair without any.
    """
    others = [answer for answer in answers if not student_family or answer.family != student_family]
    prices: dict[str, float] = defaultdict(float)
    for answer in answers:
        prices[answer.teacher] += answer.usd
    if judge is not None and judge.usd:
        prices[judge.name] += judge.usd
    num_families = len({answer.family for answer in others})
    told = partial(
        Agreement,
        num_families=num_families,
        num_own_family=len(answers) - len(others),
        evidence=tuple(evidence),
        prices=dict(prices),
    )
    if not canonical_action(student_turn, comparison).parts:
        return told(outcome="none", reason="no_text_or_call")
    if num_families < MIN_AGREED:
        return told(outcome="none", reason="too_few_families")
    first: Agreement | None = None
    for tier in tiers:
        read = _reader(
            tier, student_turn, others, scene=comparison, judge=judge, own_family=student_family
        )
        if read is None:
            continue
        by = judge.name if tier == "judge" and judge is not None else ""
        verdict = _weigh(
            student_turn,
            others,
            read,
            partial(told, tier=tier, judge=by),
            min_families=min_families,
            after_error=after_error,
            erred=erred,
        )
        if verdict.outcome == "pair" and need_evidence and not evidence:
            return told(outcome="none", reason="no_evidence", tier=tier)
        if verdict.outcome in ("pair", "agreed") or verdict.reason == "after_error":
            return verdict
        first = first or verdict
    return first or told(outcome="none", reason="no_judge")


ActionKey = Callable[[Turn], Hashable]
"""What a tier reads of a message: equal readings are one vote; a false one is none."""


def action_key(tier: Tier, scene: ComparisonContext = NO_CONTEXT) -> ActionKey:
    """How a tier compares messages without asking anybody; what a judge would put together is read
    exactly here.

    Example: read = action_key("target"); read(one) == read(other)
    """
    if tier == "target":
        return lambda turn: tool_targets(turn, scene)
    if tier == "intent":
        return lambda turn: intents(turn, scene)
    return lambda turn: canonical_action(turn, scene).parts


def _reader(
    tier: Tier,
    own: Turn,
    answers: Sequence[Answer],
    *,
    scene: ComparisonContext,
    judge: Judge | None,
    own_family: str,
) -> ActionKey | None:
    if tier != "judge":
        return action_key(tier, scene)
    families = {own_family, *(answer.family for answer in answers)}
    return (
        _judged(own, answers, judge, scene=scene)
        if judge is not None and judge.family not in families
        else None
    )


def _judged(
    own: Turn, answers: Sequence[Answer], judge: Judge, *, scene: ComparisonContext
) -> ActionKey:
    """Groups as a judge sees them: each message joins the first group whose first message it is the
    same as."""
    leaders: list[Turn] = []
    group: dict[MessageAction, int] = {}
    for turn in (own, *(answer.turn for answer in answers)):
        action = canonical_action(turn, scene)
        if not action.parts or action in group:
            continue
        found = next(
            (number for number, leader in enumerate(leaders) if judge.same(leader, turn)),
            len(leaders),
        )
        if found == len(leaders):
            leaders.append(turn)
        group[action] = found
    return lambda turn: (
        str(group[action]) if (action := canonical_action(turn, scene)).parts else ""
    )


def _weigh(
    own: Turn,
    others: Sequence[Answer],
    read: ActionKey,
    told: Callable[..., Agreement],
    *,
    min_families: int,
    after_error: bool,
    erred: bool,
) -> Agreement:
    """The verdict of one tier."""
    done, votes = read(own), supporters(others, read)
    own_families = votes.get(done, frozenset())
    rivals = {action: families for action, families in votes.items() if action != done}
    most = max(map(len, rivals.values()), default=0)
    best = [action for action, families in rivals.items() if len(families) == most]
    if most >= min_families and len(best) == 1 and most > len(own_families):
        if after_error:
            return told(outcome="none", reason="after_error")
        given = [
            answer
            for answer in others
            if read(answer.turn) == best[0] and answer.family in rivals[best[0]]
        ]
        return told(
            outcome="pair",
            chosen=_commonest(given),
            families=_sorted(rivals[best[0]]),
            teachers=_teachers(given),
        )
    if erred:
        return told(outcome="none", reason="erred")
    if len(own_families) >= MIN_AGREED and most < len(own_families):
        given = [
            answer
            for answer in others
            if read(answer.turn) == done and answer.family in own_families
        ]
        return told(outcome="agreed", families=_sorted(own_families), teachers=_teachers(given))
    if after_error:
        return told(outcome="none", reason="after_error")
    if most >= MIN_AGREED and most > len(own_families):
        return told(outcome="none", reason="outvoted")
    return told(outcome="no_consensus", teachers=_teachers(others))


def supporters(answers: Sequence[Answer], read: ActionKey) -> dict[Hashable, frozenset[str]]:
    """Which families gave an action. A family has one vote: what most of its models did; where they
    are divided, it has none."""
    by_family: dict[str, Counter[Hashable]] = defaultdict(Counter)
    for answer in answers:
        by_family[answer.family][read(answer.turn)] += 1
    votes: dict[Hashable, set[str]] = defaultdict(set)
    for family, actions in by_family.items():
        first, *rest = actions.most_common(2)
        if first[0] and (not rest or rest[0][1] < first[1]):
            votes[first[0]].add(family)
    return {action: frozenset(families) for action, families in votes.items()}


def _commonest(answers: Sequence[Answer]) -> Answer:
    """The answer whose very action most of them gave; of equals the first."""
    counts = Counter(canonical_action(answer.turn) for answer in answers)
    return max(answers, key=lambda answer: counts[canonical_action(answer.turn)])


def _sorted(families: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(families))


def _teachers(answers: Sequence[Answer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer.teacher for answer in answers))
