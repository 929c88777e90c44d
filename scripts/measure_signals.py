"""Measure the rules of `sites.signals` against two readers' labels, kind by kind and rule by rule,
with 95 % Wilson intervals.

    python scripts/fetch_traces.py FOLDER --manifest tests/labels/signals/manifest.json
    python scripts/measure_signals.py FOLDER --half dev [--misses] [--json build/signals.json]
    python scripts/measure_signals.py FOLDER --half dev --verdicts WORK/site_verdicts.jsonl
    python scripts/measure_signals.py FOLDER --rate

The half "dev" is for whoever changes rules; "unread" is run once, after the rules are frozen. A
site counts as a mistake only if both readers call it one and its message is one of those that they
name. `--verdicts` scores a reader model (`sites.reader`) beside the rules, on the candidates that
it was asked about: which messages each calls mistaken, and which both do. `--rate` counts the sites
per 100 calls of every session in the folder, which needs no labels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for scripts.measure_labels

from composer_replication.core.codec import read_verdicts
from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.site import ReaderVerdict, Site
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.corrections import READER_ALONE
from composer_replication.data.sites.find_sites import find_sites
from scripts.measure_labels import share

LABELS = Path(__file__).resolve().parent.parent / "tests" / "labels" / "signals"
FORMS = {
    "a": (("user_corrected", "user_rejected", "user_interrupted"), ("correction",)),
    "b": (
        ("user_rejected", "user_interrupted"),
        ("rejected_with_reason", "interrupted_with_reason"),
    ),
    "c": (("taken_back",), ("taken_back_by_agent", "taken_back_by_person")),
    "d": (("broke_check",), ("caused_by_edit",)),
    "e": (("wasted_call", "repeated_call"), ("waste",)),
}
"""Form of the candidates -> the kinds that are found there, and the verdicts that say so."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One labelled place: its form, the two readers' labels, and where it stands in our session."""

    id: str
    session: str
    form: str
    labels: tuple[Mapping[str, Any], Mapping[str, Any]]
    turn: int
    call_id: str | None
    named: tuple[frozenset[int], ...]

    def has(self, verdicts: Iterable[str]) -> bool:
        """Whether both readers give one of these verdicts."""
        return all(label["verdict"] in verdicts for label in self.labels)

    def is_mistaken(self) -> bool:
        """Whether both readers call the message mistaken; of waste they say so by their verdict."""
        return all(
            label.get("mistaken") == "yes" or label["verdict"] == "waste" for label in self.labels
        )

    def names(self, turn: int) -> bool:
        """Whether a reader names this message as the one that did it (or no reader names any)."""
        return any(turn in turns for turns in self.named) or not any(self.named)


@dataclass(slots=True)
class Record:
    """What a log's record or message holds: the ids of its calls and its texts; `ordinal` counts
    the records before it with the same first text."""

    calls: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    ordinal: int = 0


def records_of(file: Path) -> dict[str, Record]:
    """The records of a raw log by uuid and by message id."""
    records: dict[str, Record] = defaultdict(Record)
    for line in file.read_text("utf-8", errors="replace").splitlines():
        try:
            raw = json.loads(line)
        except json.JSONDecodeError:
            continue
        if raw.get("type") == "queue-operation":
            records[f"queue:{raw.get('timestamp')}"].texts.append(str(raw.get("content") or ""))
        message = raw.get("message")
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        for name in {raw.get("uuid"), message.get("id")} - {None}:
            for block in blocks:
                if block.get("type") == "tool_use":
                    records[name].calls.add(block["id"])
                elif block.get("type") == "text":
                    records[name].texts.append(block["text"])
    seen = Counter[str]()
    for record in records.values():
        text = _flat(record.texts[0]) if record.texts else ""
        record.ordinal = seen[text]
        seen[text] += 1
    return records


def turns_of(session: Session, record: Record) -> set[int]:
    """The turns of a session that hold a record: by call ids, else by its text."""
    refs = session.calls()
    turns = {refs[c].turn for c in record.calls if c in refs}
    if turns:
        return turns
    wanted = [_flat(text) for text in record.texts if _flat(text)]
    return {
        index
        for index, turn in enumerate(session.turns)
        if any(text in _flat(turn.text) for text in wanted)
    }


def _flat(text: str) -> str:
    """The start of a text without blanks and paths, which redaction may have changed."""
    return "".join(text.split())[:60]


