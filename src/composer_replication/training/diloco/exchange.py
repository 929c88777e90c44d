"""The leaderless exchange: every replica offers its pseudo-gradient, and the first commit counts.

    exchange = Exchange.join(store, spec, start=theta, clock=Clock(), timing=Timing())
    sent = exchange.offer(delta, tokens=4096, steps=20)
    commit = exchange.settle()         # wait, or propose; whoever creates commit.json first wins
    exchange.apply(commit)             # every replica: same order, same arithmetic, same hash

A replica proposes once everyone expected has offered, or once a quorum has and its own monotonic
timer ran out. Expected are those that took part lately, and those that joined lately. The time of
day decides nothing. What is in commit.json is final: a replica whose bits differ stops.
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
from composer_replication.training.diloco.looks import TURNS, Look, Looks, Timing
from composer_replication.training.diloco.outer import (
    OuterSettings,
    OuterState,
    distance,
    mean_gradient,
    outer_step,
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

_LOOKS_PER_REFRESH = 6


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One replica's side of the exchange, at the start of round `round`."""

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
    """The slots whose offers this replica missed when it looked last; () where it asks only for the
    outcome."""
    _looks: Looks = field(init=False)
    _entered_at: float = 0.0
    _quorum_at: float | None = None
    _proposed: tuple[Commit, OuterState] | None = None
    _expected: set[int] | None = None

    def __post_init__(self) -> None:
        """The first round begins now."""
        self._looks = Looks(timing=self.timing, since=self.clock.monotonic())

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

        `earlier` are the uuids of this replica's earlier lives.

        Raises ConfigError if the spec differs, SlotTakenError if another replica holds the slot.
        """
        clock, timing = clock or Clock(), timing or Timing()
        spec = agree_on_spec(store, spec)
        anchors, width = Anchors(store, start.numel()), spec.fanout if spec.levels > 1 else 0
        slots = Slots(store, groups=spec.group, width=width)
        if not anchors.rounds():
            anchors.write(0, OuterState.start(start))
        nobody = SlotClaim(slot=-1, epoch=0, uuid=uuid or uuids.uuid4().hex[:12], round=0)
        exchange = cls(
            store=store,
            spec=spec,
            slots=slots,
            anchors=anchors,
            claim=nobody,
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
            uuid=nobody.uuid,
            round_number=exchange.round,
            takeover=takeover,
            earlier=earlier,
        )
        exchange._remember()
        return exchange

    @property
    def part(self) -> slice:
        """The weights that this round is about."""
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
            self._enter(number, state, sha256=vector_sha256(state.theta))
            self._remember()
            return
        raise SyncError(
            f"the blobs of round {self.round} are gone, and no later state that"
            " can be read stands in the store",
            fix="start the run in a new folder of the store, from its newest checkpoint",
        )

    def _remember(self) -> None:
        """Read who took part in the last rounds."""
        earlier = range(max(0, self.round - self.spec.recent), self.round)
        found = [self._read_commit(at) for at in earlier]
        self.history = [commit.slots for commit in found if commit is not None]
        self._expected = None

    def committed(self) -> Commit | None:
        """The outcome of this round, if there is one already."""
        return self._read_commit(self.round)

    def committed_before_offer(self) -> Commit | None:
        """The outcome of this round if there is one already; not asked for where there can hardly
        be one, as the others wait `grace_s` for whoever took part in the last round."""
        took_part = bool(self.history) and self.claim.slot in self.history[-1]
        is_early = self.clock.monotonic() - self._entered_at < self.timing.grace_s
        return None if took_part and is_early else self.committed()

    def offer(self, delta: Tensor, *, tokens: int, steps: int) -> Tensor:
        """Publish a pseudo-gradient of `part`; returns what the others will read of it (`delta`
        itself if nothing is left out)."""
        base = self.state.theta[self.part]
        blob = encode_delta(delta, base, codec=self.spec.codec)
        sent = delta if self.spec.codec == "none" else decode_delta(blob, base)
        key = delta_key(self.round, self.claim)
        self.store.create(key, blob)
        offer = Offer(
            round=self.round,
            slot=self.claim.slot,
            epoch=self.claim.epoch,
            uuid=self.claim.uuid,
            blob=key,
            sha256=hashlib.sha256(blob).hexdigest(),
            num_bytes=len(blob),
            base_sha256=self.theta_sha256,
            schema_sha256=self.spec.schema_sha256,
            tokens=tokens,
            steps=steps,
        )
        place = offer_key(self.round, self.claim, self.spec.group(self.claim.slot))
        self.store.create(place, to_bytes(offer))
        self.offers.add(place, offer, sent)
        return sent

    def settle(self) -> Commit:
        """Wait for the round's outcome, and propose it when the time has come.

        Raises SlotTakenError if this slot was taken over, SyncError after `stall_s`.
        """
        began, looks, expected = self.clock.monotonic(), 0, self.expected()
        early = began
        first, pause = self._looks.begin(began)
        if self.tree is not None:  # whose turn comes on the lowest level is not late on the others
            first, pause = 0.0, self.timing.poll_s
        self.clock.sleep(first)
        while True:
            looked = self.clock.monotonic()
            if self.tree is not None:
                commit = self.committed() or self.tree.climb(looked - began)
            else:
                commit = self._look(TURNS[looks % len(TURNS)])
            if commit is not None:
                if self.tree is None and expected <= set(commit.slots):
                    self._looks.learn(early - began, looked - began)
                return commit
            if looks % _LOOKS_PER_REFRESH == _LOOKS_PER_REFRESH - 1:
                self.check_slot()
            if self.clock.monotonic() - began > self.timing.stall_s:
                raise self._stalled()
            early = looked
            self.clock.sleep(self._until_time(pause, looked))
            pause, looks = self._next_pause(pause), looks + 1

    def _next_pause(self, pause: float) -> float:
        if self.tree is None:
            return self._looks.longer(pause)
        return min(self.timing.max_poll_s, pause * 1.5)

    def _until_time(self, pause: float, looked: float) -> float:
        """A pause that ends when the time to propose has come, if that is earlier; none if it came
        during the last look, which began at `looked`."""
        if self._quorum_at is None or self.tree is not None or self._left_s(looked) <= 0:
            return pause
        return min(pause, max(0.0, self._left_s(self.clock.monotonic())))

    def _left_s(self, now: float) -> float:
        """The seconds from `now` until a quorum is enough."""
        since = now if self._quorum_at is None else self._quorum_at
        return self._patience_s - (now - since)

    def _look(self, what: Look) -> Commit | None:
        """The outcome, proposed if the time has come."""
        if not self._is_time() and what is not Look.ALL and (key := self._next_key(what)):
            if key == commit_key(self.round):
                return self.committed()
            while key and self.offers.ask(key):
                key = self._next_key(what)
            if key:
                return None
        else:
            keys = self.store.list(round_folder(self.round))
            if commit_key(self.round) in keys and (commit := self.committed()) is not None:
                return commit
            self.offers.read(keys, fetch=self._gathers())
            self._note_missing()
        if self._quorum_at is None and len(self.offers.offered()) >= self.spec.quorum:
            self._quorum_at = self.clock.monotonic()
        if self._is_time():
            self.check_slot()
        return self._propose() if self._is_time() else None

    def _next_key(self, what: Look) -> str:
        """The key that has to come next: the commit, or the offer of a slot that is waited for; ""
        if none is known."""
        expected = self.expected() | self._starters()
        missing = self._note_missing()
        can_end_without = self.spec.quorum < len(expected) or not missing
        if not self._gathers() or (what is Look.COMMIT and can_end_without):
            return commit_key(self.round)
        claims = (self.slots.claim_of(slot) for slot in missing)
        keys = (offer_key(self.round, claim) for claim in claims)
        return next((key for key in keys if not self.offers.knows(key)), "")

    def _starters(self) -> set[int]:
        """The slots of those who start the run, in its first round: they take the lowest, and may
        have left already."""
        starters = set(range(self.spec.replicas)) if self.round == 0 else set[int]()
        return starters - self.slots.released

    def _note_missing(self) -> list[int]:
        """The slots that have not offered yet."""
        missing = sorted((self.expected() | self._starters()) - self.offers.offered())
        self.waits_for = tuple(missing) if self._gathers() else ()
        return missing

    def mean(self, commit: Commit) -> Tensor:
        """The mean pseudo-gradient of this round's outcome, before it is applied; raises GoneError
        if its blobs were removed."""
        return self._gradient(commit)

    def apply(self, commit: Commit) -> None:
        """Take the round's outer step; raises SyncError if the weights are not the committed ones.

        If its blobs are gone, the newest anchor is loaded instead.
        """
        try:
            state = self._outcome(commit)
        except GoneError:
            self.reload()
            return
        self.history = [*self.history, commit.slots][-self.spec.recent :]
        self._enter(commit.round + 1, state, sha256=commit.theta_sha256)
        if commit.by == self.claim.uuid and self.round % self.spec.anchor_every == 0:
            self.anchors.write(self.round, self.state)
            self.anchors.collect_garbage()

    def _outcome(self, commit: Commit) -> OuterState:
        """The state that a commit leads to; raises SyncError if it is another one here."""
        if self._proposed is not None:
            mine, state = self._proposed
            is_same = mine.by == commit.by or (mine.offers and mine.offers == commit.offers)
            if is_same and mine.theta_sha256 == commit.theta_sha256:
                return state
        state = self._stepped(self._gradient(commit))
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
        """The slots that a proposal waits for, in a tree of this group: those of the last commits,
        and those that joined."""
        if self._expected is None:
            live = self.slots.live()
            recent = {slot for slots in self.history for slot in slots}
            joined = {s for s, c in live.items() if c.round + self.spec.recent > self.round}
            self._expected = (recent - self.slots.released) | joined
        return self._expected

    def _enter(self, number: int, state: OuterState, *, sha256: str) -> None:
        self.state, self.round, self.theta_sha256 = state, number, sha256
        self._proposed = self._expected = self._quorum_at = None
        self.waits_for = ()
        self._entered_at = self.clock.monotonic()
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

    def _gathers(self) -> bool:
        """Whether this replica reads the others' blobs: all do, or the lowest slot expected."""
        if self.spec.gather == "peer":
            return True
        return self.claim.slot == min(self.expected(), default=self.claim.slot)

    @property
    def _patience_s(self) -> float:
        """How long a round waits for the others; a publisher's deputies wait twice as long."""
        return self.timing.grace_s * (1 if self._gathers() else 2)

    def _is_time(self) -> bool:
        """Whether to propose now."""
        offered = self.offers.offered()
        if self._quorum_at is None or len(offered) < self.spec.quorum:
            return False
        if self._left_s(self.clock.monotonic()) <= 0:
            return True
        if self.round == 0 and len(offered | self.slots.released) < self.spec.replicas:
            return False
        return self._gathers() and offered >= self.expected()

    def _propose(self) -> Commit | None:
        """Create the commit of what was offered; returns the one that stands, None if no offer can
        be used."""
        offers = self.offers.accepted(max_norm_ratio=self.spec.max_norm_ratio)
        if not offers or len(self.offers.valid()) < self.spec.quorum:
            return None
        deltas = [self.offers.delta(offer) for offer in offers]
        gradient = mean_gradient(deltas, self._shares(offers))
        norm = float(gradient.norm())
        spread = sum(distance(delta, gradient) ** 2 for delta in deltas) / len(deltas)
        return self.commit(
            gradient,
            offers=offers,
            count=len(offers),
            refused=self.offers.refused(),
            norms=[self.offers.norm(offer) for offer in offers],
            drift=math.sqrt(spread) / norm if norm else 0.0,
        )

    def commit(self, gradient: Tensor, **about: Any) -> Commit | None:
        """Create the commit of a mean pseudo-gradient; returns the one that stands."""
        state = self._stepped(gradient)
        about |= self._publish(gradient)
        commit = Commit(
            round=self.round,
            theta_sha256=vector_sha256(state.theta),
            by=self.claim.uuid,
            step_norm=distance(state.theta, self.state.theta),
            **about,
        )
        self._proposed = (commit, state)
        if self.store.create(commit_key(self.round), to_bytes(commit)):
            return commit
        return self.committed()

    def _publish(self, gradient: Tensor) -> dict[str, str]:
        """Write the mean for those who do not gather; {} in gather mode "peer"."""
        if self.spec.gather == "peer":
            return {}
        blob, key = (
            encode_delta(gradient, gradient, codec="none"),
            merged_key(self.round, self.claim.uuid),
        )
        self.store.create(key, blob)
        return {"merged": key, "merged_sha256": hashlib.sha256(blob).hexdigest()}

    def _shares(self, offers: Sequence[Offer]) -> list[float]:
        return [float(o.tokens) if self.spec.token_weights else 1.0 for o in offers]

    def _stepped(self, gradient: Tensor) -> OuterState:
        return outer_step(self.state, gradient, settings=self.outer, part=self.part)

    def _gradient(self, commit: Commit) -> Tensor:
        """The mean pseudo-gradient that a commit names."""
        if commit.merged:
            return self.offers.read_blob(commit.merged, commit.merged_sha256)
        deltas = [self.offers.delta(offer) for offer in commit.offers]
        return mean_gradient(deltas, self._shares(commit.offers))

    def _stalled(self) -> SyncError:
        slots = self.offers.offered()
        offered, waiting = sorted(slots), sorted(self.expected() - slots)
        return SyncError(
            f"round {self.round} had no outcome after {self.timing.stall_s:g} s: slots {offered}"
            f" offered, a quorum is {self.spec.quorum}, slots {waiting} are waited for",
            where="train.sync.stall_s",
            fix="start more replicas; those that ran go on from this round",
        )
