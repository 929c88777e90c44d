"""Warm a student up on scripted solutions of repositories' tasks, train it on them with policy and
hints, and play held-out repositories before, with shuffled hints, and after.

    python scripts/fetch_packages.py packages
    python benchmarks/tasks.py packages --work WORK          # the tasks of docs/tasks.md
    python benchmarks/repo_student.py --tasks WORK/tasks --out build/repo_student

The student is the demo's, of 0.6M parameters, or any folder (--model). The scripted player searches
for the definition that the statement names, reads --read lines from there, edits, runs the tests;
only tasks whose solution fits into --context tokens are played. What lies in --out is not made
again. Results go to benchmarks/results/repo_student.json and into docs/tasks.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import marked_part
import torch
from repo_student_page import BEGIN, END, behaviours, render

from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.config.rollout_settings import RepoSettings
from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.files import make_folder, write_text
from composer_replication.core.jsonl import dumps, read_lines, write_json
from composer_replication.core.trace import Session
from composer_replication.models.forward import final_hidden, project
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.pretrained_folder import save_student
from composer_replication.repositories.playing.playable import EpisodeReward, PlayableTasks
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.playing.repo_source import split_tasks
from composer_replication.repositories.playing.scripted_solver import solve_episode, solving
from composer_replication.repositories.repo_task import RepoTask, read_tasks, task_line
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.warmup.warm_up import mean_loss

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "repo_student.json"
PAGE = ROOT / "docs" / "tasks.md"
ARMS = {"after": (), "placebo": ("--train.placebo", "shuffled_hints")}
SETTINGS = """# Settings of benchmarks/repo_student.py
seed = 11
[student]
model = "student"
[rollouts]
env = "repo"
groups = {groups}
group_size = 4
max_new_tokens = 300
max_context_tokens = {context}
repo = {{ turns = 6, command_s = 20, held_out = [{held_out}] }}
[train]
steps = {steps}
batch_examples = 4
micro_tokens = {context}
learning_rate = 2e-4
policy = {{ weight = 1.0 }}
hint = {{ weight = 1.0, divergence = "kl(teacher, student)" }}
lm_ce = {{ weight = 0.0 }}
# so small a student writes few calls that can be resolved
health = {{ monitor_tasks = 1, kl_episodes = 1, max_unresolvable = 1.0 }}
[evaluate]
tasks = {tasks}
temperature = 0.3
"""
HELD_OUT, TRAINING = "held_out.jsonl", "demonstrations.jsonl"


def demonstrations(
    playable: PlayableTasks, tasks: Sequence[RepoTask], *, most: int
) -> Iterator[Session]:
    """The scripted solution of every task; that it earns the reward was a gate of the task."""
    for task in tasks:
        env = RepoEnv(
            task,
            playable,
            max_turns=40,
            command_s=60,
            judge=lambda *_, **__: EpisodeReward(reward=1.0),
        )
        base = playable.repository(task).checkout.folder
        yield solve_episode(env, solving(task, base=base, most=most))


def row_of(renderer: Renderer, session: Session) -> TrainingExample:
    """A session whose every message of the player is trained on."""
    rendered = renderer.render(session.turns, tools=session.tools)
    spans = tuple(s.body for s in rendered.spans if s.role == "assistant")
    return TrainingExample(id=session.id, session_id=session.id, ids=rendered.ids, lm_spans=spans)


def make_tasks(options: argparse.Namespace, *, renderer: Renderer) -> None:
    """A folder with the tasks that fit into a context, and the demonstrations of those to train
    on and of the others."""
    out, source = options.out, options.tasks
    if (out / HELD_OUT).exists():
        return
    make_folder(out / "tasks")
    sessions: list[Session] = []
    kept: list[RepoTask] = []
    with PlayableTasks(source) as playable:
        wanted = [
            task
            for task in playable.tasks
            if task.kind in options.kinds
            and task.repository.rpartition("-")[0] not in options.leave_out
        ]
        shown = demonstrations(playable, wanted, most=options.read)
        for task, session in zip(wanted, shown, strict=True):
            if len(row_of(renderer, session).ids) <= options.context - 200:
                kept.append(task)
                sessions.append(session)
    for name in ("base", "environments"):
        link = out / "tasks" / name
        if not link.exists():
            link.symlink_to((source / name).resolve())
    write_text(out / "tasks" / "tasks.jsonl", "".join(dumps(task_line(t)) + "\n" for t in kept))
    names = sorted({t.repository for t in kept}, key=lambda n: sum(t.repository == n for t in kept))
    hidden = tuple(names[len(names) // 2 :][: options.held_out])
    split = split_tasks(kept, RepoSettings(held_out=hidden))
    about = {
        "held_out": hidden,
        "training": sorted(set(names) - set(hidden)),
        "tasks": len(split.held_out),
        "fit": len(kept),
        "wanted": len(wanted),
    }
    write_json(out / "split.json", about)
    ids = {task.id for task in split.train}
    pairs = list(zip(kept, sessions, strict=True))
    write_sessions(out / TRAINING, [s for t, s in pairs if t.id in ids])
    write_sessions(out / HELD_OUT, [s for t, s in pairs if t.id not in ids])
    print(json.dumps(about), flush=True)


def loss_on(student: Student, rows: list[TrainingExample]) -> float:
    """The mean loss on the player's tokens of some demonstrations."""
    with torch.no_grad():
        losses = [float(mean_loss(student.model, [r], pad_id=student.pad_id)) for r in rows]
    return sum(losses) / len(losses)


