"""The forwards of one micro-batch: final hidden states of the student, and of the models that score
without gradient.

    passes = run_passes(trainer, batch, uses)
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
from composer_replication.losses.channel import Channel
from composer_replication.models.forward import final_hidden
from composer_replication.models.tree_attention import KeyValues
from composer_replication.models.tree_forward import dropout_active, tree_attention, tree_hidden
from composer_replication.tokens.batch import Batch, Rows, Targets
from composer_replication.tokens.tree import Forest, ForestBuilder, Pass
from composer_replication.training.reference import Reference
from composer_replication.training.state import Trainer

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
    def of(
        cls, settings: TrainSettings, weights: dict[Channel, float], batch: Batch
    ) -> RequiredForwards:
        """By weights and by what the batch holds."""
        pairs = bool(weights["preference"] and batch.num_pairs)
        both, hint = settings.preference.both_sides, settings.hint
        credited = hint.is_credit and len(batch.action) and weights["policy"]
        return cls(
            policy=bool(weights["policy"] and len(batch.action)),
            lm_ce=bool(weights["lm_ce"] and len(batch.lm)),
            hint=bool(hint.weight and len(batch.hint_student) and (credited or weights["hint"])),
            anchors=bool(
                weights["preference"] and settings.preference.anchor and len(batch.anchor)
            ),
            sides=(len(batch.pair) if both else batch.num_pairs) if pairs else 0,
            pairs=pairs and both,
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
    cut: list[tuple[Tensor, Tensor]] | None = None

    def predictors(self, kind: Kind, targets: Targets) -> Tensor:
        """The student's hidden states (N, D) that predict these tokens: those one position before,
        in the tree at the parent's end."""
        which, index_BT = self.places[kind]
        found_ND = self.hidden[which].flatten(0, 1)[index_BT[targets.row_N, targets.position_N - 1]]
        if self.cut is None:
            return found_ND
        self.cut.append((found_ND, found_ND.detach().requires_grad_()))
        return self.cut[-1][1]

    def leaves(self) -> ForwardResults:
        """The same states, of which `predictors` gives copies cut off from the trunk: a loss is
        walked back to these and no further.

        There is one copy per loss token, so a norm taken there does not depend on what happens to
        share a forward.
        """
        return replace(self, cut=[])

    def backward(self, trainer: Trainer) -> None:
        """Walk the trunk back once, from the gradients that have come together at the copies."""
        pairs = [
            (found, copy.grad)
            for found, copy in self.cut or ()
            if found.requires_grad and copy.grad is not None
        ]
        if pairs:
            with (
                tree_attention(trainer.student.model) if trainer.layout == "tree" else nullcontext()
            ):
                torch.autograd.backward([found for found, _ in pairs], [grad for _, grad in pairs])


def run_passes(trainer: Trainer, batch: Batch, uses: RequiredForwards) -> ForwardResults:
    """Every forward that the channels in use need, in the trainer's layout."""
    return (_tree if trainer.layout == "tree" else _rows)(trainer, batch, uses)


def scored(trainer: Trainer, reference: Reference, rows: Rows, targets: Targets) -> Tensor:
    """The predictors (N, D) of these tokens by a model without gradient, in the trainer's
    layout."""
    if trainer.layout == "tree":
        return _ask(trainer, {"": (reference, _ReferenceRequest(rows.lists(), targets))})[""]
    return reference.predictors(rows, targets, max_tokens=trainer.settings.micro_tokens)


# ---- rows ----


