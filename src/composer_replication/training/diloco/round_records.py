"""The layout of a run's object store: its keys, and the JSON records under them.

No key is ever written twice, so "create if absent" is the only operation that replicas race for.

spec.json                             what all replicas agree on
slots/0002/0000.json                  claim of slot 2, epoch 0; 0000.left = released
anchors/000008.safetensors            theta and momentum at the start of round 8
rounds/000008/delta/0002.<uuid>       a pseudo-gradient
rounds/000008/offer/0002.0000.json    its offer, written after the blob
rounds/000008/merged.<uuid>           the mean, in gather modes "publisher" and "tree"
rounds/000008/commit.json             the round's outcome: the first one written counts

In gather mode "tree", with more replicas than its fanout, claims and offers are in a folder of
their group, so that a replica lists its own group only, and each group's sum is beside the sums of
its siblings:

slots/group-0001/0005/0000.json               the group of slots 4 to 7, with a fanout of 4
rounds/000008/offer/group-0001/0005.0000.json
rounds/000008/sum/1.0001.0004.<uuid>          the sum of group 1 over 4 pseudo-gradients
rounds/000008/part/2.0000/0001.0004.<uuid>.json   its record, among those that node 2.0000 adds up
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from composer_replication.core.errors import DataError

PROTOCOL = 1
SPEC = "spec.json"
_CLAIM = re.compile(r"slots/(?:group-\d+/)?(\d+)/(\d+)\.(json|left)")
_OFFER = re.compile(r"rounds/\d+/offer/(?:group-\d+/)?(\d+)\.(\d+)\.json")
_PART = re.compile(r"rounds/\d+/part/\d+\.\d+/(\d+)\.(\d+)\.(\w+)\.json")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas of one store must agree on; the first one to arrive writes it.

    `weights` are (name, shape, dtype) of the trainable weights. `settings` are the run's settings
    that decide the training, `identity` hashes of what they refer to (start weights, environment).
    `recent` is the number of commits whose replicas are waited for.
    """

    protocol: int = PROTOCOL
    code: str = ""
    weights: list[tuple[str, list[int], str]]
    schema_sha256: str
    settings: dict[str, Any] = {}
    identity: dict[str, str] = {}
    inner_steps: int = 1
    learning_rate: float = 0.7
    momentum: float = 0.9
    token_weights: bool = False
    codec: str = "none"
    gather: str = "peer"
    fanout: int = 4
    fragments: int = 1
    replicas: int = 1
    quorum: int = 1
    recent: int = 2
    anchor_every: int = 8
    max_norm_ratio: float = 10.0

    def part(self, round_number: int, size: int) -> slice:
        """The slice of the `size` weights that a round averages: all, or one fragment after the
        other.

        >>> Spec(weights=[], schema_sha256="", fragments=3).part(4, 10)
        slice(3, 6, None)
        """
        turn = round_number % self.fragments
        return slice(size * turn // self.fragments, size * (turn + 1) // self.fragments)

    @property
    def levels(self) -> int:
        """The height of the reduction tree; 1 if there is no tree.

        >>> Spec(weights=[], schema_sha256="", gather="tree", fanout=4, replicas=17).levels
        3
        """
        levels = 1
        while self.gather == "tree" and self.fanout**levels < self.replicas:
            levels += 1
        return levels

    def node(self, slot: int, level: int) -> int:
        """The node of a level that a slot belongs to. The last level has the root alone, which also
        takes slots beyond those that the tree was made for.

        >>> spec = Spec(weights=[], schema_sha256="", gather="tree", fanout=4, replicas=17)
        >>> [spec.node(16, level) for level in (1, 2, 3)]
        [4, 1, 0]
        """
        return 0 if level >= self.levels else slot // self.fanout**level

    def group(self, slot: int) -> str:
        """The folder of a slot's group: "" if there is no tree."""
        return f"group-{self.node(slot, 1):04d}/" if self.levels > 1 else ""


class SlotClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's claim to a slot, from round `round` on; a claim of a later epoch ends it."""

    slot: int
    epoch: int
    uuid: str
    round: int


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A pseudo-gradient in the blob `blob`, computed at the weights with `base_sha256` by `steps`
    local steps on `tokens` loss tokens."""

    round: int
    slot: int
    epoch: int
    uuid: str
    blob: str
    sha256: str
    num_bytes: int
    base_sha256: str
    schema_sha256: str
    tokens: int
    steps: int


class SumRef(msgspec.Struct, frozen=True, kw_only=True):
    """A reference to the `Subtotal` of node `index`: the record's key, and the sha256 of its
    bytes."""

    index: int
    key: str
    sha256: str


class Subtotal(msgspec.Struct, frozen=True, kw_only=True):
    """The sum of a tree node: over offers on level 1, over its child nodes' sums above.

    The blob holds the sum. `count` is the number of pseudo-gradients in it, `weight` their weight
    (tokens, or one each), `square` the sum of their squared norms.
    """

    round: int
    level: int
    index: int
    by: str
    blob: str
    sha256: str
    base_sha256: str
    count: int
    weight: float
    square: float
    offers: list[Offer] = []
    parts: list[SumRef] = []
    refused: dict[str, str] = {}
    norms: list[float] = []


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a round: the mean of `offers`, added up in this order, leads to the weights
    with `theta_sha256`.

    `by` is the uuid of the replica that wrote it. `refused` says by a replica's uuid why its offer
    does not count. `norms` are those of the offers, `step_norm` that of the outer step. `drift` is
    the spread of the replicas: the root mean square distance of their pseudo-gradients from the
    mean, over the mean's norm. `merged` names the mean's blob, if it was written. In a tree,
    `parts` are the sums that the root took, and a replica that reads the commit fills in the offers
    of its own group.
    """

    round: int
    offers: list[Offer]
    parts: list[SumRef] = []
    count: int = 0
    theta_sha256: str
    by: str
    refused: dict[str, str] = {}
    norms: list[float] = []
    drift: float = 0.0
    step_norm: float = 0.0
    merged: str = ""
    merged_sha256: str = ""

    @property
    def slots(self) -> list[int]:
        """The slots that took part."""
        return [offer.slot for offer in self.offers]


Record = TypeVar("Record", bound=msgspec.Struct)


def to_bytes(record: msgspec.Struct) -> bytes:
    """A record as JSON."""
    return msgspec.json.encode(record, order="deterministic")


def from_bytes(kind: type[Record], data: bytes, *, key: str) -> Record:
    """A record of this kind; raises DataError for other bytes."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(
            f"not a record of this version: {error}",
            where=key,
            fix="give each run a folder of its own in the store",
        ) from error


def round_folder(number: int) -> str:
    """The folder of one round."""
    return f"rounds/{number:06d}"


def commit_key(number: int) -> str:
    """The key of a round's commit."""
    return f"{round_folder(number)}/commit.json"


def delta_key(number: int, claim: SlotClaim) -> str:
    """The key of a replica's pseudo-gradient."""
    return f"{round_folder(number)}/delta/{claim.slot:04d}.{claim.uuid}"


def offer_key(number: int, claim: SlotClaim, group: str = "") -> str:
    """The key of a replica's offer."""
    return f"{offer_folder(number, group)}/{claim.slot:04d}.{claim.epoch:04d}.json"


def offer_folder(number: int, group: str = "") -> str:
    """The folder of a group's offers."""
    return f"{round_folder(number)}/offer/{group}".rstrip("/")


def sum_key(number: int, node: tuple[int, int], *, count: int, uuid: str) -> str:
    """The key of the sum of a node, (level, index), over `count` pseudo-gradients."""
    return f"{round_folder(number)}/sum/{node[0]}.{node[1]:04d}.{count:04d}.{uuid}"


def parts_folder(number: int, node: tuple[int, int]) -> str:
    """The folder of the records that a node, (level, index), adds up."""
    return f"{round_folder(number)}/part/{node[0]}.{node[1]:04d}"


def part_key(number: int, parent: tuple[int, int], index: int, *, count: int, uuid: str) -> str:
    """The key of the record of child `index`'s sum over `count` pseudo-gradients."""
    return f"{parts_folder(number, parent)}/{index:04d}.{count:04d}.{uuid}.json"


def read_part_key(key: str) -> tuple[int, int, str] | None:
    """(index, count, uuid) of a record's key; None for another.

    >>> read_part_key(part_key(8, (2, 0), 1, count=4, uuid="ab"))
    (1, 4, 'ab')
    """
    match = _PART.fullmatch(key)
    return (int(match[1]), int(match[2]), match[3]) if match else None


def merged_key(number: int, uuid: str) -> str:
    """The key of a mean that one replica publishes for the others."""
    return f"{round_folder(number)}/merged.{uuid}"


def anchor_key(number: int) -> str:
    """The key of the state at the start of a round."""
    return f"anchors/{number:06d}.safetensors"


def anchor_round(key: str) -> int:
    """The round of an anchor's key."""
    return int(key.removeprefix("anchors/").removesuffix(".safetensors"))


def claim_key(slot: int, epoch: int, *, group: str = "", left: bool = False) -> str:
    """The key of a claim, or of the marker that its replica left."""
    return f"slots/{group}{slot:04d}/{epoch:04d}.{'left' if left else 'json'}"


def read_claim_key(key: str) -> tuple[int, int, bool] | None:
    """(slot, epoch, left) of a key below slots/; None for another.

    >>> read_claim_key(claim_key(2, 1, left=True))
    (2, 1, True)
    """
    match = _CLAIM.fullmatch(key)
    return (int(match[1]), int(match[2]), match[3] == "left") if match else None


def read_offer_key(key: str) -> tuple[int, int] | None:
    """(slot, epoch) of an offer's key; None for another key of the round."""
    match = _OFFER.fullmatch(key)
    return (int(match[1]), int(match[2])) if match else None
