"""Which sessions to hold out so that enough of their mistakes can be evaluated."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from composer_replication.cli.build_split import MOST_HELD_OUT
from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.evaluation.held_out_sites import HeldOut, held_out_sites
from composer_replication.evaluation.power import smallest_difference
from composer_replication.tokens.split import (
    possible_fractions,
    resolve_split_unit,
    split_unit,
    unit_number,
)


def held_sites(job: Job, settings: HeldOutSettings) -> HeldOut:
    """The held-out mistakes of the work folder's sessions."""
    job.need_file(job.sessions, verb="ingest")
    job.need_fresh(job.sites, verb="sites")
    unit = resolve_split_unit(settings, read_sessions(job.sessions))
    return held_out_sites(
        lambda: read_sessions(job.sessions), sites=read_sites(job.sites), settings=unit
    )


def can_show_a_change(held: HeldOut) -> bool:
    """Whether any difference between two runs could be shown at these mistakes."""
    return smallest_difference(len(held.sites), clusters=held.clusters) is not None


def larger_split(job: Job, settings: HeldOutSettings) -> HeldOutSettings | None:
    """The smallest split up to half, by the same unit or by session, whose mistakes can show a
    change; None if there is none."""
    for split, sites, units in _splits(job, settings):
        # held_sites also leaves out copies
        if smallest_difference(sites, clusters=units) is not None and can_show_a_change(
            held_sites(job, split)
        ):
            return split
    return None


def split_with_mistakes(job: Job, settings: HeldOutSettings) -> tuple[HeldOutSettings, int] | None:
    """The split up to half that holds out most mistakes, and their number; None if none does."""
    most = max(_splits(job, settings), key=lambda split: split[1], default=None)
    if most is None or not (count := len(held_sites(job, most[0]).sites)):
        return None
    return most[0], count


def setting_text(split: HeldOutSettings, now: HeldOutSettings) -> str:
    """What to set to get a split, from the settings that are in force.

    Example: 'set held_out.by = "session" and held_out.fraction = 0.3'
    """
    values = {"by": json.dumps(split.by), "fraction": f"{split.fraction:g}"}
    changed = [
        f"held_out.{name} = {value}"
        for name, value in values.items()
        if name == "fraction" or split.by != now.by
    ]
    return f"set {' and '.join(changed)}"


def _splits(job: Job, settings: HeldOutSettings) -> Iterator[tuple[HeldOutSettings, int, int]]:
    """Every split up to half that holds out a mistake, by the same unit and by session: with the
    number of its mistakes, and of the units that hold them."""
    mistakes = Counter(s.session_id for s in read_sites(job.sites) if s.category == "mistake")
    for by in dict.fromkeys((settings.by, "session")):
        units: Counter[str] = Counter()
        for session in read_sessions(job.sessions):
            units[split_unit(session, by=by)] += mistakes[session.id]
        for fraction in possible_fractions(units):
            held_units = [n for unit, n in units.items() if n and unit_number(unit) < fraction]
            if fraction <= MOST_HELD_OUT and held_units:
                split = settings.model_copy(update={"by": by, "fraction": fraction})
                yield split, sum(held_units), len(held_units)
