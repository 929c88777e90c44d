"""What a forward keeps in memory for its backward, and how to keep less of it.

    checkpoint_layers(model)             # once: each layer keeps its input, and runs again

No value and no gradient changes, except by rounding. Only training passes are affected: a layer is
checkpointed in training mode alone, and scoring and sampling are in evaluation mode.
"""

from __future__ import annotations

from typing import Any

from composer_replication.core.errors import ConfigError, first_line


def checkpoint_layers(model: Any) -> None:
    """Let each layer keep its input alone in training passes and run again in the backward.

    With dropout the second run draws what the first one drew. Through peft's wrapper the base
    model's layers are checkpointed. Raises ConfigError for a model whose layers cannot run again.
    Example: checkpoint_layers(student.model)
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # the name of transformers 5.20; the older one warns there
    enable = getattr(base, "activation_checkpointing_enable", None)
    try:
        (enable or base.gradient_checkpointing_enable)({"use_reentrant": False})
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"the layers of {type(base).__name__} cannot run again: {first_line(error)}",
            where="train.checkpoint",
            fix='set train.checkpoint = "none"',
        ) from error
