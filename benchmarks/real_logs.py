"""Train a real model on the public sessions of some repositories, and measure what it would decide
at the mistakes of other repositories.

    python benchmarks/real_logs.py FOLDER... --work build/real_logs \\
        --model build/real/folders/smollm2:chatml-tools --hints-work build/real_hints

The folders and the split by repository are those of real_hints.py, which must have run on them: its
work folder holds the held-out sites. Arms: `hint` (the hint channel and lm_ce), `focus` (the same,
narrowed to the tokens of the decision), `contrast` (only what the site's own hint changes more than
another site's does), `user` (as `hint`, with the hint in a user message), and a placebo of each,
with the hints of other sites. Each is a run of `recompose train` on the sessions of "train" alone,
merged and then scored without any hint at the held-out sites: log-odds of right against wrong at
the decision, and the token that it would write there: does it repeat the mistake? Arms that are
there are not trained again. Writes benchmarks/results/real_logs.json: another --json for other
arms, unless those in it are trained here, too.

A processor without bfloat16 instructions takes a minute or more for a step in float32, and far
longer in bfloat16: give --dtype float32 there, and another --json, since rows of two precisions may
not stand in one table.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from real_hints import NONE, manifest_of, measure, repository_groups
from record_lines import record_lines
from workshop_evidence.training import checked_out_commit

from composer_replication.core.config.base import stage_seed
from composer_replication.evaluation.stats import bootstrap_mean

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "real_logs.json"
BEFORE, SEEDS = "before", (11, 12, 13)
TRAINED_TOKENS, SCORED_TOKENS = 1024, 2048
ARMS: Mapping[str, tuple[str, ...]] = {
    "hint": (),
    "placebo": ("--train.placebo", "shuffled_hints"),
    "focus": ("--train.hint.focus", "decision"),
    "focus_placebo": ("--train.hint.focus", "decision", "--train.placebo", "shuffled_hints"),
    "contrast": ("--train.hint.contrast", "true"),
    "contrast_placebo": ("--train.hint.contrast", "true", "--train.placebo", "shuffled_hints"),
    "user": ("--hints.position", "user"),
    "user_placebo": ("--hints.position", "user", "--train.placebo", "shuffled_hints"),
}
LOG_ODDS, WRITES = "log_odds", ("right", "wrong")
MEASURED = (LOG_ODDS, *WRITES)
"""What is compared at a site: the log-odds, and whether the most probable token there leads on to
something right or is the log's wrong one."""
PLACEBO = {
    "hint": "placebo",
    "focus": "focus_placebo",
    "contrast": "contrast_placebo",
    "user": "user_placebo",
}
SETTINGS = """# Settings of benchmarks/real_logs.py
[student]
model = "{model}"
template = "{family}"
dtype = "{dtype}"
lora = {{ rank = 16, alpha = 32 }}

[ingest]
logs = ["../logs"]

[build]
max_tokens = {max_tokens}
without_evidence = "keep"

[train]
steps = {steps}
batch_examples = 4
micro_tokens = 2048
learning_rate = 2e-4
warmup_steps = 2
checkpoint_every = 100
grad_every = 100
probe_sites = 0
starved_steps = 1000
hint = {{ weight = 1.0 }}
lm_ce = {{ weight = 0.3 }}
"""


def recompose(*arguments: str, log: Path, cwd: Path) -> None:
    """Run a verb; raises CalledProcessError if it fails."""
    # the settings file, which this script wrote, names logs outside its folder
    command = [sys.executable, "-m", "composer_replication.cli", *arguments, "--trust-settings"]
    with log.open("a", encoding="utf-8") as out:
        out.write(f"$ recompose {shlex.join(arguments)}\n")
        out.flush()
        subprocess.run(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, check=True)


