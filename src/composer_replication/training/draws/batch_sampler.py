"""Draw the imported examples and pairs of each step: a pure function of seed and step, so there is
no sampler state to save.

Examples fall into two strata, with and without the rarer of the two channels (hint views, mostly).
Each stratum is drawn without replacement: a shuffled pass, then another. Every step takes at least
one example of each stratum that exists, so a few hint views among many sessions still reach every
step, and a step without a channel's inputs means that the data set has none; beyond that the strata
share the step in proportion. One example a step cannot do that, so it is refused if both channels
have a weight and both strata exist.

An example that holds no channel with a weight gets no slot: without lm_ce, only examples with hint
views are drawn. If that leaves none (pairs alone, or forks), examples are drawn as with all
weights, for the pairs that they bring. A run without the hint channel keeps the strata, so it draws
the sessions that a run with it draws.

Pairs come with the example that they branch off, so that a step's three channels share one trunk:
each is seen once per pass over the examples. Pairs whose session has no example are drawn on their
own, in proportion and at least one a step; so is one pair if the step's examples have none.
`batch_pairs` draws that many on their own instead. Anchors come from `batch_anchors` sessions that
have some, on top of the examples: an example drawn for its anchors is used for nothing else, and
one drawn for the other channels loses its anchors, so how often each is seen does not depend on the
other.

If live rollouts make the step's examples, imported ones can be left out (`imported=False`); pairs
and anchors remain. Every rank draws the same step and takes its share of it (`share`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from composer_replication.core.channel_names import Channel
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.example import PreferencePair, TrainingExample

Item = TypeVar("Item")
IMPORTED: tuple[Channel, ...] = ("lm_ce", "hint")
"""The channels that imported examples feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Draws the steps of a run, e.g. Sampler(examples=..., pairs=..., batch_examples=8,
    seed=7).step(0).

    `channels` are those of lm_ce and hint that have a weight. Raises ConfigError for one example a
    step if both have, and some examples hold one that others lack.
    """

    examples: Sequence[TrainingExample]
    pairs: Sequence[PreferencePair] = ()
    batch_examples: int
    seed: int
    batch_pairs: int = 0
    batch_anchors: int = 0
    imported: bool = True
    channels: Collection[Channel] = IMPORTED
    trunk_ids: Sequence[str | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "trunk_ids",
            (
                []
                if self.batch_pairs or not self.imported
                else find_trunks(drawn_examples(self.examples, self.channels), self.pairs)
            ),
        )
        if (
            self.imported
            and self.batch_examples < 2
            and set(IMPORTED) <= set(self.channels)
            and all(parts := strata(self.examples))
        ):
            raise ConfigError(
                "train.batch_examples = 1 cannot feed both lm_ce and hint in every step: "
                f"{len(parts[0])} examples hold a channel that {len(parts[1])} others lack",
                fix="set train.batch_examples = 2 or more",
            )

    def step(self, step: int) -> tuple[list[TrainingExample], list[PreferencePair]]:
        """The examples and pairs of one step (counted from 0); they do not depend on earlier
        draws."""
        rarer, rest = strata(self.examples, self.channels)
        if self.batch_examples < 2 and rarer and rest:  # one channel: nothing is to be balanced
            rarer, rest = [*rarer, *rest], []
        size = min(self.batch_examples, len(rarer) + len(rest))
        per_step = _rarer_per_step(len(rarer), len(rest), size)
        chosen = (
            self._draw(rarer, "rarer", step, per_step)
            + self._draw(rest, "rest", step, size - per_step)
            if self.imported
            else []
        )
        chosen = [replace(e, anchored=()) if e.anchored else e for e in chosen]
        return chosen + self._anchors(step), self._pairs(
            step, chosen, size=size, num_examples=len(rarer) + len(rest)
        )

    def _pairs(
        self, step: int, chosen: Sequence[TrainingExample], *, size: int, num_examples: int
    ) -> list[PreferencePair]:
        """`batch_pairs` of all; or the pairs of the chosen examples, and a share of those without a
        trunk."""
        if self.batch_pairs or not chosen:
            return self._draw(self.pairs, "pairs", step, self.batch_pairs or self.batch_examples)
        chosen_ids = {e.id for e in chosen}
        pairs_of_chosen = [
            pair
            for pair, trunk_id in zip(self.pairs, self.trunk_ids, strict=True)
            if trunk_id in chosen_ids
        ]
        pairs_without_trunk = [
            pair
            for pair, trunk_id in zip(self.pairs, self.trunk_ids, strict=True)
            if trunk_id is None
        ]
        if not pairs_of_chosen and not pairs_without_trunk:
            return self._draw(self.pairs, "pairs", step, 1)
        return pairs_of_chosen + self._draw(
            pairs_without_trunk,
            "pairs",
            step,
            max(1, round(size * len(pairs_without_trunk) / num_examples)),
        )

    def _anchors(self, step: int) -> list[TrainingExample]:
        """The anchored examples of `batch_anchors` sessions, with their anchors alone."""
        sessions: dict[str, list[TrainingExample]] = {}
        for example in self.examples if self.batch_anchors else ():
            if example.anchored:
                sessions.setdefault(example.session_id, []).append(
                    replace(example, lm_spans=(), hints=(), actions=())
                )
        drawn = self._draw(list(sessions), "anchors", step, min(self.batch_anchors, len(sessions)))
        return [example for name in drawn for example in sessions[name]]

    def _draw(self, items: Sequence[Item], stratum: str, step: int, per_step: int) -> list[Item]:
        return draw_items(items, stratum=stratum, step=step, per_step=per_step, seed=self.seed)


def draw_items(
    items: Sequence[Item], *, stratum: str, step: int, per_step: int, seed: int
) -> list[Item]:
    """The step's part of an endless list of shuffled passes over the items.

    >>> draws = [draw_items("abcd", stratum="x", step=i, per_step=2, seed=1) for i in range(2)]
    >>> sorted(draws[0] + draws[1])
    ['a', 'b', 'c', 'd']
    """
    items_drawn: list[Item] = []
    start, end = per_step * step, per_step * (step + 1)
    while items and start < end:
        epoch, offset = divmod(start, len(items))
        order = list(range(len(items)))
        random.Random(stage_seed(seed, f"{stratum}:{epoch}")).shuffle(order)
        taken = order[offset : offset + end - start]
        items_drawn += [items[i] for i in taken]
        start += len(taken)
    return items_drawn


def find_trunks(
    examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair]
) -> list[str | None]:
    """The id of the example that each pair comes with; None if its session has none of these.

    It is the session's first example that begins with the pair's prefix (its trunk), else the
    session's first example: with a session cut into two windows, the window that the pair is in.
    """
    of_session: dict[str, list[TrainingExample]] = {}
    for example in examples:
        of_session.setdefault(example.session_id, []).append(example)
    trunk_ids: list[str | None] = []
    for pair in pairs:
        windows = of_session.get(pair.session_id, [])
        trunks = [e for e in windows if e.ids[: len(pair.prefix_ids)] == pair.prefix_ids]
        trunk_ids.append(next((e.id for e in trunks + windows), None))
    return trunk_ids


def imported_channels(settings: TrainSettings) -> tuple[Channel, ...]:
    """Those of lm_ce and hint that have a weight and that imported examples feed; if the student
    forks, it feeds the hint channel itself.

    >>> imported_channels(TrainSettings.model_validate({"lm_ce": {"weight": 0}}))
    ('hint',)
    """
    is_fed = {
        "lm_ce": settings.lm_ce.weight > 0,
        "hint": settings.hint.weight > 0 and not settings.fork,
    }
    return tuple(name for name in IMPORTED if is_fed[name])


def drawn_examples(
    examples: Sequence[TrainingExample], channels: Collection[Channel] = IMPORTED
) -> list[TrainingExample]:
    """The examples that get slots: one stratum, then the other."""
    return [example for part in strata(examples, channels) for example in part]


def strata(
    examples: Sequence[TrainingExample], channels: Collection[Channel] = IMPORTED
) -> tuple[list[TrainingExample], list[TrainingExample]]:
    """The examples that hold the rarer of the two channels (hint views, lm spans), and those that
    hold only the other; one of each feeds both channels. An example with neither is in no stratum,
    nor is one that holds none of `channels`, unless all are like that.
    """
    useful = [
        e
        for e in examples
        if ("hint" in channels and e.hints) or ("lm_ce" in channels and e.lm_spans)
    ]
    if useful and "lm_ce" not in channels:
        return useful, []
    with_hints = [e for e in useful or examples if e.hints]
    with_lm_spans = [e for e in useful or examples if e.lm_spans]
    if len(with_hints) <= len(with_lm_spans):
        return with_hints, [e for e in with_lm_spans if not e.hints]
    return with_lm_spans, [e for e in with_hints if not e.lm_spans]


def _rarer_per_step(rarer: int, rest: int, size: int) -> int:
    """In proportion, but at least one of each.

    >>> _rarer_per_step(3, 97, 8), _rarer_per_step(0, 97, 8), _rarer_per_step(5, 0, 4)
    (1, 0, 4)
    """
    if rarer == 0 or rest == 0:
        return size if rarer else 0
    return min(max(round(size * rarer / (rarer + rest)), 1), size - 1)


def share(items: Sequence[Item], *, rank: int, world: int) -> list[Item]:
    """One rank's part of a step.

    >>> share([1, 2, 3], rank=1, world=2)
    [2]
    """
    return list(items[rank::world])
