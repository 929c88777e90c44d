"""Checkpoints: tensors in safetensors, the rest in JSON; a folder appears whole or not at all.

    step_000040/model.safetensors (or adapter_model.safetensors), config.json, tokenizer...   readable by from_pretrained
    step_000040/optimiser.safetensors     "<parameter>/exp_avg", "<parameter>/exp_avg_sq", "<parameter>/step"
    step_000040/references.safetensors    "<channel>/<weight>" of a reference that moves (hint.teacher = ema)
    step_000040/trainer.json              step, settings, hashes of data and start weights, means of channels and clip, health, good or not
    rejected_step_000050/                 later than the one that a health rule went back to

Random numbers and the sampler are functions of (seed, step, rank), so neither has state to save.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.files import make_folder, make_private
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir, diff_settings
from composer_replication.models.export import load_weights, save_student
from composer_replication.models.load import Student

SCHEMA = 3
OPTIMISER, REFERENCES, TRAINER = "optimiser.safetensors", "references.safetensors", "trainer.json"
REJECTED = "rejected_"


def save_checkpoint(
    run: RunDir,
    step: int,
    *,
    student: Student,
    optimiser: torch.optim.Optimizer,
    state: Mapping[str, Any],
    keep: int,
    extra: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write the checkpoint after `step` steps, then remove all but the newest `keep` and the newest good one; returns its folder.

    `extra` are tensors that are neither weights nor optimiser state (`Trainer.extra_tensors`); `load_extra` reads them.
    """
    folder = run.checkpoint(step)
    scratch = folder.with_name(f".{folder.name}.part")
    sweep(run, keep=keep)
    make_folder(scratch)
    save_student(student, scratch)
    names = {parameter: name for name, parameter in student.model.named_parameters()}
    tensors = {
        f"{names[parameter]}/{key}": value.detach().cpu().contiguous()
        for parameter, slots in optimiser.state.items()
        for key, value in slots.items()
    }
    save_file(tensors, str(scratch / OPTIMISER))
    if extra:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in extra.items()}, str(scratch / REFERENCES))
    write_json(scratch / TRAINER, {"schema": SCHEMA, "step": step, **state})
    make_private(scratch)  # libraries wrote into it
    if folder.exists():  # a step that ran again after a resume
        _remove(folder)
    os.replace(scratch, folder)
    for old in _outdated(run, keep=keep):
        _remove(old)
    return folder


def sweep(run: RunDir, *, keep: int) -> None:
    """Remove what a kill left: checkpoints that were being written or removed, and old ones that it kept from being removed."""
    for leftover in run.checkpoints_dir.glob(".*.part") if run.checkpoints_dir.is_dir() else ():
        shutil.rmtree(leftover)
    for old in _outdated(run, keep=keep):
        _remove(old)


def _remove(folder: Path) -> None:
    """Remove a checkpoint so that at no moment half of one stands under its name."""
    aside = folder.with_name(f".{folder.name}.old.part")
    os.replace(folder, aside)
    shutil.rmtree(aside)


def _outdated(run: RunDir, *, keep: int) -> list[Path]:
    """All but the newest `keep` checkpoints, and never the newest good one: it is what a stopped run goes back to."""
    kept = run.checkpoints()
    good = [folder for _, folder in kept if is_good(folder)][-1:]
    return [folder for _, folder in kept[:-keep] if folder not in good]


def is_good(folder: Path) -> bool:
    """Whether no health rule was past half of its limit when the checkpoint was written; without live rollouts there is no such rule."""
    path = folder / TRAINER
    return path.exists() and bool(json.loads(path.read_text(encoding="utf-8")).get("good", True))


def good_checkpoint(run: RunDir) -> tuple[int, Path]:
    """(steps, folder) of the newest good checkpoint; raises DataError where there is none."""
    good = [(step, folder) for step, folder in run.checkpoints() if is_good(folder)]
    if not good:
        raise DataError("no good checkpoint to go back to", where=str(run.checkpoints_dir), fix="start a new run")
    return good[-1]


def set_aside(run: RunDir, *, after: int) -> list[str]:
    """Rename the checkpoints of more than `after` steps, so that nothing takes their weights for the run's; returns the new names.

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
    """What trainer.json holds; raises DataError for another schema or a folder without it."""
    path = folder / TRAINER
    if not path.exists():
        raise DataError("no trainer state", where=str(folder), fix="resume from another checkpoint")
    state = json.loads(path.read_text(encoding="utf-8"))
    if state.get("schema") != SCHEMA:
        raise DataError(f"checkpoint schema {state.get('schema')!r}, this version reads {SCHEMA}", where=str(path), fix="start a new run")
    return state


def load_tensors(folder: Path, *, student: Student, optimiser: torch.optim.Optimizer) -> None:
    """Put weights and optimiser state back; raises DataError where they are of another model."""
    load_weights(student, folder)
    parameters = dict(student.model.named_parameters())
    for key, value in load_file(str(folder / OPTIMISER)).items():
        name, slot = key.rsplit("/", 1)
        if name not in parameters:
            raise DataError(f"optimiser state of an unknown weight {name}", where=str(folder), fix="resume with the run's own student")
        # AdamW keeps its step count on the CPU
        optimiser.state[parameters[name]][slot] = value if slot == "step" else value.to(parameters[name].device)


def load_extra(folder: Path) -> dict[str, Tensor]:
    """What `save_checkpoint` wrote as `extra`; empty where there was nothing."""
    path = folder / REFERENCES
    return load_file(str(path)) if path.exists() else {}


def training_settings(config: Config) -> dict[str, Any]:
    """The settings that decide what training computes; the others may change between launches."""
    dump = config.model_dump(mode="json")
    live = ("rollouts", "sites", "hints") if config.rollouts.env else ()
    return {key: dump[key] for key in ("seed", "student", "train", *live)}


def check_resume(state: Mapping[str, Any], *, settings: Mapping[str, Any], identity: Mapping[str, str], accept_changes: bool) -> list[str]:
    """The settings that changed since the checkpoint; raises where they were not accepted, or data or start weights differ."""
    changed = diff_settings(state["settings"], settings)
    if changed and not accept_changes:  # first: other data may only be what other settings made of it
        fix = "resume with the flags and settings that the run was started with (its command.txt), or with --accept-changes"
        raise ConfigError("settings changed since the checkpoint: " + "; ".join(changed), fix=fix)
    if state["data_sha256"] != identity["data_sha256"]:
        raise DataError("the examples or pairs are not those of this run", fix="start a new run, or build the same examples again")
    if state["start_sha256"] != identity["start_sha256"]:
        raise DataError(
            "the student's start weights are not those of this run: the frozen teacher would be another model",
            fix="load the student that the run started from",
        )
    if state.get("env_sha256", "") != identity.get("env_sha256", ""):
        raise DataError(
            "the file of your own environment has changed since the checkpoint: its tasks would be others",
            where="rollouts.env",
            fix="put the file back as it was (data/manifest.json has its hash), or start a new run",
        )
    return changed
