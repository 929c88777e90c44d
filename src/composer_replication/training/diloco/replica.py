"""One replica: its own weights between two rounds, and what of them was not sent yet.

    replica = Replica(exchange, rounded=flat.rounded)
    flat.write(replica.base)
    ...                                               # H optimiser steps
    result = replica.sync(flat.read(), tokens=4096, steps=20)
    flat.write(result.weights)

Error feedback: what a codec leaves out, and a pseudo-gradient that came too late for its round, are
kept and added to the next one. One that was refused (not finite, exploding) is dropped.
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
    """What one sync did: the weights to go on with, and what it cost.

    `weights` may be the exchange's own: nobody writes to them. `commits` are the rounds that ended,
    this replica's first; `contributed` says whether its pseudo-gradient is in that one, `refused`
    why not if it was turned down. `wait_s` is the part of `seconds` after the own offer.
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
        """How many rounds ended without this replica."""
        return self.round - self.commits[0].round - int(self.contributed)


class Replica:
    """A member of the exchange with its local weights and its error feedback."""

    def __init__(
        self, exchange: Exchange, *, rounded: Callable[[Tensor], Tensor] = lambda theta: theta
    ) -> None:
        """`rounded` says what the model keeps of float32 weights (all of it, by default)."""
        self.exchange, self._rounded = exchange, rounded
        self.base = rounded(exchange.state.theta).clone()
        """The local weights after the last sync of each part: where pseudo-gradients begin."""
        self.residual = torch.zeros_like(exchange.state.theta)

    def sync(self, local: Tensor, *, tokens: int, steps: int) -> SyncResult:
        """Take part in the round with the weights after `steps` local steps.

        Raises StoppedError if they are not finite, SlotTakenError if the slot was taken over,
        SyncError if the store fails or the replicas' weights differ.
        """
        exchange = self.exchange
        began, before = exchange.clock.monotonic(), exchange.store.traffic.copy()
        part = exchange.part
        owed = self.base[part] - local[part]
        delta_norm = float(owed.norm())
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
        """Apply the round's outcome, and those of later rounds that this replica has missed;
        returns them, and the weights to go on with."""
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
        """Apply a commit, and go on from its weights; what was trained on them is kept."""
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