def warm_up(options: argparse.Namespace, *, renderer: Renderer) -> None:
    """Plain fine-tuning of all weights on the demonstrations, one a step."""
    out, steps = options.out, options.warmup_steps
    if (out / "student").exists():
        return
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(str(options.model))
    student = load_student(StudentSettings(model=str(options.model)), tokenizer=tokenizer, seed=7)
    rows, others = (
        [row_of(renderer, s) for s in read_sessions(out / name)] for name in (TRAINING, HELD_OUT)
    )
    began, before = time.process_time(), loss_on(student, others)
    optimiser = torch.optim.AdamW(student.model.parameters(), lr=1e-3, weight_decay=0.0)
    rng, losses = random.Random(7), list[float]()
    student.model.train()
    stream = itertools.chain.from_iterable(rng.sample(rows, len(rows)) for _ in itertools.count())
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 1e-3 * min(1.0, (step + 1) / 20, 2 * (1 - step / steps))
        loss = mean_loss(student.model, [next(stream)], pad_id=student.pad_id)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
        if step % 20 == 19:
            mean = sum(losses[-20:]) / 20
            spent = time.process_time() - began
            print(f"step={step + 1} loss={mean:.3f} cpu_s={spent:.0f}", flush=True)
    student.model.eval()
    save_student(student, out / "student")
    about = {
        "demonstrations": len(rows),
        "steps": steps,
        "parameters": sum(p.numel() for p in student.model.parameters()),
        "held_out_loss": [before, loss_on(student, others)],
        "training_loss": [losses[0], sum(losses[-50:]) / len(losses[-50:])],
        "cpu_s": round(time.process_time() - began),
    }
    write_json(out / "warmup.json", about)
    print(json.dumps(about), flush=True)


def recompose(out: Path, *arguments: str) -> None:
    """Run a verb in the work folder."""
    command = [sys.executable, "-P", "-m", "composer_replication.cli", *arguments]
    subprocess.run(command, cwd=out, check=True)


