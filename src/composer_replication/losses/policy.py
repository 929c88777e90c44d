"""The policy channel: Dr.GRPO on rollouts that our own student sampled.

On imported logs the channel is masked cross-entropy and is always called lm_ce. Shapes: N tokens, V
vocabulary. Callers align positions: row k of the logits predicts ids_N[k].
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.losses.sampled import ratio
from composer_replication.losses.surrogates import ppo_clip


def token_logprobs(logits_NV: Tensor, ids_N: Tensor, *, vocab: int | None = None) -> Tensor:
    """Log-probability of each token, in nats, accumulated in float32 (float64 stays float64).

    >>> token_logprobs(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).tolist()
    [-0.6931471824645996]

    `vocab` is the number of real columns; those behind it are padding of the embedding. Raises
    ValueError if an id lies outside.
    """
    if logits_NV.ndim != 2 or ids_N.shape != logits_NV.shape[:1]:
        raise ValueError(
            f"logits {tuple(logits_NV.shape)} and ids {tuple(ids_N.shape)} do not match"
        )
    if vocab is not None:
        logits_NV = logits_NV[:, :vocab]
    if ids_N.numel() and not 0 <= int(ids_N.min()) <= int(ids_N.max()) < logits_NV.shape[1]:
        raise ValueError(
            f"token ids {int(ids_N.min())}..{int(ids_N.max())} lie outside a vocabulary of"
            f" {logits_NV.shape[1]}"
        )
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    return logits_NV.gather(1, ids_N[:, None]).squeeze(1) - torch.logsumexp(logits_NV, dim=1)


def lm_ce(logits_NV: Tensor, ids_N: Tensor, *, vocab: int | None = None) -> Tensor:
    """Cross-entropy of each token, in nats, unreduced.

    >>> lm_ce(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).tolist()
    [0.6931471824645996]
    """
    return -token_logprobs(logits_NV, ids_N, vocab=vocab)


def dr_grpo(logp_N: Tensor, sampled_logp_N: Tensor, advantage_N: Tensor, *, clip: float) -> Tensor:
    """The clipped surrogate of each token, negated and unreduced.

    -min(r A, clamp(r, 1 - clip, 1 + clip) A) with r = exp(logp - sampled).

    >>> dr_grpo(torch.tensor([-1.0]), torch.tensor([-1.0]), torch.tensor([0.5]), clip=0.2).tolist()
    [-0.5]

    Dr.GRPO (arXiv 2503.20783): the advantage is reward - mean of the group, not divided by the
    group's standard deviation, and the values are summed and divided by a constant - here the
    number of rollouts of the step - never by a length. The caller does both. At r = 1 the gradient
    is -A times that of logp. It is 0 once r has passed the clip in the direction in which the
    advantage pushes. log r is clamped to +-20, so r is finite whatever the sampler reported. Other
    policy losses: losses/surrogates.py.
    """
    return ppo_clip(logp_N, sampled_logp_N, advantage_N, clip_low=clip, clip_high=clip)


def is_clipped(
    logp_N: Tensor, sampled_logp_N: Tensor, advantage_N: Tensor, *, clip: float
) -> Tensor:
    """Whether `dr_grpo` gives a token no gradient.

    That is: its ratio has left 1 by more than clip, on the side the advantage pushes to.

    >>> logp, sampled = torch.tensor([-0.5, -0.5]), torch.tensor([-1.0, -1.0])
    >>> is_clipped(logp, sampled, torch.tensor([1.0, -1.0]), clip=0.2).tolist()
    [True, False]
    """
    ratio_N = ratio(logp_N.detach(), sampled_logp_N)
    return torch.where(advantage_N > 0, ratio_N > 1.0 + clip, ratio_N < 1.0 - clip) & (
        advantage_N != 0
    )
