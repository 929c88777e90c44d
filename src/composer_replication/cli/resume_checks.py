"""Compare a run that is resumed with the settings of this call, before anything heavy is loaded.

check_same_settings(job, (run, None), accept_changes=False)   # ConfigError: settings changed
"""

from __future__ import annotations

from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.resuming import offer_earlier_checkpoint
from composer_replication.core.checkpoints import whole_checkpoint
from composer_replication.core.errors import DamagedError
from composer_replication.core.rundir import RunDir
from composer_replication.tokens.artefact import Dataset


def check_same_settings(
    job: Job, resumed: tuple[RunDir, int | None] | None, *, accept_changes: bool
) -> None:
    """Raise ConfigError if the run to go on with has other settings, and they are not accepted."""
    from composer_replication.training.run.checkpoint import (
        check_unchanged,
        settings_of,
        training_settings,
    )

    if resumed is None:
        return
    run, step = resumed
    try:
        before = settings_of(run, step)
    except DamagedError:  # said when the whole checkpoint is checked, with the one before it
        return
    check_unchanged(before, training_settings(job.config), run=run, accept_changes=accept_changes)


def check_resume_dry(
    job: Job, run: RunDir, step: int | None, data: Dataset, *, accept_changes: bool
) -> dict[str, Any]:
    """Check a resume without loading weights: the checkpoint, and which settings have changed."""
    from composer_replication.training.draws.identity import data_sha256
    from composer_replication.training.run.checkpoint import (
        check_resume,
        check_unchanged,
        read_state,
        settings_of,
        training_settings,
    )

    now = training_settings(job.config)
    if step is None and not run.checkpoints():
        changed = check_unchanged(settings_of(run), now, run=run, accept_changes=accept_changes)
        return {"run": str(run.path), "checkpoint": None, "step": 0, "changed": changed}
    with offer_earlier_checkpoint(job, "train", accept_changes=accept_changes):
        checkpoint_step, folder = whole_checkpoint(run, step)
        state = read_state(folder)
    identity = {name: str(state.get(name, "")) for name in ("start_sha256", "env_sha256")}
    identity["data_sha256"] = data_sha256(
        () if job.config.train.backend == "trl" else data.examples, data.pairs
    )
    changed = check_resume(
        state,
        run=run,
        settings=now,
        identity=identity,
        accept_changes=accept_changes,
    )
    for change in changed:
        job.screen.line(f" changed  {change}", style="yellow")
    if not changed:
        job.screen.line(" changed  no setting, no example: the checkpoint is whole and fits")
    return {
        "run": str(run.path),
        "checkpoint": str(folder),
        "step": checkpoint_step,
        "changed": changed,
    }
