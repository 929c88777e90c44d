"""Our fused JSD against the common libraries for it: equal values, equal gradients of hidden states
and head."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.train
POSITIONS, HIDDEN, VOCAB = 37, 16, 211
# hidden (N, D), teacher (N, D), head (V, D) -> mean over positions
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(hidden_ND: Tensor, teacher_ND: Tensor, weight_VD: Tensor) -> Tensor:
    from composer_replication.losses.fused import fused_divergence
    from composer_replication.models.forward import Head

    heads = Head(weight_VD=weight_VD), Head(weight_VD=weight_VD.detach())
    return fused_divergence(
        hidden_ND, heads[0], teacher_ND, heads[1], divergence="jsd", beta=0.3, raw=True
    ).mean()


def liger(hidden_ND: Tensor, teacher_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """Its beta weighs the teacher too; chunks that do not divide the positions."""
    loss = pytest.importorskip(
        "liger_kernel.chunked_loss", reason="`make peers` installs it"
    ).LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.3, compiled=False, chunk_size=8
    )
    return loss(
        hidden_ND,
        weight_VD,
        teacher_ND,
        weight_VD.detach(),
        torch.ones(len(hidden_ND), dtype=torch.long),
    )


def trl_chunked(hidden_ND: Tensor, teacher_ND: Tensor, weight_VD: Tensor) -> Tensor:
    """Of its DistillationTrainer; it returns the divergence of every position and the student's
    entropy."""
    kernels = pytest.importorskip(
        "trl.kernels.chunked_divergence", reason="`make peers` installs it"
    )
    return kernels.ChunkedDivergenceFunction.apply(
        hidden_ND, weight_VD, None, teacher_ND, weight_VD.detach(), None, 0.3
    )[0].mean()


@pytest.mark.parametrize("peer", [liger, trl_chunked])
def test_value_and_gradients_are_the_peers(peer: Loss) -> None:
    torch.manual_seed(0)
    teacher_ND, results = torch.randn(POSITIONS, HIDDEN), []
    start_ND, head_VD = (
        teacher_ND + 0.3 * torch.randn(POSITIONS, HIDDEN),
        torch.randn(VOCAB, HIDDEN),
    )
    for loss in (ours, peer):
        hidden_ND, weight_VD = start_ND.clone().requires_grad_(), head_VD.clone().requires_grad_()
        value = loss(hidden_ND, teacher_ND, weight_VD)
        results.append((value.detach(), *torch.autograd.grad(value, (hidden_ND, weight_VD))))
    for mine, theirs in zip(*results, strict=True):
        assert float((mine - theirs).norm()) <= 1e-5 * float(theirs.norm())
