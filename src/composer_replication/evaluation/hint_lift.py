"""Does a hint change the teacher? Measured before training: hints of a kind that fails the audit
are not trained on (cli/hint_gate.py).

    audit = audit_hints(model, examples, pad_id=0, max_tokens=8192, min_lift=0.0, seed=7)
    audit.kinds[0] -> KindLift(kind="edit_not_read", decision=DecisionLift(...), keeps=True, ...)

Each mistaken message is scored without a hint, below its own hint, below the hints of `num_donors`
other sites in the same place, and, if its ids are given, below a neutral text of the same length.

    decision lift   how much more the own hint favours what is right, at the token that decides
                    (evaluation/decision_lift.py): the gate
    message lift    mean log p(T | other hints) - mean log p(T | own hint), in nats per token of the
                    message T: how much less likely the own hint makes the whole message

Means are over sites (a message of several failed calls is one site for the message lift, one for
each known decision for the other); intervals are over sessions. A kind for whose sites nothing is
known to be right is "not measurable": `unmeasured` says whether it is kept.

Donors are drawn by permutations of the hints in which no site gets its own text. Within that,
donors of another kind and of another session are preferred (a hint of the same kind often says the
same thing); `donors` counts the sites for which that was not possible. A site is skipped and
counted if only the same text, or a hint written for another rendering, is left for it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import DataError
from composer_replication.evaluation.audit_names import ALL, MEASURE
from composer_replication.evaluation.decision_lift import (
    SiteDecision,
    log_odds,
    row_states,
    score_states,
    trial_row,
)
from composer_replication.evaluation.power import values_needed
from composer_replication.evaluation.stats import Interval, bootstrap_mean
from composer_replication.models.forward import scoring
from composer_replication.models.tree_forward import why_not_tree
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.tokens.hint_donors import several_donors

NUM_DONORS = 3
"""Other sites' hints per site: one alone is too noisy (measured: 137 sites of a kind in place of 4
for the same power)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLift:
    """One message: mean log p of its tokens under the contexts, in nats per token; `shuffled` is
    the mean over other sites' hints."""

    site_id: str
    kind: str
    session_id: str
    num_tokens: int
    hint: float
    shuffled: float
    none: float
    others: tuple[tuple[str, str], ...] = ()
    decisions: tuple[SiteDecision, ...] = ()

    @property
    def all_sites(self) -> tuple[tuple[str, str], ...]:
        """(site id, kind) of every failed call of the message whose hint is in the view."""
        return ((self.site_id, self.kind), *self.others)

    @property
    def lift(self) -> float:
        """How much less likely the right hint makes the mistake than another site's hint."""
        return self.shuffled - self.hint


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLift:
    """The decision lift of a kind's sites, in nats of log-odds; against neutral text and against no
    hint too; and how many sites this mean and spread need for 80 % power (None: the mean is not
    above the threshold)."""

    lift: Interval
    over_neutral: float | None
    over_none: float
    needed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLift:
    """All sites of one kind (kind "all": every site).

    `decision` is None, and `unmeasured` counts all of its sites, if nothing is known to be right at
    any of them. `keeps` is true if the lower bound of the decision lift is above the threshold.
    """

    kind: str
    decision: DecisionLift | None
    unmeasured: int
    lift: Interval
    keeps: bool
    hint: float
    shuffled: float
    none: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The measured sites and kinds; `skipped` counts sites without a usable donor."""

    sites: tuple[SiteLift, ...]
    kinds: tuple[KindLift, ...]
    donors: Mapping[str, int]
    skipped: Mapping[str, int]
    min_lift: float

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object: the kinds with their lifts and mean log-probs, and every site."""
        return {
            "measure": MEASURE,
            "min_lift": self.min_lift,
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
        "keeps": kind.keeps,
        "unmeasured": kind.unmeasured,
        "decision": None
        if decision is None
        else {
            **_interval_to_json(decision.lift),
            "over_neutral": decision.over_neutral,
            "over_none": decision.over_none,
            "needed": decision.needed,
        },
        "message": {
            **_interval_to_json(kind.lift),
            "logp_hint": kind.hint,
            "logp_shuffled": kind.shuffled,
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
    min_lift: float,
    seed: int,
    unmeasured: Literal["keep", "drop"] = "drop",
    neutral: Mapping[str, tuple[int, ...]] | None = None,
    num_donors: int = NUM_DONORS,
    layout: Literal["tree", "rows"] = "rows",
    device: Any = "cpu",
) -> Audit:
    """Measure every hint view of the examples on `model`, the teacher.

    `neutral` are the inserted ids of a neutral text by the view's site id. In the layout "tree" the
    context of a site is computed once; a model for which that is not exact gets rows. Raises
    DataError if the examples hold no hint view.
    """
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
    usable = [
        (context, [contexts[donor] for donor in donors])
        for context, donors in zip(contexts, donors_of, strict=True)
        if donors
    ]
    relation_counts = Counter(
        name
        for context, donors in usable
        for name in {name for donor in donors for name in _donor_relations(context, donor)}
    )
    layout = "rows" if layout == "tree" and why_not_tree(model) else layout
    with scoring(model):
        sites = [
            _score_site(
                model,
                context,
                donors=donors,
                neutral_ids=(neutral or {}).get(context.view.site_id, ()),
                options={
                    "pad_id": pad_id,
                    "max_tokens": max_tokens,
                    "layout": layout,
                    "device": device,
                },
            )
            for context, donors in usable
        ]
    # a view may hold the hints of several failing calls, and then counts for each of their kinds
    kinds_of_site = {context.view.site_id: context.view.kinds for context, _ in usable}
    kinds = sorted({kind for view_kinds in kinds_of_site.values() for kind in view_kinds})
    groups = [(kind, [s for s in sites if kind in kinds_of_site[s.site_id]]) for kind in kinds] + (
        [(ALL, sites)] if sites else []
    )
    return Audit(
        sites=tuple(sites),
        kinds=tuple(
            _kind_lift(
                kind, group, min_lift=min_lift, keeps_unmeasured=unmeasured == "keep", seed=seed
            )
            for kind, group in groups
        ),
        donors={
            "sites": len(usable),
            "same_kind": relation_counts["same_kind"],
            "same_session": relation_counts["same_session"],
            "fewer": sum(len(donors) < num_donors for _, donors in usable),
        },
        skipped={"no_donor": len(contexts) - len(usable)},
        min_lift=min_lift,
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
    """Score one message without a hint, below its own, below its donors' and below neutral text."""
    example, view = context.example, context.view
    inserted = [(), view.hint_ids, *(donor.view.hint_ids for donor in donors)]
    inserted += [neutral_ids] if neutral_ids else []
    rows = [trial_row(example, view, ids) for ids in inserted]
    logps = score_states(model, rows, row_states(model, rows, **options))
    messages = [float(logp_N[: len(view.target_ids)].mean()) for logp_N in logps]
    odds = [log_odds(logp_N[len(view.target_ids) :], view.decisions) for logp_N in logps]
    num_donors = len(donors)
    kind_of = dict(((view.site_id, view.kind), *view.others))
    decisions = tuple(
        SiteDecision(
            site_id=decision.site_id,
            kind=kind_of[decision.site_id],
            session_id=example.session_id,
            none=none,
            hint=hint,
            shuffled=sum(others[:num_donors]) / num_donors,
            neutral=others[num_donors] if neutral_ids else None,
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
        shuffled=sum(messages[2 : 2 + num_donors]) / num_donors,
        others=view.others,
        decisions=decisions,
    )


def _kind_lift(
    kind: str,
    sites: Sequence[SiteLift],
    *,
    min_lift: float,
    keeps_unmeasured: bool,
    seed: int,
) -> KindLift:
    decisions = [d for site in sites for d in site.decisions if kind in (ALL, d.kind)]
    decision = _decision_lift(kind, decisions, min_lift=min_lift, seed=seed) if decisions else None
    hint, shuffled, none = (
        sum(getattr(s, name) for s in sites) / len(sites) for name in ("hint", "shuffled", "none")
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
        keeps=keeps_unmeasured if decision is None else decision.lift.excludes_up_to(min_lift),
        hint=hint,
        shuffled=shuffled,
        none=none,
    )


def _decision_lift(
    kind: str, decisions: Sequence[SiteDecision], *, min_lift: float, seed: int
) -> DecisionLift:
    lifts = [d.lift for d in decisions]
    neutral = [d.hint - d.neutral for d in decisions if d.neutral is not None]
    return DecisionLift(
        lift=_mean_lift(f"decision:{kind}", decisions, seed=seed),
        over_neutral=sum(neutral) / len(neutral) if neutral else None,
        over_none=sum(d.hint - d.none for d in decisions) / len(decisions),
        needed=values_needed(lifts, above=min_lift),
    )


def _mean_lift(
    name: str, measured: Sequence[SiteLift] | Sequence[SiteDecision], *, seed: int
) -> Interval:
    return bootstrap_mean(
        [m.lift for m in measured],
        [m.session_id for m in measured],
        seed=stage_seed(seed, name),
    )
