"""`recompose report`: one HTML file for a run, or the audit of the logs if nothing was trained.

Two runs or more get a page that compares them as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from composer_replication.cli.audit_store import open_where_sessions_are
from composer_replication.cli.flags import Common
from composer_replication.cli.hint_gate import judged_audit
from composer_replication.cli.job import Job
from composer_replication.cli.next_step import next_step
from composer_replication.cli.open_page import open_in_browser
from composer_replication.cli.show_run import run_folder
from composer_replication.core.files import write_text
from composer_replication.core.rundir import LATEST, open_run
from composer_replication.core.stamps import stale_artefacts
from composer_replication.report.audit_page import audit_page
from composer_replication.report.audit_view import AuditView, audit_view
from composer_replication.report.compare_page import compare_page, success_of
from composer_replication.report.headline import evaluation_sentences
from composer_replication.report.html import plural
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import run_report
from composer_replication.report.run_view import state_text
from composer_replication.report.work import work_view

PAGE = "report.html"
COMPARISON = "comparison.html"


def report_command(
    *runs: str,
    audit: bool = False,
    open_page: Annotated[bool, Parameter(name="--open")] = False,
    common: Common = Common(),
) -> int:
    """One page: a run (did it work, channels, data, sites), or without any run the audit of your
    logs. Needs no PyTorch.

    Parameters
    ----------
    runs
        Run folders or names. Default: the latest run, or the audit if there are no runs. Two or
        more runs are compared on a page of their own.
    audit
        Write the audit of the logs, even if there are runs.
    open_page
        Open the page in a browser.
    """
    job = open_where_sessions_are(common)
    trained = (job.runs / LATEST).exists()
    wanted = [] if audit else list(runs) or ([LATEST] if trained else [])
    names = list(dict.fromkeys(wanted))
    pages = [_run(job, name) for name in names] if wanted else [_audit(job)]
    if len(names) > 1:
        pages.append(_comparison(job, names))
    for path, text, _ in [] if job.dry_run else pages:
        write_text(path, text)
        if open_page and (len(names) < 2 or path.name == COMPARISON):
            open_in_browser(job.screen, path)
    value = {"pages": [about for _, _, about in pages]}
    return job.finish(
        value, wrote=[path for path, _, _ in pages], next_command="" if wanted else next_step(job)
    )


def _run(job: Job, name: str) -> tuple[Path, str, dict[str, Any]]:
    """Path, text and facts of one run's page."""
    folder = run_folder(job, name)
    view = run_report(folder)
    text = run_page(view, folder_flags=_flags(job))
    verdict, on_logs = ((view[name] or {}).get("verdict") for name in ("evaluation", "logs"))
    head = f" {view['id']}  {state_text(view['state'])}  {plural(view['steps'], 'step')}"
    job.screen.line(head, style="bold")
    sentences = evaluation_sentences(view["evaluation"], view["logs"])
    for sentence in sentences:
        job.screen.line(f" {sentence}")
    changed = job.warn_changed(open_run(folder))
    about = {
        "run": view["id"],
        "state": view["state"],
        "claim": verdict["claim"] if verdict else None,
        "verdict": sentences[0],
        "logs": {key: on_logs[key] for key in ("claim", "sentence")} if on_logs else None,
        "sites_shown": len(view["work"]["shown"]) if view["work"] else 0,
        "bytes": len(text.encode("utf-8")),
        "stale": changed,
    }
    return open_run(folder).report_html, text, about


def _comparison(job: Job, names: list[str]) -> tuple[Path, str, dict[str, Any]]:
    """Path, text and facts of the page that compares runs."""
    views = [run_report(run_folder(job, name)) for name in names]
    text = compare_page(views)
    about = {
        "compared": [view["id"] for view in views],
        "success": {
            view["id"]: {name: row["success"] for name, row in success_of(view).items()}
            for view in views
        },
        "bytes": len(text.encode("utf-8")),
    }
    return job.work / COMPARISON, text, about


def _audit(job: Job) -> tuple[Path, str, dict[str, Any]]:
    """Path, text and facts of the audit."""
    job.need_file(job.sessions, verb="ingest")
    job.need_fresh(job.sites, verb="sites")
    left_out = job.warn_stale(*stale_artefacts(job.work))
    work, text = draw_audit(job, audit_view(job.work))
    counts = work["counts"]
    of = (
        f"{work['mistaken_sessions']} of {plural(counts['sessions'], 'session')},"
        f" {plural(counts['calls'], 'tool call')}"
    )
    job.screen.line(f" {plural(work['mistakes'], 'mistaken message')} in {of}")
    job.screen.table(
        [
            (kind_title(row["name"]), row["name"], row["count"], row["hinted"])
            for row in work["kinds"]
        ],
        head=("what went wrong", "kind", "sites", "with a hint"),
    )
    names = (
        "counts",
        "sites",
        "mistakes",
        "mistaken_sessions",
        "hints",
        "kinds",
        "tools",
        "repositories",
        "authors",
        "apart",
    )
    about = {
        "run": None,
        **{name: work[name] for name in names},
        "stale": left_out,
        "bytes": len(text.encode("utf-8")),
    }
    return job.work / PAGE, text, about


def draw_audit(job: Job, view: AuditView) -> tuple[dict[str, Any], str]:
    """The work folder as values, and the page of its audit."""
    work = work_view(job.work)
    work["audit"] = judged_audit(job, work["audit"] or {})
    return work, audit_page(work, view=view, folder_flags=_flags(job))


def _flags(job: Job) -> str:
    """The flags, after a space, with which another verb uses the same work folder."""
    flags = job.command_without_settings("").removeprefix("recompose").strip()
    return f" {flags}" if flags else ""
