"""Regression tests for faults that a reviewer found in the losses."""

from __future__ import annotations

import pytest
import torch

from composer_replication.losses.divergence import jsd, kl_student_teacher
from composer_replication.losses.entropy import eopd_paper, eopd_soft_gate, soft_gate
from composer_replication.losses.policy import token_logprobs
from composer_replication.losses.preference import dpo, simpo
from composer_replication.losses.surrogates import cispo, vespo
from composer_replication.losses.taid import taid

INF = torch.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_taid_of_supports_that_share_no_column_is_the_students_entropy(dtype: torch.dtype) -> None:
    z = torch.tensor(
        [[0.0, 0.0, -INF, -INF], [0.0, 1.0, 2.0, 3.0]], dtype=dtype, requires_grad=True
    )
    t = torch.tensor([[-INF, -INF, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]], dtype=dtype)
    values = taid(z, t, t=0.4)
    (grad,) = torch.autograd.grad(values.sum(), z)
    assert values[0].item() == pytest.approx(0.6931, abs=1e-3) and values[1].item() > 1.0
    assert torch.isfinite(grad).all() and not grad[0].any() and grad[1].any()


def test_the_papers_sampled_term_is_raised_before_it_is_tempered_and_detaches_the_sampler() -> None:
    generator = torch.Generator().manual_seed(3)
    z, t = (torch.randn(5, 11, generator=generator).mul(3).bfloat16() for _ in range(2))
    ids = torch.arange(5)
    options = {"ids_N": ids, "temperature": 0.7, "tau": 0.5, "k": 4}
    sampled = token_logprobs(z.float() / 0.7, ids)
    low = eopd_paper(z, t, sampled_logp_N=sampled, **options)  # pyright: ignore[reportArgumentType]
    high = eopd_paper(z.double(), t.double(), sampled_logp_N=sampled.double(), **options)  # pyright: ignore[reportArgumentType]
    assert low.tolist() == pytest.approx(high.tolist(), abs=1e-4)
    student = z.double().requires_grad_()
    sampled_logp = token_logprobs(student / 0.7, ids)
    grads = [
        torch.autograd.grad(
            eopd_paper(student, t.double(), sampled_logp_N=logp, **options).sum(),
            student,
            retain_graph=True,
        )[0]  # pyright: ignore[reportArgumentType]
        for logp in (sampled_logp, sampled_logp.detach())
    ]
    assert torch.equal(*grads)


@pytest.mark.parametrize("loss", [kl_student_teacher, lambda z, t: jsd(z, t, beta=0.5)])
def test_a_second_derivative_is_refused_and_not_wrong(loss) -> None:
    z = torch.randn(2, 5, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad((loss(z, torch.randn(2, 5)) ** 2).sum(), z, create_graph=True)


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_a_margin_of_infinity_is_a_loss_of_zero_and_not_nan(smoothing: float) -> None:
    """A rejected side that the policy rules out: 0 times the logarithm of a sigmoid of 0 must not
    enter."""
    possible, ruled_out = (
        torch.tensor([-1.0], requires_grad=True),
        torch.tensor([-INF], requires_grad=True),
    )
    sides = (possible, ruled_out) if smoothing == 0.0 else (ruled_out, possible)
    base = torch.tensor([-2.0])
    for value in (
        dpo(*sides, base, base, beta=0.1, label_smoothing=smoothing),
        simpo(*sides, beta=2.0, gamma=1.0, label_smoothing=smoothing),
    ):
        assert value.item() == 0.0
        grads = torch.autograd.grad(value.sum(), sides)
        assert all(g.item() == 0.0 for g in grads)
    assert dpo(*reversed(sides), base, base, beta=0.1, label_smoothing=smoothing).item() == INF


def test_a_token_without_advantage_has_no_loss_although_its_log_prob_is_minus_infinity() -> None:
    logp = torch.tensor([-INF, -1.0], requires_grad=True)
    sampled, advantage, sequence = (
        torch.tensor([-1.0, -1.0]),
        torch.tensor([0.0, 0.5]),
        torch.tensor([0, 1]),
    )
    for value in (
        cispo(logp, sampled, advantage, cap=2.0),
        vespo(logp, sampled, advantage, sequence, num_sequences=2),
    ):
        (grad,) = torch.autograd.grad(value.sum(), logp)
        assert value.tolist() == [0.0, 0.5] and grad.tolist() == [0.0, -0.5]


def test_a_vocabulary_of_one_token_has_no_entropy_and_no_divergence() -> None:
    z = torch.randn(3, 1, requires_grad=True)
    assert soft_gate(z).tolist() == [0.0] * 3
    value = eopd_soft_gate(z, torch.randn(3, 1))
    (grad,) = torch.autograd.grad(value.sum(), z)
    assert value.tolist() == [0.0] * 3 and not grad.any()


def test_t_may_be_a_tensor_of_one_number() -> None:
    z, t = torch.randn(2, 5), torch.randn(2, 5)
    assert torch.equal(taid(z, t, t=torch.tensor(0.25)), taid(z, t, t=0.25))
    for wrong in (torch.tensor(1.5), torch.tensor([0.5]), torch.tensor(torch.nan), 2.0, "0.5"):
        with pytest.raises(ValueError, match="t must be a number within 0 and 1"):
            taid(z, t, t=wrong)  # pyright: ignore[reportArgumentType]
