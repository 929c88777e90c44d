"""Session -> sites: run all detectors over a session and merge what they report.

Second stage of the data pipeline: `ingestion` gives sessions, and hints, pairs and examples are
made for the sites found here. There are two sources of sites:

- detectors (`sites.detectors`, built-in or the user's own) read what the log shows of each call: an
  error result, a failed check, the same call made again;
- signals (`sites.signals`) read what happened later: a person rejected or corrected the message, an
  edit was taken back, a check failed on it. They are uncertain, so each has a confidence and none
  is trained on unless `sites.train_kinds` names its kind.

Several may report the same call; at most one site is kept per call.

    sites = find_sites(session, settings=SitesSettings())
    [s.kind for s in sites if s.category == "mistake"]  # ["file_missing", "edit_no_match"]
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
_SiteKey = tuple[int, str | None]
"""Turn and call id (None: the whole message). One site is kept for each."""
_NOBODYS_FAULT: frozenset[Category] = frozenset(("environment", "benign"))
"""Failures that nobody caused, such as a time-out. To run into the same one again is waste."""
RECOVERY_WARNING = (
    'sites.site = "recovery" trains the turn after an error, not the mistaken one: its context'
    " already holds the error, and the mistake itself gets no gradient"
)


def find_sites(
    session: Session, *, settings: SitesSettings, verdicts: Verdicts = NO_VERDICTS
) -> list[Site]:
    """Find the sites of a session, at most one per call, in the order of the calls.

    If several detectors report one call, a mistake wins, then the detector that `sites.detectors`
    names first. A signal adds a site only where no detector reports the call, with few exceptions
    (`_merge_signal`). `verdicts` are those of a reader model on the candidates of the signals.

    Raises ConfigError if a detector does not exist, or if a user's detector raises or returns sites
    that are not in the session.
    """
    by_call = _run_detectors(session, settings)
    _add_signals(session, by_call, settings=settings, verdicts=verdicts)
    sites: Iterable[Site] = by_call.values()
    if settings.error_kind:
        sites = _rename_kinds(session, sites, settings.error_kind)
    sites = _in_call_order(session, sites)
    return sites if settings.site == "cause" else recovery_sites(session, sites)


def reader_candidates(session: Session, *, settings: SitesSettings) -> list[Site]:
    """What a reader model is asked about: the sites of the signals, and behind them each reply of a
    person on which no rule fired (rule "reader_alone").

    Sites of confidence 0 are left out: a finding that leads to several edits blames none of them.
    """
    detected = _run_detectors(session, settings)
    by_call = dict(detected)
    _add_signals(session, by_call, settings=settings, verdicts=NO_VERDICTS)
    from_signals = [
        site for key, site in by_call.items() if site is not detected.get(key) and site.confidence
    ]
    candidates = _in_call_order(session, from_signals)
    if "corrections" in settings.signals:
        explained = {turn for site in from_signals for turn in site.evidence}
        candidates += [
            site
            for site in unmatched_replies(session)
            if site.turn >= session.copied and explained.isdisjoint(site.evidence)
        ]
    return candidates


def _run_detectors(session: Session, settings: SitesSettings) -> dict[_SiteKey, Site]:
    """The sites of `sites.detectors`, without those in turns copied from another session."""
    by_call: dict[_SiteKey, Site] = {}
    for name in settings.detectors:
        built_in = DETECTORS.get(name)
        for site in built_in(session) if built_in else _run_user_detector(name, session):
            if site.turn < session.copied:
                continue
            if site.kind == PATH_EXPLORED and settings.explored_paths == "mistake":
                site = dataclasses.replace(site, category="mistake")
            old = by_call.get(_key(site))
            if old is None or (site.category == "mistake" and old.category != "mistake"):
                by_call[_key(site)] = site
    return by_call


def _add_signals(
    session: Session,
    by_call: dict[_SiteKey, Site],
    *,
    settings: SitesSettings,
    verdicts: Verdicts,
) -> None:
    """Add the sites of `sites.signals` to `by_call`, in place; then the messages that only a reader
    names. The reader alone never makes a mistake of a message."""
    for name in settings.signals:
        for signal in SIGNALS[name](session):
            site = _merge_signal(signal, by_call.get(_key(signal)))
            if site is None or site.turn < session.copied:
                continue
            by_call[_key(site)] = _judge_signal(site, settings=settings, verdicts=verdicts)
    if "corrections" in settings.signals:
        for site in sites_of_reader(session, verdicts):
            by_call.setdefault(_key(site), site)


def _merge_signal(signal: Site, old: Site | None) -> Site | None:
    """The site of a call that has the site `old` already; None if `old` stays.

    A signal of the same kind adds its rule, confidence and evidence to a detector's site. A signal
    of another kind is dropped, except waste where the call failed through nobody's fault.
    """
    if old is None or (signal.category == "wasted" and old.category in _NOBODYS_FAULT):
        return signal
    if signal.kind != old.kind or old.rule:  # with a rule, `old` is of an earlier signal
        return None
    return dataclasses.replace(signal, detector=old.detector, flagged=old.flagged)


def _judge_signal(site: Site, *, settings: SitesSettings, verdicts: Verdicts) -> Site:
    """Move the confidence by the reader's verdict, if there is one; the site is a mistake if it is
    confident enough and `sites.train_kinds` names its kind."""
    site = with_verdict(site, verdicts)
    is_sure = site.confidence is not None and site.confidence >= settings.min_confidence
    if is_sure and site.kind in settings.train_kinds:
        return dataclasses.replace(site, category="mistake")
    return site


def _run_user_detector(name: str, session: Session) -> list[Site]:
    """Run a user's detector and check each site against the session: an invalid one would only fail
    in a later stage, with an error that does not name the detector."""
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
    """What is wrong with a site of a user's detector; "" if it is valid."""
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
    for turn_index in site.evidence:
        if not 0 <= turn_index < len(session.turns):
            return f"yields evidence at turn {turn_index}, but there are {len(session.turns)} turns"
    return ""


