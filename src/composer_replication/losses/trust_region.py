"""Policy losses of prime-rl that mask by the change of a token's *probability*.

    value = -keep * A * r + kl_tau * (log r)^2        r = p / p_sampled; masks have no gradient

DPPO, its symmetric form, and reference KL. A ratio clip punishes rare tokens (1e-5 to 3e-5 is a
ratio of 3 and no change in behaviour); a bound on p - p_sampled does not. DPPO's binary
total-variation mask: arXiv 2602.04879; the squared log-ratio: 2602.02276. Shapes: N tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.losses.sampled import floor_logprobs, ratio

KL_TAU = 1e-3
"""The weight of the squared log-ratio."""


def dppo(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    *,
    mask_low: float = 0.2,
    mask_high: float = 0.2,
    kl_tau: float = KL_TAU,
) -> Tensor:
    """DPPO per token: a token is dropped if its probability moved too far.

    It is dropped if the probability rose by more than mask_high (A > 0) or fell by more than
    mask_low (A <= 0).

    >>> now, then = torch.tensor([0.9, 0.3]).log(), torch.tensor([0.5, 0.2]).log()
    >>> value_N = dppo(now, then, torch.tensor([1.0, 1.0]), kl_tau=0.0)
    >>> value_N.double().round(decimals=4).tolist()  # the first rose by 0.4
    [0.0, -1.5]

    An advantage of 0 uses the lower bound. prime-rl's `adv_tau` is a factor on the advantage.
    """
    dropped_N = outside_region(
        logp_N, sampled_logp_N, advantage_N, mask_low=mask_low, mask_high=mask_high
    )
    return _masked(logp_N, sampled_logp_N, advantage_N, keep_N=~dropped_N, kl_tau=kl_tau)


def outside_region(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    *,
    mask_low: float,
    mask_high: float,
) -> Tensor:
    """Whether `dppo` drops a token: its probability moved too far to the advantage's side.

    >>> now, then = torch.tensor([0.9, 0.9]).log(), torch.tensor([0.5, 0.5]).log()
    >>> advantage = torch.tensor([1.0, -1.0])
    >>> outside_region(now, then, advantage, mask_low=0.2, mask_high=0.2).tolist()
    [True, False]
    """
    moved_N = _moved(logp_N, sampled_logp_N)
    return torch.where(advantage_N > 0, moved_N > mask_high, moved_N < -mask_low)


def dppo_symmetric(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    *,
    threshold: float = 0.1,
    kl_tau: float = KL_TAU,
) -> Tensor:
    """prime-rl's `ipo`: a token is dropped if its probability moved by more than threshold.

    >>> now, then = torch.tensor([0.9, 0.3]).log(), torch.tensor([0.5, 0.25]).log()
    >>> value_N = dppo_symmetric(now, then, torch.tensor([-1.0, -1.0]), kl_tau=0.0)
    >>> value_N.double().round(decimals=4).tolist()
    [0.0, 1.2]

    The sign of the advantage plays no role. It is unrelated to the preference loss of the same name
    (`preference.ipo`).
    """
    keep_N = _moved(logp_N, sampled_logp_N).abs() <= threshold
    return _masked(logp_N, sampled_logp_N, advantage_N, keep_N=keep_N, kl_tau=kl_tau)


def reference_kl(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    ref_logp_N: Tensor,
    *,
    threshold: float = 0.2,
    kl_tau: float = KL_TAU,
) -> Tensor:
    """prime-rl's `ref_kl`: on-policy distillation from sampled tokens, A = sg(log p_ref - log p).

    A token is dropped if its probability fell by more than threshold.

    >>> p, p_ref = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    >>> round(reference_kl(p, p, p_ref).item(), 4)  # the reference gives it less
    0.6931
    """
    advantage_N = (floor_logprobs(ref_logp_N) - floor_logprobs(logp_N)).detach()
    keep_N = _moved(logp_N, sampled_logp_N) >= -threshold
    return _masked(logp_N, sampled_logp_N, advantage_N, keep_N=keep_N, kl_tau=kl_tau)


def _moved(logp_N: Tensor, sampled_logp_N: Tensor) -> Tensor:
    """The change of each token's probability since it was sampled."""
    return logp_N.detach().exp() - sampled_logp_N.detach().exp()


def _masked(
    logp_N: Tensor, sampled_logp_N: Tensor, advantage_N: Tensor, *, keep_N: Tensor, kl_tau: float
) -> Tensor:
    gain_N = torch.where(keep_N, ratio(logp_N, sampled_logp_N) * advantage_N, 0.0)
    return (
        kl_tau * (floor_logprobs(logp_N) - floor_logprobs(sampled_logp_N.detach())).square()
        - gain_N
    )
