"""`recompose sites`: sessions -> sites.jsonl, the mistaken messages and other failures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.lookup import ordinal
from composer_replication.cli.next_step import next_step
from composer_replication.core.codec import read_sessions, record_to_json
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Site
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.data.sites.summary import SitesSummary, summarise


def sites_command(*, common: Common = Common()) -> int:
    """Find the mistaken messages: sessions.jsonl -> sites.jsonl."""
    job = open_job(common, uses=("detectors",))
    job.need_file(job.sessions, verb="ingest")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        session_names: list[str] = []
        sites = list(_find(job, session_names))
    summary = summarise(sites)
    notes = sorted({str(w.message) for w in caught})
    if not job.dry_run:
        write_lines(job.sites, map(record_to_json, sites))
        job.stamp(job.sites, made_from=[job.sessions])
    _show(job, sites, summary, notes, sessions=len(session_names))
    return job.finish(
        {**summary.to_json(), "notes": notes}, wrote=[job.sites], next_command=next_step(job)
    )


def _find(job: Job, session_names: list[str]) -> Iterator[Site]:
    for session in read_sessions(job.sessions):
        session_names.append(session.id)
        yield from find_sites(session, settings=job.config.sites)


def _show(
    job: Job, sites: list[Site], summary: SitesSummary, notes: list[str], *, sessions: int
) -> None:
    screen = job.screen
    share = f"{summary.num_sessions} of {sessions} sessions"
    screen.line(
        f" {summary.num_mistakes} mistaken messages in {share}; {summary.num_sites} sites in all"
    )
    screen.table(summary.kinds.items(), head=("kind of mistake", "sites"))
    if summary.apart:
        screen.line("\n apart from mistakes, never trained on by default:")
        screen.table(summary.apart.items(), head=("category/kind", "sites"))
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
        first = next(i for i, site in enumerate(sites, 1) if site.is_target)
        screen.line(f" look   {job.command(f'show site {ordinal(first)}')}")
