"""`recompose hints --audit`: measure, before any training, whether hints change the student.

`build` and `train` leave out weak kinds (cli/hint_gate.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from composer_replication.cli.build_text import remedies
from composer_replication.cli.hints_audit_text import listed, show_audit, show_positions
from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import make_tokenizer, student_renderer
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.errors import DataError, need
from composer_replication.core.jsonl import write_json
from composer_replication.core.site import Hint, joined_text
from composer_replication.tokens.dataset import Skipped, build_examples
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.renderer import Renderer

POSITION_SITES = 24
"""On at most so many sites all positions are compared."""


def write_audit(job: Job, hints: Sequence[Hint]) -> dict[str, Any]:
    """Measure, write audit.json, and return the measurements."""
    measured = measure_audit(job, hints)
    if not job.dry_run:
        write_json(job.audit, measured)
        job.stamp(job.audit, made_from=[job.hints])
    return measured


def measure_audit(job: Job, hints: Sequence[Hint]) -> dict[str, Any]:
    """Measure the lift per kind, with an interval over sessions, and what each position of a hint
    disturbs; prints and returns the tables."""
    for package in ("torch", "transformers"):
        need(package, extra="train")
    import torch

    from composer_replication.evaluation.hint_lift import audit_hints
    from composer_replication.evaluation.hint_positions import best_position, measure_positions
    from composer_replication.models.load_student import load_student

    tokenizer = make_tokenizer(job.config, job.sessions)
    renderer = student_renderer(tokenizer, job.config)
    chosen = job.config.hints.position
    examples, not_built = _examples(job, renderer, hints, position=chosen)
    if not examples and not_built:
        message = (
            f"none of {sum(not_built.values())} hints could be built into a view:"
            f" {listed(not_built)}"
        )
        fix = "\nor ".join(remedies(not_built)) or "`recompose build` says why"
        raise DataError(message, where=str(job.hints), fix=fix)
    shown = _spread([v.site_ids for e in examples for v in e.hints], limit=POSITION_SITES)
    by_position: dict[HintPosition, list[TrainingExample]] = {chosen: examples}
    neutral: dict[HintPosition, dict[str, tuple[int, ...]]] = {}
    for position in get_args(HintPosition):
        some = [h for h in hints if position == chosen or h.site_id in shown]
        blank = _neutral_hints(job, some, count=renderer.codec.count)
        views = _examples(job, renderer, blank, position=position)[0]
        neutral[position] = {v.site_id: v.hint_ids for e in views for v in e.hints}
        built = (
            examples if position == chosen else _examples(job, renderer, some, position=position)[0]
        )
        if built:
            by_position[position] = built
    student = load_student(job.config.student, tokenizer=tokenizer, seed=job.config.seed)
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
        examples,
        min_lift=job.config.hints.min_lift,
        unmeasured=job.config.hints.unmeasured,
        neutral=neutral[chosen],
        **scoring,
    )
    effects = measure_positions(
        model,
        {position: by_position[position] for position in neutral if by_position[position]},
        neutral=neutral,
        max_sites=POSITION_SITES,
        **scoring,
    )
    measured = {
        "student": job.config.student.model,
        "position": chosen,
        **audit.to_json(),
        "positions": [asdict(effect) for effect in effects],
        "best_position": best_position(effects, chosen=chosen),
        "not_built": not_built,
    }
    show_audit(job, measured)
    show_positions(job, measured)
    return measured


def _spread(messages: Sequence[tuple[str, ...]], *, limit: int) -> set[str]:
    """The site ids of at most `limit` messages, at equal distances."""
    return {s for message in messages[:: max(1, -(-len(messages) // limit))] for s in message}


def _neutral_hints(job: Job, hints: Sequence[Hint], *, count: Callable[[str], int]) -> list[Hint]:
    """Text without information in place of the hints, as long as those of a message together."""
    from composer_replication.training.placebo import neutral_text

    turn_of = {site.id: (site.session_id, site.turn) for site in read_sites(job.sites)}
    by_message: dict[Any, list[Hint]] = defaultdict(list)
    for hint in hints:
        by_message[turn_of.get(hint.site_id, hint.site_id)].append(hint)
    neutral: list[Hint] = []
    for same_message in by_message.values():
        text = neutral_text(count(joined_text(same_message)), count=count)
        neutral += [replace(hint, text=text) for hint in same_message if text is not None]
    return neutral


def _examples(
    job: Job, renderer: Renderer, hints: Sequence[Hint], *, position: HintPosition
) -> tuple[list[TrainingExample], dict[str, int]]:
    """The examples that `build` would make of these hints, and the skipped hints by reason."""
    hinted = {hint.site_id for hint in hints}
    sites = list(read_sites(job.sites))
    sessions = {site.session_id for site in sites if site.id in hinted}
    items = build_examples(
        (session for session in read_sessions(job.sessions) if session.id in sessions),
        sites=[site for site in sites if site.session_id in sessions],
        hints=hints,
        renderer=renderer,
        settings=job.config.build,
        held_out=job.held_out(),
        position=position,
    )
    examples: list[TrainingExample] = []
    lost: Counter[str] = Counter()
    for item in items:
        if isinstance(item, TrainingExample) and item.hints:
            examples.append(item)
        elif isinstance(item, Skipped) and item.channel == "hint" and item.site_id in hinted:
            lost[item.reason] += item.count
    return examples, dict(sorted(lost.items()))
