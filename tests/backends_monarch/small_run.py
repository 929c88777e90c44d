"""A small run in actors: the taught student of tests/training in its environment of desks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from composer_replication.core.config.root import Config
from composer_replication.core.rundir import RunDir
from composer_replication.models.load_student import Student
from composer_replication.rollouts.task_source import TaskSource
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.backends.monarch_workers import RunParts, TrainerLaunch
from composer_replication.training.loop import train
from tests.training.small_student import make_run
from tests.training.taught import PAIRS, desks, live, live_config, renderer, taught_student


def saved_student(file: Path) -> Student:
    """The student with the weights of a file: the same in every process, and taught once."""
    return taught_student(weights=load_file(str(file)))


def renderer_of(student: Student) -> Renderer:
    del student
    return renderer()


@contextmanager
def open_desks() -> Iterator[TaskSource]:
    yield desks()


def save_weights(folder: Path) -> Path:
    """A file with the taught student's weights."""
    file = folder / "taught.safetensors"
    parameters = taught_student().model.named_parameters()
    save_file({n: p.detach().clone().contiguous() for n, p in parameters}, str(file))
    return file


def small_config(*, monarch: dict[str, int] | None = None, **settings: Any) -> Config:
    """Four steps on all channels; `overlap` and other names of [rollouts] are taken out of the
    settings of [train]."""
    names = ("overlap", "groups", "group_size", "extra_groups", "batch_episodes")
    rollouts = {name: settings.pop(name) for name in names if name in settings}
    config = live_config(
        train={"steps": 4, "checkpoint_every": 4, "grad_every": 9, **settings}, **rollouts
    )
    return Config.model_validate({**config.model_dump(), "monarch": monarch or {}})


def small_parts(config: Config, weights: Path) -> RunParts:
    return RunParts(
        config=config,
        make_student=partial(saved_student, weights),
        make_renderer=renderer_of,
        open_tasks=open_desks,
    )


def small_launch(folder: Path, config: Config, **options: Any) -> tuple[RunDir, TrainerLaunch]:
    run = make_run(folder, config)
    return run, TrainerLaunch(run=run.path, pairs=tuple(PAIRS), **options)


def reference_run(folder: Path, config: Config, weights: Path) -> tuple[RunDir, Student]:
    """The same run by the reference loop, in this process."""
    run, student = make_run(folder, config), saved_student(weights)
    train(config, student=student, run=run, live=live(config), pairs=PAIRS)
    return run, student
