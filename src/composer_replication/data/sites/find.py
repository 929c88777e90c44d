"""Sites of a session: every built-in detector by name, functions of your own by import path, one site a call.

sites = find_sites(session, settings=SitesSettings())
[s.kind for s in sites if s.category == "mistake"] -> ["file_missing", "edit_no_match"]
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence

from composer_replication.core.config.data import SitesSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.site import Category, Site
from composer_replication.core.trace import Session
from composer_replication.data.sites.by_path import load_function
from composer_replication.data.sites.detectors import Detector, failed_check, hidden_error, repeated_call, tool_error

DETECTORS: dict[str, Detector] = {
    "tool_error": tool_error,
    "repeated_call": repeated_call,
    "hidden_error": hidden_error,
    "failed_check": failed_check,
}
RECOVERY_WARNING = (
    'sites.site = "recovery" trains the turn after an error, not the mistaken one: its context already holds the error, and the'
    " mistake itself gets no gradient"
)


def find_sites(session: Session, *, settings: SitesSettings) -> list[Site]:
    """The sites of a session in order of turn and call; where several detectors name one call, a mistake wins, then the earlier detector.

    Raises ConfigError for a detector that does not exist, SiteError for one that names evidence before the mistake.
    """
    found: dict[tuple[int, str | None], Site] = {}
    for name in settings.detectors:
        detect = DETECTORS.get(name) or load_function(name, setting="sites.detectors")
        for site in detect(session):
            if not isinstance(site, Site):
                raise ConfigError(f"detector {name!r} yields {type(site).__name__}, not Site", where="[sites.detectors]")
            key = (site.turn, site.call_id)
            if site.turn < session.copied or (key in found and not _outranks(site, found[key])):
                continue
            found[key] = site
    if settings.error_kind:
        found = {
            key: _renamed(session, site, load_function(settings.error_kind, setting="sites.error_kind")) for key, site in found.items()
        }
    sites = _in_order(session, found.values())
    return sites if settings.site == "cause" else recovery_sites(session, sites)


def _outranks(new: Site, old: Site) -> bool:
    return new.category == "mistake" and old.category != "mistake"


def _in_order(session: Session, sites: Iterable[Site]) -> list[Site]:
    position = {c.id: i for turn in session.turns for i, c in enumerate(turn.calls)}
    return sorted(sites, key=lambda s: (s.turn, position.get(s.call_id or "", -1), s.kind))


def _renamed(session: Session, site: Site, name: Callable[..., object]) -> Site:
    """A site with the kind that the user's function gives its result; "" or None keeps the built-in kind.

    Only the kind changes: a function that names kinds cannot turn a rejection into a mistake.
    """
    ref = session.calls().get(site.call_id or "")
    if site.detector != "tool_error" or ref is None or ref.result is None:
        return site
    kind = name(ref.result.text, tool=site.tool)
    if kind is not None and not isinstance(kind, str):
        raise ConfigError(f"the function returned {type(kind).__name__}, not a name", where="[sites.error_kind]")
    return dataclasses.replace(site, kind=kind) if kind else site


def recovery_sites(session: Session, sites: Sequence[Site]) -> list[Site]:
    """The assistant turn after each mistake's evidence, as the earlier framework trained it; everything else is left as it is.

    Warns: this is another method than the published one. A mistake without a later turn in view of its error has no recovery.
    """
    warnings.warn(RECOVERY_WARNING, UserWarning, stacklevel=3)
    recovery: Category = "recovery"
    kept: dict[tuple[int, str | None], Site] = {}
    for site in sites:
        if site.category != "mistake":
            kept.setdefault((site.turn, site.call_id), site)
            continue
        error = max(site.evidence)
        after = next((i for i, turn in session.assistant_turns() if i > error and error in session.context_indices(i)), None)
        if after is not None:
            author = session.turns[after].author
            kept.setdefault((after, None), dataclasses.replace(site, turn=after, call_id=None, category=recovery, author=author))
    return sorted(kept.values(), key=lambda s: (s.turn, s.call_id or "", s.kind))
