"""The student of the twins: the workshop's architecture, warmed up on the lessons of players.py.

about = make_student(Path("build/kinds_twins/student"))       # some CPU-minutes
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.jsonl import write_json
from composer_replication.evaluation.success import one_thread
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.pretrained_folder import save_student, weights_sha256
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
from composer_replication.workshop.lessons import Lesson
from composer_replication.workshop.vocabulary import FILES, NAMES
from composer_replication.workshop.warmup.tokenizer import FAMILY, WORDS_OR_NUMBERS
from composer_replication.workshop.warmup.warm_up import WarmUpSettings, warm_up

from .players import twin_lesson
from .world import COMMENT, FUNCTIONS, PREFIXES

SEED, VOCAB, NUM_TEXTS, MIN_PHRASE = 7, 760, 400, 3
PLAN = WarmUpSettings(steps=600, copy_steps=400, seed=SEED)
POLISH = WarmUpSettings(steps=700, copy_steps=200, muon_rate=0.015, adam_rate=2e-3, seed=SEED + 1)
ABOUT = "warmup.json"
_CONTROL = r"<\|[a-z_]+\|>|</?tool_(?:call|response)>|</?think>"
_WORDS = "|".join((*NAMES, *FUNCTIONS, *FILES))
_CHANGES = re.compile(
    "|".join((_CONTROL, r"\d+", COMMENT, *PREFIXES, rf"(?<![A-Za-z])(?:{_WORDS})(?![A-Za-z])"))
)
"""What differs from task to task; all between is one token, and so is each of these."""


def twin_tokenizer() -> Any:
    """The tokenizer, always the same: what never changes is one token, as in the workshop's."""
    bare = Renderer.for_tokenizer(
        train_tiny_tokenizer([], vocab_size=300, family=FAMILY), family=FAMILY
    )
    texts = _rendered(bare, (twin_lesson(f"tokenizer:{i}") for i in range(NUM_TEXTS)))
    parts = {
        line
        for text in texts
        for part in _CHANGES.split(text)
        for line in re.split(r"(?<=[^\n]\n)", part)
    }
    phrases = {
        part for part in parts if len(part.encode()) >= MIN_PHRASE and part not in bare.template
    }
    phrases |= {COMMENT, *PREFIXES}
    ordered = sorted(phrases, key=lambda part: (-len(part), part))
    words = [*FILES, *NAMES, *FUNCTIONS, *map(str, range(100)), " = ", "  ", "to", "in"] * 20
    return train_tiny_tokenizer(
        words, vocab_size=VOCAB, pattern=WORDS_OR_NUMBERS, phrases=ordered, family=FAMILY
    )


def make_student(
    folder: Path, *, on_step: Callable[[int, float, Any], None] | None = None
) -> dict[str, Any]:
    """Warm a student up from random weights in two parts, and save it; the first part stands beside
    it, so that a second call goes on from there."""
    first = folder.with_name(f"{folder.name}_first")
    if not (first / ABOUT).exists():
        _warm_up(first, plan=PLAN, start=None, on_step=on_step)
    return _warm_up(folder, plan=POLISH, start=first, on_step=on_step)


def _warm_up(
    folder: Path,
    *,
    plan: WarmUpSettings,
    start: Path | None,
    on_step: Callable[[int, float, Any], None] | None,
) -> dict[str, Any]:
    tokenizer, model, began = twin_tokenizer(), None, time.process_time()
    if start is not None:
        settings = StudentSettings(model=str(start))
        model = load_student(settings, tokenizer=tokenizer, seed=plan.seed).model
    with one_thread():
        model = warm_up(tokenizer, plan=plan, model=model, on_step=on_step, lesson_of=twin_lesson)
    student = Student(name="twins", model=model.to(torch.bfloat16), tokenizer=tokenizer)
    save_student(student, folder)
    about = {
        "steps": plan.steps,
        "seed": plan.seed,
        "cpu_s": round(time.process_time() - began),
        "parameters": sum(p.numel() for p in model.parameters()),
        "weights_sha256": weights_sha256(model.to(torch.float32)),
    }
    write_json(folder / ABOUT, about)
    return about


def _rendered(renderer: Renderer, lessons: Iterable[Lesson]) -> list[str]:
    return [renderer.render(lesson.turns, tools=lesson.tools).text for lesson in lessons]
