"""One episode of `recompose serve`: a copy of the tree, the program, and the check."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer_replication.cli.job import Job
from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder

if TYPE_CHECKING:
    from composer_replication.serve.endpoint import Endpoint
    from composer_replication.serve.episode_record import EpisodeRecord


def play_and_check(
    job: Job,
    endpoint: Endpoint,
    record: EpisodeRecord,
    tree: Path | None,
    place: Path,
    *,
    check: str,
    **options: Any,
) -> float | None:
    """Play one episode on a copy of the tree; returns the reward, None without a check."""
    from composer_replication.serve.play import play_episode

    copy = place / "tree"
    make_folder(copy)
    if tree is not None:
        shutil.copytree(tree, copy, symlinks=True, dirs_exist_ok=True)
    job.screen.line(f" {record.name}: {options['player']} plays", style="dim")
    played = play_episode(record, endpoint, tree=copy, folder=place, **options)
    if not any(True for _ in record.replies):
        last_lines = (place / "stderr").read_text("utf-8", "replace").strip().splitlines()[-3:]
        raise DataError(
            f"the program asked for no message (exit code {played.exit_code}):"
            f" {' '.join(last_lines)}",
            where=options["player"],
            fix="is it installed, and does it read OPENAI_BASE_URL or ANTHROPIC_BASE_URL?",
        )
    if not check:
        return None
    judged = subprocess.run(
        shlex.split(check), cwd=copy, capture_output=True, timeout=options["timeout_s"], check=False
    )
    return float(judged.returncode == 0)
