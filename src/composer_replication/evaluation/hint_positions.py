"""Where should a hint stand? By what neutral text does to the model at each place.

    effects = measure_positions(model, by_position, neutral=neutral_ids, pad_id=0, max_tokens=8192)
    effects[0] -> PositionEffect(position="user", disturbance=Interval(...), over_neutral=1.1, ...)
    best_position(effects)                                  # "user"

A hint is to change the decision and nothing else. What stands in the message before its decision
(its opening words, the beginning of the call) has nothing to do with it, so what a text without
information changes there is disturbance: the sum of the raw Jensen-Shannon divergence to the model
without any text, over those tokens. Measured on SmolLM2-135M: a system message in mid-conversation
makes the model stop expecting a call (2.14 nats), a user message .85, text in the last result .69,
while the log-odds that hints move are about equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.data_settings import HintPosition
from composer_replication.evaluation.decision_lift import (
    log_odds,
    row_states,
    score_states,
    trial_row,
)
from composer_replication.evaluation.stats import Interval, bootstrap_mean
from composer_replication.losses.fused import fused_divergence
from composer_replication.models.forward import head_of, scoring
from composer_replication.models.tree_forward import why_not_tree
from composer_replication.tokens.example import HintView, TrainingExample

NEAR = 0.8
"""A position whose hints move the log-odds by at least this share of the best one's counts as
equal."""

SAME = 0.1
"""Nats of disturbance that are no reason to change the position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionEffect:
    """One position: over how many sites, and what neutral text and the hints do there.

    `disturbance` is the summed divergence, and `logp_change` the summed change of log-prob, of the
    tokens before the decision, below neutral text against no text; `over_neutral` the log-odds
    below the site's own hint less those below neutral text (None if no site has log-odds).
    """

    position: HintPosition
    disturbance: Interval
    logp_change: float
    over_neutral: float | None


@dataclass(frozen=True, slots=True)
class _Place:
    example: TrainingExample
    view: HintView
    neutral: tuple[int, ...]


def measure_positions(
    model: Any,
    by_position: Mapping[HintPosition, Sequence[TrainingExample]],
    *,
    neutral: Mapping[HintPosition, Mapping[str, tuple[int, ...]]],
    pad_id: int,
    max_tokens: int,
    seed: int,
    max_sites: int,
    layout: str = "rows",
    device: Any = "cpu",
) -> list[PositionEffect]:
    """The effect of each position on the sites that have a view, neutral text and a decision in
    every one, at most `max_sites` of them, spread over the sessions."""
    places: dict[HintPosition, dict[str, _Place]] = {
        position: {
            v.site_id: _Place(e, v, neutral[position][v.site_id])
            for e in examples
            for v in e.hints
            if v.decisions and v.site_id in neutral[position]
        }
        for position, examples in by_position.items()
    }
    common = [
        site_id
        for site_id in next(iter(places.values()), {})
        if all(site_id in of_position for of_position in places.values())
    ]
    common = common[:: max(1, -(-len(common) // max_sites))]
    if not common:
        return []
    options = {"pad_id": pad_id, "max_tokens": max_tokens, "device": device}
    options["layout"] = "rows" if layout == "tree" and why_not_tree(model) else layout
    with scoring(model):
        return [
            _effect(model, position, [of_position[s] for s in common], seed=seed, options=options)
            for position, of_position in places.items()
        ]


def best_position(
    effects: Sequence[PositionEffect], *, chosen: HintPosition
) -> HintPosition | None:
    """The position that neutral text disturbs least, among those where hints move the log-odds
    about as far as in the best one; `chosen` if it is as good as that; None if nothing was
    measured.

    >>> def effect(position, disturbance, lift):
    ...     interval = Interval(n=9, clusters=9, mean=disturbance, low=None, high=None)
    ...     return PositionEffect(
    ...         position=position, disturbance=interval, logp_change=0.0, over_neutral=lift
    ...     )
    >>> measured = [effect("system", 2.1, 1.4), effect("user", 0.8, 1.3), effect("result", 0.2, 0)]
    >>> best_position(measured, chosen="system"), best_position([], chosen="system")
    ('user', None)
    """
    lifts = [e.over_neutral for e in effects if e.over_neutral is not None]
    least = NEAR * max(lifts) if lifts and max(lifts) > 0 else None
    candidates = [
        e
        for e in effects
        if least is None or (e.over_neutral is not None and e.over_neutral >= least)
    ]
    if not candidates:
        return None
    best = min(candidates, key=lambda e: e.disturbance.mean)
    is_equal = any(
        e.position == chosen and e.disturbance.mean <= best.disturbance.mean + SAME
        for e in candidates
    )
    return chosen if is_equal else best.position


def _effect(
    model: Any,
    position: HintPosition,
    places: Sequence[_Place],
    *,
    seed: int,
    options: Mapping[str, Any],
) -> PositionEffect:
    disturbances: list[float] = []
    changes: list[float] = []
    lifts: list[float] = []
    for place in places:
        view = place.view
        decided = min(a for decision in view.decisions for a, _ in decision.spans)
        rows = [
            trial_row(place.example, view, ids, upto=decided)
            for ids in ((), place.neutral, view.hint_ids)
        ]
        hidden_ND = row_states(model, rows, **options)
        logps = score_states(model, rows, hidden_ND)
        none_ND, neutral_ND, _ = hidden_ND.split([len(row.positions) for row in rows])
        before = sum(p < decided for a, b in view.spans for p in range(a, b))
        head = head_of(model)
        divergence_N = fused_divergence(
            none_ND[:before], head, neutral_ND[:before], head, divergence="jsd", raw=True
        )
        disturbances.append(float(divergence_N.sum()))
        changes.append(float((logps[1][:before] - logps[0][:before]).sum()))
        odds = [log_odds(logp_N[before:], view.decisions) for logp_N in logps]
        lifts += [hinted - neutral for neutral, hinted in zip(odds[1], odds[2], strict=True)]
    sessions = [place.example.session_id for place in places]
    return PositionEffect(
        position=position,
        disturbance=bootstrap_mean(
            disturbances, sessions, seed=stage_seed(seed, f"position:{position}")
        ),
        logp_change=sum(changes) / len(changes),
        over_neutral=sum(lifts) / len(lifts) if lifts else None,
    )
