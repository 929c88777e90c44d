"""Which site's hint another site gets, if hints are shuffled: for the audit of hints, and for the
placebo and the contrast of training.

The shuffle is a permutation of the hints among the sites in which no site keeps its own text.
Within that, donors of another kind and of another group (session or task) are preferred: a hint of
the same kind, or of the same task, often says the same thing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

from composer_replication.tokens.example import HintView

_SAME_HINT, _SAME_KIND, _SAME_GROUP = 1000, 2, 1
_SWEEPS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorSlot:
    """A site as the shuffle sees it: what its hint says, of which kind it is, in which session or
    task, and how hints are written there.

    Example: DonorSlot(hint="Reminder: available tools: cat.", kind="unknown_tool", group="task-3",
    form="message")
    """

    hint: Hashable
    kind: str
    group: str
    form: str = ""


def shuffled_donors(
    places: Sequence[DonorSlot], *, seed: int, used: Sequence[Collection[Hashable]] = ()
) -> list[int | None]:
    """For each place the index of the place whose hint it gets; None where only its own text, one
    of those that it has `used` already, or another form is left.

    A random cycle, improved by swaps until no swap helps: each hint is used once, nobody keeps its
    own.

    >>> a, b = (DonorSlot(hint=hint, kind="k", group=hint) for hint in "ab")
    >>> shuffled_donors([a, b], seed=0), shuffled_donors([a, a], seed=0)
    ([1, 0], [None, None])
    """

    def cost(i: int, j: int) -> int:
        a, b = places[i], places[j]
        bad = i == j or a.hint == b.hint or a.form != b.form or (bool(used) and b.hint in used[i])
        return (
            _SAME_HINT * bad + _SAME_KIND * (a.kind == b.kind) + _SAME_GROUP * (a.group == b.group)
        )

    rng, n = random.Random(seed), len(places)
    order = list(range(n))
    rng.shuffle(order)
    donor = [0] * n
    for k, i in enumerate(order):
        donor[i] = order[(k + 1) % n]
    for _ in range(_SWEEPS):
        swapped = False
        for i in rng.sample(range(n), n):
            now = cost(i, donor[i])
            partners = rng.sample(range(n), min(n, 64)) if now else []
            for j in partners:
                if cost(i, donor[j]) + cost(j, donor[i]) < now + cost(j, donor[j]):
                    donor[i], donor[j] = donor[j], donor[i]
                    now, swapped = cost(i, donor[i]), True
        if not swapped:
            break
    return [j if cost(i, j) < _SAME_HINT else None for i, j in enumerate(donor)]


def shuffled_views(
    views: Sequence[HintView], sessions: Sequence[str], *, seed: int
) -> list[int | None]:
    """For each view the index of the view whose hint it gets; None where only its own text, or
    another position or rendering, is left."""
    return shuffled_donors(_slots(views, sessions), seed=seed)


def several_donors(
    views: Sequence[HintView], sessions: Sequence[str], *, seed: int, count: int
) -> list[tuple[int, ...]]:
    """For each view the indices of up to `count` views with different hints, none of them its own.

    Each round is a permutation of its own, the first that of `shuffled_views`; a view has fewer
    donors if too few other texts are left for it.
    """
    slots = _slots(views, sessions)
    chosen: list[list[int]] = [[] for _ in views]
    for number in range(count):
        used = [{slots[j].hint for j in donors} for donors in chosen]
        for donors, j in zip(
            chosen, shuffled_donors(slots, seed=seed + number, used=used), strict=True
        ):
            donors += [] if j is None else [j]
    return [tuple(donors) for donors in chosen]


def _slots(views: Sequence[HintView], sessions: Sequence[str]) -> list[DonorSlot]:
    return [
        DonorSlot(hint=v.hint_ids, kind=v.kind, group=group, form=f"{v.position} {v.rendering}")
        for v, group in zip(views, sessions, strict=True)
    ]
