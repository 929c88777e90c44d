"""The warm-up of the tiny student: cross-entropy on lessons, with a curriculum for copying.

    model = warm_up(tokenizer, plan=WarmUpSettings(steps=900, seed=7), on_step=print)

Muon trains the matrices, AdamW the rest, and the first steps also train on repeated random names:
with AdamW alone a student of this size is still at a loss of 0.39 after 550 steps, with both
it is at 0.14 after 150 (measured on an earlier workshop). The rate is constant and falls linearly
over the last half.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.config.base import stage_seed
from composer_replication.losses.policy import lm_ce
from composer_replication.models.forward import final_hidden, project
from composer_replication.models.tiny import make_tiny
from composer_replication.tokens.batch import Targets, collate
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.demonstrators import Habits
from composer_replication.workshop.lessons import Lesson, LessonTests, make_lesson
from composer_replication.workshop.vocabulary import (
    EDITORS,
    FILES,
    NAMES,
    READERS,
    SEARCHERS,
    STYLES,
)

HEAD_DIM, FEED_FORWARD = 32, 320
CERTAIN = Habits()
COPY_ROWS, COPY_LENGTH, COPY_WEIGHT = 6, 24, 0.5
BUCKETS = 8
"""The number of batches that are made at once and sorted by length, so that little is padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpSettings:
    """The settings of one warm-up; the first `copy_steps` steps also train on the copy
    curriculum."""

    steps: int = 1100
    lessons: int = 16
    copy_steps: int = 400
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    ramp: int = 50
    seed: int = 7
    habits: Habits = CERTAIN
    led: float = 0.0


def warm_up(
    tokenizer: Any,
    *,
    plan: WarmUpSettings,
    model: Any = None,
    on_step: Callable[[int, float, Any], None] | None = None,
    lesson_of: Callable[[str], Lesson] | None = None,
) -> Any:
    """A student that plays the workshop as carelessly as its teacher and follows hints; trained
    from random weights, or from those of `model`. `lesson_of` gives the lesson of a name, by
    default one of the workshop's."""
    if model is None:
        model = make_tiny(tokenizer, seed=plan.seed, head_dim=HEAD_DIM, feed_forward=FEED_FORWARD)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimisers = [
        torch.optim.Muon(matrices, lr=plan.muon_rate, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=plan.adam_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    batches = _batches(Renderer.for_tokenizer(tokenizer), plan, lesson_of=lesson_of)
    names = _tokens_to_copy(tokenizer)
    rng = random.Random(stage_seed(plan.seed, "copies"))
    model.train()
    for step in range(plan.steps):
        for optimiser, rate in zip(optimisers, (plan.muon_rate, plan.adam_rate), strict=True):
            optimiser.param_groups[0]["lr"] = rate * schedule(step, plan)
        loss = mean_loss(model, next(batches), pad_id=tokenizer.pad_token_id)
        loss.backward()
        if step < plan.copy_steps:
            (
                COPY_WEIGHT * mean_loss(model, copies(rng, names), pad_id=tokenizer.pad_token_id)
            ).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        if on_step is not None:
            on_step(step + 1, float(loss.detach()), model)
    return model.eval()


def schedule(step: int, plan: WarmUpSettings) -> float:
    """The share of the rate at a step: up over `ramp` steps, constant, then down to a twentieth
    over the last half.

    >>> plan = WarmUpSettings(steps=100, ramp=10)
    >>> [round(schedule(step, plan), 2) for step in (0, 9, 40, 80, 99)]
    [0.1, 1.0, 1.0, 0.43, 0.07]
    """
    down = min(1.0, (1 - step / plan.steps) / 0.5)
    return min(1.0, (step + 1) / plan.ramp) * (0.05 + 0.95 * down)


def mean_loss(model: Any, rows: list[TrainingExample], *, pad_id: int) -> Tensor:
    """Mean cross-entropy over the lm_spans of some rows."""
    batch = collate(rows, pad_id=pad_id)
    targets: Targets = batch.lm
    return lm_ce(
        project(model, targets.predictors(final_hidden(model, batch.student.ids_BT))), targets.ids_N
    ).mean()


def _batches(
    renderer: Renderer,
    plan: WarmUpSettings,
    *,
    lesson_of: Callable[[str], Lesson] | None = None,
) -> Iterator[list[TrainingExample]]:
    """Endless batches of lessons, none twice."""
    rng = random.Random(stage_seed(plan.seed, "batches"))
    lesson_of = lesson_of or partial(
        make_lesson, habits=plan.habits, tests=LessonTests(), led=plan.led
    )
    num_lessons = plan.lessons * BUCKETS
    for first in itertools.count(0, num_lessons):
        rows: list[TrainingExample] = []
        for number in range(first, first + num_lessons):
            lesson = lesson_of(f"{plan.seed}:{number}")
            rendered = renderer.render(lesson.turns, tools=lesson.tools)
            trained_spans = tuple(
                s.body
                for i, s in enumerate(rendered.spans)
                if s.role == "assistant" and i not in lesson.untrained
            )
            rows.append(
                TrainingExample(
                    id=f"lesson:{number}",
                    session_id="lesson",
                    ids=rendered.ids,
                    lm_spans=trained_spans,
                )
            )
        rows.sort(key=lambda row: len(row.ids))
        batches = [
            rows[start : start + plan.lessons] for start in range(0, len(rows), plan.lessons)
        ]
        rng.shuffle(batches)
        yield from batches


def _tokens_to_copy(tokenizer: Any) -> list[int]:
    """The tokens that have to be copied in the workshop: names, file names, numbers."""
    words = [*FILES, *NAMES, *READERS, *EDITORS, *SEARCHERS, *sum(STYLES, ()), *map(str, range(50))]
    return sorted(
        {
            index
            for word in words
            for index in tokenizer(word, add_special_tokens=False)["input_ids"]
        }
    )


def copies(rng: random.Random, names: list[int]) -> list[TrainingExample]:
    """Rows of random names, repeated once; only the repetition is trained on, from its second name
    on."""
    rows: list[TrainingExample] = []
    for number in range(COPY_ROWS):
        row_names = tuple(rng.choice(names) for _ in range(COPY_LENGTH))
        span = (COPY_LENGTH + 1, 2 * COPY_LENGTH)
        rows.append(
            TrainingExample(
                id=f"copy:{number}", session_id="copy", ids=row_names + row_names, lm_spans=(span,)
            )
        )
    return rows
