"""Real data-juicer and the embedded engine keep the same pairs.

This runs if COMPOSER_DATA_JUICER names a Python that has data-juicer. `python
scripts/run_data_juicer.py` makes such an environment and runs this file: it is a separate stage
because it takes 600 MB and minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from composer_replication.compat.guide_pairs import DJNormalizer, DPOPair
from composer_replication.core.errors import DataError
from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with
from composer_replication.data.curate.recipe import SHIPPED, load_recipe, read_recipe
from tests.data.curate.pairs import pair, say
from tests.data.curate.real_shaped import ShapedPairs, made_up

VARIABLE = "COMPOSER_DATA_JUICER"
COUNT = int(os.environ.get("COMPOSER_DATA_JUICER_PAIRS", "10000"))
EVERY_COUNT = """
process:
  - text_length_filter:
      min_len: 80
      max_len: 4000
  - words_num_filter:
      min_num: 2
      max_num: 400
  - special_characters_filter:
      max_ratio: 0.38
  - alphanumeric_filter:
      min_ratio: 0.66
  - maximum_line_length_filter:
      min_len: 60
      max_len: 400
  - average_line_length_filter:
      min_len: 36
  - character_repetition_filter:
      rep_len: 5
      max_ratio: 0.125
  - word_repetition_filter:
      rep_len: 3
      max_ratio: 0.33
  - document_deduplicator
"""
ONE_SIDE = """
process:
  - text_length_filter: {text_key: chosen, min_len: 80}
  - words_num_filter: {text_key: rejected, min_num: 5}
  - special_characters_filter: {text_key: chosen, max_ratio: 0.3}
