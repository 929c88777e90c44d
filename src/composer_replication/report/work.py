"""The work folder as plain values: the audit of the user's own logs, and the sites of a page.

    work_view(Path("recompose"))["kinds"]
    -> [{"name": "edit_no_match", "count": 9, "hinted": 9, "tools": "Edit 9"}, ...]

It needs no run and no model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from composer_replication.core.codec import read_hints, read_sessions, read_sites, read_verdicts
from composer_replication.core.errors import DataError
from composer_replication.core.site import Hint, Site, turn_site_id
from composer_replication.core.stamps import stale_artefacts
from composer_replication.core.trace import Session
from composer_replication.data.sites.summary import UNKNOWN
from composer_replication.report.answers_view import AnsweredTurns
from composer_replication.report.explanations import CATEGORIES, KINDS_APART, why_left_out
from composer_replication.report.funnel import (
    file_chain,
    message_chain,
    preference_chain,
    read_object,
    read_skipped,
    site_chain,
)
from composer_replication.report.html import listed_counts
from composer_replication.report.reader_view import reader_rows
from composer_replication.report.site_article import site_name
from composer_replication.report.views import site_view

BEFORE, AFTER = 3, 2
SITE_CHARS = 4000


@dataclass(slots=True)
class _Logs:
    """Counts of one pass over the sessions."""

    session_ids: list[str] = field(default_factory=list)
    turns: int = 0
    messages: int = 0
    held_out_messages: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    by_repository: Counter[str] = field(default_factory=Counter)
    calls_by_repository: Counter[str] = field(default_factory=Counter)
    by_author: Counter[str] = field(default_factory=Counter)
    origins: Counter[str] = field(default_factory=Counter)

    def add(self, session: Session, *, held_out: bool) -> None:
        assistant_turns = list(session.assistant_turns())
        repository = session.repository or UNKNOWN
        calls = Counter(call.name or UNKNOWN for _, turn in assistant_turns for call in turn.calls)
        messages = sum(turn.role == "assistant" for turn in session.turns)
        self.session_ids.append(session.id)
        self.turns += len(session.turns)
        self.messages += messages
        self.held_out_messages += messages if held_out else 0
        self.calls.update(calls)
        self.by_repository[repository] += 1
        self.calls_by_repository[repository] += calls.total()
        self.by_author.update(turn.author or UNKNOWN for _, turn in assistant_turns)
        self.origins[session.origin] += 1


def work_view(work: Path, *, first: Sequence[str] = ()) -> dict[str, Any]:
    """Counts, chains and all sites of a work folder; `first` are ids of sites to show first.

    Raises DataError if sessions.jsonl or sites.jsonl is missing.
    """
    sites, hints_file = _read(read_sites, work / "sites.jsonl", verb="sites"), work / "hints.jsonl"
    # stale artefacts are left out: their counts would not match these sessions
    stale = stale_artefacts(work)
    hints = {
        hint.site_id: hint
        for hint in (
            []
            if "hints.jsonl" in stale
            else _read(read_hints, hints_file, verb="hints", needed=False)
        )
    }
    hints_written = hints_file.exists() and "hints.jsonl" not in stale
    built = "examples" not in stale
    skipped, held_out = (
        read_skipped(work / "examples" / "skipped.jsonl") if built else ({}, frozenset())
    )
    meta = read_object(work / "examples" / "meta.json", verb="build") if built else None
    ingest = read_object(work / "ingest.json", verb="ingest")
    chosen = order_of_sites(sites, hints, first=first)
    by_session: dict[str, list[int]] = defaultdict(list)
    for number in chosen:
        by_session[sites[number].session_id].append(number)
    logs, site_views = _Logs(), dict[int, dict[str, Any]]()
    answered, answered_views = AnsweredTurns.read(work, stale=stale), list[dict[str, Any]]()
    if not (work / "sessions.jsonl").exists():
        raise DataError("no sessions.jsonl", where=str(work), fix="run first: recompose ingest")
    # One pass: the file may be larger than memory, so only what the page shows of a site is kept.
    for session in read_sessions(work / "sessions.jsonl"):
        logs.add(session, held_out=session.id in held_out)
        split = ("held out" if session.id in held_out else "training") if meta else ""
        day = str(session.started or "")[:10]
        for number in by_session.get(session.id, ()):
            site = sites[number]
            view = site_view(
                session,
                site,
                hints.get(site.id),
                number=number + 1,
                before=BEFORE,
                after=AFTER,
                chars=SITE_CHARS,
            )
            site_views[number] = {**view, "split": split, "day": day}
        answered_views += answered.views(
            session, day=day, split=split, sites=_by_turn(by_session.get(session.id, ()), sites)
        )
    counts: Mapping[str, Any] = (meta or {}).get("counts", {})
    # count sites if the file does: the failing calls of one message form a single view
    views = counts.get("hinted_sites") or counts.get("views")
    messages = message_chain(
        messages=logs.messages,
        held_out=logs.held_out_messages,
        trained=counts.get("trained_messages", 0),
        skipped=skipped,
    )
    pairs = counts.get("pairs") if meta else None
    replayed = stale.keys().isdisjoint(("answers.jsonl", "preferences.jsonl", "anchors.jsonl"))
    preference = (
        preference_chain(work, skipped=skipped, held_out=held_out, pairs=pairs) if replayed else []
    )
    explained_channels = {"hint", "lm_ce", "session"} | ({"preference"} if preference else set())
    return {
        "path": str(work),
        "session_ids": logs.session_ids,
        "counts": {
            "sessions": len(logs.session_ids),
            "turns": logs.turns,
            "calls": logs.calls.total(),
            "messages": logs.by_author.total(),
        },
        "sites": len(sites),
        "reader": reader_rows(
            _read(read_verdicts, work / "site_verdicts.jsonl", verb="sites", needed=False)
        ),
        "mistakes": sum(site.is_target for site in sites),
        "mistaken_sessions": len({site.session_id for site in sites if site.is_target}),
        "hints": len(hints),
        "hints_written": hints_written,
        "stale": [artefact.message for artefact in stale.values()],
        "built": meta is not None,
        "audit": (
            None
            if "audit.json" in stale
            else read_object(work / "audit.json", verb="hints --audit")
        ),
        "origins": dict(logs.origins),
        **_tables(sites, hints, logs),
        "chains": {
            "files": file_chain(ingest, sessions=len(logs.session_ids)),
            "sites": site_chain(
                sites,
                hints,
                skipped=skipped,
                held_out=held_out,
                views=views if meta else None,
                hints_written=hints_written,
            ),
            "messages": messages if meta else [],
            "preference": preference,
        },
        "other_skips": [
            _skip(key, n)
            for key, n in skipped.items()
            if key.split("/")[0] not in explained_channels
        ],
        "ingest": _ingest_summary(ingest),
        "shown": _with_answers(
            [site_views[number] for number in chosen if number in site_views], answered_views
        ),
        "answered": answered_views,
        "answers_lost": answered.num_turns - len(answered_views),
        "answers_stale": stale["answers.jsonl"].message if "answers.jsonl" in stale else "",
    }


def _by_turn(numbers: Iterable[int], sites: Sequence[Site]) -> dict[int, tuple[str, Site]]:
    """The site of each turn with its name on the page; of several the first mistake."""
    by_turn: dict[int, tuple[str, Site]] = {}
    for number in sorted(numbers, key=lambda number: (not sites[number].is_target, number)):
        by_turn.setdefault(sites[number].turn, (site_name({"ordinal": number + 1}), sites[number]))
    return by_turn


def _with_answers(
    shown: Sequence[Mapping[str, Any]], answered: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The sites, each with the name of the answered turn that it is, if it is one."""
    names = {view["id"]: view["name"] for view in answered}
    return [
        {**view, "answered": names.get(turn_site_id(view["session"], view["message"]["turn"]), "")}
        for view in shown
    ]


