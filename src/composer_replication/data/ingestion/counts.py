"""Counts per file: of the raw records, taken while reading, and of the Sessions built from them.

The two are computed separately on purpose: a merge or a join that loses something shows as a
difference between them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

from composer_replication.core.trace import INTERRUPT_PREFIX, Session, Text

_OPENING_CHARS = 400
"""Only the opening is read: an error comes first, and a long result may quote anything below."""

# First match wins. `^` anchors a pattern where the words also occur in ordinary output.
_ERROR_CLASSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("user_rejected", re.compile(r"^The user doesn't want to")),
    ("interrupted", re.compile(r"^\[Request interrupted")),
    ("permission_aborted", re.compile(r"Permission prompt was aborted")),
    (
        "permission_denied",
        re.compile(
            r"^Permission for this action was denied|^Permission to use|requested permissions"
        ),
    ),
    ("sibling_errored", re.compile(r"Sibling tool call errored")),
    ("bash_exit", re.compile(r"^Exit code")),
    ("edit_not_read", re.compile(r"has not been read yet")),
    ("edit_no_match", re.compile(r"String to replace not found")),
    ("edit_multi_match", re.compile(r"^<tool_use_error>Found \d+ matches")),
    ("edit_stale", re.compile(r"modified since read|unexpectedly modified")),
    ("file_missing", re.compile(r"does not exist")),
    ("input_validation", re.compile(r"InputValidationError")),
    ("too_large", re.compile(r"exceeds maximum allowed")),
    ("tool_use_error_other", re.compile(r"^<tool_use_error>")),
)
_OTHER = "other"
ERROR_CLASSES: tuple[str, ...] = (*(name for name, _ in _ERROR_CLASSES), _OTHER)


NOT_A_MODEL_ERROR = (
    "user_rejected",
    "interrupted",
    "permission_aborted",
    "permission_denied",
    "sibling_errored",
)
MAX_DAMAGE_SHOWN = 20
Status = Literal["read", "duplicate", "foreign", "damaged", "empty", "unreadable", "refused"]


def opening_error_class(text: str) -> str:
    """The class of an error result by its opening words, for the counts of a file.

    It describes the *result*. Whether the call was a mistake, and of which kind, is another
    question, which the finer tables of `data/sites/tool_errors.py` and `shell_rules.py` answer.

    >>> opening_error_class("Exit code 1\\nFAILED tests/test_a.py")
    'bash_exit'
    >>> opening_error_class("File does not exist.")
    'file_missing'
    """
    head = text.strip()[:_OPENING_CHARS]
    return next((name for name, pattern in _ERROR_CLASSES if pattern.search(head)), _OTHER)


@dataclass(slots=True)
class RawCounts:
    """Counts of a file's records before anything is merged or dropped.

    `records` are lines that decode to an object; `damaged_lines` are the others. `damage` lists the
    first of these, and fields left out because of their type, with line and reason. `duplicates`
    are records or blocks that occur twice.
    """

    records: int = 0
    record_types: dict[str, int] = field(default_factory=dict)
    session_ids: dict[str, int] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)
    models: dict[str, int] = field(default_factory=dict)
    assistant_records: int = 0
    sidechain_records: int = 0
    interleaved: set[str] = field(default_factory=set)
    attachments: Counter[str] = field(default_factory=Counter)
    unknown_types: Counter[str] = field(default_factory=Counter)
    unknown_attachments: Counter[str] = field(default_factory=Counter)
    opaque_blocks: Counter[str] = field(default_factory=Counter)
    damaged_lines: int = 0
    odd_fields: int = 0
    damage: list[tuple[int, str]] = field(default_factory=list)
    duplicates: int = 0
    dangling_parents: int = 0
    copied_inside: int = 0

    def note(self, line: int, why: str) -> None:
        """Record a damaged line and the reason; only the first few are kept."""
        if len(self.damage) < MAX_DAMAGE_SHOWN:
            self.damage.append((line, why))


class MessageCounts:
    """Message-level counts over sessions, added one at a time and not kept.

    `assistant_messages` includes the records that no model wrote (stored as "synthetic" events);
    `model_messages` does not. `error_kinds` counts results with is_error by kind.
    Example: counts = MessageCounts(); counts.add(session); counts.to_json()["tool_use"] -> 58
    """

    def __init__(self, *, kind_of: Callable[[str], str] = opening_error_class) -> None:
        self.num_sessions = 0
        self._kind_of = kind_of
        self._count: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._calls: set[str] = set()
        self._answered: set[str] = set()

    def add(self, session: Session) -> None:
        """Add one session to the counts."""
        count = self._count
        self.num_sessions += 1
        for turn in session.turns:
            if turn.role == "assistant":
                ids = {call.id for call in turn.calls}
                self._calls |= ids
                count["model_messages"] += 1
                count["parallel_messages"] += len(ids) > 1
            elif turn.role == "tool":
                for result in turn.results:
                    count["tool_result"] += 1
                    self._answered.add(result.call_id)
                    if result.is_error:
                        self._kinds[self._kind_of(result.text)] += 1
            elif turn.tag == "interrupt":
                count["interrupt_texts"] += sum(
                    isinstance(b, Text) and b.text.startswith(INTERRUPT_PREFIX) for b in turn.blocks
                )
        for event in session.events:
            count[event.kind] += 1

    def to_json(self) -> dict[str, Any]:
        """Return the counts so far, under the names that a file's report uses."""
        count, kinds = self._count, self._kinds
        return {
            "assistant_messages": count["model_messages"] + count["synthetic"],
            "model_messages": count["model_messages"],
            "synthetic_messages": count["synthetic"],
            "tool_use": len(self._calls),
            "tool_result": count["tool_result"],
            "tool_use_without_result": len(self._calls - self._answered),
            "tool_result_without_use": len(self._answered - self._calls),
            "is_error": sum(kinds.values()),
            "error_kinds": dict(kinds),
            "not_a_model_error": sum(kinds[k] for k in NOT_A_MODEL_ERROR),
            "parallel_messages": count["parallel_messages"],
            "interrupt_texts": count["interrupt_texts"],
            "compact_boundaries": count["compaction"],
            "microcompactions": count["microcompaction"],
            "hook_blocks": count["hook_blocked"],
            "queued_texts": count["queued"],
        }


