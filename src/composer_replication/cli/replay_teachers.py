"""Opens the teachers and the judge of `recompose replay`: models, scripts, or a file of answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from composer_replication.core.config.rollout_settings import DEFAULT_ENV, ReplaySettings
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.teacher import Teacher
from composer_replication.core.trace import Session
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.open import check_no_batch, named_teachers
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from composer_replication.data.teachers.recorded_teachers import recorded_teachers
from composer_replication.rollouts.task_source import RecordedSessions


class NoTeacherError(ConfigError):
    """No teacher is set, and the scripted ones cannot answer about these sessions."""


def open_teachers(settings: ReplaySettings, *, asking: bool) -> Sequence[Teacher]:
    """The teachers of replay.teachers or replay.recorded; raises ConfigError for unusable ones.

    API keys are needed only with `asking`.
    """
    if settings.recorded:
        return recorded_teachers(Path(settings.recorded))
    return [
        open_teacher(name, teacher_settings, asking=asking)
        for name, teacher_settings in named_teachers(settings, maker_of=family_of).items()
    ]


def scripted_teachers_of(
    sessions: Sequence[Session],
    recorded: RecordedSessions | None,
    *,
    built_in: Sequence[RecordedSessions],
) -> Sequence[Teacher]:
    """The scripted teachers of the built-in environment that `recorded` all sessions.

    Raises NoTeacherError if a session is not from there.
    """
    elsewhere = [s.id for s in sessions if not any(r.is_from_here(s) for r in built_in)]
    if elsewhere or recorded is None:
        raise NoTeacherError(
            f"the scripted teachers know the {DEFAULT_ENV} only, and"
            f" {len(elsewhere)} of {len(sessions)} sessions were not recorded there",
            where=f"replay.teachers, session {elsewhere[0]}" if elsewhere else "replay.teachers",
            fix=(
                'name models to ask, e.g. replay.teachers = ["kimi", "glm", "deepseek"], or'
                " leave replay out for these logs"
            ),
        )
    return recorded.teachers(sessions)


def open_teacher(name: str, settings: TeacherSettings, *, asking: bool) -> Teacher:
    """One teacher from its settings: behind an endpoint, or on this machine if it is local."""
    if settings.kind == "local":
        return _local(name, settings)
    return OpenAICompatible(name, settings, environ=os.environ if asking else None)


def _local(name: str, settings: TeacherSettings) -> Teacher:
    from composer_replication.rollouts.local_teacher import LocalTeacher  # PyTorch

    return LocalTeacher(name, settings)


def judge_settings(settings: ReplaySettings) -> dict[str, TeacherSettings]:
    """The judge's settings by its name; empty without a judge."""
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
    """The judge, or None; raises ConfigError if a teacher is of the same family."""
    for name, judge in judge_settings(settings).items():
        kin = [teacher.name for teacher in teachers if teacher.family == judge.family]
        if kin:
            fix = "name a judge of another maker: a judge favours answers of its own family"
            raise ConfigError(
                f"judge {name!r} is of the family of teacher {kin[0]!r} ({judge.family})",
                where="replay.judge",
                fix=fix,
            )
        check_no_batch(name, judge, where="replay.judge")
        return open_teacher(name, judge, asking=asking)
    return None
