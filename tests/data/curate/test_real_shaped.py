"""Many pairs shaped like real ones: each fault is dropped by the operator meant for it, and every
sound pair is kept."""

from __future__ import annotations

from collections import Counter

import pytest

from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.recipe import SHIPPED, load_recipe
from tests.data.curate.real_shaped import FAULTS, ShapedPairs, made_up


@pytest.fixture(scope="module")
def shaped() -> ShapedPairs:
    return made_up(1500, seed=7)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_operator_drops_its_faults_and_nothing_sound(name: str, shaped: ShapedPairs) -> None:
    recipe = load_recipe(name)
    curator, operators = Curator(recipe), {step.name for step in recipe.steps}
    drop_reasons = {
        item.id: dropped.reason for item in shaped.pairs if (dropped := curator.judge(item))
    }
    assert drop_reasons == {
        pair_id: fault for pair_id, fault in shaped.faults.items() if fault in operators
    }
    # no template was given to try
    assert set(drop_reasons.values()) == operators - {"chat_template_filter"}


def test_the_pairs_have_the_shape_of_those_in_sessions(shaped: ShapedPairs) -> None:
    """Of the assistant messages of 20 public sessions, 55 % only call, 38 % speak and call, 8 %
    only speak; 17 % call in parallel."""
    sides = [
        side for item in shaped.pairs if item.id not in shaped.faults for _, side in item.sides
    ]
    kinds = Counter(
        "both" if side.calls and side.prose else "call" if side.calls else "speak" for side in sides
    )
    assert [round(kinds[kind] / len(sides), 1) for kind in ("call", "both", "speak")] == [
        0.6,
        0.4,
        0.1,
    ]
    assert 0.12 < sum(len(side.turn.calls) > 1 for side in sides) / len(sides) < 0.22
    assert 500 < sum(len(side.text) for side in sides) / len(sides) < 1000  # 708 there
    assert {call.name for side in sides for call in side.turn.calls} == {
        "Bash",
        "Read",
        "Edit",
        "Grep",
        "TodoWrite",
        "Write",
    }
    assert len(FAULTS) == 15 and all(
        count >= 3 for count in Counter(shaped.faults.values()).values()
    )
