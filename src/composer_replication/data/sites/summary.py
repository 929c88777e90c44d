"""Counts over sites, for reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from composer_replication.core.site import Site

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesSummary:
    """Counts of sites by several criteria; each table is sorted by count, then by name.

    `num_recoveries` of the `num_mistakes` are turns after an error (sites.site = "recovery"), not
    mistaken messages. `kinds` are the kinds of the mistakes, `apart` those of all other sites, as
    "category/kind". Example: SitesSummary(num_sites=3, num_mistakes=2, num_recoveries=0,
    kinds={"file_missing": 2}, apart={"failed_check/test_failed": 1}, ...)
    """

    num_sites: int
    num_mistakes: int
    num_recoveries: int
    num_flagged: int
    num_sessions: int
    categories: dict[str, int]
    kinds: dict[str, int]
    apart: dict[str, int]
    tools: dict[str, int]
    repositories: dict[str, int]
    authors: dict[str, int]
    detectors: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the counts as a plain dictionary."""
        return asdict(self)


def summarise(sites: Iterable[Site]) -> SitesSummary:
    """Count sites by category, kind, tool, repository, author and detector; tools, repositories and
    authors are counted for mistakes only."""
    rows = list(sites)
    wrong = [s for s in rows if s.is_target]
    return SitesSummary(
        num_sites=len(rows),
        num_mistakes=len(wrong),
        num_recoveries=sum(s.category == "recovery" for s in wrong),
        num_flagged=sum(s.flagged for s in rows),
        num_sessions=len({s.session_id for s in wrong}),
        categories=_counts(s.category for s in rows),
        kinds=_counts(s.kind for s in wrong),
        apart=_counts(f"{s.category}/{s.kind}" for s in rows if not s.is_target),
        tools=_counts(s.tool or UNKNOWN for s in wrong),
        repositories=_counts(s.repository or UNKNOWN for s in wrong),
        authors=_counts(s.author or UNKNOWN for s in wrong),
        detectors=_counts(s.detector for s in rows),
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))
