"""Train a real model with all three channels in the workshop, beside its placebo and plain
fine-tuning, and play every student on fresh tasks.

    python scripts/real_models.py smollm2
    python benchmarks/real_warmup.py build/real/folders/smollm2 --out build/real_workshop/student
    python benchmarks/real_workshop.py                     all seeds; goes on where it was cut off
    python benchmarks/real_workshop.py --seeds 11 --arms after placebo
    python benchmarks/real_workshop.py --as-trained        play the newest checkpoint of every arm
    python benchmarks/real_workshop.py --arms more_sft --keep
        add an arm to the rows of the JSON, of whose students only the outcomes are left

The other model, with a warm-up, work folder and JSON of its own:

    W=build/real_workshop_gemma
    python benchmarks/real_warmup.py build/real/folders/gemma3-270m --template gemma \\
        --out $W/student
    python benchmarks/real_workshop.py --work $W --json benchmarks/results/real_workshop_gemma.json

Seed by seed: record the student's sessions, find sites, write hints, ask the scripted teachers,
build; then train the arms by LoRA, with the flags of docs/evidence.md. What was made from the same
settings, student and data is not made again, played episodes included. The JSON,
benchmarks/results/real_workshop.json, holds every outcome as one bit. With --keep, the start of the
first seed is played again and must come out as it stands there (workshop_evidence/kept.py).
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from real_warmup import ABOUT
from record_lines import record_lines
from workshop_evidence.arms import steps_of
from workshop_evidence.training import Work, checked_out_commit, prepare, read_run, train_arm

Episodes = Mapping[str, Mapping[int, Any]]
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "real_workshop.json"
SEEDS, LEVEL = (11, 12, 13), 2
ARMS = ("after", "placebo", "more_sft")
NUM_LOGS, SLACK, MAX_CONTEXT = 40, 3, 1600
EVALUATION_SEED, TASKS = 27182, 64
SCALE = 0.25
"""Of the steps of docs/evidence.md: 5 for the three channels, 10 for plain fine-tuning."""
SETTINGS = """# Settings of benchmarks/real_workshop.py
work_dir = "."
seed = {seed}

[student]
model = "{student}"
template = "{template}"
dtype = "bfloat16"
lora = {{ rank = 16, alpha = 32 }}

[ingest]
logs = ["logs"]

[build]
max_tokens = 1600

[rollouts]
env = "workshop"
groups = 4
group_size = 4
max_context_tokens = 1600
batch_episodes = 16

