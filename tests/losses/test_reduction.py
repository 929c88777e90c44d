"""Reductions as weights: the loss of a step does not depend on how the step was cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.losses.reduction import PUBLISHED, Reduction, Units, reduce, weights

REDUCTIONS: tuple[Reduction, ...] = (
    "token_mean",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "constant",
    "sum",
)


def expected(rows: list[np.ndarray], reduction: str) -> float:
    """From a list of sequences, by the words."""
    if reduction == "token_mean":
        return float(np.concatenate(rows).mean())
    if reduction == "sequence_mean_token_mean":
        return float(np.mean([row.mean() for row in rows]))
    if reduction == "sequence_mean_token_sum":
        return float(np.mean([row.sum() for row in rows]))
    return float(np.concatenate(rows).sum() / (7.0 if reduction == "constant" else 1.0))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    cuts=st.lists(st.integers(0, 8), max_size=3),
    seed=st.integers(0, 99),
)
def test_any_cut_adds_up_to_the_same_loss_and_gradient(
    lengths: list[int], reduction: Reduction, cuts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=n) for n in lengths]
    values = torch.tensor(np.concatenate(rows), requires_grad=True)
    sequence = torch.arange(len(rows)).repeat_interleave(torch.tensor(lengths))
    counts = Units.of(sequence)
    options = {"reduction": reduction, "counts": counts, "constant": 7.0, "dtype": torch.float64}
    at_once = reduce(values, weights(sequence, **options))
    assert at_once.item() == pytest.approx(expected(rows, reduction))
    edges = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    total = torch.zeros((), dtype=torch.float64)
    # micro-batches of whole sequences, some of them empty
    for first, last in itertools.pairwise(edges):
        mine = (sequence >= first) & (sequence < last)
        total = total + reduce(values[mine], weights(sequence[mine] - first, **options))
    assert total.item() == pytest.approx(at_once.item(), rel=1e-12, abs=1e-12)
    (uncut,), (cut,) = torch.autograd.grad(at_once, values), torch.autograd.grad(total, values)
    assert torch.allclose(uncut, cut, rtol=1e-12)


@pytest.mark.parametrize(
    "reduction", ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"]
)
def test_sequences_without_a_loss_token_change_nothing(reduction: Reduction) -> None:
    values, sequence = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1])
    spread = torch.tensor([3, 3, 9])  # the same two, among ten of which eight have no hint
    first, second = (
        reduce(values, weights(x, reduction=reduction, counts=Units.of(x)))
        for x in (sequence, spread)
    )
    assert first.item() == second.item()
    assert Units.of(spread) == Units(tokens=3, sequences=2)


def test_a_sequence_that_is_cut_needs_its_whole_length() -> None:
    values, sequence = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1])
    counts, lengths = Units.of(sequence), torch.bincount(sequence)
    parts = [
        reduce(
            values[s],
            weights(
                sequence[s], reduction="sequence_mean_token_mean", counts=counts, lengths_S=lengths
            ),
        )
        for s in (slice(0, 1), slice(1, 3))
    ]
    assert sum(p.item() for p in parts) == pytest.approx(3.5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_empty_step_is_zero_with_zero_gradient(reduction: Reduction) -> None:
    leaf = torch.zeros(3, requires_grad=True)
    sequence = torch.zeros(0, dtype=torch.long)
    loss = reduce(
        leaf[:0], weights(sequence, reduction=reduction, counts=Units.of(sequence), constant=1.0)
    )
    loss.backward()
    assert loss.item() == 0.0 and leaf.grad is not None and leaf.grad.tolist() == [0.0] * 3


def test_every_published_name_has_a_known_reduction() -> None:
    assert set(PUBLISHED.values()) <= set(REDUCTIONS)
    index = torch.zeros(1, dtype=torch.long)
    with pytest.raises(ValueError, match="positive constant"):
        weights(index, reduction="constant", counts=Units(tokens=1, sequences=1))
    with pytest.raises(ValueError, match="unknown reduction"):
        weights(index, reduction="mean", counts=Units(tokens=1, sequences=1))
