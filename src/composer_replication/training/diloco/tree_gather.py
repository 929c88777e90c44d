"""Tree reduction of pseudo-gradients through the store, for runs of many replicas (gather "tree").

With a fanout of 4, slots 0 to 3 form node 0 of level 1. Its sum and those of nodes 1 to 3 are added
up by node 0 of level 2, and so on; the root divides its sum, and commits the mean. Each node adds
in the order of its slots or child nodes, so the bits of the mean depend only on who took part. A
replica reads only what its own nodes add up: bytes and requests per replica grow with the height of
the tree, not with the number of replicas.

No replica is a node for good. A node's sum is written by its *aggregator*, the replica that comes
first among those that could, once all expected parts are there. If a part or the aggregator is
missing, deadlines decide, counted from a replica's own offer: `grace_s` for level 1, `3 * grace_s`
for level 2, two more for each further level, and another `grace_s` for each place in the order (its
*rank*). So there is time on every level for a deputy. Two sums of one node do no harm: there is one
commit, and it names the sums that count.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from torch import Tensor

from composer_replication.core.errors import DataError, SyncError
from composer_replication.training.diloco.blob_store import BlobStore
from composer_replication.training.diloco.codecs import encode_delta
from composer_replication.training.diloco.outer import sum_gradients
from composer_replication.training.diloco.round_offers import UNREADABLE, GoneError, RoundOffers
from composer_replication.training.diloco.round_records import (
    Commit,
    SlotClaim,
    Spec,
    Subtotal,
    SumRef,
    from_bytes,
    offer_folder,
    part_key,
    parts_folder,
    read_part_key,
    sum_key,
    to_bytes,
)

_NODE = "node "


class GroupMember(Protocol):
    """What the tree needs of a replica's `Exchange`."""

    store: BlobStore
    spec: Spec
    claim: SlotClaim
    round: int
    theta_sha256: str
    offers: RoundOffers

    def expected(self) -> set[int]:
        """The slots of the group that are waited for."""
        ...

    def check_slot(self) -> None:
        """Raise SlotTakenError if this slot was taken over."""
        ...

    def commit(self, gradient: Tensor, **about: Any) -> Commit | None:
        """Create the commit of a mean pseudo-gradient."""
        ...

    def committed(self) -> Commit | None:
        """The round's commit, if there is one."""
        ...


@dataclass(slots=True)
class Sum:
    """A node's sum before it is written: its record without the blob, and the numbers."""

    total: Tensor
    record: Subtotal


