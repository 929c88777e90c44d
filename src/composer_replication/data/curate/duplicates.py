"""Find duplicate pairs, exact or near, always by state, chosen and rejected together.

The same action in another state is not a duplicate, and two calls that differ in one digit are two
calls: near-duplicates are searched among pairs whose calls are equal in canonical form, by the text
of the state and the messages.

The search needs no model (MinHash): each n-gram of words is hashed once, the smallest hash per bin
makes the signature, triples of bins find candidates, and a candidate counts if the estimated
overlap reaches the threshold. The first of several duplicates stays.
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
    """Return a key that equal pairs share; the two settings loosen texts, never calls.

    With `side` it is the key of that message alone, in any state.
    """
    actions = [
        _loosen(pair_side.action, lowercase=lowercase, bare=ignore_non_character)
        for _, pair_side in pair.sides_of(side)
    ]
    texts = ["" if side else pair.state, *chain.from_iterable(chain.from_iterable(actions))]
    # Lengths first, so that two different lists of texts never join to the same string.
    lengths = [len(actions[0]), *map(len, texts)]
    return blake2b(
        "".join((repr(lengths), *texts)).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def _loosen(action: MessageAction, *, lowercase: bool, bare: bool) -> tuple[tuple[str, str], ...]:
    if not (lowercase or bare) or any(name != NO_TOOL for name, _ in action.parts):
        return action.parts
    words = [(name, text.lower() if lowercase else text) for name, text in action.parts]
    return tuple(
        (name, _DIGITS_AND_SIGNS.sub(" ", text).strip() if bare else text) for name, text in words
    )


@dataclass(slots=True)
class ExactDuplicates:
    """The pairs seen so far: key -> id of the first one."""

    seen: dict[str, str] = field(default_factory=dict)

    def first(self, key: str, pair_id: str) -> str:
        """Return the id of the first pair with this key; "" if it is new, and then remember it."""
        first_id = self.seen.setdefault(key, pair_id)
        return "" if first_id == pair_id else first_id


@dataclass(slots=True)
class _Bucket:
    """The kept pairs with equal calls: texts not hashed yet, and the index of the others."""

    waiting: list[tuple[str, str]] = field(default_factory=list)
    sketches: list[tuple[str, array[int]]] = field(default_factory=list)
    bands: dict[tuple[int, ...], list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass(slots=True)
class NearDuplicates:
    """An index of the kept pairs by their texts.

    Most calls occur in one pair only, so nothing is hashed before a second one comes.
    """

    threshold: float
    window: int = 5
    lowercase: bool = True
    side: str = ""
    buckets: dict[int, _Bucket] = field(default_factory=lambda: defaultdict(_Bucket))

    def first(self, pair: Pair) -> str:
        """Return the id of a kept pair with nearly the same text and equal calls.

        "" if there is none; then the pair is added to the index.
        """
        text = " ".join(
            [
                "" if self.side else pair.tail,
                *(pair_side.prose for _, pair_side in pair.sides_of(self.side)),
            ]
        )
        calls = _hash_calls(pair, self.side)
        if calls not in self.buckets:
            self.buckets[calls].waiting.append((pair.id, text))
            return ""
        bucket = self.buckets[calls]
        while bucket.waiting:
            waiting_id, waiting_text = bucket.waiting.pop()
            hashes = self._stretches(waiting_text)
            _keep(bucket, waiting_id, _bands(hashes), _sketch(hashes))
        hashes = self._stretches(text)
        sketch, bands, tried = _sketch(hashes), _bands(hashes), set[int]()
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
        """Return the hashes of a text's n-grams of words, descending.

        The hash of a tuple of integers is not salted, so every run finds the same duplicates.
        """
        text = text.lower() if self.lowercase else text
        words = list(map(crc32, text.encode("utf-8", "surrogatepass").split()))
        ngrams = zip(*(words[start:] for start in range(self.window)), strict=False)
        return sorted(set(map(hash, ngrams)), reverse=True)


def _keep(bucket: _Bucket, pair_id: str, bands: list[tuple[int, ...]], sketch: array[int]) -> None:
    for band in bands:
        bucket.bands[band].append(len(bucket.sketches))
    bucket.sketches.append((pair_id, sketch))


def _sketch(hashes: list[int]) -> array[int]:
    return array("q", hashes[-_SKETCH:])


def _hash_calls(pair: Pair, side_name: str) -> int:
    """Return a hash of the calls of both messages: only pairs with equal calls are compared."""
    return hash(
        tuple(
            tuple(part for part in side.action.parts if part[0] != NO_TOOL)
            for _, side in pair.sides_of(side_name)
        )
    )


def _bands(hashes: list[int]) -> list[tuple[int, ...]]:
    """Return the smallest hash per bin, in triples with their position.

    An empty bin borrows from the next one that is not empty.
    """
    if not hashes:
        return []
    smallest = {value % _BINS: value for value in hashes}  # the last one of a bin is its smallest
    if len(smallest) < _BINS:
        for index in range(2 * _BINS - 2, -1, -1):
            if index % _BINS not in smallest and (index + 1) % _BINS in smallest:
                smallest[index % _BINS] = smallest[(index + 1) % _BINS]
    bins = [smallest[index] for index in range(_BINS)]
    return [(start, *bins[start : start + _ROWS]) for start in range(0, _BINS, _ROWS)]


def overlap(first: array[int], second: array[int]) -> float:
    """Estimate the common share of two texts' n-grams from their smallest hashes."""
    union, common = {*first, *second}, set(first) & set(second)
    smallest = union if max(len(first), len(second)) < _SKETCH else nsmallest(_SKETCH, union)
    return sum(value in common for value in smallest) / len(smallest) if union else 1.0
