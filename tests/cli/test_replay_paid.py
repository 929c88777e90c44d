"""`recompose replay` against a real HTTP server: no answer is paid for twice or lost, the ceiling
holds, the key is written nowhere."""

from __future__ import annotations

import json
import random
import re
import signal
import sqlite3
import time
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import read_answers, write_sessions
from composer_replication.core.trace import Text, Turn
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from tests.cli.paid import KEY, TEACHERS, prepare, start, talk, with_the_key
from tests.cli.workspace import files, recompose
from tests.data.teachers.endpoint import BEHAVIOURS, Endpoint, name_of

SESSIONS, STEPS = 50, 10
FAULTS = tuple(behaviour for behaviour in BEHAVIOURS if behaviour != "ok")


def troubled(number: int, body: dict[str, Any]) -> str:
    """Every fourth request meets a fault; a hang is rarer because it takes time."""
    rng = random.Random(number)
    if rng.random() < 0.75:
        return "ok"
    fault = rng.choice(FAULTS)
    return fault if fault != "hang" or rng.random() < 0.3 else "429"


def answered_in(work: Path) -> set[str]:
    """The endpoint's names for the requests whose answers are in the ledger."""
    db = sqlite3.connect(work / LEDGER_NAME)
    rows = db.execute("SELECT reply FROM calls WHERE state = 'answered'").fetchall()
    db.close()
    return {json.loads(json.loads(zlib.decompress(row[0]))["raw"])["id"] for row in rows}


def test_five_hundred_steps_three_teachers_faults_and_kills(tmp_path: Path) -> None:
    with Endpoint(plan=troubled, delay_s=0.002, echo_key=True) as endpoint:
        work = prepare(
            tmp_path, endpoint.url, sessions=SESSIONS, steps=STEPS, timeout_s=2.0, attempts=10
        )
        answered: set[str] = set()
        output = ""
        for kill_at in (150, 500, 900):
            process = start(tmp_path, "--max-usd", "4", "--json")
            before, deadline = len(endpoint.seen), time.monotonic() + 60
            while (
                len(endpoint.seen) < kill_at
                and process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.005)
            process.kill()
            output += "".join(process.communicate())
            assert not answered & {request.name for request in endpoint.seen[before:]}, (
                "an answered call was sent again"
            )
            now = answered_in(work)
            assert answered < now, "answers were lost"
            answered = now
        before = len(endpoint.seen)
        process = start(tmp_path, "--max-usd", "4", "--json", "--resume")
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert not answered & {request.name for request in endpoint.seen[before:]}
        value = json.loads(out)
        answers = list(read_answers(work / "answers.jsonl"))
        assert len(answers) == SESSIONS * STEPS * len(TEACHERS) and "failed" not in value["asking"]
        assert {request.behaviour for request in endpoint.seen} == set(BEHAVIOURS)
        with Ledger(work / LEDGER_NAME, max_usd=4.0) as ledger:
            totals = ledger.totals()
        assert totals.num_in_flight == 0 and totals.num_lost > 0
        assert endpoint.billed_usd <= totals.booked_usd <= 4.0
        # A request answered twice was in flight at a kill, and is counted among the lost.
        twice = [
            name
            for name, count in Counter(
                request.name for request in endpoint.seen if request.answered
            ).items()
            if count > 1
        ]
        assert len(twice) <= totals.num_lost
        before, text = len(endpoint.seen), (work / "answers.jsonl").read_bytes()
        again = start(tmp_path, "--max-usd", "4", "--json")
        out, err = again.communicate(timeout=60)
        assert again.returncode == 0 and len(endpoint.seen) == before, (
            "a run that was done asked again"
        )
        assert (work / "answers.jsonl").read_bytes() == text
    problems = Counter(answer.problem for answer in answers)
    assert (
        problems["unknown_tool"]
        and problems["bad_arguments"]
        and set(problems) == {"", "unknown_tool", "bad_arguments"}
    )
    assert not with_the_key(tmp_path) and KEY not in output + out + err
    assert any(request.key == f"Bearer {KEY}" for request in endpoint.seen)


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_ROUTER_KEY", KEY)


