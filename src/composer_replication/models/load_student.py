"""Any causal language model as the student: "tiny", a folder, or a hub name; all weights or LoRA
adapters.

    student = load_student(config.student, tokenizer=load_tokenizer(folder), seed=config.seed)
    student.model, student.num_parameters, student.num_trainable

The tokenizer is loaded one floor above (tokens/hf.py); it must be the one that `build` used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ConfigError, first_line, need
from composer_replication.models.forward import check_projection
from composer_replication.models.tiny import make_tiny

TINY = "tiny"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

NO_CODE = {"trust_remote_code": False, "use_safetensors": True}
"""A model's folder may come from anybody: Python that it brings is never run, and weights are never
read from pickles, which can run any. Without the first, transformers asks on a terminal, and a y in
haste is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Student:
    """The model that is trained, its tokenizer, and where both came from; `lora` = only adapters
    are trained."""

    name: str
    model: Any
    tokenizer: Any
    lora: bool = False

    @property
    def num_parameters(self) -> int:
        """All weights, adapters included."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def num_trainable(self) -> int:
        """The weights that the optimiser moves."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def pad_id(self) -> int:
        """What fills rows on the right; never read, so any id of the vocabulary will do."""
        return self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else 0


_FIX_NAME = 'give a folder written by save_pretrained, a hub name you can reach, or "tiny"'


def load_student(settings: StudentSettings, *, tokenizer: Any, seed: int) -> Student:
    """The student of a run, in training precision, with LoRA adapters where asked for.

    Raises ConfigError for a name that cannot be loaded, and for a tokenizer that has more tokens
    than the model embeds.
    """
    model = (
        make_tiny(tokenizer, seed=seed).to(DTYPES[settings.dtype])
        if settings.model == TINY
        else _from_pretrained(settings)
    )
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer)} tokens, the model embeds {rows}",
            where=settings.model,
        )
    check_projection(model)
    if settings.lora.rank:
        model = _with_lora(model, settings, seed=seed)
    return Student(
        name=settings.model, model=model, tokenizer=tokenizer, lora=settings.lora.rank > 0
    )


def _from_pretrained(settings: StudentSettings) -> Any:
    transformers = need("transformers", extra="train")
    transformers.utils.logging.disable_progress_bar()  # a library does not draw on the terminal
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(
            settings.model, dtype=DTYPES[settings.dtype], **NO_CODE
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cannot load {settings.model!r}: {first_line(error)}",
            where="student.model",
            fix=_FIX_NAME,
        ) from error


def _with_lora(model: Any, settings: StudentSettings, *, seed: int) -> Any:
    """The model with adapters on every linear layer but the head; only they are trained, and they
    start as no change."""
    peft = need("peft", extra="train")
    config = peft.LoraConfig(
        r=settings.lora.rank,
        lora_alpha=settings.lora.alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return peft.get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(
                f"no LoRA for {settings.model!r}: {first_line(error)}",
                where="student.lora",
                fix="set rank = 0",
            ) from error
