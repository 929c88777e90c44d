"""The probed sites of a live run: mistakes in its rollouts, with the hint if the run kept it.

A run of an older version has no `tokens/watched/`, so it kept neither sessions nor hints of these
sites. Their sessions are then looked up in `samples/`, and the view says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from composer_replication.core.codec import read_hints, read_sessions, read_sites
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import read_lines
from composer_replication.core.rundir import RunDir
from composer_replication.core.site import Hint, Site
from composer_replication.report.views import MISTAKE, site_view

BEFORE, AFTER = 6, 2
BARE = "(this run did not keep the session; its tokens are shown below)"
NOT_KEPT = "(this run did not keep the text of its hints)"


def rollout_sites(run: RunDir, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The views (`views.site_view`) of those `ids` that were probed in rollouts: w001, w002, ...

    A site whose session was not kept has no turns and a placeholder message; its text is in the
    tokens of the table.
    """
    watched = _sites_from_probe_ids(run.watched_jsonl)
    sites = {site.id: site for site in _read_if_there(read_sites, run.watched_dir / "sites.jsonl")}
    hints = {
        hint.site_id: hint for hint in _read_if_there(read_hints, run.watched_dir / "hints.jsonl")
    }
    files = [run.watched_dir / "sessions.jsonl", *(path for _, path in run.samples())]
    needed = {site.session_id for site in watched.values()}
    kept_sessions = chain.from_iterable(read_sessions(path) for path in files if path.exists())
    sessions = (
        {session.id: session for session in kept_sessions if session.id in needed} if needed else {}
    )
    views: list[dict[str, Any]] = []
    for number, name in enumerate((name for name in ids if name in watched), start=1):
        site = sites.get(name, watched[name])
        session, hint = sessions.get(site.session_id), hints.get(name) or _unknown_hint(site)
        if session is None or site.turn >= len(session.turns):
            view = _tokens_only_view(site, hint, number=number)
        else:
            view = site_view(session, site, hint, number=number, before=BEFORE, after=AFTER)
        views.append({**view, "name": f"w{number:03d}"})
    return views


def _read_if_there(reader: Any, path: Path) -> list[Any]:
    return list(reader(path)) if path.exists() else []


def _sites_from_probe_ids(path: Path) -> dict[str, Site]:
    """The sites of watched.jsonl by id; session, turn and call are parsed from the id."""
    sites: dict[str, Site] = {}
    for number, row in read_lines(path) if path.exists() else ():
        try:
            for view in row["hints"]:
                name, session_id = str(view["site_id"]), str(row["session_id"])
                turn, _, call = name.removeprefix(f"{session_id}:").partition(":")
                sites[name] = Site(
                    session_id=session_id,
                    turn=int(turn),
                    call_id=None if call == "-" else call,
                    kind=view["kind"],
                    detector="",
                    evidence=(),
                )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"not a watched example: {error!r}", where=f"{path}:{number}", fix="train again"
            ) from error
    return sites


def _unknown_hint(site: Site) -> Hint:
    return Hint(site_id=site.id, text=NOT_KEPT, writer="", kind=site.kind)


def _tokens_only_view(site: Site, hint: Hint, *, number: int) -> dict[str, Any]:
    """The view of a site whose session was not kept."""
    about = {"id": site.id, "kind": site.kind, "category": site.category, "detector": ""}
    message = {
        "turn": site.turn,
        "role": "assistant",
        "author": None,
        "tag": None,
        "place": MISTAKE,
        "blocks": [{"type": "text", "text": BARE}],
    }
    around = {"left_out_before": site.turn, "before": [], "after": [], "left_out_after": 0}
    return {
        "ordinal": number,
        "site": about,
        "session": site.session_id,
        "hint": hint.text,
        "message": message,
        **around,
    }
