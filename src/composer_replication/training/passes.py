"""The forwards of one micro-batch: final hidden states of the student, and of the models that score
without gradient.

    passes = run_passes(models, batch, uses)
    passes.predictors("student", batch.lm)         # (N, D), on the student's graph
    passes.teachers, passes.reference_ND           # (N, D), without one: hint targets (below each hint, by each model), responses of pairs

Two layouts, the same values (config.train.layout):
    rows   student rows are one forward, pair rows another, teacher rows are scored in slices; works with any model
    tree   all rows are one forest (tokens/tree.py): one forward for what gets a gradient; a live teacher reads the hints on the keys and
           values of that forward; a frozen teacher and the reference of DPO (where the pairs do not carry what it thinks of them) are one
           pass without gradient, a slow average one of its own;
           a trust region is a live and a frozen teacher

Losses hang on copies of what predicts their tokens (`ForwardResults.leaves`), so each is walked
back once, and the trunk once for their sum.
Shapes: B rows, T length, Q tokens of a pass, M = B * T or Q, N loss tokens, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.models.forward import final_hidden
from composer_replication.models.tree_attention import KeyValues
from composer_replication.models.tree_forward import dropout_active, tree_attention, tree_hidden
from composer_replication.tokens.batch import Batch, Rows, Targets
from composer_replication.tokens.tree import Forest, Grower, Pass
from composer_replication.training.channel_weights import channel_weights
from composer_replication.training.reference import Reference
from composer_replication.training.training_models import TrainingModels

Kind = Literal["student", "pair"]
Row = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredForwards:
    """What the weighted channels need of one batch; `sides` is how many pair rows (0, the chosen
    ones, or both sides).

    `hint` = the views are scored by a teacher, for a loss of their own or for credit; `pairs` =
    both sides, `reference` = by the start too, where the pairs do not carry what it thinks of them.
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
    """Hidden states of one micro-batch. `places[kind]` = which of `hidden`, and the place of (row,
    position) among its M tokens.

    `teachers` read the hint targets: below the site's hint, then, for a contrast, below another
    site's; by the teacher, and where it is a trust region by the start too.
    """

    hidden: tuple[Tensor, ...]
    places: dict[Kind, tuple[int, Tensor]]
    teachers: tuple[Tensor, ...] = ()
    reference_ND: Tensor | None = None
    leaves: list[tuple[Tensor, Tensor]] | None = None

    def predictors(self, kind: Kind, targets: Targets) -> Tensor:
        """The student's hidden states (N, D) that predict these tokens: those one position before,
        in the tree at the parent's end."""
        number, index_BT = self.places[kind]
        hidden_ND = self.hidden[number].flatten(0, 1)[
            index_BT[targets.row_N, targets.position_N - 1]
        ]
        if self.leaves is None:
            return hidden_ND
        self.leaves.append((hidden_ND, hidden_ND.detach().requires_grad_()))
        return self.leaves[-1][1]

    def detached_leaves(self) -> ForwardResults:
        """The same states, of which `predictors` gives copies cut off from the trunk: a loss is
        walked back to these and no further.

        There is one copy per loss token, so a norm taken there does not depend on what happens to
        share a forward.
        """
        return replace(self, leaves=[])

    def backward(self, models: TrainingModels) -> None:
        """Walk the trunk back once, from the gradients that have come together at the copies."""
        pairs = [
            (hidden, copy.grad)
            for hidden, copy in self.leaves or ()
            if hidden.requires_grad and copy.grad is not None
        ]
        if pairs:
            with tree_attention(models.student.model) if models.layout == "tree" else nullcontext():
                torch.autograd.backward(
                    [hidden for hidden, _ in pairs], [grad for _, grad in pairs]
                )


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
    return reference.predictors(rows, targets, max_tokens=models.settings.micro_tokens)


# ---- rows ----


def _rows(models: TrainingModels, batch: Batch, required: RequiredForwards) -> ForwardResults:
    model, hidden, places = models.student.model, [], {}
    hint_rows = (
        [
            (batch.teacher, batch.hint_teacher),
            *([(batch.wrong, batch.hint_wrong)] if len(batch.wrong) else []),
        ]
        if required.hint
        else []
    )
    limit = models.settings.micro_tokens
    teachers = tuple(
        reference.predictors(*rows_and_targets, max_tokens=limit)
        for rows_and_targets in hint_rows
        for reference in models.teachers
    )
    reference = (
        models.references["preference"].predictors(batch.pair, batch.response, max_tokens=limit)
        if required.reference
        else None
    )
    for kind, ids_BT in (
        ("student", batch.student.ids_BT[: len(batch.student) * required.student]),
        ("pair", batch.pair.ids_BT[: required.sides]),
    ):
        if len(ids_BT):
            places[kind] = (
                len(hidden),
                torch.arange(ids_BT.numel(), device=ids_BT.device).view(ids_BT.shape),
            )
            hidden.append(final_hidden(model, ids_BT))
    return ForwardResults(
        hidden=tuple(hidden), places=places, teachers=teachers, reference_ND=reference
    )


# ---- tree ----


@dataclass(frozen=True, slots=True)
class _ReferenceRequest:
    """Rows that a model without gradient reads, and the tokens whose predictors are asked for."""

    rows: list[Row]
    targets: Targets


