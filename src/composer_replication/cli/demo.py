"""`recompose demo`: a student that makes three sorts of mistakes, its own logs, three channels, and whether they helped."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from composer_replication.cli.build import build
from composer_replication.cli.demo_controls import Controls
from composer_replication.cli.evaluate import evaluate
from composer_replication.cli.flags import Common
from composer_replication.cli.hints import hints
from composer_replication.cli.ingest import ingest
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.replay import replay
from composer_replication.cli.report import report
from composer_replication.cli.sites import sites
from composer_replication.cli.train import train
from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import DataError, need
from composer_replication.report.claims import claims
from composer_replication.report.evidence import verdict as judged

FOLDER, STUDENT = Path("demo"), "workshop_student"
NUM_LOGS, SLACK, STEPS = 192, 3, 24
AFTER = "after"
PLACEBO = ("--train.placebo", "shuffled_hints,permuted_rewards,swapped_pairs")
MORE_SFT = (
    "--rollouts.env",
    "",
    "--train.lm_ce.weight",
    "1",
    "--train.policy.weight",
    "0",
    "--train.hint.weight",
    "0",
    "--train.preference.weight",
    "0",
)
CONTROLS: Mapping[str, tuple[str, ...]] = {"placebo": PLACEBO, "more_sft": MORE_SFT}
"""What each control of the table is trained with, on top of the demo's settings."""
SETTINGS = """# Settings of `recompose demo`: a student of 0.6M parameters in a small coding workshop, all three channels.
work_dir = "."
seed = {seed}

[student]
model = "{student}"

[ingest]
logs = ["logs"]

[build]
max_tokens = 1024

[rollouts]
env = "workshop"           # the student acts in it while it is trained
groups = 8
group_size = 6

[train]
steps = {steps}
batch_examples = 48        # read by the control "more_sft", which trains on the logs alone
learning_rate = 5e-4
warmup_steps = 5
checkpoint_every = 6
grad_every = 100
policy = {{ weight = 1.0 }}
hint = {{ weight = 1.0 }}
lm_ce = {{ weight = 0.0 }}
preference = {{ weight = 1.0, batch_pairs = 16 }}

[evaluate]
tasks = 192
"""


@dataclass(slots=True)
class _Stages:
    """Runs the verbs one after the other and keeps what they said."""

    job: Job
    config: Path
    common: Common
    seconds: dict[str, float] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    def __call__(self, shown: str, verb: Callable[[Common], int]) -> int:
        """Run one verb as if its command line had been typed; `shown` is that line without the settings file."""
        began, name = time.monotonic(), shown.split()[0]
        self.job.screen.line(f"\n$ recompose {shown} -c {self.config}", style="bold")
        said = io.StringIO()  # with --json every verb prints an object, and the demo prints one of its own
        inner = Common(config=(self.config,), json=self.common.json, quiet=self.common.quiet, verbose=self.common.verbose)
        with contextlib.redirect_stdout(said) if self.common.json else contextlib.nullcontext():
            code = verb(inner)
        self.told[name] = json.loads(said.getvalue() or "{}")
        self.seconds[name] = round(time.monotonic() - began, 1)
        return code


def demo(*, from_scratch: bool = False, logs_only: bool = False, common: Common = Common()) -> int:
    """From logs to a table with a placebo: about three minutes on two cores, no network, no GPU. Writes demo/ (-o for another folder).

    Parameters
    ----------
    from_scratch
        Warm the student up first, from random weights, in place of the one that ships (about ten minutes more).
    logs_only
        Record the student's logs and write the settings, so that every verb can be run by hand.
    """
    start = time.monotonic()
    folder = common.out if common.out is not None else FOLDER
    job = open_job(Common(json=common.json, quiet=common.quiet, verbose=common.verbose, dry_run=common.dry_run, out=folder))
    config = folder / "recompose.toml"
    if job.dry_run:
        wrote = [config, folder / "logs", job.sessions, job.sites, job.hints, job.preferences, job.examples, job.runs]
        return job.finish({"student": str(shipped(STUDENT))}, wrote=wrote)
    for package in ("torch", "transformers", "accelerate"):
        need(package, extra="train")
    if (folder / "logs").exists():
        shutil.rmtree(folder / "logs")  # this run's own: another seed records other sessions
    folder.mkdir(parents=True, exist_ok=True)
    student = _warm_up(job, folder / "student") if from_scratch else shipped(STUDENT)
    config.write_text(SETTINGS.format(seed=job.config.seed, student=student.absolute().as_posix(), steps=STEPS), "utf-8")
    recorded = _record(job, student, folder / "logs")
    if logs_only:
        return job.finish(recorded, wrote=[folder / "logs", config], next_command=f"{command()} ingest -c {config}")
    stages = _Stages(job=job, config=config, common=common)
    return _run(stages, folder, start=start)


def _run(stages: _Stages, folder: Path, *, start: float) -> int:
    """Every verb from ingest to report; ends with three lines, the page and the next command."""
    job, runs = stages.job, folder / "runs"
    for name in (AFTER, *CONTROLS):  # what an earlier demo left; other runs stay
        if (runs / name).exists():
            shutil.rmtree(runs / name)
    first: list[tuple[str, Callable[[Common], int]]] = [
        ("ingest", lambda common: ingest(common=common)),
        ("sites", lambda common: sites(common=common)),
        ("hints --audit", lambda common: hints(audit=True, common=common)),
        ("replay", lambda common: replay(common=common)),
        ("build", lambda common: build(common=common)),
    ]
    for shown, verb in first:
        if code := stages(shown, verb):
            return _stopped(stages, shown, code)
    with Controls(stages.config, CONTROLS, log=folder / "controls.log") as controls:
        if code := stages(f"train --name {AFTER}", lambda common: train(name=AFTER, common=common)):
            return _stopped(stages, "train", code)
        for line in controls.command_lines:
            job.screen.line(f"\n$ {line}      (beside it, in a second process)", style="bold")
        controls.wait()
    against = tuple(f"{name}={runs / name}" for name in CONTROLS)
    shown = f"evaluate {AFTER} " + " ".join(f"--against {word}" for word in against)
    if code := stages(shown, lambda common: evaluate(str(runs / AFTER), against=against, common=common)):
        return _stopped(stages, "evaluate", code)
    if code := stages(f"report {AFTER}", lambda common: report(str(runs / AFTER), common=common)):
        return _stopped(stages, "report", code)
    return _end(stages, runs / AFTER, start=start)


