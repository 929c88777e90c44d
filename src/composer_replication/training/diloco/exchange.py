"""DiLoCo's outer step without a leader: one replica's side of the exchange through an object store.

After `train.sync.every` optimiser steps (replica.py) a replica publishes its pseudo-gradient, waits
for the round's outcome and takes the same outer step as all others:

    exchange = Exchange.join(store, spec, start=theta, clock=Clock(), timing=Timing())
    sent = exchange.offer(delta, tokens=4096, steps=20)   # delta = weights before - weights now
    commit = exchange.settle()         # wait for commit.json, or create it; the first writer wins
    exchange.apply(commit)             # the outer step; every replica gets the same bits

`commit.json` lists whose pseudo-gradients count and the hash of the weights that they lead to. It
is final: a replica that computes other weights stops. Any replica may create it (*propose*) once
every expected replica has offered, or once a quorum has and `Timing.grace_s` is over. Expected are
the replicas of the last `spec.recent` commits, and those that joined since. Only monotonic clocks
are read, never the time of day.

Shapes: theta, momentum and pseudo-gradients are flat float32 vectors over the trainable weights
(flat_weights.py), or over the fragment that a round is about (`Exchange.part`).
"""

from __future__ import annotations

import hashlib
import math
import uuid as uuids
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from composer_replication.core.errors import SyncError
from composer_replication.training.diloco.blob_store import BlobStore
from composer_replication.training.diloco.clock import Clock
from composer_replication.training.diloco.codecs import decode_delta, encode_delta
from composer_replication.training.diloco.flat_weights import vector_sha256
from composer_replication.training.diloco.outer import (
    OuterSettings,
    OuterState,
    distance,
    mean_gradient,
    outer_step,
)
from composer_replication.training.diloco.polling import (
    POLL_CYCLE,
    PollSchedule,
    PollTarget,
    Timing,
)
from composer_replication.training.diloco.rendezvous import Anchors, Slots, agree_on_spec
from composer_replication.training.diloco.round_offers import GoneError, RoundOffers
from composer_replication.training.diloco.round_records import (
    Commit,
    Offer,
    SlotClaim,
    Spec,
    commit_key,
    delta_key,
    from_bytes,
    merged_key,
    offer_key,
    round_folder,
    to_bytes,
)
from composer_replication.training.diloco.tree_gather import TreeGather

