"""The field's policy losses against formulae written out token by token in float64, and the
guarantees of clamps and masks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from composer_replication.losses.policy import dr_grpo, is_clipped
from composer_replication.losses.sampled import (
    MAX_LOG_RATIO,
    Estimator,
    importance_weights,
    kl_estimate,
    log_ratio,
    ratio,
    sampled_token,
    sequence_means,
    sequence_sums,
)
from composer_replication.losses.surrogates import (
    cispo,
    gspo,
    off_policy_keep,
    ppo_clip,
    sapo,
    sequence_ratio,
    vespo,
)
from composer_replication.losses.trust_region import dppo, dppo_symmetric, reference_kl

SEQUENCE = np.array([0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3])
LENGTHS = np.array([3, 1, 4, 4])
Array = np.ndarray
# (log-probs now, the same as a constant, sampled, advantages, reference) -> value of each token
Expected = Callable[[Array, Array, Array, Array, Array], Array]
Ours = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
GROUPS = {"sequence_N": torch.tensor(SEQUENCE), "num_sequences": 4}


def tokens(seed: int = 5) -> tuple[Array, Array, Array, Array]:
    """Now, sampled, one advantage per sequence (both signs), reference."""
    rng = np.random.default_rng(seed)
    now = -rng.uniform(0.05, 2.0, 12)
    return (
        now,
        now + rng.normal(size=12) * 0.4,
        np.array([1.2, -0.7, 0.4, -0.9])[SEQUENCE],
        now + rng.normal(size=12) * 0.4,
    )


def sequence_mean(x: Array) -> Array:
    return np.array([x[i == SEQUENCE].mean() for i in SEQUENCE])


def clip_surrogate(r: Array, a: Array, low: float, high: float) -> Array:
    return np.array(
        [-min(ri * ai, min(max(ri, 1 - low), 1 + high) * ai) for ri, ai in zip(r, a, strict=True)]
    )


def expected_ppo(
    low: float, high: float, delta: float | None = None, dual: float | None = None
) -> Expected:
    def values(now: Array, held: Array, then: Array, a: Array, ref: Array) -> Array:
        out = []
        for r, ai in zip(np.exp(now - then), a, strict=True):
            capped = r if delta is None else min(r, delta)
            value = -min(capped * ai, min(max(r, 1 - low), 1 + high) * ai)
            out.append(min(value, -dual * ai) if dual is not None and ai < 0 else value)
        return np.array(out)

    return values


def expected_vespo(now: Array, held: Array, then: Array, a: Array, ref: Array) -> Array:
    w = np.exp(sequence_mean(held - then) * LENGTHS[SEQUENCE])
    k, lam = np.where(a >= 0, 2.0, 3.0), np.where(a >= 0, 3.0, 2.0)
    return -(np.exp(lam) * w**k * np.exp(-lam * w)) * a * now


def expected_dppo(now: Array, held: Array, then: Array, a: Array, ref: Array) -> Array:
    moved = np.exp(held) - np.exp(then)
    keep = np.where(a > 0, moved <= 0.1, moved >= -0.05)
    assert 0 < keep.sum() < 12
    return -1.0 * keep * a * np.exp(now - then) + 0.01 * (now - then) ** 2


def expected_symmetric(now: Array, held: Array, then: Array, a: Array, ref: Array) -> Array:
    keep = np.abs(np.exp(held) - np.exp(then)) <= 0.1
    return -1.0 * keep * a * np.exp(now - then) + 0.01 * (now - then) ** 2


def expected_reference(now: Array, held: Array, then: Array, a: Array, ref: Array) -> Array:
    keep = np.exp(held) - np.exp(then) >= -0.1
    assert 0 < keep.sum() < 12
    return -1.0 * keep * (ref - held) * np.exp(now - then) + 0.01 * (now - then) ** 2


def expected_sapo(now: Array, held: Array, then: Array, a: Array, ref: Array) -> Array:
    tau = np.where(a > 0, 1.0, 1.05)
    return -4 / tau / (1 + np.exp(-tau * (np.exp(now - then) - 1))) * a


FAMILY: dict[str, tuple[Ours, Expected]] = {
    "dr_grpo": (lambda p, o, a, f: dr_grpo(p, o, a, clip=0.2), expected_ppo(0.2, 0.2)),
    "ppo": (
        lambda p, o, a, f: ppo_clip(p, o, a, clip_low=0.2, clip_high=0.2),
        expected_ppo(0.2, 0.2),
    ),
    "clip higher": (
        lambda p, o, a, f: ppo_clip(p, o, a, clip_low=0.1, clip_high=0.3),
        expected_ppo(0.1, 0.3),
    ),
    "delta": (
        lambda p, o, a, f: ppo_clip(p, o, a, clip_low=0.2, clip_high=0.2, delta=1.1),
        expected_ppo(0.2, 0.2, delta=1.1),
    ),
    "dual clip": (
        lambda p, o, a, f: ppo_clip(p, o, a, clip_low=0.2, clip_high=0.2, dual_clip=1.3),
        expected_ppo(0.2, 0.2, dual=1.3),
    ),
    "gspo": (
        lambda p, o, a, f: gspo(p, o, a, **GROUPS, clip_low=0.1, clip_high=0.15),
        lambda p, h, o, a, f: clip_surrogate(np.exp(sequence_mean(p - o)), a, 0.1, 0.15),
    ),
    "gspo, the token's gradient": (
        lambda p, o, a, f: gspo(p, o, a, **GROUPS, clip_low=0.1, clip_high=0.15, gradient="token"),
        lambda p, h, o, a, f: clip_surrogate(np.exp(p - h + sequence_mean(h - o)), a, 0.1, 0.15),
    ),
    "cispo": (
        lambda p, o, a, f: cispo(p, o, a, cap=1.2, floor=0.8),
        lambda p, h, o, a, f: -np.clip(np.exp(h - o), 0.8, 1.2) * a * p,
    ),
    "sapo": (lambda p, o, a, f: sapo(p, o, a), expected_sapo),
    "vespo": (lambda p, o, a, f: vespo(p, o, a, **GROUPS), expected_vespo),
    "dppo": (
        lambda p, o, a, f: dppo(p, o, a, mask_low=0.05, mask_high=0.1, kl_tau=0.01),
        expected_dppo,
    ),
    "dppo symmetric": (
        lambda p, o, a, f: dppo_symmetric(p, o, a, threshold=0.1, kl_tau=0.01),
        expected_symmetric,
    ),
    "reference kl": (
        lambda p, o, a, f: reference_kl(p, o, f, threshold=0.1, kl_tau=0.01),
        expected_reference,
    ),
    "k1": (lambda p, o, a, f: kl_estimate(p, f, kind="k1"), lambda p, h, o, a, f: p - f),
    "k2": (lambda p, o, a, f: kl_estimate(p, f, kind="k2"), lambda p, h, o, a, f: (p - f) ** 2 / 2),
    "k3": (
        lambda p, o, a, f: kl_estimate(p, f, kind="k3"),
        lambda p, h, o, a, f: np.exp(f - p) - (f - p) - 1,
    ),
    "abs": (lambda p, o, a, f: kl_estimate(p, f, kind="abs"), lambda p, h, o, a, f: np.abs(p - f)),
    "k3 with TRL's bias correction": (
        lambda p, o, a, f: ratio(p, o) * kl_estimate(p, f, kind="k3"),
        lambda p, h, o, a, f: np.exp(p - o) * (np.exp(f - p) - (f - p) - 1),
    ),
    "sampled token": (lambda p, o, a, f: sampled_token(p, f), lambda p, h, o, a, f: (h - f) * p),
    "importance weights": (
        lambda p, o, a, f: p * importance_weights(p, o, cap=1.2),
        lambda p, h, o, a, f: p * np.minimum(np.exp(h - o), 1.2),
    ),
}


def agrees(fn: Ours, expected: Expected) -> bool:
    now, then, a, ref = tokens()
    leaf, others = (
        torch.tensor(now, requires_grad=True),
        [torch.tensor(x, requires_grad=True) for x in (then, a, ref)],
    )
    w = np.linspace(0.5, 2.0, 12)
    value = fn(leaf, *others)
    (value * torch.tensor(w)).sum().backward()
    assert leaf.grad is not None
    slope = np.zeros(12)
    for i in range(12):
        step = np.zeros(12)
        step[i] = 1e-6
        slope[i] = (
            w * (expected(now + step, now, then, a, ref) - expected(now - step, now, then, a, ref))
        ).sum() / 2e-6
    return (
        np.allclose(
            value.detach().numpy(), expected(now, now, then, a, ref), rtol=1e-10, atol=1e-12
        )
        and np.allclose(leaf.grad.numpy(), slope, rtol=1e-6, atol=1e-8)
        and others[0].grad is None  # the sampler's log-probs are data
        and others[2].grad is None
    )


@pytest.mark.parametrize("name", FAMILY)
def test_value_and_gradient_equal_the_formula(name: str) -> None:
    assert agrees(*FAMILY[name])


WRONG: dict[str, tuple[str, Ours]] = {
    "cispo's cap read as verl's": ("cispo", lambda p, o, a, f: cispo(p, o, a, cap=2.2, floor=0.8)),
    "cispo with a gradient through its weight": (
        "cispo",
        lambda p, o, a, f: -ratio(p, o).clamp(0.8, 1.2) * a * p,
    ),
    "gspo as a token's ratio": (
        "gspo",
        lambda p, o, a, f: ppo_clip(p, o, a, clip_low=0.1, clip_high=0.15),
    ),
    "gspo on the sum instead of the mean": (
        "gspo",
        lambda p, o, a, f: ppo_clip(
            sequence_sums(p, **GROUPS)[GROUPS["sequence_N"]],
            sequence_sums(o, **GROUPS)[GROUPS["sequence_N"]],
            a,
            clip_low=0.1,
            clip_high=0.15,
        ),
    ),
    "clip-higher ignored": ("clip higher", lambda p, o, a, f: dr_grpo(p, o, a, clip=0.1)),
    "a max in place of the min": (
        "ppo",
        lambda p, o, a, f: -torch.maximum(ratio(p, o) * a, ratio(p, o).clamp(0.8, 1.2) * a),
    ),
    "dppo's mask without the sign": (
        "dppo",
        lambda p, o, a, f: dppo_symmetric(p, o, a, threshold=0.1, kl_tau=0.01),
    ),
    "reference kl with a gradient in its advantage": (
        "reference kl",
        lambda p, o, a, f: -(f.detach() - p) * ratio(p, o) + 0.01 * (p - o.detach()).square(),
    ),
    "k3 of the swapped arguments": (
        "k3",
        lambda p, o, a, f: torch.expm1(p - f.detach()) - (p - f.detach()),
    ),
    "an importance weight with a gradient": (
        "importance weights",
        lambda p, o, a, f: p * ratio(p, o).clamp(max=1.2),
    ),
    "the sampled token's sign": ("sampled token", lambda p, o, a, f: -sampled_token(p, f)),
}


@pytest.mark.parametrize("name", WRONG)
def test_known_wrong_variants_do_not_agree(name: str) -> None:
    right, fn = WRONG[name]
    assert not agrees(fn, FAMILY[right][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("gap", [200.0, -200.0])
def test_a_log_ratio_of_200_stays_finite_in_value_and_gradient(
    name: str, gap: float, dtype: torch.dtype
) -> None:
    """A sampler that reported nonsense for one token must not turn the step into NaN."""
    now = torch.full((12,), -1.0, dtype=dtype, requires_grad=True)
    then, a, ref = (torch.tensor(x, dtype=dtype) for x in tokens()[1:])
    then[[0, 8]] = ref[[0, 8]] = -1.0 - gap
    value = FAMILY[name][0](now, then, a, ref)
    value.sum().backward()
    assert now.grad is not None and bool(value.isfinite().all()) and bool(now.grad.isfinite().all())


def test_a_sampler_that_says_minus_infinity_gives_a_finite_ratio() -> None:
    now, then = torch.zeros(2), torch.tensor([-torch.inf, torch.inf])
    assert log_ratio(now, then).tolist() == [MAX_LOG_RATIO, -MAX_LOG_RATIO] and bool(
        ratio(now, then).isfinite().all()
    )
    assert importance_weights(now, then, cap=2.0).tolist() == pytest.approx([2.0, 0.0], abs=1e-8)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_on_policy_all_of_them_are_reinforce(seed: int) -> None:
    """At ratio 1 the gradient of each surrogate is -A, whatever it clips; GSPO's in the sum over a
    sequence."""
    now, _, a, _ = (torch.tensor(x) for x in tokens(seed))
    for name in (
        "dr_grpo",
        "ppo",
        "clip higher",
        "delta",
        "dual clip",
        "gspo",
        "gspo, the token's gradient",
        "cispo",
        "sapo",
        "vespo",
        "dppo",
    ):
        leaf = now.clone().requires_grad_()
        FAMILY[name][0](leaf, now, a, now).sum().backward()
        assert leaf.grad is not None and torch.allclose(leaf.grad, -a, atol=1e-12), name


def test_the_two_gradients_of_gspo_agree_in_the_sum_over_a_sequence() -> None:
    now, then, a, _ = (torch.tensor(x) for x in tokens())
    sums = {}
    for gradient in ("sequence", "token"):
        leaf = now.clone().requires_grad_()
        (sequence_ratio(leaf, then, **GROUPS, gradient=gradient) * a).sum().backward()
        assert leaf.grad is not None
        sums[gradient] = sequence_sums(leaf.grad, **GROUPS)
    assert torch.allclose(sums["sequence"], sums["token"])
    with pytest.raises(ValueError, match="gradient"):
        sequence_ratio(now, then, **GROUPS, gradient="none")


@pytest.mark.parametrize(("kind", "unbiased"), [("k1", True), ("k3", True), ("k2", False)])
def test_estimators_of_the_kl_from_samples(kind: Estimator, unbiased: bool) -> None:
    """Their exact mean under the policy: k1 and k3 have the KL; with verl's straight-through the
    gradient is the KL's too."""
    z, ref = (
        torch.randn(
            7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        ).requires_grad_(),
        torch.zeros(7).double(),
    )
    p, logp = z.softmax(-1), z.log_softmax(-1)
    truth = (p * (logp - ref.log_softmax(-1))).sum()
    (exact,) = torch.autograd.grad(truth, z, retain_graph=True)
    mean = (p.detach() * kl_estimate(logp, ref.log_softmax(-1), kind=kind)).sum()
    assert torch.allclose(mean, truth, rtol=1e-9) is unbiased
    (gradient,) = torch.autograd.grad(mean, z, retain_graph=True)
    assert torch.allclose(gradient, exact) is (kind == "k2")
    through = (
        p.detach() * kl_estimate(logp, ref.log_softmax(-1), kind=kind, straight_through=True)
    ).sum()
    (corrected,) = torch.autograd.grad(through, z)
    assert torch.allclose(corrected, exact) and torch.allclose(through, mean)


