"""`recompose hints --audit`: measure, before any training, whether hints change the student.

`build` and `train` leave out weak kinds (cli/hint_gate.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from composer_replication.cli.hints_audit_plan import Progress, show_audit_plan
from composer_replication.cli.hints_audit_text import show_audit, show_positions
from composer_replication.cli.hints_audit_views import POSITION_SITES, AuditViews, audit_views
from composer_replication.cli.job import Job
from composer_replication.core.errors import need
from composer_replication.core.jsonl import write_json
from composer_replication.core.site import Hint


def write_audit(job: Job, hints: Sequence[Hint]) -> dict[str, Any]:
    """Measure, write audit.json, and return the measurements; in a dry run, say what would be
    measured."""
    for package in ("torch", "transformers"):
        need(package, extra="train")
    views = audit_views(job, hints)
    if job.dry_run:
        return show_audit_plan(job, views.planned(job.config.hints.position))
    measured = _measure(job, views)
    write_json(job.audit, measured)
    job.stamp(job.audit, made_from=[job.hints])
    show_audit(job, measured)
    show_positions(job, measured)
    return measured


def _measure(job: Job, views: AuditViews) -> dict[str, Any]:
    """The lift per kind, with an interval over sessions, and what each position of a hint
    disturbs."""
    import torch

    from composer_replication.evaluation.hint_lift import audit_hints
    from composer_replication.evaluation.hint_positions import advised_position, measure_positions
    from composer_replication.models.load_student import load_student

    chosen = job.config.hints.position
    student = load_student(job.config.student, tokenizer=views.tokenizer, seed=job.config.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scoring: dict[str, Any] = {
        "pad_id": student.pad_id,
        "max_tokens": job.config.train.micro_tokens,
        "seed": job.config.seed,
        "layout": job.config.train.layout,
        "device": device,
    }
    model = student.model.to(device)
    audit = audit_hints(
        model,
        views.by_position[chosen],
        neutral=views.neutral[chosen],
        on_site=Progress(job, "message"),
        **scoring,
    )
    effects = measure_positions(
        model,
        views.by_position,
        chosen=chosen,
        neutral=views.neutral,
        max_sites=POSITION_SITES,
        on_site=Progress(job, "positions: message"),
        **scoring,
    )
    return {
        "student": job.config.student.model,
        "template": job.config.student.template,
        "dtype": job.config.student.dtype,
        "position": chosen,
        **audit.to_json(),
        "positions": [asdict(effect) for effect in effects],
        "advised_position": advised_position(effects, chosen=chosen),
        "not_built": views.not_built,
        "not_placed": views.not_placed,
    }
