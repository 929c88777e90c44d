"""Settings of the model that is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from composer_replication.core.config.base import Settings

TINY = "tiny"
"""The model that is made here, of about 0.6M parameters."""


class LoraSettings(Settings):
    """Low-rank adapters (requires peft). `rank = 0` trains all weights."""

    rank: int = Field(default=0, ge=0)
    """Rank of the adapters; 0 = off."""
    alpha: int = Field(default=32, gt=0)
    """Scaling numerator: the adapter's update is multiplied by alpha / rank."""


class StudentSettings(Settings):
    """The causal language model to train, and its precision."""

    model: str = TINY
    """Model to train: "tiny" (about 0.6M parameters, created locally), a folder, a Hub name such as
    "Qwen/Qwen3-4B-Instruct-2507", a GGUF file (x.gguf, dequantised), or the folder of a LoRA
    adapter."""
    base: str = ""
    """Base model of an adapter folder, if the one named in adapter_config.json is not available: a
    folder, a GGUF file or a Hub name."""
    template: Literal[
        "auto", "qwen2.5", "qwen3", "qwen3-thinking", "qwen3-2507", "chatml-tools", "llama3",
        "qwen3.5", "qwen3.5-thinking", "qwen3.6", "qwen3.6-thinking",
        "glm-4.5", "glm-4.5-thinking", "mistral-v7", "mistral-v11", "mistral-v13", "gemma",
        "gpt-oss", "deepseek-v3",
    ] = "auto"  # fmt: skip
    """Chat template family. "auto" recognises the family from the tokenizer, or checks the
    tokenizer's own template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the weights."""
    load_in_4bit: bool = False
    """QLoRA: store the base model's linear layers in 4 bits (NF4), a quarter of bfloat16, and train
    adapters on top. Needs lora.rank and the extra `qlora` (bitsandbytes). `export` merges the
    adapters into the weights as the 4-bit layers compute with them."""
    lora: LoraSettings = LoraSettings()
