"""Reductions as weights by global counts.

The sum of weighted values over every micro-batch and rank *is* the step's loss. No loss function
takes a mean: a mean per micro-batch, averaged afterwards, depends on how the step was cut, and
weighs a token of a short micro-batch more than one of a long micro-batch. These weights do not,
because `Units` count the whole step.

    token_mean                 1 / tokens                     DAPO, BNPO, TRL GKD with labels,
                                                              lasgroup SDPO, verl's default
    sequence_mean_token_mean   1 / (sequences * own length)   GRPO, SAPO, verl GSPO,
                                                              TRL's SDPO trainer
    sequence_mean_token_sum    1 / sequences                  LUSPO; DPO-like sums
    constant                   1 / constant                   Dr.GRPO; constant = sequences, or
                                                              sequences * length limit (TRL)
    sum                        1                              prime-rl's loss functions, whose
                                                              caller divides

Shapes: N tokens, S sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "sum"
]

# The reduction of each published objective; its surrogate is in losses/surrogates.py or
# losses/trust_region.py.
PUBLISHED: MappingProxyType[str, Reduction] = MappingProxyType(
    {
        "grpo": "sequence_mean_token_mean",
        "sapo": "sequence_mean_token_mean",
        "gspo": "sequence_mean_token_mean",
        "bnpo": "token_mean",
        "dapo": "token_mean",
        "cispo": "token_mean",
        "vespo": "token_mean",
        "luspo": "sequence_mean_token_sum",
        "dr_grpo": "constant",
        "dppo": "sum",
        "dppo_symmetric": "sum",
        "reference_kl": "sum",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Loss tokens of a step, and sequences with at least one, over all micro-batches and ranks.

    They divide a channel's sum; tokens/batch.py counts what the channels find in a batch. A
    sequence without a loss token is not counted, so adding one changes nothing. TRL's GRPO and SDPO
    count it; pass their number for that. Example: Units(tokens=13, sequences=4)
    """

    tokens: int
    sequences: int

    @staticmethod
    def of(sequence_N: Tensor) -> Units:
        """Units of a step that is one batch on one rank.

        >>> Units.of(torch.tensor([0, 0, 3]))
        Units(tokens=3, sequences=2)
        """
        return Units(tokens=sequence_N.numel(), sequences=int(sequence_N.unique().numel()))


def weights(
    sequence_N: Tensor,
    *,
    reduction: Reduction,
    counts: Units,
    constant: float | None = None,
    lengths_S: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The factor of each token: `(values * weights).sum()` over the whole step is the reduced loss.

    >>> sequence_N, counts = torch.tensor([0, 0, 1]), Units(tokens=3, sequences=2)
    >>> weights(sequence_N, reduction="sequence_mean_token_mean", counts=counts).tolist()
    [0.25, 0.25, 0.5]

    sequence_N[k] is token k's sequence. `lengths_S`, the loss tokens of each sequence in the whole
    step, is needed only if a sequence is cut over micro-batches. An empty batch gives an empty
    tensor and a sum of 0.
    """
    ones_N = torch.ones(sequence_N.shape, dtype=dtype, device=sequence_N.device)
    if reduction == "sum":
        return ones_N
    if reduction == "constant":
        if constant is None or not constant > 0:
            raise ValueError(f"the reduction 'constant' needs a positive constant, not {constant}")
        return ones_N / constant
    if reduction == "token_mean":
        return ones_N / max(counts.tokens, 1)
    if reduction == "sequence_mean_token_sum":
        return ones_N / max(counts.sequences, 1)
    if reduction == "sequence_mean_token_mean":
        lengths_S = torch.bincount(sequence_N) if lengths_S is None else lengths_S
        return ones_N / (lengths_S[sequence_N].to(dtype) * max(counts.sequences, 1))
    raise ValueError(f"unknown reduction {reduction!r}")


def reduce(values_N: Tensor, weights_N: Tensor) -> Tensor:
    """Sum of the weighted values: a micro-batch's share of the step's loss.

    An empty micro-batch gives 0 with zero gradient.

    >>> reduce(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0.25, 0.25, 0.5])).item()
    3.5
    """
    return (values_N * weights_N.to(values_N.dtype)).sum()
