"""Fused losses against the same functions on materialised logits: values, every gradient, how large
a tensor they make, how exact."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from composer_replication.losses import fused_compiled, fused_eager, fused_sweep
from composer_replication.losses.divergence import jsd
from composer_replication.losses.fused import (
    fused_divergence,
    fused_entropy,
    fused_logprobs,
    fused_rows,
)
from composer_replication.losses.hint_loss import hint_divergence
from composer_replication.losses.policy import token_logprobs
from composer_replication.models.forward import Head
from tests.losses.watch import Watch


@pytest.fixture(autouse=True, scope="module")
def empty_memory_is_nan() -> Iterator[None]:
    """`torch.empty` is filled with NaN, so a value that was never written cannot be right by luck:
    freed memory often still holds the result of the case before."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


DIVERGENCES = ("jsd", "kl(student, teacher)", "kl(teacher, student)")


def make(
    *,
    n: int = 7,
    d: int = 5,
    v: int = 23,
    far_d: int | None = None,
    cap: float | None = None,
    scale: float = 1.0,
    dtype: Any = torch.float64,
) -> tuple[Tensor, Head, Tensor, Head]:
    """Student and teacher, all of them leaves that ask for a gradient."""
    generator = torch.Generator().manual_seed(n * 1000 + v)

    def leaf(*shape: int) -> Tensor:
        return (
            torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        )

    far_d = far_d or d
    near = Head(weight_VD=leaf(v, d), bias_V=leaf(v), scale=scale, softcap=cap)
    return leaf(n, d), near, leaf(n, far_d), Head(weight_VD=leaf(v, far_d), scale=0.7)


def logits(hidden_ND: Tensor, head: Head) -> Tensor:
    """The whole matrix, written plainly."""
    z_NV = hidden_ND @ head.weight_VD.t()
    z_NV = (z_NV if head.bias_V is None else z_NV + head.bias_V) * head.scale
    return z_NV if head.softcap is None else head.softcap * torch.tanh(z_NV / head.softcap)


def gradients(
    values_N: Tensor, grad_N: Tensor, student_ND: Tensor, head: Head, **options: Any
) -> tuple[Tensor, ...]:
    wanted = (
        (student_ND, head.weight_VD)
        if head.bias_V is None
        else (student_ND, head.weight_VD, head.bias_V)
    )
    return torch.autograd.grad(values_N, wanted, grad_N, **options)


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], tolerance: float = 1e-10) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equal_to_the_row_functions_on_logits(data: st.DataObject) -> None:
    draw = data.draw
    n, v, far_d = draw(st.integers(1, 9)), draw(st.integers(2, 30)), draw(st.sampled_from([3, 5]))
    cap, scale = draw(st.sampled_from([None, 2.0])), draw(st.sampled_from([1.0, 0.5]))
    student_ND, head, teacher_ND, teacher_head = make(n=n, v=v, far_d=far_d, cap=cap, scale=scale)
    temperature, chunk = (
        draw(st.sampled_from([1.0, 0.6])),
        draw(st.sampled_from([1, 2, 3, 100, None])),
    )
    vocab = draw(st.sampled_from([None, v - 1]))
    ids_N = torch.arange(n) % (vocab or v)
    grad_N = torch.tensor(
        draw(st.lists(st.floats(-2, 2), min_size=n, max_size=n)), dtype=torch.float64
    )
    weights_N = draw(
        st.sampled_from([None, grad_N * 3.0, torch.ones(n, dtype=torch.float64) * 0.1])
    )
    options = {
        "weights_N": weights_N,
        "head_gradient": draw(st.sampled_from(["forward", "backward"])),
        "chunk": chunk,
        "vocab": vocab,
    }
    z_NV, t_NV = logits(student_ND, head)[:, :vocab], logits(teacher_ND, teacher_head)[:, :vocab]
    kind, beta = draw(st.sampled_from(DIVERGENCES)), draw(st.sampled_from([0.0, 0.3, 1.0]))

    def entropy(z_NV: Tensor) -> Tensor:
        return -(z_NV.log_softmax(-1).exp() * z_NV.log_softmax(-1)).sum(-1)

    def both(z_NV: Tensor, t_NV: Tensor, ids_N: Tensor) -> Tensor:
        return jsd(z_NV, t_NV, beta=0.3) + token_logprobs(z_NV, ids_N) * 0.1

    cases = {
        "divergence": (
            fused_divergence(
                student_ND,
                head,
                teacher_ND,
                teacher_head,
                divergence=kind,
                beta=beta,
                temperature=temperature,
                raw=scale == 1.0,
                **options,
            ),
            jsd(
                z_NV,
                t_NV,
                beta={"jsd": beta, DIVERGENCES[1]: 1.0, DIVERGENCES[2]: 0.0}[kind],
                temperature=temperature,
                raw=scale == 1.0,
            ),
        ),
        "logprobs": (
            fused_logprobs(student_ND, head, ids_N, temperature=temperature, **options),
            token_logprobs(z_NV / temperature, ids_N),
        ),
        "entropy": (
            fused_entropy(student_ND, head, temperature=temperature, **options),
            entropy(z_NV / temperature),
        ),
        "rows": (
            fused_rows(
                both,
                student_ND,
                head,
                teacher_ND,
                teacher_head,
                ids_N=ids_N,
                temperature=temperature,
                **options,
            ),
            both(z_NV / temperature, t_NV / temperature, ids_N),
        ),
    }
    for values_N, expected_N in cases.values():
        same((values_N.detach(),), (expected_N.detach(),))
        same(
            gradients(values_N, grad_N, student_ND, head),
            gradients(expected_N, grad_N, student_ND, head, retain_graph=True),
        )


