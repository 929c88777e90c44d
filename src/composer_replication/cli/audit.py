"""`recompose audit`: the logs of the agents on this machine -> what they do wrong, on one page."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from composer_replication.cli.audit_nothing_left import nothing_left
from composer_replication.cli.audit_reading import read_into_store
from composer_replication.cli.audit_store import (
    RULES,
    audit_again,
    command_after_audit,
    open_audit_store,
)
from composer_replication.cli.audit_text import audit_json, print_log_audit
from composer_replication.cli.flags import Common
from composer_replication.cli.hints_audit_plan import Progress
from composer_replication.cli.ingest_without import change_store
from composer_replication.cli.job import Job
from composer_replication.cli.open_page import open_in_browser
from composer_replication.cli.problems import UsageError
from composer_replication.cli.report import PAGE, draw_audit
from composer_replication.cli.sites import write_sites
from composer_replication.cli.sites_of_before import sites_hold
from composer_replication.cli.sites_verdicts import show_verdicts
from composer_replication.core.codec import read_sites
from composer_replication.core.files import write_text
from composer_replication.report.audit_sentences import rules_markdown
from composer_replication.report.audit_view import AuditView, audit_view

_AGO = re.compile(r"(\d{1,4})([dw])")


def audit_command(
    *paths: Path,
    open_page: Annotated[bool, Parameter(name="--open")] = False,
    since: str = "",
    project: str = "",
    forget: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    recall: Annotated[tuple[str, ...], Parameter(consume_multiple=False)] = (),
    common: Common = Common(),
) -> int:
    """What your agents do wrong, what it costs, whether it gets better, what people stopped, and
    rules against it. Reads the logs and changes nothing of yours; sends nothing; needs no PyTorch.

    Parameters
    ----------
    paths
        Files or folders. Default: [ingest] logs, else the folders where agents keep their logs.
    open_page
        Open the page in a browser.
    since
        Count only sessions that ended on or after this day: 2026-11-01, 30d (days ago), 4w.
    project
        Count only sessions whose repository or folder name contains this.
    forget
        Count no logs; remove a session, a repository or the project of a folder from the store and
        keep it out; may be repeated.
    recall
        Let later audits take in again what was forgotten; may be repeated.
    """
    if forget or recall:
        if paths or open_page or since or project:
            raise UsageError("--forget and --recall count nothing", fix="give them alone")
        job = open_audit_store(common, uses=("scanner",))
        return change_store(job, forget=forget, recall=recall)
    first_day = day_of_since(since, today=datetime.now(UTC).date())
    job = open_audit_store(common, uses=("scanner", "detectors"))
    read = read_into_store(job, [str(p) for p in paths] or list(job.config.ingest.logs))
    if job.dry_run:
        return job.finish(read, wrote=[job.sessions, job.sites, job.work / PAGE])
    if not sites_hold(job):
        progress = Progress(job, "session", every_s=3.0)
        total = read["stored"]
        write_sites(job, on_session=lambda count: progress(count, total), reuse=True)
    view = audit_view(job.work, since=first_day, project=project)
    if not view.sessions:
        raise nothing_left(job, since=since, project=project, first_day=first_day)
    look = _look_at(job, view)
    print_log_audit(job.screen, view, look=look)
    reader = show_verdicts(job)
    wrote = _write(job, view)
    if open_page:
        open_in_browser(job.screen, job.work / PAGE)
    job.screen.line()
    return job.finish(
        {**read, **audit_json(view), **reader, "look": look},
        wrote=wrote,
        next_command="" if open_page else f"{audit_again(job)} --open",
    )


def _look_at(job: Job, view: AuditView) -> str:
    """The command that shows the costliest mistake of those counted; "" without any."""
    costs = [
        (-spend.usd, -spend.tokens, number, site.name)
        for number, site in enumerate(read_sites(job.sites))
        if site.is_target and (spend := view.site_spend.get(site.id)) is not None
    ]
    return command_after_audit(job, f"show site {min(costs)[3]}") if costs else ""


def _write(job: Job, view: AuditView) -> list[Path]:
    """Write the page and the rules; returns their paths."""
    _, page = draw_audit(job, view)
    write_text(job.work / PAGE, page)
    rules = rules_markdown(view)
    if rules:
        write_text(job.work / RULES, rules)
    else:
        (job.work / RULES).unlink(missing_ok=True)
    return [job.work / PAGE, *([job.work / RULES] if rules else [])]


def day_of_since(since: str, *, today: date) -> str:
    """The first day of --since; raises UsageError for another form.

    >>> day_of_since("2w", today=date(2026, 11, 24))
    '2026-11-10'
    """
    if not since:
        return ""
    if match := _AGO.fullmatch(since):
        days = int(match[1]) * (7 if match[2] == "w" else 1)
        return (today - timedelta(days=days)).isoformat()
    try:
        return date.fromisoformat(since).isoformat()
    except ValueError:
        raise UsageError(
            f'--since "{since}" is no day', fix="write a day (2026-11-01), 30d or 4w"
        ) from None
