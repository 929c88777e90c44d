"""Whom `recompose replay` asks, and about which steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollouts import ReplaySettings
from composer_replication.core.config.teachers import TeacherSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.rundir import sha256_of
from composer_replication.core.site import TARGET_CATEGORIES
from composer_replication.core.teacher import Teacher
from composer_replication.core.trace import Session
from composer_replication.data.replay.families import family_of
from composer_replication.data.replay.gather import Steps
from composer_replication.data.replay.steps import Step, all_steps, choose_steps
from composer_replication.data.teachers.open import named_teachers
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from composer_replication.data.teachers.recorded import recorded_teachers
from composer_replication.rollouts.envs.workshop.recorded import was_recorded_here
from composer_replication.rollouts.envs.workshop.sandbox import Sandbox
from composer_replication.rollouts.envs.workshop.teachers import scripted_teachers

_NOT_PLANNED = {"max_usd", "timeout_s", "attempts", "sessions_at_once"}
"""Settings that do not change what is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sessions, the steps that are asked about, and the teachers; `sandbox` is there where every session was recorded in the workshop.

    `models` = the teachers are those of replay.teachers, not scripts or a file. `record` is what --resume compares.
    """

    settings: ReplaySettings
    sessions: Sequence[Session]
    steps: Steps
    teachers: Sequence[Teacher]
    sandbox: Sandbox | None
    models: bool
    record: dict[str, Any]


def open_plan(job: Job, settings: ReplaySettings, *, stack: ExitStack, asking: bool) -> Plan:
    """What a replay would do; nothing is asked and nothing written. Raises ConfigError for teachers that cannot be used.

    Without `asking` no key is needed.
    """
    sessions = list(read_sessions(job.sessions))
    recorded_here = bool(sessions) and all(map(was_recorded_here, sessions))
    sandbox = stack.enter_context(Sandbox()) if recorded_here else None
    teachers = _teachers(settings, sessions, sandbox=sandbox, asking=asking)
    every = settings.steps == "all" or (settings.steps == "auto" and all(teacher.price.free for teacher in teachers))
    files = {job.sessions.name: sha256_of(job.sessions)}
    steps: Steps = all_steps
    if not every:
        sites = job.need_fresh(job.sites, verb="sites")
        files[sites.name] = sha256_of(sites)
        by_session: dict[str, set[int]] = {}
        for site in read_sites(sites):
            if site.category in TARGET_CATEGORIES:
                by_session.setdefault(site.session_id, set()).add(site.turn)
        steps = partial(_chosen, sites=by_session, sampled=settings.sampled_steps, seed=stage_seed(job.config.seed, "replay"))
    planned = {name: value for name, value in settings.model_dump(mode="json").items() if name not in _NOT_PLANNED}
    record = {"settings": planned, "seed": job.config.seed, "files": files}
    models = settings.teachers != ("scripted",) and not settings.recorded
    return Plan(settings=settings, sessions=sessions, steps=steps, teachers=teachers, sandbox=sandbox, models=models, record=record)


def _chosen(session: Session, *, sites: dict[str, set[int]], sampled: int, seed: int) -> tuple[Step, ...]:
    return choose_steps(session, sites=sites.get(session.id, ()), sampled=sampled, seed=seed)


def _teachers(settings: ReplaySettings, sessions: Sequence[Session], *, sandbox: Sandbox | None, asking: bool) -> Sequence[Teacher]:
    if settings.recorded:
        return recorded_teachers(Path(settings.recorded))
    if settings.teachers == ("scripted",):
        elsewhere = [session.id for session in sessions if not was_recorded_here(session)]
        if elsewhere or sandbox is None:
            raise ConfigError(
                f"the scripted teachers know the workshop only, and {len(elsewhere)} of {len(sessions)} sessions were not recorded there",
                where=f"replay.teachers, session {elsewhere[0]}" if elsewhere else "replay.teachers",
                fix='name models to ask, e.g. replay.teachers = ["kimi", "glm", "deepseek"], or leave replay out for these logs',
            )
        return scripted_teachers(sessions, sandbox)
    environ = os.environ if asking else None
    return [
        _local(name, one) if one.kind == "local" else OpenAICompatible(name, one, environ=environ)
        for name, one in named_teachers(settings, maker_of=family_of).items()
    ]


def _local(name: str, settings: TeacherSettings) -> Teacher:
    from composer_replication.rollouts.local_teacher import LocalTeacher  # PyTorch

    return LocalTeacher(name, settings)
