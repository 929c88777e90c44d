"""The student that ships: made by one command, rounded to bfloat16, measured as it is shipped.

    about = make_student(Path("examples/workshop_student"), level=1, seed=7)
    about["measured"]["success"]        # on held-out tasks, without hints, with its interval

All students begin with the same lessons, whose player always follows its habits: these teach them
to play. They end with lessons of their level's player, which sometimes does not, so that other
choices are improbable but not impossible: a student whose other choices are thirty nats away cannot
be moved without looking like a collapse. warmup.json beside the weights holds the seed, plans,
versions and measurements.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import EvaluateSettings, RolloutSettings
from composer_replication.core.jsonl import write_json
from composer_replication.evaluation.rows import evaluation_row
from composer_replication.evaluation.stats import Resamples
from composer_replication.evaluation.success import one_thread, play_tasks
from composer_replication.models.load_student import Student
from composer_replication.models.pretrained_folder import save_student, weights_sha256
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.demonstrators import LEVELS
from composer_replication.workshop.warmup.tokenizer import workshop_tokenizer
from composer_replication.workshop.warmup.warm_up import WarmUpSettings, warm_up
from composer_replication.workshop.workshop_tasks import workshop_tasks

ABOUT, EVALUATION_SEED, TASKS = "warmup.json", 2026, 384
PLAN = WarmUpSettings()
POLISH = WarmUpSettings(steps=400, copy_steps=0, muon_rate=0.01, adam_rate=1.5e-3, led=0.35)
"""The second part of a warm-up, on the habits of a level."""
OnStep = Callable[[int, float, Any], None]


def make_student(
    folder: Path,
    *,
    level: int,
    seed: int,
    plans: tuple[WarmUpSettings, WarmUpSettings] = (PLAN, POLISH),
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Warm a student up from random weights, save it, and measure what was saved; on one machine,
    the same seed gives the same student."""
    first = dataclasses.replace(plans[0], seed=seed)
    polish = dataclasses.replace(plans[1], seed=seed + 1, habits=LEVELS[level].habits)
    tokenizer, began = workshop_tokenizer(), time.process_time()
    with one_thread():
        model = warm_up(tokenizer, plan=first, on_step=on_step)
        model = warm_up(tokenizer, plan=polish, model=model, on_step=on_step)
    cpu_s = time.process_time() - began
    save_student(
        Student(name="workshop", model=model.to(torch.bfloat16), tokenizer=tokenizer), folder
    )
    model = model.to(torch.float32)  # as the folder is loaded
    about = {
        "command": f"python scripts/warm_up.py --level {level} --seed {seed}",
        "level": level,
        "seed": seed,
        "steps": first.steps + polish.steps,
        "plans": [dataclasses.asdict(first), dataclasses.asdict(polish)],
        "parameters": sum(p.numel() for p in model.parameters()),
        "cpu_s": round(cpu_s),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
        "weights_sha256": weights_sha256(model),
        "measured": measure_student(model, tokenizer),
    }
    write_json(folder / ABOUT, about)
    return about


def measure_student(model: Any, tokenizer: Any, *, tasks: int = TASKS) -> Mapping[str, Any]:
    """The row of a student on held-out tasks of one fixed seed, without hints."""
    settings = EvaluateSettings(tasks=tasks)
    seed = stage_seed(EVALUATION_SEED, "warmup")
    with workshop_tasks() as task_source:
        results = play_tasks(
            model,
            renderer=Renderer.for_tokenizer(tokenizer),
            settings=settings,
            limits=RolloutSettings(),
            seed=seed,
            source=task_source,
        )
    draws = Resamples.of(tasks, seed=seed, samples=settings.samples)
    return {
        **evaluation_row(
            "before",
            results,
            targeted=settings.targeted_kinds,
            draws=draws,
            families=task_source.metadata.families,
        ),
        "evaluation_seed": EVALUATION_SEED,
    }
