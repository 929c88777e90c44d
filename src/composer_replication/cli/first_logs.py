"""The command that brings the first sessions in, as it can be run: without a question."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.data.ingestion.find_logs import default_folders, find_logs


def first_logs(job: Any) -> str:
    """`ingest` of the settings' logs, or of the folders of agents that hold some; "" without any.

    Example: logs of Claude Code and nothing in the settings -> "recompose ingest
    /home/me/.claude/projects"
    """
    if named := job.config.ingest.logs:
        return job.command("ingest") if _holds_logs(named) else ""
    folders = [path for path in default_folders(os.environ) if path.is_dir()]
    quoted = [shlex.quote(str(path)) for path in folders if _holds_logs([path])]
    return job.command(" ".join(["ingest", *quoted])) if quoted else ""


def _holds_logs(paths: Sequence[str | Path]) -> bool:
    try:
        return any(not log.why and log.num_bytes for log in find_logs(paths))
    except DataError:
        return False
