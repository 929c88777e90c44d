"""`audit` and `ingest` with --forget or --recall: remove sessions from the store, readmit them."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.cli.audit_store import audit_again, is_audit_store
from composer_replication.cli.forget_sessions import forget_sessions, recall_names
from composer_replication.cli.forgotten import clear_derived, made_anew_by
from composer_replication.cli.ingest_store import RECORD
from composer_replication.cli.job import Job
from composer_replication.cli.next_step import next_step
from composer_replication.core.lock import lock_folder
from composer_replication.core.stamps import stale_artefacts


def change_store(job: Job, *, forget: Sequence[str], recall: Sequence[str]) -> int:
    """Forget and recall sessions.

    Artefacts of the forgotten ones are removed if one command makes them again, else listed.
    """
    job.need_file(job.sessions, verb="ingest")
    with lock_folder(job.work, task="ingest"):
        recalled = recall_names(job, recall) if recall else []
        gone = forget_sessions(job, forget) if forget else []
        removed, left = clear_derived(job, gone) if gone else ([], [])
    screen, is_audits = job.screen, is_audit_store(job)
    verb = "audit" if is_audits else "ingest"
    forgot, recalls, removes = (
        ("would forget", "would recall", "would remove")
        if job.dry_run
        else ("forgot  ", "recalled", "removed ")
    )
    for name in gone:
        screen.line(f" {forgot} {name}")
    for name in recalled:
        screen.line(
            f" {recalls} {name}: the next {verb} takes it in again if its logs are still there"
        )
    for path in removed:
        screen.line(
            f" {removes} {path}: it was made of them, or may have been;"
            f" {made_anew_by(job, path)} makes it anew"
        )
    if left:
        screen.line(
            " note     these may still hold words of them, or were trained on them; remove them if"
            " need be:",
            style="yellow",
        )
    for path in left:
        screen.line(f"   {path}", style="yellow")
    old = job.warn_stale(*stale_artefacts(job.work))
    value = {
        "forgotten": gone,
        "recalled": recalled,
        "removed": [str(path) for path in removed],
        "may_hold": [str(path) for path in left],
        "stale": old,
    }
    command = audit_again(job) if is_audits else next_step(job)
    return job.finish(value, wrote=[job.sessions, job.work / RECORD], next_command=command)
