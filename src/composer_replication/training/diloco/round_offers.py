"""The pseudo-gradients offered in one round: read from the store, checked, and kept.

    offers.read(store.list("rounds/000003"), fetch=True)
    usable = offers.accepted(max_norm_ratio=10.0)       # what exchange.py averages and commits
    deltas = [offers.delta(offer) for offer in usable]

An offer (a small record) names a blob (the encoded pseudo-gradient). It is valid if it was computed
at this round's weights, by the newest epoch of its slot. It is accepted if its blob also has the
offered hash, is finite, and its norm is at most `max_norm_ratio` times the median of the others.
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
"""How the reason begins if a blob could not be read: the pseudo-gradient itself may be fine, so its
replica keeps it for the next round."""
_READS = 5
"""How often a blob with a wrong hash is read before it counts as damaged."""


class GoneError(Exception):
    """A blob that garbage collection has removed: the caller has to load the newest anchor."""


@dataclass(slots=True, kw_only=True)
class RoundOffers:
    """The offers of round `round`, whose weights are `base` with hash `theta_sha256`.

    `_unread` are offers that were listed but not read, as (slot, epoch); `_offers` those that were
    read, None for one that belongs to other weights. `_deltas` and `_norms` are by blob;
    `_rejected` says by its replica's uuid why an offer does not count.
    """

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
    _rejected: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, offer: Offer, delta: Tensor) -> None:
        """Add this replica's own offer, whose blob need not be read."""
        self._offers[key], self._deltas[offer.blob] = offer, delta

    def read(self, keys: Sequence[str], *, fetch: bool) -> None:
        """Note the offers among the listed keys; with `fetch`, read them and their blobs."""
        if len(keys) > len(self._listed):  # keys are only ever added
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
        """Read the offer with this key and its blob, without a LIST; False if there is none."""
        if (found := read_offer_key(key)) is None or (offer := self._read(key, found)) is None:
            return False
        self._offers[key] = offer
        self._fetch(offer)
        return True

    def offered(self) -> set[int]:
        """The slots that have offered; a listed offer counts until reading it shows that it is not
        valid."""
        return {slot for slot, _ in self._unread.values()} | self.valid().keys()

    def valid(self) -> dict[int, Offer]:
        """The offers at this round's weights by the newest epoch of their slot, by slot."""
        return {
            offer.slot: offer
            for offer in self._offers.values()
            if offer is not None and self.slots.holds(offer.slot, offer.epoch)
        }

    def accepted(self, *, max_norm_ratio: float) -> list[Offer]:
        """The valid offers in slot order, without those whose blob is damaged, not finite, or has a
        norm above `max_norm_ratio` times the (low) median of all."""
        self.read((), fetch=True)
        norms: dict[int, float] = {}
        offers = self.valid()
        for slot, offer in sorted(offers.items()):
            self._fetch(offer)
            if (delta := self._deltas.get(offer.blob)) is None:
                continue
            norms[slot] = self._norms[offer.blob] = float(delta.norm())
            if not math.isfinite(norms[slot]):
                self._rejected[offer.uuid] = "not finite"
                del norms[slot]
        limit = statistics.median_low(norms.values()) * max_norm_ratio if norms else 0.0
        for slot, norm in list(norms.items()):
            if 0 < limit < norm:
                self._rejected[offers[slot].uuid] = f"its norm {norm:.3g} is above {limit:.3g}"
                del norms[slot]
        return [offers[slot] for slot in norms]

    def norm(self, offer: Offer) -> float:
        """The L2 norm of an accepted offer's pseudo-gradient."""
        return self._norms[offer.blob]

    def refused(self) -> dict[str, str]:
        """The reason why an offer does not count, by its replica's uuid."""
        outdated = (
            offer
            for offer in self._offers.values()
            if offer is not None and not self.slots.holds(offer.slot, offer.epoch)
        )
        reasons = {offer.uuid: f"slot {offer.slot} was taken over" for offer in outdated}
        return dict(sorted((reasons | self._rejected).items()))

    def delta(self, offer: Offer) -> Tensor:
        """The pseudo-gradient of an offer; raises SyncError if it is damaged, GoneError if it was
        removed."""
        if offer.blob not in self._deltas:
            self._deltas[offer.blob] = self.read_blob(offer.blob, offer.sha256)
        return self._deltas[offer.blob]

    def read_blob(self, key: str, sha256: str) -> Tensor:
        """The pseudo-gradient in a blob with this hash; one with another hash is read again a few
        times.

        Raises SyncError if it stays damaged, GoneError if there is no such blob.
        """
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
        """The offer with this key; None if there is none, or one at other weights."""
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
            self._rejected[offer.uuid] = "taken at other weights"
        return offer if fits else None

    def _fetch(self, offer: Offer) -> None:
        """Read the blob of an offer, once; if that fails, the offer is rejected."""
        if offer.blob in self._deltas or offer.uuid in self._rejected:
            return
        try:
            self.delta(offer)
        except (SyncError, GoneError) as error:
            self._rejected[offer.uuid] = f"{UNREADABLE}: {error}"[:200]
