"""The forwards of one micro-batch: final hidden states of the student, and of the models that score
without a gradient.

    forwards = run_passes(models, batch, required)
    forwards.predictors("student", batch.lm)         # (N, D), on the student's graph
    forwards.teachers, forwards.reference_ND         # (N, D), without a gradient

Two layouts, the same values (config.train.layout):
    rows   student rows are one forward, pair rows another, teacher rows are scored in slices; works
           with any model
    tree   all rows are one forest (tokens/tree.py), and what gets a gradient is one forward. A live
           teacher reads the hints on the keys and values of that forward. A frozen teacher and the
           reference of DPO (if the pairs do not carry its log-probs) are one pass without a
           gradient, a slow average is another; a trust region is a live and a frozen teacher.

A loss is computed on detached copies of the hidden states that predict its tokens
(`ForwardResults.leaves`): each loss is walked back once to these, and the trunk once for their sum.
Shapes: B rows, T length, Q tokens of a pass, K tokens of it whose keys and values are kept, M =
B * T or Q, N loss tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.models.activations import in_host_memory, tiled
from composer_replication.models.forward import final_hidden, predictors
from composer_replication.models.tree_attention import KeyValues
from composer_replication.models.tree_forward import dropout_active, tree_hidden
from composer_replication.tokens.batch import Batch, Rows, Targets
from composer_replication.tokens.tree import Forest, ForestBuilder, Pass
from composer_replication.training.forwards.channel_weights import channel_weights
from composer_replication.training.forwards.joined import walk_back
from composer_replication.training.forwards.reference import Reference
from composer_replication.training.forwards.training_models import TrainingModels

Kind = Literal["student", "pair"]
Row = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredForwards:
    """The forwards that the channels with a weight need of one batch.

    `hint`: a teacher scores the views, for a loss or for credit. `sides` is how many pair rows are
    read (none, the chosen ones, or both sides). `pairs`: both sides are compared. `reference`: the
    start scores them too, because the pairs do not carry its log-probs.
    """

    policy: bool
    lm_ce: bool
    hint: bool
    anchors: bool
    sides: int
    pairs: bool
    reference: bool

    @classmethod
    def of(cls, settings: TrainSettings, batch: Batch) -> RequiredForwards:
        """By the weights of the channels, and by what the batch holds."""
        weights = channel_weights(settings)
        pairs = bool(weights["preference"] and batch.num_pairs)
        both_sides, hint = settings.preference.both_sides, settings.hint
        credited = hint.is_credit and len(batch.action) and weights["policy"]
        return cls(
            policy=bool(weights["policy"] and len(batch.action)),
            lm_ce=bool(weights["lm_ce"] and len(batch.lm)),
            hint=bool(hint.weight and len(batch.hint_student) and (credited or weights["hint"])),
            anchors=bool(
                weights["preference"] and settings.preference.anchor and len(batch.anchor)
            ),
            sides=(len(batch.pair) if both_sides else batch.num_pairs) if pairs else 0,
            pairs=pairs and both_sides,
            reference=pairs
            and settings.preference.has_reference
            and not len(batch.reference_logp_N),
        )

    @property
    def student(self) -> bool:
        """Whether any channel reads the student rows."""
        return self.policy or self.lm_ce or self.hint or self.anchors


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResults:
    """The hidden states of one micro-batch.

    `places[kind]` is the number of a tensor of `hidden`, and the place of each (row, position)
    among its M tokens. `teachers` are the predictors of the hint targets: below the site's hint,
    then, for a contrast, below another site's; each by the teacher, and for a trust region by the
    start too. `leaves` are pairs of hidden states on the graph and their detached copies.
    """

    hidden: tuple[Tensor, ...]
    places: dict[Kind, tuple[int, Tensor]]
    teachers: tuple[Tensor, ...] = ()
    reference_ND: Tensor | None = None
    leaves: list[tuple[Tensor, Tensor]] | None = None

    def predictors(self, kind: Kind, targets: Targets) -> Tensor:
        """The student's hidden states (N, D) that predict these tokens; the first of a branch is
        predicted at its parent's end."""
        number, index_BT = self.places[kind]
        hidden_ND = self.hidden[number].flatten(0, 1)[targets.predictors(index_BT)]
        if self.leaves is None:
            return hidden_ND
        self.leaves.append((hidden_ND, hidden_ND.detach().requires_grad_()))
        return self.leaves[-1][1]

    def detached_leaves(self) -> ForwardResults:
        """The same states, of which `predictors` gives detached copies: the backward of a loss ends
        there.

        There is one copy per loss token, so a norm taken there does not depend on what happens to
        share a forward.
        """
        return replace(self, leaves=[])

    def backward(self, models: TrainingModels) -> None:
        """Walk the trunk back once, from the gradients that have gathered at the leaves."""
        pairs = [
            (hidden, leaf.grad)
            for hidden, leaf in self.leaves or ()
            if hidden.requires_grad and leaf.grad is not None
        ]
        walk_back(models, [hidden for hidden, _ in pairs], [grad for _, grad in pairs])


