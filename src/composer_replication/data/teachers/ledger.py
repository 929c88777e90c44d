"""The ledger: each call is booked at its worst case before it is sent and settled afterwards.

    ledger = Ledger(Path("work/ledger.sqlite3"), max_usd=2.0)
    call = ledger.reserve(key, teacher=teacher, request=request, timeout_s=120)
    ledger.settle(call, reply, price=teacher.price).usd    # or ledger.free(call), ledger.lose(call)

The booked sum is the cost of answered calls plus the worst case of those in flight and lost. No
booking may take it over the ceiling: one transaction on one file checks and books, whatever the
number of tasks and processes. A booking is on disk before its request is sent; after a kill at any
point the call is still booked, as lost, because it may have been billed. The transaction that
settles a call writes its answer and its cost; from then on the same request costs nothing. If the
disk has no room for that transaction, the answer goes into blocks that were allocated before the
request (room.py), no further request is sent, and whoever opens the ledger next imports it.

Calls may belong to a batch (batch_queue.py). The provider keeps its answers, so a kill loses none
of its calls: they stay in flight until somebody collects the batch. If the input file of a batch
was never noted, nothing was sent, and its calls are released.

What a call cost is in booked_cost.py, the tables are in ledger_schema.py.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from composer_replication.core.errors import BudgetError, DataError, NoSpaceError
from composer_replication.core.files import make_folder, open_private
from composer_replication.core.teacher import (
    Bought,
    Price,
    Request,
    Teacher,
    TeacherReply,
    canonical_json,
    prompt_sha,
    reply_from_json,
    reply_to_json,
    request_from_json,
    request_to_json,
    worst_usd,
)
from composer_replication.data.teachers.booked_cost import NANO, BookedCost, cost_of, to_nano
from composer_replication.data.teachers.ledger_schema import bring_up_to_date
from composer_replication.data.teachers.owner import new_owner, owner_is_alive
from composer_replication.data.teachers.room import (
    RELEASED,
    SLOT_BYTES,
    SpillFile,
    read_spill_files,
)

LEDGER_NAME = "ledger.sqlite3"
_BUSY_S = 60.0
_BYTES_A_TOKEN = 16
_FOREIGN_SPILL_S = 3600.0
"""The time for which the spill file of a process on another machine is left alone."""
_Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A booking for one attempt, e.g. Call(id=12, worst_usd=0.031); `batch` is its batch's row."""

    id: int
    worst_usd: float
    batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch whose calls are not all settled: its row, and the provider's ids of it.

    `file` is noted before the batch is created, `batch` afterwards; "" = not known. `calls` are by
    the keys of their requests, which are the `custom_id` of the batch's lines.
    Example: OpenBatch(row=1, teacher="ash", base_url=url, price=price, file="file-1", calls={})
    """

    row: int
    teacher: str
    base_url: str
    price: Price
    file: str = ""
    batch: str = ""
    calls: Mapping[str, Call]


@dataclass(frozen=True, slots=True)
class Busy:
    """Another living process has the same request in flight: wait for it, do not pay twice."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The dollars and numbers of answered calls, calls in flight and lost calls of a ledger."""

    spent_usd: float
    in_flight_usd: float
    lost_usd: float
    num_answers: int
    num_in_flight: int
    num_lost: int

    @property
    def booked_usd(self) -> float:
        """The dollars that count against the ceiling."""
        return self.spent_usd + self.in_flight_usd + self.lost_usd