@dataclass(slots=True)
class TreeGather:
    """One replica's part in the reduction, round after round."""

    exchange: GroupMember
    grace_s: float
    paths: dict[int, dict[int, set[int]]] = field(default_factory=dict)
    """Round -> level -> the parts that this replica's node of that level added up."""
    _round: int = -1
    _records: dict[str, tuple[SumRef, Subtotal]] = field(default_factory=dict)
    _totals: dict[str, Tensor] = field(default_factory=dict)
    _present: dict[int, dict[int, tuple[SumRef, Subtotal]]] = field(default_factory=dict)
    _written: dict[int, int] = field(default_factory=dict)

    def climb(self, waited_s: float) -> Commit | None:
        """Add up the nodes that are this replica's turn, from level 1 on, and commit at the root;
        returns the commit once there is one.

        `waited_s` is the time since its offer. Called at each poll.
        """
        exchange = self.exchange
        if self._round != exchange.round:
            self._round, self._written = exchange.round, {}
            self._records, self._totals, self._present = {}, {}, {}
        rank = self._rank_in_group(waited_s)
        if rank is None:
            return None
        deputy = rank
        for level in range(1, exchange.spec.levels):
            self._add_up(level, is_first=deputy == 0)
            found = self._rank_of_node(level + 1, waited_s, deputy=rank)
            if found is None:
                return None
            deputy = found
        return self._commit()

    def view(self, commit: Commit) -> Commit:
        """A commit completed for this replica: with the offers and norms of its group, and, if the
        group's sum did not count, the reason."""
        exchange, claim = self.exchange, self.exchange.claim
        if claim.slot < 0:
            return commit
        levels = exchange.spec.levels
        seen = {levels: _parts_of(commit)}
        parts, refused, record = commit.parts, commit.refused, None
        for level in range(levels - 1, 0, -1):
            index = exchange.spec.node(claim.slot, level)
            part = next((part for part in parts if part.index == index), None)
            record = None if part is None else self._read(part)
            if record is None:
                reason = refused.get(_name(level, index), "")
                refused = {claim.uuid: reason} if reason else {}
                break
            parts, refused = record.parts, record.refused
            seen[level] = _parts_of(record)
        self.paths[commit.round] = seen
        for number in [n for n in self.paths if n <= commit.round - exchange.spec.recent]:
            del self.paths[number]
        group = (record.offers, record.norms) if record is not None else ([], [])
        return msgspec.structs.replace(commit, offers=group[0], norms=group[1], refused=refused)

    # ---- whose turn it is ----

    def _rank_in_group(self, waited_s: float) -> int | None:
        """This slot's rank among those of its group that offered or are expected; None if it is not
        its turn."""
        exchange, mine = self.exchange, self.exchange.claim.slot
        is_early = waited_s < self._deadline_s(1)
        expected = self._expected_slots() if is_early else set()
        if mine != min(expected | {mine}):
            return None  # a lower slot's turn: no request is needed
        folder = offer_folder(exchange.round, exchange.spec.group(mine))
        exchange.offers.read(exchange.store.list(folder), fetch=False)
        offered = exchange.offers.offered() | {mine}
        rank = sorted(offered | expected).index(mine)
        is_complete = is_early and rank == 0 and offered >= expected
        return rank if is_complete or waited_s >= self._deadline_s(1, rank) else None

    def _rank_of_node(self, level: int, waited_s: float, *, deputy: int) -> int | None:
        """The rank, among the parts that this replica's node of a level adds up, of the part that
        it has written; None if it is not its turn.

        A part that another replica wrote gives a later rank, by `deputy`.
        """
        exchange, spec = self.exchange, self.exchange.spec
        mine, is_early = (
            spec.node(exchange.claim.slot, level - 1),
            waited_s < self._deadline_s(level),
        )
        expected = self._expected_parts(level) if is_early else set()
        if mine != min(expected | {mine}):
            return None
        present = self._present[level] = self._read_parts(level)
        if mine not in present:
            return None
        rank = sorted(present.keys() | expected).index(mine)
        if present[mine][1].by != exchange.claim.uuid:
            rank += 1 + deputy
        is_complete = is_early and rank == 0 and present.keys() >= expected
        return rank if is_complete or waited_s >= self._deadline_s(level, rank) else None

    def _deadline_s(self, level: int, rank: int = 0) -> float:
        """The time after a replica's offer at which a node is added up without what is missing."""
        return (2 * level - 1 + rank) * self.grace_s

    def _expected_slots(self) -> set[int]:
        exchange, spec = self.exchange, self.exchange.spec
        if exchange.round:
            return exchange.expected()
        first = spec.node(exchange.claim.slot, 1) * spec.fanout
        last = min(first + spec.fanout, spec.replicas)
        return exchange.expected() | set(range(first, last))

    def _expected_parts(self, level: int) -> set[int]:
        """The child nodes with a part in one of the last rounds; in the first round, all that the
        starting replicas fill."""
        spec = self.exchange.spec
        lately = [seen[level] for seen in self.paths.values() if level in seen]
        if lately:
            return set[int]().union(*lately)
        below = spec.fanout ** (level - 1)
        node = spec.node(self.exchange.claim.slot, level)
        first = 0 if level == spec.levels else node * spec.fanout
        last = math.ceil(spec.replicas / below)
        return set(range(first, last if level == spec.levels else min(first + spec.fanout, last)))

    # ---- what there is ----

    def _read_parts(self, level: int) -> dict[int, tuple[SumRef, Subtotal]]:
        """The parts of this replica's node of a level by child node; of several records of one
        child, that over the most pseudo-gradients."""
        exchange = self.exchange
        folder = parts_folder(exchange.round, self._node(level))
        keys = exchange.store.list(folder)
        found = sorted(
            (at[0], -at[1], key) for key in keys if (at := read_part_key(key)) is not None
        )
        parts: dict[int, tuple[SumRef, Subtotal]] = {}
        for index, _, key in found:
            if index not in parts and (part := self._part(index, key)) is not None:
                parts[index] = part
        return parts

    def _part(self, index: int, key: str) -> tuple[SumRef, Subtotal] | None:
        """A record of this round's weights, read once; None for another."""
        if key not in self._records:
            data = self.exchange.store.get(key)
            if data is None:
                return None
            record = from_bytes(Subtotal, data, key=key)
            part = SumRef(index=index, key=key, sha256=hashlib.sha256(data).hexdigest())
            self._records[key] = (part, record)
        part, record = self._records[key]
        at = (self.exchange.round, self.exchange.theta_sha256, index)
        return (part, record) if (record.round, record.base_sha256, record.index) == at else None

    def _read(self, part: SumRef) -> Subtotal | None:
        """The record that a commit or another record names; None if it was removed.

        Raises DataError if it is another one."""
        if part.key not in self._records:
            data = self.exchange.store.get(part.key)
            if data is None:
                return None
            if hashlib.sha256(data).hexdigest() != part.sha256:
                raise DataError("not the record that was committed", where=part.key)
            self._records[part.key] = (part, from_bytes(Subtotal, data, key=part.key))
        return self._records[part.key][1]

    # ---- the sums ----

    def _node(self, level: int) -> tuple[int, int]:
        return level, self.exchange.spec.node(self.exchange.claim.slot, level)

    def _add_up(self, level: int, *, is_first: bool) -> None:
        """Write the sum of this replica's node, unless one over as many pseudo-gradients was
        written already."""
        exchange, index = self.exchange, self._node(level)[1]
        if level == 1:
            count = len(exchange.offers.offered())
        else:
            count = sum(record.count for _, record in self._present[level].values())
        if self._written.get(level) == count:
            return
        if not is_first or level in self._written:
            standing = self._read_parts(level + 1).get(index)
            if standing is not None and standing[1].count >= count:
                return
        if (found := self._sum(level)) is not None:
            self._write(level, found)
            self._written[level] = count

    def _write(self, level: int, found: Sum) -> None:
        exchange, node = self.exchange, self._node(level)
        by, count = exchange.claim.uuid, found.record.count
        blob = encode_delta(found.total, found.total, codec="none")
        key = sum_key(exchange.round, node, count=count, uuid=by)
        exchange.store.create(key, blob)
        sha256 = hashlib.sha256(blob).hexdigest()
        record = msgspec.structs.replace(found.record, blob=key, sha256=sha256)
        place = part_key(exchange.round, self._node(level + 1), node[1], count=count, uuid=by)
        data = to_bytes(record)
        exchange.store.create(place, data)
        part = SumRef(index=node[1], key=place, sha256=hashlib.sha256(data).hexdigest())
        self._records[place], self._totals[key] = (part, record), found.total

    def _commit(self) -> Commit | None:
        """Commit the root's mean; None if fewer than a quorum are in it."""
        exchange, spec = self.exchange, self.exchange.spec
        found = self._sum(spec.levels)
        if found is None or found.record.count < spec.quorum:
            return None
        record, mean = found.record, found.total
        mean.div_(record.weight if spec.token_weights else record.count)
        norm = float(mean.norm())
        spread = max(0.0, record.square / record.count - norm**2)
        exchange.commit(
            mean,
            offers=[],
            parts=record.parts,
            count=record.count,
            refused=record.refused,
            drift=math.sqrt(spread) / norm if norm else 0.0,
        )
        return exchange.committed()

    def _sum(self, level: int) -> Sum | None:
        """A node's sum over its usable offers or parts; None if there is none."""
        return self._sum_of_group() if level == 1 else self._sum_of_parts(level)

    def _sum_of_group(self) -> Sum | None:
        exchange, spec = self.exchange, self.exchange.spec
        exchange.check_slot()
        offers = exchange.offers.accepted(max_norm_ratio=spec.max_norm_ratio)
        if not offers:
            return None
        deltas = [exchange.offers.delta(offer) for offer in offers]
        weights = [float(offer.tokens) for offer in offers] if spec.token_weights else []
        norms = [float(delta.norm()) for delta in deltas]
        record = self._record(
            1,
            count=len(offers),
            weight=sum(weights) if weights else float(len(offers)),
            square=sum(norm**2 for norm in norms),
        )
        record = msgspec.structs.replace(
            record, offers=offers, norms=norms, refused=exchange.offers.refused()
        )
        return Sum(sum_gradients(deltas, weights), record)

    def _sum_of_parts(self, level: int) -> Sum | None:
        """The sum of child nodes' sums, in their order. One that is damaged, not finite, or with a
        mean norm far above the others', is left out with all its pseudo-gradients."""
        refused: dict[str, str] = {}
        usable: list[tuple[SumRef, Subtotal, Tensor]] = []
        for part, record in self._present[level].values():
            try:
                usable.append((part, record, self._total(record)))
            except (SyncError, GoneError) as error:
                refused[_name(level - 1, part.index)] = f"{UNREADABLE}: {error}"[:200]
        means = [float(total.norm()) / record.weight for _, record, total in usable]
        finite = [mean for mean in means if math.isfinite(mean)]
        limit = statistics.median_low(finite) * self._ratio if finite else 0.0
        kept: list[tuple[SumRef, Subtotal, Tensor]] = []
        for (part, record, total), mean in zip(usable, means, strict=True):
            if not math.isfinite(mean):
                refused[_name(level - 1, part.index)] = "not finite"
            elif 0 < limit < mean:
                reason = f"its norm {mean:.3g} is above {limit:.3g}"
                refused[_name(level - 1, part.index)] = reason
            else:
                kept.append((part, record, total))
        if not kept:
            return None
        record = self._record(
            level,
            count=sum(record.count for _, record, _ in kept),
            weight=sum(record.weight for _, record, _ in kept),
            square=sum(record.square for _, record, _ in kept),
        )
        parts = [part for part, _, _ in kept]
        return Sum(
            sum_gradients([total for _, _, total in kept], ()),
            msgspec.structs.replace(record, parts=parts, refused=refused),
        )

    @property
    def _ratio(self) -> float:
        return self.exchange.spec.max_norm_ratio

    def _total(self, record: Subtotal) -> Tensor:
        if record.blob not in self._totals:
            found = self.exchange.offers.read_blob(record.blob, record.sha256)
            self._totals[record.blob] = found
        return self._totals[record.blob]

    def _record(self, level: int, *, count: int, weight: float, square: float) -> Subtotal:
        exchange = self.exchange
        return Subtotal(
            round=exchange.round,
            level=level,
            index=self._node(level)[1],
            by=exchange.claim.uuid,
            blob="",
            sha256="",
            base_sha256=exchange.theta_sha256,
            count=count,
            weight=weight,
            square=square,
        )


def _parts_of(record: Commit | Subtotal) -> set[int]:
    """The nodes that were there, those that were refused included."""
    refused = {int(name.rpartition(".")[2]) for name in record.refused if name.startswith(_NODE)}
    return {part.index for part in record.parts} | refused


def _name(level: int, index: int) -> str:
    """How a commit or record names a node that it refuses."""
    return f"{_NODE}{level}.{index}"
