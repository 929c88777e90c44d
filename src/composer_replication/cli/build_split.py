"""Count the sessions that a build holds out, and refuse a split that holds out nothing or all."""

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
    """Count the sessions, and the units of the split, on either side.

    Raises ConfigError if held_out.fraction is not 0 and holds out nothing, or everything.
    """
    sessions: Counter[bool] = Counter()
    units: dict[bool, set[str]] = {True: set(), False: set()}
    for session in read_sessions(job.sessions):
        held_out = is_held_out(session, settings=settings)
        sessions[held_out] += 1
        units[held_out].add(split_unit(session, by=settings.by))
    counts = {
        "by": settings.by,
        "fraction": settings.fraction,
        "train_sessions": sessions[False],
        "held_out_sessions": sessions[True],
        "train_units": len(units[False]),
        "held_out_units": len(units[True]),
    }
    if settings.fraction and sum(sessions.values()) and not (sessions[True] and sessions[False]):
        all_units, nouns = (
            units[True] | units[False],
            {"repository": "repositories", "session": "sessions"}[settings.by],
        )
        took = "none" if not sessions[True] else "all"
        message = (
            f"held_out.fraction = {settings.fraction:g} holds out {took} of {len(all_units)}"
            f" {nouns}, which are chosen by hash"
        )
        raise ConfigError(message, where="held_out", fix=_other_split(all_units, settings))
    return counts


def split_flags(job: Job) -> str:
    """Flags with which `build` does not refuse its split; "" if none are needed.

    Example: for three sessions and held_out.fraction = 0.2, "--held_out.fraction 0.37": the
    smallest fraction that holds out one.
    """
    settings = job.config.held_out
    if not settings.fraction:
        return ""
    for split in splits(job, settings):
        try:
            split_counts(job, split)
        except ConfigError:
            continue
        return flags_of(split, settings)
    return ""


def splits(job: Job, settings: HeldOutSettings) -> Iterator[HeldOutSettings]:
    """Yield the split of the settings, then similar ones: the smallest fractions by its unit and by
    session, then none."""
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
    """The differences between two splits, as flags."""
    flags = [f"--held_out.by {settings.by}"] if before.by not in ("auto", settings.by) else []
    if settings.fraction != before.fraction:
        flags.append(f"--held_out.fraction {settings.fraction:g}")
    return " ".join(flags)


MOST_HELD_OUT = 0.5
"""A fraction above this is the last remedy."""


def _other_split(units: Collection[str], settings: HeldOutSettings) -> str:
    """Settings that would hold something out."""
    smallest = next(iter(possible_fractions(units)), None)
    remedies = (
        [f"set held_out.fraction = {smallest:g}, the smallest that holds out one"]
        if smallest is not None
        else []
    )
    by_session = ['set held_out.by = "session"'] if settings.by == "repository" else []
    # such a fraction of few repositories would keep next to nothing to train on
    too_much = smallest is not None and smallest > MOST_HELD_OUT
    remedies = [*by_session, *remedies] if too_much else [*remedies, *by_session]
    return " or ".join(
        [*remedies, "set held_out.fraction = 0 and do without an evaluation on logs"]
    )
