"""The checks before a run exists: every item fits into one forward, every step can feed every
channel, and the hint views have what train.hint asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.forward_size import check_forward_size, forward_sizes
from composer_replication.training.draws.batch_sampler import Sampler, imported_channels
from composer_replication.training.draws.hint_inputs import check_hint_settings


def check_train_plan(
    settings: TrainSettings,
    *,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair] = (),
    imported: bool = True,
    layout: Literal["tree", "rows"] | None = None,
) -> None:
    """Raise ConfigError for anything that would stop a run later, whenever the sampler draws it.

    The error names the longest item if it is longer than train.micro_tokens, train.batch_examples
    if one example a step cannot feed both channels, and a setting of train.hint that the views
    cannot have. `imported` is False if examples are not drawn at all. `layout` is the layout of the
    run, None = that of the settings.
    """
    Sampler(
        examples=examples,
        pairs=pairs,
        batch_examples=settings.batch_examples,
        seed=0,
        imported=imported,
        channels=imported_channels(settings),
    )
    if settings.hint.weight and (imported or settings.fork):
        check_hint_settings(examples, settings.hint, fork=settings.fork)
    longest, name = max(
        forward_sizes(examples, pairs, layout=layout or settings.layout), default=(0, "")
    )
    check_forward_size(
        f"{name} is the longest item and", longest, micro_tokens=settings.micro_tokens
    )
