"""`recompose hints --audit`: measure, before any training, whether hints change the student.

`build` and `train` leave out weak kinds (cli/hint_gate.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from composer_replication.cli.build_text import remedies
from composer_replication.cli.hint_gate import ALL
from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import make_tokenizer
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import DataError, need
from composer_replication.core.jsonl import write_json
from composer_replication.core.site import Hint
from composer_replication.tokens.dataset import Skipped, build_examples
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.renderer import Renderer

NOTE = "a lower bound needs two sessions of a kind; below about ten the interval is too narrow"


def write_audit(job: Job, hints: Sequence[Hint]) -> dict[str, Any]:
    """Measure, write audit.json, and return the measurements."""
    measured = measure_audit(job, hints)
    if not job.dry_run:
        write_json(job.audit, measured)
        job.stamp(job.audit, made_from=[job.hints])
    return measured


def measure_audit(job: Job, hints: Sequence[Hint]) -> dict[str, Any]:
    """Measure the lift per kind, with an interval over sessions; prints and returns the table."""
    for package in ("torch", "transformers"):
        need(package, extra="train")
    import torch

    from composer_replication.evaluation.hint_lift import audit_hints
    from composer_replication.models.load_student import load_student

    tokenizer = make_tokenizer(job.config, job.sessions)
    examples, not_built = _examples(job, tokenizer, hints)
    if not examples and not_built:
        message = (
            f"none of {sum(not_built.values())} hints could be built into a view:"
            f" {_listed(not_built)}"
        )
        fix = "\nor ".join(remedies(not_built)) or "`recompose build` says why"
        raise DataError(message, where=str(job.hints), fix=fix)
    student = load_student(job.config.student, tokenizer=tokenizer, seed=job.config.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    measured = audit_hints(
        student.model.to(device),
        examples,
        pad_id=student.pad_id,
        max_tokens=job.config.train.micro_tokens,
        min_lift=job.config.hints.min_lift,
        seed=job.config.seed,
        device=device,
    ).to_json()
    measured = {"student": job.config.student.model, **measured, "not_built": not_built}
    _show(job, measured)
    return measured


def _examples(
    job: Job, tokenizer: Any, hints: Sequence[Hint]
) -> tuple[list[TrainingExample], dict[str, int]]:
    """The examples that `build` would make of these hints, and the skipped hints by reason."""
    hinted = {hint.site_id for hint in hints}
    items = build_examples(
        read_sessions(job.sessions),
        sites=read_sites(job.sites),
        hints=hints,
        renderer=Renderer.for_tokenizer(tokenizer, family=job.config.student.template),
        settings=job.config.build,
        held_out=job.held_out(),
    )
    examples: list[TrainingExample] = []
    lost: Counter[str] = Counter()
    for item in items:
        if isinstance(item, TrainingExample) and item.hints:
            examples.append(item)
        elif isinstance(item, Skipped) and item.channel == "hint" and item.site_id in hinted:
            lost[item.reason] += item.count
    return examples, dict(sorted(lost.items()))


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.items())


def _show(job: Job, measured: dict[str, Any]) -> None:
    screen = job.screen
    screen.line(
        f"\n audit on {job.config.student.model}: nats per token by which the right hint makes the"
        " mistake less likely than another site's"
    )
    rows = [
        (
            k["kind"],
            k["n"],
            k["sessions"],
            *(_signed(k[name]) for name in ("lift", "low", "high")),
            "" if k["keeps"] else "weak",
        )
        for k in measured["kinds"]
    ]
    screen.table(rows, head=("kind", "sites", "sessions", "lift", "low", "high", ""))
    for reason, count in measured["skipped"].items():
        if count:
            screen.line(f" skipped  {count} sites: {reason}")
    if not_built := measured["not_built"]:
        screen.line(
            f" left out {sum(not_built.values())} hints that `build` would leave out too, with"
            f" build.max_tokens = {job.config.build.max_tokens}:"
            f" {_listed(not_built)}",
            style="yellow",
        )
        for remedy in remedies(not_built):
            screen.line(f" fix      {remedy}", style="yellow")
    screen.line(
        f" note     weak = the lower bound is not above hints.min_lift = {measured['min_lift']};"
        f" {NOTE}."
    )
    if not any(k["keeps"] for k in measured["kinds"] if k["kind"] != ALL):
        screen.line(
            " gate     no kind is kept: `build` and `train` refuse while train.hint.weight is"
            " above 0",
            style="yellow",
        )
    else:
        screen.line(
            " gate     `build` and `train` leave out hints of weak kinds, and of kinds that were"
            " not measured"
        )
    if job.config.student.model == TINY:
        screen.line(
            " note     the tiny student knows nothing yet: a lift of about 0 is what it should"
            " show",
            style="yellow",
        )


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"
