"""Checkpoints: tensors in safetensors, the rest in JSON; a folder appears complete or not at all.

    step_000040/
        model.safetensors        or adapter_model.safetensors; with config.json and the tokenizer
                                 readable by from_pretrained
        optimiser.safetensors    "<parameter>/exp_avg", "<parameter>/exp_avg_sq", "<parameter>/step"
                                 (training/run/optimiser.py: others in 8 bits)
        references.safetensors   "<channel>/<weight>" of a reference that moves (hint.teacher = ema)
        trainer.json             step, settings, hashes of data and start weights, means of channels
                                 and clip, health, good or not
        SHA256SUMS               the checksum of each of these files, checked before they are read
                                 (core/checkpoints.py)
    rejected_step_000050/        later than the one that a health rule, or --resume
                                 RUN/checkpoints/step_000040, went back to

Random numbers and the sampler are functions of (seed, step, rank), so neither has state to save.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from composer_replication.core.checkpoints import (
    OPTIMISER,
    SCHEMA,
    TRAINER,
    UNSEALED,
    has_no_known_damage,
    read_trainer,
    seal,
)
from composer_replication.core.config.root import Config
from composer_replication.core.config.sync_settings import OWN, THIS_MACHINE
from composer_replication.core.errors import ConfigError, DamagedError, DataError, UnwrittenError
from composer_replication.core.files import make_folder, make_private, sync, sync_all
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir, diff_settings
from composer_replication.models.load_student import Student
from composer_replication.models.pretrained_folder import load_weights, read_tensors, save_student
from composer_replication.models.sharding import gathered
from composer_replication.training.run.optimiser import load_state, saved_states

REFERENCES = "references.safetensors"
REJECTED = "rejected_"
NOT_OF_THE_RESULT = ("checkpoint_every", "probe_sites", "trackers")
"""The settings of [train] that change only what a run keeps and shows."""


def save_checkpoint(
    run: RunDir,
    step: int,
    *,
    student: Student,
    optimiser: torch.optim.Optimizer,
    state: Mapping[str, Any],
    keep: int,
    extra: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    moments: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the checkpoint after `step` steps, then remove all but the newest `keep` and the newest
    good one; returns its folder.

    `extra` are tensors that are neither weights nor optimiser state
    (`TrainingModels.extra_tensors`); `load_extra` reads them. `weights` and `moments` (the
    optimiser's) are those of sharded ones, `gathered`. Everything is on the disk before the folder
    gets its name, and so are the run's lines up to here. Raises UnwrittenError if there is no room
    for it: earlier checkpoints stay as they were.
    """
    folder = run.checkpoint(step)
    scratch = folder.with_name(f".{folder.name}.part")
    remove_partial_checkpoints(run, keep=keep)
    with _CompleteOrRemoved(run, scratch, step=step):
        make_folder(scratch)
        save_student(student, scratch, weights=weights)
        if moments is None:
            moments = gathered(optimiser_moments(student, optimiser), keep=True)
        save_file(dict(moments), str(scratch / OPTIMISER))
        if extra:
            save_file(gathered(extra, keep=True), str(scratch / REFERENCES))
        write_json(scratch / TRAINER, {"schema": SCHEMA, "step": step, **state})
        seal(scratch)
        make_private(scratch)  # libraries wrote into it
        sync_all(scratch)
        run.sync()
    if folder.exists():  # a step that ran again after a resume
        _remove(folder)
    os.replace(scratch, folder)
    sync(folder.parent)
    for old in _outdated(run, keep=keep):
        _remove(old)
    return folder


