"""Sampling of the next token of each row, and the log-prob that is kept of it.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.core.errors import StoppedError


@dataclass(frozen=True, slots=True)
class Chosen:
    """One token per row and its log-prob under the model."""

    tokens: list[int]
    logprobs: list[float]


def sample_tokens(
    logits_BV: Tensor, *, uniform: Sequence[float], temperature: float, top_p: float
) -> Chosen:
    """Sample a token per row by inverting the cumulative distribution at `uniform`.

    `uniform` is a number in [0, 1) per row; temperature 0 takes the most probable token. The
    log-prob is the *model's own*, log softmax(logits) at temperature 1 over the whole vocabulary,
    whatever the sampling settings: a loss recomputes the same. The two distributions are equal only
    at temperature 1 and top_p 1. Raises StoppedError if the logits are not finite.
    """
    total_B = logits_BV.logsumexp(dim=-1)
    if not bool(torch.isfinite(total_B).all()):
        raise StoppedError(
            "the student's logits are not finite",
            fix="go back to an earlier checkpoint and lower the learning rate",
        )
    token_B = (
        _draw(logits_BV, uniform, temperature=temperature, top_p=top_p)
        if temperature
        else logits_BV.argmax(dim=-1)
    )
    logp_B = logits_BV.gather(1, token_B[:, None]).squeeze(1) - total_B
    return Chosen(token_B.tolist(), logp_B.tolist())


def _draw(
    logits_BV: Tensor, uniform: Sequence[float], *, temperature: float, top_p: float
) -> Tensor:
    """Draw in double precision: a float32 cumulative sum over a large vocabulary loses the tail."""
    p_BV = (logits_BV.double() / temperature).softmax(dim=-1)
    order_BV = None
    if top_p < 1:
        p_BV, order_BV = p_BV.sort(dim=-1, descending=True, stable=True)
        p_BV = p_BV.masked_fill(p_BV.cumsum(dim=-1) - p_BV >= top_p, 0.0)
    below_BV = p_BV.cumsum(dim=-1)
    u_B = torch.tensor(uniform, dtype=torch.float64, device=p_BV.device)
    # right=True picks the first token whose cumulative probability exceeds u, so a token of
    # probability zero is never drawn.
    at_B1 = torch.searchsorted(below_BV, (u_B * below_BV[:, -1])[:, None], right=True)
    return (at_B1 if order_BV is None else order_BV.gather(1, at_B1)).squeeze(1)
