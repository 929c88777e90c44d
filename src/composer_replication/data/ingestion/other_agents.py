"""Read a log of another agent into Sessions, with the same report as a log of Claude Code.

Each format has a reader in `formats/`; what is common to all is here: damage, copies, names,
redaction, and what a log does not hold.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal

from composer_replication.core.config.data_settings import IngestSettings
from composer_replication.core.errors import SessionError
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Parent, Session, SourceRef, Turn
from composer_replication.data.ingestion.counts import FileReport, RawCounts, session_counts
from composer_replication.data.ingestion.file_results import (
    FileResult,
    Links,
    base_name,
    claim_name,
    is_wanted,
    mark_of,
    new_redactions,
    safe_name,
)
from composer_replication.data.ingestion.find_logs import LogFile
from composer_replication.data.ingestion.formats.known_formats import FORMATS, read_document
from composer_replication.data.ingestion.formats.log_format import LogContent, SessionDraft, text_at
from composer_replication.data.ingestion.lines import LineReader
from composer_replication.data.ingestion.log_records import is_deep
from composer_replication.data.ingestion.logged_tools import is_refusal, tools_from_calls
from composer_replication.data.ingestion.redaction import redact_counts, redact_session
from composer_replication.data.ingestion.repository import repository_of

_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, sqlite3.Error)


def ingest_other_agent(
    log: LogFile,
    links: Links,
    *,
    settings: IngestSettings,
    redactor: Redactor | None,
    hashed: bool,
) -> FileResult:
    """Read one log of a format of `formats/known_formats.py`; what cannot be read is reported."""
    name = redactor.text(log.name) if redactor is not None else log.name
    report = FileReport(
        file=name,
        status="unreadable",
        num_bytes=log.num_bytes,
        counts=session_counts(()),
        format=log.format,
    )
    raw = RawCounts()
    marks: set[int] = set()
    try:
        content, digest = _load(log, raw, settings=settings, hashed=hashed)
        drafts = FORMATS[log.format].read(content)
        sessions = _sessions(drafts, links, log=log, file=name, digest=digest, marks=marks)
    except OSError as error:
        return FileResult(
            report=replace(report, why=f"cannot be read: {error.strerror or type(error).__name__}")
        )
    except SessionError as error:
        return FileResult(report=replace(report, status="refused", why=str(error), raw=raw))
    except _DAMAGE as error:
        why = f"not as {FORMATS[log.format].agent} writes it: {type(error).__name__}: {error}"
        return FileResult(report=replace(report, status="damaged", why=why[:200], raw=raw))
    report = replace(report, sha256=digest if hashed else "", raw=raw)
    if not sessions:
        why = (
            "every message of it stands in a file read before"
            if any(draft.messages for draft in drafts)
            else f"a log of {FORMATS[log.format].agent}, but no message in it"
        )
        status: Literal["duplicate", "empty"] = "duplicate" if "every" in why else "empty"
        return FileResult(
            report=replace(report, status=status, why=why), marks=tuple(sorted(marks))
        )
    folders = tuple(dict.fromkeys(session.cwd for session in sessions))
    counts_before = dict(redactor.counts) if redactor is not None else {}
    if redactor is not None:
        redact_counts(raw, redactor)
        sessions = [redact_session(session, redactor) for session in sessions]
    stored = [session for session in sessions if is_wanted(session, settings.authors)]
    report = replace(
        report,
        status="read",
        counts=session_counts(stored),
        session_names=tuple(session.id for session in stored),
        num_subagents=sum(session.parent is not None for session in stored),
        num_copied_turns=sum(session.copied for session in stored),
        num_filtered=len(sessions) - len(stored),
        redactions=new_redactions(redactor, counts_before),
        lacks=_lacks(drafts, sessions),
    )
    return FileResult(
        report=report, sessions=tuple(stored), marks=tuple(sorted(marks)), folders=folders
    )


def _load(
    log: LogFile, raw: RawCounts, *, settings: IngestSettings, hashed: bool
) -> tuple[LogContent, str]:
    """Read the records of a file and its hash; damaged lines are counted and left out."""
    records: list[tuple[int, Any]] = []
    lines = LineReader(log.path, settings.max_line_bytes, hashed=True)
    if FORMATS[log.format].layout == "database":
        return LogContent(path=log.path, records=[], raw=raw), _sha256(log) if hashed else ""
    if FORMATS[log.format].layout == "document":
        document = read_document(log.path)
        if is_deep(document):
            raise ValueError("nested too deep")
        records.append((1, document))
        raw.records = 1
        return LogContent(path=log.path, records=records, raw=raw), _sha256(log) if hashed else ""
    for number, line in lines:
        try:
            record = json.loads(line, parse_constant=_no_constant) if line is not None else None
            why = "" if isinstance(record, dict) else "not a JSON object"
            why = f"longer than {settings.max_line_bytes} bytes" if line is None else why
            why = "nested too deep" if not why and is_deep(record) else why
        except (ValueError, RecursionError):
            record, why = None, "cut short" if number == lines.unfinished else "not JSON"
        if why:
            raw.damaged_lines += 1
            raw.note(number, why)
            continue
        kind = text_at(record, "type") or "?"
        raw.record_types[kind] = raw.record_types.get(kind, 0) + 1
        records.append((number, record))
    raw.records = len(records)
    return LogContent(path=log.path, records=records, raw=raw), lines.sha256


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _sha256(log: LogFile) -> str:
    return sha256(log.path.read_bytes()).hexdigest()


def _sessions(
    drafts: list[SessionDraft],
    links: Links,
    *,
    log: LogFile,
    file: str,
    digest: str,
    marks: set[int],
) -> list[Session]:
    """Build the sessions of a file, without those that are copies of earlier ones; adds the marks
    of all of them."""
    sessions: list[Session] = []
    for draft in drafts:
        turns, segments = draft.finish()
        copied = _count_copied(turns, draft, links)
        marks |= _marks(turns, draft)
        # The last message of an earlier copy may have been cut short.
        is_known = (log.format, draft.id) in links.logged_ids and copied >= len(turns) - 1
        if not turns or copied == len(turns) or (is_known and copied):
            continue
        links.logged_ids.add((log.format, draft.id))
        calls = [call for turn in turns for call in turn.calls]
        refused = {
            r.call_id for turn in turns for r in turn.results if r.is_error and is_refusal(r.text)
        }
        tools = draft.tools or tools_from_calls(calls, refused=refused)
        origin: Literal["log", "reconstructed", "none"] = "reconstructed" if tools else "none"
        sessions.append(
            Session(
                id=claim_name(safe_name(draft.id, digest or str(log.path)), links),
                source=SourceRef(
                    file=file,
                    sha256=digest,
                    format=log.format,
                    versions=tuple(sorted(draft.versions)),
                ),
                turns=turns,
                segments=segments,
                tools=tools,
                tools_origin="log" if draft.tools else origin,
                events=tuple(draft.events),
                parent=Parent(session_id=draft.parent, call_id=None) if draft.parent else None,
                copied=copied,
                cwd=draft.cwd,
                repository=draft.remote or repository_of(draft.cwd, roots=links.roots),
                started=draft.started,
                ended=draft.ended,
                outcome=draft.outcome,
            )
        )
    return sessions


def _count_copied(turns: tuple[Turn, ...], draft: SessionDraft, links: Links) -> int:
    """The number of leading turns that an earlier session holds, too (a fork, or a copy of the
    file); 0 unless the model wrote one of them.

    Without ids of calls, equal beginnings may be chance: then they count only under the same
    session id, and equal sessions under any.
    """
    prefixes = _prefixes(turns, seed=draft.id if draft.makes_ids else "")
    copied = next((n for n, p in enumerate(prefixes) if p not in links.prefixes), len(turns))
    if draft.makes_ids and turns:
        all_turns = sha256(b"all" + _prefixes(turns, seed="")[-1]).digest()
        copied = len(turns) if all_turns in links.prefixes else copied
        links.prefixes.add(all_turns)
    links.prefixes.update(prefixes)
    return copied if any(turn.role == "assistant" for turn in turns[:copied]) else 0


def _marks(turns: tuple[Turn, ...], draft: SessionDraft) -> set[int]:
    """The marks of a session: its id, and its beginning up to the first message of the model, as
    sessions that share only less than that are no copies."""
    marks = {mark_of(f"session {base_name(safe_name(draft.id, ''))}")}
    first = next((n for n, turn in enumerate(turns) if turn.role == "assistant"), None)
    if first is not None:
        seeds = {draft.id if draft.makes_ids else "", ""}
        marks |= {mark_of(_prefixes(turns[: first + 1], seed=seed)[-1].hex()) for seed in seeds}
    return marks


def _prefixes(turns: tuple[Turn, ...], *, seed: str) -> list[bytes]:
    """A hash of each beginning of a session, shortest first."""
    digest = sha256(seed.encode("utf-8", "surrogatepass")).digest()
    prefixes: list[bytes] = []
    for turn in turns:
        digest = sha256(digest + repr(turn).encode("utf-8", "surrogatepass")).digest()
        prefixes.append(digest)
    return prefixes


def _lacks(drafts: list[SessionDraft], sessions: list[Session]) -> tuple[str, ...]:
    """What these sessions do not hold although a session has a place for it."""
    results = [r for session in sessions for turn in session.turns for r in turn.results]
    silent = sum(result.is_error is None for result in results)
    lacks = dict.fromkeys(fact for draft in drafts for fact in draft.lacks)
    if any(draft.makes_ids for draft in drafts):
        lacks["ids of calls (numbered here)"] = None
    if any(session.tools_origin != "log" for session in sessions):
        lacks["schemas of tools (taken from the calls)"] = None
    if silent:
        lacks[f"whether a call failed, in {silent} of {len(results)} results"] = None
    if any(not session.cwd for session in sessions):
        lacks["the folder"] = None
    if any(not session.started for session in sessions):
        lacks["times"] = None
    writers = [turn for session in sessions for turn in session.turns if turn.role == "assistant"]
    if any(turn.author is None for turn in writers):
        lacks["the model"] = None
    return tuple(lacks)