def candidates(folder: Path, sessions: Mapping[str, Session], *, half: str) -> Iterator[Candidate]:
    """The candidates of one half whose session is in the folder, in order."""
    readers = [
        {label["id"]: label for label in _lines(LABELS / f"labels_{name}.jsonl")} for name in "AB"
    ]
    records: dict[str, dict[str, Record]] = {}
    for entry in _lines(LABELS / "candidates.jsonl"):
        session = sessions.get(entry["session"])
        if entry["half"] != half or session is None:
            continue
        if entry["session"] not in records:
            records = {entry["session"]: records_of(folder / f"{entry['session']}.jsonl")}
        known, call = records[entry["session"]], session.calls().get(entry["tool_use_id"] or "")
        labels = (readers[0][entry["id"]], readers[1][entry["id"]])
        record = known.get(entry["record"] or entry["message_id"], Record())
        turns = sorted(turns_of(session, record))
        by_text = turns[min(record.ordinal, len(turns) - 1)] if turns else None
        turn = call.result_turn if call else by_text
        named = tuple(
            frozenset(
                t for name in _named(label) for t in turns_of(session, known.get(name, Record()))
            )
            for label in labels
        )
        yield Candidate(
            id=entry["id"],
            session=entry["session"],
            form=entry["form"],
            labels=labels,
            turn=-1 if turn is None else turn,
            call_id=entry["tool_use_id"],
            named=named,
        )


def _named(label: Mapping[str, Any]) -> list[str]:
    """The records that a label names as the guilty ones."""
    return [*label.get("cause_records", ()), *filter(None, [label.get("wrong_record")])]


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line]


def matching(candidate: Candidate, sites: Iterable[Site]) -> list[Site]:
    """The sites of the form's kinds at a candidate: the same call, or evidence at its turn."""
    kinds, _ = FORMS[candidate.form]
    return [
        site
        for site in sites
        if site.kind in kinds
        and (site.rule or site.is_target)
        and (
            (candidate.call_id is not None and site.call_id == candidate.call_id)
            or candidate.turn in site.evidence
        )
    ]


def measure(
    labelled: Iterable[Candidate], sites_of: Mapping[str, list[Site]]
) -> dict[str, dict[str, Any]]:
    """Precision per kind and per rule, and recall per form, over candidates with their sites by id.

    >>> measure([], {})
    {'precision': {}, 'recall': {}}
    """
    right: dict[str, Counter[str]] = defaultdict(Counter)
    recall: dict[str, Counter[str]] = defaultdict(Counter)
    for candidate in labelled:
        event, mistaken = candidate.has(FORMS[candidate.form][1]), candidate.is_mistaken()
        matches = matching(candidate, sites_of[candidate.id])
        for site in matches:
            hit = candidate.names(site.turn)
            for row in {site.kind, f"{site.kind} {site.rule}".strip()}:
                right[row].update(n=1, event=int(event), mistake=int(event and mistaken and hit))
        row = recall[candidate.form]
        row.update(
            event=int(event),
            event_found=int(event and bool(matches)),
            mistake=int(mistaken),
            mistake_found=int(mistaken and any(candidate.names(s.turn) for s in matches)),
        )
    return {
        "precision": {
            row: {"event": share(n["event"], n["n"]), "mistake": share(n["mistake"], n["n"])}
            for row, n in sorted(right.items())
        },
        "recall": {
            form: {
                "event": share(n["event_found"], n["event"]),
                "mistake": share(n["mistake_found"], n["mistake"]),
            }
            for form, n in sorted(recall.items())
        },
    }


def measure_reader(
    labelled: Iterable[Candidate],
    sites_of: Mapping[str, list[Site]],
    verdicts_of: Mapping[str, list[ReaderVerdict]],
) -> dict[str, dict[str, Any]]:
    """Precision and recall of "this message is mistaken" by form, and over all: of the rules alone,
    of the reader alone and of both, over the candidates that the reader was asked about.

    The rules call each message mistaken at which they have a site, the reader the one that it
    names. A rule's site counts for both if the reader's verdict on it is "mistake".

    >>> measure_reader([], {}, {})
    {}
    """
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for candidate in labelled:
        verdicts = verdicts_at(candidate, verdicts_of[candidate.id])
        if not verdicts:
            continue
        found = [s for s in matching(candidate, sites_of[candidate.id]) if s.rule != READER_ALONE]
        agreed = {verdict.candidate for verdict in verdicts if verdict.outcome == "mistake"}
        said = {
            "rules": {site.turn for site in found},
            "reader": {v.named for v in verdicts if v.named is not None},
            "both": {site.turn for site in found if site.candidate in agreed},
        }
        is_mistaken = candidate.is_mistaken()
        for judge, turns in said.items():
            right = sum(is_mistaken and candidate.names(turn) for turn in turns)
            for row in (candidate.form, "all"):
                counts[row][judge].update(
                    said=len(turns), right=right, mistake=is_mistaken, found=bool(right)
                )
    return {
        form: {
            judge: {
                "precision": share(n["right"], n["said"]),
                "recall": share(n["found"], n["mistake"]),
            }
            for judge, n in by_judge.items()
        }
        for form, by_judge in sorted(counts.items())
    }


def verdicts_at(candidate: Candidate, verdicts: Iterable[ReaderVerdict]) -> list[ReaderVerdict]:
    """The verdicts of the form's kinds at a candidate: the same call, or evidence at its turn."""
    kinds, _ = FORMS[candidate.form]
    return [
        verdict
        for verdict in verdicts
        if verdict.kind in kinds
        and (
            (candidate.call_id is not None and verdict.call_id == candidate.call_id)
            or candidate.turn in verdict.evidence
        )
    ]