def test_an_estimate_sends_nothing_and_needs_no_key(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        prepare(tmp_path, endpoint.url, sessions=4, steps=3)
        before = files(tmp_path)
        result = recompose("replay", "--estimate", "--json", cwd=tmp_path)
        assert (
            result.code == 0
            and not endpoint.seen
            and endpoint.most_at_once == 0
            and files(tmp_path) == before
        )
    bill = result.value
    assert (bill["sessions"], bill["steps"], bill["sent"]) == (4, 12, 0)
    assert [teacher["calls"] for teacher in bill["teachers"].values()] == [12, 12, 12] and 0 < bill[
        "usd"
    ] < bill["most_usd"]


def test_an_estimate_says_what_a_step_costs_and_a_ceiling_that_covers_it(tmp_path: Path) -> None:
    prepare(tmp_path, "http://127.0.0.1:9", sessions=4, steps=3)
    value = recompose("replay", "--estimate", "--json", cwd=tmp_path).value
    shown = recompose("replay", "--estimate", "--replay.max_usd", "0", cwd=tmp_path).out
    each = re.search(r"about \$([\d.]+) a step; a pair can come of 12 of 12 steps", shown)
    assert each is not None and float(each[1]) == pytest.approx(value["usd"] / 12, abs=0.005)
    (ceiling,) = re.findall(r"next +recompose replay.* --max-usd ([\d.]+)", shown)
    assert value["usd"] <= float(ceiling) < value["usd"] + 0.1
    assert "--replay.max_usd 0" in shown.partition("next")[2]  # the flags of this call


def test_with_too_few_families_the_next_command_adds_teachers_and_asks_nobody(
    tmp_path: Path,
) -> None:
    prepare(tmp_path, "http://127.0.0.1:9", sessions=4, steps=3)
    (first, *_) = TEACHERS
    flags = [
        "--replay.teachers",
        json.dumps([first]),
        "--replay.gate",
        "value",
        "--replay.need_evidence",
        "false",
    ]
    shown = recompose("replay", "--estimate", *flags, cwd=tmp_path).out
    assert "12 (too_few_families)" in shown and "a pair can come" not in shown
    ((kept, names),) = re.findall(
        r"next +recompose replay (.*) --estimate --replay.teachers '(.*)'", shown
    )
    assert kept.split() == flags[2:]
    added = json.loads(names)[1:]
    assert json.loads(names)[0] == first and set(added) < set(DEFAULT_TEACHERS)
    assert f"add {' and '.join(added)}" in shown
    # enough, and not one more
    again = [
        "--replay.teachers",
        names,
        "--replay.gate",
        "value",
        "--replay.need_evidence",
        "false",
    ]
    assert "(too_few_families)" not in recompose("replay", "--estimate", *again, cwd=tmp_path).out
    assert len(json.loads(names)) == 3


def test_the_estimate_is_near_the_bill(tmp_path: Path, keyed: None) -> None:
    with Endpoint() as endpoint:
        prepare(tmp_path, endpoint.url, sessions=4, steps=3)
        bill = recompose("replay", "--estimate", "--json", cwd=tmp_path).value
        assert recompose("replay", "--max-usd", "1", cwd=tmp_path).code == 0
        assert (
            endpoint.billed_usd < bill["usd"] < bill["most_usd"]
            and bill["usd"] < 60 * endpoint.billed_usd
        )
        again = recompose("replay", "--estimate", "--json", cwd=tmp_path).value
    assert again["usd"] == 0 and [teacher["kept"] for teacher in again["teachers"].values()] == [
        12,
        12,
        12,
    ]


def test_the_ceiling_ends_it_with_code_4_and_what_was_bought_is_kept(
    tmp_path: Path, keyed: None
) -> None:
    with Endpoint() as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=5, steps=4)
        result = recompose("replay", "--max-usd", "0.006", "--json", cwd=tmp_path)
        assert (
            result.code == 4
            and result.value["stopped"]["exit_code"] == 4
            and "ceiling" in result.value["stopped"]["what"]
        )
        bought = list(read_answers(work / "answers.jsonl"))
        assert (
            0 < len(bought) < 60
            and len(bought) == len(endpoint.seen)
            and endpoint.billed_usd <= 0.006
        )
        assert result.value["next"] == "recompose replay"
        more = recompose("replay", "--max-usd", "1", "--resume", "--json", cwd=tmp_path)
        assert more.code == 0 and len(list(read_answers(work / "answers.jsonl"))) == 60 == len(
            endpoint.seen
        )
        text = (work / "answers.jsonl").read_bytes()
        none = recompose("replay", "--replay.temperature", "1", "--max-usd", "0.001", cwd=tmp_path)
        assert none.code == 4 and "the ceiling of $0.001 is reached" in " ".join(none.err.split())
        assert (work / "answers.jsonl").read_bytes() == text, (
            "a replay that bought nothing took the place of one that did"
        )