def optimiser_moments(student: Student, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by name: "<parameter>/exp_avg", "<parameter>/exp_avg_sq" and
    "<parameter>/step" of AdamW."""
    names = {parameter: name for name, parameter in student.model.named_parameters()}
    return {f"{names[parameter]}/{key}": value for parameter, key, value in saved_states(optimiser)}


class _CompleteOrRemoved:
    """A block that writes a checkpoint; if the system refuses a write, the part that was written is
    removed and UnwrittenError is raised."""

    def __init__(self, run: RunDir, scratch: Path, *, step: int) -> None:
        self.run, self.scratch, self.step = run, scratch, step

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # tokenizers raises a bare Exception with the system's message in it
        if isinstance(error, (OSError, SafetensorError)) or (
            isinstance(error, Exception) and "(os error " in str(error)
        ):
            shutil.rmtree(self.scratch, ignore_errors=True)
            checkpoints = self.run.checkpoints()
            newest = "the run has no checkpoint yet"
            if checkpoints:
                newest = f"{checkpoints[-1][1].name} stands as it was"
            steps = checkpoints[-1][0] if checkpoints else 0
            raise UnwrittenError(
                f"the checkpoint after step {self.step} could not be written: {_error_text(error)};"
                f" {newest}",
                where=str(self.run.checkpoints_dir),
                fix=f"make room there, then resume: it goes on after step {steps}",
            ) from error


def _error_text(error: BaseException) -> str:
    """The system's message, e.g. "No space left on device"."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def remove_partial_checkpoints(run: RunDir, *, keep: int) -> None:
    """Remove what a killed launch left: checkpoints that were being written or removed, and
    outdated ones."""
    for leftover in run.checkpoints_dir.glob(".*.part") if run.checkpoints_dir.is_dir() else ():
        shutil.rmtree(leftover)
    for old in _outdated(run, keep=keep):
        _remove(old)


def _remove(folder: Path) -> None:
    """Remove a checkpoint; its name never points to half of one."""
    aside = folder.with_name(f".{folder.name}.old.part")
    os.replace(folder, aside)
    shutil.rmtree(aside)


def _outdated(run: RunDir, *, keep: int) -> list[Path]:
    """All but the newest `keep` checkpoints and the newest good one, which a stopped run goes back
    to."""
    checkpoints = run.checkpoints()
    good = [folder for _, folder in checkpoints if is_good(folder)][-1:]
    return [folder for _, folder in checkpoints[:-keep] if folder not in good]


def is_good(folder: Path) -> bool:
    """Whether no health rule was past half of its limit when the checkpoint was written; without
    live rollouts there is no such rule."""
    try:
        return bool(read_trainer(folder).get("good", True))
    except DamagedError:
        return False


def good_checkpoint(run: RunDir) -> tuple[int, Path]:
    """(steps, folder) of the newest good checkpoint whose files are undamaged; raises DataError if
    there is none."""
    good = next(
        (
            (step, folder)
            for step, folder in reversed(run.checkpoints())
            if is_good(folder) and has_no_known_damage(folder)
        ),
        None,
    )
    if good is None:
        raise DataError(
            "no good checkpoint to go back to",
            where=str(run.checkpoints_dir),
            fix="start a new run",
        )
    return good


def set_aside(run: RunDir, *, after: int) -> list[str]:
    """Rename the checkpoints of more than `after` steps, so that nobody takes their weights for the
    run's; returns the new names.

    Example: step_000040 -> rejected_step_000040
    """
    names: list[str] = []
    for step, folder in run.checkpoints():
        if step > after:
            aside = folder.with_name(f"{REJECTED}{folder.name}")
            if aside.exists():
                shutil.rmtree(aside)
            os.replace(folder, aside)
            names.append(aside.name)
    return names


def read_state(folder: Path) -> dict[str, Any]:
    """The content of trainer.json; raises DataError for another schema, DamagedError for a folder
    without it."""
    state = read_trainer(folder)
    if state.get("schema") not in (SCHEMA, UNSEALED):
        problem = (
            f"checkpoint schema {state.get('schema')!r}, this version reads {UNSEALED} and {SCHEMA}"
        )
        raise DataError(problem, where=str(folder / TRAINER), fix="start a new run")
    return state


def load_tensors(folder: Path, *, student: Student, optimiser: torch.optim.Optimizer) -> None:
    """Put weights and optimiser state back; raises DataError if they are of another model."""
    load_weights(student, folder)
    parameters = dict(student.model.named_parameters())
    for key, value in read_tensors(folder / OPTIMISER).items():
        name, slot = key.rsplit("/", 1)
        parameter = parameters.get(name)
        if parameter is None or not load_state(optimiser, parameter, name=slot, value=value):
            problem = f"the optimiser state is of another model or optimiser: {key} does not fit"
            raise DataError(
                problem, where=str(folder / OPTIMISER), fix="resume with the run's own student"
            )


def load_extra(folder: Path) -> dict[str, Tensor]:
    """The tensors that `save_checkpoint` wrote as `extra`; {} if there were none."""
    path = folder / REFERENCES
    return read_tensors(path) if path.exists() else {}


def training_settings(config: Config) -> dict[str, Any]:
    """The settings that decide what training computes; the others may change between launches."""
    return _of_training(config.model_dump(mode="json"))


def settings_of(run: RunDir, step: int | None = None) -> dict[str, Any]:
    """The settings that a resume is compared with: those of the newest checkpoint, or of the one
    after `step` steps; without any, those that the run was started with. No tensor is read."""
    folders = [folder for at, folder in run.checkpoints() if step in (None, at)]
    return read_state(folders[-1])["settings"] if folders else _of_training(run.resolved())


def _of_training(dump: Mapping[str, Any]) -> dict[str, Any]:
    train = {key: value for key, value in dump["train"].items() if key != "probe_sites"}
    live = ("rollouts", "sites", "hints") if dump["rollouts"]["env"] else ()
    sync = train.pop("sync", {})
    if sync.get("url"):  # without, a run is what it was before there were replicas
        train["sync"] = {key: value for key, value in sync.items() if key not in OWN}
    return {**{key: dump[key] for key in ("seed", "student", *live)}, "train": train}


def _decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that change only what is kept, shown, or fits into memory.

    Of live rollouts and of forks train.micro_tokens also decides which hints are used.
    """
    train = settings["train"]
    used = {"micro_tokens"} if "rollouts" in settings or train.get("fork") else set[str]()
    left_out = {*THIS_MACHINE, *NOT_OF_THE_RESULT} - used
    return {**settings, "train": {k: v for k, v in train.items() if k not in left_out}}


def check_unchanged(
    before: Mapping[str, Any], now: Mapping[str, Any], *, run: RunDir, accept_changes: bool
) -> list[str]:
    """The settings that changed since the run was started, or since its checkpoint; raises
    ConfigError if the changes are not accepted.

    Example: check_unchanged(settings_of(run), training_settings(config), run=run, ...) -> []
    """
    changed = diff_settings(_decisive(before), _decisive(now))
    if changed and not accept_changes:
        since = "the checkpoint" if run.checkpoints() else "the run was started"
        fix = (
            "resume with the flags and settings that the run was started with (its command.txt), or"
            " with --accept-changes"
        )
        raise ConfigError(
            f"settings changed since {since}: {'; '.join(changed)}", where=str(run.path), fix=fix
        )
    return changed


def check_resume(
    state: Mapping[str, Any],
    *,
    run: RunDir,
    settings: Mapping[str, Any],
    identity: Mapping[str, str],
    accept_changes: bool,
) -> list[str]:
    """The settings that changed since the checkpoint; raises if the changes are not accepted, or if
    data, start weights or environment differ."""
    # settings first: other data may only be the result of other settings
    changed = check_unchanged(state["settings"], settings, run=run, accept_changes=accept_changes)
    if state["data_sha256"] != identity["data_sha256"]:
        raise DataError(
            "the examples or pairs are not those of this run",
            fix="start a new run, or build the same examples again",
        )
    if state["start_sha256"] != identity["start_sha256"]:
        raise DataError(
            "the student's start weights are not those of this run: the frozen teacher would be"
            " another model",
            fix="load the student that the run started from",
        )
    if state.get("env_sha256", "") != identity.get("env_sha256", ""):
        raise DataError(
            "the file of your own environment has changed since the checkpoint: its tasks would be"
            " others",
            where="rollouts.env",
            fix="put the file back as it was (data/manifest.json has its hash), or start a new run",
        )
    return changed
