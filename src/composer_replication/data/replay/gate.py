"""Is another answer worth its price? What those so far decide already, nobody else is asked for.

still_open(own, answers, left=1, min_families=3)      # False: no answer that may still come makes a pair, or stops one
"""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.core.site import Answer
from composer_replication.core.trace import Turn
from composer_replication.data.replay.actions import NOWHERE, Scene, canonical


def usable(answer: Answer, *, min_confidence: float = 0.0) -> bool:
    """Whether an answer says something: it has no problem, and its model was as sure as it has to be, where that is known."""
    return not answer.problem and (answer.confidence is None or answer.confidence >= min_confidence)


def same_action(one: Turn, other: Turn, scene: Scene = NOWHERE) -> bool:
    """Whether two messages do the same, e.g. whatever they say beside the same call."""
    return canonical(one, scene) == canonical(other, scene)


def still_open(
    own: Turn, answers: Sequence[Answer], *, left: int, min_families: int, min_confidence: float = 0.0, scene: Scene = NOWHERE
) -> bool:
    """Whether to ask the next of `left` teachers of families that have not been asked, after these answers of one per family.

    Not where the first that could be used did what the student did: others who contradict both are rare, and few of them are right. Not
    where so many agree on something else that those left cannot change it, and not where no action can reach `min_families` any more.
    """
    sure = [answer for answer in answers if usable(answer, min_confidence=min_confidence)]
    if not sure:
        return left >= min_families
    if same_action(sure[0].turn, own, scene):
        return False
    votes: dict[object, set[str]] = {}
    for answer in sure:
        votes.setdefault(canonical(answer.turn, scene), set()).add(answer.family)
    supporters = len(votes.pop(canonical(own, scene), set()))
    most = max(map(len, votes.values()), default=0)
    if most >= min_families and most > supporters + left:
        return False
    return most + left >= min_families
