"""Train every arm of the comparison with several seeds, play it on fresh tasks, and write
docs/evidence.md and benchmarks/results/evidence.json.

    python benchmarks/evidence.py
        both levels; five seeds for the headline arms, three for the others (about two hours)
    python benchmarks/evidence.py --levels 1 --seeds 1 --arms after placebo hint \\
        --steps-scale 0.1 --tasks 8 --out build/try.md
        a trial
    python benchmarks/evidence.py --check
        fails if docs/evidence.md does not match its JSON, the shipped student or the settings
    python benchmarks/evidence.py --render
        write docs/evidence.md again from benchmarks/results/evidence.json
    python benchmarks/evidence.py --levels 1 --arms preference pairs_raw \\
        --json build/added.json --out build/added.md
    python benchmarks/evidence.py --merge build/added.json
        add these rows to the committed JSON; the other rows stay as they are

Two processes run at a time, each with one thread. An arm whose run was made from the same settings,
student and data is not trained again (--fresh trains all); the evaluation is always played again.
An arm that a health rule stopped is a result: its row is the student that was restored, with the
name of the rule.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

from record_lines import record_lines
from workshop_evidence.arms import ARMS, BEFORE, LEVELS, seeds_of, settings_sha256, steps_of
from workshop_evidence.code import code_files, code_sha256, stale
from workshop_evidence.merge import merged
from workshop_evidence.page import JSON_PAGE, PAGE, problems, render

ROOT = Path(__file__).resolve().parent.parent
STUDENTS = {1: "workshop_student", 2: "workshop_student_2"}
SEEDS = (11, 12, 13, 14, 15)
"""None of them is the demo's default seed, with which the settings were chosen."""
T = TypeVar("T")
R = TypeVar("R")


