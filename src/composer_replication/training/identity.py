"""Hashes of what a run trains on, and of its start weights: a resume with others is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from composer_replication.core.jsonl import dumps
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.tokens.example import (
    PreferencePair,
    TrainingExample,
    example_to_json,
    pair_to_json,
)

__all__ = ["data_sha256", "weights_sha256"]


def data_sha256(examples: Iterable[TrainingExample], pairs: Iterable[PreferencePair]) -> str:
    """The hash of every example and pair, in their order."""
    digest = hashlib.sha256()
    for value in (*map(example_to_json, examples), *map(pair_to_json, pairs)):
        digest.update(dumps(value).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
