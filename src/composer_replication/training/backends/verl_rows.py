"""The rows that verl moves, and the forward rows that a worker makes of them.

verl balances, shuffles and splits the rows of a batch over its data-parallel ranks, so nothing may
rely on a neighbour. One row that the driver sends is one whole item: an example with its hint
views, or a pair with both of its sides. Only inside the worker do items become rows of a forward:

    forward    student rows, then pair rows, then, for a live teacher, the rows below the hints
    start      for a frozen teacher and the reference of DPO: the rows that the start weights score

All rows of a micro-batch are in one forward, and verl's micro-batches are as long: rows are added
until every micro-batch of every rank has as many (`filled_rows`). No verl and no tensordict here.
Shapes: B rows, T length, M tokens of a forward without padding, N loss tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.channel_names import Channel
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.tokens.batch import Batch, Counts, Rows, Targets, collate, micro_batches
from composer_replication.tokens.example import (
    PreferencePair,
    TrainingExample,
    example_from_json,
    example_to_json,
    pair_from_json,
    pair_to_json,
)
from composer_replication.training.draws.batch_sampler import share
from composer_replication.training.forwards.passes import RequiredForwards

Item = TrainingExample | PreferencePair
FILLER = (0, 0)
"""The row that fills a micro-batch up; nothing is predicted from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What every rank must know of a step: settings, global counts, the scale of each channel (None
    = measure only), TAID's share, the learning rate, the longest gradient that is not clipped, and
    whether a copy of the gradients is kept."""

    settings: TrainSettings
    counts: Counts
    scales: Mapping[Channel, float] | None
    taid_t: float
    pad_id: int
    learning_rate: float = 0.0
    max_norm: float | None = None
    keep_gradients: bool = False

    def to_json(self) -> str:
        """As text, for verl to carry."""
        value = {name: getattr(self, name) for name in self.__slots__}
        settings = self.settings.model_dump(mode="json")
        return json.dumps({**value, "settings": settings, "counts": asdict(self.counts)})

    @classmethod
    def of_json(cls, text: str) -> StepFacts:
        """The inverse of `to_json`."""
        value = json.loads(text)
        settings = TrainSettings.model_validate(value.pop("settings"))
        return cls(settings=settings, counts=Counts(**value.pop("counts")), **value)


def item_bytes(item: Item | None) -> bytes:
    """An item as bytes; b"" for None, a row that only makes the rows divisible."""
    if item is None:
        return b""
    is_pair = isinstance(item, PreferencePair)
    value = pair_to_json(item) if is_pair else example_to_json(item)
    return json.dumps({"pair": is_pair, **value}, separators=(",", ":")).encode()


def item_of_bytes(data: bytes) -> Item | None:
    """The inverse of `item_bytes`; every check of the constructors runs again."""
    if not data:
        return None
    value: dict[str, Any] = json.loads(data)
    return pair_from_json(value) if value.pop("pair") else example_from_json(value)


def rows_of_ranks(
    examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair], *, ranks: int
) -> list[Item | None]:
    """The items in the order in which verl splits them: equally many for each rank, which takes its
    share of either kind as in the reference trainer."""
    shares = [
        [*share(examples, rank=rank, world=ranks), *share(pairs, rank=rank, world=ranks)]
        for rank in range(ranks)
    ]
    longest = max(1, *map(len, shares))
    return [item for part in shares for item in (*part, *[None] * (longest - len(part)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroRows:
    """The rows of one micro-batch. `rows` go through the student's forward, in which `first` is the
    number of the first row of a kind; `start` are those that the start weights score."""

    batch: Batch
    required: RequiredForwards
    rows: tuple[tuple[int, ...], ...]
    first: dict[str, int]
    start: tuple[tuple[Rows, Targets], ...]
    live: bool

    def index(self, kind: str, ids_BT: Tensor) -> Tensor:
        """The place (B, T) of each token of these padded rows among the M tokens of the forward; 0
        behind a row's end, where nobody reads it."""
        offsets = [0, *accumulate(map(len, self.rows))]
        index_BT = torch.zeros(ids_BT.shape, dtype=torch.long)
        for number in range(len(ids_BT)):
            row = self.first[kind] + number
            length = len(self.rows[row])
            index_BT[number, :length] = torch.arange(offsets[row], offsets[row] + length)
        return index_BT.to(ids_BT.device)


def micro_rows(
    settings: TrainSettings,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    *,
    pad_id: int,
) -> MicroRows:
    """The rows of a micro-batch that holds these items, for the channels that are on."""
    batch = collate(examples, pairs, pad_id=pad_id)
    required = RequiredForwards.of(settings, batch)
    live = settings.hint.teacher == "live"
    hints = [("teacher", batch.teacher, batch.hint_teacher)] if required.hint else []
    if required.hint and len(batch.wrong):
        hints.append(("wrong", batch.wrong, batch.hint_wrong))
    kinds = [
        ("student", batch.student.lists() if required.student else []),
        ("pair", batch.pair.lists()[: required.sides]),
        *((name, rows.lists()) for name, rows, _ in hints if live),
    ]
    first, rows = {}, []
    for name, lists in kinds:
        first[name] = len(rows)
        rows += lists
    start = [(hint_rows, targets) for _, hint_rows, targets in hints if not live]
    if required.reference:
        start.append((batch.pair, batch.response))
    return MicroRows(
        batch=batch,
        required=required,
        rows=tuple(rows),
        first=first,
        start=tuple(start),
        live=live,
    )


def plan_micro_batches(
    settings: TrainSettings, items: Sequence[Item | None], *, pad_id: int
) -> list[MicroRows]:
    """A rank's items in forwards of at most train.micro_tokens padded tokens."""
    examples = [item for item in items if isinstance(item, TrainingExample)]
    pairs = [item for item in items if isinstance(item, PreferencePair)]
    parts = micro_batches(examples, pairs, micro_tokens=settings.micro_tokens)
    return [micro_rows(settings, *part, pad_id=pad_id) for part in parts]


def filled_rows(rows: Sequence[tuple[int, ...]], *, size: int) -> list[tuple[int, ...]]:
    """The rows of a micro-batch, with filler rows behind them up to `size`.

    >>> filled_rows([(5, 6, 7)], size=2)
    [(5, 6, 7), (0, 0)]
    """
    if len(rows) > size:
        raise AlignmentError(f"{len(rows)} rows do not fit into a micro-batch of {size}")
    return [*rows, *[FILLER] * (size - len(rows))]


def needs_start(settings: TrainSettings) -> bool:
    """Whether a loss of these settings reads the start weights: the same on every rank."""
    frozen_teacher = settings.hint.weight > 0 and settings.hint.teacher == "frozen"
    return frozen_teacher or (settings.preference.weight > 0 and settings.preference.has_reference)