[train]
steps = 10
batch_examples = 4
micro_tokens = 2048
learning_rate = 2e-4
warmup_steps = 2
checkpoint_every = 5
grad_every = 100
policy = {{ weight = 1.0 }}
hint = {{ weight = 1.0, divergence = "kl(teacher, student)" }}
lm_ce = {{ weight = 0.0 }}
preference = {{ weight = 1.0, batch_pairs = 4, batch_anchors = 2 }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealWork(Work):
    """The logs, data and runs of one seed."""

    verbs: tuple[tuple[str, ...], ...] = (
        ("ingest",),
        ("sites",),
        ("hints",),
        ("replay",),
        ("build",),
    )
    record: str = "from real_workshop import record_here; import sys; record_here(*sys.argv[1:])"

    def settings(self) -> str:
        """The text of the settings file; the template is that of the warm-up."""
        return SETTINGS.format(
            seed=self.seed,
            student=self.student.absolute().as_posix(),
            template=warmup_of(self.student)["plan"]["template"],
        )


def warmup_of(student: Path) -> dict[str, Any]:
    """What real_warmup.py noted of a warmed-up student."""
    return json.loads((student / ABOUT).read_text("utf-8"))


def record_here(config: str, student: str) -> None:
    """Record sessions of the student, as it is before any training."""
    import torch

    from composer_replication.cli.flags import Common
    from composer_replication.cli.job import open_job
    from composer_replication.core.config.base import stage_seed
    from composer_replication.models.load_student import load_student
    from composer_replication.rollouts.sampler import Sampling
    from composer_replication.tokens.hf import load_tokenizer
    from composer_replication.tokens.renderer import Renderer
    from composer_replication.workshop.record_episodes import record_logs
    from composer_replication.workshop.sandbox import Sandbox

    torch.set_num_threads(1)
    loaded = open_job(Common(config=(Path(config),), quiet=True)).config
    seed = stage_seed(loaded.seed, "record")
    tokenizer = load_tokenizer(student)
    model = load_student(loaded.student, tokenizer=tokenizer, seed=loaded.seed).model
    with Sandbox() as sandbox:
        recorded = record_logs(
            model,
            renderer=Renderer.for_tokenizer(tokenizer, family=loaded.student.template),
            settings=Sampling(
                max_new_tokens=64, max_context_tokens=MAX_CONTEXT, batch_episodes=16, seed=seed
            ),
            seed=seed,
            num_sessions=NUM_LOGS,
            folder=Path(config).parent / "logs",
            sandbox=sandbox,
            slack=SLACK,
        )
    print(len(recorded.paths), "logs; left out:", recorded.left_out, "success:", recorded.success)


def play_arms(
    work: RealWork, names: Sequence[str], *, tasks: int, workers: int, with_start: bool
) -> dict[str, Any]:
    """Play every arm of a seed, and the start; played episodes are kept beside the runs."""
    from workshop_evidence.numbers import evaluation_seed_of, play

    from composer_replication.core.config.rollout_settings import EvaluateSettings
    from composer_replication.evaluation.players import player_of, start_of

    players = {name: player_of(work.run(name), name=name) for name in names}
    if with_start:
        players = {"before": start_of(next(iter(players.values()))), **players}
    kept = {
        name: work.folder / "played" / f"{name}-{player.steps}-{tasks}.pickle"
        for name, player in players.items()
    }
    seed = evaluation_seed_of(EVALUATION_SEED, level=work.level, seed=work.seed)
    missing = [name for name in players if not kept[name].exists()]
    settings = EvaluateSettings(tasks=tasks, level=work.level)
    if missing:
        print(f"real: seed {work.seed}: playing {', '.join(missing)}", flush=True)
        for student in play(
            [players[name] for name in missing], settings=settings, seed=seed, workers=workers
        ):
            kept[student.name].parent.mkdir(exist_ok=True)
            kept[student.name].write_bytes(pickle.dumps(student))
    return {name: pickle.loads(path.read_bytes()) for name, path in kept.items()}


def gather(options: argparse.Namespace) -> None:
    """Prepare, train and play, seed by seed, and write the JSON after every seed."""
    from composer_replication.evaluation.players import player_of

    began = time.monotonic()
    episodes: dict[str, dict[int, Any]] = {name: {} for name in ("before", *options.arms)}
    weights: dict[str, dict[str, str]] = {name: {} for name in episodes}
    runs: dict[str, dict[str, Any]] = {name: {} for name in options.arms}
    starts: dict[str, str] = {}
    earlier = json.loads(options.json.read_text("utf-8")) if options.keep else {}
    works = [
        RealWork(root=options.work, level=LEVEL, seed=seed, student=options.student)
        for seed in options.seeds
    ]
    for work in works:
        prepare(work)
        print(
            f"real: seed {work.seed}: data is there ({time.monotonic() - began:.0f} s)", flush=True
        )

        def train(name: str, work: RealWork = work) -> dict[str, Any]:
            if options.as_trained:
                return read_run(work.run(name))
            result = train_arm(work, name, scale=SCALE)
            print(
                f"real: seed {work.seed} {name}: {result['steps']} steps,"
                f" {result['cpu_s']:.0f} CPU-s, {result['step_s']} s a step"
                f" ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            return result

        with ThreadPoolExecutor(options.workers) as pool:
            results = dict(zip(options.arms, pool.map(train, options.arms), strict=True))
        for name, result in results.items():
            runs[name][str(work.seed)] = {k: v for k, v in result.items() if k != "key"}
            starts[str(work.seed)] = player_of(work.run(name), name=name).start_sha256
        played = play_arms(
            work,
            options.arms,
            tasks=options.tasks,
            workers=options.workers,
            with_start=not earlier or work is works[0],
        )
        for name, student in played.items():
            episodes[name][work.seed] = student.episodes
            weights[name][str(work.seed)] = student.weights_sha256
        about = about_run(options, seeds=sorted(episodes[options.arms[0]]), began=began)
        value = {"about": about, "runs": runs, "weights_sha256": weights}
        if earlier:
            write_joined(options, value, episodes, earlier=earlier, starts=starts)
        else:
            write_all(options, value, episodes)
        print(f"real: wrote {options.json} ({time.monotonic() - began:.0f} s)", flush=True)


def about_run(options: argparse.Namespace, *, seeds: Sequence[int], began: float) -> dict[str, Any]:
    """What was run, with which settings, student and versions."""
    warmup = warmup_of(options.student)
    return {
        "seeds_done": list(seeds),
        "commit": checked_out_commit(),
        "seeds_planned": list(SEEDS),
        "steps_planned": {name: steps_of(name, scale=SCALE) for name in options.arms},
        "tasks": options.tasks,
        "evaluation_seed": EVALUATION_SEED,
        "level": LEVEL,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "settings": SETTINGS.replace("{template}", warmup["plan"]["template"]),
        "warmup": warmup,
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "transformers", "peft")},
        },
    }


