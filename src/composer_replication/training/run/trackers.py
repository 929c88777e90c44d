"""Mirrors of a run's metrics in the files of experiment trackers (train.trackers).

    with mirrored(("tensorboard",), run=run) as mirrors:
        for mirror in mirrors:
            mirror.add(3, {"hint/loss": 0.25})

metrics.jsonl stays the record; a mirror gets its numbers, step by step. All of them write on this
machine only: no account, no login. Which library writes what:

- TensorBoard (torch.utils.tensorboard): event files in RUN/trackers/tensorboard.
- Weights & Biases (wandb.init(mode="offline")): RUN/trackers/wandb; `wandb sync` sends it, if ever.
- Trackio (trackio.init without a Space): its own SQLite folder, which `trackio show` reads.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.errors import ConfigError, need
from composer_replication.core.files import make_folder
from composer_replication.core.rundir import RunDir

PROJECT = "composer-replication"
FOLDER = "trackers"
SENDING = (
    "TRACKIO_SPACE_ID",
    "TRACKIO_SERVER_URL",
    "TRACKIO_BUCKET_ID",
    "TRACKIO_DATASET_ID",
    "TRACKIO_WEBHOOK_URL",
)
"""Variables with which Trackio sends what it is given; none has an argument that overrules it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """One open tracker; `failures` are what it raises if it cannot write.

    >>> Mirror(name="none", add=lambda step, numbers: None, close=lambda: None, failures=()).name
    'none'
    """

    name: str
    add: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]
    failures: tuple[type[Exception], ...]


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that a curve can show: finite numbers, switches as 0 and 1.

    >>> numbers_of({"step": 3, "hint/loss": 0.5, "hint/status": "active", "x": float("nan")})
    {'hint/loss': 0.5}
    """
    return {
        key: float(value)
        for key, value in metrics.items()
        if key not in ("step", "attempt")
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


def check_trackers(names: Sequence[str]) -> None:
    """Raise MissingExtraError if a tracker is not installed, ConfigError if it would send."""
    for name in names:
        need(name, extra=name)
    if "trackio" in names and (found := [name for name in SENDING if name in os.environ]):
        raise ConfigError(
            f"{found[0]} is set, so Trackio would send the metrics",
            where="train.trackers",
            fix=f"unset {found[0]}; a mirror stays on this machine (`trackio sync` sends it later)",
        )


@contextmanager
def mirrored(names: Sequence[str], *, run: RunDir) -> Iterator[list[Mirror]]:
    """The open mirrors of one launch; they are closed with the block."""
    check_trackers(names)
    with ExitStack() as stack:
        mirrors: list[Mirror] = []
        for name in names:
            mirror = OPEN[name](run)
            stack.callback(_close, mirror)
            mirrors.append(mirror)
        yield mirrors


def _close(mirror: Mirror) -> None:
    """Close a mirror; what it could not write is in metrics.jsonl."""
    with redirect_stdout(io.StringIO()):
        try:
            mirror.close()
        except mirror.failures:
            return


def _folder(run: RunDir, name: str) -> Path:
    folder = run.path.absolute() / FOLDER / name
    make_folder(folder)
    return folder


def _tensorboard(run: RunDir) -> Mirror:
    from torch.utils.tensorboard.writer import SummaryWriter

    folder, writers = str(_folder(run, "tensorboard")), list[SummaryWriter]()

    def add(step: int, numbers: Mapping[str, float]) -> None:
        if not writers:  # from this step on, the points of an earlier launch were taken back
            writers.append(SummaryWriter(folder, purge_step=step))
        for key, value in numbers.items():
            writers[0].add_scalar(key, value, global_step=step)
        writers[0].flush()

    def close() -> None:
        for writer in writers:
            writer.close()

    return Mirror(name="tensorboard", add=add, close=close, failures=(OSError,))


def _wandb(run: RunDir) -> Mirror:
    wandb = need("wandb", extra="wandb")
    name = run.path.name
    # What a later `wandb sync` would send besides the metrics stays out of the files: the host, the
    # console, the code and its git remote.
    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        host="local",
        save_code=False,
        silent=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    live = wandb.init(
        mode="offline",
        dir=str(_folder(run, "wandb")),
        project=PROJECT,
        name=name,
        id=name,
        resume="allow",
        settings=settings,
    )

    def add(step: int, numbers: Mapping[str, float]) -> None:
        live.log(dict(numbers), step=step)

    return Mirror(name="wandb", add=add, close=live.finish, failures=(OSError, wandb.Error))


def _trackio(run: RunDir) -> Mirror:
    trackio = need("trackio", extra="trackio")
    with redirect_stdout(io.StringIO()):  # stdout is the verb's, with --json one object
        live = trackio.init(
            project=PROJECT,
            name=run.path.name,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def add(step: int, numbers: Mapping[str, float]) -> None:
        with redirect_stdout(io.StringIO()):
            live.log(dict(numbers), step=step)

    return Mirror(
        name="trackio", add=add, close=trackio.finish, failures=(OSError, RuntimeError, ValueError)
    )


OPEN: Mapping[str, Callable[[RunDir], Mirror]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
}
