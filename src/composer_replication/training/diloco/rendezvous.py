"""How a replica joins a run in the store: it agrees on a spec, claims a slot, and loads an anchor.

The spec holds the settings that all replicas must share. A slot is a replica's number; it belongs
to the claim with its highest epoch, and is free if that was released or nobody claimed it. A
replica takes a held slot only with `takeover`, which says that the holder is dead: if the holder is
alive after all, its offers no longer count and it stops. An anchor is a checkpoint of weights and
momentum, for replicas that join later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from composer_replication.core.errors import ConfigError, DataError, SlotTakenError, SyncError
from composer_replication.core.rundir import diff_settings
from composer_replication.training.diloco.blob_store import BlobStore
from composer_replication.training.diloco.codecs import pack, unpack
from composer_replication.training.diloco.flat_weights import vector_sha256
from composer_replication.training.diloco.outer import OuterState
from composer_replication.training.diloco.round_records import (
    SPEC,
    SlotClaim,
    Spec,
    anchor_key,
    anchor_round,
    claim_key,
    from_bytes,
    read_claim_key,
    round_folder,
    to_bytes,
)

KEPT_ANCHORS = 2
_READS = 3
"""How often an anchor is read before it counts as damaged."""
_SHOWN = 5
"""How many differences between two specs an error lists."""


def agree_on_spec(store: BlobStore, spec: Spec) -> Spec:
    """Write the spec if the store has none, else compare it with the store's, and return that.

    Raises ConfigError that names what differs: other settings, weights or code.
    """
    if store.create(SPEC, to_bytes(spec)):
        return spec
    data = store.get(SPEC)
    if data is None:
        raise SyncError(f"{SPEC} was written and is gone", fix="give the run a folder of its own")
    theirs = from_bytes(Spec, data, key=SPEC)
    if lines := differences(theirs, spec):
        more = f" (and {len(lines) - _SHOWN} more)" if len(lines) > _SHOWN else ""
        raise ConfigError(
            "this replica does not match the run in the store: " + "; ".join(lines[:_SHOWN]) + more,
            where=SPEC,
            fix="start it with the run's own settings, student and version, or name another folder",
        )
    return theirs


def differences(theirs: Spec, mine: Spec) -> list[str]:
    """What differs between two specs, one line each: theirs -> mine."""
    lines = diff_settings(theirs.settings, mine.settings)
    if theirs.schema_sha256 != mine.schema_sha256:
        lines += _weight_differences(theirs, mine)
    for name in sorted({*theirs.identity, *mine.identity}):
        if theirs.identity.get(name) != mine.identity.get(name):
            lines.append(f"{name.removesuffix('_sha256')} is not the same")
    compared = (name for name in Spec.__struct_fields__ if name not in _OWN_LINES)
    for name in compared:
        if getattr(theirs, name) != getattr(mine, name):
            lines.append(f"{name}: {getattr(theirs, name)} -> {getattr(mine, name)}")
    return lines


_OWN_LINES = ("settings", "schema_sha256", "weights", "identity", "replicas")


def _weight_differences(theirs: Spec, mine: Spec) -> list[str]:
    old = {name: f"{shape} {dtype}" for name, shape, dtype in theirs.weights}
    new = {name: f"{shape} {dtype}" for name, shape, dtype in mine.weights}
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return [f"weight {name}: {old.get(name)} -> {new.get(name)}" for name in changed] or [
        "the weights come in another order"
    ]


@dataclass(slots=True)
class Slots:
    """The claims in the store, as far as they were read: in a tree, those of one group.

    `groups` gives the folder of a slot's group; a group has `width` slots.
    """

    store: BlobStore
    groups: Callable[[int], str] = field(default=lambda slot: "")
    width: int = 0
    first: int = 0
    newest: dict[int, SlotClaim] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    _keys: Sequence[str] = ()

    def refresh(self, *, first_round: bool = False) -> None:
        """Read the claims: one LIST, and one GET for each new one.

        In the first round a claim of epoch 0 is not read: its key gives slot and epoch, and its
        replica must have joined in round 0.
        """
        keys = self.store.list(f"slots/{self.groups(self.first)}".rstrip("/"))
        if keys == self._keys:  # keys are only ever added
            return
        self._keys = keys
        newest: dict[int, int] = {}
        left: set[tuple[int, int]] = set()
        for key in keys:
            if (found := read_claim_key(key)) is None:
                continue
            slot, epoch, is_left = found
            newest[slot] = max(epoch, newest.get(slot, 0))
            if is_left:
                left.add((slot, epoch))
        for slot, epoch in newest.items():
            if slot not in self.newest or self.newest[slot].epoch < epoch:
                is_plain = first_round and epoch == 0
                self.newest[slot] = self.claim_of(slot) if is_plain else self._read(slot, epoch)
        self.released = {slot for slot, epoch in newest.items() if (slot, epoch) in left}

    def claim(
        self,
        slot: int | None,
        *,
        uuid: str,
        round_number: int,
        takeover: bool = False,
        earlier: Collection[str] = (),
    ) -> SlotClaim:
        """Take a slot, or the lowest free one; raises SlotTakenError if another replica holds it.

        `earlier` are the uuids of this replica's earlier launches: it may take what they hold.
        """
        if slot is not None:
            self._select_group(slot)
        while True:
            self.refresh()
            wanted = self._free() if slot is None else slot
            if wanted is None:
                self._select_group(self.first + self.width)
                continue
            holder = self.newest.get(wanted)
            free = holder is None or wanted in self.released or holder.uuid in earlier
            if not free and not takeover and holder is not None:
                raise SlotTakenError(
                    f"slot {wanted} is held by replica {holder.uuid}, since round {holder.round}",
                    fix="take another slot, or, if that replica is dead, set"
                    " train.sync.takeover = true",
                )
            epoch = 0 if holder is None else holder.epoch + 1
            mine = SlotClaim(slot=wanted, epoch=epoch, uuid=uuid, round=round_number)
            key = claim_key(wanted, epoch, group=self.groups(wanted))
            if self.store.create(key, to_bytes(mine)):
                self.newest[wanted] = mine
                self.released.discard(wanted)
                return mine

    def check_held(self, claim: SlotClaim) -> None:
        """Raise SlotTakenError if a later epoch of the slot exists."""
        holder = self.newest.get(claim.slot, claim)
        if holder.epoch > claim.epoch:
            raise SlotTakenError(
                f"slot {claim.slot} was taken over by replica {holder.uuid}",
                fix="let that replica go on; start this one with a slot of its own",
            )

    def holds(self, slot: int, epoch: int) -> bool:
        """Whether this epoch is the slot's newest, as far as was read."""
        holder = self.newest.get(slot)
        return holder is None or holder.epoch == epoch

    def claim_of(self, slot: int) -> SlotClaim:
        """The slot's newest claim; one of epoch 0, which is usual, if none was read."""
        return self.newest.get(slot, SlotClaim(slot=slot, epoch=0, uuid="", round=0))

    def live(self) -> dict[int, SlotClaim]:
        """The claims that were not released, by slot."""
        return {slot: c for slot, c in self.newest.items() if slot not in self.released}

    def release(self, claim: SlotClaim) -> None:
        """Mark the claim as left, so that no round waits for this replica any more."""
        group = self.groups(claim.slot)
        self.store.create(claim_key(claim.slot, claim.epoch, group=group, left=True), b"")

    def _select_group(self, slot: int) -> None:
        """Hold the claims of this slot's group; those of another group are dropped."""
        if self.width and slot // self.width != self.first // self.width:
            self.newest, self.released, self._keys = {}, set(), ()
            self.first = slot - slot % self.width

    def _free(self) -> int | None:
        """The lowest free slot; None if the group has none."""
        taken = self.live()
        num = self.width or len(taken) + 1
        slots = range(self.first, self.first + num)
        return next((slot for slot in slots if slot not in taken), None)

    def _read(self, slot: int, epoch: int) -> SlotClaim:
        key = claim_key(slot, epoch, group=self.groups(slot))
        data = self.store.get(key)
        if data is None:
            raise SyncError(f"{key} was listed and is gone", fix="leave the store's files alone")
        return from_bytes(SlotClaim, data, key=key)


