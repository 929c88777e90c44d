"""Settings of replicas that train apart and meet over an object store (docs/replicas.md)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from composer_replication.core.config.base import Settings


class SyncSettings(Settings):
    """DiLoCo: every replica trains alone for `every` steps, then all meet at a store. Replicas of
    one store must agree on these, except url, slot, takeover and the waiting times."""

    url: str = ""
    """Where replicas meet: file:///folder, s3://bucket/run, gs://bucket/run or az://container/run;
    "" = no replicas. One folder per run. Short: --sync URL."""
    every: int = Field(default=5, gt=0)
    """Optimiser steps between two meetings (H). For rollouts start low: other replicas' steps make
    what was sampled off-policy. train.steps has to be a multiple."""
    outer: Literal["nesterov", "average"] = "nesterov"
    """The outer optimiser on the mean of the replicas' moves: Nesterov momentum as published (rate
    0.7, momentum 0.9), or their average (rate 1, no momentum), the gentler one for rollouts."""
    learning_rate: float = Field(default=0.0, ge=0.0)
    """Rate of the outer step; 0 = that of `outer`."""
    token_weights: bool = False
    """Weigh replicas by the loss tokens that they trained on; false = equally."""
    codec: Literal["none", "bf16", "int8", "int4", "topk", "visible"] = "none"
    """How moves are sent: none = float32; int8 and int4 in blocks; topk = the 64 largest of 4096;
    visible = where a weight's bfloat16 value changes. What is left out is fed back."""
    gather: Literal["peer", "publisher", "tree"] = "peer"
    """"peer": everyone reads everyone's move; "publisher": one reads them and writes the mean;
    "tree": groups of `fanout` are added up, then groups of groups, for dozens of replicas and
    more."""
    fanout: int = Field(default=4, gt=1)
    """How many moves or sums are added up at each node of a tree, which has as many levels as
    `replicas` needs; with no more replicas than this it is "publisher"."""
    fragments: int = Field(default=1, gt=0)
    """Meet about one of so many parts of the weights at a time, for lower peaks of traffic."""
    replicas: int = Field(default=1, gt=0)
    """How many replicas the first round waits for, as long as grace_s; set by --replicas."""
    quorum: int = Field(default=1, gt=0)
    """Fewest replicas that may end a round."""
    grace_s: float = Field(default=600.0, gt=0.0)
    """How long a round waits for the others, once a quorum is there."""
    recent: int = Field(default=2, gt=0)
    """A replica that took part in none of so many last rounds is not waited for any more."""
    stall_s: float = Field(default=7200.0, gt=0.0)
    """Give up after waiting so long for a round."""
    anchor_every: int = Field(default=8, gt=0)
    """Rounds between two whole states in the store, from which replicas join."""
    max_norm_ratio: float = Field(default=10.0, gt=1.0)
    """Refuse a move that is longer than this many times the round's median."""
    slot: int = Field(default=-1, ge=-1)
    """This replica's number, which decides what data it draws; -1 = the lowest free one."""
    takeover: bool = False
    """Take `slot` although a replica holds it: it is dead."""

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