def test_the_second_of_two_processes_is_told_and_a_dead_ones_lock_is_taken_over(
    tmp_path: Path,
) -> None:
    with Endpoint(plan=lambda number, body: "hang") as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=3, steps=2)
        first = start(tmp_path, "--max-usd", "1", "--json")
        deadline = time.monotonic() + 60
        while not endpoint.seen and time.monotonic() < deadline:
            time.sleep(0.01)
        out, _ = start(tmp_path, "--max-usd", "1", "--json").communicate(timeout=60)
        error = json.loads(out)["error"]
        assert (
            error["exit_code"] == 1
            and f"another replay is at work on this folder: process {first.pid}" in error["what"]
        )
        first.kill()
        first.communicate()
        assert (work / ".replay.lock").exists()
        endpoint.plan = lambda number, body: "ok"
        last = start(tmp_path, "--max-usd", "1", "--json")
        assert (
            last.communicate(timeout=120) and last.returncode == 0 and len(answered_in(work)) == 18
        )
        assert not (work / ".replay.lock").exists() and not with_the_key(tmp_path)


def test_paid_teachers_need_a_ceiling_and_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Endpoint() as endpoint:
        prepare(tmp_path, endpoint.url, sessions=1, steps=1)
        result = recompose("replay", cwd=tmp_path)
        assert (
            result.code == 1
            and "no ceiling" in result.err
            and "--estimate" in result.err
            and not endpoint.seen
        )
        assert recompose("replay", "--max-usd", "nan", cwd=tmp_path).code == 2
        away = ("--replay.teacher.ash.base_url", "https://models.example/v1")
        assert (
            "PLANTED_ROUTER_KEY is not set"
            in recompose("replay", "--max-usd", "1", *away, cwd=tmp_path).err
        )
        monkeypatch.setenv("PLANTED_ROUTER_KEY", f"{KEY} {KEY}")
        result = recompose("replay", "--max-usd", "1", *away, cwd=tmp_path)
        assert result.code == 1 and KEY not in result.err + result.out


def test_a_key_in_a_settings_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    prepare(tmp_path, "http://127.0.0.1:1/v1", sessions=1, steps=1)
    file = tmp_path / "recompose.toml"
    plain = file.read_text()
    for line in (
        f'api_key = "{KEY}"',
        'body = {headers = {x = "sk-ant-api03-' + "a1B2" * 12 + '"}}',
    ):
        file.write_text(f"{plain}{line}\n")
        result = recompose("replay", "--estimate", cwd=tmp_path)
        assert (
            result.code == 1
            and "a secret in a config file" in result.err
            and "[replay.teacher.oak]" in result.err
        )
        assert KEY not in result.err and "a1B2" not in result.err


def test_resume_refuses_another_replay(tmp_path: Path, keyed: None) -> None:
    with Endpoint() as endpoint:
        prepare(tmp_path, endpoint.url, sessions=1, steps=2)
        assert (
            "no replay was begun here"
            in recompose("replay", "--resume", "--max-usd", "1", cwd=tmp_path).err
        )
        assert recompose("replay", "--max-usd", "1", cwd=tmp_path).code == 0
        result = recompose(
            "replay", "--resume", "--max-usd", "1", "--replay.temperature", "0.5", cwd=tmp_path
        )
        assert (
            result.code == 1
            and "settings.temperature: 0.0 -> 0.5" in " ".join(result.err.split())
            and len(endpoint.seen) == 6
        )
        assert (
            recompose(
                "replay", "--resume", "--max-usd", "2", "--replay.attempts", "3", cwd=tmp_path
            ).code
            == 0
        )