@dataclass(frozen=True, slots=True)
class Anchors:
    """Checkpoints of the outer state at the start of a round: weights and momentum, in float32.

    `size` is the number of weights.
    """

    store: BlobStore
    size: int

    def rounds(self) -> list[int]:
        """The rounds that have an anchor, in order."""
        return [anchor_round(key) for key in self.store.list("anchors")]

    def write(self, number: int, state: OuterState) -> None:
        """Write a state, unless the round has an anchor already."""
        tensors = {"theta": state.theta, "momentum": state.momentum}
        about = {"round": str(number), "sha256": _state_sha256(state)}
        self.store.create(anchor_key(number), pack(tensors, about))

    def read(self, number: int) -> OuterState | None:
        """The anchor of a round; None if it was removed meanwhile, or is damaged. Raises DataError
        if it has another number of weights."""
        for _ in range(_READS):
            if (data := self.store.get(anchor_key(number))) is None:
                return None
            if (state := _undamaged(data)) is None:
                continue
            if any(part.numel() != self.size for part in (state.theta, state.momentum)):
                raise DataError("an anchor of other weights", where=anchor_key(number))
            return state
        return None

    def collect_garbage(self) -> None:
        """Keep the newest two anchors, and remove older ones and the blobs of the rounds before
        them; commits are kept."""
        rounds = self.rounds()
        old, kept = rounds[:-KEPT_ANCHORS], rounds[-KEPT_ANCHORS:]
        for start, end in zip(old, [*old[1:], kept[0]] if kept else (), strict=False):
            for number in range(start, end):
                keys = self.store.list(round_folder(number))
                self.store.delete([key for key in keys if not key.endswith("/commit.json")])
            self.store.delete([anchor_key(start)])


def _undamaged(data: bytes) -> OuterState | None:
    """The state in an anchor's bytes; None if its hash is not the one that was written."""
    try:
        tensors, about = unpack(data)
    except DataError:
        return None
    state = OuterState(*(tensors.get(name, Tensor()) for name in ("theta", "momentum")))
    return state if about.get("sha256") == _state_sha256(state) else None


def _state_sha256(state: OuterState) -> str:
    """The hash of weights and momentum together; a commit's hash covers the weights alone."""
    hashes = vector_sha256(state.theta) + vector_sha256(state.momentum)
    return hashlib.sha256(hashes.encode()).hexdigest()
