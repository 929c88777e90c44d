"""Settings of replicas that sync through an object store (docs/replicas.md)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings


class SyncSettings(Settings):
    """DiLoCo: replicas train separately for `every` steps, then sync through an object store.
    Replicas of one store must agree on these settings, except url, slot, takeover and the waiting
    times."""

    url: str = ""
    """Object store through which replicas sync: file:///folder, s3://bucket/run, gs://bucket/run or
    az://container/run; "" = no replicas. Use one folder per run. Short: --sync URL."""
    every: int = Field(default=5, gt=0)
    """Optimiser steps between syncs (H). Start low with rollouts: the steps of other replicas make
    the sampled data off-policy. train.steps must be a multiple of it."""
    outer: Literal["nesterov", "average"] = "nesterov"
    """Outer optimiser on the mean pseudo-gradient: Nesterov momentum as published (rate 0.7,
    momentum 0.9), or plain averaging (rate 1, no momentum), which is gentler with rollouts."""
    learning_rate: float = Field(default=0.0, ge=0.0)
    """Learning rate of the outer step; 0 = that of `outer`."""
    token_weights: bool = False
    """Weight replicas by the number of loss tokens that they trained on; false = equally."""
    codec: Literal["none", "bf16", "int8", "int4", "topk", "visible"] = "none"
    """Encoding of the pseudo-gradients: none = float32; int8 and int4 in blocks; topk = the 64
    largest of 4096; visible = only where a weight's bfloat16 value changes. What is left out is
    added to the next one (error feedback)."""
    gather: Literal["peer", "publisher", "tree"] = "peer"
    """"peer" = every replica reads every pseudo-gradient; "publisher" = one replica reads them and
    writes the mean; "tree" = sums over groups of `fanout`, then over groups of groups, for dozens
    of replicas and more."""
    fanout: int = Field(default=4, gt=1)
    """Pseudo-gradients or sums added up at each node of a tree, which has as many levels as
    `replicas` needs. With no more replicas than this, it is "publisher"."""
    fragments: int = Field(default=1, gt=0)
    """Number of parts the weights are split into. Each sync covers one part, which lowers traffic
    peaks."""
    replicas: int = Field(default=1, gt=0)
    """Replicas that the first round waits for, for at most grace_s. Set by --replicas."""
    quorum: int = Field(default=1, gt=0)
    """Minimum number of replicas that may end a round."""
    grace_s: float = Field(default=600.0, gt=0.0)
    """Seconds a round waits for the other replicas once there is a quorum."""
    recent: int = Field(default=2, gt=0)
    """A replica that took part in none of this many last rounds is no longer waited for."""
    stall_s: float = Field(default=7200.0, gt=0.0)
    """Give up after waiting this many seconds for a round."""
    anchor_every: int = Field(default=8, gt=0)
    """Rounds between anchors (complete states in the store), from which replicas join."""
    max_norm_ratio: float = Field(default=10.0, gt=1.0)
    """Refuse a pseudo-gradient whose norm exceeds this multiple of the round's median."""
    slot: int = Field(default=-1, ge=-1)
    """Number of this replica, which decides what data it draws; -1 = the lowest free one."""
    takeover: bool = False
    """Take `slot` although another replica holds it. Set this only if that replica is dead."""

    @model_validator(mode="after")
    def _a_taken_slot_is_named(self) -> Self:
        if self.takeover and self.slot < 0:
            raise ValueError(
                "takeover needs the slot that is to be taken; set train.sync.slot, or takeover ="
                " false"
            )
        return self


OWN = ("url", "slot", "takeover", "grace_s", "stall_s", "replicas")
"""The settings in which replicas of one store may differ."""
THIS_MACHINE = ("micro_tokens", "tile", "offload", "checkpoint", "keep_checkpoints", "layout")
"""The settings of [train] that decide what fits onto a machine: same losses and gradients."""
