"""What `recompose audit` says if --since and --project leave no session: what there is instead."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import PurePath

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions
from composer_replication.core.errors import DataError
from composer_replication.core.trace import Session
from composer_replication.report.audit_view import end_day, is_chosen
from composer_replication.report.html import plural

MOST_NAMES = 3


def nothing_left(job: Job, *, since: str, project: str, first_day: str) -> DataError:
    """The error if no stored session is left: it names the projects that are most like the one
    that was meant, or the newest day; `first_day` is the day that `since` means."""
    projects: Counter[str] = Counter()
    newest, num_stored = "", 0
    for session in read_sessions(job.sessions):
        num_stored += 1
        projects[_project_of(session)] += 1
        if is_chosen(session, since="", project=project):
            newest = max(newest, end_day(session))
    chosen = {"--since": since, "--project": project}
    where = " ".join(f"{flag} {value}" for flag, value in chosen.items() if value)
    stored = f"the store holds {plural(num_stored, 'session')}"
    if newest:
        of = f" of {project}" if project else ""
        fix = f"{stored}; the newest{of} ended on {newest}: --since {newest}"
    elif project:
        fix = f"{stored}, of {_nearest(project, projects)}"
    else:
        fix = f"choose less strictly; {stored}"
    problem = f"no session since {first_day}" if newest else "no session is left"
    return DataError(problem, where=where or str(job.sessions), fix=fix)


def _project_of(session: Session) -> str:
    return session.repository or PurePath(session.cwd).name or "no folder"


def _nearest(wanted: str, projects: Counter[str]) -> str:
    """The names that are most like the one that was meant, else those of most sessions."""
    lowered = {name.lower(): name for name in projects}
    near = difflib.get_close_matches(wanted.lower(), lowered, n=MOST_NAMES, cutoff=0.5)
    names = [lowered[name] for name in near] or [
        name for name, _ in projects.most_common(MOST_NAMES)
    ]
    left = len(projects) - len(names)
    return ", ".join(names) + (f" and {plural(left, 'other')}" if left else "")
