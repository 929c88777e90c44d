"""Does a hint change the teacher? Measured before training: hints of a kind that fails the audit
are not trained on (cli/hint_gate.py).

    audit = audit_hints(model, examples, pad_id=0, max_tokens=8192, min_lift=0.0, seed=7)
    audit.kinds[0] -> KindLift(kind="bad_args", lift=Interval(n=31, ...), keeps=True, ...)

The mistaken message T of every site is scored three times: below its own hint, below another site's
hint in the same place, and without a hint. lift = mean log p(T | shuffled hint) - mean log p(T
| hint), in nats per token: how much less likely the right hint makes the mistake than an unrelated
hint does. Means are over the tokens of a site, then over sites; intervals are over sessions.

The shuffle is a permutation of the hints among the sites in which no site keeps its own text.
Within that, donors of another kind and of another session are preferred (a hint of the same kind
often says the same thing); `donors` counts the sites for which that was not possible. A site is
skipped and counted if only the same text, or a hint written for another rendering, is left for it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import DataError
from composer_replication.evaluation.stats import Interval, bootstrap_mean
from composer_replication.losses.fused import fused_logprobs
from composer_replication.models.forward import head_of, scoring, sliced_predictors
from composer_replication.tokens.batch import Rows, Targets, collate, micro_batches
from composer_replication.tokens.example import HintView, TrainingExample
from composer_replication.tokens.hint_donors import shuffled_views


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLift:
    """One site: mean log p of its mistaken tokens under the three contexts, in nats per token."""

    site_id: str
    kind: str
    session_id: str
    num_tokens: int
    hint: float
    shuffled: float
    none: float

    @property
    def lift(self) -> float:
        """How much less likely the right hint makes the mistake than another site's hint."""
        return self.shuffled - self.hint


@dataclass(frozen=True, slots=True, kw_only=True)
class KindLift:
    """All sites of one kind (kind "all": every site).

    `keeps` is true if the lower bound of the interval is above the threshold.
    """

    kind: str
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
        kinds = [
            {
                "kind": k.kind,
                "n": k.lift.n,
                "sessions": k.lift.clusters,
                "lift": k.lift.mean,
                "low": k.lift.low,
                "high": k.lift.high,
                "keeps": k.keeps,
                "logp_hint": k.hint,
                "logp_shuffled": k.shuffled,
                "logp_none": k.none,
            }
            for k in self.kinds
        ]
        sites = [{**dataclasses.asdict(site), "lift": site.lift} for site in self.sites]
        return {
            "min_lift": self.min_lift,
            "kinds": kinds,
            "donors": dict(self.donors),
            "skipped": dict(self.skipped),
            "sites": sites,
        }


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
    device: Any = "cpu",
) -> Audit:
    """Measure every hint view of the examples on `model`, the teacher.

    Raises DataError if the examples hold no hint view.
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
    donors = shuffled_views(
        [p.view for p in contexts],
        [p.example.session_id for p in contexts],
        seed=stage_seed(seed, "hint_lift"),
    )
    usable = [
        (context, contexts[donor])
        for context, donor in zip(contexts, donors, strict=True)
        if donor is not None
    ]
    relation_counts = Counter(
        name for context, donor in usable for name in _donor_relations(context, donor)
    )
    sites = _score_sites(model, usable, pad_id=pad_id, max_tokens=max_tokens, device=device)
    # a view may hold the hints of several failing calls, and then counts for each of their kinds
    kinds_of_site = {context.view.site_id: context.view.kinds for context, _ in usable}
    kinds = sorted({kind for view_kinds in kinds_of_site.values() for kind in view_kinds})
    groups = [(kind, [s for s in sites if kind in kinds_of_site[s.site_id]]) for kind in kinds] + (
        [("all", sites)] if sites else []
    )
    return Audit(
        sites=tuple(sites),
        kinds=tuple(
            _kind_lift(kind, group, min_lift=min_lift, seed=seed) for kind, group in groups
        ),
        donors={
            "sites": len(usable),
            "same_kind": relation_counts["same_kind"],
            "same_session": relation_counts["same_session"],
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


def _score_sites(
    model: Any,
    usable: Sequence[tuple[_SiteInContext, _SiteInContext]],
    *,
    pad_id: int,
    max_tokens: int,
    device: Any,
) -> list[SiteLift]:
    """Score three rows per site: without a hint, below its own hint, below the donor's hint."""
    trials = {}
    for context, donor in usable:
        view = context.view
        views = (view, dataclasses.replace(view, hint_ids=donor.view.hint_ids))
        trials[view.site_id] = TrainingExample(
            id=view.site_id,
            session_id=context.example.session_id,
            ids=context.example.student_ids(view),
            hints=views,
        )
    longest = max((len(e.teacher_ids(v)) for e in trials.values() for v in e.hints), default=0)
    limit, means_of_site = max(max_tokens, longest), {}
    with scoring(model):
        for trial_part, _ in micro_batches(list(trials.values()), micro_tokens=limit):
            batch = collate(trial_part, pad_id=pad_id).to(device)
            without = _mean_logprobs(model, batch.student, batch.hint_student, limit)
            below = _mean_logprobs(model, batch.teacher, batch.hint_teacher, limit)
            for k, trial in enumerate(trial_part):
                means_of_site[trial.id] = (below[2 * k], below[2 * k + 1], without[2 * k])
    return [
        SiteLift(
            site_id=context.view.site_id,
            kind=context.view.kind,
            session_id=context.example.session_id,
            num_tokens=len(context.view.target_ids),
            hint=means_of_site[context.view.site_id][0],
            shuffled=means_of_site[context.view.site_id][1],
            none=means_of_site[context.view.site_id][2],
        )
        for context, _ in usable
    ]


def _mean_logprobs(model: Any, rows: Rows, targets: Targets, max_tokens: int) -> list[float]:
    """The mean log-prob of each item's tokens."""
    hidden_ND = sliced_predictors(
        model,
        rows.ids_BT,
        rows.lengths_B,
        row_N=targets.row_N,
        position_N=targets.position_N,
        max_tokens=max_tokens,
    )
    logp_N = fused_logprobs(hidden_ND, head_of(model), targets.ids_N)
    total = torch.zeros(targets.num_items, dtype=logp_N.dtype, device=logp_N.device).index_add(
        0, targets.item_N, logp_N
    )
    return (total / torch.bincount(targets.item_N, minlength=targets.num_items)).tolist()


def _kind_lift(kind: str, sites: Sequence[SiteLift], *, min_lift: float, seed: int) -> KindLift:
    lift = bootstrap_mean(
        [s.lift for s in sites],
        [s.session_id for s in sites],
        seed=stage_seed(seed, f"lift:{kind}"),
    )
    hint, shuffled, none = (
        sum(getattr(s, name) for s in sites) / len(sites) for name in ("hint", "shuffled", "none")
    )
    return KindLift(
        kind=kind,
        lift=lift,
        keeps=lift.excludes_up_to(min_lift),
        hint=hint,
        shuffled=shuffled,
        none=none,
    )
