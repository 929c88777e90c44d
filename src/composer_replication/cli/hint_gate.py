"""The gate of `hints --audit`: only kinds of hints that change the student are trained on.

    kept_kinds(job)      # frozenset({"unknown_tool"}); None = no audit was made, every kind passes

The audit measures by how much a hint moves the log-odds of right against wrong at the decision
(evaluation/decision_lift.py). A kind for which nothing is known to be right cannot be measured so:
hints.unmeasured decides. A kind that the audit did not see is not kept: no lift, no training.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import TINY
from composer_replication.core.errors import DataError, StoppedError
from composer_replication.evaluation.audit_names import ALL, MEASURE
from composer_replication.tokens.artefact import Dataset

AUDIT_VERB = "hints --audit"


def kept_kinds(job: Job) -> frozenset[str] | None:
    """The kinds that the audit kept; None if no audit was made.

    Raises DataError if the audit measured other hints or another student, and StoppedError (exit
    code 3) if the hint channel has a weight and the audit kept no kind.
    """
    if not job.audit.exists():
        return None
    audit = _read(job)
    kinds = frozenset(row["kind"] for row in audit["kinds"] if row["keeps"] and row["kind"] != ALL)
    if not kinds and job.config.train.hint.weight > 0:
        raise StoppedError(
            "no lift, nothing to train: the audit kept no kind of hint",
            where=str(job.audit),
            fix=_remedy(job),
        )
    return kinds


def say_gate(job: Job, kinds: frozenset[str] | None) -> None:
    """Print which kinds of hints pass, or that none was measured."""
    if not job.config.train.hint.weight:
        return
    if kinds is None:
        job.screen.line(
            " gate     no audit was made, so hints of every kind are used:"
            f" {job.command(AUDIT_VERB)} measures them",
            style="yellow",
        )
    else:
        job.screen.line(f" gate     the audit kept {', '.join(sorted(kinds)) or 'no kind of hint'}")


def check_examples(job: Job, data: Dataset, kinds: Collection[str] | None) -> None:
    """Raise DataError if the examples hold hints of kinds that the audit did not keep."""
    held = {kind for example in data.examples for view in example.hints for kind in view.kinds}
    if kinds is not None and job.config.train.hint.weight and (weak := sorted(held - set(kinds))):
        message = f"the examples hold hints of kinds that the audit did not keep: {', '.join(weak)}"
        raise DataError(message, where=str(job.examples), fix=f"run again: {job.command('build')}")


def _read(job: Job) -> dict[str, Any]:
    job.need_fresh(job.audit, verb=AUDIT_VERB)
    again = f"run again: {job.command(AUDIT_VERB)}"
    try:
        audit: dict[str, Any] = json.loads(job.audit.read_text("utf-8"))
        students = {audit["student"], job.config.student.model}
        _ = [(row["kind"], row["keeps"]) for row in audit["kinds"]]
        measure = audit.get("measure", "the lift over the whole message")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"no audit of this version: {error!r}", where=str(job.audit), fix=again
        ) from error
    measured_in, wanted = audit.get("position", "system"), job.config.hints.position
    if measure != MEASURE:
        message = f"this audit measured {measure}; the gate now reads the {MEASURE}"
        raise DataError(message, where=str(job.audit), fix=again)
    if measured_in != wanted:
        message = f"the audit measured hints in position {measured_in!r}, not in {wanted!r}"
        raise DataError(message, where=str(job.audit), fix=again)
    if len(students) > 1:
        message = (
            f"the audit was made with {audit['student']!r}, the student is"
            f" {job.config.student.model!r}"
        )
        raise DataError(message, where=str(job.audit), fix=again)
    return audit


def _remedy(job: Job) -> str:
    ways = [
        f"write better hints (hints.rules_file, hints.writers) and run: {job.command(AUDIT_VERB)}",
        "set train.hint.weight = 0",
    ]
    if job.config.student.model == TINY:
        ways.insert(
            0,
            "set student.model to the model that you mean to train: the tiny student knows"
            " nothing yet",
        )
    return "; or ".join([*ways, f"delete {job.audit} to train on hints that nothing speaks for"])
