"""The preference channel: DPO (arXiv 2305.18290) on pairs. It is in no Composer publication.

DPO alone says only that chosen gains on rejected; both may fall, and habits that no pair speaks about drift. The cross-entropy of
anchors (training/channels.py) holds them. `margins` is what DPO pushes up.

Shapes: P pairs, S sequences, N tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sequence_logprobs(logp_N: Tensor, sequence_N: Tensor, *, num_sequences: int) -> Tensor:
    """Sum of the token log-probs of each sequence; `sequence_N` says to which sequence a token belongs.

    >>> sequence_logprobs(torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([0, 0, 1]), num_sequences=2).tolist()
    [-3.0, -4.0]

    Raises ValueError for a sequence without a token: its preference would be a constant without gradient.
    """
    if num_sequences and int(torch.bincount(sequence_N, minlength=num_sequences).min()) == 0:
        raise ValueError("a sequence without a response token")
    return torch.zeros(num_sequences, dtype=logp_N.dtype, device=logp_N.device).index_add(0, sequence_N, logp_N)


def margins(chosen_P: Tensor, rejected_P: Tensor, ref_chosen_P: Tensor, ref_rejected_P: Tensor) -> Tensor:
    """By how many nats each pair's chosen side gained more on the reference than its rejected side did.

    >>> margins(torch.tensor([-2.0]), torch.tensor([-5.0]), torch.tensor([-3.0]), torch.tensor([-4.0])).tolist()
    [2.0]
    """
    return (chosen_P - ref_chosen_P.detach()) - (rejected_P - ref_rejected_P.detach())


def dpo(
    chosen_P: Tensor, rejected_P: Tensor, ref_chosen_P: Tensor, ref_rejected_P: Tensor, *, beta: float, label_smoothing: float = 0.0
) -> Tensor:
    """DPO loss of each pair from sequence log-probs (sums over response tokens); the reference gets no gradient.

    >>> p = torch.tensor([-3.0]); dpo(p, p, p, p, beta=0.1).tolist()  # policy = reference: log 2
    [0.6931471824645996]

    With z = beta * margin the loss is -(1 - e) log sigmoid(z) - e log sigmoid(-z), where
    e = `label_smoothing` is the assumed share of swapped pairs.
    """
    z_P = beta * margins(chosen_P, rejected_P, ref_chosen_P, ref_rejected_P)
    return -(1.0 - label_smoothing) * F.logsigmoid(z_P) - label_smoothing * F.logsigmoid(-z_P)
