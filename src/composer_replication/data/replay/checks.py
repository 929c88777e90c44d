"""Two free tests of a whole replay: shuffled teachers, and one family left out.

    null_test(turns, seed=7, weigh=...)   # answers of other turns: the pair rate must collapse
    leave_one_out(turns, weigh=...)       # the same pairs without each family in turn

`weigh` is `weigh_answers` with the settings of the replay.
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
"""A null rate above this share of the true one is no collapse: any answers would give most of the
pairs."""


Weigh = Callable[[AnsweredTurn], Agreement]
"""E.g. partial(weigh_answers, min_families=3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NullTest:
    """Pairs with the true answers and with shuffled ones; `passed` None = too little data to tell.

    `places` are answered turns (the name is part of the report's format).
    """

    places: int
    pairs: int
    null_pairs: float
    rounds: int
    passed: bool | None

    @property
    def rate(self) -> float:
        """Pairs per answered turn."""
        return self.pairs / self.places if self.places else 0.0

    @property
    def null_rate(self) -> float:
        """Pairs per answered turn when every teacher's answers are dealt to other turns."""
        return self.null_pairs / self.places if self.places else 0.0


def null_test(
    turns: Sequence[AnsweredTurn], *, weigh: Weigh, seed: int, rounds: int = 5
) -> NullTest:
    """Deal each teacher's answers to other turns, teacher by teacher, and weigh again.

    Each teacher keeps its habits; only the link between answer and turn is gone. The pairs that
    remain are those that habits alone produce ("everybody always runs the tests"), and their rate
    must fall to at most half of the true one. With fewer than ten pairs `passed` is None.
    """
    pairs = sum(weigh(answered).outcome == "pair" for answered in turns)
    null_pairs = [
        sum(
            weigh(answered).outcome == "pair"
            for answered in shuffle_answers(turns, seed=seed + number)
        )
        for number in range(rounds)
    ]
    mean_null_pairs = sum(null_pairs) / rounds if rounds else 0.0
    enough = pairs >= 10 and rounds > 0
    return NullTest(
        places=len(turns),
        pairs=pairs,
        null_pairs=mean_null_pairs,
        rounds=rounds,
        passed=mean_null_pairs <= MAX_NULL_SHARE * pairs if enough else None,
    )


def shuffle_answers(turns: Sequence[AnsweredTurn], *, seed: int) -> list[AnsweredTurn]:
    """Deal every teacher's answers to other turns, of other sessions if possible.

    Evidence stays in place: it is about the student's action, not about the answers.
    """
    generator = random.Random(seed)
    # Teacher by teacher, so that each keeps its habits and only the link to the turn is broken.
    dealt: dict[int, list[Answer]] = defaultdict(list)
    for teacher in dict.fromkeys(
        answer.teacher for answered in turns for answer in answered.answers
    ):
        given_answers = [
            (n, answer)
            for n, answered in enumerate(turns)
            for answer in answered.answers
            if answer.teacher == teacher
        ]
        for (recipient, original), donor in zip(
            given_answers,
            _donor_indices([turns[n].session_id for n, _ in given_answers], generator),
            strict=True,
        ):
            dealt[recipient].append(replace(given_answers[donor][1], site_id=original.site_id))
    return [
        replace(answered, answers=tuple(dealt[number])) for number, answered in enumerate(turns)
    ]


def _donor_indices(sessions: Sequence[str], generator: random.Random) -> list[int]:
    """Return for each turn the index of the turn whose answer it gets.

    That is one of another session, unless one session has more than half of the turns.
    """
    names = list(dict.fromkeys(sessions))
    generator.shuffle(names)
    of_session: dict[str, list[int]] = {name: [] for name in names}
    for number, name in enumerate(sessions):
        of_session[name].append(number)
    for numbers in of_session.values():
        generator.shuffle(numbers)
    row = [number for numbers in of_session.values() for number in numbers]
    largest = max(map(len, of_session.values()), default=0)
    # Sessions are contiguous in the row: rotated by the largest one's size, none meets itself.
    shift = largest if 2 * largest <= len(row) else max(1, len(row) // 2)
    donor_of = (
        dict(zip(row, row[shift % len(row) :] + row[: shift % len(row)], strict=True))
        if row
        else {}
    )
    return [donor_of[number] for number in range(len(sessions))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOutResult:
    """The pairs of a replay without one family, compared with those of all families.

    `same` and `changed` are the common pairs with the same and with another chosen action.
    """

    family: str
    pairs: int
    same: int
    changed: int
    new: int
    lost: int


def leave_one_out(turns: Sequence[AnsweredTurn], *, weigh: Weigh) -> tuple[LeaveOneOutResult, ...]:
    """Weigh again without each family in turn.

    Pairs that need a family show as lost without it, pairs that it prevented as new. `weigh` must
    require at least one family fewer than there are, or there are no pairs without any of them.
    """
    families = sorted({answer.family for answered in turns for answer in answered.answers})
    full = _chosen_actions(turns, weigh)
    report = []
    for family in families:
        remaining = _chosen_actions(
            [replace(p, answers=tuple(a for a in p.answers if a.family != family)) for p in turns],
            weigh,
        )
        common = full.keys() & remaining.keys()
        same = sum(full[key] == remaining[key] for key in common)
        report.append(
            LeaveOneOutResult(
                family=family,
                pairs=len(remaining),
                same=same,
                changed=len(common) - same,
                new=len(remaining.keys() - full.keys()),
                lost=len(full.keys() - remaining.keys()),
            )
        )
    return tuple(report)


def _chosen_actions(
    turns: Sequence[AnsweredTurn], weigh: Weigh
) -> Mapping[tuple[str, int], object]:
    verdicts = (
        ((answered.session_id, answered.turn), weigh(answered), answered.comparison)
        for answered in turns
    )
    return {
        key: canonical_action(verdict.chosen.turn, comparison)
        for key, verdict, comparison in verdicts
        if verdict.outcome == "pair" and verdict.chosen is not None
    }
