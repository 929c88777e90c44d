"""One replica of DiLoCo: local weights, and the error feedback of its pseudo-gradients.

shared_training.py calls `sync` after every train.sync.every optimiser steps:

    replica = Replica(exchange, rounded=flat.rounded)
    flat.write(replica.base)
    ...                                               # H optimiser steps
    result = replica.sync(flat.read(), tokens=4096, steps=20)
    flat.write(result.weights)

Error feedback: what a lossy codec leaves out of a pseudo-gradient, and one that came too late for
its round, is added to the next one. One that was rejected (not finite, a norm far above the others)
is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from composer_replication.core.errors import StoppedError
from composer_replication.training.diloco.blob_store import Traffic
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.round_offers import UNREADABLE
from composer_replication.training.diloco.round_records import Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The outcome of one sync.

    `weights` are those to train on from here; they may be the exchange's own tensor, so do not
    write to them. `round` is the round that begins. `commits` are those of the rounds that ended:
    the one that this replica offered for, and later ones that it had missed. `contributed` says
    whether its pseudo-gradient is in the first, `refused` why it was rejected ("" if it came too
    late). `seconds` is the length of the sync, `wait_s` the part after its offer.
    """

    weights: Tensor
    round: int
    commits: tuple[Commit, ...]
    theta_sha256: str
    contributed: bool
    refused: str
    traffic: Traffic
    seconds: float
    wait_s: float
    delta_norm: float
    residual_norm: float

    @property
    def missed(self) -> int:
        """The number of rounds that ended without this replica's pseudo-gradient."""
        return self.round - self.commits[0].round - int(self.contributed)


class Replica:
    """A member of the exchange with its local weights and its error feedback."""

    def __init__(
        self, exchange: Exchange, *, rounded: Callable[[Tensor], Tensor] = lambda theta: theta
    ) -> None:
        """`rounded` maps float32 weights to what the model stores of them, e.g. in bfloat16."""
        self.exchange, self._rounded = exchange, rounded
        self.base = rounded(exchange.state.theta).clone()
        """The weights after the last sync of each fragment: pseudo-gradients are `base` minus the
        local weights."""
        self.residual = torch.zeros_like(exchange.state.theta)

    def sync(self, local: Tensor, *, tokens: int, steps: int) -> SyncResult:
        """Take part in the current round with the local weights after `steps` optimiser steps on
        `tokens` loss tokens.

        Raises StoppedError if they are not finite, SlotTakenError if the slot was taken over,
        SyncError if the store fails or the replicas' weights differ.
        """
        exchange = self.exchange
        began, before = exchange.clock.monotonic(), exchange.store.traffic.copy()
        part = exchange.part
        owed = self.base[part] - local[part]
        delta_norm = float(owed.norm())
        # a norm may overflow although every number is finite
        if not (math.isfinite(delta_norm) or bool(torch.isfinite(owed).all())):
            raise StoppedError(
                f"the replica's weights are not finite before round {exchange.round}",
                where="not_finite",
                fix="lower train.learning_rate, or use student.dtype = float32",
            )
        owed += self.residual[part]
        commit, sent, offered_at = exchange.committed_before_offer(), None, began
        if commit is None:
            sent = exchange.offer(owed, tokens=tokens, steps=steps)
            offered_at = exchange.clock.monotonic()
            commit = exchange.settle()
        waited_s = exchange.clock.monotonic() - offered_at
        contributed = any(offer.uuid == exchange.claim.uuid for offer in commit.offers)
        refused = "" if contributed else commit.refused.get(exchange.claim.uuid, "")
        if contributed and sent is not None:
            self.residual[part] = 0.0 if sent is owed else owed - sent
        else:
            is_fine = not refused or refused.startswith(UNREADABLE)
            self.residual[part] = owed if is_fine else 0.0
        commits, weights = self._catch_up(commit, local, contributed=contributed)
        return SyncResult(
            weights=weights,
            round=exchange.round,
            commits=tuple(commits),
            theta_sha256=exchange.theta_sha256,
            contributed=contributed,
            refused=refused,
            traffic=exchange.store.traffic.since(before),
            seconds=exchange.clock.monotonic() - began,
            wait_s=waited_s,
            delta_norm=delta_norm,
            residual_norm=float(self.residual.norm()),
        )

    def _catch_up(
        self, commit: Commit, local: Tensor, *, contributed: bool
    ) -> tuple[list[Commit], Tensor]:
        """Apply the round's commit, and those of later rounds that this replica has missed; returns
        these commits, and the weights to go on with."""
        exchange, commits = self.exchange, [commit]
        if exchange.spec.fragments > 1:
            local = local.clone()
            self.base[exchange.part] = local[exchange.part]  # this part is accounted for
        local = self._take(commit, local)
        if contributed:
            return commits, local
        exchange.check_slot()
        while (later := exchange.committed()) is not None:
            commits.append(later)
            local = self._take(later, local)
        return commits, local

    def _take(self, commit: Commit, local: Tensor) -> Tensor:
        """Apply a commit and return the weights to go on with.

        With fragments only the commit's part of `local` is replaced; what was trained on it since
        its last sync goes into the residual.
        """
        exchange, part = self.exchange, self.exchange.part
        exchange.apply(commit)
        if exchange.spec.fragments == 1:
            self.base = self._rounded(exchange.state.theta)
            return self.base
        if exchange.round != commit.round + 1:  # from an anchor: every part is new
            part = slice(None)
        self.residual[part] += self.base[part] - local[part]
        local[part] = self._rounded(exchange.state.theta)[part]
        self.base[part] = local[part]
        return local
