"""The tensors of a safetensors file, and those of an adapter put into a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from composer_replication.core.errors import DamagedError, DataError
from composer_replication.models.sharding import part_of


def load_adapter(model: Any, path: Path) -> None:
    """Put the adapter of a file into a peft model of its shape; raises DataError unless all of it
    fits."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    parameters = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {
        name: part_of(tensor, like=parameters.get(name, tensor))
        for name, tensor in read_tensors(path).items()
    }
    try:
        outcome = set_peft_model_state_dict(model, tensors)
    except RuntimeError as error:  # tensors of other sizes
        raise DataError(
            f"the adapter is of another model: {str(error).splitlines()[-1].strip()}",
            where=str(path),
            fix="give the base that it was trained on",
        ) from error
    missing_keys = [name for name in outcome.missing_keys if "lora_" in name]
    check_all_fit(missing_keys, outcome.unexpected_keys, path=path)


def check_all_fit(missing: Sequence[str], unexpected: Sequence[str], *, path: Path) -> None:
    """Raise DataError if weights of the model are missing from a file, or others are in it."""
    if missing or unexpected:
        raise DataError(
            f"the checkpoint is of another model: {(missing or unexpected)[0]} does not fit",
            where=str(path),
            fix="resume with the run's own student",
        )


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file; raises DamagedError if it is missing or incomplete."""
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        problem = (
            f"{path.name} cannot be read: {error}" if path.exists() else f"{path.name} is missing"
        )
        raise DamagedError(
            problem, where=str(path.parent), fix="go on from another checkpoint"
        ) from error