def write_all(options: argparse.Namespace, value: dict[str, Any], episodes: Episodes) -> None:
    """Write the JSON of students that were all trained and played here."""
    from workshop_evidence.numbers import level_numbers

    numbers = level_numbers(episodes, settings=evaluation(options), seed=EVALUATION_SEED)
    write(options.json, {**value, **numbers})


def write_joined(
    options: argparse.Namespace,
    value: dict[str, Any],
    episodes: Episodes,
    *,
    earlier: dict[str, Any],
    starts: Mapping[str, str],
) -> None:
    """Write an earlier JSON with the rows of the new arms; raises DataError if they may not stand
    in one table."""
    from workshop_evidence.kept import check_kept, joined
    from workshop_evidence.numbers import outcomes, pooled_row

    played = {str(seed): outcomes(rows) for seed, rows in episodes["before"].items()}
    about = value["about"]
    check_kept(earlier, about=about, starts=starts, played=played, file=options.json)
    added = [
        pooled_row(name, episodes[name], settings=evaluation(options), seed=EVALUATION_SEED)
        for name in options.arms
    ]
    planned = {**earlier["about"]["steps_planned"], **about["steps_planned"]}
    again = {"start_played_again": sorted(played)}
    fields = ("commit", "seeds_done", "minutes", "versions")
    additions = {name: {f: about[f] for f in fields} | again for name in options.arms}
    additions = {**earlier["about"].get("added", {}), **additions}
    new_weights = {name: value["weights_sha256"][name] for name in options.arms}
    joint = {
        "about": {**earlier["about"], "steps_planned": planned, "added": additions},
        "runs": {**earlier["runs"], **value["runs"]},
        "weights_sha256": {**earlier["weights_sha256"], **new_weights},
    }
    write(options.json, {**joint, **joined(earlier, added, seed=EVALUATION_SEED)})


def evaluation(options: argparse.Namespace) -> Any:
    """The settings of the evaluation."""
    from composer_replication.core.config.rollout_settings import EvaluateSettings

    return EvaluateSettings(tasks=options.tasks, level=LEVEL)


def write(path: Path, value: dict[str, Any]) -> None:
    """Write the JSON, one line a record."""
    value = json.loads(json.dumps(value, sort_keys=True))
    path.write_text(record_lines(value, depth=3) + "\n", "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Train, play and write; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    work = ROOT / "build" / "real_workshop"
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--as-trained", action="store_true", help="train no further")
    parser.add_argument("--keep", action="store_true", help="add the arms to the rows of the JSON")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=work)
    parser.add_argument("--student", type=Path, help="default: the folder student below --work")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    options.student = options.student or options.work / "student"
    gather(options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
