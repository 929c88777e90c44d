"""Find the sites of a session with the built-in detectors and the user's own, one site per call.

sites = find_sites(session, settings=SitesSettings())
[s.kind for s in sites if s.category == "mistake"] -> ["file_missing", "edit_no_match"]
"""

from __future__ import annotations

import dataclasses
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from types import MappingProxyType

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.site import Category, Site
from composer_replication.core.surroundings import without_keys
from composer_replication.core.trace import Session
from composer_replication.data.sites.blame import blame
from composer_replication.data.sites.by_path import load_function, users_code
from composer_replication.data.sites.corrections import corrections, unmatched_replies
from composer_replication.data.sites.detectors import (
    Detector,
    failed_check,
    find_repeated_calls,
    hidden_error,
    tool_error,
)
from composer_replication.data.sites.reader_verdicts import (
    Verdicts,
    sites_of_reader,
    with_verdict,
)
from composer_replication.data.sites.rejections import rejections
from composer_replication.data.sites.shell_rules import PATH_EXPLORED
from composer_replication.data.sites.taken_back import taken_back
from composer_replication.data.sites.waste import waste

DETECTORS: dict[str, Detector] = {
    "tool_error": tool_error,
    "repeated_call": find_repeated_calls,
    "hidden_error": hidden_error,
    "failed_check": failed_check,
}
SIGNALS: dict[str, Detector] = {
    "rejections": rejections,
    "corrections": corrections,
    "taken_back": taken_back,
    "blame": blame,
    "waste": waste,
}
NO_VERDICTS: Verdicts = MappingProxyType({})
_NO_FAULT: frozenset[Category] = frozenset(("environment", "benign"))
"""Failures of nobody; the second in a row of a call can still be waste."""
RECOVERY_WARNING = (
    'sites.site = "recovery" trains the turn after an error, not the mistaken one: its context'
    " already holds the error, and the mistake itself gets no gradient"
)


def find_sites(
    session: Session, *, settings: SitesSettings, verdicts: Verdicts = NO_VERDICTS
) -> list[Site]:
    """Find the sites of a session, in order of turn and call; if several detectors report one call,
    a mistake wins, then the earlier detector.

    `verdicts` are those of a reader model on the sites of `sites.signals`, if one is set.
    Raises ConfigError if a detector does not exist, or if a user's detector raises or returns sites
    that are not in the session.
    """
    by_call = _detected(session, settings)
    _add_signals(session, by_call, settings=settings, verdicts=verdicts)
    renamed = (
        _rename_kinds(session, by_call.values(), settings.error_kind)
        if settings.error_kind
        else by_call.values()
    )
    sites = _in_order(session, renamed)
    return sites if settings.site == "cause" else recovery_sites(session, sites)


def reader_candidates(session: Session, *, settings: SitesSettings) -> list[Site]:
    """The sites of `sites.signals` that a reader model is shown, and then the people's messages on
    which no rule fired, whose rule is "reader_alone".

    Nobody is blamed for an ambiguous finding, so it is no candidate.
    """
    detected = _detected(session, settings)
    by_call = dict(detected)
    _add_signals(session, by_call, settings=settings, verdicts=NO_VERDICTS)
    found = [s for key, s in by_call.items() if s is not detected.get(key) and s.confidence]
    if "corrections" not in settings.signals:
        return _in_order(session, found)
    explained = {turn for site in found for turn in site.evidence}
    unmatched = [
        site
        for site in unmatched_replies(session)
        if site.turn >= session.copied and explained.isdisjoint(site.evidence)
    ]
    return [*_in_order(session, found), *unmatched]


def _detected(session: Session, settings: SitesSettings) -> dict[tuple[int, str | None], Site]:
    """The sites of the detectors, by message and call."""
    by_call: dict[tuple[int, str | None], Site] = {}
    for name in settings.detectors:
        built_in = DETECTORS.get(name)
        for site in built_in(session) if built_in else _run_user_detector(name, session):
            if site.kind == PATH_EXPLORED and settings.explored_paths == "mistake":
                site = dataclasses.replace(site, category="mistake")
            key = (site.turn, site.call_id)
            if site.turn < session.copied or (key in by_call and not _outranks(site, by_call[key])):
                continue
            by_call[key] = site
    return by_call


def _add_signals(
    session: Session,
    by_call: dict[tuple[int, str | None], Site],
    *,
    settings: SitesSettings,
    verdicts: Verdicts,
) -> None:
    """Add the sites of `sites.signals`; a site that a detector gave keeps its kind and category
    (waste wins over a failure of nobody), and takes rule and evidence from a signal of its kind.

    What only a reader names is added as it is, so it is never a mistake.
    """
    for name in settings.signals:
        for site in SIGNALS[name](session):
            key = (site.turn, site.call_id)
            old = by_call.get(key)
            if old is not None and site.category == "wasted" and old.category in _NO_FAULT:
                old = None
            if site.turn < session.copied or (old and (old.kind != site.kind or old.rule)):
                continue
            if old is not None:
                site = dataclasses.replace(site, detector=old.detector, flagged=old.flagged)
            site = with_verdict(site, verdicts)
            sure = site.confidence is not None and site.confidence >= settings.min_confidence
            if sure and site.kind in settings.train_kinds:
                site = dataclasses.replace(site, category="mistake")
            by_call[key] = site
    for site in sites_of_reader(session, verdicts) if "corrections" in settings.signals else ():
        by_call.setdefault((site.turn, site.call_id), site)


