"""Settings of curate: which pairs are fit to train on."""

from __future__ import annotations

from typing import Literal

from composer_replication.core.config.base import Settings

SHIPPED_RECIPES = ("default", "with_disagreement_filter", "with_disagreement_by_meaning")
"""The recipes of the package, by name; any other is a file."""


class CurateSettings(Settings):
    """Which recipe judges the pairs, and with which engine."""

    recipe: str = "default"
    """"default", "with_disagreement_filter", or a YAML file of your own with data-juicer's operator
    names."""
    engine: Literal["embedded", "data_juicer"] = "embedded"
    """"data_juicer" = the counting operators run on the real one, as a program of its own
    environment; the kept pairs are the same."""
    data_juicer_python: str = ""
    """The Python of the environment that holds py-data-juicer (docs say how to make one); needed
    for that engine only."""
    rows: bool = False
    """Write curated_rows.jsonl too: each pair with its whole prompt, flat and as chat messages, for
    other trainers."""
