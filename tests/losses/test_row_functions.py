"""Every function from two rows of logits to one value: against the float64 reference, at the edges,
and its known-wrong variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from composer_replication.losses import distances
from composer_replication.losses.credit import contrast_evidence, hint_evidence
from composer_replication.losses.divergence import (
    jsd,
    kl_student_teacher,
    kl_teacher_student,
    match_logits,
)
from composer_replication.losses.entries import clip_tokens, entries, entry_clipped
from composer_replication.losses.entropy import (
    entropy,
    eopd_paper,
    eopd_soft_gate,
    soft_gate,
    teacher_entropy,
)
from composer_replication.losses.policy import token_logprobs
from composer_replication.losses.sampled import kl_estimate, sampled_token
from composer_replication.losses.surrogates import cispo, gspo, ppo_clip, vespo
from composer_replication.losses.taid import taid, taid_target
from composer_replication.losses.topk import topk_divergence
from composer_replication.losses.trust_region import dppo, reference_kl
from tests.losses import reference
from tests.losses.reference import random_logits

Fn = Callable[[Tensor, Tensor], Tensor]
TAU = 1.5  # between the entropies of the teachers that `random_logits` makes


@dataclass(frozen=True)
class Row:
    """One function with its options bound, its reference, and its properties."""

    fn: Fn
    expected: reference.Rows
    divergence: bool = True  # 0 with zero gradient if student = teacher, never below 0
    limit: float = np.inf
    drops: bool = True  # a column of -inf on both sides equals no column


def top(k: int, support: str, rest: str, beta: float, **more: float) -> Row:
    clip, temperature = more.get("entry_clip", np.inf), more.get("temperature", 1.0)
    expected = reference.topk(k, support, rest, beta, temperature, clip)
    options = {"k": k, "support": support, "rest": rest, "beta": beta, **more}
    return Row(
        lambda s, t: topk_divergence(s, t, **options),
        expected,
        divergence=rest != "dropped" and clip == np.inf,
    )


def clipped(beta: float, clip: float, temperature: float = 1.0) -> Row:
    expected = reference.entry_clipped(beta, clip, temperature)
    return Row(
        lambda s, t: entry_clipped(s, t, entry_clip=clip, beta=beta, temperature=temperature),
        expected,
        divergence=False,
    )


ROWS: dict[str, Row] = {
    "kl(student, teacher)": Row(kl_student_teacher, reference.raw_jsd(1.0)),
    "kl(teacher, student)": Row(kl_teacher_student, reference.raw_jsd(0.0)),
    "jsd .5": Row(
        lambda s, t: jsd(s, t, beta=0.5, raw=True), reference.raw_jsd(0.5), limit=np.log(2)
    ),
    "jsd .1 T .7": Row(
        lambda s, t: jsd(s, t, beta=0.1, temperature=0.7, raw=True),
        reference.raw_jsd(0.1, 0.7),
        limit=0.3251,
    ),
    "entries 0": clipped(0.0, 0.05),
    "entries .5 T 1.1": clipped(0.5, 0.02, 1.1),
    "entries 1": clipped(1.0, 0.3),
    "entries .1 loose": clipped(0.1, 100.0),
    "topk student tail 0": top(3, "student", "tail", 0.0),
    "topk student tail .5": top(3, "student", "tail", 0.5),
    "topk student tail 1": top(3, "student", "tail", 1.0),
    "topk teacher tail .3 T .7": top(2, "teacher", "tail", 0.3, temperature=0.7),
    "topk teacher renormalised 0": top(4, "teacher", "renormalised", 0.0),
    "topk teacher renormalised .5 clipped": top(4, "teacher", "renormalised", 0.5, entry_clip=0.02),
    "topk student renormalised 1": top(4, "student", "renormalised", 1.0),
    "topk teacher dropped 0": top(3, "teacher", "dropped", 0.0),
    "topk teacher dropped .5": top(3, "teacher", "dropped", 0.5),
    "topk student dropped 1": top(3, "student", "dropped", 1.0),
    "taid 0": Row(lambda s, t: taid(s, t, t=0.0), reference.taid(0.0), divergence=False),
    "taid .4": Row(lambda s, t: taid(s, t, t=0.4), reference.taid(0.4), divergence=False),
    "taid .4 T 2": Row(
        lambda s, t: taid(s, t, t=0.4, temperature=2.0), reference.taid(0.4, 2.0), divergence=False
    ),
    "taid 1": Row(lambda s, t: taid(s, t, t=1.0), reference.taid(1.0), divergence=False),
    "cross-entropy": Row(distances.teacher_cross_entropy, reference.taid(1.0), divergence=False),
    "total variation": Row(distances.total_variation, reference.total_variation, limit=1.0),
    "skewed (teacher) .1": Row(
        lambda s, t: distances.skewed_kl_teacher_student(s, t, skew=0.1),
        reference.skewed_teacher(0.1),
    ),
    "skewed (student) .1": Row(
        lambda s, t: distances.skewed_kl_student_teacher(s, t, skew=0.1),
        reference.skewed_student(0.1),
    ),
    "skewed (teacher) .7": Row(
        lambda s, t: distances.skewed_kl_teacher_student(s, t, skew=0.7),
        reference.skewed_teacher(0.7),
    ),
    "skewed (student) .7": Row(
        lambda s, t: distances.skewed_kl_student_teacher(s, t, skew=0.7),
        reference.skewed_student(0.7),
    ),
    "skewed (student) 0": Row(
        lambda s, t: distances.skewed_kl_student_teacher(s, t, skew=0.0), reference.raw_jsd(1.0)
    ),
    "skewed (teacher) 0": Row(
        lambda s, t: distances.skewed_kl_teacher_student(s, t, skew=0.0), reference.raw_jsd(0.0)
    ),
    "symmetric .9": Row(
        lambda s, t: distances.symmetric_kl(s, t, lam=0.9), reference.symmetric(0.9)
    ),
    "eopd paper": Row(
        lambda s, t: eopd_paper(s, t, tau=TAU, k=3, alpha=0.5),
        reference.eopd_paper(TAU, 3, 0.5),
        divergence=False,
    ),
    # log V counts columns
    "eopd soft": Row(eopd_soft_gate, reference.eopd_soft(None), drops=False),
    "eopd soft, given": Row(lambda s, t: eopd_soft_gate(s, t, h_max=1.2), reference.eopd_soft(1.2)),
}
every_row = pytest.mark.parametrize("name", ROWS)


def agrees(fn: Fn, expected: reference.Rows) -> bool:
    """Value, the student's gradient under uneven weights, and no gradient for the teacher."""
    s_np, t_np = random_logits()
    s, t = torch.tensor(s_np, requires_grad=True), torch.tensor(t_np, requires_grad=True)
    w = np.linspace(0.5, 2.0, len(s_np))
    value = fn(s, t)
    (value * torch.tensor(w)).sum().backward()
    assert s.grad is not None
    return (
        np.allclose(value.detach().numpy(), expected(s_np, t_np, s_np), rtol=1e-9, atol=1e-11)
        and np.allclose(
            s.grad.numpy(),
            w[:, None] * reference.gradient(expected, s_np, t_np),
            rtol=2e-6,
            atol=1e-8,
        )
        and t.grad is None
    )


