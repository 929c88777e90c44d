"""Is another answer worth its price? Only where a pair can still come of it, by the tiers and the
evidence that the settings ask for.

    why_no_pair(place, num_families=3, min_families=3, need_evidence=True, gaps=False)     # "no_evidence": nobody is asked
    still_open(place, left=1, min_families=3, tiers=("exact", "target"))   # False: no answer that may still come makes a pair, or stops one

Nothing is compared here in another way than agree.py compares it. What a judge would say is not
known yet: any two messages that are not the same word for word may be the same to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from composer_replication.core.site import Answer
from composer_replication.data.replay.agree import (
    MIN_AGREED,
    AnsweredTurn,
    Tier,
    action_key,
    supporters,
)


def usable(answer: Answer, *, min_confidence: float = 0.0) -> bool:
    """Whether an answer says something: it has no problem, and its model was as sure as it has to
    be, where that is known."""
    return not answer.problem and (answer.confidence is None or answer.confidence >= min_confidence)


def why_no_pair(
    place: AnsweredTurn, *, num_families: int, min_families: int, need_evidence: bool, gaps: bool
) -> str:
    """Why no answers at all make a pair of a place: after_error, no_evidence, too_few_families, or
    "" where they may.

    `num_families` are those that can answer, without the student's own. `gaps`: an environment can
    measure whether another message leads further, which is evidence too.
    """
    if place.after_error:
        return "after_error"
    if need_evidence and not gaps and not place.evidence:
        return "no_evidence"
    return "too_few_families" if num_families < min_families else ""


def agrees(place: AnsweredTurn, answer: Answer, *, tiers: Sequence[Tier] = ("exact",)) -> bool:
    """Whether an answer does what the student did, whichever of the tiers looks at it."""
    reads = [action_key(tier, place.comparison) for tier in tiers]
    return all(read(answer.turn) == read(place.student_turn) for read in reads)


def still_open(
    place: AnsweredTurn,
    *,
    left: int,
    min_families: int,
    tiers: Sequence[Tier] = ("exact",),
    min_confidence: float = 0.0,
) -> bool:
    """Whether to ask the next of `left` teachers of families that have not been asked, after the
    answers at a place.

    Not where the first that could be used did what the student did: others who contradict both are
    rare, and few of them are right. Not where so many agree on something else that those left
    cannot change it, and not where no action can reach `min_families` at any tier.
    """
    sure = [answer for answer in _others(place) if usable(answer, min_confidence=min_confidence)]
    if not sure:
        return left >= min_families
    if not left or agrees(place, sure[0], tiers=tiers):
        return False
    may_agree = False
    # in the order of agree.py: where a stricter one decides, no looser one is looked at
    for tier in tiers:
        votes = _votes(place, sure, tier)
        if votes.is_pair(left, min_families=min_families):
            return may_agree  # only a stricter tier can still stop it
        if votes.is_agreed(left) and not place.erred:
            return False
        if votes.may_pair(left, min_families=min_families):
            return True
        may_agree = may_agree or (not place.erred and votes.may_agree(left))
    return False


def worth_judging(
    place: AnsweredTurn, *, min_families: int, need_evidence: bool, gaps: bool
) -> bool:
    """Whether a judge could make a pair of the answers at a place, if it found those the same that
    are not the student's."""
    others = _others(place)
    num_families = len({answer.family for answer in others})
    if why_no_pair(
        place,
        num_families=num_families,
        min_families=min_families,
        need_evidence=need_evidence,
        gaps=gaps,
    ):
        return False
    return _votes(place, others, "judge").may_pair(0, min_families=min_families)


def _others(place: AnsweredTurn) -> list[Answer]:
    """The answers that count: those of another family than the student's, whoever was asked."""
    return [
        answer
        for answer in place.answers
        if not place.student_family or answer.family != place.student_family
    ]


@dataclass(frozen=True, slots=True)
class _Votes:
    """How many families do what the student did, what most of the others do, and what the next most
    do."""

    own: int
    most: int
    second: int
    to_be_judged: bool

    def may_pair(self, left: int, *, min_families: int) -> bool:
        """Whether a pair comes of it if all who are left say what most of the others say."""
        return (
            self.most + left >= min_families
            and self.most + left > self.own
            and (left > 0 or self.most > self.second)
        )

    def is_pair(self, left: int, *, min_families: int) -> bool:
        """Whether it is a pair whatever those say who are left."""
        return (
            not self.to_be_judged
            and self.most >= min_families
            and self.most > max(self.own, self.second) + left
        )

    def is_agreed(self, left: int) -> bool:
        """Whether it is agreement with the student whatever those say who are left."""
        return not self.to_be_judged and self.own >= MIN_AGREED and self.own > self.most + left

    def may_agree(self, left: int) -> bool:
        """Whether it is agreement with the student if all who are left do the same."""
        return self.own + left >= MIN_AGREED and self.own + left > self.most


def _votes(place: AnsweredTurn, answers: Sequence[Answer], tier: Tier) -> _Votes:
    read = action_key(tier, place.comparison)
    done, votes = read(place.student_turn), supporters(answers, read)
    own = len(votes.get(done, ()))
    sizes = sorted(
        (len(families) for action, families in votes.items() if action != done), reverse=True
    )
    if tier == "judge":  # a judge may put all of them together
        return _Votes(own, sum(sizes), 0, to_be_judged=True)
    most, second, *_ = (*sizes, 0, 0)
    return _Votes(own, most, second, to_be_judged=False)