def _stopped(stages: _Stages, shown: str, code: int) -> int:
    stages.job.screen.result({"stages": stages.told, "problem": f"{shown} ended with exit code {code}"})
    return code


def _end(stages: _Stages, run: Path, *, start: float) -> int:
    """Three lines, the page, and the next command; with --json what evaluation.json holds."""
    job = stages.job
    table = json.loads((run / "evaluation.json").read_text("utf-8"))
    job.screen.line(f"\n The demo is done in {time.monotonic() - start:.0f} s.", style="bold")
    for line in summary(table):
        job.screen.line(f" {line}")
    return job.finish(
        {**table, "seconds": stages.seconds}, wrote=[run / "report.html"], next_command=f"{command()} ingest ~/.claude/projects"
    )


def summary(table: Mapping[str, Any]) -> list[str]:
    """Three lines: success by row, what the intervals support, and that the mistakes were planted."""
    verdict = judged(table["paired"])
    rows = ", ".join(f"{row['name']} {row['success']:.2f}" for row in table["rows"])
    held = [claim.text for claim in claims(table) if claim.holds]
    return [
        f"Success on {table['n']} unseen tasks: {rows}.",
        " ".join([verdict["sentence"], *held]),
        "The mistakes and the following of hints were planted in the student; real logs say what yours are.",
    ]


def _record(job: Job, student: Path, folder: Path) -> dict[str, Any]:
    """The student's careless sessions on training tasks, as Claude Code would have logged them."""
    import torch

    from composer_replication.core.config.student import StudentSettings
    from composer_replication.models.load import load_student
    from composer_replication.rollouts.envs.workshop.record import record_logs
    from composer_replication.rollouts.envs.workshop.sandbox import Sandbox
    from composer_replication.rollouts.sampler import Sampling
    from composer_replication.tokens.hf import load_tokenizer
    from composer_replication.tokens.renderer import Renderer

    torch.set_num_threads(1)  # sums depend on the number of threads: the same seed gives the same table
    job.screen.line(f" record   {NUM_LOGS} sessions of the student in {student}, as it is before any training", style="bold")
    tokenizer = load_tokenizer(str(student))
    loaded = load_student(StudentSettings(model=str(student)), tokenizer=tokenizer, seed=job.config.seed)
    seed = stage_seed(job.config.seed, "record")
    sampling = Sampling(max_new_tokens=64, max_context_tokens=1024, batch_episodes=64, seed=seed)
    with Sandbox() as sandbox:
        done = record_logs(
            loaded.model,
            renderer=Renderer.for_tokenizer(tokenizer),
            settings=sampling,
            seed=seed,
            num_sessions=NUM_LOGS,
            folder=folder,
            sandbox=sandbox,
            slack=SLACK,
        )
    left_out = ", ".join(f"{count} {reason}" for reason, count in done.left_out.items())
    job.screen.line(
        f" wrote    {len(done.paths)} logs in Claude Code's format below {folder}" + (f"; left out: {left_out}" if left_out else "")
    )
    return {"logs": len(done.paths), "left_out": dict(done.left_out)}


def _warm_up(job: Job, folder: Path) -> Path:
    """A student made from random weights here and now, beside what was measured on the one that ships."""
    from composer_replication.rollouts.envs.workshop.sandbox import Sandbox
    from composer_replication.training.warmup.make import ABOUT, make_student

    ships = json.loads((shipped(STUDENT) / ABOUT).read_text("utf-8"))
    plan = ships["plan"]
    job.screen.line(f" warm-up  {plan['steps']} steps from random weights, about {ships['cpu_s']} CPU-seconds", style="bold")

    def on_step(step: int, loss: float, model: Any) -> None:
        if step % 50 == 0:
            job.screen.line(f" step={step} of {plan['steps']} loss={loss:.4f}")

    with Sandbox() as sandbox:
        made = make_student(folder, level=ships["level"], seed=plan["seed"], sandbox=sandbox, on_step=on_step)["measured"]
    low, high = ships["measured"]["success_low"], ships["measured"]["success_high"]
    inside = low <= made["success"] <= high
    told = f"success {made['success']:.3f}; the one that ships: {ships['measured']['success']:.3f} [{low:.3f}, {high:.3f}]"
    job.screen.line(f" student  {told}: {'inside' if inside else 'OUTSIDE'} its interval", style="" if inside else "bold yellow")
    return folder


def command() -> str:
    """How a shell calls this program: by name where it is on the PATH, else by the path of the installed script."""
    script = Path(sys.argv[0]).absolute()
    if shutil.which("recompose") or script.name != "recompose" or not script.is_file():
        return "recompose"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def shipped(name: str) -> Path:
    """A file or folder that the wheel carries; in a clone it lies under examples/."""
    inside = Path(str(files("composer_replication"))) / name
    clone = Path(__file__).resolve().parents[3] / "examples" / name
    for path in (inside, clone):
        if path.exists():
            return path
    raise DataError(f"{name} is not installed", where=str(inside), fix="run the demo from a clone of the repository: make demo")
