"""The tables of a ledger's file, and the steps from older versions of them.

with transaction() as db:
    bring_up_to_date(db, path=path)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from composer_replication.core.errors import DataError

_VERSION = 3
_CALLS = """
CREATE TABLE IF NOT EXISTS prompts (sha TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    prompt TEXT NOT NULL REFERENCES prompts(sha),
    teacher TEXT NOT NULL,
    about TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('in_flight', 'answered', 'again', 'lost', 'free')),
    booked INTEGER NOT NULL CHECK (booked >= 0),
    worst INTEGER NOT NULL CHECK (worst >= 0),
    basis TEXT NOT NULL DEFAULT 'worst_case' CHECK (basis IN \
('worst_case', 'reported', 'tokens', 'by_hand')),
    reply BLOB,
    why TEXT NOT NULL DEFAULT '',
    owner TEXT NOT NULL,
    began REAL NOT NULL,
    until REAL NOT NULL,
    ended REAL,
    whose TEXT NOT NULL DEFAULT '',
    batch INTEGER
);
CREATE UNIQUE INDEX IF NOT EXISTS one_answer ON calls (key) WHERE state = 'answered';
CREATE INDEX IF NOT EXISTS by_key ON calls (key);
CREATE INDEX IF NOT EXISTS by_state ON calls (state);
CREATE TABLE IF NOT EXISTS total (one INTEGER PRIMARY KEY CHECK (one = 1), booked INTEGER NOT NULL);
INSERT OR IGNORE INTO total VALUES (1, 0);
CREATE TRIGGER IF NOT EXISTS book_new AFTER INSERT ON calls BEGIN \
UPDATE total SET booked = booked + new.booked; END;
CREATE TRIGGER IF NOT EXISTS book_change AFTER UPDATE OF booked ON calls
    BEGIN UPDATE total SET booked = booked + new.booked - old.booked; END;
CREATE TRIGGER IF NOT EXISTS nothing_is_deleted BEFORE DELETE ON calls BEGIN \
SELECT RAISE(ABORT, 'a ledger only grows'); END;
"""
_UPGRADE_TO_2 = "ALTER TABLE calls ADD COLUMN whose TEXT NOT NULL DEFAULT ''"
_UPGRADE_TO_3 = "ALTER TABLE calls ADD COLUMN batch INTEGER"
_BATCHES = """
CREATE TABLE IF NOT EXISTS batches (
    id INTEGER PRIMARY KEY,
    teacher TEXT NOT NULL,
    base_url TEXT NOT NULL,
    price TEXT NOT NULL,
    file TEXT NOT NULL DEFAULT '',
    batch TEXT NOT NULL DEFAULT ''
);
"""


def bring_up_to_date(db: sqlite3.Connection, *, path: Path) -> None:
    """Create the tables, or change older ones, in the open transaction.

    Raises DataError if a newer program wrote the file.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in range(_VERSION + 1):
        raise DataError(
            f"a ledger of version {version}, this program reads {_VERSION}", where=str(path)
        )
    if version == 0:
        _run(db, _CALLS)
    if version == 1:
        db.execute(_UPGRADE_TO_2)
    if version in (1, 2):
        db.execute(_UPGRADE_TO_3)
    _run(db, _BATCHES)
    if version != _VERSION:
        db.execute(f"PRAGMA user_version = {_VERSION}")


def _run(db: sqlite3.Connection, script: str) -> None:
    """Run a script's statements; `executescript` would commit the open transaction."""
    for statement in _statements(script):
        db.execute(statement)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