@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 7, 8])
def test_the_last_chunk_may_have_fewer_rows(chunk: int) -> None:
    student_ND, head, teacher_ND, teacher_head = make(n=7)
    ours_N = fused_divergence(
        student_ND, head, teacher_ND, teacher_head, divergence="jsd", beta=0.3, chunk=chunk
    )
    expected_N = jsd(logits(student_ND, head), logits(teacher_ND, teacher_head), beta=0.3)
    same((ours_N.detach(),), (expected_N.detach(),))
    grad_N = torch.arange(1.0, 8.0, dtype=torch.float64)
    same(
        gradients(ours_N, grad_N, student_ND, head),
        gradients(expected_N, grad_N, student_ND, head),
    )


def test_the_names_of_the_divergences_are_those_of_the_hint_channel() -> None:
    student_ND, head, teacher_ND, teacher_head = make()
    for kind in DIVERGENCES:
        ours_N = fused_divergence(
            student_ND, head, teacher_ND, teacher_head, divergence=kind, beta=0.2
        )
        theirs_N = hint_divergence(
            logits(student_ND, head), logits(teacher_ND, teacher_head), divergence=kind, beta=0.2
        )
        same((ours_N.detach(),), (theirs_N.detach(),))


def test_the_teacher_gets_no_gradient() -> None:
    student_ND, head, teacher_ND, teacher_head = make()
    fused_divergence(student_ND, head, teacher_ND, teacher_head, divergence="jsd").sum().backward()
    fused_rows(
        lambda z, t: jsd(z, t, beta=0.5), student_ND, head, teacher_ND, teacher_head
    ).sum().backward()
    assert (
        student_ND.grad is not None
        and teacher_ND.grad is None
        and teacher_head.weight_VD.grad is None
    )


def test_a_head_that_is_its_own_teacher_gets_the_student_part_only() -> None:
    student_ND, head, teacher_ND, _ = make()
    fixed = replace(
        head,
        weight_VD=head.weight_VD.detach().clone(),
        bias_V=None if head.bias_V is None else head.bias_V.detach().clone(),
    )
    grad_N = torch.ones(7, dtype=torch.float64)
    live_N, apart_N = (
        fused_divergence(student_ND, head, teacher_ND, h, divergence="jsd", beta=0.3)
        for h in (head, fixed)
    )
    same(
        gradients(live_N, grad_N, student_ND, head),
        gradients(apart_N, grad_N, student_ND, head),
        0.0,
    )