def _tree(models: TrainingModels, batch: Batch, required: RequiredForwards) -> ForwardResults:
    model, references = models.student.model, models.references
    student = batch.student.lists() if required.student else []
    sides, views = (
        batch.pair.lists()[: required.sides],
        batch.teacher.lists() if required.hint else [],
    )
    if not student and not sides:
        return ForwardResults(hidden=(), places={})
    hint_requests = [
        _ReferenceRequest(views, batch.hint_teacher),
        *([_ReferenceRequest(batch.wrong.lists(), batch.hint_wrong)] if len(batch.wrong) else []),
    ]
    forest = Forest.grow(
        [
            *student,
            *sides,
            *(row for question in hint_requests if required.hint for row in question.rows),
        ]
    )
    plan = forest.over(range(len(student) + len(sides)))
    shared = required.hint and references["hint"].is_live(model) and not dropout_active(model)
    key_values = KeyValues() if shared else None
    hidden_QD = tree_hidden(model, plan, keep=key_values)
    device = hidden_QD.device
    index_BT = _places(plan, range(len(student) + len(sides)), device)
    places: dict[Kind, tuple[int, Tensor]] = {
        "student": (0, index_BT[: len(student)]),
        "pair": (0, index_BT[len(student) :]),
    }

    requests: dict[str, tuple[Reference, _ReferenceRequest]] = {}
    predictors_of: dict[str, Tensor] = {}
    names = (
        {
            (below, model): f"{below}:{model}"
            for below in range(len(hint_requests))
            for model in range(len(models.teachers))
        }
        if required.hint
        else {}
    )
    if key_values is not None:
        first = len(student) + len(sides)

        def on_cache(part: Sequence[int]) -> Iterator[tuple[Pass, Tensor]]:
            branches = forest.over([first + row for row in part], cached=plan)
            with references["hint"].scoring() as live:
                branch_QD = (
                    tree_hidden(live, branches, cache=key_values)
                    if branches.size
                    else hidden_QD[:0]
                )
            yield branches, torch.cat([hidden_QD.detach(), branch_QD])

        predictors = _answers(
            models, hint_requests, on_cache, known=[*student, *sides], first=first
        )
        predictors_of = {names[below, 0]: below_ND for below, below_ND in enumerate(predictors)}
    requests |= {
        name: (models.teachers[model], hint_requests[below])
        for (below, model), name in names.items()
        if name not in predictors_of
    }
    if required.reference:
        requests["preference"] = (
            references["preference"],
            _ReferenceRequest(sides, batch.response),
        )
    predictors_of |= _ask(models, requests)
    teachers = tuple(predictors_of[name] for name in names.values())
    return ForwardResults(
        hidden=(hidden_QD[None],),
        places=places,
        teachers=teachers,
        reference_ND=predictors_of.get("preference"),
    )


def _ask(
    models: TrainingModels, requests: dict[str, tuple[Reference, _ReferenceRequest]]
) -> dict[str, Tensor]:
    """The answers by name; questions to one and the same model are put in one pass."""
    predictors: dict[str, Tensor] = {}
    names = list(requests)
    while names:
        reference = requests[names[0]][0]
        together = [name for name in names if requests[name][0] == reference]
        same_model = [requests[name][1] for name in together]
        rows = [row for question in same_model for row in question.rows]

        def alone(
            part: Sequence[int], reference: Reference = reference, rows: list[Row] = rows
        ) -> Iterator[tuple[Pass, Tensor]]:
            plan = Forest.grow([rows[row] for row in part]).over(range(len(part)))
            with reference.scoring() as model:
                yield plan, tree_hidden(model, plan)

        predictors |= dict(
            zip(together, _answers(models, same_model, alone, known=[], first=None), strict=True)
        )
        names = [name for name in names if name not in together]
    return predictors


def _answers(
    models: TrainingModels,
    requests: list[_ReferenceRequest],
    score: Callable[[Sequence[int]], Iterator[tuple[Pass, Tensor]]],
    *,
    known: Sequence[Row],
    first: int | None,
) -> list[Tensor]:
    """The predictors (N, D) of each question. At most train.micro_tokens new tokens (and at least
    one row) go through one forward.

    `first` = the number of the questions' first row in the pass that `score` gives; None where a
    slice is numbered by itself.
    """
    rows = [row for question in requests for row in question.rows]
    row_N = torch.cat(
        [q.targets.row_N + sum(len(p.rows) for p in requests[:k]) for k, q in enumerate(requests)]
    )
    before_N = torch.cat([q.targets.position_N - 1 for q in requests])
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
            out_ND[in_part_N] = hidden_MD[index_BT[local[row_N[in_part_N]], before_N[in_part_N]]]
    assert out_ND is not None
    return list(out_ND.split([len(q.targets) for q in requests]))


def slices(rows: Sequence[Row], *, known: Sequence[Row], max_tokens: int) -> Iterator[list[int]]:
    """Rows in parts that add at most so many tokens to what is known; a part has at least one row.

    >>> list(slices([(1, 2), (1, 3), (4, 5)], known=[(1,)], max_tokens=2))
    [[0, 1], [2]]
    """

    def fresh() -> Grower:
        grower = Grower()
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
    """The place of (row, position) among the tokens of a pass; behind a row's end it is never
    read."""
    packed = [plan.packed(row) for row in rows]
    index_BT = torch.zeros(len(packed), max(map(len, packed), default=0), dtype=torch.long)
    for number, places in enumerate(packed):
        index_BT[number, : len(places)] = places
    return index_BT.to(device)
