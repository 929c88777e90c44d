"""Settings of the backend of actors (`train.backend = "monarch"`)."""

from __future__ import annotations

from pydantic import Field

from composer_replication.core.config.base import Settings


class MonarchSettings(Settings):
    """Number of actors, each in a process of its own: it changes the speed only, unless generators
    share the batches of a step in another way (to rounding)."""

    trainers: int = Field(default=1, gt=0)
    """Ranks that train, in one mesh."""
    generators: int = Field(default=1, gt=0)
    """Actors that sample, each in a mesh of its own: one that dies takes nobody along."""
    environments: int = Field(default=1, gt=0)
    """Actors that hold the environments."""
    max_restarts: int = Field(default=3, ge=0)
    """Restarts of a dead generator in a row, after which the run ends."""
