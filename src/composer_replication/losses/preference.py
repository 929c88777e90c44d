"""The preference channel: DPO (arXiv 2305.18290), IPO, hinge and SimPO on pairs.

It is in no Composer publication. DPO alone only says that chosen gains on rejected; the likelihood
of both may fall, and habits that no pair covers drift. The cross-entropy of anchors
(training/forwards/channels.py) holds them in place. `margins` is what DPO pushes up.

DPO takes sums of log-probs; its length-normalised form, IPO and SimPO take means
(`sequence_logprobs`, `sequence_mean_logprobs`); SimPO has no reference. A sequence without a
response token raises: its sum would be a constant, its mean undefined.

Shapes: P pairs, S sequences, N tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def sequence_logprobs(logp_N: Tensor, sequence_N: Tensor, *, num_sequences: int) -> Tensor:
    """Sum of the token log-probs of each sequence, in float64; sequence_N[k] is token k's sequence.

    >>> logp_N, sequence_N = torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([0, 0, 1])
    >>> sequence_logprobs(logp_N, sequence_N, num_sequences=2).tolist()
    [-3.0, -4.0]

    In float32 a sum of 100,000 tokens, added one by one, is off by half a nat, which matters for a
    margin of a few nats. Raises ValueError for a sequence without a token: its preference would be
    a constant without gradient.
    """
    if num_sequences and int(torch.bincount(sequence_N, minlength=num_sequences).min()) == 0:
        raise ValueError("a sequence without a response token")
    sums_S = torch.zeros(num_sequences, dtype=torch.float64, device=logp_N.device)
    return sums_S.index_add(0, sequence_N, logp_N.double())


def sequence_mean_logprobs(logp_N: Tensor, sequence_N: Tensor, *, num_sequences: int) -> Tensor:
    """Mean of the token log-probs of each sequence, in nats per token.

    >>> logp_N, sequence_N = torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([0, 0, 1])
    >>> sequence_mean_logprobs(logp_N, sequence_N, num_sequences=2).tolist()
    [-1.5, -4.0]

    Raises ValueError for a sequence without a token.
    """
    sums_S = sequence_logprobs(logp_N, sequence_N, num_sequences=num_sequences)
    return sums_S / torch.bincount(sequence_N, minlength=num_sequences)


def margins(
    chosen_P: Tensor, rejected_P: Tensor, ref_chosen_P: Tensor, ref_rejected_P: Tensor
) -> Tensor:
    """By how many nats each pair's chosen side gained more than its rejected side.

    Both gains are measured against the reference.

    >>> chosen, rejected = torch.tensor([-2.0]), torch.tensor([-5.0])
    >>> margins(chosen, rejected, torch.tensor([-3.0]), torch.tensor([-4.0])).tolist()
    [2.0]
    """
    return (chosen_P - ref_chosen_P.detach()) - (rejected_P - ref_rejected_P.detach())


def dpo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    ref_chosen_P: Tensor,
    ref_rejected_P: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """DPO loss of each pair from sequence log-probs (sums over response tokens).

    >>> p = torch.tensor([-3.0]); dpo(p, p, p, p, beta=0.1).tolist()  # policy = reference: log 2
    [0.6931471824645996]

    With z = beta * margin the loss is -(1 - e) log sigmoid(z) - e log sigmoid(-z), where e =
    `label_smoothing` is the assumed share of swapped pairs. The reference gets no gradient. With
    means instead of sums this is the length-normalised form (TRL's `sigmoid_norm`); beta is then
    larger by a typical length.
    """
    return _smoothed(
        beta * margins(chosen_P, rejected_P, ref_chosen_P, ref_rejected_P), label_smoothing
    )


def dpo_hinge(
    chosen_P: Tensor,
    rejected_P: Tensor,
    ref_chosen_P: Tensor,
    ref_rejected_P: Tensor,
    *,
    beta: float,
) -> Tensor:
    """max(0, 1 - beta * margin) of each pair, from sums (SLiC, arXiv 2305.10425, with a reference).

    >>> p = torch.tensor([-3.0]); dpo_hinge(p, p, p, p, beta=0.1).tolist()
    [1.0]
    """
    return torch.relu(1.0 - beta * margins(chosen_P, rejected_P, ref_chosen_P, ref_rejected_P))


def ipo(
    chosen_P: Tensor,
    rejected_P: Tensor,
    ref_chosen_P: Tensor,
    ref_rejected_P: Tensor,
    *,
    beta: float,
) -> Tensor:
    """IPO of each pair, from means over response tokens: (margin - 1 / (2 beta))^2.

    >>> p = torch.tensor([-3.0]); ipo(p, p, p, p, beta=0.5).tolist()
    [1.0]

    arXiv 2310.12036, eq. 17; beta is its tau. With means the target does not depend on length; the
    authors use means, and so does TRL. The paper's text uses sums.
    """
    return (
        margins(chosen_P, rejected_P, ref_chosen_P, ref_rejected_P) - 1.0 / (2.0 * beta)
    ).square()


def simpo(
    chosen_mean_P: Tensor,
    rejected_mean_P: Tensor,
    *,
    beta: float,
    gamma: float,
    label_smoothing: float = 0.0,
    loss: Literal["sigmoid", "hinge"] = "sigmoid",
) -> Tensor:
    """SimPO of each pair from *mean* log-probs: z = beta (chosen - rejected) - gamma.

    >>> chosen, rejected = torch.tensor([-0.5]), torch.tensor([-1.0])
    >>> round(simpo(chosen, rejected, beta=2.0, gamma=1.0).item(), 6)  # z = 0: log 2
    0.693147

    arXiv 2405.14734; there is no reference. `gamma` is the margin in units of z; the authors' code
    asks for gamma / beta (`gamma_beta_ratio`). "hinge" is max(0, 1 - z), which has no label
    smoothing. TRL's CPO trainer adds a cross-entropy by default (`cpo_alpha` = 1); this function
    does not.
    """
    z_P = beta * (chosen_mean_P - rejected_mean_P) - gamma
    if loss == "sigmoid":
        return _smoothed(z_P, label_smoothing)
    if loss != "hinge":
        raise ValueError(f"loss is 'sigmoid' or 'hinge', not {loss!r}")
    if label_smoothing:
        raise ValueError("label_smoothing needs loss='sigmoid'")
    return torch.relu(1.0 - z_P)


def _smoothed(z_P: Tensor, label_smoothing: float) -> Tensor:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be within 0 and 1, not {label_smoothing}")
    # A side with share 0 is left out: at an infinite margin, 0 times its logarithm would be nan.
    if label_smoothing in (0.0, 1.0):
        return -F.logsigmoid(z_P if label_smoothing == 0.0 else -z_P)
    return -(1.0 - label_smoothing) * F.logsigmoid(z_P) - label_smoothing * F.logsigmoid(-z_P)
