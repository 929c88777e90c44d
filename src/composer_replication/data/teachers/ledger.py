"""The ledger: money is booked at worst case before a call and settled afterwards; every answer is
kept under its request.

    ledger = Ledger(Path("work/ledger.sqlite3"), max_usd=2.0)
    held = ledger.reserve(key, teacher=teacher, request=request, timeout_s=120)   # Call, or the Reply that was bought earlier
    ledger.settle(held, reply, price=teacher.price).usd                            # or .free(held), or .lose(held)

What is booked is `answered` calls at their cost + calls in flight and lost ones at their worst
case. Nothing is booked that would take this sum over the ceiling, whoever books: one transaction
looks and books, on one file, whatever the number of tasks and processes. Every booking is on the
disk before its request leaves. So a kill at any point leaves the call booked, as lost: it may have
been billed. An answer is on the disk, with its cost, from the transaction that settles it; from
then on asking the same costs nothing. Where the disk has no room for that transaction the answer
goes into blocks that were allocated before it was asked for (room.py), nothing more is asked, and
whoever opens the ledger next takes it over.

What a call cost is never taken from the endpoint alone: it is at least our own count of what was
sent and received, at the prices of the settings, and what the endpoint reports counts only where it
is more.

Amounts are whole billionths of a dollar, rounded up: sums of floating-point numbers would drift.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from composer_replication.core.errors import BudgetError, DataError, NoSpaceError
from composer_replication.core.files import make_folder, open_private
from composer_replication.core.teacher import (
    MOST_USD,
    Bought,
    Price,
    Request,
    Teacher,
    TeacherReply,
    Whose,
    canonical_json,
    prompt_sha,
    reply_from_json,
    reply_to_json,
    request_from_json,
    request_to_json,
    worst_usd,
)
from composer_replication.data.teachers.owner import new_owner, owner_is_alive
from composer_replication.data.teachers.room import (
    RELEASED,
    SLOT_BYTES,
    SpillFile,
    read_spill_files,
)

LEDGER_NAME = "ledger.sqlite3"
NANO = 10**9
_VERSION = 2
_BUSY_S = 60.0
_BYTES_A_TOKEN = 16
_STRANGERS_ROOM_S = 3600.0
"""The room of a process on another machine is left alone for so long."""
_TABLES = """
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
    basis TEXT NOT NULL DEFAULT 'worst_case' CHECK (basis IN ('worst_case', 'reported', 'tokens', 'by_hand')),
    reply BLOB,
    why TEXT NOT NULL DEFAULT '',
    owner TEXT NOT NULL,
    began REAL NOT NULL,
    until REAL NOT NULL,
    ended REAL,
    whose TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX IF NOT EXISTS one_answer ON calls (key) WHERE state = 'answered';
CREATE INDEX IF NOT EXISTS by_key ON calls (key);
CREATE INDEX IF NOT EXISTS by_state ON calls (state);
CREATE TABLE IF NOT EXISTS total (one INTEGER PRIMARY KEY CHECK (one = 1), booked INTEGER NOT NULL);
INSERT OR IGNORE INTO total VALUES (1, 0);
CREATE TRIGGER IF NOT EXISTS book_new AFTER INSERT ON calls BEGIN UPDATE total SET booked = booked + new.booked; END;
CREATE TRIGGER IF NOT EXISTS book_change AFTER UPDATE OF booked ON calls
    BEGIN UPDATE total SET booked = booked + new.booked - old.booked; END;
