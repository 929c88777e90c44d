"""The list of sites that `recompose show site` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from composer_replication.cli.job import Job
from composer_replication.core.site import Site
from composer_replication.report.html import plural
from composer_replication.report.kind_titles import category_title, kind_title


def list_sites(job: Job, sites: Sequence[Site], *, hinted: Container[str]) -> int:
    """List the mistakes, as many as the audit counts, and say what the other sites are; --verbose
    lists all. `hinted` are the ids of the sites that have a hint."""
    rows = [
        {
            "ordinal": i,
            "name": s.name,
            "id": s.id,
            "kind": s.kind,
            "category": s.category,
            "tool": s.tool,
            "hint": s.id in hinted,
        }
        for i, s in enumerate(sites, 1)
    ]
    others = Counter(category_title(site.category) for site in sites if not site.is_target)
    columns = ("kind", "category", "hint", "id") if job.screen.verbose else ("kind", "hint", "id")
    shown = [
        (
            site.name,
            kind_title(site.kind, site.tool),
            *(("no", "yes")[row[name]] if name == "hint" else row[name] for name in columns),
        )
        for row, site in zip(rows, sites, strict=True)
        if job.screen.verbose or site.is_target
    ]
    job.screen.table(shown, head=("", "what went wrong", *columns))
    mistakes = plural(len(sites) - others.total(), "mistake")
    job.screen.line(f"\n {mistakes} of the agent: these are what `recompose audit` counts.")
    if others:
        what = ", ".join(f"{title} {count}" for title, count in others.most_common())
        listed = "they are listed too" if job.screen.verbose else "-v lists them too"
        number = plural(others.total(), "other message")
        job.screen.line(f" {number} not counted as mistakes ({what}): {listed}.", style="dim")
    job.screen.result({"sites": rows})
    return 0
