"""The audit's own store, in the user's data folder: what other verbs look at after an audit.

job = open_audit_store(common, writes=False)     # `recompose show site s001` wherever it is called
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from composer_replication.cli.flags import Common, dotted_settings
from composer_replication.cli.ingest_store import READING
from composer_replication.cli.job import Job, open_job

RULES = "agent_rules.md"


def open_audit_store(common: Common, *, uses: tuple[str, ...] = (), writes: bool = True) -> Job:
    """The job, in the user's data folder unless a flag, a settings file or a work folder here says
    otherwise: the audit is of all projects, wherever it is called."""
    return open_job(_for_audit(common, _look(common)), uses=uses, writes=writes)


def open_where_sessions_are(
    common: Common, *, uses: tuple[str, ...] = (), writes: bool = True
) -> Job:
    """The job in the work folder; if there is none and nothing says which, in the audit's store,
    which is then named."""
    work_job = _look(common)
    for_audit = _for_audit(common, work_job)
    if work_job.work.exists() or not _look(for_audit).sessions.exists():
        return open_job(common, uses=uses, writes=writes)
    job = open_job(for_audit, uses=uses, writes=writes)
    job.screen.labelled("store", f"that of `recompose audit`: {job.work}", style="dim")
    return job


def _look(common: Common) -> Job:
    """The job that these flags would open, without a line on the screen."""
    return open_job(replace(common, quiet=True), writes=False)


def _for_audit(common: Common, work_job: Job) -> Common:
    """The flags with which the audit's store is opened."""
    is_named = common.out is not None or work_job.loaded.sources or "work-dir" in dotted_settings()
    if is_named or (work_job.work / "sessions.jsonl").exists():
        return common
    return replace(common, out=data_folder(os.environ))


def is_audit_store(job: Job) -> bool:
    """Whether a work folder is only an audit's: `audit` has read logs into it, and nobody has
    written hints."""
    return (job.work / READING).exists() and not job.hints.exists()


def audit_again(job: Job) -> str:
    """The command for the audit of this store; the data folder needs no flag."""
    is_default = job.common.out == data_folder(os.environ)
    return "recompose audit" if is_default else job.command("audit")


def command_after_audit(job: Job, verb: str) -> str:
    """The command for a verb that looks at this store: without a flag if it finds the store so."""
    is_found = job.common.out == data_folder(os.environ) and not Path(job.config.work_dir).exists()
    return f"recompose {verb}" if is_found else job.command(verb)


def data_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the audit's store: $XDG_DATA_HOME/recompose, on Windows %LOCALAPPDATA%.

    >>> data_folder({"XDG_DATA_HOME": "/home/me/.data"}).as_posix()
    '/home/me/.data/recompose'
    """
    if base := environ.get("XDG_DATA_HOME") or environ.get("LOCALAPPDATA"):
        return Path(base) / "recompose"
    return Path(environ.get("HOME") or Path.home()) / ".local" / "share" / "recompose"
