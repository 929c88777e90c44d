"""The teachers of `recompose replay`, and its judge, from settings: models behind an endpoint or on
this machine, scripts, a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.teacher import Teacher
from composer_replication.core.trace import Session
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.open import named_teachers
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from composer_replication.data.teachers.recorded_teachers import recorded_teachers
from composer_replication.workshop.recorded_task import was_recorded_here
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.scripted_teachers import scripted_teachers


def open_teachers(
    settings: ReplaySettings, sessions: Sequence[Session], *, sandbox: Sandbox | None, asking: bool
) -> Sequence[Teacher]:
    """Those of replay.teachers or replay.recorded; raises ConfigError for what cannot be asked.
    Without `asking` no key is needed."""
    if settings.recorded:
        return recorded_teachers(Path(settings.recorded))
    if settings.teachers == ("scripted",):
        elsewhere = [session.id for session in sessions if not was_recorded_here(session)]
        if elsewhere or sandbox is None:
            raise ConfigError(
                f"the scripted teachers know the workshop only, and {len(elsewhere)} of"
                f" {len(sessions)} sessions were not recorded there",
                where=(
                    f"replay.teachers, session {elsewhere[0]}" if elsewhere else "replay.teachers"
                ),
                fix=(
                    'name models to ask, e.g. replay.teachers = ["kimi", "glm", "deepseek"], or'
                    " leave replay out for these logs"
                ),
            )
        return scripted_teachers(sessions, sandbox)
    return [
        open_teacher(name, one, asking=asking)
        for name, one in named_teachers(settings, maker_of=family_of).items()
    ]


def open_teacher(name: str, settings: TeacherSettings, *, asking: bool) -> Teacher:
    """One model from its settings: behind an endpoint, or on this machine where its kind says
    so."""
    if settings.kind == "local":
        return _local(name, settings)
    return OpenAICompatible(name, settings, environ=os.environ if asking else None)


def _local(name: str, settings: TeacherSettings) -> Teacher:
    from composer_replication.rollouts.local_teacher import LocalTeacher  # PyTorch

    return LocalTeacher(name, settings)


def judge_settings(settings: ReplaySettings) -> dict[str, TeacherSettings]:
    """The judge's settings by its name; empty where there is none."""
    return (
        named_teachers(
            settings.model_copy(update={"teachers": (settings.judge,)}), maker_of=family_of
        )
        if settings.judge
        else {}
    )


def open_judge(
    settings: ReplaySettings, teachers: Sequence[Teacher], *, asking: bool
) -> Teacher | None:
    """The judge that is named, or None; raises ConfigError for one of a family that answers."""
    for name, one in judge_settings(settings).items():
        kin = [teacher.name for teacher in teachers if teacher.family == one.family]
        if kin:
            fix = "name a judge of another maker: one that sits at the table favours its own"
            raise ConfigError(
                f"judge {name!r} is of the family of teacher {kin[0]!r} ({one.family})",
                where="replay.judge",
                fix=fix,
            )
        return open_teacher(name, one, asking=asking)
    return None