def prepare(
    folders: Sequence[Path], work: Path, *, model: str, family: str, steps: int, dtype: str
) -> Path:
    """The examples of the repositories in "train", once; returns the project folder."""
    project, log_of_verbs = work / "project", work / "prepare.log"
    if (work / "prepared").exists():
        return project
    shutil.rmtree(work, ignore_errors=True)
    (work / "logs").mkdir(parents=True)
    project.mkdir()
    entries = [(folder, entry) for folder in folders for entry in manifest_of(folder)]
    repository = {e["file"]: e.get("repository") or e["repo"] for _, e in entries}
    groups = repository_groups(list(repository.values()))
    for folder, entry in entries:
        log_file = folder / entry["file"]
        if groups[repository[entry["file"]]] == "train" and log_file.exists():
            shutil.copy2(log_file, work / "logs" / entry["file"])
    settings = SETTINGS.format(
        model=model, family=family, steps=steps, max_tokens=TRAINED_TOKENS, dtype=dtype
    )
    (project / "recompose.toml").write_text(settings, "utf-8")
    for verb in ("ingest", "sites", "hints", "build"):
        recompose(verb, "-c", "recompose.toml", log=log_of_verbs, cwd=project)
    (work / "prepared").touch()
    return project


def with_examples_of(project: Path, arm: str) -> str:
    """The work folder of an arm's examples, built once: hints in another position are other
    examples."""
    if "--hints.position" not in ARMS[arm]:
        return "recompose"
    position = ARMS[arm][ARMS[arm].index("--hints.position") + 1]
    folder = f"recompose_{position}"
    if not (project / folder).exists():
        half = project / f"{folder}.half"
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(project / "recompose", half, ignore=shutil.ignore_patterns("runs"))
        flags = ("--hints.position", position, "-c", "recompose.toml", "-o", half.name)
        recompose("build", *flags, log=project.parent / "prepare.log", cwd=project)
        half.rename(project / folder)
    return folder


def train(project: Path, arm: str, seed: int) -> Path:
    """Train an arm with a seed and merge it, once; returns the merged folder."""
    name, merged = f"{arm}-{seed}", merged_of(project, arm, seed)
    if not merged.exists():
        folder = with_examples_of(project, arm)
        shutil.rmtree(project / folder / "runs" / name, ignore_errors=True)
        log = project.parent / f"{name}.log"
        flags = ("-c", "recompose.toml", "-o", folder, "--seed", str(seed))
        recompose("train", "--name", name, *ARMS[arm], *flags, log=log, cwd=project)
        recompose("export", name, "--to", str(merged.absolute()), *flags, log=log, cwd=project)
    return merged


def merged_of(project: Path, arm: str, seed: int) -> Path:
    """The folder of the merged student of an arm and a seed."""
    return project.parent / "merged" / f"{arm}-{seed}"


def complete_seeds(
    arms: Sequence[str], seeds: Sequence[int], students: Container[str]
) -> dict[str, list[int]]:
    """For each arm the seeds of its mean: those whose placebo is there, too.

    >>> complete_seeds(["hint", "placebo"], [11, 12], {"hint-11", "hint-12", "placebo-12"})
    {'hint': [12], 'placebo': [12]}
    """
    partner = {**PLACEBO, **{placebo: arm for arm, placebo in PLACEBO.items()}}
    return {
        arm: [
            seed
            for seed in seeds
            if all(f"{of}-{seed}" in students for of in {arm, partner[arm]} & {*arms})
        ]
        for arm in arms
    }


def merge_of(merged: Path) -> dict[str, float]:
    """How far the merge itself moved a student, and how far its adapter did: KL per token."""
    facts = json.loads((merged / "recompose.json").read_text("utf-8"))["merge"]
    return {name: facts[name] for name in ("mean_kl", "adapter_kl")}


def differences(
    measured: Mapping[str, Mapping[str, float]], clusters: Mapping[str, str], a: str, b: str
) -> dict[str, Any]:
    """The mean of a - b over the sites, with an interval over sessions."""
    sites = sorted(measured[a].keys() & measured[b].keys())
    interval = bootstrap_mean(
        [measured[a][site] - measured[b][site] for site in sites],
        [clusters[site] for site in sites],
        seed=stage_seed(0, f"{a}:{b}"),
    )
    return {
        "a": a,
        "b": b,
        "n": interval.n,
        "sessions": interval.clusters,
        "mean": round(interval.mean, 4),
        "low": None if interval.low is None else round(interval.low, 4),
        "high": None if interval.high is None else round(interval.high, 4),
    }


