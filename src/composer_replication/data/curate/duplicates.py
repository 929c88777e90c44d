"""Pairs that stand there already: exactly, or nearly, always by state, chosen and rejected
together.

The same action in another state is no duplicate, and two calls that differ in one digit are two
calls: near-duplicates are looked for among pairs whose calls are equal after canonicalisation, by
what the state and the messages *say*.

Near ones are found without a model: each stretch of words is hashed once, the smallest hash of
every bin makes the signature, bins in threes find candidates, and a candidate counts where the
estimated overlap reaches the threshold. The first of several stays.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nsmallest
from itertools import chain
from zlib import crc32

from composer_replication.data.curate.pair import Pair
from composer_replication.data.replay.actions import NO_TOOL, MessageAction

_BINS, _ROWS, _SKETCH = 30, 3, 128
_DIGITS_AND_SIGNS = re.compile(r"[\W\d_]+")


def key_of(pair: Pair, *, lowercase: bool, ignore_non_character: bool, side: str = "") -> str:
    """What two equal pairs have in common, as text; the two settings loosen what messages *say*,
    never what they call.

    With `side` it is that message alone, in whatever state.
    """
    actions = [
        _loosened(one.action, lowercase=lowercase, bare=ignore_non_character)
        for _, one in pair.sides_of(side)
    ]
    texts = ["" if side else pair.state, *chain.from_iterable(chain.from_iterable(actions))]
    # so that no two lists of texts are one when joined
    lengths = [len(actions[0]), *map(len, texts)]
    return blake2b(
        "".join((repr(lengths), *texts)).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def _loosened(action: MessageAction, *, lowercase: bool, bare: bool) -> tuple[tuple[str, str], ...]:
    if not (lowercase or bare) or any(name != NO_TOOL for name, _ in action.parts):
        return action.parts
    words = [(name, text.lower() if lowercase else text) for name, text in action.parts]
    return tuple(
        (name, _DIGITS_AND_SIGNS.sub(" ", text).strip() if bare else text) for name, text in words
    )


@dataclass(slots=True)
class ExactDuplicates:
    """The pairs met so far: key -> id of the first one."""

    seen: dict[str, str] = field(default_factory=dict)

    def first(self, key: str, pair_id: str) -> str:
        """The id of the pair that has this key already; "" where it is new, and then remembered."""
        found = self.seen.setdefault(key, pair_id)
        return "" if found == pair_id else found


@dataclass(slots=True)
class _Bucket:
    """The kept pairs with equal calls: those of which only the text was kept yet, and those that
    can be found by their stretches."""

    waiting: list[tuple[str, str]] = field(default_factory=list)
    sketches: list[tuple[str, array[int]]] = field(default_factory=list)
    bands: dict[tuple[int, ...], list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class NearDuplicates:
    """The kept pairs, findable by what they say. Most calls stand in one pair only, and nothing is
    hashed before a second one comes."""

    threshold: float
    window: int = 5
    lowercase: bool = True
    side: str = ""
    buckets: dict[int, _Bucket] = field(default_factory=lambda: defaultdict(_Bucket))

    def first(self, pair: Pair) -> str:
        """The id of a kept pair that says nearly the same and calls the same; "" where there is
        none, and then it is kept."""
        text = " ".join(
            ["" if self.side else pair.tail, *(one.prose for _, one in pair.sides_of(self.side))]
        )
        calls = _calls(pair, self.side)
        if calls not in self.buckets:
            self.buckets[calls].waiting.append((pair.id, text))
            return ""
        bucket = self.buckets[calls]
        while bucket.waiting:
            waiting_id, waiting_text = bucket.waiting.pop()
            falling = self._stretches(waiting_text)
            _keep(bucket, waiting_id, _bands(falling), _sketch(falling))
        falling = self._stretches(text)
        sketch, bands, tried = _sketch(falling), _bands(falling), set[int]()
        for band in bands:
            for number in bucket.bands.get(band, ()):
                if (
                    number not in tried
                    and overlap(sketch, bucket.sketches[number][1]) >= self.threshold
                ):
                    return bucket.sketches[number][0]
                tried.add(number)
        _keep(bucket, pair.id, bands, sketch)
        return ""

    def _stretches(self, text: str) -> list[int]:
        """A number per stretch of words, falling; the hash of a tuple of integers is not salted, so
        every run finds the same."""
        text = text.lower() if self.lowercase else text
        words = list(map(crc32, text.encode("utf-8", "surrogatepass").split()))
        stretches = zip(*(words[start:] for start in range(self.window)), strict=False)
        return sorted(set(map(hash, stretches)), reverse=True)


def _keep(bucket: _Bucket, pair_id: str, bands: list[tuple[int, ...]], sketch: array[int]) -> None:
    for band in bands:
        bucket.bands[band].append(len(bucket.sketches))
    bucket.sketches.append((pair_id, sketch))


def _sketch(falling: list[int]) -> array[int]:
    return array("q", falling[-_SKETCH:])


def _calls(pair: Pair, only: str) -> int:
    """A number for what both messages call: only pairs with equal calls meet."""
    return hash(
        tuple(
            tuple(part for part in side.action.parts if part[0] != NO_TOOL)
            for _, side in pair.sides_of(only)
        )
    )


def _bands(falling: list[int]) -> list[tuple[int, ...]]:
    """The smallest hash of every bin, in threes, each with its place; an empty bin borrows from the
    next one that is not."""
    if not falling:
        return []
    smallest = {value % _BINS: value for value in falling}  # the last one of a bin is its smallest
    if len(smallest) < _BINS:
        for place in range(2 * _BINS - 2, -1, -1):
            if place % _BINS not in smallest and (place + 1) % _BINS in smallest:
                smallest[place % _BINS] = smallest[(place + 1) % _BINS]
    bins = [smallest[place] for place in range(_BINS)]
    return [(start, *bins[start : start + _ROWS]) for start in range(0, _BINS, _ROWS)]


def overlap(one: array[int], other: array[int]) -> float:
    """The share of stretches that two texts have in common, estimated from the smallest hashes of
    each; exact for short texts."""
    union, both = {*one, *other}, set(one) & set(other)
    smallest = union if max(len(one), len(other)) < _SKETCH else nsmallest(_SKETCH, union)
    return sum(value in both for value in smallest) / len(smallest) if union else 1.0
