"""`recompose demo`: trains a student with three bad habits on its own logs, and judges it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from composer_replication.cli.build import build_command
from composer_replication.cli.demo_controls import Controls
from composer_replication.cli.demo_settings import AFTER, CONTROLS, SETTINGS, STEPS
from composer_replication.cli.demo_stages import Stages
from composer_replication.cli.demo_student import (
    NUM_LOGS,
    STUDENT,
    check_flags,
    check_folder,
    record_sessions,
    shipped,
    warm_up_student,
)
from composer_replication.cli.demo_text import command, summary
from composer_replication.cli.evaluate import evaluate_command
from composer_replication.cli.flags import Common, dotted_settings
from composer_replication.cli.hints import hints_command
from composer_replication.cli.ingest import ingest_command
from composer_replication.cli.job import open_job
from composer_replication.cli.problems import UsageError
from composer_replication.cli.replay import replay_command
from composer_replication.cli.report import report_command
from composer_replication.cli.sites import sites_command
from composer_replication.cli.train import train_command
from composer_replication.core.errors import need
from composer_replication.core.files import make_work, write_text
from composer_replication.core.rundir import remove_run

FOLDER = Path("demo")


def demo_command(
    *,
    from_scratch: bool = False,
    logs_only: bool = False,
    logs: int = NUM_LOGS,
    common: Common = Common(),
) -> int:
    """From logs to a table with a placebo: three to four minutes on two cores, no network, no GPU.
    Writes demo/ (-o for another folder).

    Parameters
    ----------
    from_scratch
        Warm up a student from random weights first, instead of using the bundled one (about ten
        minutes more).
    logs_only
        Only record the student's logs and write the settings, to run every command by hand.
    logs
        Number of the student's sessions to record before training.
    """
    if logs < 1:
        raise UsageError(
            f"no demo without logs: {logs}",
            where="--logs",
            fix=f"give 1 or more; {NUM_LOGS} is what the demo is made for",
        )
    if common.config:
        fix = (
            "leave -c out; single settings are given by their dotted names: --seed 11,"
            " --train.steps 30"
        )
        raise UsageError(
            "the demo writes its own settings and reads no other file", where="-c", fix=fix
        )
    check_flags(dotted_settings())
    start, folder = time.monotonic(), common.out if common.out is not None else FOLDER
    # no settings file: a recompose.toml above this folder belongs to another project
    only_flags = (Path(os.devnull),)
    job = open_job(replace(common, config=only_flags, out=folder))
    config = folder / "recompose.toml"
    check_folder(folder, config)
    if job.dry_run:
        wrote = [
            config,
            folder / "logs",
            job.sessions,
            job.sites,
            job.hints,
            job.preferences,
            job.examples,
            job.runs,
        ]
        return job.finish({"student": str(shipped(STUDENT))}, wrote=wrote)
    for package in ("torch", "transformers", "accelerate"):
        need(package, extra="train")
    # remove earlier logs and their store: another seed records other sessions
    shutil.rmtree(folder / "logs", ignore_errors=True)
    _ = [(folder / name).unlink(missing_ok=True) for name in ("sessions.jsonl", "ingest.json")]
    make_work(folder)
    student = folder / "student" if from_scratch else shipped(STUDENT)
    write_text(
        config,
        SETTINGS.format(seed=job.config.seed, student=student.absolute().as_posix(), steps=STEPS),
    )
    if from_scratch:
        warm_up_student(job, student)
    recorded = record_sessions(job, student, folder / "logs", num_sessions=logs)
    if logs_only:
        return job.finish(
            recorded,
            wrote=[folder / "logs", config],
            next_command=f"{command()} ingest -c {config}",
        )
    stages = Stages(job=job, config=config, common=common)
    return _run(stages, folder, start=start)


def _run(stages: Stages, folder: Path, *, start: float) -> int:
    """Run every verb from ingest to report, then print the result in three lines."""
    job, runs = stages.job, folder / "runs"
    for name in (AFTER, *CONTROLS):  # those of an earlier demo; other runs are kept
        remove_run(runs / name)
    data_stages: list[tuple[str, Callable[[Common], int]]] = [
        ("ingest", lambda common: ingest_command(common=common)),
        ("sites", lambda common: sites_command(common=common)),
        ("hints --audit", lambda common: hints_command(audit=True, common=common)),
        ("replay", lambda common: replay_command(common=common)),
        ("build", lambda common: build_command(common=common)),
    ]
    for command_line, verb in data_stages:
        if code := stages(command_line, verb):
            return _stopped(stages, command_line, code)
    with Controls(stages.config, CONTROLS, log=folder / "controls.log") as controls:
        for control_command in controls.command_lines:
            job.screen.line(
                f"\n$ {control_command}      (beside the next, in a second process)", style="bold"
            )
        if code := stages(
            f"train --name {AFTER}", lambda common: train_command(name=AFTER, common=common)
        ):
            return _stopped(stages, "train", code)
        controls.wait()
    against = tuple(f"{name}={runs / name}" for name in CONTROLS)
    command_line = f"evaluate {AFTER} " + " ".join(f"--against {word}" for word in against)
    if code := stages(
        command_line,
        lambda common: evaluate_command(str(runs / AFTER), against=against, common=common),
    ):
        return _stopped(stages, "evaluate", code)
    code = stages(
        f"report {AFTER}", lambda common: report_command(str(runs / AFTER), common=common)
    )
    return _stopped(stages, "report", code) if code else _end(stages, runs / AFTER, start=start)


def _stopped(stages: Stages, command_line: str, code: int) -> int:
    stages.job.screen.result(
        {"stages": stages.outputs, "problem": f"{command_line} ended with exit code {code}"}
    )
    return code


def _end(stages: Stages, run: Path, *, start: float) -> int:
    """Print three lines, the page and the next command; with --json the evaluation."""
    job = stages.job
    table = json.loads((run / "evaluation.json").read_text("utf-8"))
    job.screen.line(f"\n The demo is done in {time.monotonic() - start:.0f} s.", style="bold")
    for sentence in summary(table):
        job.screen.line(f" {sentence}")
    outcome, page = {**table, "seconds": stages.seconds}, run / "report.html"
    return job.finish(outcome, wrote=[page], next_command=f"{command()} audit --open")
