"""The offers of one round, as far as this replica has read them, and what they are worth.

An offer counts if it was taken at this round's weights, by the newest epoch of its slot. Its blob
has to be the offered bytes, finite, and not many times longer than the others.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from composer_replication.core.errors import DataError, SyncError
from composer_replication.training.diloco.blob_store import BlobStore
from composer_replication.training.diloco.clock import Clock
from composer_replication.training.diloco.codecs import decode_delta
from composer_replication.training.diloco.rendezvous import Slots
from composer_replication.training.diloco.round_records import Offer, from_bytes, read_offer_key

UNREADABLE = "unreadable"
"""How the reason begins for a blob that no proposer could read; its pseudo-gradient was fine."""
_READS = 5


class GoneError(Exception):
    """A blob that garbage collection has removed: start from the newest anchor."""


@dataclass(slots=True, kw_only=True)
class RoundOffers:
    """What was offered in one round, e.g. offers.read(store.list("rounds/000003"), fetch=True)."""

    store: BlobStore
    slots: Slots
    clock: Clock
    round: int
    base: Tensor
    theta_sha256: str
    schema_sha256: str
    poll_s: float
    _unread: dict[str, tuple[int, int]] = field(default_factory=dict)
    _listed: frozenset[str] = frozenset()
    _offers: dict[str, Offer | None] = field(default_factory=dict)
    _deltas: dict[str, Tensor] = field(default_factory=dict)
    _norms: dict[str, float] = field(default_factory=dict)
    _bad: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, offer: Offer, delta: Tensor) -> None:
        """Count this replica's own offer, whose blob need not be read."""
        self._offers[key], self._deltas[offer.blob] = offer, delta

    def read(self, keys: Sequence[str], *, fetch: bool) -> None:
        """Take note of the offers among these keys; with `fetch` read them and their blobs."""
        if len(keys) > len(self._listed):  # keys are added, and never changed
            listed = frozenset(keys)
            for key in sorted(listed - self._listed - self._offers.keys()):
                if (found := read_offer_key(key)) is not None:
                    self._unread[key] = found
            self._listed = listed
        if not fetch:
            return
        while self._unread:
            key, found = next(iter(self._unread.items()))
            self._offers[key] = self._read(key, found)
            del self._unread[key]
        for offer in self.valid().values():
            self._fetch(offer)

    def knows(self, key: str) -> bool:
        """Whether the offer with this key was read or listed."""
        return key in self._offers or key in self._unread

    def ask(self, key: str) -> bool:
        """Read the offer with this key and its blob, without a LIST; whether it has come."""
        if (found := read_offer_key(key)) is None or (offer := self._read(key, found)) is None:
            return False
        self._offers[key] = offer
        self._fetch(offer)
        return True

    def offered(self) -> set[int]:
        """The slots that have offered; what was not read yet counts as it stands."""
        return {slot for slot, _ in self._unread.values()} | self.valid().keys()

    def valid(self) -> dict[int, Offer]:
        """The offers that could be committed, by slot: those of a slot's newest epoch."""
        return {
            offer.slot: offer
            for offer in self._offers.values()
            if offer is not None and self.slots.holds(offer.slot, offer.epoch)
        }

    def accepted(self, *, max_norm_ratio: float) -> list[Offer]:
        """The offers in slot order without those that are damaged, not finite or exploding."""
        self.read((), fetch=True)
        norms: dict[int, float] = {}
        offers = self.valid()
        for slot, offer in sorted(offers.items()):
            self._fetch(offer)
            if (delta := self._deltas.get(offer.blob)) is None:
                continue
            norms[slot] = self._norms[offer.blob] = float(delta.norm())
            if not math.isfinite(norms[slot]):
                self._bad[offer.uuid] = "not finite"
                del norms[slot]
        limit = statistics.median_low(norms.values()) * max_norm_ratio if norms else 0.0
        for slot, norm in list(norms.items()):
            if 0 < limit < norm:
                self._bad[offers[slot].uuid] = f"its norm {norm:.3g} is above {limit:.3g}"
                del norms[slot]
        return [offers[slot] for slot in norms]

    def norm(self, offer: Offer) -> float:
        """The norm of an accepted offer's pseudo-gradient."""
        return self._norms[offer.blob]

    def refused(self) -> dict[str, str]:
        """Why offers do not count, by their replica's uuid."""
        outdated = (
            offer
            for offer in self._offers.values()
            if offer is not None and not self.slots.holds(offer.slot, offer.epoch)
        )
        reasons = {offer.uuid: f"slot {offer.slot} was taken over" for offer in outdated}
        return dict(sorted((reasons | self._bad).items()))

    def delta(self, offer: Offer) -> Tensor:
        """The pseudo-gradient of an offer; raises SyncError if it is damaged, GoneError if it was
        removed."""
        if offer.blob not in self._deltas:
            self._deltas[offer.blob] = self.read_blob(offer.blob, offer.sha256)
        return self._deltas[offer.blob]

    def read_blob(self, key: str, sha256: str) -> Tensor:
        """A pseudo-gradient whose bytes are those that were offered; read again if they are not."""
        blob = None
        for attempt in range(_READS):
            blob = self.store.get(key)
            if blob is not None and hashlib.sha256(blob).hexdigest() == sha256:
                try:
                    return decode_delta(blob, self.base)
                except DataError as error:
                    raise SyncError(str(error), where=key) from error
            self.clock.sleep(self.poll_s * 2**attempt)
        if blob is None:
            raise GoneError(key)
        raise SyncError(
            f"the blob is damaged: its hash was not the offered one in {_READS} reads",
            where=key,
            fix="look after the store or the network; then start the replica again",
        )

    def _read(self, key: str, found: tuple[int, int]) -> Offer | None:
        """One offer; None for one that does not belong to this round's weights."""
        data = self.store.get(key)
        if data is None:
            return None
        offer = from_bytes(Offer, data, key=key)
        fits = (
            (offer.slot, offer.epoch) == found
            and offer.round == self.round
            and offer.base_sha256 == self.theta_sha256
            and offer.schema_sha256 == self.schema_sha256
        )
        if not fits:
            self._bad[offer.uuid] = "taken at other weights"
        return offer if fits else None

    def _fetch(self, offer: Offer) -> None:
        """Read the blob of an offer, once; one that cannot be read is not committed."""
        if offer.blob in self._deltas or offer.uuid in self._bad:
            return
        try:
            self.delta(offer)
        except (SyncError, GoneError) as error:
            self._bad[offer.uuid] = f"{UNREADABLE}: {error}"[:200]