def test_a_second_backward_gives_the_same_and_another_gradient_its_own() -> None:
    student_ND, head, teacher_ND, teacher_head = make()
    values_N = fused_divergence(
        student_ND, head, teacher_ND, teacher_head, divergence="jsd", beta=0.3, chunk=3
    )
    expected_N = jsd(logits(student_ND, head), logits(teacher_ND, teacher_head), beta=0.3)
    for grad_N in (torch.full((7,), 0.5), torch.full((7,), 0.5), torch.arange(7.0), torch.zeros(7)):
        ours = gradients(values_N, grad_N.double(), student_ND, head, retain_graph=True)
        same(ours, gradients(expected_N, grad_N.double(), student_ND, head, retain_graph=True))


def test_there_is_no_second_derivative_and_it_says_so() -> None:
    student_ND, head, *_ = make()
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(fused_entropy(student_ND, head).sum(), student_ND, create_graph=True)


# ---- allocations: tensors and products ----


def rows_with_a_product(z_RV: Tensor, t_RV: Tensor) -> Tensor:
    """A row function that autocast would lower."""
    return (
        jsd(z_RV, t_RV, beta=0.5)
        + (z_RV @ torch.linspace(0, 1, z_RV.shape[1], dtype=z_RV.dtype)[:, None])[:, 0]
    )


def losses_of(
    student_ND: Tensor, head: Head, teacher_ND: Tensor, chunk: int
) -> dict[str, Callable[[], Tensor]]:
    ids_N = torch.zeros(len(student_ND), dtype=torch.long)
    return {
        "jsd": lambda: fused_divergence(
            student_ND, head, teacher_ND, head, divergence="jsd", beta=0.3, chunk=chunk
        ),
        "kl": lambda: fused_divergence(
            student_ND, head, teacher_ND, head, divergence="kl(student, teacher)", chunk=chunk
        ),
        "logprobs": lambda: fused_logprobs(student_ND, head, ids_N, chunk=chunk),
        "entropy": lambda: fused_entropy(student_ND, head, chunk=chunk),
        "rows": lambda: fused_rows(
            rows_with_a_product, student_ND, head, teacher_ND, head, chunk=chunk
        ),
    }


