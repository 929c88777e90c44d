"""Does a hint change the teacher? Measured before training: hints of a kind that fails the audit
are not trained on (cli/hint_gate.py).

    audit = audit_hints(model, examples, pad_id=0, max_tokens=8192, seed=7)
    audit.kinds[0] -> KindLift(kind="edit_not_read", decision=DecisionLift(...), unmeasured=0, ...)

Each mistaken message is scored without a hint, below its own hint, and below its *other texts*: the
hints of up to `num_donors` other sites in the same place and, if its ids are given, a neutral text
of the same length. The baseline is the mean over the other texts, each counting once; a site for
which no donor is left has neutral text alone. A hint that advises the same (it shares a right token
at the decision) is no donor: where most hints say "call Read", good hints would have no lift.

    decision lift   log-odds of right against wrong, at the token that decides: that with the
                    site's own hint minus the baseline (evaluation/decision_lift.py): the gate
    message lift    mean log p(T | other texts) - mean log p(T | own hint), in nats per token of the
                    message T: how much less likely the own hint makes the whole message

Means are over sites (a message of several failed calls is one site for the message lift, one for
each known decision for the other); intervals are over sessions. A kind for whose sites nothing is
known to be right is "not measurable". Which kinds are kept is decided where the audit is read
(evaluation/audit_verdict.py), by the settings at that time.

Donors of another kind and of another session are preferred; `donors` counts the sites for which
that was not possible. A site without any other text is skipped and counted.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import DataError
from composer_replication.evaluation.audit_names import ALL, MEASURE, NUM_DONORS
from composer_replication.evaluation.decision_lift import (
    SiteDecision,
    log_odds,
    row_states,
    score_states,
    trial_row,
)
from composer_replication.evaluation.stats import Interval, bootstrap_mean
from composer_replication.models.forward import scoring
from composer_replication.models.tree_forward import why_not_tree
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.tokens.hint_donors import several_donors


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLift:
    """One message: mean log p of its tokens under the contexts, in nats per token; `baseline` is
    the mean over its other texts."""

    site_id: str
    kind: str
    session_id: str
    num_tokens: int
    hint: float
    baseline: float
    none: float
    others: tuple[tuple[str, str], ...] = ()
    decisions: tuple[SiteDecision, ...] = ()

    @property
    def all_sites(self) -> tuple[tuple[str, str], ...]:
        """(site id, kind) of every failed call of the message whose hint is in the view."""
        return ((self.site_id, self.kind), *self.others)

    @property
    def lift(self) -> float:
        """The message lift: the log-prob of the mistake under other texts, less that under the
        right hint."""
        return self.baseline - self.hint


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLift:
    """The decision lift of a kind's sites, in nats of log-odds; over neutral text alone and over no
    hint too."""

    lift: Interval
    over_neutral: float | None
    over_none: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLift:
    """All sites of one kind (kind "all": every site).

    `decision` is None, and `unmeasured` counts all of its sites, if nothing is known to be right at
    any of them.
    """

    kind: str
    decision: DecisionLift | None
    unmeasured: int
    lift: Interval
    hint: float
    baseline: float
    none: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The measured sites and kinds; `skipped` counts sites without another text."""

    sites: tuple[SiteLift, ...]
    kinds: tuple[KindLift, ...]
    donors: Mapping[str, int]
    skipped: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object: the kinds with their lifts and mean log-probs, and every site."""
        return {
            "measure": MEASURE,
            "kinds": [_kind_to_json(kind) for kind in self.kinds],
            "donors": dict(self.donors),
            "skipped": dict(self.skipped),
            "sites": [_site_to_json(site) for site in self.sites],
        }


def _kind_to_json(kind: KindLift) -> dict[str, Any]:
    decision = kind.decision
    return {
        "kind": kind.kind,
        "n": kind.lift.n,
        "unmeasured": kind.unmeasured,
        "decision": None
        if decision is None
        else {
            **_interval_to_json(decision.lift),
            "over_neutral": decision.over_neutral,
            "over_none": decision.over_none,
        },
        "message": {
            **_interval_to_json(kind.lift),
            "logp_hint": kind.hint,
            "logp_baseline": kind.baseline,
            "logp_none": kind.none,
        },
    }


def _interval_to_json(interval: Interval) -> dict[str, Any]:
    return {
        "n": interval.n,
        "sessions": interval.clusters,
        "lift": interval.mean,
        "low": interval.low,
        "high": interval.high,
    }


def _site_to_json(site: SiteLift) -> dict[str, Any]:
    decisions = [{**dataclasses.asdict(d), "lift": d.lift} for d in site.decisions]
    return {**dataclasses.asdict(site), "lift": site.lift, "decisions": decisions}


@dataclass(frozen=True, slots=True)
class _SiteInContext:
    """A hint view together with the example that holds it."""

    example: TrainingExample
    view: HintView


def audit_hints(
    model: Any,
    examples: Sequence[TrainingExample],
    *,
    pad_id: int,
    max_tokens: int,
    seed: int,
    neutral: Mapping[str, tuple[int, ...]] | None = None,
    num_donors: int = NUM_DONORS,
    layout: Literal["tree", "rows"] = "rows",
    device: Any = "cpu",
    on_site: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Measure every hint view of the examples on `model`, the teacher.

    `neutral` are the inserted ids of a neutral text by the view's site id. In the layout "tree" the
    context of a site is computed once; a model for which that is not exact gets rows. `on_site` is
    told how many messages are done, of how many. Raises DataError if the examples hold no hint
    view.
    """
    # One view per site: in reversed order the first of several is written last, and stays.
    contexts = list(
        {
            v.site_id: _SiteInContext(e, v) for e in reversed(examples) for v in reversed(e.hints)
        }.values()
    )[::-1]
    if not contexts:
        raise DataError(
            "no hint view among the examples",
            fix="run `recompose hints` and `recompose build` first",
        )
    donors_of = several_donors(
        [p.view for p in contexts],
        [p.example.session_id for p in contexts],
        seed=stage_seed(seed, "hint_lift"),
        count=num_donors,
    )
    neutral = neutral or {}
    usable = [
        (context, [contexts[donor] for donor in donors])
        for context, donors in zip(contexts, donors_of, strict=True)
        if donors or neutral.get(context.view.site_id)
    ]
    # A site counts once for each relation, however many of its donors have it.
    relation_counts = Counter(
        name
        for context, donors in usable
        for name in {name for donor in donors for name in _donor_relations(context, donor)}
    )
    layout = "rows" if layout == "tree" and why_not_tree(model) else layout
    options = {"pad_id": pad_id, "max_tokens": max_tokens, "layout": layout, "device": device}
    sites: list[SiteLift] = []
    with scoring(model):
        for context, donors in usable:
            neutral_ids = neutral.get(context.view.site_id, ())
            sites.append(
                _score_site(model, context, donors=donors, neutral_ids=neutral_ids, options=options)
            )
            on_site(len(sites), len(usable))
    # a view may hold the hints of several failing calls, and then counts for each of their kinds
    kinds_of_site = {context.view.site_id: context.view.kinds for context, _ in usable}
    kinds = sorted({kind for view_kinds in kinds_of_site.values() for kind in view_kinds})
    groups = [(kind, [s for s in sites if kind in kinds_of_site[s.site_id]]) for kind in kinds] + (
        [(ALL, sites)] if sites else []
    )
    return Audit(
        sites=tuple(sites),
        kinds=tuple(_kind_lift(kind, group, seed=seed) for kind, group in groups),
        donors={
            "sites": len(usable),
            "same_kind": relation_counts["same_kind"],
            "same_session": relation_counts["same_session"],
            "fewer": sum(len(donors) < num_donors for _, donors in usable),
            "neutral_only": sum(not donors for _, donors in usable),
        },
        skipped={"no_donor": len(contexts) - len(usable)},
    )


