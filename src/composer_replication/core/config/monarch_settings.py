"""Settings of the backend of actors (`train.backend = "monarch"`)."""

from __future__ import annotations

from pydantic import Field

from composer_replication.core.config.base import Settings


class MonarchSettings(Settings):
    """Number of actors, each in its own process. It affects only the speed, unless generators split
    the batches of a step differently (then to rounding)."""

    trainers: int = Field(default=1, gt=0)
    """Training ranks, in one mesh."""
    generators: int = Field(default=1, gt=0)
    """Sampling actors, each in its own mesh, so that one crash does not affect the others."""
    environments: int = Field(default=1, gt=0)
    """Actors that host the environments."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum consecutive restarts of a dead generator before the run ends."""
