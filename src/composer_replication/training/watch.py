"""A few sites watched token by token: what student and teacher think of the mistaken message at the start and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer_replication.losses.policy import token_logprobs
from composer_replication.models.forward import predictors, project
from composer_replication.tokens.batch import Rows, Targets, collate
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.reference import Reference

NUM_SITES = 8


def watched(examples: Sequence[TrainingExample], *, num_sites: int = NUM_SITES) -> list[TrainingExample]:
    """The first examples that hold `num_sites` hint views between them, kinds in turn so that each kind is seen."""
    by_kind: dict[str, list[TrainingExample]] = {}
    for example in examples:
        if example.hints:
            by_kind.setdefault(example.hints[0].kind, []).append(example)
    queues, chosen = [list(queue) for queue in by_kind.values()], []
    while queues and sum(len(e.hints) for e in chosen) < num_sites:
        chosen.append(queues[0].pop(0))
        queues = [q for q in (*queues[1:], queues[0]) if q]
    return chosen


def token_table(
    examples: Sequence[TrainingExample], *, student: Reference, teacher: Reference, pad_id: int, max_tokens: int, device: Any
) -> list[dict[str, Any]]:
    """Per watched site: its ids, and the log-prob of each under the student (no hint) and the teacher (with hint).

    Example row: {"site_id": "s1:7:c1", "kind": "bad_args", "ids": [5, 9], "student": [-2.1, -0.3], "teacher": [-4.0, -0.2]}
    """
    if not examples:
        return []
    batch = collate(examples, pad_id=pad_id).to(device)

    def score(reference: Reference, rows: Rows, targets: Targets) -> list[float]:
        with reference.scoring() as model:
            hidden_ND = predictors(
                model, rows.ids_BT, rows.lengths_B, row_N=targets.row_N, position_N=targets.position_N, max_tokens=max_tokens
            )
            return [round(x, 5) for x in token_logprobs(project(model, hidden_ND), targets.ids_N).tolist()]

    ours, theirs = score(student, batch.student, batch.hint_student), score(teacher, batch.teacher, batch.hint_teacher)
    table, start = [], 0
    for example in examples:
        for view in example.hints:
            part = slice(start, start + len(view.target_ids))
            table.append(
                {
                    "site_id": view.site_id,
                    "kind": view.kind,
                    "example_id": example.id,
                    "ids": list(view.target_ids),
                    "student": ours[part],
                    "teacher": theirs[part],
                }
            )
            start = part.stop
    return table
