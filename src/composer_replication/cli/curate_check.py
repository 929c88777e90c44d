"""`recompose curate --check`: the null test of the agreement, and every family left out in turn."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_answers, read_sessions
from composer_replication.data.replay.agree import AnsweredTurn, weigh_answers
from composer_replication.data.replay.ask import answered_turn, failed_turns
from composer_replication.data.replay.checks import (
    LeaveOneOutResult,
    NullTest,
    leave_one_out,
    null_test,
)
from composer_replication.data.replay.gather import lookup


def check_agreement(job: Job) -> dict[str, Any]:
    """Weigh the last replay's answers again, shuffled and without each family; prints and returns
    both results."""
    job.need_fresh(job.answers, verb="replay")
    settings = job.config.replay
    places = list(_places(job, min_confidence=settings.min_confidence))
    weigh = partial(weigh_answers, min_families=settings.min_families, tiers=settings.tiers)
    null = null_test(places, weigh=weigh, seed=job.config.seed)
    families = {answer.family for place in places for answer in place.answers}
    # Without one family, the others must be able to agree: one alone agrees with nobody. If every
    # family is needed, none can be left out.
    enough = max(2, min(settings.min_families, len(families) - 1))
    left_out = (
        leave_one_out(places, weigh=partial(weigh, min_families=enough))
        if len(families) > enough
        else ()
    )
    _show(job, null, left_out, enough)
    null_facts = {**asdict(null), "rate": null.rate, "null_rate": null.null_rate}
    return {
        "null_test": null_facts,
        "left_out": [asdict(family) for family in left_out],
        "left_out_min_families": enough,
    }


def _places(job: Job, *, min_confidence: float) -> list[AnsweredTurn]:
    ask = lookup(read_answers(job.answers), min_confidence=min_confidence)
    places = []
    for session in read_sessions(job.sessions):
        errors = failed_turns(session)
        for turn, _ in session.assistant_turns():
            if answers := ask(session, turn):
                places.append(answered_turn(session, turn, answers, errors=errors))
    return places


def _show(job: Job, null: NullTest, left_out: tuple[LeaveOneOutResult, ...], enough: int) -> None:
    screen = job.screen
    verdicts = {
        True: "collapses, as it must",
        False: "does NOT collapse: most pairs would come of any answers",
        None: "too few pairs to say",
    }
    rates = (
        f"{null.rate:.1%} of {null.places} places; with answers dealt to other places"
        f" {null.null_rate:.1%}"
    )
    screen.line(
        f"\n null test  pairs at {rates}: {verdicts[null.passed]}",
        style="" if null.passed is not False else "yellow",
    )
    if not left_out:
        screen.line(
            " no family can be left out: too few would be left to agree with one another",
            style="yellow",
        )
        return
    rows = [
        (family.family, family.pairs, family.same, family.changed, family.lost, family.new)
        for family in left_out
    ]
    screen.line(f" without one family, {enough} of the others needed:")
    screen.table(rows, head=("left out", "pairs", "same", "changed", "lost", "new"))
