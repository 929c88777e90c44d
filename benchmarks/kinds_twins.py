"""Train on the mistakes that no tool reports, each in a small world of its own (twins/world.py),
and measure the rate of each on held-out tasks: before, more plain fine-tuning, placebo, after.

    python benchmarks/kinds_twins.py                  three seeds; goes on where it was cut off
    python benchmarks/kinds_twins.py --seeds 10 --json build/twins.json
        the seed with which the settings were chosen (with NUM_EACH = 40)
    python benchmarks/kinds_twins.py --render         write the table of docs/kinds.md again

Seed by seed: the student plays training tasks, and a scripted person, or the world, reacts as in
real logs; the sessions are written as Claude Code logs. `recompose ingest`, `sites`, `hints`,
`build` and `train` do the rest, with `sites.train_kinds`. Nothing else tells the trainer which
message was mistaken. Results: benchmarks/results/kinds_twins.json. What stands in --work is not
made again: remove it after a change of the worlds or of NUM_EACH.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from record_lines import record_lines
from twins.page import RESULTS, write_page
from twins.world import FAMILIES, KINDS, twin_source
from workshop_evidence.arms import steps_of
from workshop_evidence.training import Work, checked_out_commit, prepare, train_arm

ROOT = Path(__file__).resolve().parent.parent
SEEDS, EVALUATION_SEED = (11, 12, 13), 16180
NUM_EACH, TASKS = 80, 320
ARMS: Mapping[str, str] = {"after": "hint", "placebo": "hint_placebo", "more_sft": "more_sft"}
"""The rows, and the arm of workshop_evidence/arms.py with whose flags each is trained."""
SCALE = 1.0
SETTINGS = """# Settings of benchmarks/kinds_twins.py
work_dir = "."
seed = {seed}

[student]
model = "{student}"

[ingest]
logs = ["logs"]

[sites]
train_kinds = [{kinds}]
min_confidence = 0.3       # the workshop's detectors are right by construction

[hints]
writers = {{ taken_back = "taken_back_later" }}   # by default a hint only for a person's words

[build]
max_tokens = 1024

[rollouts]
env = ""                   # the logs alone

