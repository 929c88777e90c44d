"""What neutral text disturbs at each position: against plain transformers, and what follows."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
import torch

from composer_replication.core.config.data_settings import HintPosition
from composer_replication.evaluation.hint_positions import (
    PositionEffect,
    best_position,
    measure_positions,
)
from composer_replication.evaluation.stats import Interval
from composer_replication.tokens.example import TrainingExample
from tests.evaluation.test_decision_lift import plain_log_odds, random_sites, tiny_model

NEUTRAL: dict[HintPosition, tuple[int, ...]] = {"system": (3, 4, 5), "user": (9, 8), "result": (7,)}


def in_positions() -> dict[HintPosition, list[TrainingExample]]:
    """The same sites, with other inserted ids in each position; one has no view as a result."""
    built: dict[HintPosition, list[TrainingExample]] = {}
    for shift, position in enumerate(NEUTRAL):
        built[position] = [
            dataclasses.replace(
                e,
                hints=tuple(
                    dataclasses.replace(v, hint_ids=tuple((i + shift) % 60 for i in v.hint_ids))
                    for v in e.hints
                ),
            )
            for e in random_sites(8)
        ]
    built["result"] = built["result"][1:]
    return built


def measured(layout: str, max_sites: int = 99) -> tuple[Any, list[PositionEffect]]:
    model, built = tiny_model(), in_positions()
    neutral = {
        position: {v.site_id: NEUTRAL[position] for e in built[position] for v in e.hints}
        for position in built
    }
    effects = measure_positions(
        model,
        built,
        neutral=neutral,
        pad_id=0,
        max_tokens=999,
        seed=7,
        max_sites=max_sites,
        layout=layout,
    )
    return model, effects


def jsd_before(model: Any, example: TrainingExample, inserted: tuple[int, ...]) -> float:
    """The slow way: two whole forwards, and the divergence of each token before the decision."""
    view = example.hints[0]
    a, fork = view.span[0], view.decisions[0].spans[0][0]
    with torch.no_grad():
        plain = model(torch.tensor([example.ids])).logits[0].double().softmax(-1)
        ids = example.ids[: view.at] + inserted + example.ids[view.at :]
        other = model(torch.tensor([ids])).logits[0].double().softmax(-1)
    total = 0.0
    for position in range(a, fork):
        p, q = plain[position - 1], other[position - 1 + len(inserted)]
        middle = (p + q) / 2
        total += float((p * (p / middle).log() + q * (q / middle).log()).sum()) / 2
    return total


@pytest.mark.parametrize("layout", ["rows", "tree"])
def test_the_disturbance_is_that_of_plain_transformers(layout: str) -> None:
    model, effects = measured(layout)
    assert [e.position for e in effects] == list(NEUTRAL)
    for effect in effects:
        examples = [e for e in in_positions()[effect.position] if e.id != "e0"]
        text = NEUTRAL[effect.position]
        assert effect.disturbance.n == 7  # the site without a view in one position is in none
        slow = [jsd_before(model, e, text) for e in examples]
        assert effect.disturbance.mean == pytest.approx(sum(slow) / 7, rel=1e-3)
        lifts = [
            plain_log_odds(model, e, v.hint_ids, d) - plain_log_odds(model, e, text, d)
            for e in examples
            for v in e.hints
            for d in v.decisions
        ]
        assert effect.over_neutral == pytest.approx(sum(lifts) / len(lifts), abs=2e-3)


def test_a_bound_on_the_sites_spreads_over_them() -> None:
    _, effects = measured("rows", max_sites=3)
    assert [e.disturbance.n for e in effects] == [3, 3, 3]
    assert effects[0].disturbance.clusters == 3


def effect(position: HintPosition, disturbance: float, lift: float | None) -> PositionEffect:
    interval = Interval(n=9, clusters=9, mean=disturbance, low=None, high=None)
    return PositionEffect(
        position=position, disturbance=interval, logp_change=0.0, over_neutral=lift
    )


def test_the_least_disturbance_wins_where_hints_act_as_far() -> None:
    assert set(NEUTRAL) < set(get_args(HintPosition))
    facts = [
        effect("system", 2.14, 1.78),
        effect("user", 0.85, 1.75),
        effect("reminder", 0.69, 1.3),
    ]
    assert best_position(facts, chosen="system") == "user"
    assert best_position(facts, chosen="user") == "user"
    # a small difference is no reason to change, a large one is
    near = [effect("system", 0.90, 1.78), effect("user", 0.85, 1.75)]
    assert best_position(near, chosen="system") == "system"
    assert best_position(near, chosen="reminder") == "user"
    # without log-odds, or where no hint acts, only the disturbance counts
    assert best_position(
        [effect("system", 2.0, None), effect("user", 1.0, None)], chosen="system"
    ) == ("user")
    assert best_position(
        [effect("system", 2.0, -1.0), effect("user", 1.0, -3.0)], chosen="system"
    ) == ("user")
