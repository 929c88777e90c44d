"""Teachers from settings: their settings by name, rate limits and retry policy.

named = named_teachers(settings, maker_of=family_of)       # {"kimi": TeacherSettings(...), ...}
teacher = OpenAICompatible("kimi", named["kimi"], environ=os.environ)
limits_of(named.values())       # {"openrouter.ai": RateLimits(at_once=8, per_minute=0.0)}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ConfigError
from composer_replication.data.teachers.asking import RateLimits, RetryPolicy
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS


def named_teachers(
    settings: ReplaySettings, *, maker_of: Callable[[str], str]
) -> dict[str, TeacherSettings]:
    """Return the settings of every teacher of replay.teachers by name, in order.

    A teacher without a family gets `maker_of` its model. Raises ConfigError for an unknown name.
    """
    known = {**DEFAULT_TEACHERS, **settings.teacher}
    named: dict[str, TeacherSettings] = {}
    for name in settings.teachers:
        if name not in known:
            fix = (
                f"add a table [replay.teacher.{name}], or use one of {', '.join(known)}, or"
                " scripted alone"
            )
            raise ConfigError(f"no teacher {name!r}", where="replay.teachers", fix=fix)
        teacher = known[name]
        named[name] = (
            teacher
            if teacher.family
            else teacher.model_copy(update={"family": maker_of(teacher.model)})
        )
    return named


def check_no_batch(name: str, settings: TeacherSettings, *, where: str) -> None:
    """Refuse a teacher with `batch` where the next question depends on the answer before it."""
    if settings.batch:
        raise ConfigError(
            f"teacher {name!r} answers in batches, and is asked one question after the other here",
            where=where,
            fix=f"name a teacher without batch, or set replay.teacher.{name}.batch = false",
        )


def limits_of(teachers: Iterable[TeacherSettings]) -> Mapping[str, RateLimits]:
    """Return the rate limits of each provider: the strictest of the teachers that share it."""
    limits: dict[str, RateLimits] = {}
    for teacher in teachers:
        provider = urlsplit(teacher.base_url).netloc
        strictest = limits.get(
            provider, RateLimits(at_once=teacher.at_once, per_minute=teacher.per_minute)
        )
        rates = [rate for rate in (strictest.per_minute, teacher.per_minute) if rate]
        limits[provider] = RateLimits(
            at_once=min(strictest.at_once, teacher.at_once), per_minute=min(rates, default=0.0)
        )
    return limits


def retry_policy_of(settings: ReplaySettings) -> RetryPolicy:
    """Return the time-out and the number of attempts from the settings."""
    return RetryPolicy(timeout_s=settings.timeout_s, attempts=settings.attempts)
