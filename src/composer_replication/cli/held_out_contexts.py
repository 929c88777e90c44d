"""Count the held-out mistakes that `evaluate --logs` can use: `build` and `train --dry-run` print
it before any training, as the window is the run's for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.cli.held_out_splits import (
    can_show_a_change,
    held_sites,
    larger_split,
    setting_text,
    split_with_mistakes,
)
from composer_replication.cli.job import Job
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.evaluation.held_out_sites import (
    HeldOut,
    RestoredContexts,
    restore_contexts,
    smallest_window,
)
from composer_replication.models.context_length import context_length
from composer_replication.report.html import plural
from composer_replication.tokens.renderer import Renderer


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
    if not trained or can_show_a_change(held):
        return None
    more = larger_split(job, settings)
    help_text = "no share up to half does; only more logs help"
    if more is not None:
        help_text = setting_text(more, settings)
    elif not held.sites and (some := split_with_mistakes(job, settings)) is not None:
        split, count = some
        help_text += f". {setting_text(split, settings)} to evaluate at {count} of them"
    job.screen.line(
        f" few      {plural(len(held.sites), 'mistake')} held out, too few to show any change;"
        f" {trained} in training sessions: {help_text}",
        style="yellow",
    )
    return help_text if more is not None else ""


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