def _read(reader: Any, path: Path, *, verb: str, needed: bool = True) -> list[Any]:
    if not path.exists():
        if needed:
            raise DataError(
                f"no {path.name}", where=str(path.parent), fix=f"run first: recompose {verb}"
            )
        return []
    return list(reader(path))


def order_of_sites(
    sites: Sequence[Site], hints: Mapping[str, Hint], *, first: Sequence[str]
) -> list[int]:
    """The indices of all sites: first those named, then mistakes, one of each kind in turn and
    hinted ones first, then the sites of the other categories, those in turn as well."""
    leading = [i for name in first for i, site in enumerate(sites) if site.id == name]
    mistakes: dict[str, list[int]] = defaultdict(list)
    others: dict[str, list[int]] = defaultdict(list)
    # The sort is stable: among hinted sites, and among the others, the order of the file stays.
    for i, site in sorted(enumerate(sites), key=lambda item: item[1].id not in hints):
        (mistakes[site.kind] if site.is_target else others[site.category]).append(i)
    return list(dict.fromkeys([*leading, *_in_turn(mistakes), *_in_turn(others)]))


def _in_turn(groups: Mapping[str, Sequence[int]]) -> list[int]:
    """The first of each group, then the second of each, and so on."""
    queues = zip_longest(*groups.values())
    return [number for row in queues for number in row if number is not None]


