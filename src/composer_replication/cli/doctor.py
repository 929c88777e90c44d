"""`recompose doctor`: check what is installed and what works, with the command that fixes it."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from composer_replication.cli.doctor_backends import print_backends
from composer_replication.cli.doctor_next import (
    INSTALL_TRAIN,
    NEED_TRAIN,
    doctor_next,
    optional_needs,
)
from composer_replication.cli.doctor_student import student
from composer_replication.cli.finding import Finding
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, settings_only
from composer_replication.cli.memory_text import print_fit, window_fit
from composer_replication.cli.next_step import NEEDED_TO_TRAIN, TRAIN_PACKAGES
from composer_replication.core.errors import pip_install
from composer_replication.data.ingestion.find_logs import default_folders, looked_in
from composer_replication.report.html import plural

KEPT_DAYS = 30  # Claude Code deletes its logs after so many days unless told otherwise
LOW_DISK_GB = 5.0


def doctor_command(*, memory_gb: float = 0.0, cards: int = 0, common: Common = Common()) -> int:
    """Check the installation: what works, and the command that fixes what does not. Reads only.

    Parameters
    ----------
    memory_gb
        Memory of the card in GB, to compute what fits. 0 = the detected GPU, else this machine's
        memory.
    cards
        Number of such cards that share the weights (train.fsdp).
    """
    job = settings_only(common)
    fit, fits, in_words = window_fit(job, memory_gb=memory_gb, cards=cards)
    optional = list(optional_packages(job))
    findings = [*packages(), *optional, gpu(job), logs(job), disk(job), settings(job), student(job)]
    findings.append(Finding(name="memory", ok=fits, found=in_words))
    works = {f.name: f.ok for f in findings}
    has_packages = all(works[name] for name in NEEDED_TO_TRAIN)
    can_train = has_packages and all(f.ok for f in optional)
    install = next((f.fix for f in optional if not f.ok), "") if has_packages else INSTALL_TRAIN
    from composer_replication.cli.main import VERBS  # main loads this module

    verbs = {
        verb: verb not in NEED_TRAIN
        or can_train
        or (has_packages and (verb == "demo" or (verb == "build" and works.get("gguf", True))))
        for verb in (*VERBS, "hints --audit")
    }
    job.screen.table(
        [("ok" if f.ok else "--", f.name, f.found, f.fix) for f in findings],
        head=("", "what", "found", "fix"),
    )
    job.screen.line()
    job.screen.table(
        [("ok" if ok else "--", verb, "" if ok else install) for verb, ok in verbs.items()],
        head=("", "command", "fix"),
    )
    job.screen.line()
    backends = print_backends(job)
    memory = print_fit(job, fit) if fit is not None else None
    next_command = doctor_next(
        job, {f.name: f.fix for f in findings if not f.ok and f.fix}, can_train=can_train
    )
    return job.finish(
        dict(findings=[asdict(f) for f in findings], verbs=verbs, backends=backends, memory=memory),
        wrote=[],
        next_command=next_command,
    )


def packages() -> Iterator[Finding]:
    """Python and the packages of the [train] extra; each is imported: a wheel may not load."""
    yield Finding(name="python", ok=True, found=platform.python_version())
    for name in TRAIN_PACKAGES:
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Finding(name=name, ok=False, found="not installed", fix=INSTALL_TRAIN)
            continue
        try:
            importlib.import_module(name)
        except (ImportError, OSError) as error:
            fix = pip_install("--force-reinstall", f"{name}=={installed}")
            found = f"{installed}, does not load: {error}"
            yield Finding(name=name, ok=False, found=found, fix=fix)
        else:
            yield Finding(name=name, ok=True, found=installed)


def optional_packages(job: Job) -> Iterator[Finding]:
    """The packages that only some settings need."""
    for name, extra, setting in optional_needs(job.config):
        try:
            yield Finding(name=name, ok=True, found=version(name))
        except PackageNotFoundError:
            found, extra = f"not installed; {setting} needs it", f"composer-replication[{extra}]"
            yield Finding(name=name, ok=False, found=found, fix=pip_install(extra))


def gpu(job: Job) -> Finding:
    """Whether PyTorch sees an accelerator; none is needed for the tiny student."""
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError):
        return Finding(name="gpu", ok=True, found="not looked at: no PyTorch")
    if torch.cuda.is_available():
        return Finding(name="gpu", ok=True, found=torch.cuda.get_device_name(0))
    from composer_replication.models.processor import emulates_bfloat16

    if job.config.student.dtype == "bfloat16" and emulates_bfloat16():
        found, fix = "none, and this processor emulates bfloat16", 'student.dtype = "float32"'
        return Finding(name="gpu", ok=False, found=f"{found}, ten times slower", fix=fix)
    return Finding(name="gpu", ok=True, found="none; the tiny student trains on the CPU")


def logs(job: Job) -> Finding:
    """The number of agent logs, and the days until the oldest is deleted."""
    named = job.config.ingest.logs
    folders = [Path(name) for name in named] or list(default_folders(os.environ))
    files = [f for at in folders for f in ([at] if at.is_file() else at.rglob("*.jsonl"))]
    folder_list = ", ".join(map(str, folders))
    if not files:
        found = f"no .jsonl file in {folder_list if named else looked_in(os.environ)}"
        return Finding(name="logs", ok=False, found=found, fix="recompose demo")
    age_days = (time.time() - min(f.stat().st_mtime for f in files)) / 86400
    oldest = f"the oldest is {plural(round(age_days), 'day')} old"
    found = f"{plural(len(files), 'file')} in {folder_list}; {oldest}, the agent deletes logs"
    return Finding(name="logs", ok=True, found=f"{found} after {KEPT_DAYS}")


def disk(job: Job) -> Finding:
    """Free space where the artefacts go."""
    folder = next(p for p in (job.work.absolute(), *job.work.absolute().parents) if p.exists())
    free_gb = shutil.disk_usage(folder).free / 1e9
    return Finding(
        name="disk", ok=free_gb >= LOW_DISK_GB, found=f"{free_gb:.0f} GB free in {folder}"
    )


def settings(job: Job) -> Finding:
    """The settings file that is read, and the stages that have been run."""
    if job.untrusted:
        return Finding(
            name="settings",
            ok=False,
            found=f"not trusted, so not read: {job.untrusted}",
            fix="recompose trust",
        )
    file = ", ".join(map(str, job.loaded.files)) or "no recompose.toml; defaults"
    stages: dict[str, Callable[[], bool]] = {
        p.name: p.exists for p in (job.sessions, job.sites, job.hints, job.examples, job.runs)
    }
    finished = [name for name, exists in stages.items() if exists()]
    return Finding(
        name="settings",
        ok=True,
        found=f"{file}; in {job.work}: {', '.join(finished) or 'nothing yet'}",
    )
