"""Policy losses that mask by how far a token's *probability* has moved, as prime-rl has them: DPPO,
its symmetric form, reference KL.

    value = -keep * A * r + kl_tau * (log r)^2        r = p / p_sampled, the masks have no gradient

A ratio clip punishes rare tokens (1e-5 to 3e-5 is a ratio of 3 and a change of nothing); a bound on
p - p_sampled does not. DPPO's binary total-variation mask: arXiv 2602.04879; the squared log-ratio:
2602.02276. Shapes: N tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from composer_replication.losses.sampled import held, ratio


def dppo(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    *,
    mask_low: float = 0.2,
    mask_high: float = 0.2,
    kl_tau: float = 1e-3,
) -> Tensor:
    """DPPO per token: dropped where the probability rose by more than mask_high (A > 0) or fell by
    more than mask_low (A <= 0).

    >>> now, then = torch.tensor([0.9, 0.3]).log(), torch.tensor([0.5, 0.2]).log()
    >>> dppo(now, then, torch.tensor([1.0, 1.0]), kl_tau=0.0).double().round(decimals=4).tolist()  # the first rose by 0.4
    [0.0, -1.5]

    An advantage of 0 takes the lower bound. prime-rl's `adv_tau` is a factor on the advantage.
    """
    moved_N = _moved(logp_N, sampled_logp_N)
    dropped_N = torch.where(advantage_N > 0, moved_N > mask_high, moved_N < -mask_low)
    return _masked(logp_N, sampled_logp_N, advantage_N, ~dropped_N, kl_tau)


def dppo_symmetric(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    advantage_N: Tensor,
    *,
    threshold: float = 0.1,
    kl_tau: float = 1e-3,
) -> Tensor:
    """prime-rl's `ipo`: dropped where the probability moved by more than threshold, whatever the
    advantage says.

    >>> now, then = torch.tensor([0.9, 0.3]).log(), torch.tensor([0.5, 0.25]).log()
    >>> dppo_symmetric(now, then, torch.tensor([-1.0, -1.0]), kl_tau=0.0).double().round(decimals=4).tolist()
    [0.0, 1.2]

    It has nothing to do with the preference loss of the same name (`preference.ipo`).
    """
    return _masked(
        logp_N,
        sampled_logp_N,
        advantage_N,
        _moved(logp_N, sampled_logp_N).abs() <= threshold,
        kl_tau,
    )


def reference_kl(
    logp_N: Tensor,
    sampled_logp_N: Tensor,
    ref_logp_N: Tensor,
    *,
    threshold: float = 0.2,
    kl_tau: float = 1e-3,
) -> Tensor:
    """prime-rl's `ref_kl`, on-policy distillation from sampled tokens: A = sg(log p_ref - log p),
    dropped where p fell by over threshold.

    >>> p = torch.tensor([0.5]).log(); round(reference_kl(p, p, torch.tensor([0.25]).log()).item(), 4)  # the reference wants less
    0.6931
    """
    advantage_N = (held(ref_logp_N) - held(logp_N)).detach()
    return _masked(
        logp_N, sampled_logp_N, advantage_N, _moved(logp_N, sampled_logp_N) >= -threshold, kl_tau
    )


def _moved(logp_N: Tensor, sampled_logp_N: Tensor) -> Tensor:
    return logp_N.detach().exp() - sampled_logp_N.detach().exp()


def _masked(
    logp_N: Tensor, sampled_logp_N: Tensor, advantage_N: Tensor, keep_N: Tensor, kl_tau: float
) -> Tensor:
    gain_N = torch.where(keep_N, ratio(logp_N, sampled_logp_N) * advantage_N, 0.0)
    return kl_tau * (held(logp_N) - held(sampled_logp_N.detach())).square() - gain_N
