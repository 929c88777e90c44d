"""The token probe: a few sites whose mistaken messages are scored token by token under student and
teacher, at the start and at the end of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.core.codec import record_to_json, write_sessions
from composer_replication.core.config.train_settings import HintSettings
from composer_replication.core.jsonl import read_lines, write_lines
from composer_replication.core.rundir import RunDir
from composer_replication.core.time_left import WorkLeft, eta
from composer_replication.models.activations import tiled
from composer_replication.tokens.batch import Batch, Rows, collate
from composer_replication.tokens.example import TrainingExample, example_from_json, example_to_json
from composer_replication.training.forwards.hinting import (
    ScoredHidden,
    plain_divergence,
    shown_values,
)
from composer_replication.training.forwards.joined import joined
from composer_replication.training.forwards.reference import Reference, live_reference
from composer_replication.training.forwards.training_models import TrainingModels
from composer_replication.training.on_policy.live import LiveStep
from composer_replication.training.run.run_logger import Phase, RunLogger


def probe_examples(examples: Sequence[TrainingExample], *, num_sites: int) -> list[TrainingExample]:
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


def save_probe(run: RunDir, examples: Sequence[TrainingExample], *, live_step: LiveStep) -> None:
    """Write the probed examples of rollouts, after their sessions, sites and hints.

    A resumed run probes the same examples; the page shows them.
    """
    session_ids = {example.session_id for example in examples}
    site_ids = {name for e in examples for view in e.hints for name in view.site_ids}
    write_sessions(
        run.watched_dir / "sessions.jsonl",
        [session for session in live_step.sessions if session.id in session_ids],
    )
    write_lines(
        run.watched_dir / "sites.jsonl",
        [record_to_json(site) for site in live_step.sites if site.id in site_ids],
    )
    write_lines(
        run.watched_dir / "hints.jsonl",
        [record_to_json(hint) for hint in live_step.hints if hint.site_id in site_ids],
    )
    # last: `load_probe` takes this file as the sign that the others are complete
    write_lines(run.watched_jsonl, map(example_to_json, examples))


def load_probe(run: RunDir) -> list[TrainingExample]:
    """The examples that `save_probe` wrote; none if it was not called."""
    if not run.watched_jsonl.exists():
        return []
    return [example_from_json(value) for _, value in read_lines(run.watched_jsonl)]


@dataclass(slots=True, kw_only=True)
class TokenProbe:
    """The sites that a run watches, and the writer of their tables.

    `examples` are imported ones, known before the first step, or those of rollouts, chosen once
    (`choose`) from the first step that has a hint view.
    """

    models: TrainingModels
    run_logger: RunLogger
    examples: list[TrainingExample]

    def choose(self, live_step: LiveStep, *, step: int) -> None:
        """Choose the examples to probe for the rest of the run, resumed or not, and write their
        first table; does nothing if they are chosen already."""
        if self.examples:
            return
        self.examples = probe_examples(
            [replace(e, actions=()) for e in live_step.examples],
            num_sites=self.models.settings.probe_sites,
        )
        if not self.examples:
            return
        self.write(step)
        if self.run_logger.main:  # last: a run that is killed before this chooses again
            save_probe(self.run_logger.run, self.examples, live_step=live_step)

    def write(self, step: int) -> None:
        """Write the log-probs of the watched sites, token by token, after `step` steps."""
        if not self.examples:
            return
        student = self.models.student
        with joined(self.models):
            table = token_table(
                self.examples,
                student=live_reference(student),
                teachers=self.models.teachers,
                hint_settings=self.models.settings.hint,
                tokenizer=student.tokenizer,
                pad_id=student.pad_id,
                max_tokens=self.models.settings.micro_tokens,
                device=self.models.device,
                tile=self.models.settings.tile,
                on_progress=self.run_logger.progress,
            )
        self.run_logger.tokens(step, table)


@dataclass(slots=True, kw_only=True)
class _Progress:
    """How many of the probe's forwards are done, and the time left by their tokens."""

    total_rows: int
    work: WorkLeft
    """In tokens."""
    rows: int = 0

    @classmethod
    def of(cls, batches: Sequence[Batch], *, num_teachers: int) -> _Progress:
        """The progress before the first forward."""
        rows = [batch.student for batch in batches]
        rows += [batch.teacher for batch in batches] * num_teachers
        tokens = sum(int(r.lengths_B.sum()) for r in rows)
        return cls(
            total_rows=sum(map(len, rows)), work=WorkLeft(total=tokens, began=time.monotonic())
        )

    def add(self, rows: Rows) -> None:
        """Record that these rows went through a model."""
        self.rows += len(rows)
        self.work.add(int(rows.lengths_B.sum()), now=time.monotonic())

    def __call__(self) -> str:
        """The phase, e.g. "token probe: 3 of 16 rows, eta 1m15s"."""
        left = eta(self.work.seconds(now=time.monotonic()))
        return f"token probe: {self.rows} of {self.total_rows} rows, eta {left}"