CREATE TRIGGER IF NOT EXISTS nothing_is_deleted BEFORE DELETE ON calls BEGIN SELECT RAISE(ABORT, 'a ledger only grows'); END;
"""
_SINCE_2 = "ALTER TABLE calls ADD COLUMN whose TEXT NOT NULL DEFAULT ''"
Basis = Literal["worst_case", "reported", "tokens", "by_hand"]
_Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A booking for one attempt, e.g. Call(id=12, worst_usd=0.031)."""

    id: int
    worst_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BookedCost:
    """What is booked for an answer, how that is known, and whose number it is, e.g.
    BookedCost(usd=0.003, basis="tokens", whose="ours")."""

    usd: float
    basis: Basis
    whose: Whose


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else, who is alive, is asking the same at this moment: wait for his answer instead
    of paying for another."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a ledger holds: dollars spent on answers, booked for calls in flight and for lost ones,
    and how many there are of each."""

    spent_usd: float
    in_flight_usd: float
    lost_usd: float
    num_answers: int
    num_in_flight: int
    num_lost: int

    @property
    def booked_usd(self) -> float:
        """What counts against the ceiling."""
        return self.spent_usd + self.in_flight_usd + self.lost_usd


class Ledger:
    """One SQLite file of calls; see the head of this module. Close it, or use it in a `with`.

    `max_usd` is the ceiling of the whole file, over all runs. `is_alive` tells whether an owner of
    calls in flight still runs.
    """

    def __init__(
        self, path: Path, *, max_usd: float, is_alive: Callable[[str], bool | None] = owner_is_alive
    ) -> None:
        if not (math.isfinite(max_usd) and max_usd >= 0):
            raise ValueError(f"max_usd must be a number of dollars, not {max_usd}")
        self.path, self.max_usd, self.owner, self._is_alive = path, max_usd, new_owner(), is_alive
        make_folder(path.parent)
        os.close(open_private(path, os.O_RDWR))  # answers and prompts are nobody else's business
        self._room, self._num_open, self._full = SpillFile(path, owner=self.owner), 0, ""
        self._in_room: dict[str, Bought] = {}
        self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        try:
            self._open()
        except sqlite3.OperationalError as error:
            self._db.close()
            raise _cannot_write(path, f"the ledger cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise DataError(
                f"not a ledger: {error}",
                where=str(path),
                fix="move the file away: a new one will be begun",
            ) from error

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        # a booking must survive a power cut, not only a kill
        self._db.execute("PRAGMA synchronous = FULL")
        with self._transaction() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, 1, _VERSION):
                raise DataError(
                    f"a ledger of version {version}, this program reads {_VERSION}",
                    where=str(self.path),
                )
            if version == 0:
                for statement in _statements(_TABLES):
                    db.execute(statement)
            if version == 1:
                db.execute(_SINCE_2)
            if version != _VERSION:
                db.execute(f"PRAGMA user_version = {_VERSION}")
            left = self._take_over(db)
            self._sweep(db)
        for file in left:
            file.unlink(missing_ok=True)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what is in flight stays booked, and what the disk had no room for waits
        for the next who opens it."""
        self._db.close()
        self._room.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and nobody else writes meanwhile."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise DataError(
                f"the ledger cannot be written: {error}",
                where=str(self.path),
                fix="end the program that holds it",
            ) from error
        try:
            yield self._db
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk ends some of them by itself
                self._db.execute("ROLLBACK")
            raise

    def find(self, key: str) -> Bought | None:
        """The answer to a request that was bought earlier, or None."""
        if (bought := self._in_room.get(key)) is not None:
            return bought
        row = self._db.execute(
            "SELECT reply, booked, whose FROM calls WHERE key = ? AND state = 'answered'", (key,)
        ).fetchone()
        if row is None:
            return None
        return Bought(
            reply=reply_from_json(_unpack(row[0])),
            usd=row[1] / NANO,
            now=False,
            key=key,
            whose=row[2],
        )

    def reserve(
        self, key: str, *, teacher: Teacher, request: Request, timeout_s: float
    ) -> Call | Busy | Bought:
        """Book the worst case of one attempt, unless the answer is there already or another is
        asking for it.

        `timeout_s`: how long the attempt may take at most; after that a call of a process on
        another machine counts as lost. The worst case is never below the dearest call of this
        teacher that cost more than was booked for it: its prices are too low.
        Raises BudgetError where the worst case does not fit under the ceiling any more,
        NoSpaceError where the disk has no room for the answer.
        """
        if self._full:
            raise self._no_space()
        try:
            self._room.make(
                (self._num_open + 1) * (SLOT_BYTES + _BYTES_A_TOKEN * request.max_tokens)
            )
            made = self._book(key, teacher=teacher, request=request, timeout_s=timeout_s)
        except (OSError, sqlite3.OperationalError) as error:
            raise _cannot_write(
                self.path, f"no room on the disk for an answer, so none was asked for: {error}"
            ) from error
        self._num_open += isinstance(made, Call)
        return made

    def _book(
        self, key: str, *, teacher: Teacher, request: Request, timeout_s: float
    ) -> Call | Busy | Bought:
        worst = to_nano(worst_usd(teacher, request))
        with self._transaction() as db:
            if (bought := self.find(key)) is not None:
                return bought
            if (busy := self._asked_by_another(db, key)) is not None:
                return busy
            dearest = (
                "SELECT MAX(booked) FROM calls WHERE teacher = ? AND booked > worst AND basis IN"
                " ('reported', 'tokens')"
            )
            worst = max(worst, db.execute(dearest, (teacher.name,)).fetchone()[0] or 0)
            booked = db.execute("SELECT booked FROM total").fetchone()[0]
            if worst and booked + worst > math.floor(Fraction(str(self.max_usd)) * NANO):
                raise self._over(worst, booked)
            sha, now = prompt_sha(request), time.time()
            db.execute(
                "INSERT OR IGNORE INTO prompts VALUES (?, ?)",
                (sha, _pack(request_to_json(request))),
            )
            made = db.execute(
                "INSERT INTO calls (key, prompt, teacher, about, state, booked, worst, owner,"
                " began, until) VALUES (?, ?, ?, ?, 'in_flight', ?, ?, ?, ?, ?)",
                (
                    key,
                    sha,
                    teacher.name,
                    request.about,
                    worst,
                    worst,
                    self.owner,
                    now,
                    now + timeout_s,
                ),
            )
            assert made.lastrowid is not None
            return Call(made.lastrowid, worst / NANO)

    def settle(self, call: Call, reply: TeacherReply, *, price: Price) -> BookedCost:
        """Keep an answer and book what it cost; returns that. See `cost_of` for whose number it is.

        Where the ledger cannot be written the answer goes into the room that was taken for it; then
        `reserve` refuses, and says where.
        """
        cost = cost_of(reply, price, call.worst_usd)
        key = self._key_of(call)
        record = {
            "id": call.id,
            "key": key,
            "reply": reply_to_json(reply),
            "nano": to_nano(cost.usd),
        }
        record |= {"basis": cost.basis, "whose": cost.whose, "ended": time.time()}
        try:
            with self._transaction() as db:
                self._keep(db, record)
        except (sqlite3.OperationalError, DataError) as error:
            self._keep_in_room(record, error)
            usd = record["nano"] / NANO
            self._in_room[key] = Bought(reply=reply, usd=usd, now=False, key=key, whose=cost.whose)
        self._num_open -= 1
        return cost

    def _key_of(self, call: Call) -> str:
        return self._db.execute("SELECT key FROM calls WHERE id = ?", (call.id,)).fetchone()[0]

    @staticmethod
    def _keep(db: sqlite3.Connection, record: _Record) -> None:
        """Write an answer into the row of its call; one that is there already is left as it is."""
        state = db.execute("SELECT state FROM calls WHERE id = ?", (record["id"],)).fetchone()[0]
        if state in ("answered", "again"):
            return
        # Somebody who seemed dead may have answered meanwhile: both were billed, one answer is
        # kept.
        twice = db.execute(
            "SELECT 1 FROM calls WHERE key = ? AND state = 'answered'", (record["key"],)
        ).fetchone()
        db.execute(
            "UPDATE calls SET state = ?, booked = ?, basis = ?, whose = ?, reply = ?, why = '',"
            " ended = ? WHERE id = ?",
            (
                "again" if twice else "answered",
                record["nano"],
                record["basis"],
                record["whose"],
                _pack(record["reply"]),
                record["ended"],
                record["id"],
            ),
        )

    def _keep_in_room(self, record: _Record, error: Exception) -> None:
        """Into the room with an answer that the ledger cannot take: whole, or without its body
        where that is too long for it."""
        self._full = self._full or str(error)
        slim = {**record, "reply": {**record["reply"], "raw": ""}}
        for one in (record, slim):
            try:
                self._room.keep(_pack(one))
                return
            except OSError as worse:
                last = worse
        self._full = f"{self._full}; an answer could not be kept at all: {last}"

    def _take_over(self, db: sqlite3.Connection) -> list[Path]:
        """Take over what dead processes kept beside the ledger because the disk was full; returns
        the files, to be removed after that."""
        left: list[Path] = []
        for path, owner, records in read_spill_files(self.path):
            until = path.stat().st_mtime + _STRANGERS_ROOM_S
            if owner != RELEASED and (self._runs(owner, until) if owner else time.time() < until):
                continue
            found = [_unpack(record) for record in records]
            ids = {row[0] for row in db.execute("SELECT id FROM calls WHERE state != 'free'")}
            # else it is another ledger's: left alone
            if all(record["id"] in ids for record in found):
                for record in found:
                    self._keep(db, record)
                left.append(path)
        return left

    def _no_space(self) -> NoSpaceError:
        kept = (
            f"; paid answers that it could not take ({len(self._in_room)}) are in {self._room.path}"
            if self._in_room
            else ""
        )
        return _cannot_write(self.path, f"the ledger cannot be written: {self._full}{kept}")

    def free(self, call: Call, *, why: str) -> None:
        """The endpoint refused before it began: nothing was billed, the booking goes."""
        self._end(call, "free", 0, why=why)

    def lose(self, call: Call, *, why: str) -> None:
        """No answer came, but it may have been billed: the booking stays at its worst case."""
        self._end(call, "lost", to_nano(call.worst_usd), why=why)

    def _end(self, call: Call, state: str, booked: int, *, why: str) -> None:
        """End a call without an answer; where that cannot be written it stays booked, as in flight
        and then as lost."""
        self._num_open -= 1
        try:
            with self._transaction() as db:
                db.execute(
                    "UPDATE calls SET state = ?, booked = ?, basis = 'worst_case', why = ?, ended ="
                    " ? WHERE id = ?",
                    (state, booked, why, time.time(), call.id),
                )
        except (sqlite3.OperationalError, DataError) as error:
            self._full = self._full or str(error)

    def settle_lost(self, usd: float) -> int:
        """Book all lost calls together at `usd`, what the provider's own bill says of them; returns
        how many there were."""
        with self._transaction() as db:
            lost = [
                row[0]
                for row in db.execute(
                    "SELECT id FROM calls WHERE state = 'lost' AND basis = 'worst_case' ORDER BY id"
                )
            ]
            for place, number in enumerate(lost):
                share = to_nano(usd) if place == 0 else 0
                db.execute(
                    "UPDATE calls SET booked = ?, basis = 'by_hand' WHERE id = ?", (share, number)
                )
        return len(lost)

    def prompt(self, key: str) -> Request | None:
        """The request as it was sent, trimmed, or None where it was never made."""
        row = self._db.execute(
            "SELECT body FROM prompts JOIN calls ON sha = prompt WHERE key = ? LIMIT 1", (key,)
        ).fetchone()
        return None if row is None else request_from_json(_unpack(row[0]))

    def totals(self) -> Totals:
        """What is spent, in flight and lost at this moment."""
        rows = self._db.execute(
            "SELECT state, SUM(booked), COUNT(*) FROM calls GROUP BY state"
        ).fetchall()
        usd, num = {s: b / NANO for s, b, _ in rows}, {s: n for s, _, n in rows}
        return Totals(
            spent_usd=usd.get("answered", 0.0) + usd.get("again", 0.0),
            in_flight_usd=usd.get("in_flight", 0.0),
            lost_usd=usd.get("lost", 0.0),
            num_answers=num.get("answered", 0),
            num_in_flight=num.get("in_flight", 0),
            num_lost=num.get("lost", 0),
        )

    def _asked_by_another(self, db: sqlite3.Connection, key: str) -> Busy | None:
        """Who is asking for `key` at this moment; calls of the dead become lost."""
        for number, owner, until in db.execute(
            "SELECT id, owner, until FROM calls WHERE key = ? AND state = 'in_flight'", (key,)
        ).fetchall():
            if self._runs(owner, until):
                return Busy(owner)
            self._lose_orphan(db, number)
        return None

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Calls in flight whose process has died are lost: they stay booked, and can be settled by
        hand."""
        for number, owner, until in db.execute(
            "SELECT id, owner, until FROM calls WHERE state = 'in_flight'"
        ).fetchall():
            if not self._runs(owner, until):
                self._lose_orphan(db, number)

    def _runs(self, owner: str, until: float) -> bool:
        alive = True if owner == self.owner else self._is_alive(owner)
        return time.time() < until if alive is None else alive

    @staticmethod
    def _lose_orphan(db: sqlite3.Connection, number: int) -> None:
        db.execute(
            "UPDATE calls SET state = 'lost', why = 'its process ended', ended = ? WHERE id = ?",
            (time.time(), number),
        )

    def _over(self, worst: int, booked: int) -> BudgetError:
        totals = self.totals()
        parts = (
            f"${totals.spent_usd:.4f} spent, ${totals.in_flight_usd:.4f} in flight,"
            f" ${totals.lost_usd:.4f} lost"
        )
        fix = "everything bought so far is kept: raise --max-usd and run the same command again"
        if totals.lost_usd > totals.spent_usd:
            last = (
                "SELECT teacher, why FROM calls WHERE state = 'lost' ORDER BY ended DESC, id DESC"
                " LIMIT 1"
            )
            teacher, why = self._db.execute(last).fetchone()
            fix = (
                f"most of it is booked for {totals.num_lost} calls that brought no answer, the last"
                f" one of {teacher} ({why}): look at its address, then book what the provider's"
                " bill says of them: recompose replay --settle-lost DOLLARS"
            )
        return BudgetError(
            f"the ceiling of ${self.max_usd:g} is reached: {parts}; the next call could cost"
            f" ${worst / NANO:.4f}",
            where=str(self.path),
            fix=fix,
        )


def bought_keys(path: Path) -> frozenset[str]:
    """The requests that a ledger holds answers to; none where there is no file. Nothing is
    written."""
    if not path.exists():
        return frozenset()
    try:
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        try:
            return frozenset(
                row[0] for row in db.execute("SELECT key FROM calls WHERE state = 'answered'")
            )
        finally:
            db.close()
    except sqlite3.DatabaseError as error:
        raise DataError(f"not a ledger: {error}", where=str(path)) from error


def to_nano(usd: float) -> int:
    """Dollars as whole billionths, rounded up.

    >>> to_nano(0.1), to_nano(1e-10)
    (100000000, 1)
    """
    return math.ceil(Fraction(str(usd)) * NANO)


def cost_of(reply: TeacherReply, price: Price, worst: float) -> BookedCost:
    """What is booked for an answer: our own count at our prices, or what the endpoint's numbers
    come to where that is more.

    An endpoint that reports neither its tokens nor a cost, or a cost that no call has (below 0,
    above MOST_USD, no number), may have billed anything up to the worst case: then that is booked.

    >>> from composer_replication.core.teacher import Usage; from composer_replication.core.trace import Turn
    >>> turn = Turn(role="assistant", author="m", blocks=())
    >>> cost_of(TeacherReply(turn=turn, usage=Usage(usd=0.0), sent_tokens=900), Price(input_usd_per_mtok=2.0), 0.5)
    BookedCost(usd=0.0018, basis='tokens', whose='ours')
    """
    usage = reply.usage
    ours = price.usd(input_tokens=reply.sent_tokens, output_tokens=reply.received_tokens)
    told: list[tuple[float, Basis]] = []
    if usage.input_tokens is not None and usage.output_tokens is not None:
        told.append(
            (
                price.usd(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens),
                "tokens",
            )
        )
    if usage.usd is not None:
        told.append((usage.usd, "reported"))
    if not told or not all(0 <= usd <= MOST_USD for usd, _ in told):
        return BookedCost(usd=max(worst, ours), basis="worst_case", whose="ours")
    most, basis = max(told)
    if ours >= most:
        return BookedCost(usd=ours, basis="tokens", whose="ours")
    return BookedCost(usd=most, basis=basis, whose="endpoint")


def _cannot_write(path: Path, what: str) -> NoSpaceError:
    fix = (
        "make room on the disk and run the same command again: nothing that was bought is lost, and"
        " none of it is asked for again"
    )
    return NoSpaceError(what, where=str(path), fix=fix)


def _pack(value: Any) -> bytes:
    return zlib.compress(canonical_json(value).encode("ascii"))


def _unpack(blob: bytes) -> Any:
    return json.loads(zlib.decompress(blob))


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would commit the transaction around
    it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
