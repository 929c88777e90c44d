"""The store: sessions.jsonl accumulates, because agents delete their logs; ingest.json records when
each session was seen, and in which log.

    record = read_record(work / "ingest.json", sessions=work / "sessions.jsonl")
    plan = plan_merge(work / "sessions.jsonl", fresh, record=record, now="2026-11-22T13:31:56Z")
    write_merged(plan, out)        # only if plan.is_changed

A session is identified by its id and its content. A new reading of the same log (with other
settings, or other words to redact) replaces the old one; a session that has grown replaces its
earlier state; one with less content than the store never replaces it; one that differs without
being a continuation is stored under another name (s1~2). Sessions that these logs do not contain
stay unchanged, byte for byte.

Only one session at a time is in memory; of the others only their offset, a hash and the hashes of
their call ids.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from composer_replication.core.codec import RawSession, raw_session_at, raw_sessions, session_bytes
from composer_replication.core.trace import Session, Turn
from composer_replication.data.ingestion.file_results import base_name
from composer_replication.data.ingestion.ingest_record import IngestRecord, SessionEntry

_CALL = re.compile(rb'\["c","((?:[^"\\]|\\.){1,512})"')
_MARK = 0xFFFFFFFFFFFFFFF


class _Location(NamedTuple):
    offset: int
    length: int
    sha256: str
    log_sha256: str


@dataclass(slots=True)
class StoreUpdate:
    """The plan of a merge: the outcome of each session, and the bytes to write.

    `outcomes` maps an outcome to names of sessions: added, grown, reread, same, shorter, apart,
    copies, forgotten, cleaned (redacted anew), gone (not among these logs). `names` maps the names
    of this reading to those in the store.
    """

    store: Path
    record: IngestRecord
    order: list[str] = field(default_factory=list)
    old: dict[str, _Location] = field(default_factory=dict)
    new: dict[str, bytes | tuple[Path, int, int]] = field(default_factory=dict)
    outcomes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, str] = field(default_factory=dict)
    is_changed: bool = False


def covers(long: tuple[Turn, ...], short: tuple[Turn, ...]) -> bool:
    """Whether `long` contains every turn of `short` in the same order; a message that was cut off
    may have grown."""
    remaining = iter(long)
    return all(
        any(_is_continuation(turn, short_turn) for turn in remaining) for short_turn in short
    )


def _is_continuation(turn: Turn, short_turn: Turn) -> bool:
    return (
        turn.role == short_turn.role and turn.blocks[: len(short_turn.blocks)] == short_turn.blocks
    )


def plan_merge(
    store: Path,
    fresh: Path,
    *,
    record: IngestRecord,
    now: str,
    mark: str = "",
    clean: Callable[[Session], Session] | None = None,
    unread: Iterable[str] = (),
) -> StoreUpdate:
    """Decide the outcome of each session in `store` and `fresh`; updates `record`, writes nothing.

    `clean` redacts a stored session again; it applies to sessions stored under another `mark`
    (other words to redact, another version of the rules). `unread` names the stored sessions of
    logs that are as they were, and were not read for that reason.
    """
    plan = StoreUpdate(store=store, record=record)
    for raw in raw_sessions(store) if store.exists() else ():
        plan.order.append(raw.id)
        plan.old[raw.id] = _locate(raw)
        record.sessions.setdefault(raw.id, SessionEntry.of(raw.header, first_seen=record.since))
    for name in record.sessions.keys() - plan.old.keys():
        del record.sessions[name]
    merge = _Merge(plan, fresh, now=now, mark=mark, clean=clean)
    merge.run(set(unread))
    return plan


def write_merged(plan: StoreUpdate, stream: BinaryIO) -> int:
    """Write the store as planned; returns the number of sessions."""
    for name in plan.order:
        new = plan.new.get(name)
        if isinstance(new, bytes):
            stream.write(new)
            continue
        path, offset, length = new if new is not None else (plan.store, *plan.old[name][:2])
        stream.write(raw_session_at(path, offset, length).data)
    return len(plan.order)


class _Merge:
    """One pass over the fresh sessions, then one over the names of the store."""

    def __init__(
        self,
        plan: StoreUpdate,
        fresh: Path,
        *,
        now: str,
        mark: str,
        clean: Callable[[Session], Session] | None,
    ) -> None:
        self.plan, self.fresh, self.now, self.mark, self.clean = plan, fresh, now, mark, clean
        self.record = plan.record
        self.versions: dict[str, list[str]] = defaultdict(list)
        for name in plan.old:
            self.versions[base_name(name)].append(name)
        self.matched_names: set[str] = set()

    def run(self, unread: Set[str]) -> None:
        for name in self.plan.order:
            if name in unread:
                self.matched_names.add(name)
                self.plan.outcomes["same"].append(name)
                entry = self.record.sessions[name]
                self.record.sessions[name] = replace(entry, last_seen=self.now)
        bases = {base_name(raw.id) for raw in raw_sessions(self.fresh)}
        gone = [n for n in self.plan.order if base_name(n) not in bases and n not in unread]
        calls = self._calls_of(gone)
        for raw in raw_sessions(self.fresh):
            self._merge_session(raw, calls)
        for name in self.plan.order:
            if (
                name not in self.matched_names
                and self.clean is not None
                and self.record.sessions[name].mark != self.mark
            ):
                self._clean(name)
        self.plan.outcomes["gone"] = [
            name for name in self.plan.order if name not in self.matched_names
        ]

    def _calls_of(self, names: list[str]) -> set[int]:
        """The hashed call ids of sessions whose logs are gone: turns that a later session copied
        from them are still recognised as copies."""
        calls: set[int] = set()
        for name in names:
            location = self.plan.old[name]
            data = raw_session_at(self.plan.store, location.offset, location.length).data
            calls.update(hash(call) & _MARK for call in _CALL.findall(data))
        return calls

    def _merge_session(self, raw: RawSession, calls: set[int]) -> None:
        plan, entry = (
            self.plan,
            SessionEntry.of(raw.header, first_seen=self.now, last_seen=self.now, mark=self.mark),
        )
        # A subagent follows its session, which comes before it in the file.
        parent = raw.header["session"].get("parent") or {}
        # A stored session was not removed by `forget`, so the forgotten name does not refer to it.
        is_known = bool(self.versions[base_name(raw.id)])
        if (not is_known and self.record.is_forgotten(base_name(raw.id), entry)) or parent.get(
            "session_id"
        ) in plan.outcomes["forgotten"]:
            plan.outcomes["forgotten"].append(raw.id)
            return
        decoded = raw.decode(where=str(self.fresh))
        session = self._linked(decoded, calls)
        if session.copied and not any(True for _ in session.assistant_turns()):
            plan.outcomes["copies"].append(raw.id)
            return
        name, outcome, session = self._decide(session, entry)
        plan.names[raw.id] = name
        plan.outcomes[outcome].append(name)
        self.matched_names.add(name)
        before = self.record.sessions.get(name)
        needs_cleaning = name in plan.old and not self._is_clean(name)
        if before is not None:
            updated = replace(before, mark=self.mark) if outcome == "shorter" else entry
            entry = replace(updated, first_seen=before.first_seen, last_seen=self.now)
        self.record.sessions[name] = entry
        if outcome in ("same", "shorter") and not needs_cleaning:
            return
        plan.is_changed = True
        if name not in plan.old:
            plan.order.append(name)
        is_unchanged = outcome != "shorter" and (session.id, session.copied, session.parent) == (
            raw.id,
            decoded.copied,
            decoded.parent,
        )
        plan.new[name] = (
            (self.fresh, raw.offset, len(raw.data)) if is_unchanged else session_bytes(session)
        )

    def _linked(self, session: Session, calls: set[int]) -> Session:
        """The session with its parent's name in the store, and with the turns that it copied from
        sessions of earlier runs counted as copies."""
        parent = session.parent
        if (
            parent is not None
            and (name := self.plan.names.get(parent.session_id, parent.session_id))
            != parent.session_id
        ):
            session = replace(session, parent=replace(parent, session_id=name))
        copied = copied_turns(session, calls) if calls else 0
        return replace(session, copied=copied) if copied > session.copied else session

    def _decide(self, session: Session, entry: SessionEntry) -> tuple[str, str, Session]:
        """Return (name in the store, outcome, session to write)."""
        candidates = [
            name for name in self.versions[base_name(session.id)] if name not in self.matched_names
        ]
        # The version from the same log comes first, so that a reread replaces that one.
        for name in sorted(
            candidates, key=lambda n: self.plan.old[n].log_sha256 != entry.log_sha256
        ):
            old = self._load_stored(name)
            session = replace(session, id=name)
            if (
                old.copied > session.copied
                and old.turns[: old.copied] == session.turns[: old.copied]
            ):
                session = replace(session, copied=old.copied)
            is_same = replace(
                session, source=old.source, started=old.started, ended=old.ended
            ) == old and not _reports_more(session, old)
            if is_same and self._is_clean(name):
                return name, "same", old
            if entry.log_sha256 and self.plan.old[name].log_sha256 == entry.log_sha256:
                return name, "reread", session
            if covers(session.turns, old.turns):
                return name, "grown", session
            if covers(old.turns, session.turns):
                return name, "shorter", old
        # No stored version is this session or a part of it: find a free name.
        taken = {*self.plan.old, *self.plan.names.values()}
        name = base_name(session.id) if self.versions[base_name(session.id)] else session.id
        count = 1
        while name in taken:
            count += 1
            name = f"{base_name(session.id)}~{count}"
        return (
            name,
            "apart" if self.versions[base_name(session.id)] else "added",
            replace(session, id=name),
        )

    def _is_clean(self, name: str) -> bool:
        return self.clean is None or self.record.sessions[name].mark == self.mark

    def _load_stored(self, name: str) -> Session:
        """Load a session of the store, redacted by the rules of today."""
        location = self.plan.old[name]
        session = raw_session_at(self.plan.store, location.offset, location.length).decode(
            where=str(self.plan.store)
        )
        return session if self._is_clean(name) or self.clean is None else self.clean(session)

    def _clean(self, name: str) -> None:
        """Redact a stored session again whose log is gone."""
        data = session_bytes(self._load_stored(name))
        self.record.sessions[name] = replace(self.record.sessions[name], mark=self.mark)
        if hashlib.sha256(data).hexdigest() != self.plan.old[name].sha256:
            self.plan.new[name] = data
            self.plan.outcomes["cleaned"].append(name)
            self.plan.is_changed = True


def _reports_more(session: Session, old: Session) -> bool:
    """Whether the log names times or tokens that the stored session, of an earlier version of this
    program or read while a message was being written, does not."""
    fresh, stored = (
        [(turn.written_at, turn.usage) for turn in side.turns] for side in (session, old)
    )
    return fresh != stored and any(written_at for written_at, _ in fresh)


def copied_turns(session: Session, calls: set[int]) -> int:
    """Count the leading turns that other sessions hold, too, by the ids of their calls."""
    copied = 0
    for index, turn in enumerate(session.turns):
        ids = [call.id for call in turn.calls] + [result.call_id for result in turn.results]
        if any(hash(call_id.encode("utf-8", "surrogatepass")) & _MARK in calls for call_id in ids):
            copied = index + 1
        elif ids:
            break
    return copied


def _locate(raw: RawSession) -> _Location:
    log = raw.header["session"].get("source", {}).get("sha256", "")
    return _Location(raw.offset, len(raw.data), hashlib.sha256(raw.data).hexdigest(), str(log))


def remaining_sessions(store: Path, *, names: Set[str]) -> Iterator[bytes]:
    """Yield the bytes of the sessions of a store, except those of these names."""
    return (raw.data for raw in raw_sessions(store) if raw.id not in names)
