"""Questions in batches, against a Batch API on this machine: what is booked when, what each end of
a batch and of a line means for the cost, and that no batch is sent or paid for twice."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from composer_replication.core.errors import (
    BudgetError,
    ComposerError,
    ConfigError,
    DataError,
    NoSpaceError,
    TeacherError,
)
from composer_replication.core.teacher import Bought, Request, worst_usd
from composer_replication.data.teachers import batch_queue
from composer_replication.data.teachers.asking import Asker, RetryPolicy
from composer_replication.data.teachers.booked_cost import NANO
from composer_replication.data.teachers.ledger import Ledger, Totals
from composer_replication.data.teachers.open import check_no_batch
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from tests.data.teachers.batch_endpoint import BATCH_SHARE, BatchEndpoint
from tests.data.teachers.fake_teacher import request
from tests.data.teachers.test_openai_compatible import ENVIRON, KEY, settings

Outcome = Bought | ComposerError


def nobody(owner: str) -> bool:
    return False


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "IDLE_S", 0.02)


@pytest.fixture
def endpoint() -> Iterator[BatchEndpoint]:
    with BatchEndpoint() as started:
        yield started


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


def batched(endpoint: BatchEndpoint, **fields: Any) -> OpenAICompatible:
    defaults = {"batch": True, "batch_discount": 0.5, "batch_poll_s": 0.01}
    return OpenAICompatible(
        "glm", settings(endpoint.url, **{**defaults, **fields}), environ=ENVIRON
    )


def questions(count: int) -> list[Request]:
    return [request(f"question {number}", max_tokens=50) for number in range(count)]


async def answers(
    teacher: OpenAICompatible, ledger: Ledger, asked: Sequence[Request], *, lines: list[str]
) -> list[Outcome]:
    policy = RetryPolicy(timeout_s=5.0, attempts=3, first_wait_s=0.01)
    asker = Asker(ledger, retry_policy=policy, report=lines.append)
    async with teacher:
        await asker.collect_batches([teacher])
        found = await asyncio.gather(
            *(asker.ask(teacher, one) for one in asked), return_exceptions=True
        )
    assert all(isinstance(outcome, (Bought, ComposerError)) for outcome in found), found
    return [outcome for outcome in found if isinstance(outcome, (Bought, ComposerError))]


def ask(
    endpoint: BatchEndpoint,
    file: Path,
    *,
    asked: Sequence[Request] = (),
    max_usd: float = 1.0,
    lines: list[str] | None = None,
    **fields: Any,
) -> tuple[list[Outcome], Totals]:
    """Ask in one life: what came, and what the ledger holds at its end."""
    with Ledger(file, max_usd=max_usd, is_alive=nobody) as ledger:
        reported = [] if lines is None else lines
        found = asyncio.run(answers(batched(endpoint, **fields), ledger, asked, lines=reported))
        return found, ledger.totals()


def life_that_ends(endpoint: BatchEndpoint, file: Path, asked: Sequence[Request]) -> None:
    """Ask, and end as if killed as soon as a batch has been looked at."""

    async def work(ledger: Ledger) -> None:
        asking = asyncio.create_task(answers(batched(endpoint), ledger, asked, lines=[]))
        while not endpoint.num_looks:
            await asyncio.sleep(0.005)
        asking.cancel()

    with Ledger(file, max_usd=1.0, is_alive=nobody) as ledger:
        asyncio.run(work(ledger))


def states(file: Path) -> dict[str, int]:
    db = sqlite3.connect(file)
    rows = db.execute("SELECT state, COUNT(*) FROM calls GROUP BY state").fetchall()
    db.close()
    return dict(rows)


def sizes(endpoint: BatchEndpoint) -> list[int]:
    return [len(lines) for lines in endpoint.lines]


def test_what_is_pending_goes_in_one_batch_after_one_question_alone(
    endpoint: BatchEndpoint, file: Path
) -> None:
    asked = [*questions(6), questions(1)[0]]  # one of them twice
    found, totals = ask(endpoint, file, asked=asked)
    assert sizes(endpoint) == [1, 5] and endpoint.calls.count("POST /batches") == 2
    bought = [outcome for outcome in found if isinstance(outcome, Bought)]
    assert len(bought) == 7 and sorted(outcome.now for outcome in bought) == [False] + 6 * [True]
    assert [outcome.reply.turn.calls[0].name for outcome in bought] == 7 * ["read"]
    assert totals.num_answers == 6 and totals.num_in_flight == totals.num_lost == 0
    assert 0 < endpoint.billed_usd <= totals.spent_usd
    again, _ = ask(endpoint, file, asked=questions(6))
    assert sizes(endpoint) == [1, 5] and not any(b.now for b in again if isinstance(b, Bought))
    # A later run knows that this teacher's batches bring answers.
    ask(endpoint, file, asked=questions(9))
    assert sizes(endpoint) == [1, 5, 3]


def test_the_worst_case_at_the_batch_price_is_booked_before_anything_is_created(
    endpoint: BatchEndpoint, file: Path
) -> None:
    asked, booked = questions(3), list[float]()

    def look_into_the_ledger(number: int) -> str:
        db = sqlite3.connect(file)
        booked.append(
            db.execute("SELECT SUM(booked) FROM calls WHERE state = 'in_flight'").fetchone()[0]
        )
        db.close()
        return "ok"

    endpoint.on_create = look_into_the_ledger
    _, totals = ask(endpoint, file, asked=asked)
    plain = OpenAICompatible("glm", settings(endpoint.url), environ=None)
    worst = [worst_usd(plain, one) for one in asked]
    assert booked == pytest.approx(
        [NANO * BATCH_SHARE * sum(worst[:1]), NANO * BATCH_SHARE * sum(worst[1:])], rel=1e-6
    )
    assert totals.spent_usd < BATCH_SHARE * sum(worst)


def test_an_answer_is_booked_at_the_batch_price_and_one_above_its_booking_ends_the_asking(
    endpoint: BatchEndpoint, tmp_path: Path
) -> None:
    found, _ = ask(endpoint, tmp_path / "half", asked=questions(1))
    full, _ = ask(endpoint, tmp_path / "full", asked=questions(1), batch_discount=0.0)
    (half_price,), (full_price,) = found, full
    assert isinstance(half_price, Bought) and isinstance(full_price, Bought)
    assert half_price.usd == pytest.approx(BATCH_SHARE * full_price.usd, rel=1e-6)
    endpoint.plan, endpoint.input_usd = lambda number, body: "cost", 1.0
    found, totals = ask(endpoint, tmp_path / "dear", asked=questions(5))
    assert all(isinstance(outcome, TeacherError) for outcome in found)
    assert "billed $" in str(found[0]) and totals.num_answers == 1  # the probe alone was paid for


def test_a_ceiling_is_kept_and_what_does_not_fit_goes_in_the_next_batch(
    endpoint: BatchEndpoint, file: Path
) -> None:
    asked = questions(8)
    each = worst_usd(batched(endpoint), asked[0])
    found, totals = ask(endpoint, file, asked=asked, max_usd=each * 3.6)
    assert all(isinstance(outcome, Bought) for outcome in found)
    assert sizes(endpoint)[0] == 1 and 2 <= max(sizes(endpoint)) <= 3 and sum(sizes(endpoint)) == 8
    assert endpoint.billed_usd <= totals.booked_usd <= each * 3.6
    before = len(endpoint.batches)
    found, totals = ask(endpoint, file, asked=questions(9), max_usd=totals.booked_usd)
    assert isinstance(found[-1], BudgetError) and len(endpoint.batches) == before


@pytest.mark.parametrize(
    ("end", "fields", "released"),
    [
        ("expired", {"answers_of_all": 0.5}, 2),
        ("cancelled", {"answers_of_all": 0.5}, 2),
        ("failed", {}, 0),
        ("expired", {"answers_of_all": 0.5, "drop_lines": True}, 0),
        ("completed", {"drop_lines": True}, 0),
        ("expired", {"answers_of_all": 0.0, "drop_lines": True, "report_more": 1}, 0),
    ],
)
def test_what_the_end_of_a_batch_means_for_calls_without_an_answer(
    endpoint: BatchEndpoint, file: Path, end: str, fields: dict[str, Any], released: int
) -> None:
    """Left out by the provider: released. Nothing known about it: lost, and booked."""
    ask(endpoint, file, asked=questions(1))
    endpoint.end = lambda number: end
    for name, value in fields.items():
        setattr(endpoint, name, value)
    found, totals = ask(endpoint, file, asked=questions(5))
    free = 4 if end == "failed" else released
    assert totals.num_answers == 1 + released and states(file).get("free", 0) == free
    assert totals.num_lost == 4 - free - released and totals.num_in_flight == 0
    assert endpoint.billed_usd <= totals.booked_usd
    errors = [outcome for outcome in found if isinstance(outcome, TeacherError)]
    assert len(errors) == 4 - released
    named = "token limit" if end == "failed" else "batch_" if released else repr(end)
    assert all(named in str(error) for error in errors)
    # What was released is asked again, and answered; nothing else is.
    endpoint.end, endpoint.drop_lines, endpoint.answers_of_all = lambda n: "completed", False, 1.0
    endpoint.report_more = 0
    found, totals = ask(endpoint, file, asked=questions(5))
    assert all(isinstance(outcome, Bought) for outcome in found) and totals.num_answers == 5


def test_a_line_may_be_refused_or_fail_and_the_others_are_answered(
    endpoint: BatchEndpoint, file: Path
) -> None:
    ask(endpoint, file, asked=questions(1))
    kinds = {1: "400", 2: "500", 3: "no_usage", 4: "bad_arguments"}
    endpoint.plan = lambda number, body: kinds.get(number, "ok")
    found, totals = ask(endpoint, file, asked=questions(7))
    assert [isinstance(outcome, Bought) for outcome in found].count(True) == 5
    assert states(file) == {"answered": 5, "free": 1, "lost": 1}
    problems = {outcome.reply.problem for outcome in found if isinstance(outcome, Bought)}
    assert problems == {"", "bad_arguments"} and endpoint.billed_usd <= totals.booked_usd


def test_a_batch_that_an_earlier_run_sent_is_collected_and_not_sent_again(
    endpoint: BatchEndpoint, file: Path
) -> None:
    ask(endpoint, file, asked=questions(1))
    endpoint.held, endpoint.num_looks = True, 0
    life_that_ends(endpoint, file, questions(5))
    assert states(file) == {"answered": 1, "in_flight": 4}
    with Ledger(file, max_usd=1.0, is_alive=nobody) as ledger:
        booked = ledger.totals().booked_usd
        with pytest.raises(DataError, match="nobody has collected"):
            teacher = batched(endpoint)
            asker = Asker(ledger)
            asyncio.run(asker.ask(teacher, questions(5)[4]))
    endpoint.held, lines = False, list[str]()
    found, totals = ask(endpoint, file, asked=questions(5), lines=lines)
    assert sizes(endpoint) == [1, 4] and endpoint.calls.count("POST /batches") == 2
    assert not any(outcome.now for outcome in found if isinstance(outcome, Bought))
    assert totals.num_answers == 5 and endpoint.billed_usd <= totals.booked_usd < booked
    assert any("batch_2: completed, 4 of 4 answered" in line for line in lines)


@pytest.mark.parametrize("behaviour", ["created_500", "500", "created_hang"])
def test_a_batch_of_which_only_the_file_is_known_is_looked_for_in_the_list(
    endpoint: BatchEndpoint, file: Path, behaviour: str
) -> None:
    ask(endpoint, file, asked=questions(3))
    endpoint.on_create = lambda number: behaviour
    policy = {"timeout_s": 0.3, "attempts": 1}

    async def work(ledger: Ledger) -> list[Outcome | BaseException]:
        asker = Asker(ledger, retry_policy=RetryPolicy(**policy))
        async with batched(endpoint) as teacher:
            asks = (asker.ask(teacher, one) for one in questions(6)[3:])
            return await asyncio.gather(*asks, return_exceptions=True)

    with Ledger(file, max_usd=1.0, is_alive=nobody) as ledger:
        found = asyncio.run(work(ledger))
        totals = ledger.totals()
    assert endpoint.calls.count("POST /batches") == 3 and "GET /batches" in endpoint.calls
    if behaviour == "500":  # it may turn up later: what it may cost stays booked
        assert totals.num_lost == 3 and all(isinstance(one, TeacherError) for one in found)
    else:
        assert totals.num_answers == 6 and totals.num_lost == 0
    assert endpoint.billed_usd <= totals.booked_usd


def test_calls_whose_batch_was_not_sent_are_released_and_those_of_a_deleted_one_are_lost(
    endpoint: BatchEndpoint, file: Path
) -> None:
    ask(endpoint, file, asked=questions(1))
    teacher = batched(endpoint)
    with Ledger(file, max_usd=1.0, is_alive=nobody) as ledger:
        for number, noted in ((1, {}), (2, {"file": "file-1", "batch": "batch_77"})):
            row = ledger.begin_batch("glm", base_url=endpoint.url, price=teacher.price)
            options = {"teacher": teacher, "timeout_s": 1.0, "batch": row}
            ledger.reserve(f"key {number}", request=questions(3)[number], **options)
            if noted:
                ledger.note_batch(row, **noted)
    _, totals = ask(endpoint, file)
    assert states(file) == {"answered": 1, "free": 1, "lost": 1}
    assert totals.lost_usd == pytest.approx(worst_usd(teacher, questions(3)[2]), rel=1e-6)


def test_a_batch_at_another_address_stays_booked_and_is_named(
    endpoint: BatchEndpoint, file: Path
) -> None:
    endpoint.held = True
    life_that_ends(endpoint, file, questions(1))
    lines = list[str]()
    with BatchEndpoint() as elsewhere:
        _, totals = ask(elsewhere, file, lines=lines)
        assert not elsewhere.calls
    assert totals.num_in_flight == 1 and "1 questions to glm are in a batch at" in lines[0]


def test_a_network_that_is_away_while_a_batch_is_waited_for_costs_nothing(
    endpoint: BatchEndpoint, file: Path
) -> None:
    endpoint.on_look = lambda number: "503" if number in (2, 3, 4, 5, 6) else "ok"
    found, totals = ask(endpoint, file, asked=questions(2))
    assert all(isinstance(outcome, Bought) for outcome in found) and totals.num_lost == 0


def test_files_over_the_providers_limits_are_split(
    endpoint: BatchEndpoint, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(endpoint, file, asked=questions(1))
    monkeypatch.setattr(batch_queue, "MAX_BATCH_REQUESTS", 3)
    ask(endpoint, file, asked=questions(8))
    assert sizes(endpoint)[0] == 1 and sorted(sizes(endpoint)[1:]) == [1, 3, 3]
    files = [endpoint.files[batch["input_file_id"]] for batch in endpoint.batches.values()]
    most = 2 * max(len(line) + 1 for text in files for line in text.splitlines()) + 8
    monkeypatch.setattr(batch_queue, "MAX_BATCH_BYTES", most)
    monkeypatch.setattr(batch_queue, "MAX_BATCH_REQUESTS", 50)
    found, totals = ask(endpoint, file, asked=[*questions(12)[8:], request("x" * most)])
    assert sizes(endpoint)[4:] == [2, 2] and totals.num_answers == 12
    files = [endpoint.files[batch["input_file_id"]] for batch in endpoint.batches.values()]
    assert all(len(text) <= most for text in files[-2:])
    assert "longer than the file of a batch" in str(found[-1])


def test_an_endpoint_without_a_batch_api_is_named_and_costs_nothing(
    file: Path, endpoint: BatchEndpoint
) -> None:
    url = endpoint.url.removesuffix("/v1") + "/other/v1"
    found, totals = ask(endpoint, file, asked=questions(3), base_url=url)
    assert all("there is no Batch API" in str(outcome) for outcome in found)
    assert totals.booked_usd == 0 and not endpoint.batches


def test_addresses_that_take_batches_and_answer_none_cost_a_handful_of_calls(
    endpoint: BatchEndpoint, file: Path
) -> None:
    endpoint.drop_lines = True
    found, totals = ask(endpoint, file, asked=questions(20))
    assert all(isinstance(outcome, TeacherError) for outcome in found)
    assert sizes(endpoint) == 5 * [1] and totals.num_lost == 5


def test_an_id_that_is_the_key_is_refused_and_written_nowhere(
    endpoint: BatchEndpoint, tmp_path: Path
) -> None:
    endpoint.key_as_id = True
    found, totals = ask(endpoint, tmp_path / "ledger", asked=questions(2))
    assert all("unusable" in str(outcome) for outcome in found) and totals.booked_usd == 0
    assert not holding_the_key(tmp_path)


def test_the_key_is_removed_from_the_lines_of_a_batch(
    endpoint: BatchEndpoint, tmp_path: Path
) -> None:
    endpoint.echo_key, endpoint.plan = True, lambda number, body: "400" if number == 2 else "ok"
    lines = list[str]()
    found, _ = ask(endpoint, tmp_path / "ledger", asked=questions(4), lines=lines)
    assert any(KEY in line for line in map(bytes.decode, endpoint.files.values()))
    texts = [
        outcome.reply.turn.text if isinstance(outcome, Bought) else str(outcome)
        for outcome in found
    ]
    assert len(texts) == 4 and all("[REDACTED:key]" in text for text in texts)
    assert not holding_the_key(tmp_path) and KEY not in "".join([*lines, *texts])


def holding_the_key(folder: Path) -> list[Path]:
    """The files that hold it, as they are and unpacked."""
    held = [p for p in folder.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
    db = sqlite3.connect(folder / "ledger")
    rows = db.execute("SELECT reply FROM calls WHERE reply IS NOT NULL").fetchall()
    db.close()
    return held + [folder for row in rows if KEY.encode() in zlib.decompress(row[0])]


def test_a_full_disk_loses_no_answer_of_a_batch(
    endpoint: BatchEndpoint, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(endpoint, file, asked=questions(1))
    store, stored = Ledger._store_answer, list[int]()

    def full(db: sqlite3.Connection, record: dict[str, Any]) -> None:
        if len(stored) == 2:
            raise sqlite3.OperationalError("database or disk is full")
        stored.append(1)
        store(db, record)

    monkeypatch.setattr(Ledger, "_store_answer", staticmethod(full))
    found, _ = ask(endpoint, file, asked=questions(5))
    assert any(isinstance(outcome, NoSpaceError) for outcome in found)
    assert states(file) == {"answered": 3, "in_flight": 2}
    monkeypatch.undo()
    found, totals = ask(endpoint, file, asked=questions(5))
    assert all(isinstance(outcome, Bought) for outcome in found) and sizes(endpoint) == [1, 4]
    assert totals.num_answers == 5


def test_a_round_waits_for_plain_calls(endpoint: BatchEndpoint, file: Path) -> None:
    """Their answers may open questions; what is collected meanwhile goes with the others."""
    ask(endpoint, file, asked=questions(1))
    endpoint.delay_s = 0.5

    async def work(ledger: Ledger) -> None:
        asker = Asker(ledger)
        plain = OpenAICompatible("other", settings(endpoint.url, model="m"), environ=ENVIRON)
        async with batched(endpoint) as teacher, plain:

            async def one_after_the_other() -> None:
                await asker.ask(plain, questions(1)[0])
                await asker.ask(teacher, questions(5)[4])

            await asyncio.gather(
                one_after_the_other(), *(asker.ask(teacher, q) for q in questions(4)[1:])
            )

    with Ledger(file, max_usd=1.0, is_alive=nobody) as ledger:
        asyncio.run(work(ledger))
    assert sizes(endpoint) == [1, 4]


def test_a_ledger_of_an_earlier_version_takes_batches(endpoint: BatchEndpoint, file: Path) -> None:
    ask(endpoint, file, asked=questions(1))
    db = sqlite3.connect(file)
    for statement in ("ALTER TABLE calls DROP COLUMN batch", "DROP TABLE batches"):
        db.execute(statement)
    db.execute("PRAGMA user_version = 2")
    db.commit()
    db.close()
    found, totals = ask(endpoint, file, asked=questions(3))
    assert all(isinstance(outcome, Bought) for outcome in found) and totals.num_answers == 3


def test_which_settings_allow_batches() -> None:
    url = "https://api.openai.com/v1"
    gpt = OpenAICompatible("gpt", settings(url, batch=True), environ=None)
    assert gpt.price.input_usd_per_mtok == 0.5 * gpt.settings.max_input_usd_per_mtok
    unknown = OpenAICompatible("m", settings("https://m.example/v1", batch=True), environ=None)
    assert unknown.price.input_usd_per_mtok == unknown.settings.max_input_usd_per_mtok
    assert gpt.identity == OpenAICompatible("gpt", settings(url), environ=None).identity
    for fields, named in (
        ({"base_url": "https://openrouter.ai/api/v1"}, "format of its own"),
        ({"max_input_usd_per_mtok": 0.0, "max_output_usd_per_mtok": 0.0}, "paid endpoints"),
        ({"batch_discount": 1.0}, "less than 1"),
    ):
        with pytest.raises(ValidationError, match=named):
            settings(url, **{"batch": True, **fields})
    with pytest.raises(ConfigError, match="one question after the other"):
        check_no_batch("gpt", settings(url, batch=True), where="replay.judge")
