"""The guide's rendezvous and outer loop: a fixed number of ranks that all take part in every mean.

    rendezvous = ObjectStoreAllReduce("s3://bucket/run", rank=0, world_size=4)
    loop = make_diloco_outer_loop(model, rendezvous=rendezvous, sync_every=20)
    for batch in batches:
        ...; optimizer.step(); loop.step()         # every 20th call is an outer step

Every rank waits for every other one. For replicas that come, go and are slow use `recompose train
--replicas` (training/diloco/exchange.py). The arithmetic is the same: outer.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.errors import ConfigError, DataError, SyncError
from composer_replication.training.diloco.blob_store import BlobStore, open_store
from composer_replication.training.diloco.clock import Clock
from composer_replication.training.diloco.codecs import pack, unpack
from composer_replication.training.diloco.flat_weights import FlatWeights
from composer_replication.training.diloco.outer import (
    OuterSettings,
    OuterState,
    mean_gradient,
    outer_step,
)

POLL_S, MAX_POLL_S = 0.02, 2.0


class ObjectStoreAllReduce:
    """The mean of one tensor per rank, through a folder or a bucket.

    >>> alone = ObjectStoreAllReduce("/nowhere", rank=0, world_size=1)
    >>> alone.allreduce(torch.tensor([2.0])).tolist()
    [2.0]
    """

    def __init__(
        self,
        uri: str | Path,
        rank: int,
        world_size: int,
        timeout_s: float = 1800.0,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`uri` is a folder or file://, s3://, gs://, az://; nothing is opened before it is
        used."""
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"rank {rank} of {world_size} does not exist",
                where="ObjectStoreAllReduce",
                fix="ranks are 0 ... world_size - 1",
            )
        text = str(uri)
        self.uri = text if "://" in text else Path(text).absolute().as_uri()
        self.rank, self.world_size, self.timeout_s = rank, world_size, timeout_s
        self._clock = clock or Clock()
        self._store: BlobStore | None = None
        self._calls = 0

    def allreduce(self, tensor: Tensor) -> Tensor:
        """The mean over ranks, summed in rank order; with one rank the tensor itself.

        Raises SyncError after `timeout_s`, naming the ranks that are missing, and for a second
        process with this rank.
        """
        if self.world_size == 1:
            return tensor
        number, self._calls = self._calls, self._calls + 1
        self._offer(number, tensor)
        parts = self._gather(number, tensor)
        if number >= 1:  # all ranks wrote this one, so all have read the one before
            self._opened().delete([_key(number - 1, self.rank)])
        return mean_gradient(parts, [1.0] * self.world_size)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.allreduce(torch.zeros(1))

    def _opened(self) -> BlobStore:
        if self._store is None:
            self._store = open_store(self.uri, clock=self._clock)
        return self._store

    def _offer(self, number: int, tensor: Tensor) -> None:
        flat = {"tensor": tensor.detach().to("cpu", torch.float32).contiguous()}
        blob = pack(flat, {"rank": str(self.rank), "world_size": str(self.world_size)})
        if not self._opened().create(_key(number, self.rank), blob):
            raise SyncError(
                f"rank {self.rank} has written its part {number} already, and another one",
                where=self.uri,
                fix="give each process its own rank, and each run a folder of its own",
            )

    def _gather(self, number: int, tensor: Tensor) -> list[Tensor]:
        found: dict[int, Tensor] = {self.rank: tensor.detach().to("cpu", torch.float32)}
        deadline, pause = self._clock.monotonic() + self.timeout_s, POLL_S
        while True:
            for rank in range(self.world_size):
                if rank not in found and (part := self._read(number, rank, tensor)) is not None:
                    found[rank] = part
            if len(found) == self.world_size:
                return [found[rank] for rank in range(self.world_size)]
            if self._clock.monotonic() > deadline:
                missing = sorted(set(range(self.world_size)) - set(found))
                raise SyncError(
                    f"after {self.timeout_s:g} s the ranks {missing} of {self.world_size} have not"
                    f" written their part {number}",
                    where=self.uri,
                    fix="look at the logs of these replicas; a larger timeout_s waits longer",
                )
            self._clock.sleep(pause)
            pause = min(MAX_POLL_S, pause * 1.5)

    def _read(self, number: int, rank: int, tensor: Tensor) -> Tensor | None:
        key = _key(number, rank)
        blob = self._opened().get(key)
        if blob is None:
            return None
        tensors, about = unpack(blob)
        if int(about["world_size"]) != self.world_size or tensors["tensor"].shape != tensor.shape:
            raise DataError(
                f"rank {rank} wrote {list(tensors['tensor'].shape)} of {about['world_size']} ranks,"
                f" this one has {list(tensor.shape)} of {self.world_size}",
                where=key,
                fix="start every rank with the same model and world_size",
            )
        return tensors["tensor"]