def score(
    students: Mapping[str, Path], family: str, *, work: Path, dtype: str
) -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, str]]:
    """What every student would do at the held-out sites: by measure, student and site; and the
    cluster of each site."""
    about = json.loads((work / "sessions_about.json").read_text("utf-8"))
    measured: dict[str, dict[str, dict[str, float]]] = {what: {} for what in MEASURED}
    clusters: dict[str, str] = {}
    began = time.monotonic()
    for name, student in students.items():
        records, _ = measure(
            f"bare-{dtype}-{name}",
            str(student),
            family,
            work=work,
            texts={},
            bare=True,
            group="held_out",
            max_tokens=SCORED_TOKENS,
            dtype=dtype,  # as it was trained
        )
        measured[LOG_ODDS][name] = {r["site"]: r["log_odds"][NONE] for r in records}
        for what in WRITES:
            measured[what][name] = {r["site"]: float(r["writes"] == what) for r in records}
        clusters |= {r["site"]: about[r["session"]]["cluster"] for r in records}
        print(f"real: {name} is scored ({time.monotonic() - began:.0f} s)", flush=True)
    return measured, clusters


def _mean(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over the seeds of an arm, site by site."""
    return {site: sum(of[site] for of in values) / len(values) for site in values[0]}


def compared(
    measured: Mapping[str, Mapping[str, Mapping[str, float]]], clusters: Mapping[str, str]
) -> dict[str, Any]:
    """The paired differences of all students, of each seed and of the means over the seeds, and how
    often each student writes what is right and what is wrong."""
    students = list(measured[LOG_ODDS])
    arms = [arm for arm in ARMS if any(name.startswith(f"{arm}-") for name in students)]
    seeds = complete_seeds(arms, SEEDS, students)
    values = {
        what: {
            **of,
            **{arm: _mean([of[f"{arm}-{s}"] for s in seeds[arm]]) for arm in arms if seeds[arm]},
        }
        for what, of in measured.items()
    }
    every = [
        *((name, BEFORE) for name in students if name != BEFORE),
        *((f"{a}-{seed}", f"{b}-{seed}") for seed in SEEDS for a, b in PLACEBO.items()),
        *((arm, BEFORE) for arm in arms),
        *PLACEBO.items(),
    ]
    pairs = [pair for pair in every if {*pair} <= values[LOG_ODDS].keys()]
    return {
        "differences": [
            {"what": what} | differences(of, clusters, a, b)
            for what, of in values.items()
            for a, b in pairs
        ],
        "shares": {
            what: {name: round(sum(of.values()) / len(of), 4) for name, of in values[what].items()}
            for what in WRITES
        },
    }


def main(arguments: Sequence[str]) -> int:
    """Prepare, train, merge, score, write; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--model", required=True, metavar="FOLDER:FAMILY")
    parser.add_argument("--hints-work", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "real_logs")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--as-trained", action="store_true", help="train no further")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    folder, _, family = options.model.rpartition(":")
    began = time.monotonic()
    project = prepare(
        [f.absolute() for f in options.folders],
        options.work,
        model=str(Path(folder).absolute()),
        family=family,
        steps=options.steps,
        dtype=options.dtype,
    )
    print(f"real: the examples are there ({time.monotonic() - began:.0f} s)", flush=True)
    students = {BEFORE: Path(folder)}
    for seed in options.seeds:
        for arm in options.arms:
            if options.as_trained and not merged_of(project, arm, seed).exists():
                continue
            students[f"{arm}-{seed}"] = train(project, arm, seed)
            print(f"real: {arm}-{seed} is trained ({time.monotonic() - began:.0f} s)", flush=True)
    measured, clusters = score(students, family, work=options.hints_work, dtype=options.dtype)
    about = {
        "commit": checked_out_commit(),
        "family": family,
        "settings": SETTINGS,
        "steps": options.steps,
        "dtype": options.dtype,
        "max_tokens": TRAINED_TOKENS,
        "scored_tokens": SCORED_TOKENS,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    merges = {name: merge_of(students[name]) for name in students if name != BEFORE}
    value = {
        "about": about,
        **compared(measured, clusters),
        "merges": merges,
        "log_odds": {name: measured[LOG_ODDS][name] for name in students},
        "writes": {
            name: {
                what: sorted(site for site, is_so in measured[what][name].items() if is_so)
                for what in WRITES
            }
            for name in students
        },
    }
    options.json.write_text(record_lines(value, depth=3) + "\n", "utf-8")
    print(f"real: wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
