"""A few sites watched token by token: what student and teacher think of the mistaken message at the
start and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from composer_replication.core.codec import record_to_json, write_sessions
from composer_replication.core.config.train_settings import HintSettings
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.rundir import RunDir
from composer_replication.losses.hint_loss import hint_divergence
from composer_replication.losses.policy import token_logprobs
from composer_replication.tokens.batch import collate
from composer_replication.tokens.example import TrainingExample, example_from_json, example_to_json
from composer_replication.training.hinting import mixed_teacher, plain_divergence
from composer_replication.training.live import LiveStep
from composer_replication.training.reference import Reference

NUM_SITES = 8
CHUNK = 256
"""Target tokens whose logits are held at a time."""


def probe_examples(
    examples: Sequence[TrainingExample], *, num_sites: int = NUM_SITES
) -> list[TrainingExample]:
    """The first examples that hold `num_sites` hint views between them, kinds in turn so that each
    kind is seen."""
    by_kind: dict[str, list[TrainingExample]] = {}
    for example in examples:
        if example.hints:
            by_kind.setdefault(example.hints[0].kind, []).append(example)
    queues, chosen = [list(queue) for queue in by_kind.values()], []
    while queues and sum(len(e.hints) for e in chosen) < num_sites:
        chosen.append(queues[0].pop(0))
        queues = [q for q in (*queues[1:], queues[0]) if q]
    return chosen


def keep_watched(run: RunDir, examples: Sequence[TrainingExample], *, made: LiveStep) -> None:
    """Write down which examples are watched, so that a resumed run watches the same, after their
    sessions, sites and hints for the page."""
    names, ids = (
        {example.session_id for example in examples},
        {s for e in examples for view in e.hints for s in view.site_ids},
    )
    write_sessions(
        run.watched_dir / "sessions.jsonl",
        [session for session in made.sessions if session.id in names],
    )
    write_lines(
        run.watched_dir / "sites.jsonl",
        [record_to_json(site) for site in made.sites if site.id in ids],
    )
    write_lines(
        run.watched_dir / "hints.jsonl",
        [record_to_json(hint) for hint in made.hints if hint.site_id in ids],
    )
    write_lines(run.watched_jsonl, map(example_to_json, examples))


def kept_watched(run: RunDir) -> list[TrainingExample]:
    """What `keep_watched` wrote; nothing where it was not called."""
    return (
        [example_from_json(value) for _, value in read_lines(run.watched_jsonl)]
        if run.watched_jsonl.exists()
        else []
    )


def token_table(
    examples: Sequence[TrainingExample],
    *,
    student: Reference,
    teachers: Sequence[Reference],
    how: HintSettings,
    tokenizer: Any,
    pad_id: int,
    max_tokens: int,
    device: Any,
) -> list[dict[str, Any]]:
    """Per watched site, for each token: its text, log-prob under the student (no hint) and the
    teacher (with hint), their divergence.

    `CHUNK` targets at a time: about a dozen matrices of (CHUNK, V) are the most that is held,
    however long a message is. The divergence is that of the settings over the whole vocabulary,
    kl(student, teacher) where it has a form of its own (TAID, the gates); `measure` says which.
    Example row: {"site_id": "s1:7:c1", "kind": "bad_args", "ids": [5, 9], "texts": ["re", "ad"],
    "student": [-2.1, -0.3], "teacher": [-4.0, -0.2], "divergence": [0.4, 0.01], "measure": "jsd"}
    """
    table: list[dict[str, Any]] = []
    measure = plain_divergence(how)
    for example in examples:
        batch = collate([example], pad_id=pad_id).to(device)
        ours_ND = student.predictors(batch.student, batch.hint_student, max_tokens=max_tokens)
        theirs_KND = [
            teacher.predictors(batch.teacher, batch.hint_teacher, max_tokens=max_tokens)
            for teacher in teachers
        ]
        numbers: dict[str, list[float]] = {"student": [], "teacher": [], "divergence": []}
        for first in range(0, len(batch.hint_student), CHUNK):
            part = slice(first, first + CHUNK)
            ids_C = batch.hint_student.ids_N[part]
            ours_CV = student.project(ours_ND[part])
            theirs_CV = mixed_teacher(
                how,
                [
                    t.project(hidden_ND[part])
                    for t, hidden_ND in zip(teachers, theirs_KND, strict=True)
                ],
            )
            with torch.no_grad():
                apart_C = hint_divergence(
                    ours_CV,
                    theirs_CV,
                    divergence=measure,
                    beta=how.beta,
                    temperature=how.temperature,
                )
            found = {
                "student": token_logprobs(ours_CV, ids_C),
                "teacher": token_logprobs(theirs_CV, ids_C),
                "divergence": apart_C,
            }
            for name, values_C in found.items():
                numbers[name] += [float(f"{x:.6g}") for x in values_C.tolist()]
        start = 0
        for view in example.hints:
            part = slice(start, start + len(view.target_ids))
            about = {
                "site_id": view.site_id,
                "kind": view.kind,
                "example_id": example.id,
                "measure": measure,
            }
            texts = [tokenizer.decode([i]) for i in view.target_ids]
            table.append(
                {
                    **about,
                    "ids": list(view.target_ids),
                    "texts": texts,
                    **{name: row[part] for name, row in numbers.items()},
                }
            )
            start = part.stop
    return table