def token_table(
    examples: Sequence[TrainingExample],
    *,
    student: Reference,
    teachers: Sequence[Reference],
    hint_settings: HintSettings,
    tokenizer: Any,
    pad_id: int,
    max_tokens: int,
    device: Any,
    tile: int = 0,
    on_progress: Callable[[Phase], None] = lambda phase: None,
) -> list[dict[str, Any]]:
    """One row per probed site: for each token its text, its log-prob under the student (without the
    hint) and under the teacher (with it), and their divergence.

    It needs no more memory than a training step on these examples: a row at a time goes through the
    model, in tiles of `tile` tokens, and the logits exist in the losses' chunks, however long a
    message is. The divergence is that of the settings over the whole vocabulary, kl(student,
    teacher) if it is none of the three plain ones (TAID, the gates); `measure` names it. A row:
    {"site_id": "s1:7:c1", "kind": "bad_args", "example_id":
    "s1", "measure": "jsd", "ids": [5, 9], "texts": ["re", "ad"], "student": [-2.1, -0.3],
    "teacher": [-4.0, -0.2], "divergence": [0.4, 0.01]}
    """
    table: list[dict[str, Any]] = []
    measure = plain_divergence(hint_settings)
    batches = [collate([example], pad_id=pad_id) for example in examples]
    progress = _Progress.of(batches, num_teachers=len(teachers))
    on_progress(progress)
    for example, on_cpu in zip(examples, batches, strict=True):
        batch = on_cpu.to(device)
        # a row at a time: no forward is longer than the session's own
        longest = min(max_tokens, len(example.ids))
        with tiled(student.model, tile=tile):
            student_ND = student.predictors(batch.student, batch.hint_student, max_tokens=longest)
        progress.add(batch.student)
        scored: list[ScoredHidden] = []
        for teacher in teachers:
            with tiled(teacher.model, tile=tile):
                hidden_ND = teacher.predictors(
                    batch.teacher, batch.hint_teacher, max_tokens=longest
                )
            scored.append((hidden_ND, teacher.head()))
            progress.add(batch.teacher)
        student_scores = (student_ND, student.head())
        values = shown_values(hint_settings, student_scores, scored, batch.hint_student.ids_N)
        numbers = {
            name: [float(f"{x:.6g}") for x in values_N.tolist()]
            for name, values_N in values.items()
        }
        start = 0
        for view in example.hints:
            part = slice(start, start + len(view.target_ids))
            site = {
                "site_id": view.site_id,
                "kind": view.kind,
                "example_id": example.id,
                "measure": measure,
            }
            texts = [tokenizer.decode([i]) for i in view.target_ids]
            table.append(
                {
                    **site,
                    "ids": list(view.target_ids),
                    "texts": texts,
                    **{name: row[part] for name, row in numbers.items()},
                }
            )
            start = part.stop
    return table
