"""The base of every settings class: frozen, no unknown keys, seeds derived per stage."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A group of settings; an unknown key or a wrong type is an error, never ignored."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )


def stage_seed(seed: int, stage: str) -> int:
    """The seed of one stage, derived from the run's seed so that stages do not share a stream.

    >>> stage_seed(7, "train") == stage_seed(7, "train") != stage_seed(7, "build")
    True
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{stage}".encode()).digest()[:4], "big")