def _key(number: int, rank: int) -> str:
    return f"allreduce/{number:06d}/{rank:04d}"


class DilocoOuterLoop:
    """Counts inner steps, and takes an outer step after every `sync_every`."""

    def __init__(
        self,
        model: Any,
        *,
        rendezvous: ObjectStoreAllReduce,
        sync_every: int,
        settings: OuterSettings,
    ) -> None:
        self.rendezvous, self.sync_every, self.settings = rendezvous, sync_every, settings
        self.weights = FlatWeights.of(model)
        self.state = OuterState.start(self.weights.read())
        self.num_steps = self.num_rounds = 0

    def step(self) -> bool:
        """Call it after each inner optimiser step; returns whether it took an outer step."""
        self.num_steps += 1
        if self.num_steps % self.sync_every:
            return False
        delta = self.state.theta - self.weights.read()
        mean = self.rendezvous.allreduce(delta)
        self.state = outer_step(self.state, mean, settings=self.settings)
        self.weights.write(self.state.theta)
        self.num_rounds += 1
        return True


def make_diloco_outer_loop(
    model: Any,
    *,
    rendezvous: ObjectStoreAllReduce,
    sync_every: int = 20,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
) -> DilocoOuterLoop:
    """The outer loop of DiLoCo over the model's trainable weights, in float32.

    All ranks must start from the same weights. Raises ConfigError for a `sync_every` below 1.
    """
    if sync_every < 1:
        raise ConfigError(f"sync_every = {sync_every} never syncs", fix="use 1 or more")
    settings = OuterSettings(learning_rate=outer_lr, momentum=outer_momentum)
    return DilocoOuterLoop(model, rendezvous=rendezvous, sync_every=sync_every, settings=settings)


def replica_entrypoint(
    *,
    rendezvous_uri: str,
    rank_env: str = "REPLICA_RANK",
    rounds: int = 2,
    sync_every: int = 5,
    timeout_s: float = 600.0,
) -> dict[str, Any]:
    """What the guide's executors start: a small model that each replica trains on its own data.

    It shows that the replicas reach each other and end with the same weights; its result has their
    hash. Hand the executor the dotted name of a function of your own to train something else.
    """
    import os

    from composer_replication.training.diloco.flat_weights import vector_sha256

    rank, world_size = int(os.environ[rank_env]), int(os.environ["REPLICA_WORLD_SIZE"])
    rendezvous = ObjectStoreAllReduce(rendezvous_uri, rank, world_size, timeout_s)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loop = make_diloco_outer_loop(model, rendezvous=rendezvous, sync_every=sync_every)
    data = torch.Generator().manual_seed(rank + 1)
    loss = torch.zeros(())
    while loop.num_rounds < rounds:
        x = torch.randn(32, 8, generator=data)
        loss = (model(x)[:, 0] - x.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loop.step()
    sha256 = vector_sha256(loop.weights.read())
    return {"rank": rank, "rounds": rounds, "weights_sha256": sha256, "loss": loss.item()}