def test_a_key_that_is_not_accepted_ends_it_at_once(tmp_path: Path, keyed: None) -> None:
    with Endpoint(plan=lambda number, body: "401", echo_key=True) as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=40, steps=3, sessions_at_once=8)
        result = recompose("replay", "--max-usd", "1", cwd=tmp_path)
        assert (
            result.code == 1
            and "check the key in the environment variable" in " ".join(result.err.split())
            and "PLANTED_ROUTER_KEY" in result.err
        )
        assert len(endpoint.seen) <= 8 * 3 and not (work / "answers.jsonl").exists()
        assert not with_the_key(tmp_path) and KEY not in result.out + result.err


def test_the_steps_of_a_session_are_asked_in_order_and_sessions_at_the_same_time(
    tmp_path: Path, keyed: None
) -> None:
    # 18 lanes (6 sessions, 3 teachers) at an endpoint whose limit is 16 at once
    with Endpoint(hold=16) as endpoint:
        prepare(tmp_path, endpoint.url, sessions=6, steps=5)
        assert recompose("replay", "--max-usd", "1", cwd=tmp_path).code == 0
        assert endpoint.most_at_once == 16
        lanes: dict[tuple[str, str], list[int]] = {}
        for request in endpoint.seen:
            lanes.setdefault((request.model, request.body["messages"][0]["content"]), []).append(
                len(request.body["messages"])
            )
        assert len(lanes) == 18 and all(
            lane == sorted(lane) and len(lane) == 5 for lane in lanes.values()
        )
        assert all(name_of(request.body) == request.name for request in endpoint.seen)


def test_what_is_sent_holds_no_secret_and_nothing_from_after_the_step(
    tmp_path: Path, keyed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions were not redacted when they were written; the requests are redacted all the
    same."""
    monkeypatch.setenv("DEPLOY_TOKEN", "correct-horse-battery-staple-9")
    with Endpoint() as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=1, steps=4)
        session = talk("s0", steps=4)
        prompt = f"use {KEY} and ghp_{'a1B2c3D4' * 5} or correct-horse-battery-staple-9"
        first = Turn(role="user", author="human", blocks=(Text(prompt),))
        write_sessions(
            work / "sessions.jsonl", [replace(session, turns=(first, *session.turns[1:]))]
        )
        assert recompose("replay", "--max-usd", "1", cwd=tmp_path).code == 0
        sent = [json.dumps(request.body) for request in endpoint.seen]
        assert (
            len(sent) == 12
            and not any(w in text for text in sent for w in (KEY, "ghp_a1", "correct-horse"))
            and "REDACTED" in sent[0]
        )
        # The beginning, and so many whole exchanges: never the student's own message at the end,
        # with or without its result.
        assert Counter(len(request.body["messages"]) for request in endpoint.seen) == {
            1: 3,
            3: 3,
            5: 3,
            7: 3,
        }
        for request in endpoint.seen:
            steps = (len(request.body["messages"]) - 1) // 2
            assert f"s0/{steps}.py" not in json.dumps(request.body) and (
                steps == 0 or f"s0/{steps - 1}.py" in json.dumps(request.body)
            )


def test_where_nobody_answers_nothing_is_written_over_what_was_there(
    tmp_path: Path, keyed: None
) -> None:
    with Endpoint() as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=2, steps=2)
        assert recompose("replay", "--max-usd", "1", cwd=tmp_path).code == 0
        before = {
            name: (work / name).read_bytes()
            for name in ("answers.jsonl", "preferences.jsonl", "anchors.jsonl", "replay.json")
        }
        endpoint.plan = lambda number, body: "400"
        result = recompose("replay", "--max-usd", "1", "--replay.temperature", "1", cwd=tmp_path)
        assert result.code == 1 and "none of 12 calls brought an answer: status 400" in " ".join(
            result.err.split()
        )
        assert {name: (work / name).read_bytes() for name in before} == before
        endpoint.plan = lambda number, body: "400" if number % 4 == 0 else "ok"
        some = recompose("replay", "--max-usd", "1", "--replay.temperature", "1", cwd=tmp_path)
        assert (
            some.code == 0
            and "calls brought no answer: run it again to ask for no others"
            in " ".join(some.out.split())
        )


def test_answers_bought_earlier_are_all_found_again_at_a_ceiling_that_leaves_no_room(
    tmp_path: Path, keyed: None
) -> None:
    """The first session's answers are missing: its first call meets the ceiling, and the other
    sessions' answers are still looked up."""
    with Endpoint() as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=4, steps=2, sessions_at_once=1)
        sessions = (work / "sessions.jsonl").read_bytes()
        write_sessions(
            work / "sessions.jsonl", [talk(f"s{number}", steps=2) for number in (1, 2, 3)]
        )
        assert (
            recompose("replay", "--max-usd", "1", cwd=tmp_path).code == 0
            and len(endpoint.seen) == 18
        )
        (work / "sessions.jsonl").write_bytes(sessions)
        result = recompose("replay", "--max-usd", "0.001", "--json", cwd=tmp_path)
        assert (
            result.code == 4 and result.value["asking"] == {"kept": 18} and len(endpoint.seen) == 18
        )
        assert len(list(read_answers(work / "answers.jsonl"))) == 18


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(tmp_path: Path) -> None:
    # four rounds of nine calls: on a busy machine too it is not over when the signal comes
    with Endpoint(delay_s=1.0) as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=3, steps=4, sessions_at_once=3)
        process = start(tmp_path, "--max-usd", "1")
        deadline = time.monotonic() + 60
        while len(endpoint.seen) < 12 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130 and "interrupted" in err
        assert "every answer that came is kept" in " ".join(
            out.split()
        ) and "replay --resume" in " ".join(out.split())
        answered = answered_in(work)
        before = len(endpoint.seen)
        resumed = start(tmp_path, "--max-usd", "1", "--resume", "--json")
        assert resumed.communicate(timeout=120) and resumed.returncode == 0
        assert (
            answered
            and not answered & {request.name for request in endpoint.seen[before:]}
            and len(answered_in(work)) == 36
        )


