"""`recompose sites`: sessions -> sites.jsonl, the mistaken messages and other failures."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from composer_replication.cli.audit_store import open_where_sessions_are
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job
from composer_replication.cli.next_step import next_step
from composer_replication.cli.problems import DONE, UsageError
from composer_replication.cli.sites_of_before import EarlierSites, found_by, sites_of_before
from composer_replication.cli.sites_verdicts import (
    keep_verdicts,
    reader_files,
    show_verdicts,
    stored_verdicts,
)
from composer_replication.core.codec import raw_sessions, record_to_json
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Site
from composer_replication.data.sites.find_sites import NO_VERDICTS, find_sites
from composer_replication.data.sites.summary import SitesSummary, summarise
from composer_replication.report.html import plural
from composer_replication.report.kind_titles import kind_title

if TYPE_CHECKING:
    from composer_replication.data.hints.candidate_reader import CandidateReading


def sites_command(*, estimate: bool = False, common: Common = Common()) -> int:
    """Find the mistaken messages: sessions.jsonl -> sites.jsonl. If sites.reader names a model, it
    is shown what no tool reports, one candidate in each call.

    Parameters
    ----------
    estimate
        With a reader: print the maximum cost and send nothing.
    """
    job = open_where_sessions_are(common, uses=("detectors", "candidate_reader"))
    job.need_file(job.sessions, verb="ingest")
    has_reader = job.config.sites.reader.is_set
    if estimate and not has_reader:
        raise UsageError(
            "--estimate is of a reader, and none is set", fix="set sites.reader.teacher"
        )
    reading: CandidateReading | None = None
    if has_reader:
        from composer_replication.cli.sites_reader import estimate_candidates, judge_candidates

        if estimate or job.dry_run:
            return estimate_candidates(job)
        reading = judge_candidates(job)
    sites, num_sessions, notes = write_sites(job)
    summary = summarise(sites)
    _show(job, sites, summary, notes, sessions=num_sessions)
    value = {**summary.to_json(), "notes": notes}
    if reading is None:
        return job.finish(value, wrote=[job.sites], next_command=next_step(job))
    value |= show_verdicts(job, reading)
    job.finish(value, wrote=[job.sites, *reader_files(job)], next_command=next_step(job))
    return DONE if reading.stopped is None else reading.stopped.exit_code


def write_sites(
    job: Job, *, on_session: Callable[[int], None] | None = None, reuse: bool = False
) -> tuple[list[Site], int, list[str]]:
    """Find and write the sites of the store; returns them, the number of sessions, and warnings.

    `on_session` is called with the number of sessions so far. A reader's verdicts of before count,
    and nobody is asked. A dry run writes nothing. With `reuse`, the sites of sessions that are as
    they were at the last call, of the same code and settings, are taken from there.
    """
    sites: list[Site] = []
    earlier = sites_of_before(job) if reuse else EarlierSites()
    verdicts, hashes = stored_verdicts(job), dict[str, str]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for raw in raw_sessions(job.sessions):
            hashes[raw.id] = hashlib.sha256(raw.data).hexdigest()
            if hashes[raw.id] in earlier.hashes:
                sites += earlier.sites.get(raw.id, ())
            else:
                known = verdicts.get(raw.id, NO_VERDICTS)
                session = raw.decode(where=str(job.sessions))
                sites += find_sites(session, settings=job.config.sites, verdicts=known)
            if on_session is not None:
                on_session(len(hashes))
    if not job.dry_run:
        write_lines(job.sites, map(record_to_json, sites))
        found = found_by(job, job.sites, hashes.values())
        job.stamp(job.sites, made_from=[job.sessions], more=found)
        keep_verdicts(job, hashes.keys())
    return sites, len(hashes), sorted({str(w.message) for w in caught})


def _show(
    job: Job, sites: list[Site], summary: SitesSummary, notes: list[str], *, sessions: int
) -> None:
    screen = job.screen
    share = f"{summary.num_sessions} of {plural(sessions, 'session')}"
    screen.line(
        f" {plural(summary.num_mistakes, 'mistaken message')} in {share};"
        f" {plural(summary.num_sites, 'site')} in all"
    )
    kinds = [(kind_title(kind), kind, count) for kind, count in summary.kinds.items()]
    screen.table(kinds, head=("what went wrong", "kind", "sites"))
    if summary.apart:
        screen.line("\n apart from mistakes, never trained on by default:")
        apart = [(*name.split("/", 1), count) for name, count in summary.apart.items()]
        rows = [(kind_title(kind), kind, name, count) for name, kind, count in apart]
        screen.table(rows, head=("what happened", "kind", "category", "sites"))
    authors = ", ".join(f"{name} {count}" for name, count in summary.authors.items())
    screen.line(
        f"\n author of the mistaken message: {authors or 'none'}  (imported text is off-policy:"
        " context distillation)"
    )
    for note in notes:
        screen.line(f" note   {note}", style="yellow")
    if not summary.num_mistakes:
        screen.line(
            f" no mistaken message found; detectors: {', '.join(job.config.sites.detectors)}",
            style="yellow",
        )
    else:
        first = next(site for site in sites if site.is_target)
        screen.line(f" look   {job.command(f'show site {first.name}')}")
