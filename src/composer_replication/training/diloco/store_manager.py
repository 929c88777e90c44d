"""A manager for `torchft.local_sgd.DiLoCo` that meets in a folder or bucket, without a Lighthouse.

    manager = ObjectStoreManager(open_store("s3://bucket/run"), slot=0, replicas=4)
    diloco = DiLoCo(manager, fragments, inner, outer, sync_every=20)       # torchft's own
    manager.start()                    # before the first step: join, and take over a running state

It has the part of torchft.Manager that DiLoCo calls. The tensors of a round's all-reduces are one
pseudo-gradient of the exchange (exchange.py): quorum, grace, slots, damaged blobs and equal bits
are its rules. The exchange carries means, torchft takes the outer step, so a late replica cannot
replay the rounds: the lowest slot of each commit writes a snapshot of all registered states.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from composer_replication.core.errors import ConfigError, SyncError
from composer_replication.training.diloco.blob_store import BlobStore, open_store
from composer_replication.training.diloco.clock import Clock
from composer_replication.training.diloco.exchange import Exchange
from composer_replication.training.diloco.flat_weights import schema_sha256
from composer_replication.training.diloco.guide_allreduce import ObjectStoreAllReduce
from composer_replication.training.diloco.polling import Timing
from composer_replication.training.diloco.round_offers import GoneError
from composer_replication.training.diloco.round_records import Commit, Spec

Load: TypeAlias = Callable[[Any], None]
Save: TypeAlias = Callable[[], Any]
_KEPT_SNAPSHOTS = 3


class ObjectStoreManager:
    """torchft's manager over a store, as far as `torchft.local_sgd.DiLoCo` needs one."""

    _use_async_quorum = False

    def __init__(
        self,
        store: BlobStore,
        *,
        slot: int | None = None,
        replicas: int = 1,
        quorum: int = 1,
        takeover: bool = False,
        codec: str = "none",
        agreed: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        clock: Clock | None = None,
        load_state_dict: Load | None = None,
        state_dict: Save | None = None,
    ) -> None:
        """`agreed` are hashes that all replicas must share, e.g. of their start weights."""
        self._store, self._slot, self._takeover = store, slot, takeover
        self._codec, self._agreed = codec, dict(agreed or {})
        self._replicas, self._quorum = replicas, quorum
        self._timing, self._clock = timing or Timing(), clock or Clock()
        self._states: dict[str, tuple[Load, Save]] = {}
        self._exchange: Exchange | None = None
        self._pending: list[Tensor] = []
        self._owed: Tensor | None = None
        self._sent: Tensor | None = None
        self._commit: Commit | None = None
        self._snapshot_due = self._check_due = self._finished = False
        self._residuals: dict[tuple[int, ...], Tensor] = {}
        if load_state_dict is not None and state_dict is not None:
            self.register_state_dict_fn("default", load_state_dict, state_dict)

    # ---- what DiLoCo calls ----

    def register_state_dict_fn(self, key: str, load: Load, save: Save) -> None:
        """Count a state as part of what a late replica takes over."""
        self._states[key] = (load, save)

    def disallow_state_dict_read(self) -> None:
        """Before an inner step: what the last round has left to do, and a round's offer."""
        self.start()
        if self._pending and self._owed is None:
            self._offer()  # so that it travels while the replica trains on (fragment_sync_delay)
        if self._snapshot_due:
            self._snapshot_due = False
            self._write_snapshot()
        if self._check_due:
            self._check_due = False
            if self._joined().committed() is not None:  # the others are rounds ahead
                self._take_over()

    def allow_state_dict_read(self) -> None:
        """Nothing reads the state from outside."""

    def start_quorum(self) -> None:
        """Begin a round's all-reduces."""
        self.start()
        self._pending, self._owed, self._sent, self._commit = [], None, None, None
        self._finished = False

    def current_step(self) -> int:
        """How many rounds were committed."""
        return self._exchange.round if self._exchange else 0

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> StoreWork:
        """Add a tensor to the round; it holds the mean once its work was waited for."""
        if should_quantize:
            raise ConfigError(
                "should_quantize is torchft's own, and does nothing without Triton",
                fix="give the manager a codec: codec='int8'",
            )
        self._pending.append(tensor)
        return StoreWork(self)

    def should_commit(self) -> bool:
        """End the round; False if the state had to be taken over from the others instead."""
        exchange, commit = self._joined(), self._settled()
        exchange.apply(commit)
        self._pending, self._owed = [], None
        if exchange.round != commit.round + 1:  # the round's blobs were gone already
            self._take_over()
            return False
        self._snapshot_due = exchange.claim.slot == min(commit.slots)
        self._check_due = exchange.claim.slot not in commit.slots
        return True

    # ---- beside it ----

    def start(self) -> None:
        """Join the exchange; if rounds were committed before, take over the others' state."""
        if self._exchange is not None:
            return
        sizes = self._fragment_sizes()
        weights = [(key, [size], "float32") for key, size in sorted(sizes.items())]
        spec = Spec(
            weights=weights,
            schema_sha256=schema_sha256(weights),
            identity=self._agreed,
            learning_rate=1.0,
            momentum=0.0,
            codec=self._codec,
            replicas=self._replicas,
            quorum=self._quorum,
        )
        self._exchange = Exchange.join(
            self._store,
            spec,
            start=torch.zeros(max(sizes.values())),
            slot=self._slot,
            takeover=self._takeover,
            clock=self._clock,
            timing=self._timing,
        )
        if self._exchange.round > 0:
            self._take_over()

    def num_participants(self) -> int:
        """How many replicas took part in the last round."""
        history = self._exchange.history if self._exchange else []
        return len(history[-1]) if history else 0

    def shutdown(self, wait: bool = True) -> None:
        """Write what is due, and leave: nobody waits for this replica any more."""
        if self._exchange is None:
            return
        if self._snapshot_due:
            self._write_snapshot()
        self._exchange.leave()
        self._exchange = None

    def _joined(self) -> Exchange:
        if self._exchange is None:
            raise SyncError("the manager has not joined", fix="call manager.start() first")
        return self._exchange

    def _fragment_sizes(self) -> dict[str, int]:
        """How many numbers each fragment has, by what DiLoCo registered."""
        found = {key: save() for key, (_, save) in self._states.items()}
        sizes = {
            key: sum(p.numel() for p in state["original_parameters"].values())
            for key, state in found.items()
            if isinstance(state, dict) and "original_parameters" in state
        }
        if not sizes:
            raise ConfigError(
                "no fragment is registered", fix="make torchft's DiLoCo with this manager first"
            )
        return sizes

    def _offer(self) -> None:
        """Publish the round's tensors as one pseudo-gradient, padded to the largest fragment."""
        exchange = self._joined()
        flat = torch.cat([t.detach().to("cpu", torch.float32).reshape(-1) for t in self._pending])
        if flat.numel() > exchange.state.theta.numel():
            raise SyncError(
                f"a round of {flat.numel()} numbers, fragments have at most"
                f" {exchange.state.theta.numel()}",
                fix="hand each tensor to allreduce once a round",
            )
        padded = torch.zeros_like(exchange.state.theta)
        padded[: flat.numel()] = flat
        kept = self._residuals.get(self._shape())
        self._owed = padded if kept is None else padded + kept
        self._commit = exchange.committed()
        if self._commit is None:
            self._sent = exchange.offer(self._owed, tokens=1, steps=1)

    def _settled(self) -> Commit:
        if self._owed is None:
            self._offer()
        if self._commit is None:
            self._commit = self._joined().settle()
        return self._commit

    def finish_round(self) -> None:
        """Put the mean into the round's tensors, once; what of the own part is missing is kept."""
        if self._finished:
            return
        exchange, commit = self._joined(), self._settled()
        self._finished = True
        try:
            mean = exchange.mean(commit)
        except GoneError:
            return  # should_commit takes over a later state
        offset = 0
        for tensor in self._pending:
            part = mean[offset : offset + tensor.numel()]
            tensor.copy_(part.view(tensor.shape))
            offset += tensor.numel()
        contributed = any(offer.uuid == exchange.claim.uuid for offer in commit.offers)
        owed, sent = self._owed, self._sent
        if owed is not None:
            refused = exchange.claim.uuid in commit.refused
            left = owed - sent if contributed and sent is not None else owed
            self._residuals[self._shape()] = torch.zeros_like(owed) if refused else left

    def _shape(self) -> tuple[int, ...]:
        """What tells a round's fragment from the others: whose turn it is, and its sizes."""
        turn = self.current_step() % max(1, len(self._fragment_sizes()))
        return (turn, *(tensor.numel() for tensor in self._pending))

    def _write_snapshot(self) -> None:
        exchange, buffer = self._joined(), io.BytesIO()
        torch.save({key: save() for key, (_, save) in self._states.items()}, buffer)
        self._store.create(_snapshot_key(exchange.round), buffer.getvalue())
        self._store.delete([_snapshot_key(exchange.round - _KEPT_SNAPSHOTS)])

    def _take_over(self) -> None:
        """Go to the newest round, and load the state that its replicas have."""
        exchange, clock = self._joined(), self._clock
        deadline, pause = clock.monotonic() + self._timing.stall_s, self._timing.poll_s
        while True:
            while (commit := exchange.committed()) is not None:
                exchange.apply(commit)
            blob = self._store.get(_snapshot_key(exchange.round))
            if blob is not None:
                break
            if clock.monotonic() > deadline:
                raise SyncError(
                    f"round {exchange.round} has no snapshot after {self._timing.stall_s:g} s",
                    where=_snapshot_key(exchange.round),
                    fix="see that a replica that took part in it is still alive",
                )
            clock.sleep(pause)
            pause = min(self._timing.max_poll_s, pause * 1.5)
        states = torch.load(io.BytesIO(blob), weights_only=True)
        for key, (load, _) in self._states.items():
            load(states[key])
        self._residuals.clear()  # what was owed was taken at other weights


class StoreWork:
    """A tensor's part of a round, with the methods of a torch Work that DiLoCo calls."""

    def __init__(self, manager: ObjectStoreManager) -> None:
        self._manager = manager

    def wait(self, timeout: Any = None) -> bool:
        """Wait for the round's outcome; the first wait of a round does it for all its tensors."""
        self._manager.finish_round()
        return True


class MockManager(ObjectStoreManager):
    """The guide's name: the manager of one rank of an ObjectStoreAllReduce."""

    def __init__(self, rendezvous: ObjectStoreAllReduce) -> None:
        timing = Timing(grace_s=rendezvous.timeout_s, stall_s=rendezvous.timeout_s)
        super().__init__(
            open_store(f"{rendezvous.uri.rstrip('/')}/manager"),
            slot=rendezvous.rank,
            replicas=rendezvous.world_size,
            quorum=rendezvous.world_size,
            timing=timing,
        )


def _snapshot_key(number: int) -> str:
    return f"snapshots/{number:06d}.pt"
