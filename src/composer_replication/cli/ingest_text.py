"""The output of `ingest`: one line per file, and everything that was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.cli.console import Screen
from composer_replication.data.ingestion.counts import FileReport
from composer_replication.data.ingestion.find_logs import RETENTION_NOTE
from composer_replication.data.ingestion.store import StoreUpdate
from composer_replication.report.html import plural

SHOWN_FILES = 12
OUTCOMES: Mapping[str, str] = {
    "added": "new",
    "grown": "grown",
    "reread": "read anew from the same log",
    "same": "as they were",
    "shorter": "longer in the store than in these logs",
    "apart": "kept apart",
    "copies": "copies of others",
    "forgotten": "forgotten",
    "cleaned": "redacted anew",
    "gone": "not in these logs",
}
"""Outcome of a session -> how it is printed after a number."""
LOUD: Mapping[str, str] = {
    "shorter": "this log holds less of it than the store; the longer one stays",
    "apart": "this log differs from the session of that id and does not continue it; both are kept",
    "forgotten": "stays out; recompose ingest --recall takes it in again",
}


def show_reading(
    screen: Screen,
    reports: Sequence[FileReport],
    counts: Mapping[str, int],
    others: Mapping[str, int],
) -> None:
    """Print files, totals, what was skipped or removed, and when the agent deletes its logs."""
    rows = [
        (
            r.file,
            r.status,
            r.raw.records,
            len(r.session_names),
            r.counts.get("tool_use", 0),
            r.counts.get("is_error", 0),
        )
        for r in reports
    ]
    shown = rows if screen.verbose else rows[:SHOWN_FILES]
    screen.table(shown, head=("file", "", "records", "sessions", "calls", "errors"))
    if len(rows) > len(shown):
        screen.line(f" ... and {plural(len(rows) - len(shown), 'more file')} (-v)")
    read, several = (
        sum(r.status == "read" for r in reports),
        sum(len(r.session_names) > 1 for r in reports),
    )
    more = f" in {plural(read, 'file')}, {several} of which hold several" if several else ""
    screen.line(
        f"\n {plural(counts['sessions'], 'session')}{more}  {plural(counts['turns'], 'turn')}"
        f"  {plural(counts['calls'], 'tool call')}{_by_subagents(counts)}"
    )
    if requests := sum(r.num_requests for r in reports):
        screen.line(
            f" context  verified {sum(r.num_verified for r in reports)} of {requests} prompts that"
            " these logs hold word for word"
        )
    for name, text in left_out(reports).items():
        screen.line(f" {name:8} {text}")
    for text, files in not_held(reports).items():
        shown_files = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if files[3:] else "")
        screen.line(f" not held {text}: {shown_files}", style="dim")
    if others:
        screen.line(f" not read {not_read_text(others)}")
    screen.line(f" note     {RETENTION_NOTE}", style="dim")


def not_read_text(others: Mapping[str, int]) -> str:
    """How many files of other kinds stand beside the logs, by their endings; "" for none.

    >>> not_read_text({".json": 2, "": 1})
    '3 files of other kinds (.json 2, no ending 1)'
    """
    if not others:
        return ""
    endings = ", ".join(
        f"{ending or 'no ending'} {count}" for ending, count in list(others.items())[:5]
    )
    what = plural(sum(others.values()), "file of another kind", "files of other kinds")
    return f"{what} ({endings})"


def _by_subagents(counts: Mapping[str, int]) -> str:
    """How many of the calls subagents made, e.g. ", 7 of them by subagents"; "" for none.

    A log of Claude Code can hold them in the records of the session that started the subagent.
    """
    calls = counts.get("subagent_calls", 0)
    return f", {calls} of them by subagents" if calls else ""


def show_store(screen: Screen, plan: StoreUpdate) -> dict[str, Any]:
    """Print what became of the store, with a line per unusual session; returns the values."""
    outcomes = {name: plan.outcomes.get(name, []) for name in OUTCOMES}
    parts = [f"{len(outcomes[name])} {label}" for name, label in OUTCOMES.items() if outcomes[name]]
    screen.line(
        f" store    {plural(len(plan.order), 'session')}: {', '.join(parts) or 'none of these'}"
    )
    for name, why in LOUD.items():
        for session in outcomes[name]:
            screen.line(f" {name:8} {session}: {why}", style="yellow")
    return {"sessions": len(plan.order), "changed": plan.is_changed, **outcomes}


def not_held(reports: Sequence[FileReport]) -> dict[str, list[str]]:
    """Map what logs of other agents do not hold, with their format, to the files."""
    files: dict[str, list[str]] = {}
    for report in reports:
        if report.lacks:
            files.setdefault(f"{report.format}: {'; '.join(report.lacks)}", []).append(report.file)
    return files


def left_out(reports: Sequence[FileReport]) -> dict[str, str]:
    """Describe what was skipped, removed or not understood; empty groups are left out."""
    removed: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for report in reports:
        removed.update(report.redactions)
        unknown.update(report.raw.unknown_types)
    groups = {
        "skipped": [
            f"{r.file}: {r.status}{f' ({r.why})' if r.why else ''}"
            for r in reports
            if r.status != "read"
        ],
        "damaged": [
            f"{r.file}:{number} {why}"
            for r in reports
            if r.status == "read"
            for number, why in r.raw.damage[:3]
        ],
        "unknown": [
            f"{plural(count, 'record')} of type {name!r}" for name, count in unknown.most_common(5)
        ],
        "removed": [f"{kind.replace('_', ' ')} {count}" for kind, count in removed.most_common()],
    }
    return {name: "; ".join(entries) for name, entries in groups.items() if entries}
