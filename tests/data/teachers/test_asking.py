"""The asker books one attempt at a time, retries failures, and respects limits and pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import BudgetError, TeacherError
from composer_replication.core.teacher import Request, TeacherReply
from composer_replication.data.teachers.asking import (
    MAX_FAILED_IN_A_ROW,
    MAX_UNANSWERED_AT_START,
    Asker,
    RateLimits,
    RetryPolicy,
)
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from tests.data.teachers.fake_teacher import FakeTeacher, reply, request, says

QUICK = RetryPolicy(timeout_s=5.0, attempts=4, first_wait_s=0.001, longest_wait_s=2.0)
Step = TeacherReply | TeacherError | Callable[[], Coroutine[Any, Any, TeacherReply]]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def acting(*steps: Step) -> tuple[FakeTeacher, list[Request]]:
    """A teacher that does one thing after the other, and the list of what it was asked."""
    asked: list[Request] = []
    rest: Iterator[Step] = iter(steps)

    async def act(request: Request) -> TeacherReply:
        asked.append(request)
        step = next(rest)
        if isinstance(step, TeacherError):
            raise step
        return step if isinstance(step, TeacherReply) else await step()

    return FakeTeacher(act), asked


def busy(wait_s: float | None = None) -> TeacherError:
    return TeacherError("429", again=True, billed=False, wait_s=wait_s)


def cut() -> TeacherError:
    return TeacherError("the answer broke off", again=True, billed=True)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / LEDGER_NAME, max_usd=100.0) as opened:
        yield opened


def test_asked_again_until_it_answers_and_only_what_may_be_billed_stays_booked(
    ledger: Ledger,
) -> None:
    teacher, asked = acting(busy(), cut(), reply(usd=0.25))

    async def work() -> None:
        bought = await Asker(ledger, retry_policy=QUICK).ask(teacher, request())
        assert (bought.usd, bought.now) == (0.25, True)
        again = await Asker(ledger, retry_policy=QUICK).ask(teacher, request())
        assert (again.usd, again.now, again.reply) == (0.25, False, bought.reply)

    run(work())
    totals = ledger.totals()
    assert len(asked) == 3 and (
        totals.spent_usd,
        totals.lost_usd,
        totals.num_lost,
        totals.in_flight_usd,
    ) == (0.25, 1.0, 1, 0.0)


def test_what_cannot_succeed_is_not_tried_again(ledger: Ledger) -> None:
    for error in (TeacherError("no such model", again=False, billed=False), busy(wait_s=3600.0)):
        teacher, asked = acting(error)
        with pytest.raises(TeacherError, match=error.what):
            run(Asker(ledger, retry_policy=QUICK).ask(teacher, request()))
        assert len(asked) == 1
    teacher, asked = acting(*[busy() for _ in range(9)])
    with pytest.raises(TeacherError, match="429"):
        run(Asker(ledger, retry_policy=QUICK).ask(teacher, request()))
    assert len(asked) == QUICK.attempts and ledger.totals().booked_usd == 0.0


def test_a_teacher_that_hangs_is_given_up_and_stays_booked(ledger: Ledger) -> None:
    async def hang() -> TeacherReply:
        await asyncio.sleep(60)
        return reply()

    teacher, asked = acting(hang, reply(usd=0.5))
    bought = run(
        Asker(ledger, retry_policy=RetryPolicy(timeout_s=0.05, first_wait_s=0.001)).ask(
            teacher, request()
        )
    )
    assert bought.usd == 0.5 and len(asked) == 2 and ledger.totals().lost_usd == 1.0


def test_a_cancelled_call_and_a_fault_stay_booked(ledger: Ledger) -> None:
    async def hang() -> TeacherReply:
        await asyncio.sleep(60)
        return reply()

    async def broken() -> TeacherReply:
        raise ZeroDivisionError

    async def cancel() -> None:
        task = asyncio.create_task(Asker(ledger).ask(acting(hang)[0], request("a")))
        await asyncio.sleep(0.02)
        assert ledger.totals().num_in_flight == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cancel())
    with pytest.raises(ZeroDivisionError):
        run(Asker(ledger).ask(acting(broken)[0], request("b")))
    assert (ledger.totals().num_lost, ledger.totals().num_in_flight) == (2, 0)


def test_the_endpoints_pause_is_kept_by_every_call_to_it(ledger: Ledger) -> None:
    """The first call must wait 0.3 s; a second one that arrives in the meantime also begins after
    that."""
    begun: list[float] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()

        async def act(asked: Request) -> TeacherReply:
            begun.append(loop.time())
            if len(begun) == 1:
                raise busy(wait_s=0.3)
            return reply()

        asker, teacher = Asker(ledger, retry_policy=QUICK), FakeTeacher(act)
        first = asyncio.create_task(asker.ask(teacher, request("a")))
        await asyncio.sleep(0.02)
        elsewhere = FakeTeacher(act, name="other", provider="elsewhere")
        await asyncio.gather(
            first, asker.ask(teacher, request("b")), asker.ask(elsewhere, request("c"))
        )

    run(work())
    assert begun[1] - begun[0] < 0.2  # the other provider
    assert len(begun) == 4 and min(begun[2:]) - begun[0] >= 0.3


def test_limits_of_a_provider(ledger: Ledger) -> None:
    at_once = most = 0

    async def act(asked: Request) -> TeacherReply:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.005)
        at_once -= 1
        return reply()

    async def work() -> float:
        asker = Asker(
            ledger,
            limits={
                "here": RateLimits(at_once=3),
                "slow": RateLimits(at_once=9, per_minute=60 / 0.05),
            },
        )
        await asyncio.gather(*(asker.ask(FakeTeacher(act), request(str(n))) for n in range(12)))
        start = asyncio.get_running_loop().time()
        await asyncio.gather(
            *(asker.ask(says(provider="slow"), request(f"slow {n}")) for n in range(5))
        )
        return asyncio.get_running_loop().time() - start

    assert run(work()) >= 4 * 0.05 and most == 3


def test_jitter_grows_and_never_undercuts_what_the_endpoint_asked_for() -> None:
    rng, patience = random.Random(1), RetryPolicy(first_wait_s=1.0, longest_wait_s=8.0, attempts=9)
    waits = [
        [patience.wait_s(attempt, cut(), rng) or 0.0 for _ in range(50)]
        for attempt in (1, 2, 3, 4, 8)
    ]
    for most, drawn in zip((1, 2, 4, 8, 8), waits, strict=True):
        assert most / 2 <= min(drawn) < max(drawn) <= most and len(set(drawn)) > 40
    assert all((patience.wait_s(1, busy(5.0), rng) or 0.0) >= 5.0 for _ in range(50))
    assert patience.wait_s(9, cut(), rng) is None and patience.wait_s(1, busy(9.0), rng) is None


def test_the_same_request_twice_at_once_is_bought_once(ledger: Ledger) -> None:
    asked: list[Request] = []

    async def act(request: Request) -> TeacherReply:
        asked.append(request)
        await asyncio.sleep(0.02)
        return reply(usd=0.5)

    async def work() -> list[Any]:
        asker = Asker(ledger)
        return await asyncio.gather(
            *(asker.ask(FakeTeacher(act), request(about=f"s{n}:1:-")) for n in range(3))
        )

    bought = run(work())
    assert len(asked) == 1 and sorted(purchase.now for purchase in bought) == [False, False, True]


def test_room_under_the_ceiling_is_waited_for_while_calls_are_in_flight(tmp_path: Path) -> None:
    """Each call may cost a dollar and costs a tenth: with two dollars, twelve calls at once would
    overshoot the ceiling."""
    most = 0.0
    with Ledger(tmp_path / LEDGER_NAME, max_usd=2.0) as ledger:

        async def act(asked: Request) -> TeacherReply:
            nonlocal most
            most = max(most, ledger.totals().booked_usd)
            await asyncio.sleep(0.002)
            return reply(usd=0.1)

        async def work() -> list[Any]:
            asker = Asker(ledger, limits={"here": RateLimits(at_once=12)})
            return await asyncio.gather(
                *(asker.ask(FakeTeacher(act), request(str(n))) for n in range(12)),
                return_exceptions=True,
            )

        outcomes = run(work())
        stopped = [outcome for outcome in outcomes if isinstance(outcome, BudgetError)]
        # 1.1 spent, and 0.9 is no room for a dollar
        assert len(stopped) == 1 and ledger.totals().num_answers == 11
        assert most <= 2.0


def test_answers_of_a_teacher_without_identity_are_not_kept(ledger: Ledger) -> None:
    bought = run(Asker(ledger).ask(says(salt=""), request()))
    assert bought.reply.turn.text == "Done." and ledger.totals().num_answers == 0


def test_after_a_bill_above_its_booking_a_teacher_is_not_asked_any_more(ledger: Ledger) -> None:
    """A dollar was booked and 5 are billed: the answer is kept, the error names the teacher, and
    neither this request nor another is sent."""
    teacher, asked = acting(reply(usd=5.0), reply())

    async def work() -> None:
        asker = Asker(ledger, retry_policy=QUICK)
        for text in ("a", "b"):
            with pytest.raises(
                TeacherError, match=r"made billed \$5 for a call that was booked at \$1"
            ) as caught:
                await asker.ask(teacher, request(text))
            assert caught.value.for_all and not caught.value.again and caught.value.exit_code
        stored = asker.find(teacher, request("a"))
        assert stored is not None and stored.usd == 5.0
        # others may be asked
        assert (await asker.ask(says(name="other", salt="other"), request("b"))).usd == 0.25

    run(work())
    assert len(asked) == 1 and ledger.totals().spent_usd == 5.25


def test_a_bill_of_exactly_the_booking_is_none_above_it(ledger: Ledger) -> None:
    teacher, asked = acting(reply(usd=1.0), reply(usd=1.0 + 1e-9))
    for text in ("a", "b"):
        run(Asker(ledger, retry_policy=QUICK).ask(teacher, request(text)))
    assert len(asked) == 2


def test_a_teacher_whose_first_calls_are_all_lost_is_not_asked_any_more(ledger: Ledger) -> None:
    teacher, asked = acting(*[cut() for _ in range(MAX_UNANSWERED_AT_START)])

    async def work() -> None:
        asker = Asker(ledger, retry_policy=QUICK)
        with pytest.raises(TeacherError, match="broke off"):
            await asker.ask(teacher, request("a"))  # QUICK.attempts of them
        for text in "bc":
            with pytest.raises(
                TeacherError,
                match=r"first calls of made \(5\) brought no answer .* broke off .*base_url",
            ) as caught:
                await asker.ask(teacher, request(text))
            assert caught.value.for_all and "--max-usd" not in str(caught.value)

    run(work())
    assert len(asked) == MAX_UNANSWERED_AT_START == ledger.totals().num_lost


def test_calls_that_are_free_or_come_after_an_answer_do_not_end_the_asking(ledger: Ledger) -> None:
    steps = [
        *[busy() for _ in range(9)],
        reply(usd=0.1),
        *[cut() for _ in range(9)],
        reply(usd=0.1),
    ]
    teacher, asked = acting(*steps)
    patient = RetryPolicy(attempts=10, first_wait_s=0.0001)

    async def work() -> None:
        asker = Asker(ledger, retry_policy=patient)
        for text in "ab":
            assert (await asker.ask(teacher, request(text))).usd == 0.1

    run(work())
    assert len(asked) == len(steps)


def test_a_ceiling_that_lost_calls_reached_is_not_blamed(tmp_path: Path) -> None:
    """Two dollars are gone for two calls that brought nothing: this run names the teacher, the next
    one the ledger and what it holds."""
    with Ledger(tmp_path / LEDGER_NAME, max_usd=2.0) as small:
        teacher, asked = acting(cut(), cut())
        with pytest.raises(TeacherError, match=r"first calls of made \(2\) brought no answer"):
            run(Asker(small, retry_policy=QUICK).ask(teacher, request()))
        with pytest.raises(
            BudgetError,
            match=(
                r"2 calls that brought no answer, the last one of made \(the answer broke"
                r" off\).*--settle-lost"
            ),
        ) as over:
            run(Asker(small, retry_policy=QUICK).ask(teacher, request()))
        assert "raise --max-usd" not in str(over.value) and len(asked) == 2


def test_the_first_call_of_each_teacher_goes_alone_until_it_is_answered(ledger: Ledger) -> None:
    """Two calls of a teacher are lost before one is answered: until then one is in flight,
    afterwards many are; the other teacher goes on."""
    at_once: dict[str, int] = {"a": 0, "b": 0}
    most: list[tuple[str, int, int]] = []

    def teacher(name: str) -> FakeTeacher:
        num_answered = 0

        async def act(asked: Request) -> TeacherReply:
            nonlocal num_answered
            at_once[name] += 1
            most.append((name, num_answered, at_once[name]))
            await asyncio.sleep(0.005)
            at_once[name] -= 1
            num_answered += 1
            if num_answered <= 2:
                raise cut()
            return reply(usd=0.1)

        return FakeTeacher(act, name=name, salt=name, provider=name)

    async def work() -> None:
        asker = Asker(
            ledger,
            limits={"a": RateLimits(at_once=8), "b": RateLimits(at_once=8)},
            retry_policy=QUICK,
        )
        first, second = teacher("a"), teacher("b")
        await asyncio.gather(
            *(asker.ask(who, request(str(n))) for n in range(9) for who in (first, second))
        )

    run(work())
    for name in "ab":
        assert {now for who, num_before, now in most if who == name and num_before < 3} == {
            1
        } and max(now for who, _, now in most if who == name) > 2
    assert [who for who, _, _ in most[:2]] == ["a", "b"]


def test_a_wrong_price_costs_one_call_and_no_more(ledger: Ledger) -> None:
    asked: list[Request] = []

    async def act(asked_request: Request) -> TeacherReply:
        asked.append(asked_request)
        await asyncio.sleep(0.01)
        return reply(usd=40.0)

    async def work() -> list[Any]:
        asker, teacher = (
            Asker(ledger, limits={"here": RateLimits(at_once=16)}, retry_policy=QUICK),
            FakeTeacher(act),
        )
        return await asyncio.gather(
            *(asker.ask(teacher, request(str(n))) for n in range(20)), return_exceptions=True
        )

    assert (
        all(isinstance(outcome, TeacherError) for outcome in run(work()))
        and len(asked) == 1
        and ledger.totals().booked_usd == 40.0
    )


def test_the_next_run_books_what_the_dearest_call_cost(tmp_path: Path) -> None:
    with Ledger(tmp_path / LEDGER_NAME, max_usd=100.0) as ledger:
        with pytest.raises(TeacherError, match="billed"):
            run(Asker(ledger).ask(acting(reply(usd=40.0))[0], request("a")))
        teacher, asked = acting(reply(usd=40.0))
        assert run(Asker(ledger).ask(teacher, request("b"))).usd == 40.0
        with pytest.raises(BudgetError, match=r"the next call could cost \$40"):
            run(Asker(ledger).ask(teacher, request("c")))
        assert (
            len(asked) == 1 and run(Asker(ledger).ask(says(name="other"), request("c"))).usd == 0.25
        )


def test_refusals_without_end_are_given_up(ledger: Ledger) -> None:
    teacher, asked = acting(*[busy() for _ in range(500)])

    async def work() -> list[Any]:
        asker = Asker(ledger, retry_policy=RetryPolicy(attempts=3, first_wait_s=0.0001))
        return await asyncio.gather(
            *(asker.ask(teacher, request(str(n))) for n in range(100)), return_exceptions=True
        )

    errors = run(work())
    assert len(asked) <= 3 * (
        MAX_FAILED_IN_A_ROW + 100
    ) < 500 and "12 requests to made in a row brought no answer" in str(errors[-1])


def test_the_pauses_of_one_request_are_bounded_in_all() -> None:
    patience, rng = (
        RetryPolicy(longest_wait_s=10.0, all_waits_s=25.0, first_wait_s=0.0, attempts=99),
        random.Random(1),
    )
    waited = 0.0
    while (wait := patience.wait_s(1, busy(9.0), rng, waited_s=waited)) is not None:
        waited += wait
    assert waited == 18.0


def test_what_would_fail_for_all_is_asked_once(ledger: Ledger) -> None:
    refused = TeacherError("status 401", again=False, billed=False, for_all=True)
    teacher, asked = acting(*[refused] * 9)

    async def work() -> list[Any]:
        asker = Asker(ledger, retry_policy=QUICK)
        return await asyncio.gather(
            *(asker.ask(teacher, request(str(n))) for n in range(9)), return_exceptions=True
        )

    assert [str(error) for error in run(work())] == [str(refused)] * 9 and len(asked) == 1
