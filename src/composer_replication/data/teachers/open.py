"""Teachers from settings: names become models that can be asked, and one asker with the limits of
all of them.

named = named_teachers(config.replay, maker_of=family_of)    # {"kimi": TeacherSettings(...), ...}; nothing is opened
teacher = OpenAICompatible("kimi", named["kimi"], environ=os.environ)
limits_of(named.values())                                   # {"openrouter.ai": RateLimits(at_once=8, per_minute=0.0)}
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
    """The settings of every teacher of replay.teachers, in order; where one tells no family,
    `maker_of` its model's name does.

    Raises ConfigError for a name that nobody has.
    """
    known = {**DEFAULT_TEACHERS, **settings.teacher}
    found: dict[str, TeacherSettings] = {}
    for name in settings.teachers:
        if name not in known:
            fix = (
                f"add a table [replay.teacher.{name}], or use one of {', '.join(known)}, or"
                " scripted alone"
            )
            raise ConfigError(f"no teacher {name!r}", where="replay.teachers", fix=fix)
        one = known[name]
        found[name] = one if one.family else one.model_copy(update={"family": maker_of(one.model)})
    return found


def limits_of(teachers: Iterable[TeacherSettings]) -> Mapping[str, RateLimits]:
    """The limits of each provider: of teachers that share one, the strictest."""
    found: dict[str, RateLimits] = {}
    for one in teachers:
        provider = urlsplit(one.base_url).netloc
        old = found.get(provider, RateLimits(at_once=one.at_once, per_minute=one.per_minute))
        rates = [rate for rate in (old.per_minute, one.per_minute) if rate]
        found[provider] = RateLimits(
            at_once=min(old.at_once, one.at_once), per_minute=min(rates, default=0.0)
        )
    return found


def retry_policy_of(settings: ReplaySettings) -> RetryPolicy:
    """How long an answer is waited for, and how often it is tried."""
    return RetryPolicy(timeout_s=settings.timeout_s, attempts=settings.attempts)