[train]
steps = 20
batch_examples = 48
learning_rate = 5e-4
warmup_steps = 4
checkpoint_every = 50
grad_every = 100
policy = {{ weight = 0.0 }}
hint = {{ weight = 1.0, divergence = "kl(teacher, student)" }}
lm_ce = {{ weight = 0.0 }}
preference = {{ weight = 0.0 }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinWork(Work):
    """The logs, data and runs of one seed."""

    verbs: tuple[tuple[str, ...], ...] = (("ingest",), ("sites",), ("hints",), ("build",))
    record: str = "from kinds_twins import record_here; import sys; record_here(*sys.argv[1:])"

    def settings(self) -> str:
        """The text of the settings file."""
        kinds = ", ".join(f'"{kind}"' for kind in KINDS)
        return SETTINGS.format(
            seed=self.seed, student=self.student.absolute().as_posix(), kinds=kinds
        )


def record_here(config: str, student: str) -> None:
    """Record sessions of the student, as it is before any training; run by `prepare`."""
    import torch
    from twins.record import record_twins

    from composer_replication.cli.flags import Common
    from composer_replication.cli.job import open_job
    from composer_replication.core.config.base import stage_seed
    from composer_replication.core.jsonl import write_json
    from composer_replication.models.load_student import load_student
    from composer_replication.tokens.hf import load_tokenizer
    from composer_replication.tokens.renderer import Renderer

    torch.set_num_threads(1)
    loaded = open_job(Common(config=(Path(config),), quiet=True)).config
    tokenizer = load_tokenizer(student)
    counts = record_twins(
        load_student(loaded.student, tokenizer=tokenizer, seed=loaded.seed).model,
        renderer=Renderer.for_tokenizer(tokenizer),
        seed=stage_seed(loaded.seed, "record"),
        num_each=NUM_EACH,
        folder=Path(config).parent / "logs",
    )
    write_json(Path(config).parent / "recorded.json", counts)


def data_counts(work: TwinWork) -> dict[str, Any]:
    """What the pipeline made of a seed's logs: sites, hints and views by kind, and the tokens of
    their messages that lm_ce trains."""
    from composer_replication.core.codec import read_sites
    from composer_replication.tokens.artefact import load_dataset

    sites = list(read_sites(work.folder / "sites.jsonl"))
    examples = load_dataset(work.folder / "examples").examples
    trained_turns = {
        (example.session_id, number)
        for example in examples
        for number, span in enumerate(example.turns)
        if span.body in example.lm_spans
    }
    return {
        "sessions": json.loads((work.folder / "recorded.json").read_text("utf-8")),
        "sites": dict(Counter(f"{s.kind}/{s.rule or s.category}" for s in sites)),
        "views": dict(Counter(v.kind for e in examples for v in e.hints)),
        "lm_ce_on_sites": sum(
            (s.session_id, s.turn) in trained_turns for s in sites if s.kind in KINDS
        ),
    }


def play_seed(work: TwinWork, *, tasks: int) -> dict[str, list[Any]]:
    """The episodes of the start and of every arm on the held-out tasks of a seed."""
    from workshop_evidence.numbers import evaluation_seed_of

    from composer_replication.core.config.rollout_settings import EvaluateSettings
    from composer_replication.evaluation.players import load_player, player_of, start_of
    from composer_replication.evaluation.success import play_tasks

    players = {name: player_of(work.run(arm), name=name) for name, arm in ARMS.items()}
    players = {"before": start_of(players["after"]), **players}
    episodes: dict[str, list[Any]] = {}
    for name, player in players.items():
        student, renderer = load_player(player)
        episodes[name] = play_tasks(
            student.model,
            renderer=renderer,
            settings=EvaluateSettings(tasks=tasks),
            limits=player.config.rollouts,
            seed=evaluation_seed_of(EVALUATION_SEED, level=work.level, seed=work.seed),
            source=twin_source(),
        )
    return episodes


def numbers_of(episodes: Mapping[str, Mapping[int, Sequence[Any]]]) -> dict[str, Any]:
    """The rows and the paired differences over all seeds, and one bit per episode."""
    from workshop_evidence.numbers import block_of, pooled

    from composer_replication.evaluation.rows import paired_differences
    from composer_replication.evaluation.stats import wilson

    rows: dict[str, Any] = {}
    for name, by_seed in episodes.items():
        rows[name] = {}
        for family in FAMILIES:
            bits = {
                str(seed): "".join(
                    str(int(p.measures[family.made])) for p in played if p.measures[family.open]
                )
                for seed, played in by_seed.items()
            }
            made, n = "".join(bits.values()).count("1"), len("".join(bits.values()))
            low, high = wilson(made, n)
            rows[name][family.name] = {
                "n": n,
                "made": made / n,
                "low": low,
                "high": high,
                "bits": bits,
            }
        successes = [p.reward for played in by_seed.values() for p in played]
        rows[name]["success"] = sum(successes) / len(successes)
    paired = [
        entry
        for a, b in (
            ("after", "placebo"),
            ("after", "before"),
            ("placebo", "before"),
            ("more_sft", "before"),
        )
        for entry in paired_differences(
            a,
            pooled(episodes[a]),
            b,
            pooled(episodes[b]),
            targeted=(),
            seed=EVALUATION_SEED,
            block=block_of,
            families=FAMILIES,
        )
        if entry.get("metric", "success").endswith(("_made", "success"))
    ]
    return {"rows": rows, "paired": paired}


def gather(options: argparse.Namespace) -> None:
    """Record, build, train and play, seed by seed, and write the JSON."""
    from twins.student import make_student

    began = time.monotonic()
    student = options.work / "student"
    if not (student / "warmup.json").exists():
        make_student(student)
    episodes: dict[str, dict[int, Any]] = {name: {} for name in ("before", *ARMS)}
    data: dict[str, Any] = {}
    for seed in options.seeds:
        work = TwinWork(root=options.work, level=1, seed=seed, student=student)
        prepare(work)
        data[str(seed)] = data_counts(work)
        print(f"twins: seed {seed}: {data[str(seed)]}", flush=True)
        for name, arm in ARMS.items():
            result = train_arm(work, arm, scale=SCALE)
            print(
                f"twins: seed {seed} {name}: {result['steps']} steps, {result['state']},"
                f" {result['tokens']} ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            data[str(seed)][f"tokens_{name}"] = result["tokens"]
        for name, played in play_seed(work, tasks=options.tasks).items():
            episodes[name][seed] = played
        print(f"twins: seed {seed}: played ({time.monotonic() - began:.0f} s)", flush=True)
    value = {
        "about": {
            "command": options.command,
            "commit": checked_out_commit(),
            "seeds": options.seeds,
            "evaluation_seed": EVALUATION_SEED,
            "tasks": options.tasks,
            "sessions_each": NUM_EACH,
            "steps": {name: steps_of(arm, scale=SCALE) for name, arm in ARMS.items()},
            "settings": SETTINGS,
            "warmup": json.loads((student / "warmup.json").read_text("utf-8")),
            "minutes": round((time.monotonic() - began) / 60, 1),
            "versions": {
                "python": platform.python_version(),
                **{name: metadata.version(name) for name in ("torch", "transformers")},
            },
        },
        "data": data,
        **numbers_of(episodes),
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    value = json.loads(json.dumps(value, sort_keys=True))
    options.json.write_text(record_lines(value, depth=3) + "\n", "utf-8")


def main(arguments: Sequence[str]) -> int:
    """Train, play and write; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "kinds_twins")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--render", action="store_true", help="only write the table")
    options = parser.parse_args(arguments)
    options.command = shlex.join(["python", "benchmarks/kinds_twins.py", *arguments])
    if not options.render:
        gather(options)
    if options.json == RESULTS:
        write_page()
    else:
        from twins.page import render

        print(render(json.loads(options.json.read_text("utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