@every_row
def test_value_and_gradient_equal_the_reference(name: str) -> None:
    assert agrees(ROWS[name].fn, ROWS[name].expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.divergence])
def test_identity_is_exactly_zero_with_zero_gradient(name: str, dtype: torch.dtype) -> None:
    z = (torch.randn(6, 300, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    s = z.clone().requires_grad_()
    value = ROWS[name].fn(s, z.clone())
    value.sum().backward()
    assert s.grad is not None and s.grad.dtype == dtype
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert bool((value == 0).all()) and bool((s.grad == 0).all())


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.drops])
def test_a_column_of_minus_infinity_equals_a_dropped_column(name: str) -> None:
    s_np, t_np = random_logits(v=10)
    s_np[:, 4] = t_np[:, 4] = -np.inf
    s, t = torch.tensor(s_np, requires_grad=True), torch.tensor(t_np)
    columns = torch.tensor([c for c in range(10) if c != 4])
    short = s.detach()[:, columns].requires_grad_()
    value, dropped = ROWS[name].fn(s, t), ROWS[name].fn(short, t[:, columns])
    value.sum().backward()
    dropped.sum().backward()
    assert s.grad is not None and short.grad is not None
    assert torch.allclose(value, dropped, rtol=1e-12, atol=1e-14) and bool(
        (s.grad[:, 4] == 0).all()
    )
    assert torch.allclose(s.grad[:, columns], short.grad, rtol=1e-10, atol=1e-14)


