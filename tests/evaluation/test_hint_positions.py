"""What neutral text disturbs at each position: against plain transformers, and what follows."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
import torch

from composer_replication.core.config.data_settings import HintPosition
from composer_replication.evaluation.hint_positions import (
    PositionEffect,
    advised_position,
    measure_positions,
)
from composer_replication.tokens.example import TrainingExample
from tests.evaluation.position_effects import position_effect
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
        chosen="system",
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
    in_system = {e.id: e for e in in_positions()["system"]}
    for effect in effects:
        examples = in_positions()[effect.position]
        n = 7 if effect.position == "result" else 8  # one site has no view there
        text = NEUTRAL[effect.position]
        assert effect.disturbance.n == effect.difference.n == n
        slow = [jsd_before(model, e, text) for e in examples]
        assert effect.disturbance.mean == pytest.approx(sum(slow) / n, rel=1e-3)
        there = [jsd_before(model, in_system[e.id], NEUTRAL["system"]) for e in examples]
        paired = sum(a - b for a, b in zip(slow, there, strict=True)) / n
        assert effect.difference.mean == pytest.approx(paired, abs=1e-3)
        lifts = [
            plain_log_odds(model, e, v.hint_ids, d) - plain_log_odds(model, e, text, d)
            for e in examples
            for v in e.hints
            for d in v.decisions
        ]
        assert effect.over_neutral == pytest.approx(sum(lifts) / len(lifts), abs=2e-3)


def test_a_bound_on_the_sites_spreads_over_them() -> None:
    _, effects = measured("rows", max_sites=3)
    assert [e.disturbance.n for e in effects] == [3, 3, 2]
    assert effects[0].disturbance.clusters == 3


def test_another_position_is_advised_only_where_it_is_shown_to_disturb_less() -> None:
    assert set(NEUTRAL) < set(get_args(HintPosition))
    system = position_effect("system", (0.0, 0.0), 1.78)
    user, reminder = (
        position_effect("user", (-1.3, 0.4), 1.75),
        position_effect("reminder", (-1.45, 0.4), 1.3),
    )
    # of the two that disturb less, hints act as far in one only
    assert advised_position([system, user, reminder], chosen="system") == "user"
    for difference in ((-1.3, 1.4), (-1.3, None), (1.0, 0.1), (-0.05, 0.01)):
        unclear = position_effect("user", difference, 1.75)
        assert advised_position([system, unclear], chosen="system") is None
    assert advised_position([system], chosen="system") is None
    # without log-odds only the disturbance counts
    assert (
        advised_position([system, position_effect("user", (-1.0, 0.2), None)], chosen="system")
        == "user"
    )


def test_a_position_in_which_no_hint_can_be_placed_has_no_effect() -> None:
    model, built = tiny_model(), in_positions()
    built["result"] = []
    neutral = {
        position: {v.site_id: NEUTRAL[position] for e in examples for v in e.hints}
        for position, examples in built.items()
    }
    told: list[tuple[int, int]] = []
    effects = measure_positions(
        model,
        built,
        chosen="user",
        neutral=neutral,
        pad_id=0,
        max_tokens=999,
        seed=7,
        max_sites=99,
        on_site=lambda done, total: told.append((done, total)),
    )
    assert {e.position: e.disturbance.n for e in effects} == {"system": 8, "user": 8}
    assert told == [(n, 16) for n in range(1, 17)]
