"""Work out the next command from the work folder, so that no verb names one that is refused.

sessions -> sites -> hints -> report -> (a model that can be trained) hints --audit -> replay
(if the preference channel has a weight) -> build -> train -> evaluate -> report RUN
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from composer_replication.cli.build_split import split_flags
from composer_replication.cli.channel_units import first_replay, unfed, units_per_channel
from composer_replication.cli.first_logs import first_logs
from composer_replication.cli.hint_gate import AUDIT_VERB, mismatch, verdicts_of
from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import TINY
from composer_replication.core.codec import read_hints, read_sites
from composer_replication.core.rundir import LATEST
from composer_replication.core.stamps import check_stale
from composer_replication.tokens.artefact import META

NEEDED_TO_TRAIN = ("torch", "transformers", "accelerate", "safetensors")
TRAIN_PACKAGES = (*NEEDED_TO_TRAIN, "peft")  # peft is needed for LoRA only


def can_train() -> bool:
    """Whether the packages that training needs are installed; importing them takes seconds, so
    that is left to `doctor`."""
    return all(find_spec(name) is not None for name in NEEDED_TO_TRAIN)


def next_step(job: Job, *, has_settings: bool | None = None) -> str:
    """The next command for this work folder; `has_settings` = this call wrote a settings file.

    Example: sessions, sites and hints, and no PyTorch -> "recompose report"; with the page made ->
    "recompose doctor"
    """
    if not job.sessions.exists() or not job.sessions.stat().st_size:  # all may be forgotten
        return first_logs(job) or job.command("doctor")
    if not job.sites.exists() or check_stale(job.sites, work=job.work):
        return job.command("sites")
    if not any(site.is_target for site in read_sites(job.sites)):
        return job.command("show session")
    if not job.hints.exists() or check_stale(job.hints, work=job.work):
        return job.command("hints")
    if next(iter(read_hints(job.hints)), None) is None:
        return job.command("show site")
    if job.config.student.model != TINY and job.is_usable(job.audit) and _keeps_nothing(job):
        return job.command("show site")
    page = job.work / "report.html"
    is_seen = page.exists() and page.stat().st_mtime >= job.hints.stat().st_mtime
    if not is_seen and not (job.examples / META).exists():  # who has built goes on
        return job.command("report")
    if not can_train():
        return job.command("doctor")  # it names the missing package and the install command
    return _training(
        job, has_settings=bool(job.loaded.files) if has_settings is None else has_settings
    )


def _training(job: Job, *, has_settings: bool) -> str:
    """The next command once sessions, sites and hints exist."""
    if job.config.student.model == TINY and not has_settings:
        # the settings file names the model to train: the tiny one only shows the machinery
        return "recompose init"
    if (job.config.student.model != TINY or job.audit.exists()) and not (
        job.is_usable(job.audit) and _of_this_student(job)
    ):
        return job.command(AUDIT_VERB)
    if _keeps_nothing(job):
        return job.command("show site")
    if job.config.train.preference.weight and (command := first_replay(job)):
        return command
    built = _json(job.examples / META)
    refused = built.get("refused")
    if (
        not built
        or check_stale(job.examples, work=job.work)
        or (refused and built.get("build") != job.config.build.model_dump(mode="json"))
    ):
        return job.command("build", split_flags(job))
    if (job.runs / LATEST).exists():
        return f"{job.command('show run')} {LATEST}"
    if refused:
        return (
            job.command("build", f"{split_flags(job)} {refused['flags']}".strip())
            if refused.get("flags")
            else job.command("show site")
        )
    lacking = unfed(job, units_per_channel(job.config, built.get("counts", {})))
    return job.command("train") if lacking is None else lacking.command


def after_curate(job: Job) -> str:
    """The command after `curate`: `build`, unless something that it needs is missing or stale."""
    ready = can_train() and all(map(job.is_usable, (job.sessions, job.sites, job.hints)))
    gated = job.audit.exists() and (
        not _of_this_student(job) or not job.is_usable(job.audit) or _keeps_nothing(job)
    )
    return job.command("build", split_flags(job)) if ready and not gated else next_step(job)


def after_run(job: Job, name: str) -> str:
    """The command after `train`: the evaluation that the data allow, else the report."""
    env = job.config.rollouts.env
    if env and ":" not in env:
        return job.command("evaluate", name)
    if not env and held_out_sessions(job):
        return job.command("evaluate", f"{name} --logs")
    return f"{job.command('report')} {name}"


def held_out_sessions(job: Job) -> int:
    """The number of sessions that the built examples hold out."""
    try:
        return int(_json(job.examples / META)["held_out"]["held_out_sessions"])
    except (ValueError, KeyError, TypeError):
        return 0


def _of_this_student(job: Job) -> bool:
    try:
        return not mismatch(job, _json(job.audit))
    except KeyError:
        return False


def _keeps_nothing(job: Job) -> bool:
    """Whether the hint channel has a weight and the audit of this student keeps no kind."""
    if not job.config.train.hint.weight or not _of_this_student(job):
        return False
    try:
        return all(verdict.failed for verdict in verdicts_of(job, _json(job.audit)))
    except (KeyError, TypeError):
        return True


def _json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