def test_the_sampled_token_estimates_the_reverse_kls_gradient() -> None:
    z, t = (
        torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(s))
        for s in (0, 1)
    )
    z.requires_grad_()
    logp, logt = z.log_softmax(-1), t.log_softmax(-1)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - logt)).sum(), z, retain_graph=True)
    (mean,) = torch.autograd.grad((logp.exp().detach() * sampled_token(logp, logt)).sum(), z)
    assert torch.allclose(mean, exact)


def test_the_clipped_share_is_what_gets_no_gradient() -> None:
    now, then, a, _ = (torch.tensor(x) for x in tokens())
    leaf = now.clone().requires_grad_()
    dr_grpo(leaf, then, a, clip=0.2).sum().backward()
    assert (
        leaf.grad is not None
        and is_clipped(now, then, a, clip=0.2).tolist() == (leaf.grad == 0).tolist()
    )


def test_the_off_policy_mask_drops_drifted_sequences_of_negative_advantage_only() -> None:
    then = torch.zeros(12)
    drift = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.1, 0.9, 0.0, 0.0, 0.0])
    a = torch.tensor([1.0, -1.0, -1.0, 0.0])[GROUPS["sequence_N"]]
    keep = off_policy_keep(then - drift, then, a, **GROUPS, threshold=0.3)
    assert keep.tolist() == [True] * 3 + [False] + [True] * 8
    assert not bool(
        off_policy_keep(then - drift, then, -torch.ones(12), **GROUPS, threshold=0.2)[8:].any()
    )


