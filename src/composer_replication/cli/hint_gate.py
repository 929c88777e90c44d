"""The gate of `hints --audit`: only kinds of hints that change the student are trained on.

    kept_kinds(job)      # frozenset({"unknown_tool"}); None = no audit was made, every kind passes

The audit measures by how much a hint moves the log-odds of right against wrong at the decision
(evaluation/decision_lift.py); what follows from it is decided when it is read, by the settings of
then (evaluation/audit_verdict.py). Where nothing is known to be right, hints.unmeasured decides. A
kind that the audit did not see is not kept: no lift, no training.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import TINY
from composer_replication.core.errors import DataError, StoppedError
from composer_replication.evaluation.audit_names import ALL, MEASURE
from composer_replication.evaluation.audit_verdict import (
    LOWER_BOUND,
    NOT_MEASURABLE,
    ONE_SESSION,
    KindVerdict,
    verdicts,
)
from composer_replication.tokens.artefact import Dataset

AUDIT_VERB = "hints --audit"


def kept_kinds(job: Job) -> frozenset[str] | None:
    """The kinds that the audit keeps by the current settings; None if no audit was made.

    Raises DataError if the audit measured other hints or another student, and StoppedError (exit
    code 3) if the hint channel has a weight and the audit keeps no kind.
    """
    if not job.audit.exists():
        return None
    judged = verdicts_of(job, _read(job))
    kinds = frozenset(v.kind for v in judged if not v.failed)
    if not kinds and job.config.train.hint.weight > 0:
        raise StoppedError(
            "no lift, nothing to train: the audit kept no kind of hint",
            where=str(job.audit),
            fix="; or ".join(ways_on(job, judged)),
        )
    return kinds


def verdicts_of(job: Job, audit: Mapping[str, Any]) -> list[KindVerdict]:
    """The verdict on each kind of an audit, by the current settings."""
    return [verdict for verdict in _row_verdicts(job, audit) if verdict.kind != ALL]


def _row_verdicts(job: Job, audit: Mapping[str, Any]) -> list[KindVerdict]:
    """The verdict on each row, that of all kinds together included."""
    settings = job.config.hints
    return verdicts(audit, min_lift=settings.min_lift, unmeasured=settings.unmeasured)


def judged_audit(job: Job, audit: Mapping[str, Any]) -> dict[str, Any] | None:
    """An audit with `verdict` and `needed` in each row, by the current settings, for a page; None
    if it is no audit of this measure."""
    if audit.get("measure") != MEASURE:
        return None
    try:
        judged = _row_verdicts(job, audit)
    except (KeyError, TypeError):
        return None
    rows = [
        {**row, "verdict": verdict.text, "needed": verdict.needed}
        for row, verdict in zip(audit["kinds"], judged, strict=True)
    ]
    return {**audit, "kinds": rows}


def mismatch(job: Job, audit: Mapping[str, Any]) -> str:
    """The difference between what an audit measured and what these settings train; "" if none.

    Raises KeyError for an audit without a student.
    """
    student, hints, model = job.config.student, job.config.hints, audit["student"]
    measure = audit.get("measure", "the lift over the whole message")
    if measure != MEASURE:
        return f"this audit measured {measure}; the gate now reads the {MEASURE}"
    if (position := audit.get("position", "system")) != hints.fixed_position():
        return f"the audit measured hints in position {position!r}, not in {hints.position!r}"
    if model != student.model:
        return f"the audit was made with {model!r}, the student is {student.model!r}"
    if (template := audit.get("template", student.template)) != student.template:
        return (
            f"the audit was made with the template {template!r}, student.template is"
            f" {student.template!r}"
        )
    return ""


def print_gate(job: Job, kinds: frozenset[str] | None) -> None:
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
        measured_in = _read(job).get("dtype", wanted := job.config.student.dtype)
        if measured_in != wanted:
            job.screen.line(
                f" note     the audit was measured in {measured_in}, student.dtype is {wanted}:"
                f" {job.command(AUDIT_VERB)} measures again",
                style="yellow",
            )


def check_examples(job: Job, data: Dataset, kinds: Collection[str] | None) -> None:
    """Raise DataError if the examples hold hints that the audit did not keep."""
    held = {kind for example in data.examples for view in example.hints for kind in view.kinds}
    if kinds is not None and job.config.train.hint.weight and (weak := sorted(held - set(kinds))):
        message = f"the examples hold hints of kinds that the audit did not keep: {', '.join(weak)}"
        raise DataError(message, where=str(job.examples), fix=f"run again: {job.command('build')}")
    built, wanted = data.meta.get("unmeasured"), job.config.hints.unmeasured
    if kinds is not None and held and job.config.train.hint.weight and built == "keep" != wanted:
        message = "the examples may hold hints that no audit can measure; hints.unmeasured = 'drop'"
        raise DataError(message, where=str(job.examples), fix=f"run again: {job.command('build')}")


def _read(job: Job) -> dict[str, Any]:
    job.need_fresh(job.audit, verb=AUDIT_VERB)
    again = f"run again: {job.command(AUDIT_VERB)}"
    try:
        audit: dict[str, Any] = json.loads(job.audit.read_text("utf-8"))
        verdicts_of(job, audit)
        problem = mismatch(job, audit)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"no audit of this version: {error!r}", where=str(job.audit), fix=again
        ) from error
    if problem:
        raise DataError(problem, where=str(job.audit), fix=again)
    return audit


def ways_on(job: Job, judged: Sequence[KindVerdict]) -> list[str]:
    """The remedy if no kind of hint is kept, by the condition that the kinds fail."""
    failed = {v.kind: v.failed for v in judged}
    ways: list[str] = []
    if job.config.student.model == TINY:
        ways.append(
            f"delete {job.audit}: the tiny student knows nothing yet, so no audit of it means"
            " anything; or set student.model to the model that you mean to train"
        )
    needed = [f"{v.kind} about {v.needed}" for v in judged if v.is_measured and v.needed]
    if underpowered := [kind for kind, why in failed.items() if why in (LOWER_BOUND, ONE_SESSION)]:
        sites = f" (sites needed: {', '.join(needed)})" if needed else ""
        ways.append(
            f"bring in more sessions: {', '.join(underpowered)} fail only"
            f" by the lower bound, which must be above hints.min_lift ="
            f" {job.config.hints.min_lift}{sites}"
        )
    if unmeasured := [kind for kind, why in failed.items() if why == NOT_MEASURABLE]:
        ways.append(f'set hints.unmeasured = "keep" to use {", ".join(unmeasured)} unmeasured')
    return [
        *ways,
        f"write better hints (hints.rules_file, hints.writers) and run: {job.command(AUDIT_VERB)}",
        "set train.hint.weight = 0",
        f"delete {job.audit} to train on hints that nothing speaks for",
    ]