def _tables(sites: Sequence[Site], hints: Mapping[str, Hint], logs: _Logs) -> dict[str, Any]:
    """Kinds, tools, repositories and authors of the mistakes; the sites that are no mistakes."""
    targets = [site for site in sites if site.is_target]
    other_categories = Counter((site.category, site.kind) for site in sites if not site.is_target)
    hinted = Counter(site.kind for site in targets if site.id in hints)
    kinds = Counter(site.kind for site in targets)
    return {
        "kinds": [
            {
                "name": kind,
                "count": n,
                "hinted": hinted[kind],
                "tools": _counts_text(
                    Counter(s.tool or UNKNOWN for s in targets if s.kind == kind)
                ),
            }
            for kind, n in _most_common(kinds)
        ],
        "tools": _mistake_rates(targets, "tool", logs.calls),
        "repositories": [
            {**row, "sessions": logs.by_repository[row["name"]]}
            for row in _mistake_rates(targets, "repository", logs.calls_by_repository)
        ],
        "authors": _mistake_rates(targets, "author", logs.by_author),
        "apart": [
            {"category": c, "kind": k, "count": n, "why": KINDS_APART.get(k, CATEGORIES[c])}
            for (c, k), n in _most_common(other_categories)
        ],
    }


def _mistake_rates(targets: Sequence[Site], name: str, base: Counter[str]) -> list[dict[str, Any]]:
    """Mistakes by one property with their base and kinds, including values without mistakes."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for site in targets:
        kinds[getattr(site, name) or UNKNOWN][site.kind] += 1
    rows = [
        {
            "name": key,
            "mistakes": kinds[key].total(),
            "of": base[key],
            "kinds": _counts_text(kinds[key]),
        }
        for key in {*base, *kinds}
    ]
    return sorted(rows, key=lambda row: (-row["mistakes"], -row["of"], row["name"]))


def _most_common(counts: Counter[Any]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _counts_text(counts: Counter[str], *, most: int = 4) -> str:
    """Counts as text, e.g. "Edit 9, Read 2"."""
    return listed_counts(_most_common(counts), most=most)


def _skip(key: str, count: int) -> dict[str, Any]:
    return {"reason": key, "count": count, "why": why_left_out(key)}


def _ingest_summary(ingest: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The notes on what ingest removed, could not read and did not recognise."""
    if ingest is None:
        return None
    files: Iterable[Mapping[str, Any]] = ingest.get("files", ())
    removed: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for file in files:
        removed.update(file.get("redactions", {}))
        unknown.update(file.get("unknown_types", {}))
    return {
        "files": len(ingest.get("files", ())),
        "removed": dict(removed.most_common()),
        "unknown": dict(unknown.most_common()),
        "damaged_lines": sum(file.get("damaged_lines", 0) for file in files),
    }
