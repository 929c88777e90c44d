"""Training examples and preference pairs as tensors: what one forward reads and is trained on.

training/step.py counts the loss tokens of the whole step (`count`), cuts it into micro-batches
(`micro_batches`) and collates each:

    counts = count(examples, pairs)                      # before any forward: the denominators
    for part, part_pairs in micro_batches(examples, pairs, micro_tokens=8192):
        batch = collate(part, part_pairs, pad_id=0)
        batch.student.ids_BT, batch.lm.predictors(hidden_BTD)

A batch has up to four sets of rows:

    student rows   one per example: for policy, lm_ce, the student's side of hints, and anchors
    teacher rows   one per hint view: ids[:at] + hint + ids[at:end of the target]
    wrong rows     the same with another site's hint, if the views carry one (train.hint.contrast)
    pair rows      the chosen side of every pair, then the rejected sides in the same order

Loss tokens are picked from rows by index (`Targets`). The token at position j is predicted by the
hidden state at j - 1. Rows are padded on the right; the attention mask comes from their lengths,
so the pad id may also occur in the text.

Shapes: B rows, T padded length, S spans, N loss tokens of one channel, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
from torch import Tensor

from composer_replication.core.errors import AlignmentError
from composer_replication.models.forward import predictors
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    SampledMessage,
    Span,
    TrainingExample,
)
from composer_replication.tokens.forward_size import check_forward_size, forward_sizes, pair_size

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Token ids padded on the right, and the length of each row without padding."""

    ids_BT: Tensor
    lengths_B: Tensor

    @property
    def attention_BT(self) -> Tensor:
        """1 on the tokens of a row, 0 on padding; from the lengths, never from the ids."""
        return (
            torch.arange(self.ids_BT.shape[1], device=self.ids_BT.device)[None]
            < self.lengths_B[:, None]
        ).long()

    def __len__(self) -> int:
        return self.ids_BT.shape[0]

    def lists(self) -> list[tuple[int, ...]]:
        """The rows without padding, as tuples of ids."""
        return [
            tuple(ids[:n])
            for ids, n in zip(self.ids_BT.tolist(), self.lengths_B.tolist(), strict=True)
        ]

    def to(self, device: torch.device | str) -> Rows:
        """The same rows on another device."""
        return Rows(ids_BT=self.ids_BT.to(device), lengths_B=self.lengths_B.to(device))


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The loss tokens of one channel in a set of rows.

    Token k has the id ids_N[k] and is at (row_N[k], position_N[k]). It belongs to item item_N[k] <
    num_items: a span, or the hint view that a span is part of.
    """

    row_N: Tensor
    position_N: Tensor
    ids_N: Tensor
    item_N: Tensor
    num_items: int

    def __len__(self) -> int:
        return self.ids_N.shape[0]

    def predictors(self, hidden_BTD: Tensor) -> Tensor:
        """The hidden states (N, D) that predict these tokens: those one position before them."""
        return predictors(hidden_BTD, self.row_N, self.position_N)

    def first(self, num_items: int) -> Targets:
        """The targets of the first `num_items` items."""
        selected = {
            name: getattr(self, name)[self.item_N < num_items]
            for name in ("row_N", "position_N", "ids_N", "item_N")
        }
        return Targets(**selected, num_items=num_items)

    def to(self, device: torch.device | str) -> Targets:
        """The same targets on another device."""
        moved = {
            name: getattr(self, name).to(device)
            for name in ("row_N", "position_N", "ids_N", "item_N")
        }
        return Targets(**moved, num_items=self.num_items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What each channel finds in a set of examples and pairs; over a whole step, the denominators
    of the channels' means. Counts of disjoint sets add up.

    policy       `rollouts`: examples with an action whose advantage is not 0, `action_tokens` the
                 tokens of these actions. `sampled_rollouts` includes the rollouts of flat groups
                 (training/step.py sets it): Dr.GRPO's divisor. `policy_tokens` are the tokens of
                 all actions: the divisor of a mean over tokens
    lm_ce        `lm_spans` and their `lm_tokens`
    hint         `hint_views` and their target tokens, `hint_tokens`; `hint_view_weight` and
                 `hint_weight` are the same, each weighted by the difficulty of its view
    hint credit  `credited_tokens`: action tokens in a hint view; `credited_views`: views with some
    preference   `pairs`, `pair_tokens` of both sides, `chosen_tokens`; `anchors` and their
                 `anchor_tokens`

    Example: Counts(action_tokens=90, rollouts=4, sampled_rollouts=6, lm_tokens=310, lm_spans=12,
    hint_tokens=48, hint_views=2)
    """

    action_tokens: int = 0
    policy_tokens: int = 0
    rollouts: int = 0
    sampled_rollouts: int = 0
    lm_tokens: int = 0
    lm_spans: int = 0
    hint_tokens: int = 0
    hint_views: int = 0
    hint_weight: float = 0.0
    hint_view_weight: float = 0.0
    credited_tokens: int = 0
    credited_views: int = 0
    pair_tokens: int = 0
    chosen_tokens: int = 0
    pairs: int = 0
    anchor_tokens: int = 0
    anchors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch as tensors; a channel without tokens has tensors of size 0.

    Rows: `student`, `teacher`, `wrong` and `pair`, see the top of this file. Loss tokens, with the
    numbers that belong to them (float32, one per token):

    action         tokens that the student sampled, with `sampled_logp_N` (the sampler's log-prob)
                   and `advantage_N`; actions of advantage 0 are left out, their loss is 0
    lm, anchor     tokens of lm_ce, and of the anchors of the preference channel
    hint_student   target tokens of the hint views in student rows, with `hint_logp_N` (the
                   sampler's log-prob, 0 if unknown), `hint_weight_N` (the view's difficulty, or 1)
                   and `hint_size_N` (the number of target tokens of its view)
    hint_teacher, hint_wrong
                   the same tokens, in the same order, in teacher and in wrong rows
    response       tokens of both sides of the pairs, with `reference_logp_N` (the reference
                   model's log-prob; empty if the pairs do not carry it)
    """

    student: Rows
    teacher: Rows
    pair: Rows
    action: Targets
    sampled_logp_N: Tensor
    advantage_N: Tensor
    lm: Targets
    anchor: Targets
    hint_student: Targets
    hint_teacher: Targets
    hint_logp_N: Tensor
    hint_weight_N: Tensor
    hint_size_N: Tensor
    wrong: Rows
    hint_wrong: Targets
    response: Targets
    reference_logp_N: Tensor
    counts: Counts

    @property
    def num_pairs(self) -> int:
        """The number of pairs; the first `num_pairs` pair rows are the chosen ones."""
        return len(self.pair) // 2

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        names = [f.name for f in fields(self) if f.name != "counts"]
        return Batch(**{name: getattr(self, name).to(device) for name in names}, counts=self.counts)


def count(examples: Iterable[TrainingExample], pairs: Iterable[PreferencePair] = ()) -> Counts:
    """Counts of every channel, without a tensor: equal on every rank that holds the same lists.

    >>> e = TrainingExample(id="e", session_id="s", ids=(5, 6, 7), lm_spans=((1, 3),))
    >>> count([e]).lm_tokens
    2
    """
    examples, pairs = list(examples), list(pairs)
    scored = [actions for e in examples if (actions := scored_actions(e))]
    return Counts(
        action_tokens=sum(len(action.logprobs) for actions in scored for action in actions),
        policy_tokens=sum(len(action.logprobs) for e in examples for action in e.actions),
        rollouts=len(scored),
        sampled_rollouts=len(scored),
        lm_tokens=sum(b - a for e in examples for a, b in e.lm_spans),
        lm_spans=sum(len(e.lm_spans) for e in examples),
        hint_tokens=sum(len(v.target_ids) for e in examples for v in e.hints),
        hint_views=sum(len(e.hints) for e in examples),
        hint_weight=sum(_weight(v) * len(v.target_ids) for e in examples for v in e.hints),
        hint_view_weight=sum(_weight(v) for e in examples for v in e.hints),
        credited_tokens=sum(
            len(positions) for e in examples if (positions := _credited_positions(e))
        ),
        credited_views=sum(
            bool(positions & _target_positions(v))
            for e in examples
            if (positions := _credited_positions(e))
            for v in e.hints
        ),
        pair_tokens=sum(len(p.chosen_ids) + len(p.rejected_ids) for p in pairs),
        chosen_tokens=sum(len(p.chosen_ids) for p in pairs),
        pairs=len(pairs),
        anchor_tokens=sum(b - a for e in examples for a, b in e.anchored),
        anchors=sum(len(e.anchored) for e in examples),
    )


def _weight(view: HintView) -> float:
    return 1.0 if view.difficulty is None else view.difficulty


def _credited_positions(example: TrainingExample) -> set[int]:
    """Positions of scored actions that lie in a hint view."""
    action_positions = (
        {position for action in scored_actions(example) for position in range(*action.span)}
        if example.hints
        else set()
    )
    return action_positions & {
        position for view in example.hints for position in _target_positions(view)
    }


def _target_positions(view: HintView) -> set[int]:
    return {position for span in view.spans for position in range(*span)}


def scored_actions(example: TrainingExample) -> list[SampledMessage]:
    """The actions whose advantage is not 0; the others have neither loss nor gradient."""
    return [action for action in example.actions if action.advantage != 0]


def collate(
    examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair] = (), *, pad_id: int
) -> Batch:
    """The batch of some examples and pairs.

    For example, two examples, one of them with a hint view, and one pair give 2 student rows, 1
    teacher row and 2 pair rows. Raises AlignmentError if the target ids of a view differ between
    student and teacher rows, or if only some of the views carry another site's hint, or some of the
    pairs the reference's log-probs.
    """
    # 1. Rows. `views` and `scored` hold the student row of each view and action.
    views = [(row, e, v) for row, e in enumerate(examples) for v in e.hints]
    scored = [(row, action) for row, e in enumerate(examples) for action in scored_actions(e)]
    wrong_views = [(e, e.wrong_view(v)) for _, e, v in views if v.wrong_ids]
    if wrong_views and len(wrong_views) != len(views):
        raise AlignmentError(
            f"{len(wrong_views)} of {len(views)} hint views carry another site's hint"
        )
    wrong = _pad_rows([e.teacher_ids(v) for e, v in wrong_views], pad_id)
    student = _pad_rows([e.ids for e in examples], pad_id)
    teacher = _pad_rows([e.teacher_ids(v) for _, e, v in views], pad_id)
    sides = [(p.prefix_ids, p.chosen_ids) for p in pairs] + [
        (p.prefix_ids, p.rejected_ids) for p in pairs
    ]
    with_reference = [p for p in pairs if p.reference]
    if with_reference and len(with_reference) != len(pairs):
        raise AlignmentError(
            f"{len(with_reference)} of {len(pairs)} pairs carry the reference's log-probs"
        )
    reference_logps = [p.reference[: len(p.chosen_ids)] for p in with_reference] + [
        p.reference[len(p.chosen_ids) :] for p in with_reference
    ]
    pair = _pad_rows([prefix + side for prefix, side in sides], pad_id)
    # 2. Loss tokens. A view has several spans if its target is several calls.
    span_views = [number for number, (_, _, v) in enumerate(views) for _ in v.spans]
    batch = Batch(
        student=student,
        teacher=teacher,
        pair=pair,
        action=_targets(student, [(row, action.span) for row, action in scored]),
        sampled_logp_N=torch.tensor(
            [x for _, action in scored for x in action.logprobs], dtype=torch.float32
        ),
        advantage_N=torch.tensor(
            [action.advantage for _, action in scored for _ in action.logprobs], dtype=torch.float32
        ),
        lm=_targets(
            student, [(row, span) for row, e in enumerate(examples) for span in e.lm_spans]
        ),
        anchor=_targets(
            student, [(row, span) for row, e in enumerate(examples) for span in e.anchored]
        ),
        hint_student=_targets(
            student, [(row, span) for row, _, v in views for span in v.spans], items=span_views
        ),
        hint_teacher=_targets(
            teacher,
            [(row, span) for row, (_, e, v) in enumerate(views) for span in e.teacher_spans(v)],
            items=span_views,
        ),
        hint_logp_N=torch.tensor(
            [x for _, _, v in views for x in v.logprobs or (0.0,) * len(v.target_ids)],
            dtype=torch.float32,
        ),
        hint_weight_N=torch.tensor(
            [_weight(v) for _, _, v in views for _ in v.target_ids], dtype=torch.float32
        ),
        hint_size_N=torch.tensor(
            [len(v.target_ids) for _, _, v in views for _ in v.target_ids], dtype=torch.float32
        ),
        wrong=wrong,
        hint_wrong=_targets(
            wrong,
            [(row, span) for row, (e, v) in enumerate(wrong_views) for span in e.teacher_spans(v)],
            items=span_views,
        ),
        response=_targets(
            pair,
            [
                (row, (len(prefix), len(prefix) + len(side)))
                for row, (prefix, side) in enumerate(sides)
            ],
        ),
        reference_logp_N=torch.tensor(
            [x for side in reference_logps for x in side], dtype=torch.float32
        ),
        counts=count(examples, pairs),
    )
    _check_target_ids(batch, [v for _, _, v in views])
    return batch


def _check_target_ids(batch: Batch, views: Sequence[HintView]) -> None:
    """Raise AlignmentError unless the hint views' target ids are the same in student and teacher
    rows (the constructors of examples check that already)."""
    expected = torch.tensor([i for view in views for i in view.target_ids], dtype=torch.long)
    targets = [batch.hint_student, batch.hint_teacher]
    if len(batch.wrong):
        targets.append(batch.hint_wrong)
    if not all(torch.equal(target.ids_N, expected) for target in targets):
        names = ", ".join(view.site_id for view in views)
        raise AlignmentError("student and teacher do not hold the same target ids", where=names)


def micro_batches(
    examples: Sequence[TrainingExample], pairs: Sequence[PreferencePair] = (), *, micro_tokens: int
) -> list[tuple[list[TrainingExample], list[PreferencePair]]]:
    """Cut one step into micro-batches of at most `micro_tokens` padded tokens, for layout "rows".

    The limit holds for the student rows and for the pair rows of a part, each; rows of similar
    length go together. Teacher rows do not count: they are scored in slices of their own
    (training/forwards/passes.py). Raises ConfigError if one row, or the two rows of a pair, do not
    fit: no row is ever truncated.
    """
    for size, name in forward_sizes(examples, pairs):
        check_forward_size(name, size, micro_tokens=micro_tokens)
    example_parts = _pack([(len(e.ids), e) for e in examples], micro_tokens)
    pair_parts = _pack([(pair_size(p, layout="rows"), p) for p in pairs], micro_tokens)
    num_parts = max(len(example_parts), len(pair_parts))
    return [
        (
            example_parts[i] if i < len(example_parts) else [],
            pair_parts[i] if i < len(pair_parts) else [],
        )
        for i in range(num_parts)
    ]


def _pack(sized: list[tuple[int, Item]], micro_tokens: int) -> list[list[Item]]:
    """Items in parts of at most `micro_tokens` after padding: greedy, longest first, so a part is
    padded to the length of its first item."""
    parts: list[list[Item]] = []
    widest = 0
    for size, item in sorted(sized, key=lambda pair: -pair[0]):
        if parts and widest * (len(parts[-1]) + 1) <= micro_tokens:
            parts[-1].append(item)
        else:
            parts.append([item])
            widest = size
    return parts


def _pad_rows(sequences: Sequence[Sequence[int]], pad_id: int) -> Rows:
    longest = max((len(s) for s in sequences), default=0)
    ids_BT = torch.full((len(sequences), longest), pad_id, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids_BT[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
    return Rows(
        ids_BT=ids_BT, lengths_B=torch.tensor([len(s) for s in sequences], dtype=torch.long)
    )


def _targets(
    rows: Rows, spans: Sequence[tuple[int, Span]], *, items: Sequence[int] | None = None
) -> Targets:
    """Every token of some spans, each (row, [start, end)), in order.

    A token's item is the number of its span, or what `items` gives for that span (from 0, in
    order). Raises AlignmentError for a span that leaves its row, or begins it: nothing predicts the
    first token of a row.
    """
    lengths = rows.lengths_B.tolist()
    for row, (a, b) in spans:
        if not 0 < a < b <= lengths[row]:
            raise AlignmentError(
                f"span {a}-{b} leaves its row of {lengths[row]} tokens, or nothing predicts its"
                " first"
            )
    row_S, start_S, end_S = (
        torch.tensor([(row, a, b) for row, (a, b) in spans], dtype=torch.long).view(-1, 3).unbind(1)
    )
    size_S = end_S - start_S
    first_S = size_S.cumsum(0) - size_S  # index in N of each span's first token
    span_N = torch.repeat_interleave(size_S)
    row_N = row_S[span_N]
    position_N = start_S[span_N] + torch.arange(len(span_N)) - first_S[span_N]
    ids_N = rows.ids_BT[row_N, position_N] if spans else torch.zeros(0, dtype=torch.long)
    item_S = torch.arange(len(spans)) if items is None else torch.tensor(items, dtype=torch.long)
    return Targets(
        row_N=row_N,
        position_N=position_N,
        ids_N=ids_N,
        item_N=item_S[span_N],
        num_items=len(spans) if items is None else max(items, default=-1) + 1,
    )
