"""The bill of `recompose replay`, with whose number each is, and what happens where the disk has no
room for its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.errors import ComposerError, NoSpaceError
from composer_replication.core.site import Answer
from composer_replication.data.replay.gather import Gathered


@contextmanager
def bought_is_kept(job: Job, stopped: ComposerError | None) -> Iterator[None]:
    """Around writing the files: an error there says that the answers are in the ledger, or what had
    `stopped` the asking before."""
    try:
        yield
    except OSError as error:
        if stopped is not None:
            raise stopped from error
        what = (
            "the answers are in the ledger, and their files could not be written:"
            f" {error.strerror or error}"
        )
        fix = (
            "make room on the disk and run the same command again: nothing is asked or paid for"
            " twice"
        )
        raise NoSpaceError(what, where=str(error.filename or job.work), fix=fix) from error


def say_asking(job: Job, answers: Sequence[Answer], gathered: Gathered) -> None:
    """Each teacher's answers, what is booked for them and by whose number, and what its endpoint
    says itself."""
    rows: list[tuple[object, ...]] = []
    for teacher in dict.fromkeys(answer.teacher for answer in answers):
        own = [answer for answer in answers if answer.teacher == teacher]
        tokens = sum(answer.input_tokens or 0 for answer in own)
        cached = sum(answer.cached_tokens for answer in own)
        share = f"{100 * cached / tokens:.0f} %" if tokens else ""
        unusable = sum(bool(answer.problem) for answer in own)
        told = [answer.told_usd for answer in own if answer.told_usd is not None]
        says = (
            f"{sum(told):.4f}"
            if len(told) == len(own)
            else f"{sum(told):.4f} ({len(own) - len(told)} without)"
            if told
            else "nothing"
        )
        booked = f"{sum(answer.usd for answer in own):.4f}"
        rows.append((teacher, len(own), unusable, f"{tokens / 1e6:.3f}", share, booked, says))
    job.screen.table(
        rows, head=("teacher", "answers", "unusable", "M tokens", "cached", "$ booked", "$ it says")
    )
    if any(answer.usd for answer in answers):
        bill = bill_of(answers)
        job.screen.line(
            f" booked by our own count, or the worst case: ${bill['ours_usd']:.4f} for"
            f" {bill['ours']} answers; by what the endpoint reported, where that was more:"
            f" ${bill['endpoint_usd']:.4f} for {bill['endpoint']}. Tokens and cached are the"
            " endpoint's"
        )
    told = ", ".join(f"{name} {count}" for name, count in gathered.counts.items())
    job.screen.line(f" asking: {told or 'nothing'}")


def bill_of(answers: Sequence[Answer]) -> dict[str, Any]:
    """Whose numbers were booked, and what the endpoints say themselves."""
    bill: dict[str, Any] = {}
    for whose in ("ours", "endpoint"):
        own = [answer.usd for answer in answers if answer.usd_by == whose]
        bill |= {whose: len(own), f"{whose}_usd": sum(own)}
    return bill | {"endpoint_says_usd": sum(answer.told_usd or 0.0 for answer in answers)}
