"""Whatever the concurrency, prices, failures and kills: what the provider bills is booked, and the
booked sum stays under the ceiling."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from composer_replication.core.errors import BudgetError, TeacherError
from composer_replication.core.teacher import Price, Request, TeacherReply
from composer_replication.data.teachers.asking import Asker, RateLimits, RetryPolicy
from composer_replication.data.teachers.booked_cost import NANO, to_nano
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from tests.data.teachers.fake_teacher import FakeTeacher, reply, request

OUTCOMES = ("ok", "ok", "ok", "no_usage", "refused", "cut", "fault", "hang", "kill")
QUICK = RetryPolicy(timeout_s=0.02, attempts=3, first_wait_s=0.0001)


class KilledError(BaseException):
    """The process is gone: nothing more is written."""


class Mortal(Ledger):
    """A ledger whose process can be killed: after that it writes nothing, as after SIGKILL."""

    dead = False

    def _transaction(self) -> Any:
        if self.dead:
            raise KilledError
        return super()._transaction()


@dataclass
class Provider:
    """Bills each request that it answers or begins to answer, and remembers which."""

    script: list[str]
    costs: list[float]
    worst: float
    dearest: float = 0.0
    billed: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    asked: list[str] = field(default_factory=list)
    most_over: float = 0.0
    excess: float = 0.0
    above: bool = False

    def serve(self, ledger: Mortal, ceiling: float) -> FakeTeacher:
        # in this life: by how much all bills were above what was booked for them is kept for all
        # lives
        self.above = False

        async def act(asked: Request) -> TeacherReply:
            assert not self.above, "a teacher was asked again after a bill above its booking"
            number = len(self.asked)
            self.asked.append(asked.turns[0].text)
            behaviour = self.script[number % len(self.script)]
            cost = self.costs[number % len(self.costs)] * self.worst
            # after a bill above its booking, later calls are booked at that bill at least
            booked = max(self.worst, self.dearest)
            self.most_over = max(self.most_over, ledger.totals().booked_usd - ceiling - self.excess)
            if behaviour == "refused":
                await asyncio.sleep(0)
                raise TeacherError("429", again=True, billed=False)
            # what is above the booking is known where an answer tells it, and nowhere else
            reports_cost = behaviour == "ok"
            # from here on it has its money, whatever becomes of the answer
            self.billed[asked.turns[0].text] += min(cost, booked)
            await asyncio.sleep(0.0005 * (number % 3))
            if behaviour == "kill":
                ledger.dead = True
                raise KilledError
            if behaviour == "hang":
                await asyncio.sleep(60)
            if behaviour == "cut":
                raise TeacherError("not whole JSON", again=True, billed=True)
            if behaviour == "fault":
                raise ZeroDivisionError
            if reports_cost and not ledger.dead and (over := to_nano(cost) - to_nano(booked)) > 0:
                self.billed[asked.turns[0].text] += cost - booked
                self.dearest = max(self.dearest, cost)
                self.above = self.above or over > 1  # a billionth of a dollar is rounding
                self.excess += over / NANO
            return reply(usd=cost if reports_cost else None)

        return FakeTeacher(act, price=Price(input_usd_per_mtok=self.worst * 1e6))


def one_life(
    path: Path,
    provider: Provider,
    *,
    ceiling: float,
    num: int,
    at_once: int,
    patience: RetryPolicy = QUICK,
) -> tuple[set[str], bool]:
    """Ask everything until done, the ceiling or a kill; returns the requests that were answered
    before, and whether it was killed."""
    ledger = Mortal(path, max_usd=ceiling, is_alive=lambda owner: False)
    with ledger:
        teacher = provider.serve(ledger, ceiling)

        async def work() -> list[Any]:
            asker = Asker(
                ledger, limits={"here": RateLimits(at_once=at_once)}, retry_policy=patience
            )

            async def ask(number: int) -> Any:
                try:
                    return await asker.ask(teacher, request(str(number)))
                except (BudgetError, TeacherError, ZeroDivisionError, KilledError) as error:
                    return error

            return await asyncio.gather(*(ask(number) for number in range(num)))

        outcomes = asyncio.run(work())
        named = [
            error
            for error in outcomes
            if isinstance(error, TeacherError) and "for a call that was booked at" in error.what
        ]
        assert bool(named) == provider.above, (
            "a bill above its booking is told by name, and nothing else is"
        )
        totals = ledger.totals()
        booked = dict[str, float]()
        for key, nano in ledger._db.execute("SELECT key, SUM(booked) FROM calls GROUP BY key"):
            asked_for = ledger.prompt(key)
            assert asked_for is not None
            booked[asked_for.turns[0].text] = nano / NANO
        # each request by itself: a lost call of another one must not make up for a forgotten one
        for text, usd in provider.billed.items():
            assert usd <= booked[text] + 1e-6 * provider.worst, (
                f"{text}: ${usd} was billed, ${booked[text]} is booked"
            )
        assert (
            totals.booked_usd <= ceiling + provider.excess + 1e-9 and provider.most_over <= 1e-9
        ), "the ceiling was overshot"
        rows = ledger._db.execute(
            "SELECT body FROM prompts JOIN calls ON sha = prompt WHERE state = 'answered'"
        ).fetchall()
        keys = [
            row[0] for row in ledger._db.execute("SELECT key FROM calls WHERE state = 'answered'")
        ]
        assert len(rows) == len(keys) == len(set(keys))
        asked = [ledger.prompt(key) for key in keys]
        return {prompt.turns[0].text for prompt in asked if prompt is not None}, ledger.dead


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    script=st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=12),
    costs=st.lists(
        st.floats(0.0, 1.0) | st.floats(0.0, 1.0) | st.floats(1.0, 40.0), min_size=1, max_size=5
    ),
    worst=st.sampled_from([1e-9, 0.0013, 0.1, 1.0]),
    room=st.floats(0.0, 12.0),
    num=st.integers(1, 9),
    at_once=st.integers(1, 9),
)
@example(script=["no_usage"], costs=[1.0], worst=1.0, room=9.0, num=2, at_once=2)
@example(script=["hang", "ok"], costs=[1.0], worst=1.0, room=9.0, num=2, at_once=1)
@example(script=["ok"], costs=[5.0], worst=1.0, room=3.0, num=9, at_once=3)
@example(script=["ok"], costs=[1.5], worst=0.0013, room=5.0, num=3, at_once=1)
@example(script=["ok"], costs=[2.0], worst=0.0013, room=4.0, num=2, at_once=1)
@example(script=["ok", "hang"], costs=[0.5, 0.5, 9.0], worst=0.1, room=12.0, num=9, at_once=4)
@example(script=["ok"], costs=[2.5], worst=1e-9, room=6.0, num=2, at_once=1)
@example(script=["kill", "ok"], costs=[1.0], worst=1.0, room=9.0, num=3, at_once=3)
def test_billed_is_booked_and_booked_is_under_the_ceiling(
    script: list[str], costs: list[float], worst: float, room: float, num: int, at_once: int
) -> None:
    """Three lives on one ledger, each ended by a kill, by the ceiling, or by being done; no
    answered request is sent again.

    A bill above its booking cannot be undone: then what is booked is over the ceiling by no more
    than what such bills are above their bookings, the error names them, and nothing more is sent in
    that life.
    """
    provider, ceiling = Provider(script=script, costs=costs, worst=worst), room * worst
    with tempfile.TemporaryDirectory() as folder:
        answered: set[str] = set()
        for _ in range(3):
            before = len(provider.asked)
            now, _ = one_life(
                Path(folder) / LEDGER_NAME, provider, ceiling=ceiling, num=num, at_once=at_once
            )
            assert not answered & set(provider.asked[before:]), "an answer was paid for twice"
            assert answered <= now, "an answer was lost"
            answered = now


def test_a_process_that_is_killed_books_what_was_in_flight() -> None:
    """The property above is not empty: of four calls at once the second kills; all four stay
    booked, and may be made again."""
    provider = Provider(script=["hang", "kill", "ok", "ok"], costs=[0.5], worst=1.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER_NAME
        _, dead = one_life(
            path,
            provider,
            ceiling=7.0,
            num=4,
            at_once=4,
            patience=RetryPolicy(timeout_s=2.0, attempts=1),
        )
        assert dead
        with Ledger(path, max_usd=7.0, is_alive=lambda owner: False) as ledger:
            totals = ledger.totals()
            assert totals.num_lost >= 2 and totals.lost_usd == float(totals.num_lost)
