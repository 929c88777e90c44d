"""The forwards of one micro-batch: the final hidden states that its losses are computed from.

training/step.py runs them before the losses of forwards/channels.py; logits are not computed here:

    forwards = run_passes(models, batch, RequiredForwards.of(settings, batch)).detached_leaves()
    forwards.predictors("student", batch.lm)         # (N, D), of the student, with gradient
    forwards.teachers, forwards.reference_ND         # (N, D) each, of other models, without
    ...                                              # losses, and their backward to the leaves
    forwards.backward(models)                        # once through the student

Two layouts give the same values (train.layout):

    rows   one forward over the padded student rows, one over the pair rows; teachers and reference
           score their rows in slices. Works with any model
    tree   all rows form a forest that shares prefixes (tokens/tree.py), and student and pair rows
           are one forward. A live teacher, whose weights are the student's, computes only the
           tokens that hints add, on the KV cache of that forward. A frozen teacher and DPO's
           reference model share a forward; an EMA teacher has its own; a trust region is a live
           and a frozen teacher

Losses read detached copies of the hidden states that predict their tokens (`leaves` below): each
loss has a backward to its own copies, and the model one backward for all of them.

Shapes: B rows, T padded length, Q tokens of a pass, K tokens of it whose keys and values are kept,
M tokens of one forward (B * T, or Q), N loss tokens, D hidden size.
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
    """The forwards that a batch needs, for the channels that are on and have tokens in it.

    `hint`: the teacher scores the hint views, for a loss or for credit. `sides`: how many pair rows
    are read (none, the chosen ones, or both sides). `pairs`: the two sides are compared.
    `reference`: DPO's reference model scores them, because the pairs do not carry its log-probs.
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
        """What these settings need of this batch."""
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
    """The final hidden states of one micro-batch.

    `hidden` are the student's, (B, T, D) or (1, Q, D) for each forward. `places[kind]` says which
    of them holds the student or the pair rows, and the index (B, T) of each (row, position) among
    its M tokens. `teachers` predict the hint targets: with the site's hint in the context, then,
    for a contrast, with another site's; each by the teacher, and for a trust region by the student
    at the start, too. `leaves` collects (hidden states on the graph, detached copy) of each loss;
    None while losses read the graph itself.
    """

    hidden: tuple[Tensor, ...]
    places: dict[Kind, tuple[int, Tensor]]
    teachers: tuple[Tensor, ...] = ()
    reference_ND: Tensor | None = None
    leaves: list[tuple[Tensor, Tensor]] | None = None

    def predictors(self, kind: Kind, targets: Targets) -> Tensor:
        """The student's hidden states (N, D) that predict these tokens; the first token of a branch
        is predicted by the last one above it."""
        number, index_BT = self.places[kind]
        hidden_ND = self.hidden[number].flatten(0, 1)[targets.predictors(index_BT)]
        if self.leaves is None:
            return hidden_ND
        self.leaves.append((hidden_ND, hidden_ND.detach().requires_grad_()))
        return self.leaves[-1][1]

    def detached_leaves(self) -> ForwardResults:
        """The same states, of which `predictors` gives detached copies: there the backward of a
        loss ends, and the gradient norm of its channel is taken.

        Each loss has copies of its own, so the norm does not depend on which tokens share a
        forward.
        """
        return replace(self, leaves=[])

    def backward(self, models: TrainingModels) -> None:
        """The backward through the student, once, from the gradients gathered in the leaves."""
        pairs = [
            (hidden, leaf.grad)
            for hidden, leaf in self.leaves or ()
            if hidden.requires_grad and leaf.grad is not None
        ]
        walk_back(models, [hidden for hidden, _ in pairs], [grad for _, grad in pairs])


def run_passes(models: TrainingModels, batch: Batch, required: RequiredForwards) -> ForwardResults:
    """Run the forwards that are required, in the layout of the run."""
    return (_tree if models.layout == "tree" else _rows)(models, batch, required)


def score_targets(
    models: TrainingModels, reference: Reference, rows: Rows, targets: Targets
) -> Tensor:
    """The hidden states (N, D) that predict these tokens, of a model without a gradient, in the
    layout of the run."""
    if models.layout == "tree":
        request = _ReferenceRequest(rows.lists(), targets)
        return _reference_predictors(models, {"": (reference, request)})[""]
    return _row_predictors(models, reference, rows, targets)


@contextmanager
def _scoring(models: TrainingModels, reference: Reference) -> Iterator[Any]:
    """Around forwards of a model without a gradient: no graph, and tiled layers (train.tile)."""
    with reference.scoring() as model, tiled(model, tile=models.settings.tile):
        yield model


