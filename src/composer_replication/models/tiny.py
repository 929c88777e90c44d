"""A random student of about 0.6M parameters: Qwen3 architecture, tied head, weights from a seed.

It lets everything here run on a laptop without a hub. It knows nothing: it shows that the machinery
works.
"""

from __future__ import annotations

from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ConfigError, need

MIN_PARAMETERS, MAX_PARAMETERS = 400_000, 800_000
LAYERS, HEADS, KV_HEADS = 3, 4, 2


def make_tiny(tokenizer: Any, *, seed: int, head_dim: int = 28, feed_forward: int = 256) -> Any:
    """A Qwen3ForCausalLM for this tokenizer; the same seed and vocabulary give the same weights.

    It has three layers of width 4 * head_dim. The tokenizer is trained by tokens/tiny_tokenizer.py,
    one floor above. Raises ConfigError if its vocabulary would push the model outside the promised
    0.4-0.8M parameters.
    """
    transformers = need("transformers", extra="train")
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=HEADS * head_dim,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=head_dim,
        intermediate_size=feed_forward,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stage_seed(seed, "tiny"))
        model = transformers.Qwen3ForCausalLM(config)
    num_parameters = sum(p.numel() for p in model.parameters())
    if not MIN_PARAMETERS <= num_parameters <= MAX_PARAMETERS:
        raise ConfigError(
            f"a tiny student for {len(tokenizer)} tokens has {num_parameters} parameters, not"
            f" {MIN_PARAMETERS}-{MAX_PARAMETERS}",
            fix="train its tokenizer with about 2048 tokens",
        )
    return model
