"""Fine-tune a real model on sessions of the workshop's careless player: the start of every arm of
docs/evidence_real.md.

    python benchmarks/real_warmup.py build/real/folders/smollm2 --out build/real_evidence/student

Plain cross-entropy on every message of the player, by LoRA adapters that are merged at the end. No
session holds a hint: that hints are followed is not taught here. The folder's warmup.json holds the
plan, the losses and the CPU time of every step.

What a step costs on the other model:

    python benchmarks/real_warmup.py build/real/folders/gemma3-270m --template gemma \\
        --steps 3 --ramp 1 --out build/real_gemma --json benchmarks/results/real_gemma.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.jsonl import write_json
from composer_replication.core.trace import Turn
from composer_replication.models.load_student import load_student
from composer_replication.models.merge import merge_adapters
from composer_replication.models.pretrained_folder import save_student, weights_sha256
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.demonstrators import LEVELS, careless
from composer_replication.workshop.lessons import (
    P_INVENTED,
    SHARES,
    SLACKS,
    Lesson,
    LessonTests,
    invented_tools,
)
from composer_replication.workshop.tasks import make_task
from composer_replication.workshop.warmup.warm_up import mean_loss
from composer_replication.workshop.workshop_env import WorkshopEnv

ABOUT, LISTS = "warmup.json", ("losses", "step_cpu_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpPlan:
    """Steps, sessions per step, peak learning rate (linear up, then linear down to zero), adapters,
    and the level whose habits the player has."""

    steps: int = 80
    sessions: int = 4
    learning_rate: float = 6e-4
    ramp: int = 8
    rank: int = 32
    alpha: int = 64
    level: int = 2
    seed: int = 7
    template: str = "qwen3-2507"

    def __post_init__(self) -> None:
        if self.ramp >= self.steps:  # the rate would fall from below zero
            raise ConfigError(
                f"a ramp of {self.ramp} steps is not shorter than the {self.steps} steps",
                where="--ramp",
                fix="give more steps, or a shorter ramp",
            )


def plain_session(seed: str, *, level: int, tests: LessonTests) -> Lesson:
    """One episode of the careless player on a training task, without any hint."""
    rng, task = random.Random(f"session:{seed}"), make_task(f"session:{seed}", shares=SHARES)
    if rng.random() < P_INVENTED:
        task = replace(task, tools=invented_tools(rng))
    env = WorkshopEnv(task, sandbox=tests, slack=rng.choice(SLACKS))
    turns: list[Turn] = list(env.open().turns)
    while not env.done:
        turns.append(careless(env, rng, habits=LEVELS[level].habits))
        turns.extend(env.reply(turns[-1]).turns)
    return Lesson(turns=tuple(turns), tools=task.tools.specs())


def batches(renderer: Renderer, plan: WarmUpPlan) -> Iterator[list[TrainingExample]]:
    """Endless batches of sessions, none twice; those of eight batches are sorted by length."""
    rng, tests = random.Random(stage_seed(plan.seed, "batches")), LessonTests()
    count = plan.sessions * 8
    for first in itertools.count(0, count):
        rows: list[TrainingExample] = []
        for number in range(first, first + count):
            session = plain_session(f"{plan.seed}:{number}", level=plan.level, tests=tests)
            rendered = renderer.render(session.turns, tools=session.tools)
            spans = tuple(s.body for s in rendered.spans if s.role == "assistant")
            rows.append(
                TrainingExample(
                    id=f"session:{number}", session_id="warmup", ids=rendered.ids, lm_spans=spans
                )
            )
        rows.sort(key=lambda row: len(row.ids))
        parts = [rows[i : i + plan.sessions] for i in range(0, count, plan.sessions)]
        rng.shuffle(parts)
        yield from parts


def warm_up(folder: Path, out: Path, *, plan: WarmUpPlan) -> dict[str, Any]:
    """Fine-tune the model of `folder`, write the merged student to `out`, and return its record."""
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(str(folder))
    settings = StudentSettings(
        model=str(folder), dtype="bfloat16", lora=LoraSettings(rank=plan.rank, alpha=plan.alpha)
    )
    student = load_student(settings, tokenizer=tokenizer, seed=plan.seed)
    renderer = Renderer.for_tokenizer(tokenizer, family=plan.template)
    trained = [p for p in student.model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=plan.learning_rate, weight_decay=0.0)
    source, losses, step_cpu_s = batches(renderer, plan), list[float](), list[float]()
    began = time.process_time()
    student.model.train()
    for step in range(plan.steps):
        step_began = time.process_time()
        share = min((step + 1) / plan.ramp, (plan.steps - step) / (plan.steps - plan.ramp))
        optimiser.param_groups[0]["lr"] = plan.learning_rate * min(1.0, share)
        loss = mean_loss(student.model, next(source), pad_id=student.pad_id)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(round(float(loss.detach()), 5))
        step_cpu_s.append(round(time.process_time() - step_began, 1))
        if step % 10 == 9 or step < 3:
            mean = sum(losses[-10:]) / len(losses[-10:])
            print(
                f"step={step + 1} loss={mean:.4f} cpu_s={time.process_time() - began:.0f}",
                flush=True,
            )
    cpu_s = round(time.process_time() - began)
    student.model.eval()
    student.model.float()  # the sum is rounded once, when an arm loads it in bfloat16
    seen = [example.ids for example in next(source)]
    merged = merge_adapters(student, texts=seen)
    save_student(replace(student, model=merged.model, lora=False), out)
    about = {
        "plan": asdict(plan),
        "from": folder.name,
        "losses": losses,
        "cpu_s": cpu_s,
        "step_cpu_s": step_cpu_s,
        "weights_sha256": weights_sha256(merged.model),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    write_json(out / ABOUT, about)
    return about


def main(arguments: Sequence[str] | None = None) -> None:
    """Warm up and print what was made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="keep the record here, too")
    for name, value in asdict(WarmUpPlan()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args(arguments))
    folder, out, record = (options.pop(name) for name in ("model", "out", "json"))
    about = warm_up(folder, out, plan=WarmUpPlan(**options))
    if record:
        write_json(record, about)
    print(json.dumps({k: v for k, v in about.items() if k not in LISTS}, indent=1))


if __name__ == "__main__":
    main()
