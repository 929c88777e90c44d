"""The tokens of an item in one forward, and the error for one that needs too many.

    for size, name in forward_sizes(examples, pairs, layout="tree"):
        check_forward_size(name, size, micro_tokens=settings.micro_tokens)

Torch-free: `train --dry-run` and `build` ask before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from composer_replication.core.errors import ConfigError
from composer_replication.tokens.example import PreferencePair, TrainingExample

LONGER_THAN_A_CARD = (
    "a session that one card cannot hold is not split over cards here (context parallelism): verl"
    " and prime-rl do that"
)
"""The error text for a context that is too long."""


def forward_sizes(
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair] = (),
    *,
    layout: Literal["tree", "rows"] = "rows",
) -> Iterator[tuple[int, str]]:
    """The tokens of each item in one forward, and its name; the sizes are those that micro-batches
    are cut by.

    An example needs its row, a hint view its teacher row (hint and ids up to the target's end). A
    pair needs two rows of its longer side in rows, its prefix and both sides in a tree.
    """
    for e in examples:
        yield len(e.ids), f"example {e.id}"
        yield from (
            (len(v.hint_ids) + v.span[1], f"the teacher row of {v.site_id} in example {e.id}")
            for v in e.hints
        )
    for p in pairs:
        yield pair_size(p, layout=layout), f"pair {p.id} (both sides)"


def pair_size(pair: PreferencePair, *, layout: Literal["tree", "rows"]) -> int:
    """The tokens that a pair needs: two rows of its longer side, or its prefix and both sides."""
    chosen, rejected = len(pair.chosen_ids), len(pair.rejected_ids)
    if layout == "rows":
        return 2 * (len(pair.prefix_ids) + max(chosen, rejected))
    return len(pair.prefix_ids) + chosen + rejected


def check_forward_size(
    what: str,
    size: int,
    *,
    micro_tokens: int,
    remedy: str = "lower build.max_tokens and build again",
) -> None:
    """Raise ConfigError if `what` needs more tokens in one forward than train.micro_tokens.

    Example: check_forward_size("example e5", 4096, micro_tokens=2048)
    """
    if size > micro_tokens:
        raise ConfigError(
            f"{what} needs {size} tokens in one forward, train.micro_tokens is {micro_tokens}",
            fix=f"set train.micro_tokens = {size} or more, or {remedy}; {LONGER_THAN_A_CARD}",
        )
