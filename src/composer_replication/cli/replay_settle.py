"""`recompose replay --settle-lost`: calls that brought no answer, booked at what the provider's own
bill says of them."""

from __future__ import annotations

from composer_replication.cli.job import Job
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger


def settle_bookings(job: Job, usd: float) -> int:
    """Book the calls that brought no answer at what the provider's bill says of them, all together;
    nothing is asked."""
    with Ledger(job.need_file(job.work / LEDGER_NAME, verb="replay"), max_usd=0.0) as ledger:
        before = ledger.totals()
        num, after = ledger.settle_lost(usd), ledger.totals()
    message = (
        f" {num} calls that brought no answer were booked at ${before.lost_usd:.4f}, and are at"
        f" ${after.lost_usd:.4f} now"
    )
    job.screen.line(
        message if num else " no call that brought no answer is booked at its worst case"
    )
    return job.finish(
        {"settled": num, "booked_usd": after.booked_usd},
        wrote=[],
        next_command=job.command("replay"),
    )
