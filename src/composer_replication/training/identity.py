"""What a run trains on and from, as hashes: a resume with other examples or another start is
refused."""

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
    """A hash of everything a run trains on."""
    digest = hashlib.sha256()
    for value in (*map(example_to_json, examples), *map(pair_to_json, pairs)):
        digest.update(dumps(value).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
