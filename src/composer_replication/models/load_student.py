"""Any causal language model as the student: "tiny", a folder, a hub name, a GGUF file, an adapter.

    student = load_student(config.student, tokenizer=load_tokenizer(folder), seed=config.seed)
    student.model, student.num_parameters, student.num_trainable

All weights are trained, or LoRA adapters. The tokenizer is loaded one floor above (tokens/hf.py);
it must be the one that `build` used.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.config.student_settings import TINY, StudentSettings
from composer_replication.core.errors import ConfigError, first_line, need
from composer_replication.models.adapter_folder import (
    ADAPTER,
    base_model,
    lora_fields,
    with_adapter,
)
from composer_replication.models.forward import check_projection
from composer_replication.models.gguf_file import load_gguf
from composer_replication.models.load_adapter import load_adapter
from composer_replication.models.model_files import check_path, model_kind, tokens_without_a_row
from composer_replication.models.quantised_base import keep_packing, num_weights, quantisation
from composer_replication.models.tiny import make_tiny

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

NO_CODE = {"trust_remote_code": False, "use_safetensors": True}
"""A model folder may come from anybody: its Python code is never run, and weights are never read
from pickles, which can run any code. Without the first, transformers asks on a terminal, where a
hasty "y" would be enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """The model that is trained, its tokenizer, and its name; `lora` = only adapters train.

    `began_as_adapter`: the adapters are those of a folder, so the start is not the base alone.
    """

    name: str
    model: Any
    tokenizer: Any
    lora: bool = False
    began_as_adapter: bool = False

    @property
    def num_parameters(self) -> int:
        """The number of all weights, adapters included."""
        return sum(num_weights(p) for p in self.model.parameters())

    @property
    def num_trainable(self) -> int:
        """The number of weights that the optimiser updates."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def pad_id(self) -> int:
        """The id that pads rows on the right; it is never read, so any id will do."""
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0


_FIX_NAME = (
    'give a folder written by save_pretrained, a GGUF file, a hub name you can reach, or "tiny";'
    " `recompose model check` says more"
)


def load_student(settings: StudentSettings, *, tokenizer: Any, seed: int) -> Student:
    """The student of a run, in training precision, with LoRA adapters if the settings ask for them.

    Raises ConfigError for a name that cannot be loaded, and for a tokenizer with more tokens than
    the model embeds.
    """
    settings = with_adapter(settings)
    is_adapter = model_kind(settings.model) == "adapter"
    options = quantisation(settings, base_model(settings))
    model = (
        make_tiny(tokenizer, seed=seed).to(DTYPES[settings.dtype])
        if settings.model == TINY
        else _from_pretrained(base_model(settings), settings, **options)
    )
    keep_packing(model)
    rows = model.get_input_embeddings().weight.shape[0]
    if surplus := tokens_without_a_row(tokenizer, rows):
        raise ConfigError(
            f"the tokenizer has {rows + surplus} tokens, the model embeds {rows}",
            where=settings.model,
        )
    check_projection(model)
    if settings.lora.rank:
        model = _with_lora(model, settings, seed=seed)
    if is_adapter:
        load_adapter(model, Path(settings.model) / ADAPTER)
    return Student(
        name=settings.model,
        model=model,
        tokenizer=tokenizer,
        lora=settings.lora.rank > 0,
        began_as_adapter=is_adapter,
    )


def _from_pretrained(name: str, settings: StudentSettings, **options: Any) -> Any:
    """The model of a folder, hub name or GGUF file; `settings` say what it is for."""
    transformers = need("transformers", extra="train")
    transformers.utils.logging.disable_progress_bar()  # a library must not draw on the terminal
    dtype = DTYPES[settings.dtype]
    is_base = name != settings.model
    check_path(name, where=settings.model if is_base else "student.model", is_base=is_base)
    try:
        if model_kind(name) == "gguf":
            return load_gguf(Path(name), dtype=dtype)
        options = {"dtype": dtype, **NO_CODE, **options}
        return transformers.AutoModelForCausalLM.from_pretrained(name, **options)
    except ConfigError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cannot load {name!r}{', the base of the adapter' if is_base else ''}:"
            f" {first_line(error)}",
            where=settings.model if is_base else "student.model",
            fix="give the base model in student.base: a folder, a GGUF file or a hub name"
            if is_base
            else _FIX_NAME,
        ) from error


def _with_lora(model: Any, settings: StudentSettings, *, seed: int) -> Any:
    """The model with adapters on every linear layer except the head; they start as no change."""
    peft = need("peft", extra="train")
    fields = (
        lora_fields(Path(settings.model))
        if model_kind(settings.model) == "adapter"
        else {
            "r": settings.lora.rank,
            "lora_alpha": settings.lora.alpha,
            "target_modules": "all-linear",
        }
    )
    config = peft.LoraConfig(**fields, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with warnings.catch_warnings():
                # peft reads an old name of transformers, which users of this program cannot change
                warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
                adapted = peft.get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(
                f"no LoRA for {settings.model!r}: {first_line(error)}",
                where="student.lora",
                fix="set rank = 0",
            ) from error
    from composer_replication.models.lora_linear import keep_inputs_once

    keep_inputs_once(adapted)
    return adapted