class Ledger:
    """One SQLite file of calls; see the head of this module. Close it, or use it in a `with`.

    `max_usd` is the ceiling of the whole file, over all runs. `is_alive` returns whether the owner
    of a call in flight still runs, None if unknown.
    """

    def __init__(
        self, path: Path, *, max_usd: float, is_alive: Callable[[str], bool | None] = owner_is_alive
    ) -> None:
        if not (math.isfinite(max_usd) and max_usd >= 0):
            raise ValueError(f"max_usd must be a number of dollars, not {max_usd}")
        self.path, self.max_usd, self.owner, self._is_alive = path, max_usd, new_owner(), is_alive
        make_folder(path.parent)
        os.close(open_private(path, os.O_RDWR))  # answers and prompts are private
        self._spill, self._num_open, self._write_error = SpillFile(path, owner=self.owner), 0, ""
        self._in_spill: dict[str, Bought] = {}
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
        # A booking must survive a power cut, not only a kill.
        self._db.execute("PRAGMA synchronous = FULL")
        with self._transaction() as db:
            bring_up_to_date(db, path=self.path)
            imported_files = self._take_over(db)
            self._lose_orphans(db)
        for file in imported_files:
            file.unlink(missing_ok=True)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; calls in flight stay booked, spilled answers wait for the next opener."""
        self._db.close()
        self._spill.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a write transaction; it excludes all other writers."""
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
            if self._db.in_transaction:  # a full disk may have rolled it back already
                self._db.execute("ROLLBACK")
            raise

    def find(self, key: str) -> Bought | None:
        """Return the answer to a request that was bought earlier, or None."""
        if (bought := self._in_spill.get(key)) is not None:
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
        self,
        key: str,
        *,
        teacher: Teacher,
        request: Request,
        timeout_s: float,
        batch: int | None = None,
    ) -> Call | Busy | Bought:
        """Book the worst case of one attempt, unless it is answered already or in flight elsewhere.

        `batch` is the row of `begin_batch` for a call in a batch. After `timeout_s` a call of a
        process on another machine counts as lost. If a call of this teacher has cost more than its
        booking, the prices are too low: then the worst case is at least the dearest such call.
        Raises BudgetError if the worst case does not fit under the ceiling, NoSpaceError if the
        disk has no room for the answer.
        """
        if self._write_error:
            raise self._no_space()
        try:
            if batch is None:  # the answers of a batch stay at the provider until they are here
                self._spill.reserve(
                    (self._num_open + 1) * (SLOT_BYTES + _BYTES_A_TOKEN * request.max_tokens)
                )
            booking = self._book(
                key, teacher=teacher, request=request, timeout_s=timeout_s, batch=batch
            )
        except (OSError, sqlite3.OperationalError) as error:
            raise _cannot_write(
                self.path, f"no room on the disk for an answer, so none was asked for: {error}"
            ) from error
        self._num_open += isinstance(booking, Call) and batch is None
        return booking

    def _book(
        self,
        key: str,
        *,
        teacher: Teacher,
        request: Request,
        timeout_s: float,
        batch: int | None,
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
            # In whole billionths: a float sum could slip over the ceiling. A free call always
            # passes, even if the ceiling is reached.
            if worst and booked + worst > math.floor(Fraction(str(self.max_usd)) * NANO):
                raise self._over_ceiling(worst, booked)
            sha, now = prompt_sha(request), time.time()
            db.execute(
                "INSERT OR IGNORE INTO prompts VALUES (?, ?)",
                (sha, _pack(request_to_json(request))),
            )
            cursor = db.execute(
                "INSERT INTO calls (key, prompt, teacher, about, state, booked, worst, owner,"
                " began, until, batch) VALUES (?, ?, ?, ?, 'in_flight', ?, ?, ?, ?, ?, ?)",
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
                    batch,
                ),
            )
            assert cursor.lastrowid is not None
            return Call(cursor.lastrowid, worst / NANO, batch)

    def begin_batch(self, teacher: str, *, base_url: str, price: Price) -> int:
        """Return the row of a new batch, to be filled by `reserve`; nothing was sent yet."""
        row = self._write_batch(
            "INSERT INTO batches (teacher, base_url, price) VALUES (?, ?, ?)",
            (teacher, base_url, canonical_json(asdict(price))),
        )
        assert row is not None
        return row

    def note_batch(self, row: int, *, file: str, batch: str = "") -> None:
        """Note the provider's ids: `file` before the batch is created, `batch` before any wait."""
        self._write_batch("UPDATE batches SET file = ?, batch = ? WHERE id = ?", (file, batch, row))

    def _write_batch(self, statement: str, values: tuple[Any, ...]) -> int | None:
        try:
            with self._transaction() as db:
                return db.execute(statement, values).lastrowid
        except sqlite3.OperationalError as error:
            raise _cannot_write(self.path, f"a batch could not be noted: {error}") from error

    def open_batches(self) -> list[OpenBatch]:
        """Return the batches that were sent and not settled, unless another process waits."""
        rows = self._db.execute(
            "SELECT batches.id, batches.teacher, base_url, price, file, batches.batch, calls.id,"
            " key, worst, owner, until FROM calls JOIN batches ON batches.id = calls.batch"
            " WHERE state = 'in_flight' AND file != '' ORDER BY calls.id"
        ).fetchall()
        found: dict[int, tuple[OpenBatch, dict[str, Call]]] = {}
        for row, teacher, base_url, price, file, batch, call_id, key, worst, owner, until in rows:
            if owner != self.owner and self._is_running(owner, until):
                continue
            if row not in found:
                calls = dict[str, Call]()
                found[row] = (
                    OpenBatch(
                        row=row,
                        teacher=teacher,
                        base_url=base_url,
                        price=Price(**json.loads(price)),
                        file=file,
                        batch=batch,
                        calls=calls,
                    ),
                    calls,
                )
            found[row][1][key] = Call(call_id, worst / NANO, row)
        return [open_batch for open_batch, _ in found.values()]

    def has_answer_of_batch(self, teacher: str, *, base_url: str) -> bool:
        """Return whether a batch of this teacher has ever brought an answer."""
        query = (
            "SELECT 1 FROM calls JOIN batches ON batches.id = calls.batch"
            " WHERE calls.teacher = ? AND base_url = ? AND state = 'answered' LIMIT 1"
        )
        return self._db.execute(query, (teacher, base_url)).fetchone() is not None

    def settle(self, call: Call, reply: TeacherReply, *, price: Price) -> BookedCost:
        """Store an answer and book its cost, which is returned; see `cost_of`.

        If the ledger cannot be written the answer goes into the spill file; from then on `reserve`
        raises NoSpaceError, which names that file.
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
                self._store_answer(db, record)
        except (sqlite3.OperationalError, DataError) as error:
            if call.batch is not None:  # it stays in flight, and its answer at the provider
                self._write_error = self._write_error or str(error)
                raise self._no_space() from error
            self._spill_answer(record, error)
            usd = record["nano"] / NANO
            self._in_spill[key] = Bought(reply=reply, usd=usd, now=False, key=key, whose=cost.whose)
        self._num_open -= call.batch is None
        return cost

    def _key_of(self, call: Call) -> str:
        return self._db.execute("SELECT key FROM calls WHERE id = ?", (call.id,)).fetchone()[0]

    @staticmethod
    def _store_answer(db: sqlite3.Connection, record: _Record) -> None:
        """Write an answer into the row of its call; an answer that is there already stays."""
        state = db.execute("SELECT state FROM calls WHERE id = ?", (record["id"],)).fetchone()[0]
        if state in ("answered", "again"):
            return
        # A process that seemed dead may have answered meanwhile: both calls were billed, and one
        # answer is kept.
        already_answered = db.execute(
            "SELECT 1 FROM calls WHERE key = ? AND state = 'answered'", (record["key"],)
        ).fetchone()
        db.execute(
            "UPDATE calls SET state = ?, booked = ?, basis = ?, whose = ?, reply = ?, why = '',"
            " ended = ? WHERE id = ?",
            (
                "again" if already_answered else "answered",
                record["nano"],
                record["basis"],
                record["whose"],
                _pack(record["reply"]),
                record["ended"],
                record["id"],
            ),
        )

    def _spill_answer(self, record: _Record, error: Exception) -> None:
        """Append an answer to the spill file, without its raw body if it does not fit with it."""
        self._write_error = self._write_error or str(error)
        without_body = {**record, "reply": {**record["reply"], "raw": ""}}
        # The body is only for inspection: the parsed reply is what counts as the answer.
        for candidate in (record, without_body):
            try:
                self._spill.append(_pack(candidate))
                return
            except OSError as spill_error:
                last_error = spill_error
        self._write_error = f"{self._write_error}; an answer could not be kept at all: {last_error}"

    def _take_over(self, db: sqlite3.Connection) -> list[Path]:
        """Import spill files of dead processes; return them, to be removed after the commit."""
        imported_files: list[Path] = []
        for path, owner, records in read_spill_files(self.path):
            until = path.stat().st_mtime + _FOREIGN_SPILL_S
            if owner != RELEASED and (
                self._is_running(owner, until) if owner else time.time() < until
            ):
                continue
            answers = [_unpack(record) for record in records]
            ids = {row[0] for row in db.execute("SELECT id FROM calls WHERE state != 'free'")}
            # Otherwise it belongs to another ledger and is left alone.
            if all(record["id"] in ids for record in answers):
                for record in answers:
                    self._store_answer(db, record)
                imported_files.append(path)
        return imported_files

    def _no_space(self) -> NoSpaceError:
        spilled = (
            f"; paid answers that it could not take ({len(self._in_spill)}) are in"
            f" {self._spill.path}"
            if self._in_spill
            else ""
        )
        return _cannot_write(
            self.path, f"the ledger cannot be written: {self._write_error}{spilled}"
        )

    def free(self, call: Call, *, why: str) -> None:
        """Release a booking: the endpoint refused the request, and nothing was billed."""
        self._end_unanswered(call, "free", 0, why=why)

    def lose(self, call: Call, *, why: str) -> None:
        """Keep a booking at its worst case: no answer came, but the call may have been billed."""
        self._end_unanswered(call, "lost", to_nano(call.worst_usd), why=why)

    def _end_unanswered(self, call: Call, state: str, booked: int, *, why: str) -> None:
        """End a call without an answer; it stays booked if that cannot be written."""
        self._num_open -= call.batch is None
        try:
            with self._transaction() as db:
                db.execute(
                    "UPDATE calls SET state = ?, booked = ?, basis = 'worst_case', why = ?, ended ="
                    " ? WHERE id = ?",
                    (state, booked, why, time.time(), call.id),
                )
        except (sqlite3.OperationalError, DataError) as error:
            self._write_error = self._write_error or str(error)

    def settle_lost(self, usd: float) -> int:
        """Book all lost calls together at `usd`, the provider's bill; return their number."""
        with self._transaction() as db:
            lost = [
                row[0]
                for row in db.execute(
                    "SELECT id FROM calls WHERE state = 'lost' AND basis = 'worst_case' ORDER BY id"
                )
            ]
            for position, call_id in enumerate(lost):
                share = to_nano(usd) if position == 0 else 0
                db.execute(
                    "UPDATE calls SET booked = ?, basis = 'by_hand' WHERE id = ?", (share, call_id)
                )
        return len(lost)

    def prompt(self, key: str) -> Request | None:
        """Return the request as it was sent, trimmed, or None if there was none."""
        row = self._db.execute(
            "SELECT body FROM prompts JOIN calls ON sha = prompt WHERE key = ? LIMIT 1", (key,)
        ).fetchone()
        return None if row is None else request_from_json(_unpack(row[0]))

    def totals(self) -> Totals:
        """Return the dollars and numbers of answered calls, calls in flight and lost calls."""
        rows = self._db.execute(
            "SELECT state, SUM(booked), COUNT(*) FROM calls GROUP BY state"
        ).fetchall()
        usd, num = (
            {state: booked / NANO for state, booked, _ in rows},
            {state: count for state, _, count in rows},
        )
        return Totals(
            spent_usd=usd.get("answered", 0.0) + usd.get("again", 0.0),
            in_flight_usd=usd.get("in_flight", 0.0),
            lost_usd=usd.get("lost", 0.0),
            num_answers=num.get("answered", 0),
            num_in_flight=num.get("in_flight", 0),
            num_lost=num.get("lost", 0),
        )

    def _asked_by_another(self, db: sqlite3.Connection, key: str) -> Busy | None:
        """Return the living owner of a call of `key` in flight; lose calls of dead owners."""
        for call_id, owner, until, batch in db.execute(
            "SELECT id, owner, until, batch FROM calls WHERE key = ? AND state = 'in_flight'",
            (key,),
        ).fetchall():
            if self._is_running(owner, until):
                return Busy(owner)
            if batch is not None:
                raise DataError(
                    "this was asked in a batch that nobody has collected yet",
                    where=str(self.path),
                    fix="collect it, or it would be paid for twice: recompose replay --resume",
                )
            self._lose_orphan(db, call_id)
        return None

    def _lose_orphans(self, db: sqlite3.Connection) -> None:
        """Mark calls of dead processes as lost: they stay booked, and can be settled by hand.

        Those of a batch stay in flight if it was sent, and are released if it was not.
        """
        for call_id, owner, until, file in db.execute(
            "SELECT calls.id, owner, until, file FROM calls LEFT JOIN batches ON batches.id ="
            " calls.batch WHERE state = 'in_flight'"
        ).fetchall():
            if self._is_running(owner, until):
                continue
            if file is None:
                self._lose_orphan(db, call_id)
            elif not file:
                db.execute(
                    "UPDATE calls SET state = 'free', booked = 0, why = 'its batch was not sent',"
                    " ended = ? WHERE id = ?",
                    (time.time(), call_id),
                )

    def _is_running(self, owner: str, until: float) -> bool:
        alive = True if owner == self.owner else self._is_alive(owner)
        return time.time() < until if alive is None else alive

    @staticmethod
    def _lose_orphan(db: sqlite3.Connection, call_id: int) -> None:
        db.execute(
            "UPDATE calls SET state = 'lost', why = 'its process ended', ended = ? WHERE id = ?",
            (time.time(), call_id),
        )

    def _over_ceiling(self, worst: int, booked: int) -> BudgetError:
        totals = self.totals()
        parts = (
            f"${totals.spent_usd:.4f} spent, ${totals.in_flight_usd:.4f} in flight,"
            f" ${totals.lost_usd:.4f} lost"
        )
        fix = "everything bought so far is kept: raise --max-usd and run the same command again"
        if totals.lost_usd > totals.spent_usd:
            query = (
                "SELECT teacher, why FROM calls WHERE state = 'lost' ORDER BY ended DESC, id DESC"
                " LIMIT 1"
            )
            teacher, why = self._db.execute(query).fetchone()
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
    """Return the keys of the requests that a ledger has answers to, without writing to it."""
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


def _cannot_write(path: Path, message: str) -> NoSpaceError:
    fix = (
        "make room on the disk and run the same command again: nothing that was bought is lost, and"
        " none of it is asked for again"
    )
    return NoSpaceError(message, where=str(path), fix=fix)


def _pack(value: Any) -> bytes:
    return zlib.compress(canonical_json(value).encode("ascii"))


def _unpack(blob: bytes) -> Any:
    return json.loads(zlib.decompress(blob))
