"""Count the held-out mistakes that `evaluate --logs` can use: `build` and `train --dry-run` print
it before any training, as the window is the run's for good."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from composer_replication.cli.build_split import MOST_HELD_OUT
from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.evaluation.held_out_sites import (
    HeldOut,
    RestoredContexts,
    held_out_sites,
    restore_contexts,
    smallest_window,
)
from composer_replication.evaluation.power import smallest_difference
from composer_replication.models.context_length import context_length
from composer_replication.report.html import plural
from composer_replication.tokens.renderer import Renderer
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


def print_evaluable(
    job: Job, renderer: Renderer, held_out: HeldOutSettings
) -> dict[str, Any] | None:
    """Print how many held-out mistakes could be evaluated with the settings, and what would help;
    returns the counts. None if nothing is held out."""
    if not held_out.fraction:
        return None
    held = held_sites(job, held_out)
    max_tokens, room = job.config.build.max_tokens, job.config.evaluate.log_max_new_tokens
    restored = restore_contexts(held, renderer=renderer, max_tokens=max_tokens, room=room)
    job.screen.line(
        f" evaluate {len(restored.contexts)} of {len(held.sites)} held-out mistakes fit"
        f" (`evaluate --logs`) with build.max_tokens = {max_tokens}{_listed(restored.num_lost)}"
    )
    if held.left_out:
        job.screen.line(f"          left out{_listed(held.left_out)}")
    if remedy := window_remedy(
        job, held, restored, renderer=renderer, max_tokens=max_tokens, room=room
    ):
        job.screen.line(f" fix      {remedy}", style="yellow")
    more = print_too_few(job, held, held_out)
    return {
        "sites": len(held.sites),
        "evaluable": len(restored.contexts),
        "lost": restored.num_lost,
        "left_out": dict(held.left_out),
        "too_few": more is not None,
    }


def print_too_few(job: Job, held: HeldOut, settings: HeldOutSettings) -> str | None:
    """Print that the held-out mistakes are too few to show any change, if they are, and the setting
    that holds out enough of those that are trained on; returns it, "" if there is none."""
    trained = held.left_out.get("training", 0)
    if not trained or _can_show_a_change(held):
        return None
    more = _larger_split(job, settings)
    help_text = "no share up to half does; only more logs help"
    if more is not None:
        values = {"by": json.dumps(more.by), "fraction": f"{more.fraction:g}"}
        changed = [
            f"held_out.{name} = {value}"
            for name, value in values.items()
            if name == "fraction" or more.by != settings.by
        ]
        help_text = f"set {' and '.join(changed)}"
    job.screen.line(
        f" few      {plural(len(held.sites), 'mistake')} held out, too few to show any change;"
        f" {trained} in training sessions: {help_text}",
        style="yellow",
    )
    return help_text if more is not None else ""


def _can_show_a_change(held: HeldOut) -> bool:
    return smallest_difference(len(held.sites), clusters=held.clusters) is not None


def _larger_split(job: Job, settings: HeldOutSettings) -> HeldOutSettings | None:
    """The smallest split up to half, by the same unit or by session, whose mistakes can show a
    change; None if there is none."""
    mistakes = Counter(s.session_id for s in read_sites(job.sites) if s.category == "mistake")
    for by in dict.fromkeys((settings.by, "session")):
        units: Counter[str] = Counter()
        for session in read_sessions(job.sessions):
            units[split_unit(session, by=by)] += mistakes[session.id]
        for fraction in possible_fractions(units):
            held_units = [n for unit, n in units.items() if n and unit_number(unit) < fraction]
            if fraction > MOST_HELD_OUT:
                break
            if smallest_difference(sum(held_units), clusters=len(held_units)) is None:
                continue
            split = settings.model_copy(update={"by": by, "fraction": fraction})
            if _can_show_a_change(held_sites(job, split)):  # which also leaves out copies
                return split
    return None


def window_remedy(
    job: Job,
    held: HeldOut,
    restored: RestoredContexts,
    *,
    renderer: Renderer,
    max_tokens: int,
    room: int,
) -> str:
    """The setting with which sites that are too long would fit, and where it is set; "" if there is
    none."""
    wider = smallest_window(held, restored, renderer=renderer, max_tokens=max_tokens, room=room)
    if wider is None:
        return ""
    tokens, fitting = wider
    context = context_length(job.config.student)
    if context is not None and tokens > context:
        return (
            f"take a model that reads {tokens} tokens: {job.config.student.model} reads {context}"
        )
    flags = f"--build.max_tokens {tokens}"
    if tokens > job.config.train.micro_tokens:
        flags += f" --train.micro_tokens {tokens}"
    return (
        f"{job.command('build', flags)}, and train with that: then {fitting}"
        f" of the {restored.num_lost['too_long']} that are too long fit (the window is the run's; a"
        f" lower evaluate.log_max_new_tokens than {room} leaves more room in it)"
    )


def _listed(counts: Mapping[str, int]) -> str:
    """Counts by reason after a colon; "" if there are none.

    >>> _listed({"too_long": 3, "template": 1}), _listed({})
    (': too_long 3, template 1', '')
    """
    return ": " + ", ".join(f"{reason} {n}" for reason, n in counts.items()) if counts else ""
