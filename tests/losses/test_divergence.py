"""Divergences against an independent float64 NumPy reference and known-wrong variants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from composer_replication.losses.divergence import jsd, kl_student_teacher, kl_teacher_student
from composer_replication.losses.hint_loss import hint_divergence
from tests.losses.reference import random_logits

# ---- an independent reference: textbook sums in float64, gradient by central differences ----


def np_softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def np_kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return (p * (np.log(p) - np.log(q))).sum(-1)


def np_reference(s: np.ndarray, t: np.ndarray, beta: float, temperature: float = 1.0) -> np.ndarray:
    ps, pt = np_softmax(s / temperature), np_softmax(t / temperature)
    if beta == 0:
        return np_kl(pt, ps)
    if beta == 1:
        return np_kl(ps, pt)
    m = (1 - beta) * ps + beta * pt
    return (beta * np_kl(pt, m) + (1 - beta) * np_kl(ps, m)) / (beta * (1 - beta))


def np_gradient(
    s: np.ndarray, t: np.ndarray, beta: float, temperature: float = 1.0, h: float = 1e-5
) -> np.ndarray:
    out = np.zeros_like(s)
    for j in range(s.shape[-1]):
        step = np.zeros_like(s)
        step[..., j] = h
        out[..., j] = (
            np_reference(s + step, t, beta, temperature)
            - np_reference(s - step, t, beta, temperature)
        ) / (2 * h)
    return out


def call(beta: float) -> Callable[..., Tensor]:
    return lambda s, t, **k: jsd(s, t, beta=beta, **k)


def agrees(fn: Callable[..., Tensor], beta: float, temperature: float = 1.0) -> bool:
    """Value, student gradient and absence of a teacher gradient, all against the reference."""
    s_np, t_np = random_logits(v=11, scale=2.0)
    s, t = torch.tensor(s_np, requires_grad=True), torch.tensor(t_np, requires_grad=True)
    value = fn(s, t, temperature=temperature)
    if value.requires_grad:
        value.sum().backward()
    grad = np.zeros_like(s_np) if s.grad is None else s.grad.numpy()
    return (
        np.allclose(
            value.detach().numpy(),
            np_reference(s_np, t_np, beta, temperature),
            rtol=1e-9,
            atol=1e-12,
        )
        and np.allclose(grad, np_gradient(s_np, t_np, beta, temperature), rtol=1e-6, atol=1e-8)
        and t.grad is None
    )


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
def test_value_and_gradient_equal_the_reference(beta: float, temperature: float) -> None:
    assert agrees(call(beta), beta, temperature)


def test_the_kls_are_named_by_argument_order() -> None:
    assert agrees(kl_teacher_student, 0.0)
    assert agrees(kl_student_teacher, 1.0)
    assert agrees(
        lambda s, t, **k: hint_divergence(s, t, divergence="kl(teacher, student)", **k), 0.0
    )
    assert agrees(
        lambda s, t, **k: hint_divergence(s, t, divergence="kl(student, teacher)", **k), 1.0
    )
    assert agrees(lambda s, t, **k: hint_divergence(s, t, divergence="jsd", beta=0.3, **k), 0.3)


def leaking(s: Tensor, t: Tensor, temperature: float) -> Tensor:
    """The right value, but the teacher gets a gradient."""
    ls, lt = (s / temperature).log_softmax(-1), (t / temperature).log_softmax(-1)
    return (ls.exp() * (ls - lt)).sum(-1)


WRONG: dict[str, tuple[Callable[..., Tensor], float]] = {
    "swapped arguments of a kl": (lambda s, t, **k: kl_teacher_student(s, t, **k), 1.0),
    "student and teacher swapped": (lambda s, t, **k: jsd(t, s, beta=0.1, **k), 0.1),
    "beta weighs the student": (lambda s, t, **k: jsd(s, t, beta=0.9, **k), 0.1),
    "no scaling": (lambda s, t, **k: jsd(s, t, beta=0.1, raw=True, **k), 0.1),
    "detached student": (lambda s, t, **k: jsd(s.detach(), t, beta=0.5, **k), 0.5),
    "teacher gradient leak": (leaking, 1.0),
    "times the squared temperature": (
        lambda s, t, temperature: temperature**2 * jsd(s, t, beta=0.5, temperature=temperature),
        0.5,
    ),
    "temperature on the student only": (
        lambda s, t, temperature: jsd(s / temperature, t, beta=0.5),
        0.5,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_known_wrong_variants_do_not_agree(name: str) -> None:
    fn, beta = WRONG[name]
    assert not agrees(fn, beta, temperature=0.7)


# ---- numerics ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_identity_is_exactly_zero_with_zero_gradient(beta: float, dtype: torch.dtype) -> None:
    z = (torch.randn(6, 300) * 8).to(dtype)
    s = z.clone().requires_grad_()
    value = jsd(s, z.clone(), beta=beta)
    value.sum().backward()
    assert s.grad is not None and s.grad.dtype == dtype
    assert bool((value == 0).all()) and bool((s.grad == 0).all())


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("distance", [3e-2, 1e-3])
def test_near_equality_keeps_its_digits_in_float32(beta: float, distance: float) -> None:
    """At a divergence of 1e-4 .. 1e-7 the usual formula in float32 loses 1e-3 or more; ours keeps
    four digits."""
    generator = torch.Generator().manual_seed(3)
    s = torch.randn(8, 5000, generator=generator) * 3
    t = s + distance * torch.randn(8, 5000, generator=generator)
    exact, ours = s.double().requires_grad_(), s.clone().requires_grad_()
    expected = torch.tensor(np_reference(s.double().numpy(), t.double().numpy(), beta))
    value = jsd(ours, t, beta=beta)
    value.sum().backward()
    jsd(exact, t.double(), beta=beta).sum().backward()
    assert ours.grad is not None and exact.grad is not None
    assert bool((value > 0).all())
    assert torch.allclose(value.double(), expected, rtol=2e-3 if distance < 1e-2 else 1e-4)
    error = (ours.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert error < 2e-3


def test_all_divergences_have_the_same_curvature_near_equality() -> None:
    s = torch.randn(4, 50, dtype=torch.float64)
    t = s + 1e-4 * torch.randn(4, 50, dtype=torch.float64)
    base = kl_student_teacher(s, t)
    for beta in (0.0, 0.1, 0.5, 0.8):
        assert torch.allclose(jsd(s, t, beta=beta), base, rtol=2e-3)
        if 0 < beta < 1:
            assert torch.allclose(
                jsd(s, t, beta=beta, raw=True), beta * (1 - beta) * base, rtol=2e-3
            )


def test_columns_behind_the_vocabulary_do_not_count() -> None:
    s, t = torch.randn(3, 9), torch.randn(3, 9)
    s[:, 7:], t[:, 7:] = 50.0, -3.0
    wide = s.clone().requires_grad_()
    value = jsd(wide, t, beta=0.5, vocab=7)
    value.sum().backward()
    assert torch.equal(value.detach(), jsd(s[:, :7], t[:, :7], beta=0.5))
    assert wide.grad is not None and bool((wide.grad[:, 7:] == 0).all())


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_a_column_of_minus_infinity_equals_a_dropped_column(beta: float) -> None:
    s, t = torch.randn(3, 7, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    s[:, 6] = t[:, 6] = -torch.inf
    s.requires_grad_()
    value = jsd(s, t, beta=beta)
    value.sum().backward()
    assert torch.allclose(value.detach(), jsd(s.detach()[:, :6], t[:, :6], beta=beta), rtol=1e-12)
    assert s.grad is not None and bool(s.grad.isfinite().all()) and bool((s.grad[:, 6] == 0).all())


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_one_sided_minus_infinity_stays_finite(beta: float) -> None:
    s, t = torch.randn(2, 5), torch.randn(2, 5)
    s[0, 2] = t[1, 3] = -torch.inf
    s.requires_grad_()
    value = jsd(s, t, beta=beta)
    value.sum().backward()
    assert s.grad is not None and bool(value.isfinite().all()) and bool(s.grad.isfinite().all())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beta=st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]),
    scale=st.sampled_from([0.01, 1.0, 40.0]),
)
def test_never_negative_symmetric_and_bounded(seed: int, beta: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    s, t = (torch.randn(4, 13, generator=generator) * scale for _ in range(2))
    s.requires_grad_()
    value = jsd(s, t, beta=beta, raw=True)
    value.sum().backward()
    assert s.grad is not None
    assert bool((value >= 0).all())
    # softmax cannot feel a common shift
    assert float(s.grad.sum(-1).abs().max()) < 1e-5 * max(1.0, float(value.detach().max()))
    mirrored = jsd(t, s.detach(), beta=1 - beta, raw=True)
    assert torch.allclose(value.detach(), mirrored, rtol=1e-4, atol=1e-6)
    if 0 < beta < 1:
        entropy = -(beta * np.log(beta) + (1 - beta) * np.log(1 - beta))
        assert float(value.detach().max()) <= entropy * (1 + 1e-5)


def test_rows_do_not_touch_each_other() -> None:
    s, t = torch.randn(6, 9), torch.randn(6, 9)
    order = torch.randperm(6)
    assert torch.equal(jsd(s, t, beta=0.5)[order], jsd(s[order], t[order], beta=0.5))
    assert jsd(s[:0], t[:0], beta=0.5).shape == (0,)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"beta": 1.5}, 9, "beta"),
        ({"beta": 0.5, "temperature": 0.0}, 9, "temperature"),
        ({"beta": 0.5, "vocab": 12}, 9, "wider"),
        ({"beta": 0.5}, 8, "do not match"),
    ],
)
def test_impossible_arguments_are_named(options: dict, shape: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jsd(torch.zeros(2, 9), torch.zeros(2, shape), **options)


def test_an_unknown_divergence_is_named() -> None:
    with pytest.raises(ValueError, match="forward"):
        hint_divergence(torch.zeros(1, 2), torch.zeros(1, 2), divergence="forward")
