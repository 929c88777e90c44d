"""Counts the mistakes of an episode with the detectors that find sites in logs.

    mistakes_of(session, targeted=("unknown_tool",))
    -> Mistakes(targeted=1, other=2, kinds={"unknown_tool": 1, "file_missing": 2})

A mistake is a site of category "mistake": failed checks, rejections and errors of the environment
do not count. A call that cannot be parsed has the kind "malformed_call".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.trace import Session
from composer_replication.data.sites.find_sites import find_sites


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """The number of mistakes in one episode: of the kinds that hints target, of others, by kind."""

    targeted: int
    other: int
    kinds: Mapping[str, int]


def mistakes_of(session: Session, *, targeted: Collection[str]) -> Mistakes:
    """Count the mistakes of a session; `targeted` are the kinds that hints were written for."""
    sites = (
        site for site in find_sites(session, settings=SitesSettings()) if site.category == "mistake"
    )
    kinds = Counter(site.kind for site in sites)
    num_targeted = sum(count for kind, count in kinds.items() if kind in targeted)
    return Mistakes(
        targeted=num_targeted,
        other=sum(kinds.values()) - num_targeted,
        kinds=dict(sorted(kinds.items())),
    )
