"""A trained student as a folder that `from_pretrained`, and so any server, can read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from composer_replication.core.errors import need
from composer_replication.models.adapter_folder import ADAPTER
from composer_replication.models.load_adapter import check_all_fit, load_adapter, read_tensors
from composer_replication.models.load_student import Student
from composer_replication.models.sharding import gathered, part_of, unsharded

WEIGHTS = "model.safetensors"


def save_student(
    student: Student, folder: Path, *, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write weights (or the adapter), configuration and tokenizer into `folder`.

    The caller makes the folder appear atomically. Full weights carry the parameters' own names,
    each once (a tied head is not written twice). `weights` are those of a sharded student,
    `gathered`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if student.lora:
        student.model.save_pretrained(str(folder), state_dict=weights)
    else:
        tensors = dict(weights or gathered(dict(student.model.named_parameters()), keep=True))
        save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})
        # servers choose the class by this field; save_pretrained writes it, too
        student.model.config.architectures = [type(student.model).__name__]
        student.model.config.save_pretrained(str(folder))
        if getattr(student.model, "generation_config", None) is not None:
            student.model.generation_config.save_pretrained(str(folder))
    student.tokenizer.save_pretrained(str(folder))


def save_served(
    model: Any, tokenizer: Any, folder: Path, *, template: str, end_ids: Sequence[int]
) -> None:
    """Write a model (or a peft model's adapter) so that any server reads it as it was trained.

    The caller makes the folder appear atomically. `template`, the chat template of the training,
    becomes the model's. Generation ends at `end_ids`, the end tokens of that template's messages,
    and at every id that ended it before.
    """
    # a library must not draw on the terminal
    need("transformers", extra="train").utils.logging.disable_progress_bar()
    folder.mkdir(parents=True, exist_ok=True)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        end_ids_before = (
            generation.eos_token_id
            if isinstance(generation.eos_token_id, list)
            else [generation.eos_token_id]
        )
        all_end_ids = dict.fromkeys(
            int(i) for i in (*end_ids_before, *end_ids, tokenizer.eos_token_id) if i is not None
        )
        generation.eos_token_id = list(all_end_ids)
        generation.save_pretrained(str(folder))
    model.save_pretrained(str(folder))
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))


def load_weights(student: Student, folder: Path) -> None:
    """Load the weights of `save_student` into a student of the same shape.

    Raises DataError unless all of them fit.
    """
    path = folder / (ADAPTER if student.lora else WEIGHTS)
    if student.lora:
        load_adapter(student.model, path)
        return
    parameters = dict(student.model.named_parameters())
    tensors = {
        name: part_of(tensor, like=parameters.get(name, tensor))
        for name, tensor in read_tensors(path).items()
    }
    outcome = student.model.load_state_dict(tensors, strict=False)
    missing_keys = sorted(set(parameters) - set(tensors))
    check_all_fit(missing_keys, outcome.unexpected_keys, path=path)


def weights_sha256(model: Any) -> str:
    """A hash of every weight, bit for bit: it identifies the student of a run or an evaluation.

    The same for a sharded model, whose ranks must all call it.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode() + b"\0")
        tensor = unsharded(parameter.detach()).cpu().contiguous()
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
