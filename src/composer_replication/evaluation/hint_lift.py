"""The audit of hints (`recompose hints --audit`): does a hint change what the teacher predicts?

Run on the untrained model, between `build` and `train`: kinds of hints that do not move the teacher
are left out of training (cli/hint_gate.py).

    audit = audit_hints(model, examples, pad_id=0, max_tokens=8192, seed=7)
    audit.kinds[0]  # KindLift(kind="edit_not_read", decision=DecisionLift(...), unmeasured=0, ...)

Any text above a message changes its log-probs, so a hint is compared with other texts in its place.
Each mistaken message is scored

- without a hint;
- below its own hint;
- below its baseline texts: the hints of up to `num_donors` other sites (donors) and, if its ids are
  given, a neutral text of the same length. The baseline is the mean over these, each counting once.

A hint that gives the same advice (it shares a right token at the decision) is no donor: if most
hints say "call Read", a good hint would have no lift over them. Donors of another kind and another
session are preferred; `Audit.donors` counts the sites for which there was none. A site without any
baseline text is skipped and counted.

Two lifts of the own hint over the baseline:

    decision lift   at the token that decides, the log-odds of right against wrong: own hint -
                    baseline, in nats (evaluation/decision_lift.py). The gate reads this one
    message lift    mean log p(T | baseline texts) - mean log p(T | own hint), in nats per token of
                    the message T: how much less likely the own hint makes the whole message

Means are over sites: a message with several failed calls counts once in the message lift, and once
per known decision in the decision lift. Intervals are bootstrapped over sessions. A kind is "not
measurable" if no site of it has a known right answer. The audit only measures;
evaluation/audit_verdict.py decides which kinds are kept.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
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
    """One message: the mean log-prob of its tokens, in nats per token, below its own `hint`, below
    the `baseline` texts (their mean), and with `none` inserted.

    `others` are (site id, kind) of further failed calls of the message whose hints are in the view.
    """

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
        """The message lift; positive if the own hint makes the mistaken message less likely."""
        return self.baseline - self.hint


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLift:
    """The mean decision lift of a kind's sites, in nats of log-odds: over the baseline (`lift`),
    over neutral text alone (None: not measured), and over no hint."""

    lift: Interval
    over_neutral: float | None
    over_none: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLift:
    """The sites of one kind; kind "all" has every site.

    `unmeasured` counts sites without a known right answer; if that is all of them, `decision` is
    None. `lift` is the message lift, `hint`, `baseline` and `none` are means of `SiteLift`'s.
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
    """The measured sites and kinds. `donors` counts sites by what their donors have in common with
    them; `skipped` counts sites without a baseline text."""

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
    """A hint view (one mistaken message with its hint) and the example that holds it."""

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

    `neutral` maps a view's site id to the ids of its neutral text. Layout "tree" runs the context
    that all rows of a site share through the model once; a model for which that is not exact gets
    "rows". `on_site(done, total)` reports progress, in messages. Raises DataError if the examples
    hold no hint view.
    """
    contexts = _sites_in_context(examples)
    if not contexts:
        raise DataError(
            "no hint view among the examples",
            fix="run `recompose hints` and `recompose build` first",
        )
    donors_of = several_donors(
        [context.view for context in contexts],
        [context.example.session_id for context in contexts],
        seed=stage_seed(seed, "hint_lift"),
        count=num_donors,
    )
    neutral = neutral or {}
    usable = [
        (context, [contexts[donor] for donor in donors])
        for context, donors in zip(contexts, donors_of, strict=True)
        if donors or neutral.get(context.view.site_id)
    ]
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
    # a view that holds the hints of several failed calls counts for each of their kinds
    sites_of_kind: dict[str, list[SiteLift]] = defaultdict(list)
    for site, (context, _) in zip(sites, usable, strict=True):
        for kind in context.view.kinds:
            sites_of_kind[kind].append(site)
    groups = sorted(sites_of_kind.items()) + ([(ALL, sites)] if sites else [])
    return Audit(
        sites=tuple(sites),
        kinds=tuple(_kind_lift(kind, group, seed=seed) for kind, group in groups),
        donors=_donor_counts(usable, num_donors=num_donors),
        skipped={"no_donor": len(contexts) - len(usable)},
    )


def _sites_in_context(examples: Sequence[TrainingExample]) -> list[_SiteInContext]:
    """The hint views of the examples, in order; of several views of one site the first."""
    by_site: dict[str, _SiteInContext] = {}
    for example in examples:
        for view in example.hints:
            by_site.setdefault(view.site_id, _SiteInContext(example, view))
    return list(by_site.values())


def _donor_counts(
    usable: Sequence[tuple[_SiteInContext, Sequence[_SiteInContext]]], *, num_donors: int
) -> dict[str, int]:
    """How many sites have at least one donor of their own kind or session, too few donors, or
    none."""
    return {
        "sites": len(usable),
        "same_kind": sum(
            any(donor.view.kind == context.view.kind for donor in donors)
            for context, donors in usable
        ),
        "same_session": sum(
            any(donor.example.session_id == context.example.session_id for donor in donors)
            for context, donors in usable
        ),
        "fewer": sum(len(donors) < num_donors for _, donors in usable),
        "neutral_only": sum(not donors for _, donors in usable),
    }


def _score_site(
    model: Any,
    context: _SiteInContext,
    *,
    donors: Sequence[_SiteInContext],
    neutral_ids: tuple[int, ...],
    options: Mapping[str, Any],
) -> SiteLift:
    """Score one message in all its contexts, one row each."""
    example, view = context.example, context.view
    # The order of rows: no hint, the own hint, then the baseline texts with the neutral one last.
    inserted = [(), view.hint_ids, *(donor.view.hint_ids for donor in donors)]
    inserted += [neutral_ids] if neutral_ids else []
    rows = [trial_row(example, view, ids) for ids in inserted]
    # per row: the log-probs of the message's tokens, then those that its decisions compare
    logps = score_states(model, rows, row_states(model, rows, **options))
    num_target = len(view.target_ids)
    none, hint, *baseline = [float(logp_N[:num_target].mean()) for logp_N in logps]
    odds_by_row = [log_odds(logp_N[num_target:], view.decisions) for logp_N in logps]
    # without a fork there is no token at which right and wrong differ, so no log-odds
    forked = [decision for decision in view.decisions if decision.fork is not None]
    kind_of = dict(((view.site_id, view.kind), *view.others))
    decisions: list[SiteDecision] = []
    for number, decision in enumerate(forked):
        none_odds, hint_odds, *baseline_odds = [odds[number] for odds in odds_by_row]
        decisions.append(
            SiteDecision(
                site_id=decision.site_id,
                kind=kind_of[decision.site_id],
                session_id=example.session_id,
                none=none_odds,
                hint=hint_odds,
                baseline=sum(baseline_odds) / len(baseline_odds),
                neutral=baseline_odds[-1] if neutral_ids else None,
            )
        )
    return SiteLift(
        site_id=view.site_id,
        kind=view.kind,
        session_id=example.session_id,
        num_tokens=num_target,
        none=none,
        hint=hint,
        baseline=sum(baseline) / len(baseline),
        others=view.others,
        decisions=tuple(decisions),
    )


def _kind_lift(kind: str, sites: Sequence[SiteLift], *, seed: int) -> KindLift:
    """The means and intervals over the sites of one kind, or of all."""
    decisions = [d for site in sites for d in site.decisions if kind in (ALL, d.kind)]
    decision = _decision_lift(kind, decisions, seed=seed) if decisions else None
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
        hint=sum(site.hint for site in sites) / len(sites),
        baseline=sum(site.baseline for site in sites) / len(sites),
        none=sum(site.none for site in sites) / len(sites),
    )


def _decision_lift(kind: str, decisions: Sequence[SiteDecision], *, seed: int) -> DecisionLift:
    over_neutral = [d.hint - d.neutral for d in decisions if d.neutral is not None]
    return DecisionLift(
        lift=_mean_lift(f"decision:{kind}", decisions, seed=seed),
        over_neutral=sum(over_neutral) / len(over_neutral) if over_neutral else None,
        over_none=sum(d.hint - d.none for d in decisions) / len(decisions),
    )


def _mean_lift(
    name: str, measured: Sequence[SiteLift] | Sequence[SiteDecision], *, seed: int
) -> Interval:
    """The mean lift with its interval over sessions: sites of one session are not independent."""
    return bootstrap_mean(
        [m.lift for m in measured],
        [m.session_id for m in measured],
        seed=stage_seed(seed, name),
    )
