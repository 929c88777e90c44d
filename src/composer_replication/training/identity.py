"""What a run trains on and from, as hashes: a resume with other examples or another start is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

from composer_replication.core.jsonl import dumps
from composer_replication.tokens.example import PreferencePair, TrainingExample, example_to_json, pair_to_json


def data_sha256(examples: Iterable[TrainingExample], pairs: Iterable[PreferencePair]) -> str:
    """A hash of everything a run trains on."""
    digest = hashlib.sha256()
    for value in (*map(example_to_json, examples), *map(pair_to_json, pairs)):
        digest.update(dumps(value).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def weights_sha256(model: Any) -> str:
    """A hash of every weight, bit for bit."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode() + b"\0")
        digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
