"""The base model of adapters in 4 bits (QLoRA), by bitsandbytes through transformers.

    options = quantisation(settings)     # of from_pretrained; {} without student.load_in_4bit
    num_weights(parameter)               # 4-bit weights lie two in a byte
    dequantise(model)                    # before a merge: the weights as the forward uses them

The linear layers but the head are stored as NF4 with double quantisation, in .52 bytes for a
weight; embeddings, head, norms and adapters stay as they are.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.errors import ConfigError, need
from composer_replication.models.model_files import model_kind

_WHERE = "student.load_in_4bit"


def quantisation(settings: StudentSettings, name: str) -> dict[str, Any]:
    """The options of from_pretrained for the model `name`: none unless it is stored in 4 bits.

    Raises ConfigError without adapters or for a model that is no folder and no hub name, and
    MissingExtraError without bitsandbytes.
    """
    if not settings.load_in_4bit:
        return {}
    if not settings.lora.rank:
        raise ConfigError(
            "4-bit weights cannot be trained, only adapters on them",
            where=_WHERE,
            fix="set student.lora.rank, for example to 16",
        )
    if (kind := model_kind(name)) in ("tiny", "gguf"):
        raise ConfigError(
            f"a student of the kind {kind!r} is not stored in 4 bits: a GGUF file is de-quantised,"
            " and the tiny model is small",
            where=_WHERE,
            fix="give a folder of safetensors or a hub name in student.model, or set load_in_4bit ="
            " false",
        )
    load_bitsandbytes()
    config = need("transformers", extra="train").BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, settings.dtype),
    )
    # the trainer's device of this rank: weights are quantised where they will be used
    device = int(os.environ.get("LOCAL_RANK", "0")) if torch.cuda.is_available() else "cpu"
    return {"quantization_config": config, "device_map": {"": device}}


def load_bitsandbytes() -> ModuleType:
    """The library, without a line about kernels that this machine lacks; raises MissingExtraError
    if it is not installed."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return need("bitsandbytes", extra="qlora")


def keep_packing(model: Any) -> None:
    """Leave 4-bit weights as they are packed.

    On some CPUs bitsandbytes packs them anew in the first forward without a gradient, for a product
    in bfloat16: the teacher would not compute what the student does, nor the weights have one hash.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def num_weights(parameter: Tensor) -> int:
    """The number of weights that a parameter stands for.

    >>> num_weights(torch.zeros(2, 3))
    6
    """
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()


def is_quantised(model: Any) -> bool:
    """Whether some weights of a model are stored in 4 bits.

    >>> is_quantised(torch.nn.Linear(2, 2))
    False
    """
    return any(getattr(p, "quant_state", None) is not None for p in model.parameters())


def dequantise(model: Any) -> None:
    """Replace 4-bit weights by those that the forward computes with, in the model's precision; the
    model is a plain one afterwards, and its configuration says so."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    transformers = need("transformers", extra="train")
    verbosity = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()  # it warns of the precision
    try:
        base.dequantize()
    finally:
        transformers.utils.logging.set_verbosity(verbosity)
