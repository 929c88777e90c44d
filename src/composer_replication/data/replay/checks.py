"""Is the agreement worth anything? Two tests of a whole replay that cost nothing: shuffled
teachers, and one family left out.

    null_test(places, seed=7, weigh=...)         # answers dealt to other turns: the pair rate must collapse
    leave_one_out(places, weigh=...)             # the same pairs without each family in turn

A place is a turn with the answers that were given there; `weigh` is `agree` with the settings that
were used.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from composer_replication.core.site import Answer
from composer_replication.data.replay.actions import canonical_action
from composer_replication.data.replay.agree import Agreement, AnsweredTurn

MAX_NULL_SHARE = 0.5
"""A null rate above this share of the true one is no collapse: most of the pairs would come of any
answers."""


Weigh = Callable[[AnsweredTurn], Agreement]
"""`agree` with the settings of a replay, e.g. partial(weigh_place, min_families=3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullTest:
    """Pairs with the teachers' own answers and with shuffled ones; `passed` None = too little data
    to say."""

    places: int
    pairs: int
    null_pairs: float
    rounds: int
    passed: bool | None

    @property
    def rate(self) -> float:
        """Pairs per place."""
        return self.pairs / self.places if self.places else 0.0

    @property
    def null_rate(self) -> float:
        """Pairs per place when every teacher's answers are dealt to other places."""
        return self.null_pairs / self.places if self.places else 0.0


def null_test(
    places: Sequence[AnsweredTurn], *, weigh: Weigh, seed: int, rounds: int = 5
) -> NullTest:
    """Deal every teacher's answers to other places, each teacher's apart, and weigh again.

    Each teacher keeps its own habits, and only the link to the place is gone: what remains of the
    pairs is what its habits alone would have made ("everybody always runs the tests"). The rate
    must fall to at most half of the true one. With fewer than ten pairs, or where no answer could
    be dealt to another place, nothing is said.
    """
    pairs = sum(weigh(place).outcome == "pair" for place in places)
    null = [
        sum(weigh(place).outcome == "pair" for place in shuffled(places, seed=seed + number))
        for number in range(rounds)
    ]
    mean = sum(null) / rounds if rounds else 0.0
    enough = pairs >= 10 and rounds > 0
    return NullTest(
        places=len(places),
        pairs=pairs,
        null_pairs=mean,
        rounds=rounds,
        passed=mean <= MAX_NULL_SHARE * pairs if enough else None,
    )


def shuffled(places: Sequence[AnsweredTurn], *, seed: int) -> list[AnsweredTurn]:
    """The places with every teacher's answers dealt anew: to another place, and where it can be to
    one of another session.

    Evidence stays where it was: it says something about the student's action, not about the
    answers.
    """
    generator = random.Random(seed)
    dealt: dict[int, list[Answer]] = defaultdict(list)
    for teacher in dict.fromkeys(answer.teacher for place in places for answer in place.answers):
        homes = [
            (n, answer)
            for n, place in enumerate(places)
            for answer in place.answers
            if answer.teacher == teacher
        ]
        for (home, original), giver in zip(
            homes, _elsewhere([places[n].session_id for n, _ in homes], generator), strict=True
        ):
            dealt[home].append(replace(homes[giver][1], site_id=original.site_id))
    return [replace(place, answers=tuple(dealt[number])) for number, place in enumerate(places)]


def _elsewhere(sessions: Sequence[str], generator: random.Random) -> list[int]:
    """For every place, from which other place it gets its answer; of another session, unless one
    session has more than half of them."""
    names = list(dict.fromkeys(sessions))
    generator.shuffle(names)
    of_session: dict[str, list[int]] = {name: [] for name in names}
    for number, name in enumerate(sessions):
        of_session[name].append(number)
    for numbers in of_session.values():
        generator.shuffle(numbers)
    row = [number for numbers in of_session.values() for number in numbers]
    largest = max(map(len, of_session.values()), default=0)
    # Turned by the length of the longest session, nobody in the row stands beside one of its own.
    turn = largest if 2 * largest <= len(row) else max(1, len(row) // 2)
    found = (
        dict(zip(row, row[turn % len(row) :] + row[: turn % len(row)], strict=True)) if row else {}
    )
    return [found[number] for number in range(len(sessions))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What a replay gives without one family: pairs, those that stay with the same chosen action,
    that change it, and that are new."""

    family: str
    pairs: int
    same: int
    changed: int
    new: int
    lost: int


def leave_one_out(places: Sequence[AnsweredTurn], *, weigh: Weigh) -> tuple[LeftOut, ...]:
    """Weigh again without each family in turn: pairs that hang on one family show as lost, and
    those that it prevented as new.

    `weigh` has to ask for one family less than there are, or without any of them there are no pairs
    at all.
    """
    families = sorted({answer.family for place in places for answer in place.answers})
    full = _pairs(places, weigh)
    report = []
    for family in families:
        rest = _pairs(
            [replace(p, answers=tuple(a for a in p.answers if a.family != family)) for p in places],
            weigh,
        )
        both = full.keys() & rest.keys()
        same = sum(full[key] == rest[key] for key in both)
        report.append(
            LeftOut(
                family=family,
                pairs=len(rest),
                same=same,
                changed=len(both) - same,
                new=len(rest.keys() - full.keys()),
                lost=len(full.keys() - rest.keys()),
            )
        )
    return tuple(report)


def _pairs(places: Sequence[AnsweredTurn], weigh: Weigh) -> Mapping[tuple[str, int], object]:
    verdicts = (
        ((place.session_id, place.turn), weigh(place), place.comparison) for place in places
    )
    return {
        key: canonical_action(v.chosen.turn, scene)
        for key, v, scene in verdicts
        if v.outcome == "pair" and v.chosen is not None
    }
