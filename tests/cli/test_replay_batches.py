"""`recompose replay` with a Batch API: a killed process pays for nothing twice, the gate is kept,
and the estimate says what a batch costs and how long it takes."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_answers
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger, Totals
from tests.cli.paid import KEY, TEACHERS, prepare, start, with_the_key
from tests.cli.workspace import recompose
from tests.data.teachers.batch_endpoint import BatchEndpoint
from tests.data.teachers.endpoint import name_of

EACH = ("batch = true", "batch_discount = 0.5", "batch_poll_s = 0.05")


def end(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out)


def kill_when(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert happened() and process.poll() is None, process.communicate()
    process.kill()
    process.communicate()


def totals_of(work: Path) -> Totals:
    with Ledger(work / LEDGER_NAME, max_usd=0.0) as ledger:
        return ledger.totals()


def sent(endpoint: BatchEndpoint) -> Counter[str]:
    return Counter(name_of(line["body"]) for lines in endpoint.lines for line in lines)


def test_killed_while_it_waits_and_between_creating_a_batch_and_noting_its_id(
    tmp_path: Path,
) -> None:
    num = 4 * 3 * len(TEACHERS)
    with BatchEndpoint(held=True) as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=4, steps=3, each=EACH)
        # The first batches are created, and nobody is told: their ids are in no ledger.
        endpoint.on_create = lambda number: "created_hang"
        kill_when(start(tmp_path, "--max-usd", "1"), lambda: len(endpoint.batches) == 3)
        endpoint.on_create = lambda number: "ok"
        assert totals_of(work).num_in_flight == 3 and totals_of(work).num_lost == 0
        # The next life finds them in the list, and is killed while it waits.
        looked = endpoint.num_looks
        process = start(tmp_path, "--max-usd", "1", "--resume")
        kill_when(process, lambda: endpoint.num_looks > looked + 6)
        assert len(endpoint.batches) == 3
        endpoint.held = False
        process = start(tmp_path, "--max-usd", "1", "--resume")
        kill_when(process, lambda: len(endpoint.batches) == 6)
        value = end(start(tmp_path, "--max-usd", "1", "--resume", "--json"))
        totals = totals_of(work)
        assert set(sent(endpoint).values()) == {1} and sum(sent(endpoint).values()) == num
        assert totals.num_answers == num and totals.num_lost == totals.num_in_flight == 0
        assert endpoint.billed_usd <= totals.booked_usd <= 1.0
        assert value["answers"] == num == len(list(read_answers(work / "answers.jsonl")))
        before = len(endpoint.calls)
        end(start(tmp_path, "--max-usd", "1", "--json"))
        assert len(endpoint.calls) == before, "a run that was done asked again"
    assert not with_the_key(tmp_path)


def test_killed_again_and_again_at_any_moment(tmp_path: Path) -> None:
    """No question is in two batches that can be billed, whenever the process is killed."""
    with BatchEndpoint() as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=3, steps=3, each=EACH)
        for num_calls in (2, 3, 5, 6, 8, 9, 12, 16):
            process, before = start(tmp_path, "--max-usd", "1"), len(endpoint.calls)
            deadline = time.monotonic() + 30
            while (
                len(endpoint.calls) < before + num_calls
                and process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.001)
            process.kill()
            process.communicate()
            totals = totals_of(work)
            assert endpoint.billed_usd <= totals.booked_usd <= 1.0
        end(start(tmp_path, "--max-usd", "1", "--resume", "--json"))
        totals = totals_of(work)
    num = 3 * 3 * len(TEACHERS)
    assert totals.num_answers == num and totals.num_in_flight == 0
    # A call that was killed while its batch was being created may be lost, and asked again.
    assert sum(sent(endpoint).values()) <= num + totals.num_lost
    assert endpoint.billed_usd <= totals.booked_usd <= 1.0


@pytest.mark.parametrize("name", ["ash", "elm"])
def test_the_gate_asks_the_next_teacher_only_where_a_pair_can_still_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`name` does what the student did: later teachers are asked only about what is open then."""
    monkeypatch.setenv("PLANTED_ROUTER_KEY", KEY)

    def act(body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        said = next(m for m in body["messages"] if m["role"] == "user")["content"]
        number = sum(message["role"] == "tool" for message in body["messages"])
        path = f"{said.split()[2].rstrip('.')}/{number}.py"
        agrees = f"maker-{name}" in body["model"] and number % 2 == 0
        return ("read", {"path": path if agrees else "other.py"})

    with BatchEndpoint(act=act) as endpoint:
        options = {"gate": '"value"', "need_evidence": "false", "each": EACH}
        prepare(tmp_path, endpoint.url, sessions=2, steps=4, **options)
        value = recompose("replay", "--json", "--max-usd", "1", cwd=tmp_path).value
        by_model = Counter(
            line["body"]["model"].partition("/")[2] for lines in endpoint.lines for line in lines
        )
        sizes = [len(lines) for lines in endpoint.lines]
    wanted = {"ash": (8, 4, 4), "elm": (8, 8, 4)}[name]
    assert tuple(by_model[f"{teacher}-1"] for teacher in TEACHERS) == wanted
    # One question alone for each teacher, then all that wait for it: no batch for each step.
    assert len(sizes) == 6 and sorted(sizes)[:3] == [1, 1, 1]
    assert value["pairs"] == 4 and value["asking"]["settled"] == 4


def test_the_estimate_shows_the_batch_price_and_how_long_it_may_take(tmp_path: Path) -> None:
    prepare(tmp_path, "http://127.0.0.1:9/v1", sessions=2, steps=3)
    full = recompose("replay", "--estimate", "--json", cwd=tmp_path).value
    prepare(tmp_path, "http://127.0.0.1:9/v1", sessions=2, steps=3, each=EACH)
    half = recompose("replay", "--estimate", "--json", cwd=tmp_path).value
    assert half["usd"] == pytest.approx(full["usd"] / 2) and half["batches"] == list(TEACHERS)
    assert half["most_usd"] == pytest.approx(full["most_usd"] / 2) and full["batches"] == []
    text = " ".join(recompose("replay", "--estimate", cwd=tmp_path).out.split())
    assert "at the batch price: ash (50 % off)" in text and "up to 24 hours" in text


def test_while_it_waits_it_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_ROUTER_KEY", KEY)
    with BatchEndpoint() as endpoint:
        prepare(tmp_path, endpoint.url, sessions=1, steps=2, each=EACH)
        text = recompose("replay", "--max-usd", "1", cwd=tmp_path).out
    assert "ash: batch batch_" in text and "1 questions; it may take up to 24 hours" in text
    assert "in_progress, 0 of 1 answered" in text and "completed, 1 of 1 answered" in text


def test_a_judge_is_not_asked_in_batches(tmp_path: Path) -> None:
    options = {"tiers": ["exact", "judge"], "judge": '"oak"', "teachers": ["ash", "elm"]}
    work = prepare(tmp_path, "http://127.0.0.1:9/v1", sessions=1, steps=2, each=EACH)
    file = work.parent / "recompose.toml"
    text = file.read_text("utf-8").replace(f"teachers = {list(TEACHERS)}", "min_families = 2")
    lines = "\n".join(f"{name} = {value}" for name, value in options.items())
    file.write_text(text.replace("[replay]", f"[replay]\n{lines}"), "utf-8")
    result = recompose("replay", "--estimate", cwd=tmp_path)
    assert result.code == 1 and "'oak' answers in batches" in result.err


def test_once_the_asking_has_ended_nothing_that_waits_for_a_batch_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second teacher's key is rejected while the first one's questions are collected."""
    monkeypatch.setenv("PLANTED_ROUTER_KEY", KEY)
    with BatchEndpoint(plan=lambda number, body: "401") as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=3, steps=3)
        file = work.parent / "recompose.toml"
        text = file.read_text("utf-8").replace(
            "[replay.teacher.ash]", "\n".join(["[replay.teacher.ash]", *EACH])
        )
        file.write_text(text, "utf-8")
        result = recompose("replay", "--max-usd", "1", cwd=tmp_path)
        assert result.code == 1 and "status 401" in result.err
        assert not endpoint.batches and "POST /files" not in endpoint.calls
