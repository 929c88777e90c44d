"""Assign hints to other sites, if hints are shuffled: for the audit of hints, and for the placebo
and the contrast of training.

For training, the shuffle is a permutation of the hints among the sites in which no site keeps its
own text, so each hint is used once; the audit draws several other texts for each site. In both,
donors of another kind and of another group (session or task) are preferred: a hint of the same
kind, or of the same task, often says the same thing.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
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


def shuffled_donors(places: Sequence[DonorSlot], *, seed: int) -> list[int | None]:
    """For each place the index of the place whose hint it gets; None where only its own text, or
    another form, is left.

    A random cycle, improved by swaps until no swap helps: each hint is used once, nobody keeps its
    own.

    >>> a, b = (DonorSlot(hint=hint, kind="k", group=hint) for hint in "ab")
    >>> shuffled_donors([a, b], seed=0), shuffled_donors([a, a], seed=0)
    ([1, 0], [None, None])
    """

    def cost(i: int, j: int) -> int:
        a, b = places[i], places[j]
        bad = i == j or a.hint == b.hint or a.form != b.form
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
    """For each view the indices of up to `count` views with different hints, none of them its own,
    and none that advises the same: that shares a right token at its decision with the view's.

    Each view draws by itself, so a hint may be used by several; a view has fewer donors only if
    fewer other texts exist in its position and form.
    """
    slots = _slots(views, sessions)
    advised = [{i for d in view.decisions for i in d.right_ids} for view in views]
    rng = random.Random(seed)
    chosen: list[tuple[int, ...]] = []
    for slot, right_ids in zip(slots, advised, strict=True):
        others = [
            (slot.kind == other.kind, slot.group == other.group, rng.random(), j)
            for j, other in enumerate(slots)
            if other.hint != slot.hint and other.form == slot.form and not right_ids & advised[j]
        ]
        first_of_text: dict[Hashable, int] = {}
        for *_, j in sorted(others):
            first_of_text.setdefault(slots[j].hint, j)
        chosen.append(tuple(first_of_text.values())[:count])
    return chosen


def _slots(views: Sequence[HintView], sessions: Sequence[str]) -> list[DonorSlot]:
    return [
        DonorSlot(hint=v.hint_ids, kind=v.kind, group=group, form=f"{v.position} {v.rendering}")
        for v, group in zip(views, sessions, strict=True)
    ]