def _run_user_detector(name: str, session: Session) -> list[Site]:
    """Run a user's detector and check its sites against the session: an invalid site would only
    fail far from here."""
    setting = "sites.detectors"
    detect = load_function(name, setting=setting, built_in=DETECTORS)
    with without_keys(), users_code(name, detect, setting=setting, on=f"session {session.id}"):
        returned = detect(session)
        candidates: list[object] | None = list(returned) if isinstance(returned, Iterable) else None
    sites: list[Site] = []
    problem = f"returned {type(returned).__name__}, not sites" if candidates is None else ""
    for site in candidates or ():
        problem = _problem_with(session, site)
        if problem or not isinstance(site, Site):
            break
        sites.append(site)
    if problem:
        raise ConfigError(
            f"detector {name!r} {problem}",
            where=f"session {session.id} [{setting}]",
            fix="correct that detector",
        )
    return sites


def _problem_with(session: Session, site: object) -> str:
    """Describe what is wrong with a site of a user's detector; "" if it is valid."""
    if not isinstance(site, Site):
        return f"yields {type(site).__name__}, not Site"
    if site.session_id != session.id:
        return f"yields a site of session {site.session_id!r}"
    if not 0 <= site.turn < len(session.turns):
        return f"yields turn {site.turn}, but there are {len(session.turns)} turns"
    turn = session.turns[site.turn]
    if turn.role != "assistant":
        return (
            f"yields turn {site.turn}, which is no message of the model (its role is {turn.role!r})"
        )
    if site.call_id is not None and site.call_id not in {c.id for c in turn.calls}:
        return f"yields call {site.call_id!r}, which does not stand in turn {site.turn}"
    outside = [e for e in site.evidence if not 0 <= e < len(session.turns)]
    return (
        f"yields evidence at turn {outside[0]}, but there are {len(session.turns)} turns"
        if outside
        else ""
    )


def _outranks(new: Site, old: Site) -> bool:
    return new.category == "mistake" and old.category != "mistake"


def _in_order(session: Session, sites: Iterable[Site]) -> list[Site]:
    position = {c.id: i for turn in session.turns for i, c in enumerate(turn.calls)}
    return sorted(sites, key=lambda s: (s.turn, position.get(s.call_id or "", -1), s.kind))


def _rename_kinds(session: Session, sites: Iterable[Site], path: str) -> list[Site]:
    """Rename the kinds of sites by the user's function of the result; "" or None keeps a kind.

    Only the kind changes: the function cannot turn a rejection into a mistake.
    """
    setting = "sites.error_kind"
    kind_of, refs = load_function(path, setting=setting), session.calls()
    renamed: list[Site] = []
    for site in sites:
        ref = refs.get(site.call_id or "")
        kind: object = None
        if site.detector == "tool_error" and ref is not None and ref.result is not None:
            with (
                without_keys(),
                users_code(path, kind_of, setting=setting, on=f"session {session.id}"),
            ):
                kind = kind_of(ref.result.text, tool=site.tool)
        if kind is not None and not isinstance(kind, str):
            raise ConfigError(
                f"{path} returned {type(kind).__name__}, not a name",
                where=f"session {session.id} [{setting}]",
            )
        renamed.append(dataclasses.replace(site, kind=kind) if kind else site)
    return renamed


def recovery_sites(session: Session, sites: Sequence[Site]) -> list[Site]:
    """Replace each mistake by the assistant turn after its evidence, as the earlier framework
    trained it; other sites stay.

    Warns, because this differs from the published method. A mistake is dropped if no later turn of
    the model has its error in view.
    """
    warnings.warn(RECOVERY_WARNING, UserWarning, stacklevel=3)
    recovery: Category = "recovery"
    by_call: dict[tuple[int, str | None], Site] = {}
    model_turns = [index for index, _ in session.assistant_turns()]
    for site in sites:
        if site.category != "mistake":
            by_call.setdefault((site.turn, site.call_id), site)
            continue
        recovery_turn = _first_in_view_of(
            session, max(site.evidence, default=site.turn), model_turns
        )
        if recovery_turn is not None:
            author = session.turns[recovery_turn].author
            by_call.setdefault(
                (recovery_turn, None),
                dataclasses.replace(
                    site, turn=recovery_turn, call_id=None, category=recovery, author=author
                ),
            )
    return sorted(by_call.values(), key=lambda s: (s.turn, s.call_id or "", s.kind))


def _first_in_view_of(session: Session, turn: int, model_turns: Sequence[int]) -> int | None:
    """The first message of the model (of `model_turns`, in order) after a turn, and with that turn
    in its context."""
    for segment in session.segments:
        if segment.end <= turn or not (
            segment.start <= turn or any(a <= turn < b for a, b in segment.context)
        ):
            continue
        position = bisect_left(model_turns, max(segment.start, turn + 1))
        if position < len(model_turns) and model_turns[position] < segment.end:
            return model_turns[position]
    return None