def run_passes(models: TrainingModels, batch: Batch, required: RequiredForwards) -> ForwardResults:
    """Every forward that the channels in use need, in the layout of the run."""
    return (_tree if models.layout == "tree" else _rows)(models, batch, required)


def score_targets(
    models: TrainingModels, reference: Reference, rows: Rows, targets: Targets
) -> Tensor:
    """The hidden states (N, D) that predict these tokens, of a model without a gradient, in the
    layout of the run."""
    if models.layout == "tree":
        return _ask(models, {"": (reference, _ReferenceRequest(rows.lists(), targets))})[""]
    return _row_predictors(models, reference, rows, targets)


@contextmanager
def _scoring(models: TrainingModels, reference: Reference) -> Iterator[Any]:
    """Around forwards of a model without a gradient: nothing is kept, and train.tile bounds what
    one layer needs."""
    with reference.scoring() as model, tiled(model, tile=models.settings.tile):
        yield model


@contextmanager
def _keeping_less(models: TrainingModels) -> Iterator[None]:
    """Around a forward with a gradient: what train.tile and train.offload ask for."""
    model, settings = models.student.model, models.settings
    host = in_host_memory(model) if settings.offload else nullcontext()
    with tiled(model, tile=settings.tile), host:
        yield


# ---- rows ----


def _row_predictors(
    models: TrainingModels, reference: Reference, rows: Rows, targets: Targets
) -> Tensor:
    """The hidden states (N, D) that predict these tokens, by forwards of padded rows."""
    with tiled(reference.model, tile=models.settings.tile):
        return reference.predictors(rows, targets, max_tokens=models.settings.micro_tokens)


def _rows(models: TrainingModels, batch: Batch, required: RequiredForwards) -> ForwardResults:
    """Padded rows: the student's, then the pairs'."""
    model, hidden, places = models.student.model, [], {}
    hint_rows = [(batch.teacher, batch.hint_teacher)] if required.hint else []
    if required.hint and len(batch.wrong):
        hint_rows.append((batch.wrong, batch.hint_wrong))
    teachers = tuple(
        _row_predictors(models, teacher, rows, targets)
        for rows, targets in hint_rows
        for teacher in models.teachers
    )
    reference_ND = None
    if required.reference:
        reference = models.references["preference"]
        reference_ND = _row_predictors(models, reference, batch.pair, batch.response)
    for kind, ids_BT in (
        ("student", batch.student.ids_BT[: len(batch.student) * required.student]),
        ("pair", batch.pair.ids_BT[: required.sides]),
    ):
        if len(ids_BT):
            places[kind] = (
                len(hidden),
                torch.arange(ids_BT.numel(), device=ids_BT.device).view(ids_BT.shape),
            )
            with _keeping_less(models):
                hidden.append(final_hidden(model, ids_BT))
    return ForwardResults(
        hidden=tuple(hidden), places=places, teachers=teachers, reference_ND=reference_ND
    )