@pytest.mark.parametrize("name", ["jsd", "kl", "logprobs", "entropy", "rows"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_matrix_of_all_logits_is_made(name: str, dtype: torch.dtype) -> None:
    n, v, chunk = 64, 500, 4
    student_ND, head, teacher_ND, _ = make(n=n, v=v, d=6, dtype=dtype)
    with Watch() as watch:
        values_N = losses_of(student_ND, head, teacher_ND, chunk)[name]()
        # no multiple of ones: the head's gradient is computed again
        (values_N * torch.arange(n)).sum().backward()
    assert watch.largest == max(
        v * 6, chunk * v * (3 if name in ("jsd", "kl") else 2 if name == "entropy" else 1), n * 6
    )


@pytest.mark.parametrize(
    ("frozen", "head_gradient", "uniform", "products"),
    [
        (False, "forward", True, 4),
        (True, "forward", True, 3),
        (False, "forward", False, 4 + 3),
        (False, "backward", False, 3 + 3),
    ],
)
def test_how_many_matrix_products_a_step_costs(
    frozen: bool, head_gradient: Any, uniform: bool, products: int
) -> None:
    student_ND, head, teacher_ND, _ = make(n=6)
    head = Head(weight_VD=head.weight_VD.detach().requires_grad_(not frozen))
    with Watch() as watch:
        values_N = fused_divergence(
            student_ND,
            head,
            teacher_ND,
            head,
            divergence="jsd",
            head_gradient=head_gradient,
            chunk=2,
        )
        (values_N if uniform else values_N * torch.arange(6)).sum().div(6).backward()
    assert watch.products == 3 * products  # of 3 chunks


def test_nothing_but_the_values_without_gradient() -> None:
    student_ND, head, teacher_ND, _ = make(n=6)
    with torch.no_grad(), Watch() as watch:
        values_N = fused_divergence(student_ND, head, teacher_ND, head, divergence="jsd", chunk=2)
    assert watch.products == 3 * 2 and not values_N.requires_grad


def test_a_graph_that_is_thrown_away_leaves_nothing() -> None:
    """A loss that is never backwarded must not keep the head's gradient until the garbage collector
    runs."""
    student_ND, head, *_ = make()
    gc.disable()
    try:
        values_N = fused_entropy(student_ND, head)
        alive = weakref.ref(values_N.grad_fn)
        del values_N
        assert alive() is None
    finally:
        gc.enable()


# ---- how exact ----


def bf16_pair(noise: float) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight_VD = (torch.randn(20_000, 64, generator=generator) * (3 / 8)).bfloat16()
    student_ND = torch.randn(8, 64, generator=generator).bfloat16()
    return (
        student_ND,
        (student_ND.float() + noise * torch.randn(8, 64, generator=generator)).bfloat16(),
        weight_VD,
    )


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("path", ["upcast at once", "in tiles", "mixed"])
def test_from_bfloat16_a_small_divergence_keeps_its_digits(
    kind: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Value and gradients within 1e-3 at a JSD of 1e-4, on every way the products of bfloat16
    numbers are made."""
    if path == "in tiles":
        monkeypatch.setattr(fused_sweep, "_MAX_HEAD_COPY", 0)
        monkeypatch.setattr(fused_sweep, "_TILE", 64 * 4 * 999)
    if path == "mixed":  # what CUDA does, its products emulated
        monkeypatch.setattr(fused_sweep, "mixes", lambda weight_VD, hidden_ND: True)
        monkeypatch.setattr(
            fused_sweep.Projection, "logits", with_bf16_rows(fused_sweep.Projection.logits)
        )
    student_ND, teacher_ND, weight_VD = bf16_pair(0.008)
    beta = {"jsd": 0.5, DIVERGENCES[1]: 1.0, DIVERGENCES[2]: 0.0}[kind]
    wide_ND, wide_VD = student_ND.double().requires_grad_(), weight_VD.double().requires_grad_()
    true_N = jsd(
        wide_ND @ wide_VD.t(), teacher_ND.double() @ wide_VD.detach().t(), beta=beta, raw=True
    )
    true_N.mean().backward()
    # float32 tensors of bfloat16 numbers: the gradient is seen before it is rounded
    leaf_ND, head_VD = student_ND.float().requires_grad_(), weight_VD.float().requires_grad_()
    student = leaf_ND if path != "mixed" else leaf_ND.bfloat16()
    if path != "upcast at once":
        head_VD = weight_VD.clone().requires_grad_()
    near = Head(weight_VD=head_VD)
    values_N = fused_divergence(
        student, near, teacher_ND, Head(weight_VD=weight_VD), divergence=kind, raw=True, chunk=3
    )
    values_N.mean().backward()
    if kind == "jsd":
        assert 5e-5 < true_N.mean() < 2e-4
    assert ((values_N - true_N).abs() / true_N).max() < 1e-3
    assert (
        wide_ND.grad is not None
        and leaf_ND.grad is not None
        and wide_VD.grad is not None
        and head_VD.grad is not None
    )
    for leaf, true, input_ in ((leaf_ND, wide_ND, student), (head_VD, wide_VD, head_VD)):
        assert leaf.grad is not None and true.grad is not None
        # the gradient of a bfloat16 tensor is rounded at the end
        bound = 1e-3 if input_.dtype == torch.float32 else 4e-3
        assert (leaf.grad - true.grad).norm() < bound * true.grad.norm()


@pytest.mark.parametrize("beta", [0.3, 0.5])
def test_from_the_same_logits_a_divergence_of_1e_5_has_four_digits(beta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z_RV = torch.randn(8, 4096, generator=generator) * 4
    t_RV = z_RV + 0.015 * torch.randn(8, 4096, generator=generator)
    exact_RV = (z_RV.double() / fused_eager.LOG2E).requires_grad_()  # kernels get logits in base 2
    exact_R = jsd(exact_RV, t_RV.double() / fused_eager.LOG2E, beta=beta, raw=True)
    exact_R.sum().backward()
    values_R, factor_R = fused_eager.eager_divergence(beta, 1.0).rows(
        z_RV, t_RV, None, torch.empty(3, 8, 4096), True
    )
    assert 3e-6 < exact_R.mean() < 3e-5 and exact_RV.grad is not None
    assert ((values_R - exact_R).abs() / exact_R).max() < 1e-4
    assert (z_RV * factor_R[:, None] - exact_RV.grad).norm() < 1e-4 * exact_RV.grad.norm()


def with_bf16_rows(logits: Callable[..., None]) -> Callable[..., None]:
    def checked(self: Any, part: slice, out_CV: Tensor) -> None:
        # the weight is not raised to float32
        assert self.mixed and self.weight_VD.dtype == torch.bfloat16
        logits(self, part, out_CV)

    return checked


def test_the_split_product_is_exact_to_float32() -> None:
    a, b = torch.randn(30, 200), torch.randn(200, 10).bfloat16()
    exact = a.double() @ b.double()
    assert (fused_sweep.split_product(a, b) - exact).norm() < 2e-5 * exact.norm()
    # why the products are split
    assert (fused_sweep.mixed_product(a.bfloat16(), b) - exact).norm() > 1e-3 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.7, 1.0])
def test_identity_is_exactly_zero_with_zero_gradient(beta: float, dtype: torch.dtype) -> None:
    student_ND, head, *_ = make(n=33, d=17, v=301, dtype=dtype)
    other_head = replace(head, weight_VD=head.weight_VD.detach().clone())
    values_N = fused_divergence(
        student_ND,
        head,
        student_ND.detach().clone(),
        other_head,
        divergence="jsd",
        beta=beta,
        temperature=0.7,
        chunk=8,
    )
    values_N.sum().backward()
    assert bool((values_N == 0).all())
    for leaf in (student_ND, head.weight_VD, head.bias_V):
        assert (
            leaf is not None
            and leaf.grad is not None
            and leaf.grad.dtype == dtype
            and bool((leaf.grad == 0).all())
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_identity_is_exactly_zero_however_far_below_the_top_a_token_is(
    beta: float, dtype: torch.dtype
) -> None:
    """Exponents are clamped before they underflow: if one side alone were clamped, equal rows would
    differ by 1e-30."""
    hidden_ND = torch.tensor(
        [[0.0, -30.0, -80.0, -90.0, -700.0], [5.0, -torch.inf, 0.0, -65.0, -75.0]], dtype=dtype
    )
    bias_V, hidden_ND = hidden_ND[1], hidden_ND[:1].clone().requires_grad_()
    head = Head(weight_VD=torch.eye(5, dtype=dtype), bias_V=bias_V)
    values_N = fused_divergence(
        hidden_ND, head, hidden_ND.detach().clone(), head, divergence="jsd", beta=beta
    )
    values_N.sum().backward()
    assert values_N.tolist() == [0.0] and hidden_ND.grad is not None and not hidden_ND.grad.any()


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_minus_infinity_and_huge_logits_are_those_of_the_row_functions(
    kind: Any, dtype: torch.dtype
) -> None:
    student_ND, head, teacher_ND, _ = make(n=6, v=19, dtype=dtype)
    assert head.bias_V is not None
    near_V, far_V = head.bias_V.detach().clone(), torch.zeros(19, dtype=dtype)
    near_V[3] = far_V[3] = -torch.inf  # a column that does not exist
    near_V[5] = far_V[7] = -torch.inf  # one that one side alone has
    hidden_ND = (
        student_ND.detach() * torch.tensor([1, 1, 30, 1000, 1e-3, 0], dtype=dtype)[:, None]
    ).requires_grad_()
    near, far = (
        Head(weight_VD=head.weight_VD, bias_V=near_V.requires_grad_()),
        Head(weight_VD=head.weight_VD, bias_V=far_V),
    )
    values_N = fused_divergence(hidden_ND, near, teacher_ND, far, divergence=kind, beta=0.3)
    expected_N = hint_divergence(
        logits(hidden_ND, near), logits(teacher_ND, far).detach(), divergence=kind, beta=0.3
    )
    tolerance = 1e-10 if dtype == torch.float64 else 2e-4
    same((values_N.detach(),), (expected_N.detach(),), tolerance)
    ones_N = torch.ones(6, dtype=dtype)
    ours, theirs = (gradients(v, ones_N, hidden_ND, near) for v in (values_N, expected_N))
    for a, b in zip(ours, theirs, strict=True):
        assert bool(a.isfinite().all()) and (a - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("name", ["jsd", "kl", "logprobs", "entropy"])
def test_one_hot_students_and_teachers_stay_finite(name: str) -> None:
    student_ND, head, teacher_ND, _ = make(n=6, dtype=torch.float32)
    hot_ND, other_ND = (student_ND.detach() * 1e6).requires_grad_(), teacher_ND.detach() * 1e6
    values_N = losses_of(hot_ND, head, other_ND, 2)[name]()
    values_N.sum().backward()
    assert (
        hot_ND.grad is not None
        and bool(values_N.isfinite().all())
        and bool(hot_ND.grad.isfinite().all())
    )


# ---- call sites ----


@pytest.mark.parametrize("name", ["jsd", "kl", "logprobs", "entropy", "rows"])
def test_autocast_does_not_lower_the_precision(name: str) -> None:
    student_ND, head, teacher_ND, _ = make(n=9, v=101, d=16, dtype=torch.float32)
    loss = losses_of(student_ND, head, teacher_ND, 4)[name]
    grad_N = torch.arange(9.0)
    plain_N = loss()
    plain = gradients(plain_N, grad_N, student_ND, head)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_N = loss()
        cast = gradients(cast_N, grad_N, student_ND, head)
    assert torch.equal(plain_N, cast_N) and all(
        torch.equal(a, b) for a, b in zip(plain, cast, strict=True)
    )


@pytest.mark.parametrize("name", ["jsd", "kl", "logprobs", "entropy", "rows"])
@pytest.mark.parametrize("head_gradient", ["forward", "backward"])
def test_no_rows_give_no_values_and_gradients_of_zero(name: str, head_gradient: Any) -> None:
    student_ND, head, teacher_ND, _ = make(n=0, dtype=torch.float32)
    values_N = losses_of(student_ND, head, teacher_ND, 4)[name]()
    assert values_N.shape == (0,)
    values_N.sum().backward()
    for leaf in (student_ND, head.weight_VD, head.bias_V):
        assert (
            leaf is not None
            and leaf.grad is not None
            and leaf.grad.shape == leaf.shape
            and bool((leaf.grad == 0).all())
        )


def test_gradient_checkpointing_of_the_body_and_of_the_loss() -> None:
    student_ND, head, teacher_ND, _ = make()
    body = torch.nn.Sequential(
        torch.nn.Linear(5, 5), torch.nn.Tanh(), torch.nn.Linear(5, 5)
    ).double()

    def loss(hidden_ND: Tensor) -> Tensor:
        return fused_divergence(hidden_ND, head, teacher_ND, head, divergence="jsd", chunk=3)

    wanted = (student_ND, head.weight_VD, *body.parameters())
    plain = torch.autograd.grad(loss(body(student_ND)).sum(), wanted)
    in_body = torch.autograd.grad(
        loss(checkpoint(body, student_ND, use_reentrant=False)).sum(), wanted
    )
    in_all = torch.autograd.grad(
        checkpoint(lambda x: loss(body(x)), student_ND, use_reentrant=False).sum(), wanted
    )
    same(in_body, plain, 1e-12)
    same(in_all, plain, 1e-12)


def test_weights_and_ids_of_another_type() -> None:
    student_ND, head, *_ = make(dtype=torch.float32)
    ids_N = torch.arange(7, dtype=torch.int32)
    for weights_N in (torch.arange(7), torch.arange(7.0, dtype=torch.float64)):
        values_N = fused_logprobs(student_ND, head, ids_N, weights_N=weights_N)
        expected_N = token_logprobs(logits(student_ND, head), ids_N.long())
        same(
            gradients(values_N, weights_N.float(), student_ND, head),
            gradients(expected_N, weights_N.float(), student_ND, head),
            1e-4,
        )


def test_rows_that_a_view_skips_are_no_different() -> None:
    """Hidden states with strides, as a slice of (B, T, D) has them."""
    student_ND, head, teacher_ND, _ = make(n=12)
    strided = fused_divergence(
        student_ND[::2],
        head,
        teacher_ND.detach().t().contiguous().t()[::2],
        head,
        divergence="jsd",
        chunk=4,
    )
    same(
        (strided.detach(),),
        (jsd(logits(student_ND, head), logits(teacher_ND, head), beta=0.5)[::2].detach(),),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_the_compiled_variant_gives_the_same(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled functions, plain and compiled; compilation takes most of this file's time."""
    if not compiled:
        monkeypatch.setattr(fused_compiled, "_compiled", lambda: fused_compiled._jsd)
    elif not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("this machine has no C++ compiler, which torch.compile needs")
    student_ND, head, teacher_ND, teacher_head = make(n=6, v=64)
    grad_N = torch.arange(6, dtype=torch.float64)
    for beta in (0.3,) if compiled else (0.0, 0.3, 1.0):
        outputs = [
            fused_divergence(
                student_ND,
                head,
                teacher_ND,
                teacher_head,
                divergence="jsd",
                beta=beta,
                chunk=3,
                backend=backend,
            )
            for backend in ("eager", "compile")
        ]
        same((outputs[1].detach(),), (outputs[0].detach(),))
        same(*(gradients(values_N, grad_N, student_ND, head) for values_N in outputs))


# ---- refusals ----


def test_what_does_not_match_is_refused_by_name() -> None:
    s, h, t, g = make()
    with pytest.raises(ValueError, match="temperature"):
        fused_entropy(s, h, temperature=0.0)
    with pytest.raises(ValueError, match="chunk"):
        fused_entropy(s, h, chunk=0)
    with pytest.raises(ValueError, match="beta"):
        fused_divergence(s, h, t, g, divergence="jsd", beta=1.5)
    with pytest.raises(ValueError, match="unknown divergence"):
        fused_divergence(s, h, t, g, divergence="js")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="teacher rows do not match"):
        fused_divergence(s, h, t[:3], g, divergence="jsd")
    with pytest.raises(ValueError, match="hidden states"):
        fused_entropy(s[:, :3], h)
    with pytest.raises(ValueError, match="bias"):
        fused_entropy(s, replace(h, bias_V=torch.zeros(3)))
    with pytest.raises(ValueError, match="vocab="):
        fused_divergence(s, h, t, Head(weight_VD=torch.zeros(29, 5)), divergence="jsd")
    with pytest.raises(ValueError, match="does not lie within"):
        fused_entropy(s, h, vocab=24)
    with pytest.raises(ValueError, match="outside a vocabulary"):
        fused_logprobs(s, h, torch.full((7,), 23))
    with pytest.raises(ValueError, match="ids"):
        fused_logprobs(s, h, torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="weights"):
        fused_entropy(s, h, weights_N=torch.ones(3))
    with pytest.raises(ValueError, match="without teacher_head"):
        fused_rows(lambda z, t: z.sum(-1), s, h, t)
    with pytest.raises(ValueError, match="a row function gave"):
        fused_rows(lambda z: z, s, h)
    with pytest.raises(ValueError, match="Triton"):
        fused_divergence(s, h, t, g, divergence="jsd", backend="triton")
