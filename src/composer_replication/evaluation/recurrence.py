"""Do the mistakes come back? Counted in sessions by the same detectors that found them in the logs.

    mistakes_of(session, targeted=("unknown_tool",))
    -> Mistakes(targeted=1, other=2, kinds={"unknown_tool": 1, "file_missing": 2})

A mistake is a site of category "mistake": failed checks, rejections and what is the world's fault
are none. A call that could not be parsed is a kind of its own, "malformed_call", and no hint about
names speaks of it.
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
    """The mistakes of one episode: those of the kinds that hints target, all others, and how many
    of each kind."""

    targeted: int
    other: int
    kinds: Mapping[str, int]


def mistakes_of(session: Session, *, targeted: Collection[str]) -> Mistakes:
    """Count the mistakes of a session; `targeted` are the kinds that hints spoke about."""
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
