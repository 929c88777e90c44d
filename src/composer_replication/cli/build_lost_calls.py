"""Messages with calls that the chat template cannot write: a few are told, more are refused."""

from __future__ import annotations

from collections.abc import Callable

from composer_replication.cli.job import Job
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.errors import DataError
from composer_replication.tokens.artefact import BuildReport
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import is_held_out

MAX_LOST_CALLS, FEW_LOST_CALLS = 0.01, 3
"""A build is refused if the template cannot write more than this share of the messages with calls,
and at least so many of them; fewer are counted and shown."""


def messages_with_calls(job: Job, held_out: HeldOutSettings) -> int:
    """The number of messages with calls in the sessions that are not held out."""
    return sum(
        bool(turn.calls)
        for session in read_sessions(job.sessions)
        if not is_held_out(session, settings=held_out)
        for _, turn in session.assistant_turns()
    )


def lost_calls(
    renderer: Renderer, report: BuildReport, *, count: Callable[[], int]
) -> DataError | None:
    """The error of a build whose template cannot write too many messages with calls, or None.

    `count` is asked for the number of all of them, which takes a pass over the sessions.
    """
    lost = report.skipped.get("content/lost_calls", 0)
    if lost < FEW_LOST_CALLS or lost <= MAX_LOST_CALLS * (of := count()):
        return None
    return DataError(
        f"the {_template_name(renderer)} cannot write {lost} of {of} messages with calls",
        where="skipped.jsonl has each",
        fix=f"{renderer.family_advice()}, and build again",
    )


def _template_name(renderer: Renderer) -> str:
    return f"template {renderer.family.name}" if renderer.family else "tokenizer's own template"


def print_lost_calls(job: Job, renderer: Renderer, report: BuildReport) -> None:
    """Print how many messages with calls are left out because of the template."""
    if lost := report.skipped.get("content/lost_calls", 0):
        job.screen.line(
            f" template the {_template_name(renderer)} cannot write {lost} messages with calls,"
            " which are left out",
            style="yellow",
        )
