"""`recompose ingest --forget` and `--recall`: sessions out of the store, and what was forgotten back on the way in."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.cli.ingest_store import RECORD, forget_sessions, recall_names
from composer_replication.cli.job import Job
from composer_replication.core.lock import only_one
from composer_replication.core.stamps import stale_artefacts

LEFT = ("runs", "answers.jsonl", "reader_answers.jsonl", "examples", "exports")
"""What may still hold words of a session that was forgotten, and no verb writes anew by itself."""


def change_store(job: Job, *, forget: Sequence[str], recall: Sequence[str]) -> int:
    """Forget and recall; says what was made from the forgotten sessions and is still there."""
    job.need_file(job.sessions, verb="ingest")
    with only_one(job.work, what="ingest"):
        recalled = recall_names(job, recall) if recall else []
        gone = forget_sessions(job, forget) if forget else []
    screen = job.screen
    forgot, recalls = ("would forget", "would recall") if job.dry_run else ("forgot  ", "recalled")
    for name in gone:
        screen.line(f" {forgot} {name}")
    for name in recalled:
        screen.line(f" {recalls} {name}: the next ingest takes it in again if its logs are still there")
    left = [str(job.work / name) for name in LEFT if gone and (job.work / name).exists()]
    if left:
        screen.line(f" note     {', '.join(left)} may still hold words of them; remove these if need be", style="yellow")
    old = job.tell_stale(*stale_artefacts(job.work))
    value = {"forgotten": gone, "recalled": recalled, "may_hold": left, "stale": old}
    return job.finish(value, wrote=[job.sessions, job.work / RECORD], next_command=job.command("sites"))
