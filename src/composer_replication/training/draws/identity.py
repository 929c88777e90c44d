"""The hash of the data that a run trains on: a resume with other data is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from composer_replication.core.jsonl import dumps
from composer_replication.tokens.example import (
    PreferencePair,
    TrainingExample,
    example_to_json,
    pair_to_json,
)


def data_sha256(examples: Iterable[TrainingExample], pairs: Iterable[PreferencePair]) -> str:
    """The hash of every example and pair, in their order."""
    digest = hashlib.sha256()
    for value in (*map(example_to_json, examples), *map(pair_to_json, pairs)):
        digest.update(dumps(value).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
