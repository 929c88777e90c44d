"""The ledger: the ceiling holds, what was bought is kept, and what was in flight stays booked."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.errors import BudgetError, DataError
from composer_replication.core.teacher import Bought, Price, Usage, prompt_sha, request_key
from composer_replication.core.trace import ToolCall
from composer_replication.data.teachers.booked_cost import cost_of, to_nano
from composer_replication.data.teachers.ledger import (
    LEDGER_NAME,
    Busy,
    Call,
    Ledger,
)
from tests.data.teachers.fake_teacher import FakeTeacher, calling, reply, request, says

TEACHER = says()


def nobody(owner: str) -> bool:
    """As after a kill: no owner is alive."""
    return False


def book(
    ledger: Ledger, text: str = "go", *, teacher: FakeTeacher = TEACHER
) -> Call | Busy | Bought:
    asked = request(text)
    return ledger.reserve(
        request_key(teacher, asked), teacher=teacher, request=asked, timeout_s=60.0
    )


def held(ledger: Ledger, text: str = "go", *, teacher: FakeTeacher = TEACHER) -> Call:
    call = book(ledger, text, teacher=teacher)
    assert isinstance(call, Call)
    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / LEDGER_NAME


def test_the_worst_case_is_booked_before_and_the_cost_after(file: Path) -> None:
    with Ledger(file, max_usd=2.0) as ledger:
        call = held(ledger)
        assert call.worst_usd == 1.0 and ledger.totals().in_flight_usd == 1.0
        assert ledger.settle(call, reply(usd=0.25), price=TEACHER.price).usd == 0.25
        totals = ledger.totals()
        assert (totals.spent_usd, totals.in_flight_usd, totals.num_answers, totals.booked_usd) == (
            0.25,
            0.0,
            1,
            0.25,
        )


def test_nothing_is_booked_beyond_the_ceiling(file: Path) -> None:
    """Two dollars: one call in flight, one answered for 0.25, and there is room for less than
    another dollar."""
    with Ledger(file, max_usd=2.0) as ledger:
        ledger.settle(held(ledger, "a"), reply(usd=0.25), price=TEACHER.price)
        call = held(ledger, "b")
        with pytest.raises(BudgetError, match=r"\$0.2500 spent, \$1.0000 in flight") as caught:
            book(ledger, "c")
        assert caught.value.exit_code == 4 and ledger.totals().booked_usd == 1.25
        ledger.free(call, why="refused")
        held(ledger, "c")


def test_exactly_the_ceiling_may_be_booked(file: Path) -> None:
    with Ledger(file, max_usd=0.3) as ledger:
        for text in "abc":
            held(ledger, text, teacher=says(price=Price(request_usd=0.1)))
        assert ledger.totals().in_flight_usd == pytest.approx(0.3)
        with pytest.raises(BudgetError):
            book(ledger, "d", teacher=says(price=Price(request_usd=0.1)))


@pytest.mark.parametrize("max_usd", [0.999999999, 0.9999999999])
def test_a_call_that_is_a_nano_dollar_over_the_ceiling_is_refused(
    file: Path, max_usd: float
) -> None:
    """A ceiling between two whole billionths is the lower one."""
    with Ledger(file, max_usd=max_usd) as ledger, pytest.raises(BudgetError):
        book(ledger)


def test_the_last_nano_dollar_may_be_booked(file: Path) -> None:
    with Ledger(file, max_usd=1.000000001) as ledger:
        held(ledger, "a")
        held(ledger, "b", teacher=says(price=Price(request_usd=1e-9)))
        with pytest.raises(BudgetError):
            book(ledger, "c", teacher=says(price=Price(request_usd=1e-9)))


def test_the_ceiling_is_that_of_the_file_whoever_opens_it(file: Path) -> None:
    with Ledger(file, max_usd=2.0) as first, Ledger(file, max_usd=2.0) as second:
        held(first, "a")
        held(second, "b")
        for ledger in (first, second):
            with pytest.raises(BudgetError):
                book(ledger, "c")


def test_free_teachers_need_no_room(file: Path) -> None:
    with Ledger(file, max_usd=0.5) as ledger:
        ledger.settle(
            held(ledger, "a", teacher=says(price=Price(request_usd=0.5))),
            reply(usd=0.9),
            price=TEACHER.price,
        )
        held(ledger, "b", teacher=says(price=Price(), name="free"))
        with pytest.raises(BudgetError):
            book(ledger, "c", teacher=says(price=Price(request_usd=1e-9)))


def test_an_answer_is_bought_once(file: Path) -> None:
    answer = reply("Read it.", usd=0.25, input_tokens=7, cached_tokens=5)
    with Ledger(file, max_usd=2.0) as ledger:
        ledger.settle(held(ledger), answer, price=TEACHER.price)
    with Ledger(file, max_usd=0.0) as again:
        bought = book(again)
        assert (
            isinstance(bought, Bought)
            and bought.reply == answer
            and (bought.usd, bought.now) == (0.25, False)
        )
        assert again.totals().booked_usd == 0.25
        assert again.find(request_key(says(salt="other"), request())) is None


def test_an_answer_with_calls_comes_back_as_it_was(file: Path) -> None:
    turn = calling("edit", path="a.py", text="\ud800 lone", many=[1, {"x": None}])
    with Ledger(file, max_usd=2.0) as ledger:
        ledger.settle(held(ledger), replace(reply(), turn=turn, raw="{"), price=TEACHER.price)
        bought = book(ledger)
    assert isinstance(bought, Bought) and bought.reply.turn == turn and bought.reply.raw == "{"
    assert isinstance(bought.reply.turn.blocks[0], ToolCall)


def test_a_call_of_somebody_alive_is_waited_for(file: Path) -> None:
    with Ledger(file, max_usd=5.0) as first, Ledger(file, max_usd=5.0) as second:
        held(first)
        assert isinstance(book(second), Busy) and isinstance(book(first), Busy)
        assert first.totals().booked_usd == 1.0


def test_a_call_of_a_killed_process_stays_booked_and_may_be_made_again(file: Path) -> None:
    with Ledger(file, max_usd=2.0) as killed:
        held(killed)
        with Ledger(file, max_usd=2.0, is_alive=nobody) as next_one:
            totals = next_one.totals()
            assert (totals.lost_usd, totals.num_lost, totals.num_in_flight) == (1.0, 1, 0)
            next_one.settle(held(next_one), reply(usd=0.5), price=TEACHER.price)
            assert next_one.totals().booked_usd == 1.5
            with pytest.raises(BudgetError):
                book(next_one, "other")


def test_a_call_on_another_machine_is_lost_when_its_time_is_up(file: Path) -> None:
    with Ledger(file, max_usd=5.0) as remote:
        asked = request()
        remote.reserve(request_key(TEACHER, asked), teacher=TEACHER, request=asked, timeout_s=0.0)
        with Ledger(file, max_usd=5.0, is_alive=lambda owner: None) as local:
            assert local.totals().num_lost == 1
    with Ledger(file, max_usd=5.0) as remote:
        held(remote, "later")
        with Ledger(file, max_usd=5.0, is_alive=lambda owner: None) as local:
            assert local.totals().num_in_flight == 1


def test_a_lost_call_that_is_answered_after_all_is_kept_and_two_answers_are_both_booked(
    file: Path,
) -> None:
    with Ledger(file, max_usd=5.0) as slow:
        first = held(slow)
        with Ledger(file, max_usd=5.0, is_alive=nobody) as another:
            second = held(another)
            slow.settle(first, reply("first", usd=0.5), price=TEACHER.price)
            another.settle(second, reply("second", usd=0.25), price=TEACHER.price)
            bought = book(another)
            assert isinstance(bought, Bought) and bought.reply.turn.text == "first"
            totals = another.totals()
            assert (totals.spent_usd, totals.num_answers, totals.lost_usd) == (0.75, 1, 0.0)


def test_lost_calls_are_settled_by_the_providers_bill(file: Path) -> None:
    with Ledger(file, max_usd=5.0) as ledger:
        for text in "ab":
            ledger.lose(held(ledger, text), why="no answer within 180 s")
        assert ledger.totals().lost_usd == 2.0
        assert ledger.settle_lost(0.125) == 2 and ledger.totals().booked_usd == 0.125
        assert ledger.settle_lost(9.0) == 0


def test_what_a_call_cost() -> None:
    price = Price(input_usd_per_mtok=1e6, output_usd_per_mtok=2e6)

    def cost(usage: Usage, *, sent: int = 0, received: int = 0) -> tuple[float, str, str]:
        cost = cost_of(
            replace(reply(), usage=usage, sent_tokens=sent, received_tokens=received), price, 7.0
        )
        return cost.usd, cost.basis, cost.whose

    assert cost(Usage(usd=30.0, input_tokens=9, output_tokens=9)) == (30.0, "reported", "endpoint")
    assert cost(Usage(input_tokens=2, output_tokens=1), sent=1) == (4.0, "tokens", "endpoint")
    for little in (
        Usage(usd=0.0),
        Usage(usd=0.0, input_tokens=0, output_tokens=0),
        Usage(usd=4.9, input_tokens=1, output_tokens=1),
    ):
        assert cost(little, sent=3, received=1) == (5.0, "tokens", "ours"), little
    # an answer that was not held to max_tokens
    assert cost(Usage(), sent=3, received=4) == (11.0, "worst_case", "ours")
    for unknown in (
        Usage(),
        Usage(usd=float("nan")),
        Usage(usd=-1.0),
        Usage(usd=float("inf"), input_tokens=1),
        Usage(usd=1e11),
        Usage(usd=1e300, input_tokens=1, output_tokens=1),
        Usage(input_tokens=10**25, output_tokens=1),
    ):
        assert cost(unknown, sent=3) == (7.0, "worst_case", "ours")


def test_amounts_are_rounded_up_and_do_not_drift(file: Path) -> None:
    assert [to_nano(usd) for usd in (0.0, 0.1, 0.3, 1e-12, 2.5)] == [
        0,
        10**8,
        3 * 10**8,
        1,
        25 * 10**8,
    ]
    with Ledger(file, max_usd=1.0) as ledger:
        for n in range(10):
            ledger.settle(
                held(ledger, str(n), teacher=says(price=Price(request_usd=0.1))),
                reply(usd=0.1),
                price=Price(),
            )
        assert ledger.totals().spent_usd == 1.0


def test_the_trimmed_prompt_is_kept_once_for_all_teachers(file: Path) -> None:
    with Ledger(file, max_usd=5.0) as ledger:
        for teacher in (says(salt="a"), says(salt="b")):
            held(ledger, teacher=teacher)
        stored_prompt = ledger.prompt(request_key(says(salt="b"), request()))
        assert (
            stored_prompt is not None
            and prompt_sha(stored_prompt) == prompt_sha(request())
            and stored_prompt.tools == request().tools
        )
        assert ledger.prompt("no such key") is None
    (count,) = sqlite3.connect(file).execute("SELECT COUNT(*) FROM prompts").fetchone()
    assert count == 1


def test_the_sum_is_that_of_the_rows_and_no_row_is_deleted(file: Path) -> None:
    with Ledger(file, max_usd=9.0) as ledger:
        ledger.settle(held(ledger, "a"), reply(usd=0.3), price=TEACHER.price)
        ledger.free(held(ledger, "b"), why="429")
        ledger.lose(held(ledger, "c"), why="cut")
        held(ledger, "d")
    db = sqlite3.connect(file)
    assert (
        db.execute("SELECT booked FROM total").fetchone()
        == db.execute("SELECT SUM(booked) FROM calls").fetchone()
        == (2_300_000_000,)
    )
    with pytest.raises(sqlite3.IntegrityError, match="only grows"):
        db.execute("DELETE FROM calls")


def test_files_that_are_no_ledger_are_refused(tmp_path: Path) -> None:
    text_file = tmp_path / "words"
    text_file.write_text("this is no database, and long enough to be looked at" * 40)
    with pytest.raises(DataError, match="not a ledger"):
        Ledger(text_file, max_usd=1.0)
    newer = tmp_path / "newer"
    Ledger(newer, max_usd=1.0).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(DataError, match="version 7"):
        Ledger(newer, max_usd=1.0)
    with pytest.raises(ValueError, match="number of dollars"):
        Ledger(tmp_path / "x", max_usd=float("nan"))


def test_only_its_owner_may_read_it(file: Path) -> None:
    Ledger(file, max_usd=1.0).close()
    assert file.stat().st_mode & 0o077 == 0
