"""The checks before a run exists: every item fits into one forward, and every step can feed every
channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.example import PreferencePair, TrainingExample
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
    if longest > settings.micro_tokens:
        raise ConfigError(
            f"{name} is the longest item and needs {longest} tokens in one forward,"
            f" train.micro_tokens is {settings.micro_tokens}",
            fix=(
                f"set train.micro_tokens = {longest} or more, or lower build.max_tokens and build"
                " again"
            ),
        )


def forward_sizes(
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair] = (),
    *,
    layout: Literal["tree", "rows"] = "rows",
) -> Iterator[tuple[int, str]]:
    """The number of tokens that each item needs in one forward, and the item's name.

    Micro-batches are cut by these sizes. An example needs its row, a hint view its teacher row
    (hint and ids up to the target's end). A pair needs two rows of its longer side in the layout
    "rows", its prefix and both sides in a tree.
    """
    for e in examples:
        yield len(e.ids), f"example {e.id}"
        yield from (
            (len(v.hint_ids) + v.span[1], f"the teacher row of {v.site_id} in example {e.id}")
            for v in e.hints
        )
    for p in pairs:
        response_tokens = (
            2 * max(len(p.chosen_ids), len(p.rejected_ids))
            if layout == "rows"
            else len(p.chosen_ids) + len(p.rejected_ids)
        )
        size = len(p.prefix_ids) * (2 if layout == "rows" else 1) + response_tokens
        yield size, f"pair {p.id} (both sides)"
