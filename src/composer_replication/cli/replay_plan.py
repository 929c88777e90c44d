"""The plan of `recompose replay`: the teachers, and the steps about which they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.replay_teachers import (
    open_judge,
    open_teachers,
    scripted_teachers_of,
)
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.rundir import sha256_of
from composer_replication.core.teacher import Teacher
from composer_replication.core.trace import Session, Turn
from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.recipe import load_recipe
from composer_replication.data.replay.gather import Refuse, Steps
from composer_replication.data.replay.steps import ReplayStep, all_steps, choose_steps
from composer_replication.rollouts.task_source import RecordedSessions, built_in_recordings

_NOT_PLANNED = {"max_usd", "timeout_s", "attempts", "sessions_at_once"}
"""Settings that do not change what is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """The sessions, the steps to ask about, and the teachers.

    `recorded` is the built-in environment in which every session was recorded, if there is one.
    `models` is true if the teachers are those of replay.teachers, not scripts or a file. `judge`,
    if set, decides the last tier. `refuse` gives the reason for which the curation recipe rejects a
    single answer. `record` is compared by --resume.
    """

    settings: ReplaySettings
    sessions: Sequence[Session]
    steps: Steps
    teachers: Sequence[Teacher]
    recorded: RecordedSessions | None
    models: bool
    judge: Teacher | None
    refuse: Refuse
    record: dict[str, Any]

    @property
    def everybody(self) -> tuple[Teacher, ...]:
        """Everyone who may be asked: the teachers and the judge."""
        return (*self.teachers, *([] if self.judge is None else [self.judge]))

    @property
    def gaps(self) -> bool:
        """Whether the environment can measure that one message leads further than another."""
        return self.recorded is not None


def open_plan(job: Job, settings: ReplaySettings, *, stack: ExitStack, asking: bool) -> ReplayPlan:
    """The plan of a replay; nothing is asked and nothing written.

    Raises ConfigError for unusable teachers. API keys are needed only with `asking`.
    """
    sessions = list(read_sessions(job.sessions))
    built_in = built_in_recordings(stack)
    recorded = next((r for r in built_in if sessions and all(map(r.is_from_here, sessions))), None)
    if settings.teachers == ("scripted",) and not settings.recorded:
        teachers = scripted_teachers_of(sessions, recorded, built_in=built_in)
    else:
        teachers = open_teachers(settings, asking=asking)
    every = settings.steps == "all" or (
        settings.steps == "auto" and all(teacher.price.free for teacher in teachers)
    )
    files = {job.sessions.name: sha256_of(job.sessions)}
    steps: Steps = all_steps
    if not every:
        sites = job.need_fresh(job.sites, verb="sites")
        files[sites.name] = sha256_of(sites)
        by_session: dict[str, set[int]] = {}
        for site in read_sites(sites):
            if site.is_target:
                by_session.setdefault(site.session_id, set()).add(site.turn)
        steps = partial(
            _chosen,
            sites=by_session,
            sampled=settings.sampled_steps,
            seed=stage_seed(job.config.seed, "replay"),
        )
    planned = {
        name: value
        for name, value in settings.model_dump(mode="json").items()
        if name not in _NOT_PLANNED
    }
    recipe = load_recipe(job.config.curate.recipe)
    record = {
        "settings": planned,
        "seed": job.config.seed,
        "files": files,
        "recipe": [asdict(step) for step in recipe.steps],
    }
    return ReplayPlan(
        settings=settings,
        sessions=sessions,
        steps=steps,
        teachers=teachers,
        recorded=recorded,
        models=settings.teachers != ("scripted",) and not settings.recorded,
        judge=open_judge(settings, teachers, asking=asking),
        refuse=partial(_refused, curator=Curator(recipe)),
        record=record,
    )


def _refused(session: Session, answer: Turn, *, curator: Curator) -> str:
    return curator.check_answer(answer, tools={tool.name: tool for tool in session.tools})


def _chosen(
    session: Session, *, sites: dict[str, set[int]], sampled: int, seed: int
) -> tuple[ReplayStep, ...]:
    return choose_steps(session, sites=sites.get(session.id, ()), sampled=sampled, seed=seed)