def test_sequences_without_tokens_have_zero_sums_and_means() -> None:
    x, sequence_N = torch.tensor([1.0, 2.0]), torch.tensor([2, 2])
    assert sequence_sums(x, sequence_N, num_sequences=4).tolist() == [0.0, 0.0, 3.0, 0.0]
    assert sequence_means(x, sequence_N, num_sequences=4).tolist() == [0.0, 0.0, 1.5, 0.0]


def test_an_empty_micro_batch_is_empty() -> None:
    none, sequence_N = torch.zeros(0, requires_grad=True), torch.zeros(0, dtype=torch.long)
    total = (
        ppo_clip(none, none, none, clip_low=0.2, clip_high=0.2).sum() + dppo(none, none, none).sum()
    )
    total = (
        total
        + gspo(none, none, none, sequence_N, num_sequences=0, clip_low=0.2, clip_high=0.2).sum()
    )
    total = total + vespo(none, none, none, sequence_N, num_sequences=3).sum()
    total.backward()
    assert total.item() == 0.0


def test_impossible_arguments_are_named() -> None:
    p = torch.zeros(2)
    with pytest.raises(ValueError, match="dual_clip"):
        ppo_clip(p, p, p, clip_low=0.2, clip_high=0.2, dual_clip=1.0)
    with pytest.raises(ValueError, match="unknown estimator"):
        kl_estimate(p, p, kind="k4")
