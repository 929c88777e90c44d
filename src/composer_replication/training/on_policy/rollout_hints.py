"""The mistakes of rollouts and the hints for them: found, written, drawn and counted in the same
way, whichever sampler wrote the rollouts.

    hinted = hint_rollouts(sessions, sites=config.sites, hints=config.hints, kept_kinds=None)
    messages = hinted.messages(hinted.hints)  # one view per message, however many calls failed
    chosen = draw_messages([hints[0].site_id for hints in messages], limit=16, seed_of=seed_of)

on_policy/live.py and training/backends/trl_rollouts.py build the views, each on its own token ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Session
from composer_replication.data.hints.write import write_hints
from composer_replication.data.sites.find_sites import find_sites
from composer_replication.tokens.example import HintView


@dataclass(frozen=True, slots=True, kw_only=True)
class HintedRollouts:
    """All sites of some sessions by id, in order, the hints of the kinds that the audit kept, and
    `sites/...` metrics of the mistakes without a hint."""

    sites: Mapping[str, Site]
    hints: tuple[Hint, ...]
    metrics: Mapping[str, int]

    def messages(self, hints: Iterable[Hint]) -> list[list[Hint]]:
        """The hints grouped by the message that they stand above: one message is one view
        (tokens/dataset.py), so its hints are drawn and placed together."""
        by_message: dict[tuple[str, int], list[Hint]] = {}
        for hint in hints:
            site = self.sites[hint.site_id]
            by_message.setdefault((site.session_id, site.turn), []).append(hint)
        return list(by_message.values())


def hint_rollouts(
    sessions: Sequence[Session],
    *,
    sites: SitesSettings,
    hints: HintsSettings | None,
    kept_kinds: frozenset[str] | None,
) -> HintedRollouts:
    """Find the sites of sessions and write the hints of their mistakes; with `hints` None, mistakes
    are only counted. `kept_kinds` are the kinds of hints that an audit kept, None = all; of these,
    hints.unmeasured decides about the hints that no audit can measure."""
    sites_of = [(session, find_sites(session, settings=sites)) for session in sessions]
    by_id = {site.id: site for _, session_sites in sites_of for site in session_sites}
    num_targets = sum(site.is_target for _, session_sites in sites_of for site in session_sites)
    if hints is None:
        return HintedRollouts(sites=by_id, hints=(), metrics={"sites/found": num_targets})
    counts = Counter({"sites/without_hint": 0, "sites/refused": 0, "sites/weak": 0})
    strong: list[Hint] = []
    for session, session_sites in sites_of:
        if not session_sites:
            continue
        report = write_hints(session, session_sites, settings=hints)
        kept_hints = [
            hint
            for hint in report.hints
            if kept_kinds is None
            or (hint.kind in kept_kinds and (hints.unmeasured == "keep" or hint.is_measurable))
        ]
        counts["sites/without_hint"] += sum(report.without.values())
        counts["sites/refused"] += len(report.refused)
        counts["sites/weak"] += len(report.hints) - len(kept_hints)
        strong += kept_hints
    return HintedRollouts(
        sites=by_id, hints=tuple(strong), metrics={"sites/found": num_targets, **counts}
    )


def draw_messages(
    site_ids: Sequence[str], *, limit: int | None, seed_of: Callable[[str], int]
) -> frozenset[str]:
    """At most `limit` of these messages, each named by its first site; None = all of them.

    Each message has its own random sort key, so leaving one out does not change which others are
    drawn.

    >>> seeds = {"a": 3, "b": 1, "c": 2}
    >>> sorted(draw_messages(["a", "b", "c"], limit=2, seed_of=seeds.__getitem__))
    ['b', 'c']
    """
    return frozenset(sorted(site_ids, key=seed_of)[:limit])


def view_metrics(views: Sequence[HintView]) -> dict[str, int]:
    """The number of sites and of messages that are trained on: the hints of several calls of one
    message are one view."""
    return {
        "sites/used": sum(len(view.site_ids) for view in views),
        "sites/messages": len(views),
    }