def reader_table(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The measurement of a reader as lines of text."""
    lines = [f"{'form, judge':40} {'precision':30} recall"]
    for form, by_judge in measured.items():
        for judge, row in by_judge.items():
            name = f"{form} {judge}"
            lines.append(f"{name:40} {_text(row['precision']):30} {_text(row['recall'])}")
    return "\n".join(lines)


def table(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The measurement as lines of text."""
    lines: list[str] = []
    for part, rows in measured.items():
        lines.append(f"{part:40} {'what it says':30} a mistake of this message")
        for name, row in rows.items():
            lines.append(f"{name:40} {_text(row['event']):30} {_text(row['mistake'])}")
    return "\n".join(lines)


def _text(row: Mapping[str, Any]) -> str:
    return "none" if not row["n"] else "{share:.2f} [{low:.2f}, {high:.2f}] {k}/{n}".format(**row)


def rate(sessions: Iterable[Session]) -> str:
    """Sites per 100 calls: of mistakes that tools report, and of each kind of `sites.signals`,
    rule by rule."""
    settings, num_calls, num_sessions = SitesSettings(), 0, 0
    counts = Counter[str]()
    for session in sessions:
        num_sessions += 1
        num_calls += sum(len(turn.calls) for turn in session.turns[session.copied :])
        for site in find_sites(session, settings=settings):
            kind = "a mistake that a tool reports" if site.is_target else f"{site.kind} {site.rule}"
            if site.is_target or site.rule:
                counts[kind] += 1
    lines = [f"{num_calls} calls of {num_sessions} sessions; sites, and per 100 calls"]
    for kind, count in sorted(counts.items()):
        lines.append(f"{kind:45} {count:6} {100 * count / max(num_calls, 1):6.2f}")
    return "\n".join(lines)


def read_sessions(folder: Path) -> dict[str, Session]:
    """The main session of each file, by the file's name; each file is read for itself, so that
    none counts as another's copy."""
    sessions: dict[str, Session] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for result in ingest(find_logs([file])):
            for session in result.sessions:
                old = sessions.get(file.stem)
                if old is None or _size(session) > _size(old):
                    sessions[file.stem] = session
    return sessions


def _size(session: Session) -> tuple[bool, int]:
    return session.parent is None, len(session.turns)


def main(arguments: list[str]) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("dev", "unread"), default="dev")
    parser.add_argument("--misses", action="store_true", help="list the disagreements (dev only)")
    parser.add_argument("--rate", action="store_true", help="count sites per 100 calls instead")
    parser.add_argument("--verdicts", type=Path, help="a reader's site_verdicts.jsonl to score")
    parser.add_argument("--json", type=Path, help="write the numbers there as well")
    options = parser.parse_args(arguments)
    if options.rate:
        results = ingest(find_logs([options.folder]))
        print(rate(session for result in results for session in result.sessions))
        return 0
    sessions = read_sessions(options.folder)
    sites = {
        name: find_sites(session, settings=SitesSettings()) for name, session in sessions.items()
    }
    labelled = list(candidates(options.folder, sessions, half=options.half))
    by_id = {candidate.id: sites[candidate.session] for candidate in labelled}
    measured = measure(labelled, by_id)
    lost = sum(candidate.turn < 0 for candidate in labelled)
    print(f"{len(labelled)} candidates of the half {options.half!r}, {lost} not in our sessions")
    print(table(measured))
    if options.verdicts:
        by_session: dict[str, list[ReaderVerdict]] = defaultdict(list)
        for verdict in read_verdicts(options.verdicts):
            by_session[verdict.session_id].append(verdict)
        verdicts = {c.id: by_session[sessions[c.session].id] for c in labelled}
        measured["reader"] = measure_reader(labelled, by_id, verdicts)
        print(reader_table(measured["reader"]))
    if options.misses and options.half == "dev":
        print("\n".join(disagreements(labelled, by_id)))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(measured, indent=1), "utf-8")
    return 0 if labelled else 1


def disagreements(
    labelled: Iterable[Candidate], sites_of: Mapping[str, list[Site]]
) -> Iterator[str]:
    """One line for every candidate that the rules and both readers judge otherwise."""
    for candidate in labelled:
        matches = matching(candidate, sites_of[candidate.id])
        event, mistaken = candidate.has(FORMS[candidate.form][1]), candidate.is_mistaken()
        if bool(matches) != event or (matches and not mistaken) or (mistaken and not matches):
            verdicts = "/".join(str(label["verdict"]) for label in candidate.labels)
            said = "/".join(str(label.get("mistaken")) for label in candidate.labels)
            sites = ", ".join(f"{s.turn} {s.kind} {s.rule}: {s.detail[:80]}" for s in matches)
            yield (
                f"{candidate.id} turn {candidate.turn} of {candidate.session[:8]}: {verdicts},"
                f" mistaken {said}, named {[sorted(t) for t in candidate.named]}; ours: {sites}"
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