def train_and_play(options: argparse.Namespace, *, renderer: Renderer) -> dict[str, Any]:
    """Train both arms and play the held-out repositories; what docs/tasks.md shows."""
    out = options.out
    split = json.loads((out / "split.json").read_text("utf-8"))
    settings = SETTINGS.format(
        context=options.context,
        held_out=", ".join(f'"{name}"' for name in split["held_out"]),
        steps=options.steps,
        groups=options.groups,
        tasks=min(options.play, split["tasks"]),
    )
    write_text(out / "recompose.toml", settings)
    work = out / "recompose"
    make_folder(work)
    if not (work / "tasks").exists():
        (work / "tasks").symlink_to((out / "tasks").resolve())
    for name, flags in ARMS.items():
        if not (work / "runs" / name / "checkpoints" / f"step_{options.steps:06d}").exists():
            recompose(out, "train", "--name", name, *flags)
    run = work / "runs" / "after"
    if not (run / "evaluation.json").exists():
        recompose(out, "evaluate", "after", "--against", "placebo=placebo")
    table = json.loads((run / "evaluation.json").read_text("utf-8"))
    tasks = {task.id: task for task in read_tasks(out / "tasks" / "tasks.jsonl")}
    played = {
        row["name"]: list(read_sessions(run / "evaluation" / f"{row['name']}.jsonl"))
        for row in table["rows"]
    }
    return {
        "split": split,
        "warmup": json.loads((out / "warmup.json").read_text("utf-8")),
        "right_tokens": right_tokens(options, renderer=renderer),
        "steps": options.steps,
        "rows": [{**row, **behaviours(played[row["name"]], tasks)} for row in table["rows"]],
        "paired": table["paired"],
        "training_tasks": {name: practice(work / "runs" / name) for name in ARMS},
    }


def right_tokens(options: argparse.Namespace, *, renderer: Renderer) -> dict[str, list[float]]:
    """Of the held-out solutions, by tool: the share of the player's tokens that a student finds
    most likely, with everything before them given, before the warm-up and after it."""
    sessions = list(read_sessions(options.out / HELD_OUT))
    tokenizer = load_tokenizer(str(options.model))
    counted: dict[str, list[list[int]]] = {}
    for number, folder in enumerate((options.model, options.out / "student")):
        student = load_student(StudentSettings(model=str(folder)), tokenizer=tokenizer, seed=7)
        student.model.eval()
        for session in sessions:
            row = row_of(renderer, session)
            ids = torch.tensor([row.ids])
            with torch.no_grad():
                states = final_hidden(student.model, ids)[0]
                likely = project(student.model, states).argmax(-1)[:-1] == ids[0, 1:]
            messages = [turn for turn in session.turns if turn.role == "assistant"]
            for message, (begin, end) in zip(messages, row.lm_spans, strict=True):
                name = message.calls[0].name if message.calls else "the end"
                pair = counted.setdefault(name, [[0, 0], [0, 0]])[number]
                pair[0] += int(likely[begin - 1 : end - 1].sum())
                pair[1] += end - begin
    return {name: [right / all_ for right, all_ in pairs] for name, pairs in counted.items()}


def practice(run: Path) -> dict[str, int]:
    """Episodes on training tasks during a run, and how many of them earned the reward."""
    rows = [row["tasks"].values() for _, row in read_lines(run / "curriculum.jsonl")]
    passed, played = (sum(pair[i] for row in rows for pair in row) for i in (0, 1))
    return {"passed": passed, "played": played}


def main() -> int:
    """Make, warm up, train, play, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "repo_student")
    parser.add_argument("--model", type=Path, default=ROOT / "examples" / "workshop_student")
    parser.add_argument("--template", default="auto")
    parser.add_argument("--kinds", nargs="+", default=["function", "class"])
    parser.add_argument("--leave-out", nargs="*", default=[], help="packages without a version")
    parser.add_argument("--read", type=int, default=30)
    parser.add_argument("--context", type=int, default=4800)
    parser.add_argument("--warmup-steps", type=int, default=700)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--play", type=int, default=20)
    parser.add_argument("--held-out", type=int, default=2)
    options = parser.parse_args()
    make_folder(options.out)
    renderer = Renderer.for_tokenizer(load_tokenizer(str(options.model)), family=options.template)
    make_tasks(options, renderer=renderer)
    warm_up(options, renderer=renderer)
    results = train_and_play(options, renderer=renderer)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    marked_part.write(PAGE, BEGIN, END, render(results))
    print(render(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
