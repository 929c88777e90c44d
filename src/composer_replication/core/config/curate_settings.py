"""Settings of curate: which pairs are fit to train on."""

from __future__ import annotations

from typing import Literal

from composer_replication.core.config.base import Settings

SHIPPED_RECIPES = ("default", "with_disagreement_filter", "with_disagreement_by_meaning")
"""The recipes of the package, by name; any other is a file."""


class CurateSettings(Settings):
    """The recipe that filters the pairs, and the engine that runs it."""

    recipe: str = "default"
    """"default", "with_disagreement_filter", or your own YAML file with data-juicer operator
    names."""
    engine: Literal["embedded", "data_juicer"] = "embedded"
    """Where the operators run. "data_juicer" runs the counting operators in data-juicer itself, in
    its own environment; the kept pairs are the same."""
    data_juicer_python: str = ""
    """Python interpreter of the environment with py-data-juicer (the docs say how to create one).
    Needed only for that engine."""
    rows: bool = False
    """Also write curated_rows.jsonl: each pair with its full prompt, flat and as chat messages, for
    other trainers."""
