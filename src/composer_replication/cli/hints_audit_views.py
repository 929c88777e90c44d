"""The views that `recompose hints --audit` measures: the hints in every position."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from composer_replication.cli.build_text import remedies
from composer_replication.cli.hints_audit_plan import listed
from composer_replication.cli.job import Job
from composer_replication.cli.student_tokenizer import make_tokenizer, student_renderer
from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.config.data_settings import HintPosition
from composer_replication.core.errors import DataError
from composer_replication.core.site import Hint, joined_text
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.skipped import Skipped

POSITION_SITES = 24
"""On at most so many sites all positions are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditViews:
    """The inputs of the audit: the examples with the hints in each position in which one can be
    placed, the neutral ids of each position by site, the hints that `build` would leave out by
    reason, and how many of the compared hints cannot be placed in each position."""

    tokenizer: Any
    by_position: dict[HintPosition, list[TrainingExample]]
    neutral: dict[HintPosition, dict[str, tuple[int, ...]]]
    not_built: dict[str, int]
    not_placed: dict[HintPosition, int]

    def planned(self, chosen: HintPosition) -> dict[str, Any]:
        """The number of sites per kind and of those with a known decision, and of the positions."""
        sites: Counter[str] = Counter()
        known: Counter[str] = Counter()
        for view in (v for e in self.by_position[chosen] for v in e.hints):
            kind_of = {view.site_id: view.kind, **dict(view.others)}
            sites.update(kind_of.values())
            known.update(kind_of[d.site_id] for d in view.decisions if d.fork is not None)
        return {
            "messages": sum(len(e.hints) for e in self.by_position[chosen]),
            "sites": dict(sorted(sites.items())),
            "measurable": {kind: known[kind] for kind in sorted(sites)},
            "positions": {p: sum(len(e.hints) for e in es) for p, es in self.by_position.items()},
            "not_placed": self.not_placed,
            "not_built": self.not_built,
        }


def audit_views(job: Job, hints: Sequence[Hint], *, chosen: HintPosition) -> AuditViews:
    """The views of all hints in the chosen position, and of some of them in the others; raises
    DataError if not one hint has one in the chosen one."""
    tokenizer = make_tokenizer(job.config, job.sessions)
    renderer = student_renderer(tokenizer, job.config)
    examples, not_built = _examples(job, renderer, hints, position=chosen)
    if not examples and not_built:
        message = (
            f"none of {sum(not_built.values())} hints could be built into a view:"
            f" {listed(not_built)}"
        )
        fix = "\nor ".join(remedies(not_built)) or "`recompose build` says why"
        raise DataError(message, where=str(job.hints), fix=fix)
    shown = _spread([v.site_ids for e in examples for v in e.hints], limit=POSITION_SITES)
    by_position: dict[HintPosition, list[TrainingExample]] = {}
    neutral: dict[HintPosition, dict[str, tuple[int, ...]]] = {}
    not_placed: dict[HintPosition, int] = {}
    for position in (chosen, *(p for p in get_args(HintPosition) if p != chosen)):
        some = [h for h in hints if position == chosen or h.site_id in shown]
        built = (
            examples if position == chosen else _examples(job, renderer, some, position=position)[0]
        )
        placed = {site_id for e in built for v in e.hints for site_id in v.site_ids}
        if missing := len(shown - placed):
            not_placed[position] = missing
        if position != chosen and not placed:
            continue
        blank = _neutral_hints(job, some, count=renderer.codec.count)
        views = _examples(job, renderer, blank, position=position)[0]
        neutral[position] = {v.site_id: v.hint_ids for e in views for v in e.hints}
        by_position[position] = built
    return AuditViews(
        tokenizer=tokenizer,
        by_position=by_position,
        neutral=neutral,
        not_built=not_built,
        not_placed=not_placed,
    )


def _spread(messages: Sequence[tuple[str, ...]], *, limit: int) -> set[str]:
    """The site ids of at most `limit` messages, at equal distances."""
    return {s for message in messages[:: max(1, -(-len(messages) // limit))] for s in message}


def _neutral_hints(job: Job, hints: Sequence[Hint], *, count: Callable[[str], int]) -> list[Hint]:
    """Text without information in place of the hints, as long as those of a message together."""
    from composer_replication.training.draws.placebo import neutral_text

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
