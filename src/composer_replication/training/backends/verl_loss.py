"""The losses of a step on the logits of verl's forward.

verl calls one function twice per micro-batch: first as its logits processor, with the logits (1, M,
V) of all rows, then for the loss. The first call computes every channel with `losses_on`
(forwards/channels.py), as the reference trainer does: the logits take the place of the hidden
states, under a head that changes nothing. Each loss is walked back to detached copies of the logits
that predict its tokens, where its gradient norm is taken; the second call returns a loss whose
gradient at the logits is the sum, for verl to walk the model back.

verl averages gradients over its ranks, so the loss is multiplied by their number. No verl and no
tensordict here. Shapes: M tokens of a forward, N loss tokens, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.losses.channel import ChannelLoss
from composer_replication.models.forward import Head
from composer_replication.tokens.batch import Counts, Rows, Targets
from composer_replication.training.backends.verl_rows import MicroRows
from composer_replication.training.forwards.channels import CHANNEL_METRICS, losses_on
from composer_replication.training.forwards.passes import ForwardResults, Kind

StartLogits = Callable[[Sequence[tuple[Rows, Targets]]], Sequence[Tensor]]
"""The logits (N, V) that the start weights predict some tokens with, for each (rows, targets)."""


@dataclass(frozen=True, slots=True)
class LogitsHead:
    """The head of logits: it changes nothing (losses/fused.py)."""

    weight_VD: None = None
    bias_V: None = None
    scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitModels:
    """What `losses_on` reads of models whose logits are at hand (`ChannelModels`)."""

    settings: TrainSettings
    taid_t: float

    def student_head(self) -> LogitsHead:
        """The logits are the student's."""
        return LogitsHead()

    def teacher_heads(self) -> list[LogitsHead]:
        """One teacher: live or frozen."""
        return [LogitsHead()]

    def reference_head(self) -> LogitsHead:
        """The logits are the start's."""
        return LogitsHead()


@dataclass(slots=True, kw_only=True)
class StepLosses:
    """One step of one rank: its micro-batches, and what its losses add up to.

    `scales` is None if only losses and norms are measured. `head` projects hidden states to the
    logits: a channel's norm is taken below it, as in the reference trainer. `rank_factor` is the
    number of ranks over which verl averages.
    """

    models: LogitModels
    counts: Counts
    micros: Sequence[MicroRows]
    scales: Mapping[Channel, float] | None
    head: Head
    start_logits: StartLogits | None
    sums: Tensor
    metric_sums: Tensor
    rank_factor: int = 1

    @classmethod
    def of(cls, *, device: torch.device, **fields: Any) -> StepLosses:
        """With all sums at zero: tokens, loss and squared norm per channel; sum and number of
        values per metric."""
        return cls(
            sums=torch.zeros(len(CHANNELS), 3, dtype=torch.float64, device=device),
            metric_sums=torch.zeros(len(CHANNEL_METRICS), 2, dtype=torch.float64, device=device),
            **fields,
        )

    def loss(self, number: int, logits_MV: Tensor, ids_M: Tensor) -> Tensor:
        """The loss of micro-batch `number` on the logits of its forward; raises AlignmentError if
        the forward held other rows."""
        micro = self.micros[number]
        wanted_M = torch.tensor([i for row in micro.rows for i in row], device=ids_M.device)
        if not torch.equal(ids_M[: len(wanted_M)], wanted_M):
            raise AlignmentError(f"verl moved the rows of micro-batch {number}")
        batch = micro.batch.to(logits_MV.device)
        # logits of the start weights: every rank asks once per micro-batch, with rows or without
        start = [] if self.start_logits is None else list(self.start_logits(micro.start))
        forwards = self._forwards(micro, logits_MV, start)
        with torch.enable_grad():
            losses = losses_on(
                self.models,
                batch,
                forwards=forwards,
                required=micro.required,
                counts=self.counts,
            )
            for channel_loss in losses:
                self._walk_back(channel_loss, [leaf for _, leaf in forwards.leaves or ()])
        total = logits_MV[:1].sum() * 0.0  # verl walks every rank's forward back
        for hidden_NV, leaf_NV in forwards.leaves or ():
            if leaf_NV.grad is not None and hidden_NV.requires_grad:
                total = total + (hidden_NV * leaf_NV.grad).sum()
        value = sum(
            (self.scales or {}).get(channel_loss.name, 0.0)
            * float(channel_loss.mean_part().detach())
            for channel_loss in losses
        )
        return (total - total.detach() + value) * self.rank_factor

    def _forwards(self, micro: MicroRows, logits_MV: Tensor, start: list[Tensor]) -> ForwardResults:
        """The logits in the place of hidden states, as detached leaves."""
        batch, device = micro.batch.to(logits_MV.device), logits_MV.device
        places: dict[Kind, tuple[int, Tensor]] = {
            cast(Kind, kind): (0, micro.index(kind, rows.ids_BT[:number]).to(device))
            for kind, rows, number in (
                ("student", batch.student, len(batch.student) * micro.required.student),
                ("pair", batch.pair, micro.required.sides),
            )
            if number
        }
        reference_NV = start.pop() if micro.required.reference else None
        teachers = tuple(start)
        if micro.live and micro.required.hint:
            live = [("teacher", batch.teacher, batch.hint_teacher)]
            if len(batch.wrong):
                live.append(("wrong", batch.wrong, batch.hint_wrong))
            teachers = tuple(
                logits_MV.detach()[targets.predictors(micro.index(kind, rows.ids_BT).to(device))]
                for kind, rows, targets in live
            )
        return ForwardResults(
            hidden=(logits_MV[None],),
            places=places,
            teachers=teachers,
            reference_ND=reference_NV,
        ).detached_leaves()

    def _walk_back(self, channel_loss: ChannelLoss, leaves: list[Tensor]) -> None:
        """Add a channel to the sums, and its gradient to the leaves that are its own."""
        mean, row = channel_loss.mean_part(), self.sums[CHANNELS.index(channel_loss.name)]
        row[0] += channel_loss.tokens
        row[1] += mean.detach()
        for key, value_N in channel_loss.metrics.items():
            place = CHANNEL_METRICS.index((channel_loss.name, key))
            self.metric_sums[place] += torch.stack(
                [value_N.double().sum(), self.metric_sums.new_tensor(len(value_N))]
            )
        scale = 1.0 if self.scales is None else self.scales.get(channel_loss.name, 0.0)
        if not mean.requires_grad or not scale:
            return
        untouched = [leaf for leaf in leaves if leaf.grad is None]
        mean.backward(torch.full_like(mean, scale))
        for leaf in untouched:
            if leaf.grad is not None:
                row[2] += self._hidden_square(leaf) / scale**2

    def _hidden_square(self, leaf_NV: Tensor) -> Tensor:
        """The squared norm of a gradient at the hidden states below the head."""
        grad_NV = cast(Tensor, leaf_NV.grad).float()
        if self.head.softcap:
            grad_NV = grad_NV * (1.0 - (leaf_NV.detach().float() / self.head.softcap) ** 2)
        grad_ND = grad_NV.to(self.head.weight_VD.dtype) @ self.head.weight_VD * self.head.scale
        return grad_ND.double().square().sum()
