"""`recompose show session|site|example|pair|run [ID]`: show one record; without an ID, the list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from composer_replication.cli.audit_store import is_audit_store, open_where_sessions_are
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job
from composer_replication.cli.lookup import (
    find_index,
    iter_sessions,
    one_session,
    ordinal,
    session_ids,
)
from composer_replication.cli.problems import UsageError
from composer_replication.cli.render_terminal import session_parts, site_parts
from composer_replication.cli.show_run import show_run
from composer_replication.cli.show_sites import list_sites
from composer_replication.cli.show_tokens import show_example, show_pair
from composer_replication.core.codec import read_hints, read_sessions, read_sites
from composer_replication.core.harmless import harmless
from composer_replication.core.site import Hint
from composer_replication.report.views import session_line, session_view, site_view

Noun = Literal["session", "site", "example", "pair", "run"]


def show_command(
    noun: Noun,
    id: str = "",
    /,
    *,
    full: bool = False,
    before: Annotated[int, Parameter(name="--before")] = 4,
    after: Annotated[int, Parameter(name="--after")] = 2,
    common: Common = Common(),
) -> int:
    """One session, site, example, pair or run; without an ID, all of them in a list. Reads only.

    Parameters
    ----------
    noun
        What to show. Answers of other models are on the page of `recompose report`.
    id
        Its id, a unique prefix of it, or its position in the file: s014. A site also has a short
        name, which stays the same when other sessions come and go.
    full
        Do not truncate long texts.
    before
        Turns of context to show before a site.
    after
        Turns to show after a site.
    """
    if before < 0 or after < 0:
        raise UsageError("--before and --after count turns", fix="give 0 or more")
    job = open_where_sessions_are(common, writes=False)
    if noun == "example":
        return show_example(job, id, full=full)
    if noun == "pair":
        return show_pair(job, id, full=full)
    if noun == "run":
        return show_run(job, id, full=full)
    if noun == "site":
        return _site(job, id, full=full, before=before, after=after)
    return _session(job, id, full=full)


def _hints(job: Job) -> dict[str, Hint]:
    """Hints by site id; {} if hints.jsonl is missing or stale."""
    return (
        {hint.site_id: hint for hint in read_hints(job.hints)} if job.is_usable(job.hints) else {}
    )


def _session(job: Job, wanted: str, *, full: bool) -> int:
    path = job.need_file(job.sessions, verb="ingest")
    if not wanted:
        rows = [session_line(session, i) for i, session in enumerate(read_sessions(path), 1)]
        columns = ("id", "turns", "calls", "repository", "file")
        return _list(job, "sessions", rows, columns)
    session = one_session(path, wanted, command=job.command)
    number = session_ids(path).index(session.id) + 1
    job.warn_stale(job.sites.name, job.hints.name)
    sites = (
        [s for s in read_sites(job.sites) if s.session_id == session.id]
        if job.is_usable(job.sites)
        else []
    )
    view = session_view(session, sites, _hints(job), number=number)
    return _draw(job, view, session_parts, full=full)


def _site(job: Job, wanted: str, *, full: bool, before: int, after: int) -> int:
    path = job.need_fresh(job.sites, verb="audit" if is_audit_store(job) else "sites")
    job.warn_stale(job.hints.name)
    sites = list(read_sites(path))
    hints = _hints(job)
    if not wanted:
        return list_sites(job, sites, hinted=hints)
    index = find_index(
        wanted,
        [s.id for s in sites],
        noun="site",
        file=path,
        names=[s.name for s in sites],
        command=job.command,
    )
    site = sites[index]
    session = next(
        iter_sessions(job.need_file(job.sessions, verb="ingest"), {site.session_id}), None
    )
    if session is None:
        raise UsageError(
            f"{job.sessions} holds no session {site.session_id}",
            fix=f"run again: {job.command('sites')}",
        )
    view = site_view(
        session, site, hints.get(site.id), number=index + 1, before=before, after=after
    )
    return _draw(job, view, site_parts, full=full)


def _list(job: Job, name: str, rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> int:
    job.screen.table(
        [(ordinal(r["ordinal"]), *(r[c] for c in columns)) for r in rows], head=("", *columns)
    )
    job.screen.result({name: rows})
    return 0


def _draw(
    job: Job, view: dict[str, Any], parts: Callable[..., Iterable[Any]], *, full: bool
) -> int:
    for part in parts(view, full=full):
        job.screen.show(part)
    if view.get("left_out_before") or view.get("left_out_after"):
        job.screen.show(Text(harmless("more: --before N --after N --full"), style="dim"))
    job.screen.result(view)
    return 0
