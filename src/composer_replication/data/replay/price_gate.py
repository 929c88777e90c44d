"""Is another answer worth its price? Only if it can still decide whether a turn becomes a pair.

    why_no_pair(answered, num_families=3, min_families=3, ...)               # "no_evidence"
    still_open(answered, left=1, min_families=3, tiers=("exact", "target"))  # False: no use asking

Messages are compared exactly as agree.py compares them. A judge's verdict is not known yet: it may
equate any two messages that are not identical.
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
    of_other_families,
    supporters,
)


def is_usable(answer: Answer, *, min_confidence: float = 0.0) -> bool:
    """Return whether an answer has no problem and, if its confidence is known, enough of it."""
    return not answer.problem and (answer.confidence is None or answer.confidence >= min_confidence)


def why_no_pair(
    answered: AnsweredTurn, *, num_families: int, min_families: int, need_evidence: bool, gaps: bool
) -> str:
    """Return why no pair is possible: after_error, no_evidence, too_few_families; else "".

    `num_families` counts those that can answer, without the student's. `gaps`: an environment can
    measure whether another message leads further, which is evidence too.
    """
    if answered.after_error:
        return "after_error"
    if need_evidence and not gaps and not answered.evidence:
        return "no_evidence"
    return "too_few_families" if num_families < min_families else ""


def matches_student(
    answered: AnsweredTurn, answer: Answer, *, tiers: Sequence[Tier] = ("exact",)
) -> bool:
    """Return whether an answer does what the student did, at every one of the tiers."""
    keys = [action_key(tier, answered.comparison) for tier in tiers]
    return all(key(answer.turn) == key(answered.student_turn) for key in keys)


def still_open(
    answered: AnsweredTurn,
    *,
    left: int,
    min_families: int,
    tiers: Sequence[Tier] = ("exact",),
    min_confidence: float = 0.0,
) -> bool:
    """Return whether to ask another teacher, with `left` families that have not answered yet.

    No if the first usable answer did what the student did: later answers that contradict both are
    rare, and few of them are right. No if so many families agree that the remaining ones cannot
    change the outcome, and no if no action can reach `min_families` at any tier.
    """
    others = of_other_families(answered.answers, answered.student_family)
    usable_answers = [a for a in others if is_usable(a, min_confidence=min_confidence)]
    if not usable_answers:
        return left >= min_families
    if not left or matches_student(answered, usable_answers[0], tiers=tiers):
        return False
    may_agree = False
    # The order of agree.py: once a stricter tier decides, no looser one counts.
    for tier in tiers:
        votes = _count_votes(answered, usable_answers, tier)
        if votes.is_pair(left, min_families=min_families):
            return may_agree  # only a stricter tier can still prevent the pair
        if votes.is_agreed(left) and not answered.erred:
            return False
        if votes.may_pair(left, min_families=min_families):
            return True
        may_agree = may_agree or (not answered.erred and votes.may_agree(left))
    return False


def judge_may_decide(
    answered: AnsweredTurn, *, min_families: int, need_evidence: bool, gaps: bool
) -> bool:
    """Return whether a pair results if a judge equates all answers unlike the student's."""
    others = of_other_families(answered.answers, answered.student_family)
    num_families = len({answer.family for answer in others})
    if why_no_pair(
        answered,
        num_families=num_families,
        min_families=min_families,
        need_evidence=need_evidence,
        gaps=gaps,
    ):
        return False
    return _count_votes(answered, others, "judge").may_pair(0, min_families=min_families)


@dataclass(frozen=True, slots=True)
class _Votes:
    """The families that did what the student did, and those of the two most common other actions.

    With `to_be_judged`, `most` is an upper bound: a judge may still merge or separate actions.
    """

    student: int
    most: int
    second: int
    to_be_judged: bool

    def may_pair(self, left: int, *, min_families: int) -> bool:
        """Return whether it is a pair if all `left` families give the most common other action."""
        return (
            self.most + left >= min_families
            and self.most + left > self.student
            and (left > 0 or self.most > self.second)
        )

    def is_pair(self, left: int, *, min_families: int) -> bool:
        """Return whether it is a pair whatever the `left` families answer."""
        return (
            not self.to_be_judged
            and self.most >= min_families
            and self.most > max(self.student, self.second) + left
        )

    def is_agreed(self, left: int) -> bool:
        """Return whether it is agreement with the student whatever the `left` families answer."""
        return (
            not self.to_be_judged and self.student >= MIN_AGREED and self.student > self.most + left
        )

    def may_agree(self, left: int) -> bool:
        """Return whether it is agreement with the student if all `left` families join it."""
        return self.student + left >= MIN_AGREED and self.student + left > self.most


def _count_votes(answered: AnsweredTurn, answers: Sequence[Answer], tier: Tier) -> _Votes:
    key = action_key(tier, answered.comparison)
    student_action, votes = key(answered.student_turn), supporters(answers, key)
    student = len(votes.get(student_action, ()))
    sizes = sorted(
        (len(families) for action, families in votes.items() if action != student_action),
        reverse=True,
    )
    if tier == "judge":  # a judge may merge all of them
        return _Votes(student, sum(sizes), 0, to_be_judged=True)
    most, second, *_ = (*sizes, 0, 0)
    return _Votes(student, most, second, to_be_judged=False)
