"""Checkpoints: tensors in safetensors, the rest in JSON; a folder appears whole or not at all.

    step_000040/model.safetensors (or adapter_model.safetensors), config.json, tokenizer...   readable by from_pretrained
    step_000040/optimiser.safetensors     "<parameter>/exp_avg", "<parameter>/exp_avg_sq", "<parameter>/step"
    step_000040/references.safetensors    "<channel>/<weight>" of a reference that moves (hint.teacher = ema)
    step_000040/trainer.json              step, settings, hashes of data and start weights, channel means, health

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
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir, diff_settings
from composer_replication.models.export import load_weights, save_student
from composer_replication.models.load import Student

SCHEMA = 2
OPTIMISER, REFERENCES, TRAINER = "optimiser.safetensors", "references.safetensors", "trainer.json"


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
    """Write the checkpoint after `step` steps, then remove all but the newest `keep`; returns its folder.

    `extra` are tensors that are neither weights nor optimiser state (`Trainer.extra_tensors`); `load_extra` reads them.
    """
    folder = run.checkpoint(step)
    scratch = folder.with_name(f".{folder.name}.part")
    for leftover in run.checkpoints_dir.glob(".*.part") if run.checkpoints_dir.is_dir() else ():
        shutil.rmtree(leftover)
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
    if folder.exists():  # a step that ran again after a resume
        shutil.rmtree(folder)
    os.replace(scratch, folder)
    for _, old in run.checkpoints()[:-keep]:
        shutil.rmtree(old)
    return folder


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
    return {key: dump[key] for key in ("seed", "student", "train")}


def check_resume(state: Mapping[str, Any], *, settings: Mapping[str, Any], identity: Mapping[str, str], accept_changes: bool) -> list[str]:
    """The settings that changed since the checkpoint; raises where they were not accepted, or data or start weights differ."""
    if state["data_sha256"] != identity["data_sha256"]:
        raise DataError("the examples or pairs are not those of this run", fix="start a new run, or build the same examples again")
    if state["start_sha256"] != identity["start_sha256"]:
        raise DataError(
            "the student's start weights are not those of this run: the frozen teacher would be another model",
            fix="load the student that the run started from",
        )
    changed = diff_settings(state["settings"], settings)
    if changed and not accept_changes:
        raise ConfigError("settings changed since the checkpoint: " + "; ".join(changed), fix="resume with --accept-changes, or undo them")
    return changed