def main(arguments: Sequence[str]) -> int:
    """Train, play, pool and write, or check; returns the exit code."""
    options = _options(arguments)
    if options.check:
        stale_parts = problems(ROOT)
        for line in stale_parts:
            print(f"evidence: {line}")
        for line in (
            stale(ROOT, json.loads((ROOT / JSON_PAGE).read_text("utf-8")))
            if (ROOT / JSON_PAGE).exists()
            else ()
        ):
            print(f"evidence: {line}")
        print(
            f"evidence: {len(stale_parts)} problems"
            if stale_parts
            else "evidence: docs/evidence.md is what its JSON says, of this student and settings"
        )
        return 1 if stale_parts else 0
    if options.merge:
        value = merged(
            json.loads(options.json.read_text("utf-8")),
            json.loads(options.merge.read_text("utf-8")),
        )
        _write(options.json, value)
    elif not options.render:
        _gather(options)
    evidence = json.loads(options.json.read_text("utf-8"))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(render(evidence), "utf-8")
    beside = ROOT / JSON_PAGE if options.out == ROOT / PAGE else options.out.with_suffix(".json")
    if beside.resolve() != options.json.resolve():
        shutil.copyfile(options.json, beside)
    print(f"evidence: wrote {options.out} and {beside}")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", type=int, nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument(
        "--seeds", type=int, default=len(SEEDS), help="how many seeds, or with --seed-list which"
    )
    parser.add_argument("--seed-list", type=int, nargs="+", default=None)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--steps-scale", type=float, default=1.0)
    parser.add_argument("--tasks", type=int, default=192)
    parser.add_argument("--evaluation-seed", type=int, default=31415)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "evidence")
    parser.add_argument("--out", type=Path, default=ROOT / PAGE)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--merge", type=Path, default=None)
    for flag in ("--fresh", "--check", "--render"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args(arguments)
    options.command = shlex.join(["python", "benchmarks/evidence.py", *arguments])
    options.json = options.json or (
        ROOT / JSON_PAGE if options.render or options.merge else options.work / "evidence.json"
    )
    options.seed_list = options.seed_list or [
        SEEDS[i] if i < len(SEEDS) else SEEDS[-1] + i for i in range(options.seeds)
    ]
    return options


def _gather(options: argparse.Namespace) -> None:
    """Prepare the data, train and play every arm, and write the JSON."""
    from workshop_evidence.training import Work, prepare, prepare_pairs, train_arm

    if options.fresh and options.work.exists():
        shutil.rmtree(options.work)
    began = time.monotonic()
    works = [
        Work(root=options.work, level=level, seed=seed, student=ROOT / "examples" / STUDENTS[level])
        for level in options.levels
        for seed in options.seed_list
    ]
    for work in works:
        if not (work.student / "model.safetensors").exists():
            raise SystemExit(
                f"evidence: no student in {work.student}; make it with scripts/warm_up.py, or leave"
                f" level {work.level} out"
            )
    list(_run_in_parallel(prepare, works, workers=options.workers))
    list(
        _run_in_parallel(
            prepare_pairs,
            [work for work in works if _needs_pairs(options, work)],
            workers=options.workers,
        )
    )
    print(
        f"evidence: logs and data of {len(works)} seeds are there,"
        f" {time.monotonic() - began:.0f} s",
        flush=True,
    )
    jobs = [(work, name) for work in works for name in _arms_of(options, work)]
    # Seed by seed: a run that is cut short leaves complete seeds behind.
    jobs.sort(key=lambda job: options.seed_list.index(job[0].seed))

    def train_job(job: tuple[Work, str]) -> dict[str, Any]:
        work, name = job
        result = train_arm(work, name, scale=options.steps_scale)
        stopped = (
            f", stopped: {result['state']}, back to step {result['kept']}" if result["code"] else ""
        )
        summary = (
            f"{result['steps']} steps, {result['cpu_s']:.0f} CPU-s, {result['step_s']} s a step"
        )
        print(
            f"evidence: level {work.level} seed {work.seed} {name}: {summary}{stopped} "
            f" ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
        return result

    results = dict(
        zip(jobs, _run_in_parallel(train_job, jobs, workers=options.workers), strict=True)
    )
    levels = {
        str(level): _level(options, [w for w in works if w.level == level], results)
        for level in options.levels
    }
    evidence = {"about": _about(options, seconds=time.monotonic() - began), "levels": levels}
    _write(options.json, evidence)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    value = json.loads(json.dumps(value, sort_keys=True))  # sorted at every depth
    path.write_text(record_lines(value, depth=4) + "\n", "utf-8")


def _arms(options: argparse.Namespace, level: int) -> list[str]:
    from workshop_evidence.training import trl_python

    return [
        name
        for name, arm in ARMS.items()
        if name in options.arms and level in arm.levels and (not arm.needs_trl or trl_python())
    ]


def _arms_of(options: argparse.Namespace, work: Any) -> list[str]:
    """The arms that are trained with this level and seed."""
    return [
        name
        for name in _arms(options, work.level)
        if work.seed in seeds_of(name, options.seed_list)
    ]


def _needs_pairs(options: argparse.Namespace, work: Any) -> bool:
    """Whether an arm of this level and seed is trained on one of the sets of pairs."""
    return any(ARMS[name].pairs for name in _arms_of(options, work))


def _run_in_parallel(run: Callable[[T], R], items: Sequence[T], *, workers: int) -> Iterable[R]:
    """Results in the order of `items`; the first failure cancels the calls that have not begun."""
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _level(
    options: argparse.Namespace, works: Sequence[Any], results: dict[Any, dict[str, Any]]
) -> dict[str, Any]:
    """Play every arm of a level on the tasks of its seeds, and pool the episodes."""
    from workshop_evidence.numbers import check_arms, evaluation_seed_of, level_numbers, play

    from composer_replication.core.config.rollout_settings import EvaluateSettings
    from composer_replication.evaluation.players import player_of, start_of
    from composer_replication.workshop.demonstrators import LEVELS as STUDENT_LEVELS

    level = works[0].level
    settings, names = EvaluateSettings(tasks=options.tasks, level=level), _arms(options, level)
    episodes: dict[str, dict[int, Any]] = {name: {} for name in (BEFORE, *names)}
    weights: dict[str, dict[str, str]] = {name: {} for name in (BEFORE, *names)}
    for work in works:
        players = {name: player_of(work.run(name), name=name) for name in _arms_of(options, work)}
        check_arms(
            players,
            {
                name: results[work, name]["rule"]
                or ("stopped" if results[work, name]["code"] else "")
                for name in players
            },
        )
        all_players = [start_of(next(iter(players.values()))), *players.values()]
        seed = evaluation_seed_of(options.evaluation_seed, level=level, seed=work.seed)
        print(
            f"evidence: level {level} seed {work.seed}: playing {len(all_players)} students on"
            f" {options.tasks} tasks each",
            flush=True,
        )
        for student in play(all_players, settings=settings, seed=seed, workers=options.workers):
            episodes[student.name][work.seed] = student.episodes
            weights[student.name][str(work.seed)] = student.weights_sha256
    numbers = level_numbers(episodes, settings=settings, seed=options.evaluation_seed)
    arms = {
        name: {
            "text": ARMS[name].text,
            "flags": list(ARMS[name].flags),
            "planned_steps": steps_of(name, scale=options.steps_scale),
            "runs": {
                str(work.seed): _page_fields(results[work, name])
                for work in works
                if (work, name) in results
            },
        }
        for name in names
    }
    (start,) = set(weights[BEFORE].values())
    return {
        **numbers,
        "arms": arms,
        "text": STUDENT_LEVELS[level].text,
        "student_sha256": start,
        "weights_sha256": weights,
    }


def _page_fields(result: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "code",
        "steps",
        "kept",
        "state",
        "rule",
        "cpu_s",
        "tokens",
        "clipped",
        "kl",
        "commit",
        "code_sha256",
    )
    return {key: result[key] for key in (*keys, *(["pairs"] if "pairs" in result else []))}


def _about(options: argparse.Namespace, *, seconds: float) -> dict[str, Any]:
    """How, where and when the numbers were made."""
    return {
        "command": options.command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "minutes": round(seconds / 60, 1),
        "machine": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "transformers")},
        },
        "evaluation_seed": options.evaluation_seed,
        "tasks": options.tasks,
        "seeds": options.seed_list,
        "steps_scale": options.steps_scale,
        "settings_sha256": settings_sha256(),
        "code_sha256": code_sha256(ROOT),
        "code": code_files(ROOT),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