@contextmanager
def _saving_memory(models: TrainingModels) -> Iterator[None]:
    """Around a forward with a gradient: tiled layers (train.tile), and activations in host memory
    (train.offload)."""
    model, settings = models.student.model, models.settings
    host = in_host_memory(model) if settings.offload else nullcontext()
    with tiled(model, tile=settings.tile), host:
        yield


def _hint_rows(batch: Batch, required: RequiredForwards) -> list[tuple[Rows, Targets]]:
    """The rows that the teacher scores, with their target tokens: those with the site's hint, then,
    for a contrast, those with another site's."""
    if not required.hint:
        return []
    rows = [(batch.teacher, batch.hint_teacher)]
    if len(batch.wrong):
        rows.append((batch.wrong, batch.hint_wrong))
    return rows


# ---- rows ----


def _row_predictors(
    models: TrainingModels, reference: Reference, rows: Rows, targets: Targets
) -> Tensor:
    """The hidden states (N, D) that predict these tokens, by forwards of padded rows."""
    with tiled(reference.model, tile=models.settings.tile):
        return reference.predictors(rows, targets, max_tokens=models.settings.micro_tokens)


def _rows(models: TrainingModels, batch: Batch, required: RequiredForwards) -> ForwardResults:
    """Layout "rows": teachers and reference, then the student rows and the pair rows."""
    model, hidden, places = models.student.model, [], {}
    teachers = tuple(
        _row_predictors(models, teacher, rows, targets)
        for rows, targets in _hint_rows(batch, required)
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
            with _saving_memory(models):
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
    """Layout "tree": one forward for everything with a gradient, a live teacher on its KV cache,
    then the other models."""
    model, references = models.student.model, models.references
    student = batch.student.lists() if required.student else []
    sides = batch.pair.lists()[: required.sides]
    if not student and not sides:
        return ForwardResults(hidden=(), places={})
    hint_requests = [
        _ReferenceRequest(rows.lists(), targets) for rows, targets in _hint_rows(batch, required)
    ]
    # 1. One forward for every row that gets a gradient.
    trunk = [*student, *sides]
    forest = Forest.grow([*trunk, *(row for request in hint_requests for row in request.rows)])
    plan = forest.over(range(len(trunk)))
    # under dropout the student's keys and values are not the teacher's: it computes its own
    shared = required.hint and references["hint"].is_live(model) and not dropout_active(model)
    key_values, below, place_K = KeyValues() if shared else None, plan, None
    if key_values is not None and models.settings.checkpoint == "layers":
        # under checkpointing they are not part of the graph anyway, so keeping them costs memory:
        # keep those that a hint's tokens attend to
        hint_rows = range(len(trunk), len(forest.paths))
        below, place_K = forest.part_of(plan, hint_rows)
        key_values.place_K = place_K
        key_values.on_host = models.settings.offload
    with _saving_memory(models):
        hidden_QD = tree_hidden(model, plan, keep=key_values)
    index_BT = _places(plan, range(len(trunk)), hidden_QD.device)
    places: dict[Kind, tuple[int, Tensor]] = {
        "student": (0, index_BT[: len(student)]),
        "pair": (0, index_BT[len(student) :]),
    }
    # 2. A live teacher computes only the tokens that hints add, on the KV cache of that forward.
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

        def score_on_cache(part: Sequence[int]) -> tuple[Pass, Tensor]:
            branches = forest.over([len(trunk) + row for row in part], cached=below)
            branch_QD = below_KD[:0]
            if branches.size:
                with _scoring(models, references["hint"]) as live:
                    branch_QD = tree_hidden(live, branches, cache=key_values)
            return branches, torch.cat([below_KD, branch_QD])

        live_predictors = _predictors(
            models, hint_requests, score_on_cache, known=trunk, first_row=len(trunk)
        )
        predictors = {names[i, 0]: hidden_ND for i, hidden_ND in enumerate(live_predictors)}
        key_values.layers.clear()  # frees them before another model runs
    # 3. The other models: frozen and EMA teachers, DPO's reference.
    requests: dict[str, tuple[Reference, _ReferenceRequest]] = {
        name: (models.teachers[teacher], hint_requests[request])
        for (request, teacher), name in names.items()
        if name not in predictors
    }
    if required.reference:
        pair_request = _ReferenceRequest(sides, batch.response)
        requests["preference"] = (references["preference"], pair_request)
    predictors |= _reference_predictors(models, requests)
    return ForwardResults(
        hidden=(hidden_QD[None],),
        places=places,
        teachers=tuple(predictors[name] for name in names.values()),
        reference_ND=predictors.get("preference"),
    )


def _reference_predictors(
    models: TrainingModels, requests: dict[str, tuple[Reference, _ReferenceRequest]]
) -> dict[str, Tensor]:
    """The predictors (N, D) of each request by its name; requests to the same model share its
    forwards."""
    predictors: dict[str, Tensor] = {}
    names = list(requests)
    while names:
        reference = requests[names[0]][0]
        together = [name for name in names if requests[name][0] == reference]
        same_model = [requests[name][1] for name in together]
        rows = [row for request in same_model for row in request.rows]

        def score(
            part: Sequence[int], reference: Reference = reference, rows: list[Row] = rows
        ) -> tuple[Pass, Tensor]:
            plan = Forest.grow([rows[row] for row in part]).over(range(len(part)))
            with _scoring(models, reference) as model:
                return plan, tree_hidden(model, plan)

        outputs = _predictors(models, same_model, score, known=[], first_row=None)
        predictors |= dict(zip(together, outputs, strict=True))
        names = [name for name in names if name not in together]
    return predictors


def _predictors(
    models: TrainingModels,
    requests: list[_ReferenceRequest],
    score: Callable[[Sequence[int]], tuple[Pass, Tensor]],
    *,
    known: Sequence[Row],
    first_row: int | None,
) -> list[Tensor]:
    """The predictors (N, D) of each request, scored in slices of at most train.micro_tokens tokens
    that are not in `known` (and at least one row).

    `score` runs one forward over some of the requests' rows, numbered over all requests, and gives
    the pass and its hidden states (M, D). In the pass the rows are numbered from 0 in each slice,
    or, with `first_row`, from there on over all slices.
    """
    rows = [row for request in requests for row in request.rows]
    # 1. The targets of all requests, with rows numbered over all of them.
    row_parts, num_rows = [], 0
    for request in requests:
        row_parts.append(request.targets.row_N + num_rows)
        num_rows += len(request.rows)
    row_N = torch.cat(row_parts)
    position_N = torch.cat([request.targets.position_N for request in requests])
    # 2. Slice by slice: score the rows, and pick the hidden states that predict their targets.
    out_ND: Tensor | None = None
    for part in slices(rows, known=known, max_tokens=models.settings.micro_tokens):
        plan, hidden_MD = score(part)
        if out_ND is None:
            out_ND = hidden_MD.new_empty(len(row_N), hidden_MD.shape[1])
        rows_in_pass = range(len(part)) if first_row is None else [first_row + row for row in part]
        index_BT = _places(plan, rows_in_pass, hidden_MD.device)
        # each row's number within the slice; -1 for rows of other slices
        number_in_slice = torch.full((len(rows),), -1, device=row_N.device)
        number_in_slice[torch.tensor(part, device=row_N.device)] = torch.arange(
            len(part), device=row_N.device
        )
        in_slice_N = number_in_slice[row_N] >= 0
        slice_rows_N = number_in_slice[row_N[in_slice_N]]
        out_ND[in_slice_N] = hidden_MD[predictors(index_BT, slice_rows_N, position_N[in_slice_N])]
    assert out_ND is not None
    return list(out_ND.split([len(request.targets) for request in requests]))


def slices(rows: Sequence[Row], *, known: Sequence[Row], max_tokens: int) -> Iterator[list[int]]:
    """Numbers of the rows in slices: the rows of a slice have at most `max_tokens` tokens that they
    share neither with each other nor with `known`. A slice has at least one row.

    >>> list(slices([(1, 2), (1, 3), (4, 5)], known=[(1,)], max_tokens=2))
    [[0, 1], [2]]
    """

    def known_forest() -> ForestBuilder:
        builder = ForestBuilder()
        for row in known:
            builder.add(row)
        return builder

    builder, part = known_forest(), []
    num_known = builder.tokens
    for number, row in enumerate(rows):
        if part and builder.tokens - num_known + builder.missing(row) > max_tokens:
            yield part
            builder, part = known_forest(), []
        builder.add(row)
        part.append(number)
    if part:
        yield part


def _places(plan: Pass, rows: Sequence[int], device: torch.device) -> Tensor:
    """The index (B, T) of each (row, position) among the tokens of a pass; 0 behind the end of a
    row, where it is never read."""
    packed = [plan.packed(row) for row in rows]
    index_BT = torch.zeros(len(packed), max(map(len, packed), default=0), dtype=torch.long)
    for number, places in enumerate(packed):
        index_BT[number, : len(places)] = places
    return index_BT.to(device)
