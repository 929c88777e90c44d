"""Which examples and pairs a step trains on: a pure function of seed and step, so there is no sampler state to save.

Examples fall into two strata, with and without hint views. Each stratum is drawn without replacement: a shuffled pass, then another.
Every step takes at least one example of each stratum that exists, so a few hint views among many sessions still reach every
step; beyond that the strata share the step in proportion. With one example a step they take turns instead.
Pairs are drawn in the same proportion as examples (as many passes over the pairs as over the examples), at least one a step.
Every rank draws the same step and takes its share of it (`share`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from composer_replication.core.config.base import stage_seed
from composer_replication.tokens.example import PreferencePair, TrainingExample

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Draws the steps of a run, e.g. Sampler(examples=..., pairs=..., batch_examples=8, seed=7).step(0)."""

    examples: Sequence[TrainingExample]
    pairs: Sequence[PreferencePair] = ()
    batch_examples: int
    seed: int

    def step(self, step: int) -> tuple[list[TrainingExample], list[PreferencePair]]:
        """The examples and pairs of one step (counted from 0), the same for the same seed whatever was drawn before."""
        hinted = [e for e in self.examples if e.hints]
        plain = [e for e in self.examples if not e.hints]
        size = min(self.batch_examples, len(self.examples))
        start, end = self._hinted_before(step, len(hinted), len(plain), size), self._hinted_before(step + 1, len(hinted), len(plain), size)
        chosen = self._draw(hinted, "hinted", start, end) + self._draw(plain, "plain", size * step - start, size * (step + 1) - end)
        return chosen, self._draw(self.pairs, "pairs", *self._pair_range(step))

    def _hinted_before(self, step: int, hinted: int, plain: int, size: int) -> int:
        """How many hinted examples are drawn before `step`."""
        if hinted == 0 or plain == 0:
            return size * step if hinted else 0
        if size == 1:  # take turns in proportion, a hinted one first
            return -(-step * hinted // (hinted + plain))
        share = round(size * hinted / (hinted + plain))
        return min(max(share, 1), size - 1) * step

    def _pair_range(self, step: int) -> tuple[int, int]:
        if not self.examples:
            return self.batch_examples * step, self.batch_examples * (step + 1)
        per_step = max(1, round(min(self.batch_examples, len(self.examples)) * len(self.pairs) / len(self.examples)))
        return per_step * step, per_step * (step + 1)

    def _draw(self, items: Sequence[Item], stratum: str, start: int, end: int) -> list[Item]:
        """Entries start..end of the endless list of shuffled passes."""
        drawn: list[Item] = []
        while items and start < end:
            epoch, offset = divmod(start, len(items))
            order = list(range(len(items)))
            random.Random(stage_seed(self.seed, f"{stratum}:{epoch}")).shuffle(order)
            taken = order[offset : offset + end - start]
            drawn += [items[i] for i in taken]
            start += len(taken)
        return drawn


def share(items: Sequence[Item], *, rank: int, world: int) -> list[Item]:
    """One rank's part of a step.

    >>> share([1, 2, 3], rank=1, world=2)
    [2]
    """
    return list(items[rank::world])
