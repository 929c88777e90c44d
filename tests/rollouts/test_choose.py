"""Sampling follows the documented distribution, and records the model's unmodified log-prob."""

from __future__ import annotations

import math
import random

import pytest
import torch

from composer_replication.core.errors import StoppedError
from composer_replication.rollouts.choose import sample_tokens

LOGITS = torch.tensor([[1.0, 3.0, float("-inf"), 2.0, -1.0]])
P = LOGITS.softmax(-1)[0].tolist()


def frequencies(*, temperature: float = 1.0, top_p: float = 1.0, draws: int = 20000) -> list[float]:
    rng = random.Random(0)
    counts = [0] * 5
    for token in sample_tokens(
        LOGITS.expand(draws, 5),
        uniform=[rng.random() for _ in range(draws)],
        temperature=temperature,
        top_p=top_p,
    ).tokens:
        counts[token] += 1
    return [c / draws for c in counts]


def test_the_distribution_is_the_models_at_temperature_one() -> None:
    assert frequencies() == pytest.approx(P, abs=0.012)


def test_temperature_flattens_or_sharpens() -> None:
    for temperature in (0.5, 2.0):
        assert frequencies(temperature=temperature) == pytest.approx(
            (LOGITS / temperature).softmax(-1)[0].tolist(), abs=0.012
        )


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    order = sorted(range(5), key=lambda i: -P[i])
    assert P[order[0]] < 0.8 < P[order[0]] + P[order[1]]
    kept_mass = P[order[0]] + P[order[1]]
    expected = [P[i] / kept_mass if i in order[:2] else 0.0 for i in range(5)]
    assert frequencies(top_p=0.8) == pytest.approx(expected, abs=0.012)
    assert frequencies(top_p=1e-9)[order[0]] == 1.0


def test_the_ends_of_the_unit_interval_take_no_impossible_token() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    assert sample_tokens(logits, uniform=[0.0], temperature=1.0, top_p=1.0).tokens == [1]
    assert sample_tokens(
        logits, uniform=[math.nextafter(1.0, 0.0)], temperature=1.0, top_p=1.0
    ).tokens == [3]


def test_the_log_prob_is_the_models_own_at_any_temperature() -> None:
    for temperature, top_p in ((0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (3.0, 1.0)):
        chosen = sample_tokens(LOGITS, uniform=[0.7], temperature=temperature, top_p=top_p)
        assert chosen.logprobs[0] == pytest.approx(math.log(P[chosen.tokens[0]]), abs=1e-5)
    assert sample_tokens(LOGITS, uniform=[0.99], temperature=0.0, top_p=1.0).tokens == [1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_stop_the_run(value: float) -> None:
    with pytest.raises(StoppedError, match="logits are not finite"):
        sample_tokens(torch.tensor([[0.0, value]]), uniform=[0.5], temperature=1.0, top_p=1.0)