# ---- tree ----


@dataclass(frozen=True, slots=True)
class _ReferenceRequest:
    """Rows that a model without a gradient reads, and the tokens whose predictors are needed."""

    rows: list[Row]
    targets: Targets


def _tree(models: TrainingModels, batch: Batch, required: RequiredForwards) -> ForwardResults:
    """One forest; with a live teacher its hint rows are branches on the student's own trunk."""
    model, references = models.student.model, models.references
    student = batch.student.lists() if required.student else []
    sides = batch.pair.lists()[: required.sides]
    if not student and not sides:
        return ForwardResults(hidden=(), places={})
    hint_requests: list[_ReferenceRequest] = []
    if required.hint:
        hint_requests.append(_ReferenceRequest(batch.teacher.lists(), batch.hint_teacher))
        if len(batch.wrong):
            hint_requests.append(_ReferenceRequest(batch.wrong.lists(), batch.hint_wrong))
    # 1. One forward for every row that gets a gradient.
    trunk = [*student, *sides]
    forest = Forest.grow([*trunk, *(row for request in hint_requests for row in request.rows)])
    plan = forest.over(range(len(trunk)))
    # keys and values under dropout are not the teacher's: it then reads the trunk again
    shared = required.hint and references["hint"].is_live(model) and not dropout_active(model)
    key_values, below, place_K = KeyValues() if shared else None, plan, None
    if key_values is not None and models.settings.checkpoint == "layers":
        # no graph holds them any more: only what a hint's branch can see, up to the last hint
        hint_rows = range(len(trunk), len(forest.paths))
        below, place_K = forest.part_of(plan, hint_rows)
        key_values.place_K = place_K
        key_values.on_host = models.settings.offload
    with _keeping_less(models):
        hidden_QD = tree_hidden(model, plan, keep=key_values)
    index_BT = _places(plan, range(len(trunk)), hidden_QD.device)
    places: dict[Kind, tuple[int, Tensor]] = {
        "student": (0, index_BT[: len(student)]),
        "pair": (0, index_BT[len(student) :]),
    }
    # 2. The live teacher reads only what the hints add, on the keys and values of that forward.
    names = {
        (request, teacher): f"{request}:{teacher}"
        for request in range(len(hint_requests))
        for teacher in range(len(models.teachers))
    }
    predictors: dict[str, Tensor] = {}
    if key_values is not None:
        below_KD = hidden_QD.detach()
        if place_K is not None:
            below_KD = below_KD[place_K.to(below_KD.device)]

        def on_cache(part: Sequence[int]) -> Iterator[tuple[Pass, Tensor]]:
            branches = forest.over([len(trunk) + row for row in part], cached=below)
            with _scoring(models, references["hint"]) as live:
                branch_QD = hidden_QD[:0]
                if branches.size:
                    branch_QD = tree_hidden(live, branches, cache=key_values)
            yield branches, torch.cat([below_KD, branch_QD])

        live_predictors = _predictors(
            models, hint_requests, on_cache, known=trunk, first=len(trunk)
        )
        predictors = {names[i, 0]: hidden_ND for i, hidden_ND in enumerate(live_predictors)}
        key_values.layers.clear()  # before any other model runs
    # 3. Every other model: one pass each.
    requests: dict[str, tuple[Reference, _ReferenceRequest]] = {
        name: (models.teachers[teacher], hint_requests[request])
        for (request, teacher), name in names.items()
        if name not in predictors
    }
    if required.reference:
        pair_request = _ReferenceRequest(sides, batch.response)
        requests["preference"] = (references["preference"], pair_request)
    predictors |= _ask(models, requests)
    return ForwardResults(
        hidden=(hidden_QD[None],),
        places=places,
        teachers=tuple(predictors[name] for name in names.values()),
        reference_ND=predictors.get("preference"),
    )


