"""The result of reading one file, and what later files need to know of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import blake2b, sha256

from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Parent, Session
from composer_replication.data.ingestion.counts import FileReport

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_NUMBERED = re.compile(r"~\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The result of one file: its report, and the sessions to store.

    `marks` are hashes of the ids by which the results of other files may depend on this one:
    messages, calls, sessions. `folders` are those in which its sessions ran, as logged.
    """

    report: FileReport
    sessions: tuple[Session, ...] = ()
    marks: tuple[int, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(slots=True)
class Links:
    """The facts of earlier files that later files need: names in use, and the calls that started
    subagents.

    `names` are session names in use; `calls` maps (session id, agent id or prompt key) to the
    parent and the model that made the call; `parents` are the ids of sessions whose subagents have
    files; `roots` are the folders in which sessions ran; `repositories` maps a session with
    subagents to its repository; `prefixes` are hashes of the beginnings of other agents' sessions,
    `logged_ids` their formats and ids as logged.
    """

    names: set[str] = field(default_factory=set)
    calls: dict[tuple[str, str], tuple[Parent, str | None]] = field(default_factory=dict)
    parents: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    repositories: dict[str, str] = field(default_factory=dict)
    prefixes: set[bytes] = field(default_factory=set)
    logged_ids: set[tuple[str, str]] = field(default_factory=set)


def mark_of(key: str) -> int:
    """Hash an id to 60 bits, the size up to which a Python integer takes 32 bytes; the same in
    every process.

    >>> mark_of("msg_1") == mark_of("msg_1"), mark_of("msg_1") == mark_of("msg_2")
    (True, False)
    """
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) & 0xFFFFFFFFFFFFFFF


def is_wanted(session: Session, patterns: Sequence[str]) -> bool:
    """Whether one of these models wrote in the session; no patterns = all sessions."""
    if not patterns:
        return True
    authors = {turn.author for turn in session.turns if turn.role == "assistant" and turn.author}
    return any(fnmatchcase(author, pattern) for author in authors for pattern in patterns)


def new_redactions(redactor: Redactor | None, counts_before: dict[str, int]) -> dict[str, int]:
    """What the redactor has removed since `counts_before`, by kind."""
    counts = redactor.counts if redactor is not None else {}
    return {
        kind: n - counts_before.get(kind, 0)
        for kind, n in counts.items()
        if n != counts_before.get(kind, 0)
    }


def safe_name(name: str, fallback: str) -> str:
    """A session id that is safe in a file name or a shell line: as logged if it is plain, else a
    hash."""
    if _SAFE_NAME.fullmatch(name):
        return name
    return "s-" + sha256((name or fallback).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def base_name(session_id: str) -> str:
    """A session's id without the number that distinguishes its versions.

    >>> base_name("s1~2"), base_name("s1")
    ('s1', 's1')
    """
    return _NUMBERED.sub("", session_id)


def claim_name(name: str, links: Links) -> str:
    """Take a session name that no other session of this reading has: `name`, else `name~2` ..."""
    unique, count = name, 1
    while unique in links.names:
        count += 1
        unique = f"{name}~{count}"
    links.names.add(unique)
    return unique