@every_row
@pytest.mark.parametrize(
    "side",
    [
        "teacher one-hot",
        "student one-hot",
        "saturated",
        "teacher without columns",
        "student without columns",
    ],
)
def test_the_edges_stay_finite(name: str, side: str) -> None:
    generator = torch.Generator().manual_seed(2)
    s, t = (torch.randn(4, 9, generator=generator) for _ in range(2))
    if "one-hot" in side:
        (t if side.startswith("teacher") else s).fill_(-torch.inf)[
            torch.arange(4), torch.tensor([0, 3, 8, 8])
        ] = 0.0
    elif side == "saturated":
        s, t = s * 400, t * 400
    else:
        (t if side.startswith("teacher") else s)[:, 2:5] = -torch.inf
    s.requires_grad_()
    value = ROWS[name].fn(s, t)
    value.sum().backward()
    assert s.grad is not None and bool(value.isfinite().all()) and bool(s.grad.isfinite().all())
    assert float(value.detach().max()) <= ROWS[name].limit * (1 + 1e-5)


@every_row
def test_no_rows_and_more_dimensions(name: str) -> None:
    s_np, t_np = random_logits(n=6)
    s, t = torch.tensor(s_np), torch.tensor(t_np)
    flat = ROWS[name].fn(s, t)
    assert torch.equal(ROWS[name].fn(s.view(2, 3, 9), t.view(2, 3, 9)), flat.view(2, 3))
    empty = s[:0].requires_grad_()
    value = ROWS[name].fn(empty, t[:0])
    value.sum().backward()
    assert value.shape == (0,) and empty.grad is not None and empty.grad.shape == (0, 9)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(ROWS)),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.01, 1.0, 40.0]),
)
def test_rows_are_alone_shifts_are_not_felt_and_divergences_are_not_negative(
    name: str, seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    s, t = (torch.randn(4, 13, generator=generator, dtype=torch.float64) * scale for _ in range(2))
    s.requires_grad_()
    value = ROWS[name].fn(s, t)
    value.sum().backward()
    assert s.grad is not None
    order = torch.randperm(4, generator=generator)
    assert torch.allclose(
        ROWS[name].fn(s.detach()[order], t[order]), value.detach()[order], rtol=1e-12, atol=1e-300
    )
    assert float(s.grad.sum(-1).abs().max()) < 1e-9 * max(1.0, scale)
    shifted = ROWS[name].fn(s.detach() + 3.0, t - 2.0)
    assert torch.allclose(shifted, value.detach(), rtol=1e-8, atol=1e-10)
    if ROWS[name].divergence:
        assert float(value.detach().min()) >= -1e-15
        assert float(value.detach().max()) <= ROWS[name].limit * (1 + 1e-9)


WRONG: dict[str, tuple[str, Fn]] = {
    "top k of the other side": (
        "topk student tail .5",
        lambda s, t: topk_divergence(s, t, k=3, support="teacher", rest="tail", beta=0.5),
    ),
    "renormalised where a tail is meant": (
        "topk student tail .5",
        lambda s, t: topk_divergence(s, t, k=3, support="student", rest="renormalised", beta=0.5),
    ),
    "the clip after the sum": (
        "entries 0",
        lambda s, t: clip_tokens(kl_teacher_student(s, t), maximum=0.05),
    ),
    "taid distils from the teacher alone": ("taid .4", lambda s, t: taid(s, t, t=1.0)),
    "taid's t weighs the student": ("taid .4", lambda s, t: taid(s, t, t=0.6)),
    "taid as a kl": ("taid .4", lambda s, t: kl_teacher_student(s, taid_target(s, t, t=0.4))),
    "taid mixes probabilities": (
        "taid .4",
        lambda s, t: (
            -(
                (0.6 * s.detach().softmax(-1) + 0.4 * t.detach().softmax(-1)) * s.log_softmax(-1)
            ).sum(-1)
        ),
    ),
    "the soft gate where the paper's is meant": ("eopd paper", eopd_soft_gate),
    "the paper's gate turned": (
        "eopd paper",
        lambda s, t: 2 * kl_student_teacher(s, t) - eopd_paper(s, t, tau=TAU, k=3, alpha=0.5),
    ),
    "the soft gate turned": (
        "eopd soft",
        lambda s, t: kl_student_teacher(s, t) + kl_teacher_student(s, t) - eopd_soft_gate(s, t),
    ),
    "skew weighs the student": (
        "skewed (teacher) .1",
        lambda s, t: distances.skewed_kl_teacher_student(s, t, skew=0.9),
    ),
    "cross-entropy where a kl is meant": ("kl(teacher, student)", distances.teacher_cross_entropy),
}


@pytest.mark.parametrize("name", WRONG)
def test_known_wrong_variants_do_not_agree(name: str) -> None:
    right, fn = WRONG[name]
    assert not agrees(fn, ROWS[right].expected)


# ---- properties of single functions ----


def test_top_k_of_the_whole_vocabulary_is_the_full_divergence() -> None:
    s, t = (torch.tensor(z) for z in random_logits())
    for rest in ("tail", "renormalised"):
        for k in (9, 50):
            assert torch.allclose(
                topk_divergence(s, t, k=k, support="student", rest=rest, beta=0.3),
                jsd(s, t, beta=0.3, raw=True),
            )


def test_the_tail_of_a_vocabulary_whose_rest_does_not_exist_is_no_number_trap() -> None:
    s = torch.full((1, 6), -torch.inf)
    t = s.clone()
    s[0, :2], t[0, :2] = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    s.requires_grad_()
    value = topk_divergence(s, t, k=2, support="teacher", rest="tail", beta=0.5)
    value.sum().backward()
    assert (
        torch.allclose(value, jsd(s[:, :2], t[:, :2], beta=0.5, raw=True))
        and s.grad is not None
        and bool(s.grad.isfinite().all())
    )


def test_the_tails_floor_is_a_floor_and_gives_no_gradient() -> None:
    """The tail mass of a certain teacher is at least 1e-7 in TRL and lasgroup; here it is exact
    unless a floor is requested."""
    s, t = torch.tensor([[0.5, 0.0, 0.2]]).double(), torch.tensor([[60.0, 0.0, 0.0]]).double()
    options = {"k": 1, "support": "teacher", "rest": "tail", "beta": 1.0}
    p, tail = reference.softmax(s.numpy())[0, 0], 2 * np.exp(-60.0)
    for floor, least in ((0.0, tail), (1e-7, 1e-7)):
        value = topk_divergence(s, t, **options, tail_floor=floor)
        assert value.item() == pytest.approx(
            p * np.log(p) + (1 - p) * np.log((1 - p) / least), rel=1e-6
        )
    flat = torch.zeros(1, 3).double()
    assert torch.equal(
        topk_divergence(s, flat, **options, tail_floor=1e-7), topk_divergence(s, flat, **options)
    )


def test_top_k_near_equality_keeps_its_digits_in_float32() -> None:
    generator = torch.Generator().manual_seed(3)
    s = torch.randn(8, 3000, generator=generator) * 3
    t = s + 1e-3 * torch.randn(8, 3000, generator=generator)
    options = {"k": 50, "support": "student", "rest": "tail", "beta": 0.5}
    value = topk_divergence(s, t, **options)
    assert torch.allclose(
        value.double(), topk_divergence(s.double(), t.double(), **options), rtol=3e-3
    ) and bool((value > 0).all())


def test_raised_log_probs_are_verls_clamp() -> None:
    s_np, t_np = random_logits()
    value = topk_divergence(
        torch.tensor(s_np),
        torch.tensor(t_np),
        k=3,
        support="teacher",
        rest="dropped",
        beta=0.0,
        logp_min=-2.0,
    )
    for row, (zs, zt) in enumerate(zip(s_np, t_np, strict=True)):
        ids = np.argsort(-zt)[:3]
        ls, lt = (np.maximum(np.log(reference.softmax(z))[ids], -2.0) for z in (zs, zt))
        assert value[row].item() == pytest.approx((np.exp(lt) * (lt - ls)).sum())


def test_entries_add_up_to_the_divergence_and_the_clip_may_make_it_negative() -> None:
    s, t = (torch.tensor(z) for z in random_logits())
    for beta in (0.0, 0.3, 1.0):
        sums = entries(s.log_softmax(-1), t.log_softmax(-1), beta=beta).sum(-1)
        assert torch.allclose(sums, jsd(s, t, beta=beta, raw=True))
    assert float(entry_clipped(s, t, entry_clip=1e-3, beta=0.0).min()) < 0
    held = clip_tokens(torch.tensor([0.1, 5.0], requires_grad=True), maximum=1.0)
    assert held.tolist() == pytest.approx([0.1, 1.0])


def test_eopd_from_sampled_tokens_is_the_clipped_surrogate_plus_the_gated_part() -> None:
    s_np, t_np = random_logits()
    s, t, ids = torch.tensor(s_np), torch.tensor(t_np), torch.tensor([0, 3, 8, 8, 1])
    logp, teacher = token_logprobs(s, ids), token_logprobs(t, ids)
    then = logp + torch.linspace(-0.6, 0.6, 5, dtype=torch.float64)
    value = eopd_paper(s, t, tau=TAU, k=3, alpha=2.0, ids_N=ids, sampled_logp_N=then, clip=0.2)
    gate = torch.tensor(reference.entropy(reference.softmax(t_np)) > TAU)
    assert 0 < int(gate.sum()) < 5
    part = torch.tensor(reference.topk(3, "teacher", "dropped", 0.0)(s_np, t_np, s_np))
    assert torch.allclose(
        value, ppo_clip(logp, then, teacher - then, clip_low=0.2, clip_high=0.2) + 2.0 * gate * part
    )
    with pytest.raises(ValueError, match="sampled_logp_N"):
        eopd_paper(s, t, ids_N=ids)


def test_entropy_of_the_corners_and_its_gradient() -> None:
    one_hot = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert entropy(one_hot).tolist() == [0.0] and teacher_entropy(
        torch.zeros(1, 7)
    ).item() == pytest.approx(1.945910149)
    z_np = random_logits()[0]
    z = torch.tensor(z_np, requires_grad=True)
    value = entropy(z)
    value.sum().backward()
    assert z.grad is not None and not teacher_entropy(z).requires_grad
    assert np.allclose(value.detach().numpy(), reference.entropy(reference.softmax(z_np)))
    expected = reference.gradient(
        lambda s, t, held: reference.entropy(reference.softmax(s)), z_np, z_np
    )
    assert np.allclose(z.grad.numpy(), expected, atol=1e-8)
    assert teacher_entropy(z, vocab=4).tolist() == pytest.approx(
        reference.entropy(reference.softmax(z_np[:, :4])).tolist()
    )


def test_the_gates_of_one_hot_and_uniform_teachers() -> None:
    s = torch.tensor(random_logits(n=1)[0])
    one_hot, uniform = torch.full_like(s, -torch.inf), torch.zeros_like(s)
    one_hot[0, 2] = 0.0
    assert soft_gate(one_hot).item() == 0.0 and soft_gate(uniform).item() == pytest.approx(1.0)
    assert torch.allclose(eopd_soft_gate(s, uniform), kl_teacher_student(s, uniform))
    assert torch.allclose(eopd_soft_gate(s, one_hot), kl_student_teacher(s, one_hot))
    assert torch.equal(eopd_paper(s, one_hot), kl_student_teacher(s, one_hot))


def test_taid_at_its_ends_and_with_missing_columns() -> None:
    s, t = (torch.tensor(z) for z in random_logits())
    assert torch.allclose(taid(s, t, t=0.0), entropy(s))
    assert torch.allclose(taid(s, t, t=1.0), kl_teacher_student(s, t) + teacher_entropy(t))
    grad = torch.autograd.functional.jacobian(lambda z: taid(z, t, t=0.0).sum(), s)
    assert float(grad.abs().max()) < 1e-15
    half = t.clone()
    half[:, 3] = -torch.inf
    assert (
        bool(taid(s, half, t=0.0).isfinite().all()) and taid_target(s, half, t=0.0)[0, 3] == s[0, 3]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_that_cannot_occur_leaves_every_sampled_loss_finite(dtype: torch.dtype) -> None:
    """A one-hot teacher and log-probs of -inf on either side: values and gradients are numbers, and
    two of -inf do not differ."""
    student_NV = torch.tensor([[0.0, 1.0, 2.0]], dtype=dtype, requires_grad=True)
    teacher_NV = torch.tensor([[-torch.inf, 0.0, -torch.inf]], dtype=dtype)
    then_N = torch.tensor([-2.4], dtype=dtype)
    eopd_paper(
        student_NV, teacher_NV, ids_N=torch.tensor([0]), sampled_logp_N=then_N
    ).sum().backward()
    assert student_NV.grad is not None and student_NV.grad.isfinite().all()

    least, fine, gain = (
        torch.tensor([-torch.inf], dtype=dtype),
        torch.tensor([-1.0], dtype=dtype),
        torch.ones(1, dtype=dtype),
    )
    alone = torch.tensor([0])
    for now_N, other_N in ((least, fine), (fine, least), (least, least)):
        leaf_N = now_N.clone().requires_grad_()
        values = [
            sampled_token(leaf_N, other_N),
            hint_evidence(leaf_N, other_N),
            reference_kl(leaf_N, fine, other_N),
        ]
        values += [kl_estimate(leaf_N, other_N, kind=kind) for kind in ("k1", "k2", "k3", "abs")]
        values += [dppo(leaf_N, other_N, gain), cispo(leaf_N, other_N, gain, cap=2.0)]
        values.append(ppo_clip(leaf_N, other_N, gain, clip_low=0.2, clip_high=0.2))
        values += [
            f(leaf_N, other_N, gain, alone, num_sequences=1)
            for f in (vespo, partial(gspo, clip_low=0.2, clip_high=0.2))
        ]
        values.append(contrast_evidence(leaf_N, other_N[None]))
        total = torch.stack(values).sum()
        total.backward()
        assert total.isfinite() and leaf_N.grad is not None and leaf_N.grad.isfinite().all()
    assert (
        hint_evidence(least, least).item() == 0.0
        and kl_estimate(least, least, kind="k1").item() == 0.0
    )


@pytest.mark.parametrize("t", [None, -0.1, 1.06, torch.tensor([0.5, 0.5]), float("nan")])
def test_taid_without_a_number_within_0_and_1_is_refused(t: float) -> None:
    with pytest.raises(ValueError, match="t must be a number"):
        taid(torch.zeros(1, 2), torch.zeros(1, 2), t=t)


def test_columns_behind_the_vocabulary_do_not_count() -> None:
    s, t = torch.randn(3, 9), torch.randn(3, 9)
    s[:, 7:], t[:, 7:] = 50.0, -3.0
    functions: dict[str, Callable[..., Tensor]] = {
        "topk": lambda s, t, **o: topk_divergence(
            s, t, k=3, support="teacher", rest="tail", beta=0.5, **o
        ),
        "entries": lambda s, t, **o: entry_clipped(s, t, entry_clip=0.1, beta=0.5, **o),
        "taid": lambda s, t, **o: taid(s, t, t=0.4, **o),
        "variation": distances.total_variation,
        "skewed": lambda s, t, **o: distances.skewed_kl_teacher_student(s, t, skew=0.2, **o),
        "paper": eopd_paper,
        "soft": eopd_soft_gate,
    }
    for name, fn in functions.items():
        assert torch.allclose(fn(s, t, vocab=7), fn(s[:, :7], t[:, :7])), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda s, t: topk_divergence(s, t, k=0, support="student", rest="tail", beta=0.5),
            "k must be",
        ),
        (lambda s, t: topk_divergence(s, t, k=2, support="both", rest="tail", beta=0.5), "support"),
        (
            lambda s, t: topk_divergence(s, t, k=2, support="student", rest="ignored", beta=0.5),
            "rest",
        ),
        (
            lambda s, t: topk_divergence(s, t, k=2, support="student", rest="dropped", beta=-0.1),
            "beta",
        ),
        (
            lambda s, t: topk_divergence(
                s, t, k=2, support="student", rest="tail", beta=0.5, logp_min=-9.0
            ),
            "logp_min",
        ),
        (lambda s, t: entry_clipped(s, t, entry_clip=0.0, beta=0.5), "entry_clip"),
        (lambda s, t: distances.skewed_kl_teacher_student(s, t, skew=1.0), "skew"),
        (lambda s, t: soft_gate(t, h_max=0.0), "h_max"),
        (lambda s, t: match_logits(s, t[:, :2]), "do not match"),
        (lambda s, t: taid(s, t, t=0.5, temperature=0.0), "temperature"),
    ],
)
def test_impossible_arguments_are_named(call: Fn, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2, 3), torch.zeros(2, 3))