def test_a_wrong_address_is_told_with_its_reason_and_costs_a_handful_of_calls(
    tmp_path: Path, keyed: None
) -> None:
    """The endpoint answers 200 without an answer: the ceiling is neither used up nor blamed, and
    the losses can be settled by hand."""
    with Endpoint(plan=lambda number, body: "no_choices") as endpoint:
        prepare(tmp_path, endpoint.url, sessions=20, steps=5, sessions_at_once=4)
        result = recompose("replay", "--max-usd", "3", cwd=tmp_path)
        message = " ".join(result.err.replace("\u2502", " ").split())
        assert (
            result.code == 1
            and "the body holds no answer" in message
            and endpoint.url in message
            and "base_url" in message
        )
        assert "--max-usd" not in message and len(endpoint.seen) <= 3 * (5 + 4)
        num = len(endpoint.seen)
        settled = recompose("replay", "--settle-lost", "0.002", "--json", cwd=tmp_path)
        assert settled.code == 0 and settled.value["settled"] == num == len(endpoint.seen)
        assert settled.value["booked_usd"] == pytest.approx(0.002)
        assert recompose("replay", "--settle-lost", "-1", cwd=tmp_path).code == 2


def test_a_bill_above_its_booking_is_told_by_name_and_ends_it_with_an_error(
    tmp_path: Path, keyed: None
) -> None:
    """The teachers' prices are set to a thousandth of the bill: the answers are in the files, and
    the exit code is not 0."""
    with Endpoint(input_usd=1.0) as endpoint:
        work = prepare(tmp_path, endpoint.url, sessions=6, steps=4, sessions_at_once=2)
        result = recompose("replay", "--max-usd", "3", "--json", cwd=tmp_path)
        assert (
            result.code == 1
            and "for a call that was booked at $" in result.value["stopped"]["what"]
        ), result.err
        assert (
            result.value["stopped"]["what"].split()[0] in TEACHERS
            and result.value["next"] == "recompose replay"
        )
        assert len(list(read_answers(work / "answers.jsonl"))) == len(endpoint.seen) <= 3 * 2
