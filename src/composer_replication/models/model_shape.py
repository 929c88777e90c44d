"""The widths of a decoder, by its config.json, and how many weights they make: no torch, no file of
weights.

    shape = shape_of(read_json(folder / "config.json"))
    shape.num_parameters        # 596,049,920 of Qwen3-0.6B

Only families whose layers are known here have a shape: training/memory/memory_model.py counts their
tensors. `QWEN3` are those that Qwen publishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import ConfigError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""The values of model_type whose decoder layers are counted and checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of `layers` layers: attention of `heads` query heads, a gated feed-forward of
    `intermediate` inner states, `vocab` rows in the token table.

    `tied` = the output head is the token table. Example: QWEN3["0.6B"].query == 2048
    """

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    attention_bias: bool = False

    @property
    def query(self) -> int:
        """The width of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """The width of all keys of a token, and of all its values."""
        return self.kv_heads * self.head_dim

    @property
    def norms(self) -> int:
        """RMS norms of a layer over the hidden state."""
        return 4 if self.family == "gemma3_text" else 2

    @property
    def normed_heads(self) -> bool:
        """Whether queries and keys have norms of their own."""
        return self.family in ("qwen3", "gemma3_text")

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each linear map of a layer: q, k, v, o, gate, up, down."""
        D, inner = self.hidden, self.intermediate
        attention = ((D, self.query), (D, self.key), (D, self.key), (self.query, D))
        return (*attention, (D, inner), (D, inner), (inner, D))

    @property
    def matrix_parameters(self) -> int:
        """Weights of the linear maps of all layers: what LoRA adapts and 4 bits hold."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.matrices)

    @property
    def table_parameters(self) -> int:
        """Weights of the token table, and of the output head if it is another matrix."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def num_parameters(self) -> int:
        """All weights; a tied head counts once."""
        per_layer = self.norms * self.hidden + 2 * self.head_dim * self.normed_heads
        if self.attention_bias:
            per_layer += self.query + 2 * self.key
            per_layer += self.hidden if self.family == "llama" else 0
        return (
            self.matrix_parameters + self.table_parameters + self.layers * per_layer + self.hidden
        )

    def lora_parameters(self, rank: int) -> int:
        """Weights of adapters of this rank on every linear map of every layer, the head left
        out."""
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in self.matrices)


def shape_of(config: Mapping[str, Any], *, where: str = "config.json") -> ModelShape:
    """The shape that a config.json names, that of its text model if it has one.

    Raises ConfigError for a family whose layers are not known here, and for a missing width.
    Example: shape_of({"model_type": "qwen3", "hidden_size": 1024, ...}).hidden == 1024
    """
    text = config.get("text_config")
    fields = text if isinstance(text, dict) and text else config
    family = str(fields.get("model_type", ""))
    if family not in FAMILIES:
        raise ConfigError(
            f"the layers of {family or 'this model'!r} are not known to the memory model",
            where=where,
            fix=f"it knows {', '.join(FAMILIES)}",
        )
    try:
        heads = int(fields["num_attention_heads"])
        return ModelShape(
            family=family,
            layers=int(fields["num_hidden_layers"]),
            hidden=int(fields["hidden_size"]),
            intermediate=int(fields["intermediate_size"]),
            heads=heads,
            kv_heads=int(fields.get("num_key_value_heads") or heads),
            head_dim=int(fields.get("head_dim") or fields["hidden_size"] // heads),
            vocab=int(fields["vocab_size"]),
            # the defaults of transformers
            tied=bool(fields.get("tie_word_embeddings", family == "gemma3_text")),
            attention_bias=bool(family == "qwen2" or fields.get("attention_bias")),
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"no shape of a decoder: {error}", where=where, fix="give a whole config.json"
        ) from error


def _qwen3(layers: int, hidden: int, intermediate: int, heads: int, *, tied: bool) -> ModelShape:
    """The fields that the six dense models share."""
    return ModelShape(
        family="qwen3",
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocab=151_936,
        tied=tied,
    )


QWEN3: Mapping[str, ModelShape] = {
    "0.6B": _qwen3(28, 1024, 3072, 16, tied=True),
    "1.7B": _qwen3(28, 2048, 6144, 16, tied=True),
    "4B": _qwen3(36, 2560, 9728, 32, tied=True),
    "8B": _qwen3(36, 4096, 12288, 32, tied=False),
    "14B": _qwen3(40, 5120, 17408, 40, tied=False),
    "32B": _qwen3(64, 5120, 25600, 64, tied=False),
}
"""The dense models of the Qwen3 family, by the config.json of huggingface.co/Qwen/Qwen3-*; the sums
are the published sizes (0.6B: 0.44B without the token table, 32B: 31.2B without)."""