def _ask(
    models: TrainingModels, requests: dict[str, tuple[Reference, _ReferenceRequest]]
) -> dict[str, Tensor]:
    """The predictors by name; requests of the same model are one pass."""
    predictors: dict[str, Tensor] = {}
    names = list(requests)
    while names:
        reference = requests[names[0]][0]
        together = [name for name in names if requests[name][0] == reference]
        same_model = [requests[name][1] for name in together]
        rows = [row for request in same_model for row in request.rows]

        def alone(
            part: Sequence[int], reference: Reference = reference, rows: list[Row] = rows
        ) -> Iterator[tuple[Pass, Tensor]]:
            plan = Forest.grow([rows[row] for row in part]).over(range(len(part)))
            with _scoring(models, reference) as model:
                yield plan, tree_hidden(model, plan)

        predictors |= dict(
            zip(together, _predictors(models, same_model, alone, known=[], first=None), strict=True)
        )
        names = [name for name in names if name not in together]
    return predictors


def _predictors(
    models: TrainingModels,
    requests: list[_ReferenceRequest],
    score: Callable[[Sequence[int]], Iterator[tuple[Pass, Tensor]]],
    *,
    known: Sequence[Row],
    first: int | None,
) -> list[Tensor]:
    """The predictors (N, D) of each request, by forwards of at most train.micro_tokens new tokens
    (and at least one row).

    `first` is the number of the requests' first row in the pass that `score` gives; None if each
    slice is numbered from 0.
    """
    rows = [row for request in requests for row in request.rows]
    row_N = torch.cat(
        [q.targets.row_N + sum(len(p.rows) for p in requests[:k]) for k, q in enumerate(requests)]
    )
    position_N = torch.cat([q.targets.position_N for q in requests])
    out_ND: Tensor | None = None
    for part in slices(rows, known=known, max_tokens=models.settings.micro_tokens):
        for plan, hidden_MD in score(part):
            names = range(len(part)) if first is None else [first + row for row in part]
            index_BT = _places(plan, names, hidden_MD.device)
            local = torch.full((len(rows),), -1, device=row_N.device)
            local[torch.tensor(part, device=row_N.device)] = torch.arange(
                len(part), device=row_N.device
            )
            in_part_N = local[row_N] >= 0
            out_ND = (
                hidden_MD.new_empty(len(row_N), hidden_MD.shape[1]) if out_ND is None else out_ND
            )
            rows_N = local[row_N[in_part_N]]
            out_ND[in_part_N] = hidden_MD[predictors(index_BT, rows_N, position_N[in_part_N])]
    assert out_ND is not None
    return list(out_ND.split([len(q.targets) for q in requests]))


def slices(rows: Sequence[Row], *, known: Sequence[Row], max_tokens: int) -> Iterator[list[int]]:
    """Parts of the rows that add at most `max_tokens` to `known`; a part has at least one row.

    >>> list(slices([(1, 2), (1, 3), (4, 5)], known=[(1,)], max_tokens=2))
    [[0, 1], [2]]
    """

    def fresh() -> ForestBuilder:
        grower = ForestBuilder()
        for row in known:
            grower.add(row)
        return grower

    grower, part = fresh(), []
    base = grower.tokens
    for number, row in enumerate(rows):
        if part and grower.tokens - base + grower.missing(row) > max_tokens:
            yield part
            grower, part = fresh(), []
        grower.add(row)
        part.append(number)
    if part:
        yield part


def _places(plan: Pass, rows: Sequence[int], device: torch.device) -> Tensor:
    """The place of each (row, position) among the tokens of a pass; 0 behind a row's end, where
    nobody reads it."""
    packed = [plan.packed(row) for row in rows]
    index_BT = torch.zeros(len(packed), max(map(len, packed), default=0), dtype=torch.long)
    for number, places in enumerate(packed):
        index_BT[number, : len(places)] = places
    return index_BT.to(device)