_POLLS_PER_SLOT_CHECK = 6
"""A waiting replica checks after this many polls whether its slot was taken over."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One replica's side of the exchange, in round `round`.

    `state` holds the weights and momentum at the start of the round, `theta_sha256` the hash of
    these weights. `history` are the slots of the last commits. `tree` is set in gather mode "tree"
    if there are more replicas than one group holds (tree_gather.py).
    """

    store: BlobStore
    spec: Spec
    slots: Slots
    anchors: Anchors
    claim: SlotClaim
    clock: Clock
    timing: Timing
    state: OuterState
    round: int
    theta_sha256: str
    history: list[list[int]]
    offers: RoundOffers = field(init=False)
    tree: TreeGather | None = None
    waits_for: tuple[int, ...] = ()
    """The slots whose offers were missing at the last poll; () if this replica polls for the commit
    only."""
    _polling: PollSchedule = field(init=False)
    _round_began_s: float = 0.0
    _quorum_at_s: float | None = None
    _proposed: tuple[Commit, OuterState] | None = None
    _expected: set[int] | None = None

    def __post_init__(self) -> None:
        """Start the clock of the first round."""
        self._polling = PollSchedule(timing=self.timing, round_began_s=self.clock.monotonic())

    @classmethod
    def join(
        cls,
        store: BlobStore,
        spec: Spec,
        *,
        start: Tensor,
        slot: int | None = None,
        takeover: bool = False,
        clock: Clock | None = None,
        timing: Timing | None = None,
        uuid: str = "",
        earlier: Collection[str] = (),
    ) -> Exchange:
        """Agree on the spec, load the newest state (the first replica's is `start`), take a slot.

        `slot` None takes the lowest free one. `earlier` are the uuids of this replica's earlier
        launches: it may take the slot that one of them held.

        Raises ConfigError if the spec differs, SlotTakenError if another replica holds the slot.
        """
        clock, timing = clock or Clock(), timing or Timing()
        spec = agree_on_spec(store, spec)
        anchors, width = Anchors(store, start.numel()), spec.fanout if spec.levels > 1 else 0
        slots = Slots(store, groups=spec.group, width=width)
        if not anchors.rounds():
            anchors.write(0, OuterState.start(start))
        no_claim = SlotClaim(slot=-1, epoch=0, uuid=uuid or uuids.uuid4().hex[:12], round=0)
        exchange = cls(
            store=store,
            spec=spec,
            slots=slots,
            anchors=anchors,
            claim=no_claim,
            clock=clock,
            timing=timing,
            state=OuterState.start(start),
            round=-1,
            theta_sha256="",
            history=[],
        )
        if width:
            exchange.tree = TreeGather(exchange, timing.grace_s)
        exchange.reload()
        while (commit := exchange.committed()) is not None:
            exchange.apply(commit)
        exchange.claim = slots.claim(
            slot,
            uuid=no_claim.uuid,
            round_number=exchange.round,
            takeover=takeover,
            earlier=earlier,
        )
        exchange._read_history()
        return exchange

    @property
    def part(self) -> slice:
        """The slice of the weights that this round averages: all of them, or one fragment."""
        return self.spec.part(self.round, self.state.theta.numel())

    @property
    def outer(self) -> OuterSettings:
        """The outer optimiser that all replicas agreed on."""
        return OuterSettings(learning_rate=self.spec.learning_rate, momentum=self.spec.momentum)

    def reload(self) -> None:
        """Load the newest anchor; raises SyncError if it is no newer than this round."""
        for number in reversed(self.anchors.rounds()):
            if number <= self.round:
                break
            state = self.anchors.read(number)
            if state is None:
                continue
            self._begin_round(number, state, sha256=vector_sha256(state.theta))
            self._read_history()
            return
        raise SyncError(
            f"the blobs of round {self.round} are gone, and no later state that"
            " can be read stands in the store",
            fix="start the run in a new folder of the store, from its newest checkpoint",
        )

    def _read_history(self) -> None:
        """Read the last `spec.recent` commits from the store, for a replica that was not there."""
        earlier = range(max(0, self.round - self.spec.recent), self.round)
        found = [self._read_commit(at) for at in earlier]
        self.history = [commit.slots for commit in found if commit is not None]
        self._expected = None

    def committed(self) -> Commit | None:
        """The outcome of this round, if there is one already."""
        return self._read_commit(self.round)

    def committed_before_offer(self) -> Commit | None:
        """The outcome of this round if the others have settled it without this replica.

        A replica of the last commit is waited for at least `grace_s`; within that time there can
        hardly be an outcome, and the request is saved.
        """
        took_part = bool(self.history) and self.claim.slot in self.history[-1]
        is_early = self.clock.monotonic() - self._round_began_s < self.timing.grace_s
        return None if took_part and is_early else self.committed()

    def offer(self, delta: Tensor, *, tokens: int, steps: int) -> Tensor:
        """Publish a pseudo-gradient of `part`: first the blob, then the offer that names it.

        `tokens` and `steps` are what it was trained on. Returns the pseudo-gradient as the others
        will decode it: `delta` itself, unless the codec is lossy.
        """
        base = self.state.theta[self.part]
        blob = encode_delta(delta, base, codec=self.spec.codec)
        sent = delta if self.spec.codec == "none" else decode_delta(blob, base)
        blob_key = delta_key(self.round, self.claim)
        self.store.create(blob_key, blob)
        offer = Offer(
            round=self.round,
            slot=self.claim.slot,
            epoch=self.claim.epoch,
            uuid=self.claim.uuid,
            blob=blob_key,
            sha256=hashlib.sha256(blob).hexdigest(),
            num_bytes=len(blob),
            base_sha256=self.theta_sha256,
            schema_sha256=self.spec.schema_sha256,
            tokens=tokens,
            steps=steps,
        )
        record_key = offer_key(self.round, self.claim, self.spec.group(self.claim.slot))
        self.store.create(record_key, to_bytes(offer))
        self.offers.add(record_key, offer, sent)
        return sent

    def settle(self) -> Commit:
        """Wait for the round's commit, and create it once this replica may (`_may_propose`).

        Raises SlotTakenError if this slot was taken over, SyncError after `stall_s`.
        """
        began_s, num_polls, expected = self.clock.monotonic(), 0, self.expected()
        first_s, pause_s = self._polling.begin_wait(began_s)
        if self.tree is not None:  # a delay on the lowest level would delay every level above it
            first_s, pause_s = 0.0, self.timing.poll_s
        previous_poll_s = began_s
        self.clock.sleep(first_s)
        while True:
            polled_s = self.clock.monotonic()
            if self.tree is not None:
                commit = self.committed() or self.tree.climb(polled_s - began_s)
            else:
                commit = self._poll(POLL_CYCLE[num_polls % len(POLL_CYCLE)])
            num_polls += 1
            if commit is not None:
                if self.tree is None and expected <= set(commit.slots):
                    self._polling.record_wait(previous_poll_s - began_s, polled_s - began_s)
                return commit
            if num_polls % _POLLS_PER_SLOT_CHECK == 0:
                self.check_slot()
            if self.clock.monotonic() - began_s > self.timing.stall_s:
                raise self._stalled()
            previous_poll_s = polled_s
            self.clock.sleep(self._until_deadline(pause_s, polled_s))
            pause_s = self._next_pause(pause_s)

    def _next_pause(self, pause_s: float) -> float:
        if self.tree is None:
            return self._polling.next_pause(pause_s)
        return min(self.timing.max_poll_s, pause_s * 1.5)

    def _until_deadline(self, pause_s: float, polled_s: float) -> float:
        """The pause, cut short if the grace period ends within it: then it is time to propose.

        0 if the grace period ended during the last poll, which began at `polled_s` and could not
        know. If it had ended before, that poll has tried to propose, and the pause stays.
        """
        if self._quorum_at_s is None or self.tree is not None or self._grace_left_s(polled_s) <= 0:
            return pause_s
        return min(pause_s, max(0.0, self._grace_left_s(self.clock.monotonic())))

    def _grace_left_s(self, now_s: float) -> float:
        """How long this round still waits for more than a quorum; all of the grace period if there
        is no quorum yet."""
        since_s = now_s if self._quorum_at_s is None else self._quorum_at_s
        return self._grace_s - (now_s - since_s)

    def _poll(self, target: PollTarget) -> Commit | None:
        """Ask the store once, and propose if the round can end; returns its commit, None while
        there is none."""
        is_get = target is not PollTarget.ALL_KEYS and not self._may_propose()
        if is_get and (key := self._next_key(target)):
            if key == commit_key(self.round):
                return self.committed()
            while key and self.offers.ask(key):  # offers tend to come together
                key = self._next_key(target)
            if key:
                return None
        else:
            keys = self.store.list(round_folder(self.round))
            if commit_key(self.round) in keys and (commit := self.committed()) is not None:
                return commit
            self.offers.read(keys, fetch=self._aggregates())
            self._update_missing()
        return self._propose_if_due()

    def _propose_if_due(self) -> Commit | None:
        if self._quorum_at_s is None and len(self.offers.offered()) >= self.spec.quorum:
            self._quorum_at_s = self.clock.monotonic()
        if not self._may_propose():
            return None
        self.check_slot()  # reads the claims anew: somebody who has just joined is waited for
        return self._propose() if self._may_propose() else None

    def _next_key(self, target: PollTarget) -> str:
        """The key to GET: the commit's, or that of a missing offer; "" if no offer is missing."""
        expected = self.expected() | self._starting_slots()
        missing = self._update_missing()
        can_end_without = self.spec.quorum < len(expected) or not missing
        if not self._aggregates() or (target is PollTarget.COMMIT and can_end_without):
            return commit_key(self.round)
        claims = (self.slots.claim_of(slot) for slot in missing)
        keys = (offer_key(self.round, claim) for claim in claims)
        return next((key for key in keys if not self.offers.knows(key)), "")

    def _starting_slots(self) -> set[int]:
        """In round 0, the slots of the replicas that the run is started with, which may not have
        been claimed yet: the lowest ones, less those that left already."""
        slots = set(range(self.spec.replicas)) if self.round == 0 else set[int]()
        return slots - self.slots.released

    def _update_missing(self) -> list[int]:
        """The awaited slots without an offer, also noted in `waits_for`."""
        missing = sorted((self.expected() | self._starting_slots()) - self.offers.offered())
        self.waits_for = tuple(missing) if self._aggregates() else ()
        return missing

    def mean(self, commit: Commit) -> Tensor:
        """The mean pseudo-gradient that a commit of this round names, before it is applied.

        Raises GoneError if garbage collection has removed its blobs.
        """
        if commit.merged:
            return self.offers.read_blob(commit.merged, commit.merged_sha256)
        deltas = [self.offers.delta(offer) for offer in commit.offers]
        return mean_gradient(deltas, self._weights(commit.offers))

    def apply(self, commit: Commit) -> None:
        """Take the round's outer step and begin the next round.

        If the commit's blobs are gone, the newest anchor is loaded instead. Raises SyncError if the
        step leads to other weights than the committed ones.
        """
        try:
            state = self._state_after(commit)
        except GoneError:
            self.reload()
            return
        self.history = [*self.history, commit.slots][-self.spec.recent :]
        self._begin_round(commit.round + 1, state, sha256=commit.theta_sha256)
        if commit.by == self.claim.uuid and self.round % self.spec.anchor_every == 0:
            self.anchors.write(self.round, self.state)
            self.anchors.collect_garbage()

    def _state_after(self, commit: Commit) -> OuterState:
        """The state after a commit's outer step; the one computed for this replica's own proposal
        if that has the same offers and weights.

        Raises SyncError if the weights do not have the committed hash.
        """
        if self._proposed is not None:
            mine, state = self._proposed
            is_same = mine.by == commit.by or (mine.offers and mine.offers == commit.offers)
            if is_same and mine.theta_sha256 == commit.theta_sha256:
                return state
        state = self._outer_step(self.mean(commit))
        if (found := vector_sha256(state.theta)) != commit.theta_sha256:
            raise SyncError(
                f"round {commit.round} leads to other weights here: {found[:12]}, committed"
                f" {commit.theta_sha256[:12]}",
                fix="run every replica with the same PyTorch on the same kind of processor; start"
                " this one again: it takes the committed weights",
            )
        return state

    def check_slot(self) -> None:
        """Raise SlotTakenError if this slot was taken over."""
        self.slots.refresh(first_round=self.round == 0)
        self._expected = None
        self.slots.check_held(self.claim)

    def leave(self) -> None:
        """Release the slot: nobody waits for this replica any more."""
        self.slots.release(self.claim)

    def expected(self) -> set[int]:
        """The slots that a proposal waits for: those of the last commits, unless they left, and
        those that joined lately. In a tree, those of this replica's group."""
        if self._expected is None:
            live = self.slots.live()
            recent = {slot for slots in self.history for slot in slots}
            joined = {
                slot for slot, claim in live.items() if claim.round + self.spec.recent > self.round
            }
            self._expected = (recent - self.slots.released) | joined
        return self._expected

    def _begin_round(self, number: int, state: OuterState, *, sha256: str) -> None:
        self.state, self.round, self.theta_sha256 = state, number, sha256
        self._proposed = self._expected = self._quorum_at_s = None
        self.waits_for = ()
        self._round_began_s = self.clock.monotonic()
        self.offers = RoundOffers(
            store=self.store,
            slots=self.slots,
            clock=self.clock,
            round=number,
            base=state.theta[self.part],
            theta_sha256=sha256,
            schema_sha256=self.spec.schema_sha256,
            poll_s=self.timing.poll_s,
        )

    def _read_commit(self, number: int) -> Commit | None:
        key = commit_key(number)
        data = self.store.get(key)
        commit = None if data is None else from_bytes(Commit, data, key=key)
        return commit if commit is None or self.tree is None else self.tree.view(commit)

    def _aggregates(self) -> bool:
        """Whether this replica reads the others' pseudo-gradients and averages them: in gather mode
        "peer" each does, else the lowest expected slot."""
        if self.spec.gather == "peer":
            return True
        return self.claim.slot == min(self.expected(), default=self.claim.slot)

    @property
    def _grace_s(self) -> float:
        """How long a proposal waits for more than a quorum. Replicas that do not aggregate wait
        twice as long before they stand in for the one that does."""
        return self.timing.grace_s * (1 if self._aggregates() else 2)

    def _may_propose(self) -> bool:
        """Whether this replica may create the commit now.

        It needs a quorum, and either the end of the grace period or the offers of all that are
        expected (in round 0, of as many replicas as the run was started with).
        """
        offered = self.offers.offered()
        if self._quorum_at_s is None or len(offered) < self.spec.quorum:
            return False
        if self._grace_left_s(self.clock.monotonic()) <= 0:
            return True
        if self.round == 0 and len(offered | self.slots.released) < self.spec.replicas:
            return False
        return self._aggregates() and offered >= self.expected()

    def _propose(self) -> Commit | None:
        """Create the commit of the usable offers; returns the round's commit, which may be another
        replica's. None if fewer than a quorum can be used."""
        offers = self.offers.accepted(max_norm_ratio=self.spec.max_norm_ratio)
        if not offers or len(self.offers.valid()) < self.spec.quorum:
            return None
        deltas = [self.offers.delta(offer) for offer in offers]
        gradient = mean_gradient(deltas, self._weights(offers))
        norm = float(gradient.norm())
        variance = sum(distance(delta, gradient) ** 2 for delta in deltas) / len(deltas)
        return self.commit(
            gradient,
            offers=offers,
            count=len(offers),
            refused=self.offers.refused(),
            norms=[self.offers.norm(offer) for offer in offers],
            drift=math.sqrt(variance) / norm if norm else 0.0,
        )

    def commit(self, gradient: Tensor, **details: Any) -> Commit | None:
        """Create the commit of a mean pseudo-gradient; returns the round's commit, which may be
        another replica's.

        `details` are further fields of `Commit`: offers, norms and so on.
        """
        state = self._outer_step(gradient)
        details |= self._publish_mean(gradient)
        commit = Commit(
            round=self.round,
            theta_sha256=vector_sha256(state.theta),
            by=self.claim.uuid,
            step_norm=distance(state.theta, self.state.theta),
            **details,
        )
        self._proposed = (commit, state)
        if self.store.create(commit_key(self.round), to_bytes(commit)):
            return commit
        return self.committed()

    def _publish_mean(self, gradient: Tensor) -> dict[str, str]:
        """Write the mean for the replicas that do not aggregate, and return the fields of `Commit`
        that name it; {} in gather mode "peer"."""
        if self.spec.gather == "peer":
            return {}
        blob = encode_delta(gradient, gradient, codec="none")
        key = merged_key(self.round, self.claim.uuid)
        self.store.create(key, blob)
        return {"merged": key, "merged_sha256": hashlib.sha256(blob).hexdigest()}

    def _weights(self, offers: Sequence[Offer]) -> list[float]:
        """The weight of each offer in the mean."""
        return [float(offer.tokens) if self.spec.token_weights else 1.0 for offer in offers]

    def _outer_step(self, gradient: Tensor) -> OuterState:
        return outer_step(self.state, gradient, settings=self.outer, part=self.part)

    def _stalled(self) -> SyncError:
        slots = self.offers.offered()
        offered, waiting = sorted(slots), sorted(self.expected() - slots)
        return SyncError(
            f"round {self.round} had no outcome after {self.timing.stall_s:g} s: slots {offered}"
            f" offered, a quorum is {self.spec.quorum}, slots {waiting} are waited for",
            where="train.sync.stall_s",
            fix="start more replicas; those that ran go on from this round",
        )
