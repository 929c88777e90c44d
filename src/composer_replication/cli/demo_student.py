"""The student of the demo, shipped or warmed up from random weights, and its logs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from composer_replication.cli.demo_settings import SETTINGS
from composer_replication.cli.job import Job
from composer_replication.cli.problems import UsageError
from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.report.html import plural

STUDENT = "workshop_student"
NUM_LOGS, SLACK = 192, 3


def shipped(name: str) -> Path:
    """The path of a file or folder of the wheel; in a clone it is under examples/."""
    inside = Path(str(files("composer_replication"))) / name
    clone = Path(__file__).resolve().parents[3] / "examples" / name
    for path in (inside, clone):
        if path.exists():
            return path
    raise DataError(
        f"{name} is not installed",
        where=str(inside),
        fix="run the demo from a clone of the repository: make demo",
    )


def record_sessions(job: Job, student: Path, folder: Path, *, num_sessions: int) -> dict[str, Any]:
    """Record sessions of the student on training tasks, as Claude Code would have logged them."""
    import torch

    from composer_replication.core.config.student_settings import StudentSettings
    from composer_replication.models.load_student import load_student
    from composer_replication.rollouts.sampler import Sampling
    from composer_replication.tokens.hf import load_tokenizer
    from composer_replication.tokens.renderer import Renderer
    from composer_replication.workshop.record_episodes import record_logs
    from composer_replication.workshop.sandbox import Sandbox

    # one thread: floating-point sums depend on the number of threads
    torch.set_num_threads(1)
    job.screen.line(
        f" record   {plural(num_sessions, 'session')} of the student in {student}, as it is"
        " before any training",
        style="bold",
    )
    tokenizer = load_tokenizer(str(student))
    loaded = load_student(
        StudentSettings(model=str(student)), tokenizer=tokenizer, seed=job.config.seed
    )
    seed = stage_seed(job.config.seed, "record")
    sampling = Sampling(max_new_tokens=64, max_context_tokens=1024, batch_episodes=64, seed=seed)
    with Sandbox() as sandbox:
        recorded = record_logs(
            loaded.model,
            renderer=Renderer.for_tokenizer(tokenizer),
            settings=sampling,
            seed=seed,
            num_sessions=num_sessions,
            folder=folder,
            sandbox=sandbox,
            slack=SLACK,
        )
    left_out = ", ".join(f"{count} {reason}" for reason, count in recorded.left_out.items())
    job.screen.line(
        f" wrote    {plural(len(recorded.paths), 'log')} in Claude Code's format below {folder}"
        + (f"; left out: {left_out}" if left_out else "")
    )
    return {"logs": len(recorded.paths), "left_out": dict(recorded.left_out)}


def warm_up_student(job: Job, folder: Path) -> Path:
    """Warm up a student from random weights, and compare it with the one that ships."""
    from composer_replication.workshop.warmup.make import ABOUT, make_student

    ships = json.loads((shipped(STUDENT) / ABOUT).read_text("utf-8"))
    job.screen.line(
        f" warm-up  {ships['steps']} steps from random weights, about {ships['cpu_s']} CPU-seconds",
        style="bold",
    )

    def on_step(step: int, loss: float, model: Any) -> None:
        if step % 50 == 0:
            job.screen.line(f" step={step} loss={loss:.4f}")

    measured = make_student(folder, level=ships["level"], seed=ships["seed"], on_step=on_step)[
        "measured"
    ]
    low, high = ships["measured"]["success_low"], ships["measured"]["success_high"]
    inside = low <= measured["success"] <= high
    comparison = (
        f"success {measured['success']:.3f}; the one that ships: {ships['measured']['success']:.3f}"
        f" [{low:.3f}, {high:.3f}]"
    )
    job.screen.line(
        f" student  {comparison}: {'inside' if inside else 'OUTSIDE'} its interval",
        style="" if inside else "bold yellow",
    )
    return folder


def check_folder(folder: Path, config: Path) -> None:
    """Raise ConfigError for a folder that no demo wrote: the demo overwrites settings and logs."""
    if not folder.exists() or not any(folder.iterdir()):
        return
    first = config.read_text("utf-8", "replace").partition("\n")[0] if config.is_file() else ""
    if not first.startswith(SETTINGS.partition(":")[0]):
        raise ConfigError(
            f"{folder} holds files that no demo made",
            where=str(folder),
            fix="choose another folder with -o",
        )


OWN = ("work_dir", "student.model", "ingest.logs", "rollouts.env")


def check_flags(names: Iterable[str]) -> None:
    """Raise UsageError for a setting that the demo chooses itself, e.g. "student.model".

    >>> check_flags(["train.steps"])
    """
    for name in OWN:
        if name in names:
            fix = (
                "leave it out: -o names another folder, and `recompose init` begins a project with"
                " a student of your own"
            )
            raise UsageError(
                "the demo has its own student, logs and folder", where=f"--{name}", fix=fix
            )
