"""The bill of `recompose replay`: costs by source, settling lost calls, and a full disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.errors import ComposerError, NoSpaceError
from composer_replication.core.site import Answer
from composer_replication.data.replay.gather import Gathered
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.report.html import plural


@contextmanager
def explain_write_errors(job: Job, stopped: ComposerError | None) -> Iterator[None]:
    """Wraps the writing of the files: an error there tells that the answers are in the ledger.

    If an error had already `stopped` the asking, that error is raised instead.
    """
    try:
        yield
    except OSError as error:
        if stopped is not None:
            raise stopped from error
        problem = (
            "the answers are in the ledger, and their files could not be written:"
            f" {error.strerror or error}"
        )
        fix = (
            "make room on the disk and run the same command again: nothing is asked or paid for"
            " twice"
        )
        raise NoSpaceError(problem, where=str(error.filename or job.work), fix=fix) from error


def print_answers(job: Job, answers: Sequence[Answer], gathered: Gathered) -> None:
    """Print each teacher's answers, the booked cost, and the cost that the endpoint reports."""
    rows: list[tuple[object, ...]] = []
    for teacher in dict.fromkeys(answer.teacher for answer in answers):
        teacher_answers = [answer for answer in answers if answer.teacher == teacher]
        tokens = sum(answer.input_tokens or 0 for answer in teacher_answers)
        cached = sum(answer.cached_tokens for answer in teacher_answers)
        share = f"{100 * cached / tokens:.0f} %" if tokens else ""
        unusable = sum(bool(answer.problem) for answer in teacher_answers)
        reported = [answer.told_usd for answer in teacher_answers if answer.told_usd is not None]
        num_unreported = len(teacher_answers) - len(reported)
        endpoint_cost = f"{sum(reported):.4f}" if reported else "nothing"
        if reported and num_unreported:
            endpoint_cost += f" ({num_unreported} without)"
        booked = f"{sum(answer.usd for answer in teacher_answers):.4f}"
        rows.append(
            (
                teacher,
                len(teacher_answers),
                unusable,
                f"{tokens / 1e6:.3f}",
                share,
                booked,
                endpoint_cost,
            )
        )
    job.screen.table(
        rows, head=("teacher", "answers", "unusable", "M tokens", "cached", "$ booked", "$ it says")
    )
    if any(answer.usd for answer in answers):
        bill = bill_of(answers)
        job.screen.line(
            f" booked by our own count, or the worst case: ${bill['ours_usd']:.4f} for"
            f" {plural(bill['ours'], 'answer')}; by what the endpoint reported, where that was"
            f" more: ${bill['endpoint_usd']:.4f} for {bill['endpoint']}. Tokens and cached are the"
            " endpoint's"
        )
    counts = ", ".join(f"{name} {count}" for name, count in gathered.counts.items())
    job.screen.line(f" asking: {counts or 'nothing'}")


def bill_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """The booked costs by the source of the number, and the costs that the endpoints report."""
    bill: dict[str, Any] = {}
    for booked_by in ("ours", "endpoint"):
        booked_answers = [answer.usd for answer in answers if answer.usd_by == booked_by]
        bill |= {booked_by: len(booked_answers), f"{booked_by}_usd": sum(booked_answers)}
    return bill | {"endpoint_says_usd": sum(answer.told_usd or 0.0 for answer in answers)}


def settle_bookings(job: Job, usd: float) -> int:
    """Book all calls without an answer at the total of the provider's bill; nothing is asked."""
    with Ledger(job.need_file(job.work / LEDGER_NAME, verb="replay"), max_usd=0.0) as ledger:
        before = ledger.totals()
        num, after = ledger.settle_lost(usd), ledger.totals()
    message = (
        f" booked for {plural(num, 'call')} that brought no answer: ${after.lost_usd:.4f}, before"
        f" ${before.lost_usd:.4f}"
    )
    job.screen.line(
        message if num else " no call that brought no answer is booked at its worst case"
    )
    return job.finish(
        {"settled": num, "booked_usd": after.booked_usd},
        wrote=[],
        next_command=job.command("replay"),
    )
