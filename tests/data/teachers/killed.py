"""Kill a process before each statement that a ledger executes, one after the other, and check what
the next process finds.

    python -m tests.data.teachers.killed FOLDER    # prints {"kills": 71, "lost": 40, ...}

A failed check ends it with an AssertionError. This runs as a separate process because it forks, and
because a child ends as if by SIGKILL: no handler, no close, no rollback. The provider keeps its
bill in a file, written before it answers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from composer_replication.core.errors import TeacherError
from composer_replication.core.teacher import Price, Request, TeacherReply
from composer_replication.data.teachers.asking import Asker, RateLimits, RetryPolicy
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from tests.data.teachers.fake_teacher import FakeTeacher, reply, request

COST, WORST, CEILING = 0.25, 1.0, 9.0
NAMES = ("refused once", "cut once", "no usage")
KILLED = 9


class Doomed(Ledger):
    """A ledger whose process ends before its statement number `last`."""

    last, num_statements = 0, 0

    def _open(self) -> None:
        self._db.set_trace_callback(self._count)
        super()._open()

    def _count(self, statement: str) -> None:
        self.num_statements += 1
        if self.num_statements == self.last:
            os._exit(KILLED)


class Provider:
    """A provider whose bill is a file with one line for each request that it begins to answer."""

    def __init__(self, bill: Path) -> None:
        self.bill = bill

    @property
    def asked(self) -> list[str]:
        """The names of the billed requests, in order."""
        return self.bill.read_text().splitlines() if self.bill.exists() else []

    async def act(self, asked: Request) -> TeacherReply:
        name = asked.turns[0].text
        await asyncio.sleep(0)
        if name == "refused once" and not (mark := self.bill.with_name("refused")).exists():
            mark.touch()
            raise TeacherError("429", again=True, billed=False)
        before = self.asked.count(name)
        with self.bill.open("a") as file:
            file.write(f"{name}\n")
        if name == "cut once" and not before:
            raise TeacherError("not whole JSON", again=True, billed=True)
        return reply(name, usd=None if name == "no usage" else COST)


def live(folder: Path, *, last: int) -> None:
    """Ask everything through the ledger; the process ends before statement `last`, if there are so
    many."""
    Doomed.last = last
    provider = Provider(folder / "bill")
    with Doomed(folder / LEDGER_NAME, max_usd=CEILING) as ledger:
        teacher = FakeTeacher(provider.act, price=Price(input_usd_per_mtok=WORST * 1e6))

        async def work() -> list[Any]:
            patience = RetryPolicy(attempts=4, first_wait_s=0.0001)
            asker = Asker(ledger, limits={"here": RateLimits(at_once=2)}, retry_policy=patience)
            return await asyncio.gather(*(asker.ask(teacher, request(name)) for name in NAMES))

        assert [bought.reply.turn.text for bought in asyncio.run(work())] == list(NAMES)


def life(folder: Path, *, last: int) -> bool:
    """Run one life in a child process; return whether it reached its normal end."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            live(folder, last=last)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, KILLED), f"a life ended with {code}"
    return code == 0


def answered(folder: Path) -> set[str]:
    """Check the ledger's accounts, and return the texts of the answers that it holds."""
    provider = Provider(folder / "bill")
    with Ledger(folder / LEDGER_NAME, max_usd=CEILING) as ledger:
        totals = ledger.totals()
        billed = sum(WORST if name == "no usage" else COST for name in provider.asked)
        assert billed <= totals.booked_usd + 1e-9, f"billed {billed}, booked {totals}"
        assert totals.booked_usd <= CEILING and totals.num_in_flight == 0, totals
        keys = [
            row[0] for row in ledger._db.execute("SELECT key FROM calls WHERE state = 'answered'")
        ]
        texts = [bought.reply.turn.text for key in keys if (bought := ledger.find(key)) is not None]
        assert len(set(texts)) == len(texts) == len(keys)
        return set(texts)


def main(root: Path) -> dict[str, int]:
    """Kill at each statement of a first life, at a random one of a second, and let a third reach
    its end."""
    counts, rng, at, ended = Counter[str](), random.Random(7), 0, False
    while not ended:
        at += 1
        folder = root / str(at)
        folder.mkdir(parents=True)
        provider, had = Provider(folder / "bill"), set[str]()
        for number, last in enumerate((at, rng.randint(1, 60), 0)):
            before = len(provider.asked)
            completed = life(folder, last=last)
            ended = ended or (number == 0 and completed)
            counts["kills"] += not completed
            now = answered(folder)
            assert had <= now, "an answer was lost"
            assert not had & set(provider.asked[before:]), "an answered call was paid for twice"
            had = now
        assert had == set(NAMES)
        with Ledger(folder / LEDGER_NAME, max_usd=CEILING) as ledger:
            counts["lost"] += ledger.totals().num_lost
    return {**counts, "statements": at}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
