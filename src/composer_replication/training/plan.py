"""The checks before a run exists: every item fits into one forward, and every step can feed every
channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.forward_size import check_forward_size, forward_sizes
from composer_replication.training.batch_sampler import Sampler


def check_train_plan(
    settings: TrainSettings,
    *,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair] = (),
    imported: bool = True,
    layout: Literal["tree", "rows"] | None = None,
) -> None:
    """Raise ConfigError for anything that would stop a run later, whenever the sampler draws it.

    The error names the longest item if it is longer than train.micro_tokens, and
    train.batch_examples if one example a step cannot feed both channels. `imported` is False if
    examples are not drawn at all. `layout` is the layout of the run, None = that of the settings.
    """
    Sampler(
        examples=examples,
        pairs=pairs,
        batch_examples=settings.batch_examples,
        seed=0,
        imported=imported,
    )
    longest, name = max(
        forward_sizes(examples, pairs, layout=layout or settings.layout), default=(0, "")
    )
    check_forward_size(
        f"{name} is the longest item and", longest, micro_tokens=settings.micro_tokens
    )