"""


@pytest.fixture(scope="module")
def engine() -> DataJuicer:
    python = os.environ.get(VARIABLE, "")
    if not python:
        pytest.skip(f"set {VARIABLE} (python scripts/run_data_juicer.py does it all)")
    return DataJuicer(Path(python))


@pytest.fixture(scope="module")
def shaped_pairs() -> ShapedPairs:
    return made_up(COUNT, seed=11)


def test_both_engines_look_at_the_side_that_is_named(engine: DataJuicer) -> None:
    recipe, pairs = read_recipe(ONE_SIDE), made_up(600, seed=14).pairs
    embedded = Curator(recipe)
    kept_ids = [pair.id for pair in pairs if embedded.judge(pair) is None]
    _, judged = curate_with(engine, recipe, pairs)
    assert [pair.id for pair, dropped in judged if dropped is None] == kept_ids and 0 < len(
        kept_ids
    ) < len(pairs)


def test_operators_that_only_the_real_one_has_are_run_by_it(
    engine: DataJuicer, tmp_path: Path
) -> None:
    """A mapper, a filter and a line deduplicator run; what is not available (a package, a model) is
    named."""

    def normalizer(text: str) -> DJNormalizer:
        (tmp_path / "mine.yaml").write_text(text, "utf-8")
        return DJNormalizer(
            tmp_path / "mine.yaml", engine="data_juicer", data_juicer_python=engine.python
        )

    def dpo_pair(name: str, chosen: str) -> DPOPair:
        return DPOPair(
            state_id=name,
            state_messages=[{"role": "user", "content": "Go."}],
            chosen=chosen,
            rejected=f"I did nothing in {name}.",
        )

    pairs = [
        dpo_pair("a", "See https://example.com/x for it."),
        dpo_pair("b", "A plain sentence of words."),
        dpo_pair("c", "| a | b |"),
    ]
    judge = normalizer(
        "process:\n  - clean_links_mapper: {text_key: chosen}\n  - text_length_filter: {text_key:"
        " chosen, min_len: 10}\n"
    )
    first, second = judge.normalize(pairs)
    assert (
        "example.com" not in first.chosen
        and first.provenance["rewritten"] == ["chosen"]
        and second.chosen == pairs[1].chosen
    )
    assert judge.rewritten == {"clean_links_mapper": 1} and [
        dropped_pair.reason for dropped_pair in judge.dropped
    ] == ["text_length_filter"]
    for step, message in (
        ("no_such_mapper", "no_such_mapper"),
        ("clean_links_mapper: {colour: red}", "colour"),
    ):
        with pytest.raises(DataError, match=message):
            normalizer(f"process:\n  - {step}\n").normalize(pairs)
    try:
        kept_pairs = normalizer("process:\n  - document_simhash_deduplicator\n").normalize(pairs)
    except DataError as error:
        # its package is not in this environment, and cannot be installed by the way
        assert "simhash" in str(error)
    else:
        assert kept_pairs


@pytest.mark.parametrize("which", ["every counting operator", *SHIPPED])
def test_both_engines_keep_the_same_pairs(
    engine: DataJuicer, shaped_pairs: ShapedPairs, which: str
) -> None:
    recipe = read_recipe(EVERY_COUNT) if which.startswith("every") else load_recipe(which)
    embedded = Curator(recipe)
    kept_ids = [pair.id for pair in shaped_pairs.pairs if embedded.judge(pair) is None]
    _, judged = curate_with(engine, recipe, shaped_pairs.pairs)
    assert [pair.id for pair, dropped in judged if dropped is None] == kept_ids
    if which in SHIPPED:
        assert set(embedded.report().dropped) == {step.name for step in recipe.steps} - {
            "chat_template_filter"
        }
    assert 0.5 * COUNT < len(kept_ids) < 0.95 * COUNT


def test_each_counting_operator_drops_something_by_itself(engine: DataJuicer) -> None:
    """No operator may agree only because an earlier one had dropped the pairs on which the engines
    differ."""
    full_recipe = read_recipe(EVERY_COUNT)
    pairs = made_up(min(COUNT, 1500), seed=12).pairs
    for step in full_recipe.steps[:-1]:
        recipe = type(full_recipe)(name=step.name, steps=(step,))
        embedded = Curator(recipe)
        kept_ids = [pair.id for pair in pairs if embedded.judge(pair) is None]
        _, judged = curate_with(engine, recipe, pairs)
        assert [pair.id for pair, dropped in judged if dropped is None] == kept_ids, step.name
        assert len(kept_ids) < len(pairs), step.name


ODD = (
    "",
    "y",
    "...",
    "ha " * 80,
    "Ok\r\nnow",
    "これは、テスト。",
    "a\x1cb c\u2003d",
    "ﬁ İ K ß\u0300",
    "👍🏽 ok",
    "| - |\n\n\n",
    "1 2 3",
    "\ta\x0bb\x85c",
)


def test_odd_texts_are_counted_alike(engine: DataJuicer) -> None:
    """Blanks that only Python knows, letters whose number changes in lower case, characters beyond
    the first plane."""
    pairs = [
        pair(say(chosen_text), say(f"{chosen_text} and {rejected_text}"), id=f"s{n}_{m}")
        for n, chosen_text in enumerate(ODD)
        for m, rejected_text in enumerate(ODD)
    ]
    recipe = read_recipe(
        "process:\n  - words_num_filter:\n      min_num: 3\n  - special_characters_filter:\n     "
        " max_ratio: 0.4\n  - alphanumeric_filter:\n      min_ratio: 0.3\n  -"
        " average_line_length_filter:\n      min_len: 4\n  - word_repetition_filter:\n     "
        " rep_len: 2\n      max_ratio: 0.3\n"
    )
    embedded = Curator(recipe)
    kept_ids = [item.id for item in pairs if embedded.judge(item) is None]
    _, judged = curate_with(engine, recipe, pairs)
    assert [item.id for item, dropped in judged if dropped is None] == kept_ids and 0 < len(
        kept_ids
    ) < len(pairs)


def test_a_share_that_is_exactly_the_bound_is_kept_by_both(engine: DataJuicer) -> None:
    """data-juicer reads its own 0.3 back as 0.30000000000000004."""
    recipe = read_recipe("process:\n  - character_repetition_filter:\n      max_ratio: 0.3\n")
    pairs = [
        pair(say("From main the. From main the."), say("Something else is said here.")),
        *made_up(5, seed=2).pairs,
    ]
    _, judged = curate_with(engine, recipe, pairs)
    assert judged[0][1] is None is Curator(recipe).judge(pairs[0])


def test_where_nothing_is_left_nothing_is_kept(engine: DataJuicer) -> None:
    recipe = read_recipe("process:\n  - text_length_filter:\n      min_len: 1000000\n")
    _, judged = curate_with(engine, recipe, made_up(20, seed=1).pairs)
    assert all(dropped is not None for _, dropped in judged)