def session_counts(
    sessions: Iterable[Session], *, kind_of: Callable[[str], str] = opening_error_class
) -> dict[str, Any]:
    """Compute the message-level counts from the sessions alone.

    Example: session_counts([session])["tool_use"] -> 58
    """
    counts = MessageCounts(kind_of=kind_of)
    for session in sessions:
        counts.add(session)
    return counts.to_json()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """The outcome of reading one file.

    `status`: "read" | "duplicate" (another file holds all of it) | "foreign" (not Claude Code) |
    "damaged" (no readable record) | "empty" | "unreadable" | "refused". `why` gives the reason if
    it is not "read". `counts` are `session_counts` of the file's own sessions; `progress_counts`
    those of subagents whose messages are in progress records of this file. The names of the
    latter are `progress_names`; `session_names` includes them. `format` names the format of another
    agent ("" = Claude Code), `lacks` what that log does not hold.
    """

    file: str
    status: Status
    why: str = ""
    num_bytes: int = 0
    sha256: str = ""
    raw: RawCounts = field(default_factory=RawCounts)
    counts: Mapping[str, Any] = field(default_factory=dict)
    progress_counts: Mapping[str, Any] = field(default_factory=dict)
    session_names: tuple[str, ...] = ()
    progress_names: tuple[str, ...] = ()
    num_subagents: int = 0
    num_copied_turns: int = 0
    num_filtered: int = 0
    num_requests: int = 0
    num_verified: int = 0
    redactions: Mapping[str, int] = field(default_factory=dict)
    format: str = ""
    lacks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON: counts of raw records, of the sessions, and of omissions."""
        raw = self.raw
        return {
            "file": self.file,
            "status": self.status,
            "why": self.why,
            "format": self.format or ("claude_code" if self.session_names else ""),
            "lacks": list(self.lacks),
            "bytes": self.num_bytes,
            "sha256": self.sha256,
            "versions": sorted(raw.versions),
            "records": raw.records,
            "record_types": dict(raw.record_types),
            "session_ids": len(raw.session_ids),
            "models": dict(raw.models),
            "assistant_records": raw.assistant_records,
            "interleaved_messages": len(raw.interleaved),
            "sidechain_records": raw.sidechain_records,
            "attachments": dict(raw.attachments),
            **self.counts,
            "sessions": list(self.session_names),
            "subagents": self.num_subagents,
            "progress_subagents": dict(self.progress_counts),
            "copied_turns": self.num_copied_turns,
            "copied_inside": raw.copied_inside,
            "filtered_sessions": self.num_filtered,
            "requests": self.num_requests,
            "requests_verified": self.num_verified,
            "duplicates": raw.duplicates,
            "dangling_parents": raw.dangling_parents,
            "unknown_types": dict(raw.unknown_types),
            "unknown_attachments": dict(raw.unknown_attachments),
            "opaque_blocks": dict(raw.opaque_blocks),
            "damaged_lines": raw.damaged_lines,
            "odd_fields": raw.odd_fields,
            "damage": [{"line": line, "why": why} for line, why in raw.damage],
            "redactions": dict(self.redactions),
        }


def recount(reports: Sequence[FileReport], stored: Iterable[Session]) -> list[FileReport]:
    """The reports with the message counts of the sessions on disk, so that a loss in writing shows;
    one session in memory at a time.

    A session counts for the report that names it, in `progress_counts` if the report lists it
    there. Names without a stored session drop out of `session_names`.
    Example: recount(reports, read_sessions(path))[0].to_json()["is_error"] -> 4
    """
    report_of = {
        name: index for index, report in enumerate(reports) for name in report.session_names
    }
    updated = [_with_counts(report, ()) for report in reports]
    # groupby suffices, as the sessions of one file are stored one after the other
    for index, sessions in groupby(stored, key=lambda session: report_of.get(session.id)):
        if index is not None:
            updated[index] = _with_counts(reports[index], sessions)
    return updated


def _with_counts(report: FileReport, sessions: Iterable[Session]) -> FileReport:
    """Return the report with the counts of these sessions in place of its own."""
    counts, progress_counts = MessageCounts(), MessageCounts()
    names: list[str] = []
    num_subagents = num_copied = 0
    for session in sessions:
        (progress_counts if session.id in report.progress_names else counts).add(session)
        names.append(session.id)
        num_subagents += session.parent is not None
        num_copied += session.copied
    return replace(
        report,
        counts=counts.to_json(),
        progress_counts=(
            {"sessions": progress_counts.num_sessions, **progress_counts.to_json()}
            if report.progress_names
            else {}
        ),
        session_names=tuple(names),
        num_subagents=num_subagents,
        num_copied_turns=num_copied,
    )