def _rows(trainer: Trainer, batch: Batch, uses: RequiredForwards) -> ForwardResults:
    model, hidden, places = trainer.student.model, [], {}
    hinted = (
        [
            (batch.teacher, batch.hint_teacher),
            *([(batch.wrong, batch.hint_wrong)] if len(batch.wrong) else []),
        ]
        if uses.hint
        else []
    )
    limit = trainer.settings.micro_tokens
    teachers = tuple(
        reference.predictors(*below, max_tokens=limit)
        for below in hinted
        for reference in trainer.teachers
    )
    reference = (
        trainer.references["preference"].predictors(batch.pair, batch.response, max_tokens=limit)
        if uses.reference
        else None
    )
    for kind, ids_BT in (
        ("student", batch.student.ids_BT[: len(batch.student) * uses.student]),
        ("pair", batch.pair.ids_BT[: uses.sides]),
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


def _tree(trainer: Trainer, batch: Batch, uses: RequiredForwards) -> ForwardResults:
    model, references = trainer.student.model, trainer.references
    student = batch.student.lists() if uses.student else []
    sides, views = batch.pair.lists()[: uses.sides], batch.teacher.lists() if uses.hint else []
    if not student and not sides:
        return ForwardResults(hidden=(), places={})
    hinted = [
        _ReferenceRequest(views, batch.hint_teacher),
        *([_ReferenceRequest(batch.wrong.lists(), batch.hint_wrong)] if len(batch.wrong) else []),
    ]
    forest = Forest.grow(
        [*student, *sides, *(row for question in hinted if uses.hint for row in question.rows)]
    )
    plan = forest.over(range(len(student) + len(sides)))
    shared = uses.hint and references["hint"].is_live(model) and not dropout_active(model)
    kept = KeyValues() if shared else None
    hidden_QD = tree_hidden(model, plan, keep=kept)
    device = hidden_QD.device
    index_BT = _places(plan, range(len(student) + len(sides)), device)
    places: dict[Kind, tuple[int, Tensor]] = {
        "student": (0, index_BT[: len(student)]),
        "pair": (0, index_BT[len(student) :]),
    }

    questions: dict[str, tuple[Reference, _ReferenceRequest]] = {}
    answers: dict[str, Tensor] = {}
    names = (
        {
            (below, model): f"{below}:{model}"
            for below in range(len(hinted))
            for model in range(len(trainer.teachers))
        }
        if uses.hint
        else {}
    )
    if kept is not None:
        first = len(student) + len(sides)

        def on_cache(part: Sequence[int]) -> Iterator[tuple[Pass, Tensor]]:
            rest = forest.over([first + row for row in part], cached=plan)
            with references["hint"].scoring() as live:
                own_QD = tree_hidden(live, rest, cache=kept) if rest.size else hidden_QD[:0]
            yield rest, torch.cat([hidden_QD.detach(), own_QD])

        found = _answers(trainer, hinted, on_cache, known=[*student, *sides], first=first)
        answers = {names[below, 0]: below_ND for below, below_ND in enumerate(found)}
    questions |= {
        name: (trainer.teachers[model], hinted[below])
        for (below, model), name in names.items()
        if name not in answers
    }
    if uses.reference:
        questions["preference"] = (
            references["preference"],
            _ReferenceRequest(sides, batch.response),
        )
    answers |= _ask(trainer, questions)
    teachers = tuple(answers[name] for name in names.values())
    return ForwardResults(
        hidden=(hidden_QD[None],),
        places=places,
        teachers=teachers,
        reference_ND=answers.get("preference"),
    )


def _ask(
    trainer: Trainer, questions: dict[str, tuple[Reference, _ReferenceRequest]]
) -> dict[str, Tensor]:
    """The answers by name; questions to one and the same model are put in one pass."""
    found: dict[str, Tensor] = {}
    names = list(questions)
    while names:
        reference = questions[names[0]][0]
        together = [name for name in names if questions[name][0] == reference]
        asked = [questions[name][1] for name in together]
        rows = [row for question in asked for row in question.rows]

        def alone(
            part: Sequence[int], reference: Reference = reference, rows: list[Row] = rows
        ) -> Iterator[tuple[Pass, Tensor]]:
            plan = Forest.grow([rows[row] for row in part]).over(range(len(part)))
            with reference.scoring() as model:
                yield plan, tree_hidden(model, plan)

        found |= dict(
            zip(together, _answers(trainer, asked, alone, known=[], first=None), strict=True)
        )
        names = [name for name in names if name not in together]
    return found


def _answers(
    trainer: Trainer,
    questions: list[_ReferenceRequest],
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
    rows = [row for question in questions for row in question.rows]
    row_N = torch.cat(
        [q.targets.row_N + sum(len(p.rows) for p in questions[:k]) for k, q in enumerate(questions)]
    )
    before_N = torch.cat([q.targets.position_N - 1 for q in questions])
    out_ND: Tensor | None = None
    for part in slices(rows, known=known, max_tokens=trainer.settings.micro_tokens):
        for plan, hidden_MD in score(part):
            names = range(len(part)) if first is None else [first + row for row in part]
            index_BT = _places(plan, names, hidden_MD.device)
            local = torch.full((len(rows),), -1, device=row_N.device)
            local[torch.tensor(part, device=row_N.device)] = torch.arange(
                len(part), device=row_N.device
            )
            here_N = local[row_N] >= 0
            out_ND = (
                hidden_MD.new_empty(len(row_N), hidden_MD.shape[1]) if out_ND is None else out_ND
            )
            out_ND[here_N] = hidden_MD[index_BT[local[row_N[here_N]], before_N[here_N]]]
    assert out_ND is not None
    return list(out_ND.split([len(q.targets) for q in questions]))


def slices(rows: Sequence[Row], *, known: Sequence[Row], max_tokens: int) -> Iterator[list[int]]:
    """Rows in parts that add at most so many tokens to what is known; a part has at least one row.

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
    """The place of (row, position) among the tokens of a pass; behind a row's end it is never
    read."""
    found = [plan.packed(row) for row in rows]
    index_BT = torch.zeros(len(found), max(map(len, found), default=0), dtype=torch.long)
    for number, places in enumerate(found):
        index_BT[number, : len(places)] = places
    return index_BT.to(device)
