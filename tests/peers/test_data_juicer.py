"""Real data-juicer and the embedded engine keep the same pairs. Runs where COMPOSER_DATA_JUICER names a Python that has data-juicer.

`python scripts/run_data_juicer.py` makes such an environment and runs this: a stage of its own, because it takes 2 GB and minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with
from composer_replication.data.curate.recipe import load_recipe, read_recipe
from tests.data.curate.pairs import pair, say, usual_pairs

VARIABLE = "COMPOSER_DATA_JUICER"
COUNT = int(os.environ.get("COMPOSER_DATA_JUICER_PAIRS", "10000"))
EVERY_COUNT = """
process:
  - text_length_filter:
      min_len: 12
      max_len: 220
  - words_num_filter:
      min_num: 4
      max_num: 50
  - special_characters_filter:
      max_ratio: 0.22
  - alphanumeric_filter:
      min_ratio: 0.7
  - maximum_line_length_filter:
      min_len: 9
      max_len: 260
  - average_line_length_filter:
      min_len: 9
  - character_repetition_filter:
      rep_len: 5
      max_ratio: 0.12
  - word_repetition_filter:
      rep_len: 3
      max_ratio: 0.2
  - document_deduplicator
"""


@pytest.fixture(scope="module")
def engine() -> DataJuicer:
    python = os.environ.get(VARIABLE, "")
    if not python:
        pytest.skip(f"set {VARIABLE} (python scripts/run_data_juicer.py does it all)")
    return DataJuicer(Path(python))


@pytest.mark.parametrize("which", ["every counting operator", "default", "with_disagreement_filter"])
def test_both_engines_keep_the_same_pairs(engine: DataJuicer, which: str) -> None:
    recipe = read_recipe(EVERY_COUNT) if which.startswith("every") else load_recipe(which)
    pairs = usual_pairs(COUNT, seed=11)
    embedded = Curator(recipe)
    kept = [pair.id for pair in pairs if embedded.judge(pair) is None]
    _, judged = curate_with(engine, recipe, pairs)
    assert [pair.id for pair, dropped in judged if dropped is None] == kept
    assert 0.02 * COUNT < len(kept) < 0.98 * COUNT  # a comparison in which everything or nothing is kept says nothing


def test_each_counting_operator_drops_something_by_itself(engine: DataJuicer) -> None:
    """So that no operator agrees only because another one before it had dropped the pairs on which they differ."""
    whole = read_recipe(EVERY_COUNT)
    pairs = usual_pairs(min(COUNT, 1500), seed=12)
    for step in whole.steps[:-1]:
        recipe = type(whole)(name=step.name, steps=(step,))
        embedded = Curator(recipe)
        kept = [pair.id for pair in pairs if embedded.judge(pair) is None]
        _, judged = curate_with(engine, recipe, pairs)
        assert [pair.id for pair, dropped in judged if dropped is None] == kept, step.name
        assert len(kept) < len(pairs), step.name


def test_a_share_that_is_exactly_the_bound_is_kept_by_both(engine: DataJuicer) -> None:
    """data-juicer reads its own 0.3 back as 0.30000000000000004."""
    recipe = read_recipe("process:\n  - character_repetition_filter:\n      max_ratio: 0.3\n")
    pairs = [pair(say("From main the. From main the."), say("Something else is said here.")), *usual_pairs(5, seed=2)]
    _, judged = curate_with(engine, recipe, pairs)
    assert judged[0][1] is None is Curator(recipe).judge(pairs[0])


def test_where_nothing_is_left_nothing_is_kept(engine: DataJuicer) -> None:
    recipe = read_recipe("process:\n  - text_length_filter:\n      min_len: 1000000\n")
    _, judged = curate_with(engine, recipe, usual_pairs(20, seed=1))
    assert all(dropped is not None for _, dropped in judged)
