"""`recompose sessions --form training_trace`: what the student sampled, for OpenEnv."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import sampling_tokenizer, student_renderer
from composer_replication.core.errors import DataError, need
from composer_replication.core.jsonl import write_lines
from composer_replication.core.trace import Session
from composer_replication.report.html import plural
from composer_replication.tokens.training_trace import is_sampled, training_trace


def write_training_traces(
    job: Job,
    sessions: Sequence[Session],
    *,
    check: Callable[[dict[str, Any], Session], dict[str, Any]],
    path: Path,
) -> str:
    """Write a line per session that the student sampled; returns what was written, in words.

    `check` sees the session's text: ids cannot be redacted, so a secret in it refuses the session.
    Raises DataError if nothing was sampled here.
    """
    sampled = [session for session in sessions if is_sampled(session)]
    if not sampled:
        raise DataError(
            f"none of {len(sessions)} sessions holds ids that a student of yours sampled",
            where=str(job.sessions),
            fix="imported logs hold none: name the folder of `recompose serve` with -o",
        )
    need("transformers", extra="train")
    renderer = student_renderer(sampling_tokenizer(job), job.config)

    def line(session: Session) -> dict[str, Any]:
        for turn in session.turns:
            check({"text": turn.text, "results": [result.text for result in turn.results]}, session)
            check({"calls": [dict(call.arguments) for call in turn.calls]}, session)
        return training_trace(session, renderer=renderer)

    write_lines(path, map(line, sampled))
    left_out = len(sessions) - len(sampled)
    others = f"; {left_out} without sampled ids left out" if left_out else ""
    return f"the training traces of {plural(len(sampled), 'session')}{others}"