def _donor_relations(context: _SiteInContext, donor: _SiteInContext) -> list[str]:
    names = ["same_kind"] if context.view.kind == donor.view.kind else []
    return (
        [*names, "same_session"]
        if context.example.session_id == donor.example.session_id
        else names
    )


def _score_site(
    model: Any,
    context: _SiteInContext,
    *,
    donors: Sequence[_SiteInContext],
    neutral_ids: tuple[int, ...],
    options: Mapping[str, Any],
) -> SiteLift:
    """Score one message without a hint, below its own and below its other texts."""
    example, view = context.example, context.view
    # The scores are read back by this order: no hint, the own hint, then the other texts, of which
    # the neutral one is the last.
    inserted = [(), view.hint_ids, *(donor.view.hint_ids for donor in donors)]
    inserted += [neutral_ids] if neutral_ids else []
    rows = [trial_row(example, view, ids) for ids in inserted]
    logps = score_states(model, rows, row_states(model, rows, **options))
    messages = [float(logp_N[: len(view.target_ids)].mean()) for logp_N in logps]
    odds = [log_odds(logp_N[len(view.target_ids) :], view.decisions) for logp_N in logps]
    # A decision without a fork has no token at which to compare right and wrong: no log-odds.
    kind_of = dict(((view.site_id, view.kind), *view.others))
    decisions = tuple(
        SiteDecision(
            site_id=decision.site_id,
            kind=kind_of[decision.site_id],
            session_id=example.session_id,
            none=none,
            hint=hint,
            baseline=sum(others) / len(others),
            neutral=others[-1] if neutral_ids else None,
        )
        for decision, (none, hint, *others) in zip(
            (d for d in view.decisions if d.fork is not None), zip(*odds, strict=True), strict=True
        )
    )
    return SiteLift(
        site_id=view.site_id,
        kind=view.kind,
        session_id=example.session_id,
        num_tokens=len(view.target_ids),
        none=messages[0],
        hint=messages[1],
        baseline=sum(messages[2:]) / len(messages[2:]),
        others=view.others,
        decisions=decisions,
    )


def _kind_lift(kind: str, sites: Sequence[SiteLift], *, seed: int) -> KindLift:
    decisions = [d for site in sites for d in site.decisions if kind in (ALL, d.kind)]
    decision = _decision_lift(kind, decisions, seed=seed) if decisions else None
    hint, baseline, none = (
        sum(getattr(s, name) for s in sites) / len(sites) for name in ("hint", "baseline", "none")
    )
    measured = {d.site_id for d in decisions}
    return KindLift(
        kind=kind,
        decision=decision,
        unmeasured=sum(
            kind in (ALL, site_kind) and site_id not in measured
            for site in sites
            for site_id, site_kind in site.all_sites
        ),
        lift=_mean_lift(f"lift:{kind}", sites, seed=seed),
        hint=hint,
        baseline=baseline,
        none=none,
    )


def _decision_lift(kind: str, decisions: Sequence[SiteDecision], *, seed: int) -> DecisionLift:
    neutral = [d.hint - d.neutral for d in decisions if d.neutral is not None]
    return DecisionLift(
        lift=_mean_lift(f"decision:{kind}", decisions, seed=seed),
        over_neutral=sum(neutral) / len(neutral) if neutral else None,
        over_none=sum(d.hint - d.none for d in decisions) / len(decisions),
    )


def _mean_lift(
    name: str, measured: Sequence[SiteLift] | Sequence[SiteDecision], *, seed: int
) -> Interval:
    return bootstrap_mean(
        [m.lift for m in measured],
        [m.session_id for m in measured],
        seed=stage_seed(seed, name),
    )
