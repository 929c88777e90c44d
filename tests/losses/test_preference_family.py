"""DPO's relatives and SimPO against the formulae, case by case, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from composer_replication.losses.preference import (
    dpo,
    dpo_hinge,
    ipo,
    sequence_logprobs,
    sequence_mean_logprobs,
    simpo,
)

Array = np.ndarray
Ours = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Expected = Callable[[Array, Array, Array, Array], Array]


def minus_log_sigmoid(z: Array) -> Array:
    return np.log1p(np.exp(-z))


def pairs() -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng(8)
    chosen, rejected = -rng.uniform(0.2, 3.0, 7), -rng.uniform(0.2, 3.0, 7)
    return chosen, rejected, chosen + rng.normal(size=7), rejected + rng.normal(size=7)


def margin(c: Array, r: Array, rc: Array, rr: Array) -> Array:
    return (c - rc) - (r - rr)


FAMILY: dict[str, tuple[Ours, Expected]] = {
    "dpo": (
        lambda c, r, rc, rr: dpo(c, r, rc, rr, beta=0.7),
        lambda *x: minus_log_sigmoid(0.7 * margin(*x)),
    ),
    "dpo, smoothed": (
        lambda c, r, rc, rr: dpo(c, r, rc, rr, beta=0.7, label_smoothing=0.2),
        lambda *x: (
            0.8 * minus_log_sigmoid(0.7 * margin(*x)) + 0.2 * minus_log_sigmoid(-0.7 * margin(*x))
        ),
    ),
    "hinge": (
        lambda c, r, rc, rr: dpo_hinge(c, r, rc, rr, beta=0.7),
        lambda *x: np.maximum(0, 1 - 0.7 * margin(*x)),
    ),
    "ipo": (
        lambda c, r, rc, rr: ipo(c, r, rc, rr, beta=0.7),
        lambda *x: (margin(*x) - 1 / 1.4) ** 2,
    ),
    "simpo": (
        lambda c, r, rc, rr: simpo(c, r, beta=2.0, gamma=0.5),
        lambda c, r, rc, rr: minus_log_sigmoid(2 * (c - r) - 0.5),
    ),
    "simpo, smoothed": (
        lambda c, r, rc, rr: simpo(c, r, beta=2.0, gamma=0.5, label_smoothing=0.1),
        lambda c, r, rc, rr: (
            0.9 * minus_log_sigmoid(2 * (c - r) - 0.5) + 0.1 * minus_log_sigmoid(0.5 - 2 * (c - r))
        ),
    ),
    "simpo hinge": (
        lambda c, r, rc, rr: simpo(c, r, beta=2.0, gamma=0.5, loss="hinge"),
        lambda c, r, rc, rr: np.maximum(0, 1 - (2 * (c - r) - 0.5)),
    ),
}


def agrees(fn: Ours, expected: Expected) -> bool:
    logps = pairs()
    leaves = [torch.tensor(x, requires_grad=True) for x in logps]
    value = fn(*leaves)
    value.sum().backward()
    for side in (0, 1):
        step = [np.zeros(7)] * 4
        step[side] = np.full(7, 1e-6)
        up, down = (
            expected(*(x + h for x, h in zip(logps, step, strict=True))),
            expected(*(x - h for x, h in zip(logps, step, strict=True))),
        )
        grad = leaves[side].grad
        if grad is None or not np.allclose(grad.numpy(), (up - down) / 2e-6, rtol=1e-6, atol=1e-8):
            return False
    return (
        np.allclose(value.detach().numpy(), expected(*logps), rtol=1e-12)
        and leaves[2].grad is None
        and leaves[3].grad is None
    )


@pytest.mark.parametrize("name", FAMILY)
def test_value_and_gradient_equal_the_formula(name: str) -> None:
    assert agrees(*FAMILY[name])


@pytest.mark.parametrize("right", FAMILY)
@pytest.mark.parametrize("wrong", FAMILY)
def test_each_variant_trains_by_its_own_gradient(right: str, wrong: str) -> None:
    """A variant that is silently trained as another would agree with it."""
    assert agrees(FAMILY[wrong][0], FAMILY[right][1]) is (right == wrong)


WRONG: dict[str, tuple[str, Ours]] = {
    "gamma as a ratio of beta": ("simpo", lambda c, r, rc, rr: simpo(c, r, beta=2.0, gamma=1.0)),
    "chosen and rejected swapped": ("dpo", lambda c, r, rc, rr: dpo(r, c, rr, rc, beta=0.7)),
    "a reference with a gradient": (
        "dpo",
        lambda c, r, rc, rr: -torch.nn.functional.logsigmoid(0.7 * ((c - rc) - (r - rr))),
    ),
    "without a reference": (
        "dpo",
        lambda c, r, rc, rr: dpo(c, r, torch.zeros_like(c), torch.zeros_like(r), beta=0.7),
    ),
    "ipo with 1 / beta": (
        "ipo",
        lambda c, r, rc, rr: ((c - rc.detach()) - (r - rr.detach()) - 1 / 0.7).square(),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_known_wrong_variants_do_not_agree(name: str) -> None:
    right, fn = WRONG[name]
    assert not agrees(fn, FAMILY[right][1])


def test_large_margins_neither_overflow_nor_vanish_to_nan() -> None:
    c, r = torch.tensor([5000.0, -5000.0], requires_grad=True), torch.zeros(2)
    for value in (
        dpo(c, r, r, r, beta=1.0, label_smoothing=0.1),
        simpo(c, r, beta=1.0, gamma=0.0),
        ipo(c, r, r, r, beta=0.1),
    ):
        assert bool(value.isfinite().all())
        (grad,) = torch.autograd.grad(value.sum(), c)
        assert bool(grad.isfinite().all())


def test_a_longer_sequence_has_no_larger_mean_and_an_empty_one_is_an_error() -> None:
    logp, sequence_N = torch.tensor([-1.0, -1.0, -1.0, -2.0]), torch.tensor([0, 0, 0, 1])
    assert sequence_mean_logprobs(logp, sequence_N, num_sequences=2).tolist() == [-1.0, -2.0]
    assert sequence_logprobs(logp, sequence_N, num_sequences=2).tolist() == [-3.0, -2.0]
    # 0 / 0 would be NaN, as it is in three libraries
    for fn in (sequence_logprobs, sequence_mean_logprobs):
        with pytest.raises(ValueError, match="without a response token"):
            fn(logp, sequence_N, num_sequences=3)


def test_length_normalised_dpo_is_dpo_of_the_means() -> None:
    logp, ref = (torch.tensor(np.random.default_rng(s).normal(size=7)) for s in (0, 1))
    sequence_N = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    means, ref_means = (sequence_mean_logprobs(x, sequence_N, num_sequences=2) for x in (logp, ref))
    z = 2.0 * ((logp[:4].mean() - ref[:4].mean()) - (logp[4:].mean() - ref[4:].mean()))
    got = dpo(means[:1], means[1:], ref_means[:1], ref_means[1:], beta=2.0)
    assert got.item() == pytest.approx(math.log1p(math.exp(-z.item())))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: dpo(p, p, p, p, beta=0.1, label_smoothing=1.5), "label_smoothing"),
        (lambda p: dpo(p, p, p, p, beta=0.1, label_smoothing=-0.1), "label_smoothing"),
        (lambda p: simpo(p, p, beta=2.0, gamma=1.0, loss="ipo"), "hinge"),
        (lambda p: simpo(p, p, beta=2.0, gamma=1.0, loss="hinge", label_smoothing=0.1), "sigmoid"),
    ],
)
def test_impossible_arguments_are_named(call: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(1))
