"""Compare the positions of a hint by the effect of a neutral text at each.

    effects = measure_positions(model, by_position, chosen="system", neutral=neutral_ids, ...)
    effects[1] -> PositionEffect(position="user", disturbance=Interval(...), over_neutral=1.1, ...)
    advised_position(effects, chosen="system")              # "user"

A hint is to change the decision and nothing else. What stands in the message before its decision
(its opening words, the beginning of the call) has nothing to do with it, so what a text without
information changes there is disturbance: the sum of the raw Jensen-Shannon divergence to the model
without any text, over those tokens. Measured on SmolLM2-135M: a system message in mid-conversation
makes the model stop expecting a call (2.14 nats), a user message .85, text in the last result .69,
while the log-odds that hints move are about equal.

Another position than the chosen one is advised only if it disturbs less on the same sites, with an
interval of the paired differences that excludes zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""A position whose hints move the log-odds by at least this share of the chosen one's acts as
far."""

SAME = 0.1
"""Nats of disturbance that are no reason to change the position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionEffect:
    """One position, on those sites of the chosen one that have a view here too.

    `disturbance` is the summed divergence, and `logp_change` the summed change of log-prob, of the
    tokens before the decision, below neutral text against no text; `over_neutral` the log-odds
    below the site's own hint less those below neutral text (None if no site has log-odds).
    `difference` is the disturbance less that of the chosen position, and `chosen_over_neutral` the
    chosen one's `over_neutral`, on the same sites.
    """

    position: HintPosition
    disturbance: Interval
    difference: Interval
    logp_change: float
    over_neutral: float | None
    chosen_over_neutral: float | None


@dataclass(frozen=True, slots=True)
class _SiteEffect:
    session_id: str
    disturbance: float
    logp_change: float
    lifts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    example: TrainingExample
    view: HintView
    neutral: tuple[int, ...]


def measure_positions(
    model: Any,
    by_position: Mapping[HintPosition, Sequence[TrainingExample]],
    *,
    chosen: HintPosition,
    neutral: Mapping[HintPosition, Mapping[str, tuple[int, ...]]],
    pad_id: int,
    max_tokens: int,
    seed: int,
    max_sites: int,
    layout: str = "rows",
    device: Any = "cpu",
    on_site: Callable[[int, int], None] = lambda done, total: None,
) -> list[PositionEffect]:
    """The effect of each position on the sites that have a view, neutral text and a decision there
    and in the chosen position, at most `max_sites` of them, spread over the sessions.

    A position without such a site has no effect in the list. `on_site` is told how many of the
    forwards are done, of how many.
    """
    places: dict[HintPosition, dict[str, _Place]] = {
        position: {
            v.site_id: _Place(e, v, neutral[position][v.site_id])
            for e in examples
            for v in e.hints
            if v.decisions and v.site_id in neutral[position]
        }
        for position, examples in by_position.items()
    }
    wanted = list(places.get(chosen, {}))
    wanted = wanted[:: max(1, -(-len(wanted) // max_sites))]
    shared: dict[HintPosition, dict[str, _Place]] = {
        position: {s: of_position[s] for s in wanted if s in of_position}
        for position, of_position in places.items()
    }
    options = {"pad_id": pad_id, "max_tokens": max_tokens, "device": device}
    options["layout"] = "rows" if layout == "tree" and why_not_tree(model) else layout
    total = sum(map(len, shared.values()))
    done = 0
    measured: dict[HintPosition, dict[str, _SiteEffect]] = {}
    with scoring(model):
        for position, of_position in shared.items():
            measured[position] = {}
            for site_id, place in of_position.items():
                measured[position][site_id] = _site_effect(model, place, options=options)
                on_site(done := done + 1, total)
    return [
        _effect(position, effects, [measured[chosen][s] for s in effects], seed=seed)
        for position, effects in measured.items()
        if effects
    ]


def advised_position(
    effects: Sequence[PositionEffect], *, chosen: HintPosition
) -> HintPosition | None:
    """The position that neutral text disturbs least, among those that are shown to be disturbed
    less than the chosen one and where hints move the log-odds about as far; None if there is none.

    >>> def effect(position, difference, lift):
    ...     interval = Interval(
    ...         n=9, clusters=9, mean=difference, low=difference - 0.2, high=difference + 0.2
    ...     )
    ...     return PositionEffect(
    ...         position=position, disturbance=interval, difference=interval, logp_change=0.0,
    ...         over_neutral=lift, chosen_over_neutral=1.4,
    ...     )
    >>> measured = [effect("user", -1.3, 1.3), effect("result", -1.9, 0), effect("reminder", 0, 1)]
    >>> advised_position(measured, chosen="system"), advised_position([], chosen="system")
    ('user', None)
    """
    candidates = [
        e
        for e in effects
        if e.position != chosen
        and e.difference.high is not None
        and e.difference.high < 0
        and e.difference.mean < -SAME
        and acts_as_far(e)
    ]
    return min(candidates, key=lambda e: e.disturbance.mean).position if candidates else None


def acts_as_far(effect: PositionEffect) -> bool:
    """Whether hints move the log-odds about as far in a position as in the chosen one."""
    lift, chosen_lift = effect.over_neutral, effect.chosen_over_neutral
    return lift is None or chosen_lift is None or lift >= NEAR * max(chosen_lift, 0.0)


def _site_effect(model: Any, place: _Place, *, options: Mapping[str, Any]) -> _SiteEffect:
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
    odds = [log_odds(logp_N[before:], view.decisions) for logp_N in logps]
    return _SiteEffect(
        session_id=place.example.session_id,
        disturbance=float(divergence_N.sum()),
        logp_change=float((logps[1][:before] - logps[0][:before]).sum()),
        lifts=tuple(hinted - blank for blank, hinted in zip(odds[1], odds[2], strict=True)),
    )


def _effect(
    position: HintPosition,
    effects: Mapping[str, _SiteEffect],
    in_chosen: Sequence[_SiteEffect],
    *,
    seed: int,
) -> PositionEffect:
    of_sites = list(effects.values())
    sessions = [e.session_id for e in of_sites]
    differences = [a.disturbance - b.disturbance for a, b in zip(of_sites, in_chosen, strict=True)]
    return PositionEffect(
        position=position,
        disturbance=bootstrap_mean(
            [e.disturbance for e in of_sites],
            sessions,
            seed=stage_seed(seed, f"position:{position}"),
        ),
        difference=bootstrap_mean(
            differences, sessions, seed=stage_seed(seed, f"difference:{position}")
        ),
        logp_change=sum(e.logp_change for e in of_sites) / len(of_sites),
        over_neutral=_mean([lift for e in of_sites for lift in e.lifts]),
        chosen_over_neutral=_mean([lift for e in in_chosen for lift in e.lifts]),
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
