"""Dr.GRPO, lm_ce, DPO and the total, against NumPy, golden values and known-wrong variants."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.config.train_settings import HintSettings
from composer_replication.losses.channel import ChannelLoss, channel_status
from composer_replication.losses.hint_loss import Divergence, hint_divergence
from composer_replication.losses.policy import dr_grpo, is_clipped, lm_ce, token_logprobs
from composer_replication.losses.preference import dpo, margins, sequence_logprobs
from composer_replication.losses.total import RunningMean, channel_scales, total_loss

GOLDEN = json.loads((Path(__file__).parent / "golden" / "losses.json").read_text(encoding="utf-8"))


def np_logprob(z: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return z[np.arange(len(ids)), ids] - np.log(np.exp(z).sum(-1))


def test_cross_entropy_and_its_gradient_equal_numpy() -> None:
    rng = np.random.default_rng(1)
    z, ids = rng.normal(size=(6, 9)), rng.integers(0, 9, 6)
    logits = torch.tensor(z, requires_grad=True)
    value = lm_ce(logits, torch.tensor(ids))
    value.sum().backward()
    softmax = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    assert np.allclose(value.detach().numpy(), -np_logprob(z, ids), rtol=1e-12)
    assert logits.grad is not None
    assert np.allclose(logits.grad.numpy(), softmax - np.eye(9)[ids], atol=1e-12)


def test_golden_sequence_sums_use_the_logits_one_position_before() -> None:
    """labels[:, 1:] against logits[:, :-1]; an off-by-one gather gives other sums."""
    (case,) = (c for c in GOLDEN["cases"] if c["id"] == "simpo/get_batch_logps")
    logits = torch.tensor(GOLDEN["inputs"]["logits/base"]["student"], dtype=torch.float64)
    mask, ids = (
        torch.tensor(GOLDEN["inputs"]["mask"], dtype=torch.bool),
        torch.tensor(GOLDEN["inputs"]["ids"]),
    )

    def sums(shift: int) -> list[float]:
        row_N, position_N = mask[:, 1:].nonzero(as_tuple=True)
        logp_N = token_logprobs(logits[row_N, position_N + shift], ids[row_N, position_N + 1])
        return sequence_logprobs(logp_N, row_N, num_sequences=2).tolist()

    assert sums(0) == pytest.approx(case["expected"]["sum"], rel=1e-6)
    assert sums(1) != pytest.approx(case["expected"]["sum"], rel=1e-2)


@pytest.mark.parametrize("bad", [[-100, 1], [0, 9]])
def test_an_id_outside_the_vocabulary_is_an_error_not_a_mask(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="outside a vocabulary of 9"):
        token_logprobs(torch.zeros(2, 9), torch.tensor(bad))


def test_logprobs_are_float32_and_leave_padding_columns_out() -> None:
    logits = torch.randn(4, 9).bfloat16()
    ids = torch.tensor([0, 3, 6, 2])
    value = token_logprobs(logits, ids, vocab=7)
    assert value.dtype == torch.float32
    assert torch.equal(value, token_logprobs(logits[:, :7], ids))
    with pytest.raises(ValueError, match="do not match"):
        token_logprobs(logits, ids[:2])


# ---- Dr.GRPO ----


def np_dr_grpo(logp: float, sampled: float, advantage: float, clip: float) -> tuple[float, float]:
    """(value, gradient) of one token, case by case: PPO's objective (arXiv 1707.06347, figure 1)
    with its sign turned."""
    ratio = math.exp(logp - sampled)
    if advantage >= 0:
        return (
            (-ratio * advantage, -ratio * advantage)
            if ratio < 1 + clip
            else (-(1 + clip) * advantage, 0.0)
        )
    return (
        (-ratio * advantage, -ratio * advantage)
        if ratio > 1 - clip
        else (-(1 - clip) * advantage, 0.0)
    )


def test_dr_grpo_and_its_gradient_equal_the_cases_written_out() -> None:
    rng = np.random.default_rng(4)
    logp, sampled, advantage = (rng.normal(scale=0.4, size=200) for _ in range(3))
    logp_N = torch.tensor(logp, requires_grad=True)
    value_N = dr_grpo(logp_N, torch.tensor(sampled), torch.tensor(advantage), clip=0.2)
    value_N.sum().backward()
    expected = np.array(
        [np_dr_grpo(*row, clip=0.2) for row in zip(logp, sampled, advantage, strict=True)]
    )
    assert logp_N.grad is not None
    assert np.allclose(value_N.detach().numpy(), expected[:, 0], rtol=1e-12)
    assert np.allclose(logp_N.grad.numpy(), expected[:, 1], rtol=1e-12)
    dead = is_clipped(logp_N, torch.tensor(sampled), torch.tensor(advantage), clip=0.2)
    assert dead.tolist() == (expected[:, 1] == 0).tolist() and 0.2 < dead.double().mean() < 0.6


def test_at_ratio_one_the_gradient_is_minus_the_advantage() -> None:
    advantage_N = torch.tensor([1.5, -0.25, 0.0])
    logp_N = torch.tensor([-0.1, -3.0, -7.0], requires_grad=True)
    value_N = dr_grpo(logp_N, logp_N.detach(), advantage_N, clip=0.2)
    value_N.sum().backward()
    assert (
        logp_N.grad is not None
        and logp_N.grad.tolist() == [-1.5, 0.25, 0.0]
        and value_N.tolist() == [-1.5, 0.25, 0.0]
    )
    assert is_clipped(logp_N, logp_N.detach(), advantage_N, clip=0.2).tolist() == [False] * 3


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [
        (1.0, 1.5, False),
        (1.0, 0.5, True),
        (-1.0, 1.5, True),
        (-1.0, 0.5, False),
        (1.0, 1.19, True),
        (-1.0, 0.81, True),
    ],
)
def test_the_clip_stops_only_what_goes_on_in_the_direction_of_the_advantage(
    advantage: float, ratio: float, moves: bool
) -> None:
    sampled_N = torch.tensor([-2.0], dtype=torch.float64)
    logp_N = (sampled_N + math.log(ratio)).requires_grad_()
    dr_grpo(logp_N, sampled_N, torch.tensor([advantage]), clip=0.2).sum().backward()
    assert logp_N.grad is not None
    assert logp_N.grad.item() == pytest.approx(-ratio * advantage if moves else 0.0)
    assert is_clipped(logp_N, sampled_N, torch.tensor([advantage]), clip=0.2).item() is not moves


# ---- DPO ----


def pref() -> dict[str, Tensor]:
    return {
        k: torch.tensor(v, dtype=torch.float64) for k, v in GOLDEN["inputs"]["pref_logps"].items()
    }


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_dpo_golden_values_and_gradients(beta: float) -> None:
    (case,) = (c for c in GOLDEN["cases"] if c["id"] == f"dpo/beta{beta}/ls0.0")
    p = pref()
    for tensor in p.values():
        tensor.requires_grad_()
    loss = dpo(
        p["policy_chosen"], p["policy_rejected"], p["ref_chosen"], p["ref_rejected"], beta=beta
    ).mean()
    loss.backward()
    assert loss.item() == pytest.approx(case["expected"]["loss"], rel=1e-6)
    for side in ("chosen", "rejected"):
        grad = p[f"policy_{side}"].grad
        assert grad is not None and torch.allclose(
            grad, torch.tensor(case["expected"][f"grad_policy_{side}"]).double(), atol=1e-7
        )
        assert p[f"ref_{side}"].grad is None


def test_dpo_of_policy_equal_to_reference_is_log_two() -> None:
    p = pref()
    value = dpo(p["ref_chosen"], p["ref_rejected"], p["ref_chosen"], p["ref_rejected"], beta=0.1)
    assert torch.equal(value, torch.full_like(value, math.log(2)))


def test_the_margin_is_what_dpo_sees_and_gives_the_reference_no_gradient() -> None:
    p = pref()
    arguments = (
        p["policy_chosen"],
        p["policy_rejected"],
        p["ref_chosen"].requires_grad_(),
        p["ref_rejected"].requires_grad_(),
    )
    margin_P = margins(*arguments)
    assert (
        torch.allclose(dpo(*arguments, beta=0.3), torch.log1p(torch.exp(-0.3 * margin_P)))
        and not margin_P.requires_grad
    )
    by_hand = p["policy_chosen"] - p["policy_rejected"] - (p["ref_chosen"] - p["ref_rejected"])
    assert torch.allclose(margin_P, by_hand)


def test_label_smoothing_mixes_the_pair_with_its_swap() -> None:
    p = pref()
    right = dpo(
        p["policy_chosen"], p["policy_rejected"], p["ref_chosen"], p["ref_rejected"], beta=0.3
    )
    swapped = dpo(
        p["policy_rejected"], p["policy_chosen"], p["ref_rejected"], p["ref_chosen"], beta=0.3
    )
    smoothed = dpo(
        p["policy_chosen"],
        p["policy_rejected"],
        p["ref_chosen"],
        p["ref_rejected"],
        beta=0.3,
        label_smoothing=0.2,
    )
    assert torch.allclose(smoothed, 0.8 * right + 0.2 * swapped)
    assert not torch.allclose(right, swapped)


def test_the_margin_of_a_response_of_100000_tokens_is_exact() -> None:
    """Added one by one in float32 these sums are off by half a nat."""
    generator = torch.Generator().manual_seed(3)
    logp_N = -2.5 * torch.rand(200_000, generator=generator)
    row_N = torch.arange(2).repeat_interleave(100_000)
    chosen, rejected = sequence_logprobs(logp_N.requires_grad_(), row_N, num_sequences=2)
    (chosen - rejected).backward()
    exact = logp_N.detach().double().view(2, -1).sum(-1)
    assert abs((chosen - rejected).item() - (exact[0] - exact[1]).item()) < 1e-6
    assert (
        logp_N.grad is not None
        and logp_N.grad.dtype == torch.float32
        and logp_N.grad[0] == 1.0 == -logp_N.grad[-1]
    )


def test_a_sequence_without_tokens_is_an_error_not_log_two() -> None:
    with pytest.raises(ValueError, match="without a response token"):
        sequence_logprobs(torch.zeros(2), torch.tensor([0, 0]), num_sequences=2)


# ---- settings ----


@pytest.mark.parametrize(
    ("beta", "named"), [(0.0, "kl(teacher, student)"), (1.0, "kl(student, teacher)")]
)
def test_beta_0_and_1_are_settings_and_are_the_two_kls(beta: float, named: Divergence) -> None:
    settings = HintSettings(beta=beta)
    student_NV, teacher_NV = torch.randn(5, 9), torch.randn(5, 9)
    value_N = hint_divergence(
        student_NV, teacher_NV, divergence=settings.divergence, beta=settings.beta
    )
    assert torch.equal(value_N, hint_divergence(student_NV, teacher_NV, divergence=named))
    with pytest.raises(ValidationError):
        HintSettings(beta=beta + (0.1 if beta else -0.1))


# ---- reduction ----


def part(values: Tensor, units: int) -> ChannelLoss:
    return ChannelLoss(name="lm_ce", values=values, tokens=len(values), global_units=units)


def test_the_mean_does_not_depend_on_how_the_step_is_cut() -> None:
    """A mean per micro-batch, the known-wrong variant, does."""
    values = torch.randn(10)
    cuts = [values[:1], values[1:8], values[8:]]
    at_once = total_loss([part(values, 10)], {"lm_ce": 1.0})
    assert torch.allclose(
        sum((total_loss([part(v, 10)], {"lm_ce": 1.0}) for v in cuts), torch.zeros(())),
        at_once,
        atol=1e-6,
    )
    assert not torch.allclose(
        sum((total_loss([part(v, len(v))], {"lm_ce": 1.0}) for v in cuts), torch.zeros(())) / 3,
        at_once,
        atol=1e-3,
    )


def test_weighted_values_add_up_whatever_the_cut() -> None:
    """Two pairs of weight 1/2 and three anchor tokens of weight 4/3, as the preference channel has
    them."""
    values, weights = (
        torch.tensor([0.7, 0.5, 1.0, 2.0, 3.0]),
        torch.tensor([0.5, 0.5, 4 / 3, 4 / 3, 4 / 3]),
    )
    cuts = [slice(0, 1), slice(1, 4), slice(4, 5)]
    parts = [
        ChannelLoss(
            name="preference", values=values[c], weights=weights[c], tokens=1, global_units=1
        )
        for c in cuts
    ]
    assert sum(p.mean_part().item() for p in parts) == pytest.approx(0.6 + 4 * 2.0)
    assert total_loss(parts, {"preference": 0.25}).item() == pytest.approx(0.25 * 8.6)


def test_an_empty_channel_is_zero_with_zero_gradient() -> None:
    logits = torch.randn(0, 9, requires_grad=True)
    loss = total_loss([part(lm_ce(logits, torch.zeros(0, dtype=torch.long)), 0)], {"lm_ce": 1.0})
    loss.backward()
    assert loss.item() == 0.0
    assert total_loss([], {}).item() == 0.0


def test_scales_divide_by_the_running_mean_or_not_at_all() -> None:
    means = {name: RunningMean() for name in CHANNELS}
    for norm in (1.0, 2.9, 0.0):
        means["hint"].add(norm)
    scales = channel_scales(
        {"lm_ce": 1.0, "hint": 3.0, "preference": 0.0}, means, balance="grad_norm"
    )
    # (0.9 * 1.0 + 2.9) / 1.9 = 2
    assert scales == pytest.approx({"lm_ce": 1.0, "hint": 1.5, "preference": 0.0})
    assert channel_scales({"hint": 3.0}, means, balance="none") == {"hint": 3.0}


def test_the_running_mean_is_exponential_and_corrected_for_its_start() -> None:
    """Adam's form of it, m = 0.9 m + 0.1 x divided by 1 - 0.9 ** n; an all-time mean lags behind
    moving norms."""
    norms = np.random.default_rng(3).uniform(0.5, 2.0, 30)
    mean, moment = RunningMean(), 0.0
    for n, norm in enumerate(norms, start=1):
        mean.add(float(norm))
        moment = 0.9 * moment + 0.1 * norm
        assert mean.value == pytest.approx(moment / (1 - 0.9**n), rel=1e-12)
    for _ in range(50):
        mean.add(100.0)
    assert mean.value == pytest.approx(100.0, rel=0.01) and RunningMean().value == 0.0


@pytest.mark.parametrize(
    ("weight", "inputs", "tokens", "grad_norm", "was_active", "status"),
    [
        (0.0, 5, 40, 1.0, True, "off"),
        (1.0, 5, 40, 1e-12, False, "active"),
        (1.0, 5, 40, 0.0, True, "dead"),
        (1.0, 5, 0, 0.0, True, "starved"),
        (1.0, 0, 0, 0.0, False, "starved"),
        (1.0, 0, 0, 0.0, True, "exhausted"),
    ],
)
def test_status(
    weight: float, inputs: int, tokens: int, grad_norm: float, was_active: bool, status: str
) -> None:
    assert (
        channel_status(
            weight=weight, inputs=inputs, tokens=tokens, grad_norm=grad_norm, was_active=was_active
        )
        == status
    )
