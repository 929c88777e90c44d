"""Which sessions a build holds out: counted, and refused where a fraction was asked for and holds
out nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.split import (
    is_held_out,
    possible_fractions,
    resolve_split_unit,
    split_unit,
)


def split_counts(job: Job, settings: HeldOutSettings) -> dict[str, Any]:
    """How many sessions, and units of the split, are trained on and held out.

    Raises ConfigError where a fraction was asked for and holds out nothing, or everything.
    """
    sessions: Counter[bool] = Counter()
    units: dict[bool, set[str]] = {True: set(), False: set()}
    for session in read_sessions(job.sessions):
        out = is_held_out(session, settings=settings)
        sessions[out] += 1
        units[out].add(split_unit(session, by=settings.by))
    found = {
        "by": settings.by,
        "fraction": settings.fraction,
        "train_sessions": sessions[False],
        "held_out_sessions": sessions[True],
        "train_units": len(units[False]),
        "held_out_units": len(units[True]),
    }
    if settings.fraction and sum(sessions.values()) and not (sessions[True] and sessions[False]):
        every, nouns = (
            units[True] | units[False],
            {"repository": "repositories", "session": "sessions"}[settings.by],
        )
        took = "none" if not sessions[True] else "all"
        what = (
            f"held_out.fraction = {settings.fraction:g} holds out {took} of {len(every)} {nouns},"
            " which are chosen by hash"
        )
        raise ConfigError(what, where="held_out", fix=_other_split(every, settings))
    return found


def split_flags(job: Job) -> str:
    """The flags with which `build` is not refused for its split, with a space before them; "" where
    it is not.

    Example: three sessions, held_out.fraction = 0.2 -> " --held_out.fraction 0.37", the smallest
    that holds out one
    """
    settings = job.config.held_out
    if not settings.fraction:
        return ""
    for other in splits(job, settings):
        try:
            split_counts(job, other)
        except ConfigError:
            continue
        return flags_of(other, settings)
    return ""


def splits(job: Job, settings: HeldOutSettings) -> Iterator[HeldOutSettings]:
    """The split of the settings, then others that come near it: the smallest fractions by its unit
    and by session, and none at all."""
    settings = resolve_split_unit(settings, read_sessions(job.sessions))
    yield settings
    for by in dict.fromkeys((settings.by, "session")):
        units = {split_unit(session, by=by) for session in read_sessions(job.sessions)}
        yield from (
            settings.model_copy(update={"by": by, "fraction": fraction})
            for fraction in possible_fractions(units)
        )
    yield settings.model_copy(update={"fraction": 0.0})


def flags_of(settings: HeldOutSettings, before: HeldOutSettings) -> str:
    """What of a split is another than before, as flags."""
    by = f" --held_out.by {settings.by}" if before.by not in ("auto", settings.by) else ""
    return by + (
        f" --held_out.fraction {settings.fraction:g}"
        if settings.fraction != before.fraction
        else ""
    )


def _other_split(units: Collection[str], settings: HeldOutSettings) -> str:
    """Which setting would hold something out."""
    smallest = next(iter(possible_fractions(units)), None)
    ways = (
        [f"set held_out.fraction = {smallest:g}, the smallest that holds out one"]
        if smallest is not None
        else []
    )
    ways += ['set held_out.by = "session"'] if settings.by == "repository" else []
    return " or ".join([*ways, "set held_out.fraction = 0 and do without an evaluation on logs"])
