"""The hint's signal as credit: its bounds on an advantage, the correction by the wrong hint, and
how channels are combined."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.losses.credit import (
    ChannelShares,
    channel_shares,
    contrast_evidence,
    contrast_target,
    credited_advantage,
    difficulty_weight,
    hint_evidence,
)
from composer_replication.losses.divergence import jsd, kl_student_teacher, kl_teacher_student
from composer_replication.losses.policy import dr_grpo
from tests.losses import reference


def test_shares_of_each_combination() -> None:
    assert channel_shares("additive", hint_weight=0.3) == ChannelShares(policy=1.0, hint=0.3)
    assert channel_shares("convex", hint_weight=0.3) == ChannelShares(policy=0.7, hint=0.3)
    for name in ("advantage", "bounded"):
        assert channel_shares(name, hint_weight=0.3) == ChannelShares(policy=1.0, hint=0.0)
    with pytest.raises(ValueError, match="within 0 and 1"):
        channel_shares("convex", hint_weight=1.5)
    with pytest.raises(ValueError, match="unknown combination"):
        channel_shares("sum", hint_weight=0.5)


def test_without_credit_the_policy_loss_is_bit_equal() -> None:
    logp, then, a = (torch.randn(50, generator=torch.Generator().manual_seed(s)) for s in range(3))
    for options in ({}, {"bound": 0.1}, {"bound": 0.1, "keep_sign": True}):
        changed = credited_advantage(a, torch.randn(50), coefficient=0.0, **options)
        assert torch.equal(dr_grpo(logp, then, changed, clip=0.2), dr_grpo(logp, then, a, clip=0.2))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    bound=st.floats(0.01, 2.0),
    coefficient=st.floats(0.01, 50.0),
    keep=st.booleans(),
)
def test_bounded_credit_is_bounded_and_can_be_kept_from_turning_the_reward(
    seed: int, bound: float, coefficient: float, keep: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(40, generator=generator, dtype=torch.float64)
    a[:5] = 0.0
    e = 10 * torch.randn(40, generator=generator, dtype=torch.float64)
    changed = credited_advantage(a, e, coefficient=coefficient, bound=bound, keep_sign=keep)
    assert float((changed - a).abs().max()) <= max(bound, 0.0) * (1 + 1e-12)
    if keep:
        assert bool((changed * a >= 0).all()) and bool((changed[a == 0] == 0).all())
    else:
        assert np.allclose(
            changed.numpy(), a.numpy() + bound * np.tanh(coefficient * e.numpy() / bound)
        )


def test_plain_credit_dead_zone_and_no_gradient() -> None:
    a, e = torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0.01, -3.0, 2.0], requires_grad=True)
    changed = credited_advantage(a, e, coefficient=0.5, dead_zone=0.02)
    assert changed.tolist() == [1.0, -0.5, 0.0] and not changed.requires_grad
    assert credited_advantage(a, e, keep_sign=True).tolist() == pytest.approx([1.01, 0.0, 0.0])
    with pytest.raises(ValueError, match="bound"):
        credited_advantage(a, e, bound=0.0)
    assert not hint_evidence(e, a).requires_grad and hint_evidence(e, a).tolist() == pytest.approx(
        [0.99, 4.0, -3.0]
    )


def test_the_contrast_takes_the_mean_of_probabilities() -> None:
    rng = np.random.default_rng(0)
    right, wrong = rng.uniform(0.01, 1.0, 6), rng.uniform(0.01, 1.0, (4, 6))
    got = contrast_evidence(torch.tensor(np.log(right)), torch.tensor(np.log(wrong)))
    assert np.allclose(got.numpy(), np.log(right) - np.log(wrong.mean(0)))
    # the mean of logarithms is another number
    assert not np.allclose(got.numpy(), np.log(right) - np.log(wrong).mean(0), rtol=1e-2)


def test_what_every_hint_changes_is_no_credit() -> None:
    """The same hint on both sides gives no credit, whatever it does to the student."""
    right = torch.tensor([-0.1, -5.0])
    assert contrast_evidence(right, torch.stack([right, right, right])).abs().max().item() < 1e-6
    assert contrast_evidence(right.requires_grad_(), torch.zeros(1, 2)).requires_grad is False


@pytest.mark.parametrize("wrong", [torch.zeros(2), torch.zeros(0, 2), torch.zeros(1, 3)])
def test_wrong_hints_of_another_shape_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="not K times"):
        contrast_evidence(torch.zeros(2), wrong)
    with pytest.raises(ValueError, match="not K times"):
        contrast_target(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(0, 2, 3))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_contrasted_teacher_equals_its_definition(temperature: float) -> None:
    rng = np.random.default_rng(1)
    s, right, wrong = rng.normal(size=(5, 6)), rng.normal(size=(5, 6)), rng.normal(size=(3, 5, 6))
    got = contrast_target(
        *(torch.tensor(z) for z in (s, right, wrong)),
        strength=0.8,
        bound=0.5,
        temperature=temperature,
    )
    p_s, p_right, p_wrong = (reference.softmax(z / temperature) for z in (s, right, wrong))
    shift = np.clip(np.log(p_right) - np.log(p_wrong.mean(0)), -0.5, 0.5)
    assert 0 < (np.abs(shift) == 0.5).mean() < 1
    target = p_s * np.exp(0.8 * shift)
    assert np.allclose(
        (got / temperature).softmax(-1).numpy(), target / target.sum(-1, keepdims=True)
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equal_hints_give_the_student_back_and_every_divergence_is_exactly_zero(
    temperature: float,
) -> None:
    s, hinted = torch.randn(4, 50).requires_grad_(), torch.randn(4, 50)
    hinted[:, 7] = -torch.inf
    target = contrast_target(s, hinted, hinted[None], temperature=temperature)
    assert not target.requires_grad
    for fn in (
        kl_student_teacher,
        kl_teacher_student,
        lambda a, b, temperature: jsd(a, b, beta=0.5, temperature=temperature),
    ):
        value = fn(s, target, temperature=temperature)
        (grad,) = torch.autograd.grad(value.sum(), s)
        assert bool((value == 0).all()) and bool((grad == 0).all())


def test_columns_that_do_not_exist_stay_out_of_the_contrasted_teacher() -> None:
    s, right, wrong = (
        torch.randn(2, 5, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    dropped = contrast_target(s[:, :4], right[:, :4], wrong[None, :, :4]).softmax(-1)
    assert torch.allclose(contrast_target(s, right, wrong[None], vocab=4).softmax(-1), dropped)
    for z in (s, right, wrong):
        z[:, 4] = -torch.inf
    got = contrast_target(s, right, wrong[None]).softmax(-1)
    assert torch.allclose(got[:, :4], dropped, atol=1e-6) and bool((got[:, 4] == 0).all())


def test_difficulty_weights_are_symmetric_and_zero_at_the_ends() -> None:
    p = torch.linspace(0, 1, 11, dtype=torch.float64)
    got = difficulty_weight(p)
    assert (
        torch.allclose(got, difficulty_weight(1 - p))
        and got[0] == 0
        and got[-1] == 0
        and int(got.argmax()) == 5
    )
    assert np.allclose(got.numpy() ** 2, p.numpy() * (1 - p.numpy()))
    with pytest.raises(ValueError, match="success rates"):
        difficulty_weight(torch.tensor([1.1]))