def _key(site: Site) -> _SiteKey:
    return site.turn, site.call_id


def _in_call_order(session: Session, sites: Iterable[Site]) -> list[Site]:
    """Sort by turn; within a turn, sites of the whole message first, then by position of the
    call."""
    position = {call.id: i for turn in session.turns for i, call in enumerate(turn.calls)}
    return sorted(sites, key=lambda s: (s.turn, position.get(s.call_id or "", -1), s.kind))


def _rename_kinds(session: Session, sites: Iterable[Site], path: str) -> list[Site]:
    """Give the sites of error results the kind that the user's function (`sites.error_kind`)
    returns for the result's text; "" or None keeps the kind.

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
    """Move each mistake to the first assistant turn that has its evidence in context, as the
    earlier framework trained it; other sites stay.

    Warns, because the published method trains the mistaken message. A mistake is dropped if the
    model never saw its error, e.g. because the session ends there.
    """
    warnings.warn(RECOVERY_WARNING, UserWarning, stacklevel=3)
    recovery: Category = "recovery"
    by_call: dict[_SiteKey, Site] = {}
    model_turns = [index for index, _ in session.assistant_turns()]
    for site in sites:
        if site.category == "mistake":
            last_evidence = max(site.evidence, default=site.turn)
            recovery_turn = _first_turn_that_saw(session, last_evidence, model_turns)
            if recovery_turn is None:
                continue
            site = dataclasses.replace(
                site,
                turn=recovery_turn,
                call_id=None,
                category=recovery,
                author=session.turns[recovery_turn].author,
            )
        by_call.setdefault(_key(site), site)
    return sorted(by_call.values(), key=lambda s: (s.turn, s.call_id or "", s.kind))


def _first_turn_that_saw(session: Session, turn: int, model_turns: Sequence[int]) -> int | None:
    """The first of `model_turns` (ascending) that comes after `turn` and has it in context; None if
    there is none, e.g. if the turn was rewound or compacted away first."""
    for segment in session.segments:
        in_segment = segment.start <= turn < segment.end
        in_context = any(start <= turn < end for start, end in segment.context)
        if not (in_segment or in_context):
            continue
        position = bisect_left(model_turns, max(segment.start, turn + 1))
        if position < len(model_turns) and model_turns[position] < segment.end:
            return model_turns[position]
    return None
