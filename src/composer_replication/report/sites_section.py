"""The list of sites of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.heat import legend
from composer_replication.report.html import Child, Html, el, join
from composer_replication.report.kind_titles import category_title, kind_title
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.packed_list import (
    LASTING,
    ListShape,
    Row,
    list_link,
    packed_list,
)
from composer_replication.report.site_article import lasting_name, site_article, site_name
from composer_replication.report.views import APART

MESSAGES = "The messages, one by one"
"""The title of the list of sites; newcomers do not know that word."""
SORTS = (
    ("", "each kind in turn"),
    ("log", "in the order of the logs"),
    ("kind", "by kind"),
    ("day", "newest first"),
    ("tokens", "costliest first"),
)


def sites_shape(folder_flags: str) -> ListShape:
    """The list of sites; `folder_flags` complete the command that shows one."""
    return ListShape(
        name="sites",
        nouns="entries",
        facets=("kind", "tool", "repository", "model", "split", "category"),
        more=("day", "tokens", LASTING),
        sorts=SORTS,
        titles={"kind": kind_title, "category": category_title},
        elsewhere=f"recompose show site {{}}{folder_flags}",
    )


def site_link(text: Child, **filters: str) -> Html:
    """A link to the list of sites, filtered.

    >>> site_link("9 sites", kind="edit_no_match")
    '<a href="#sites?kind=edit_no_match">9 sites</a>'
    """
    return list_link(text, "sites", **filters)


def sites_section(
    views: Sequence[Mapping[str, Any]],
    *,
    probe: Mapping[str, Any] | None,
    limits: PageLimits,
    folder_flags: str,
    rollouts: int = 0,
) -> Html:
    """The list of sites with its controls; the first `rollouts` of `views` are from the student's
    rollouts.

    `probe` are the token tables of `run_report.probe_tables`; `folder_flags` complete the
    `recompose show` command.
    """
    tables: Mapping[str, Any] = probe["sites"] if probe else {}

    def article(view: Mapping[str, Any], bounds: PageLimits) -> Html:
        tokens = tables.get(view["site"]["id"])
        return site_article(
            view, tokens=tokens, probe=probe, limits=bounds, folder_flags=folder_flags
        )

    lead = (
        f"First the {rollouts} probed messages of the student's rollouts (w), then the imported"
        " ones (s)."
        if rollouts
        else ""
    )
    coloured = probe and any(view["site"]["id"] in tables for view in views)
    return join(
        el("p", lead) if lead else None,
        legend(probe) if probe and coloured else None,
        packed_list(sites_shape(folder_flags), views, row=_row, article=article, limits=limits),
    )


def _row(view: Mapping[str, Any]) -> Row:
    site = view["site"]
    tool = str(site.get("tool") or "")
    return {
        "name": site_name(view),
        "kind": site["kind"],
        "tool": tool,
        "repository": site.get("repository") or "",
        "model": site.get("author") or "",
        "split": view.get("split", ""),
        "category": site["category"] if view["message"]["place"] == APART else "mistake",
        "day": view.get("day", ""),
        "tokens": view.get("tokens", 0),
        LASTING: lasting_name(view),
        "title": kind_title(site["kind"], cut_end(tool, 40)),
        "text": str(site.get("detail") or "").replace("\n", " ")[:140],
    }
