"""Recompute the counts of reports from the sessions on disk, so that a loss in writing shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from composer_replication.core.trace import Session
from composer_replication.data.ingestion.counts import FileReport, MessageCounts


def recount(reports: Sequence[FileReport], stored: Iterable[Session]) -> list[FileReport]:
    """Return the reports with the message counts of the stored sessions, one session in memory at
    a time.

    A session counts for the report that names it, in `progress_counts` if the report lists it
    there. Names without a stored session drop out of `session_names`.
    Example: recount(reports, read_sessions(path))[0].to_json()["is_error"] -> 4
    """
    report_of = {
        name: index for index, report in enumerate(reports) for name in report.session_names
    }
    updated = [_with_counts(report, ()) for report in reports]
    # groupby works because the sessions of one file are stored one after the other
    for index, sessions in groupby(stored, key=lambda session: report_of.get(session.id)):
        if index is not None:
            updated[index] = _with_counts(reports[index], sessions)
    return updated


def _with_counts(report: FileReport, sessions: Iterable[Session]) -> FileReport:
    """Return the report with the counts of these sessions in place of its own."""
    counts, progress_counts = MessageCounts(), MessageCounts()
    names: list[str] = []
    num_subagents = num_copied = 0
    for session in sessions:
        (progress_counts if session.id in report.progress_names else counts).add(session)
        names.append(session.id)
        num_subagents += session.parent is not None
        num_copied += session.copied
    return replace(
        report,
        counts=counts.to_json(),
        progress_counts=(
            {"sessions": progress_counts.num_sessions, **progress_counts.to_json()}
            if report.progress_names
            else {}
        ),
        session_names=tuple(names),
        num_subagents=num_subagents,
        num_copied_turns=num_copied,
    )
