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
from composer_replication.cli.job import Job, with_hint_position
from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.errors import need
from composer_replication.core.jsonl import write_json
from composer_replication.core.site import Hint


def write_audit(job: Job, hints: Sequence[Hint]) -> dict[str, Any]:
    """Measure, write audit.json, and return the measurements; in a dry run, say what would be
    measured."""
    for package in ("torch", "transformers"):
        need(package, extra="train")
    first: HintPosition = "system" if job.auto_position else job.config.hints.fixed_position()
    views = audit_views(job, hints, chosen=first)
    if job.dry_run:
        return show_audit_plan(job, views.planned(first))
    measured = _measure(job, hints, views, first=first)
    job = in_audited_position(job, measured)
    write_json(job.audit, measured)
    job.stamp(job.audit, made_from=[job.hints])
    show_audit(job, measured)
    show_positions(job, measured)
    return measured


def in_audited_position(job: Job, measured: dict[str, Any]) -> Job:
    """The job after an audit, which may have chosen the position; unchanged by a dry run."""
    return with_hint_position(job, measured["position"]) if "position" in measured else job


def _measure(
    job: Job, hints: Sequence[Hint], views: AuditViews, *, first: HintPosition
) -> dict[str, Any]:
    """What each position of a hint disturbs, compared with the `first`, and the lift per kind with
    an interval over sessions: in that position, or with hints.position = "auto" in the advised
    one."""
    import torch

    from composer_replication.evaluation.hint_lift import audit_hints
    from composer_replication.evaluation.hint_positions import advised_position, measure_positions
    from composer_replication.models.load_student import load_student

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
    effects = measure_positions(
        model,
        views.by_position,
        chosen=first,
        neutral=views.neutral,
        max_sites=POSITION_SITES,
        on_site=Progress(job, "positions: message"),
        **scoring,
    )
    advised = advised_position(effects, chosen=first)
    position = advised if job.auto_position and advised else first
    # of another position there are only the compared sites
    judged = views if position == first else audit_views(job, hints, chosen=position)
    audit = audit_hints(
        model,
        judged.by_position[position],
        neutral=judged.neutral[position],
        on_site=Progress(job, "message"),
        **scoring,
    )
    return {
        "student": job.config.student.model,
        "template": job.config.student.template,
        "dtype": job.config.student.dtype,
        "position": position,
        "compared_with": first,
        **audit.to_json(),
        "positions": [asdict(effect) for effect in effects],
        "advised_position": advised,
        "not_built": judged.not_built,
        "not_placed": views.not_placed,
    }
