"""A full disk at any write: what was bought is kept, is never asked for again, and nothing more is
bought."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import NoSpaceError
from composer_replication.core.teacher import Bought, Request, TeacherReply
from composer_replication.data.teachers.asking import Asker, RateLimits
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.room import SLOT_BYTES, SpillFile, read_spill_files
from tests.data.teachers.fake_teacher import FakeTeacher, reply, request

NAMES = [f"step {number}" for number in range(8)]


class Full(Ledger):
    """A ledger on a disk that is full from statement number `last` on."""

    last, num_statements = 10**9, 0

    def _transaction(self) -> Any:
        self.num_statements += 1
        return _full() if self.num_statements >= self.last else super()._transaction()


class _full:
    def __enter__(self) -> sqlite3.Connection:
        raise sqlite3.OperationalError("database or disk is full")

    def __exit__(self, *error: object) -> None:
        """Do nothing: no transaction was begun."""


def ask_all(ledger: Ledger, asked: list[str]) -> list[Any]:
    """Ask everything; return the answers and errors."""

    async def act(asked_request: Request) -> TeacherReply:
        asked.append(asked_request.turns[0].text)
        await asyncio.sleep(0.001)
        return reply(asked_request.turns[0].text, usd=0.25)

    async def work() -> list[Any]:
        asker = Asker(ledger, limits={"here": RateLimits(at_once=3)})
        return await asyncio.gather(
            *(asker.ask(FakeTeacher(act), request(name)) for name in NAMES), return_exceptions=True
        )

    return asyncio.run(work())


@pytest.mark.parametrize("last", range(2, 20))
def test_a_ledger_that_cannot_grow_loses_no_answer_and_asks_for_nothing_twice(
    tmp_path: Path, last: int
) -> None:
    path, asked = tmp_path / LEDGER_NAME, list[str]()
    Full.last = last
    with Full(path, max_usd=100.0) as ledger:
        outcomes = ask_all(ledger, asked)
    stopped = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    answered = {
        outcome.reply.turn.text for outcome in outcomes if not isinstance(outcome, BaseException)
    }
    assert all(isinstance(outcome, NoSpaceError) for outcome in stopped) and answered == set(asked)
    assert bool(stopped) == (len(asked) < len(NAMES))
    assert all(
        "nothing that was bought is lost" in str(outcome) and getattr(outcome, "exit_code", 0) == 1
        for outcome in stopped
    )
    with Ledger(path, max_usd=100.0) as ledger:
        assert ledger.totals().num_answers == len(asked) and ledger.totals().num_lost == 0, (
            "an answer was lost"
        )
        outcomes = ask_all(ledger, asked)
        assert [outcome.reply.turn.text for outcome in outcomes] == NAMES and sorted(
            asked
        ) == sorted(NAMES), "an answer was paid for twice"
        assert ledger.totals().spent_usd == 0.25 * len(NAMES) and not ledger.totals().in_flight_usd
    assert not list(read_spill_files(path))


def test_where_there_is_no_room_for_an_answer_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*full_calls: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    asked: list[str] = []
    with Ledger(tmp_path / LEDGER_NAME, max_usd=100.0) as ledger:
        outcomes = ask_all(ledger, asked)
        assert not asked and all(
            isinstance(outcome, NoSpaceError) and "none was asked for" in str(outcome)
            for outcome in outcomes
        )
        assert ledger.totals().booked_usd == 0.0


def test_files_that_may_not_grow_are_survived(tmp_path: Path) -> None:
    """Not injected: no file of a child process may grow beyond so many pages (RLIMIT_FSIZE, as a
    quota does), for every number of pages."""
    resource = pytest.importorskip("resource")
    saved = 0
    for pages in range(1, 60, 2):
        folder = tmp_path / str(pages)
        folder.mkdir()
        path, asked = folder / LEDGER_NAME, list[str]()
        Ledger(path, max_usd=100.0).close()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                with Ledger(path, max_usd=100.0) as ledger:
                    ledger._spill.reserve(16 * SLOT_BYTES)
                    begun = (folder / f"{LEDGER_NAME}-wal").stat().st_size
                    resource.setrlimit(
                        resource.RLIMIT_FSIZE, (begun + pages * 4096, resource.RLIM_INFINITY)
                    )
                    outcomes = ask_all(ledger, asked)
                    resource.setrlimit(
                        resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                    )
                    (folder / "asked").write_text("\n".join(asked))
                    code = (
                        0
                        if all(isinstance(outcome, (Bought, NoSpaceError)) for outcome in outcomes)
                        else 3
                    )
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, pages
        before = (folder / "asked").read_text().split()
        saved += any(records for _, _, records in read_spill_files(path))
        with Ledger(path, max_usd=100.0) as ledger:
            assert ledger.totals().num_answers * 2 == len(before), "an answer was lost"
            outcomes = ask_all(ledger, asked)
        assert [outcome.reply.turn.text for outcome in outcomes] == NAMES and not set(asked) & set(
            (folder / "asked").read_text().split("\n")
        )
    assert saved > 3, "the ledger itself had room for everything: nothing was tried"


def test_a_torn_record_is_left_out_and_one_of_a_live_process_is_left_alone(tmp_path: Path) -> None:
    ledger = tmp_path / LEDGER_NAME
    room = SpillFile(ledger, owner="host:1:2:abcd")
    room.reserve(100)
    for record in (b"one", b"two", b"three"):
        room.append(record)
    ((path, owner, records),) = read_spill_files(ledger)
    assert (owner, records) == (
        "host:1:2:abcd",
        [b"one", b"two", b"three"],
    ) and path.stat().st_mode & 0o077 == 0
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"three")] ^= 1
    path.write_bytes(raw)
    assert next(read_spill_files(ledger))[2] == [b"one", b"two"]
    with Ledger(ledger, max_usd=1.0, is_alive=lambda name: True):
        assert path.exists()


def test_a_full_ledger_books_nothing_more(tmp_path: Path) -> None:
    Full.last = 3  # opening and booking: no room for the first answer
    with Full(tmp_path / LEDGER_NAME, max_usd=100.0) as ledger:
        ask_all(ledger, [])
        # there is room again, and what could not be written has to be taken over first
        Full.last = 10**9
        with pytest.raises(NoSpaceError, match="cannot be written"):
            ledger.reserve(
                "key", teacher=FakeTeacher(act=_nobody), request=request("more"), timeout_s=1.0
            )


async def _nobody(asked_request: Request) -> TeacherReply:
    raise AssertionError
