"""The judge is asked only if its verdict makes a pair, as seldom as possible, and never about its
own family; its cost goes through the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.errors import TeacherError
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Answer, Preference
from composer_replication.core.teacher import Price, Request, TeacherReply, worst_usd
from composer_replication.core.trace import Segment, Session, SourceRef, Text, ToolCall, Turn
from composer_replication.data.replay.ask import answered_turn, replay
from composer_replication.data.replay.judging import (
    JudgeResult,
    judge_turns,
    longest_request,
    most_questions,
    read_verdict,
)
from composer_replication.data.teachers.asking import Asker, RetryPolicy
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from tests.data.teachers.fake_teacher import FakeTeacher

SETTINGS = ReplaySettings(tiers=("exact", "judge"), judge="j", min_families=3, need_evidence=False)
GO = Turn(role="user", author="human", blocks=(Text("Why is it red?"),))


def say(text: str, author: str = "tiny") -> Turn:
    return Turn(role="assistant", author=author, blocks=(Text(text),))


def session(student_turn: Turn, name: str = "s1") -> Session:
    return Session(
        id=name,
        source=SourceRef(file="f"),
        turns=(GO, student_turn),
        segments=(Segment(start=0, end=2),),
    )


def answers(*texts: str) -> tuple[Answer, ...]:
    return tuple(
        Answer(site_id="s1:1:-", teacher=f"t-{f}", family=f, turn=say(w, f), usd=0.5)
        for f, w in zip("abcd", texts, strict=False)
    )


def judge(
    decide: Callable[[str, str], Any],
    asked: list[tuple[str, str]],
    *,
    family: str = "z",
    price: float = 0.01,
) -> FakeTeacher:
    """A judge whose verdict depends on the two messages that it is shown."""

    async def act(request: Request) -> TeacherReply:
        text = request.turns[-1].text
        first, second = (
            part.strip() for part in text.partition("Message A:")[2].split("Message B:")
        )
        asked.append((first, second))
        verdict = decide(first, second)
        if isinstance(verdict, TeacherError):
            raise verdict
        return TeacherReply(
            turn=say(verdict if isinstance(verdict, str) else json.dumps({"same": verdict}), "j"),
            problem="",
        )

    return FakeTeacher(act, name="j", family=family, price=Price(request_usd=price), salt="j")


def test_another_model_than_the_judge_that_was_named_says_nothing(tmp_path: Path) -> None:
    """A router fell back to a model that may be of the family of the trace's model, or of an
    answer's."""
    asked: list[tuple[str, str]] = []
    umpire = judge(lambda first, second: True, asked)

    async def act(request: Request) -> TeacherReply:
        judged_reply = await umpire.ask(request)
        return replace(judged_reply, turn=replace(judged_reply.turn, author="claude-opus-4-5"))

    result = judged(
        tmp_path,
        session(say("own")),
        answers("x", "y", "z"),
        replace(umpire, act=act, name="other"),
    )
    assert (
        asked
        and result.counts["another model"] == len(asked)
        and not any(verdict for at in result.verdicts.values() for verdict in at.values())
    )


def first_word(first: str, second: str) -> bool:
    return first.split()[0] == second.split()[0]


def judged(
    tmp_path: Path,
    recorded: Session,
    teacher_answers: tuple[Answer, ...],
    teacher: FakeTeacher,
    max_usd: float = 1.0,
    **options: Any,
) -> JudgeResult:
    settings, redactor = options.get("settings", SETTINGS), Redactor(key=b"a store")

    async def work() -> JudgeResult:
        with Ledger(tmp_path / LEDGER_NAME, max_usd=max_usd) as ledger:
            asker = Asker(ledger, retry_policy=RetryPolicy(attempts=2, first_wait_s=0.001))
            return await judge_turns(
                [recorded],
                [answered_turn(recorded, 1, teacher_answers)],
                teacher,
                asker=asker,
                settings=settings,
                redactor=redactor,
            )

    return asyncio.run(work())


OWN, ALIKE = session(say("Done.")), answers("Look at a.py", "Look into a.py", "Look there")


def test_the_word_of_the_judge_makes_a_pair_and_stands_on_it_with_its_price(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    result = judged(tmp_path, OWN, ALIKE, judge(first_word, asked))
    (asked_turn,) = replay(
        [OWN], lambda s, t: ALIKE, min_families=3, tiers=SETTINGS.tiers, judge=result.at
    )
    assert isinstance(asked_turn.result, Preference)
    evidence = asked_turn.result.evidence
    assert (evidence["tier"], evidence["judge"], evidence["families"]) == (
        "judge",
        "j",
        ["a", "b", "c"],
    )
    assert evidence["usd"] == {"t-a": 0.5, "t-b": 0.5, "t-c": 0.5, "j": pytest.approx(0.05)}
    # Each message against the student's, then against the first other one: five questions, and not
    # the six of all against all.
    assert (
        len(asked) == 5 == result.counts["bought"]
        and result.counts["same"] == 2
        and result.counts["different"] == 3
    )
    again = judged(tmp_path, OWN, ALIKE, judge(first_word, asked), max_usd=0.0)
    assert len(asked) == 5 and again.counts["kept"] == 5 and again.verdicts == result.verdicts


def test_nothing_of_the_question_tells_whose_message_is_whose(tmp_path: Path) -> None:
    """The texts decide the order, so the student's message is now A and now B; no author and no
    family is named."""
    asked: list[tuple[str, str]] = []
    for number, student_text in enumerate(("Zebras.", "Aunts.")):
        judged(tmp_path / str(number), session(say(student_text)), ALIKE, judge(first_word, asked))
    assert ("Look at a.py", "Zebras.") in asked and ("Aunts.", "Look at a.py") in asked
    assert all(first <= second for first, second in asked) and not any(
        "tiny" in text or "t-a" in text for shown_pair in asked for text in shown_pair
    )


@pytest.mark.parametrize(
    ("teacher_answers", "changes", "student_text"),
    [
        (answers("Look", "Look", "Look"), {}, "Done."),  # the exact tier has a pair
        (answers("Look at a", "Look at b", "Done."), {}, "Done."),  # no pair whatever it says
        (ALIKE[:2], {}, "Done."),
        (ALIKE, {"need_evidence": True}, "Done."),
    ],
)
def test_nobody_pays_for_a_word_that_makes_no_pair(
    tmp_path: Path, teacher_answers: tuple[Answer, ...], changes: dict[str, Any], student_text: str
) -> None:
    asked: list[tuple[str, str]] = []
    result = judged(
        tmp_path,
        session(say(student_text)),
        teacher_answers,
        judge(first_word, asked),
        settings=SETTINGS.model_copy(update=changes),
    )
    assert not asked and not result.counts


def test_it_is_not_asked_about_its_own_family(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    assert not judged(tmp_path, OWN, ALIKE, judge(first_word, asked, family="b")).counts
    recorded = session(replace(say("Done."), author="claude-opus-4-5"))
    result = judged(tmp_path, recorded, ALIKE, judge(first_word, asked, family="anthropic"))
    (asked_turn,) = replay(
        [recorded], lambda s, t: ALIKE, min_families=3, tiers=SETTINGS.tiers, judge=result.at
    )
    assert not asked and asked_turn.outcome == "no_consensus"


@pytest.mark.parametrize(
    "word",
    [
        None,
        "yes",
        '{"same": 1}',
        '{"same": true, "why": "x"}',
        "[true]",
        '{"same": "true"}',
        "{" * 9000,
    ],
)
def test_what_is_no_strict_json_is_no_word(tmp_path: Path, word: Any) -> None:
    result = judged(tmp_path, OWN, ALIKE, judge(lambda first, second: word, []))
    (asked_turn,) = replay(
        [OWN], lambda s, t: ALIKE, min_families=3, tiers=SETTINGS.tiers, judge=result.at
    )
    assert (
        asked_turn.outcome == "no_consensus"
        and result.counts["undecided"] == result.counts["bought"]
    )


def test_a_fence_is_taken_off_and_an_answer_with_a_problem_is_no_word() -> None:
    assert read_verdict(TeacherReply(turn=say('```json\n{"same": false}\n```'))) is False
    assert read_verdict(TeacherReply(turn=say('{"same": true}'), problem="cut_off")) is None


def test_a_ceiling_ends_it_and_what_was_said_is_kept(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    result = judged(tmp_path, OWN, ALIKE, judge(first_word, asked), max_usd=0.025)
    assert result.stopped is not None and result.stopped.exit_code == 4 and len(asked) == 2
    (asked_turn,) = replay(
        [OWN], lambda s, t: ALIKE, min_families=3, tiers=SETTINGS.tiers, judge=result.at
    )
    assert asked_turn.outcome == "no_consensus"  # half a judgment makes no pair
    assert judged(tmp_path, OWN, ALIKE, judge(first_word, asked)).counts["kept"] == 2


def test_a_failing_judge_is_counted_and_a_key_that_is_not_accepted_ends_it(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    busy = TeacherError("status 500", again=True, billed=False)
    result = judged(tmp_path, OWN, ALIKE, judge(lambda first, second: busy, asked))
    assert result.counts["failed"] == 6 and result.stopped is None
    asked.clear()
    result = judged(
        tmp_path,
        OWN,
        ALIKE,
        judge(
            lambda first, second: TeacherError("401", again=False, billed=False, for_all=True),
            asked,
        ),
    )
    assert len(asked) == 1 and result.stopped is not None


def test_no_secret_is_shown_and_what_is_too_long_is_not_judged(tmp_path: Path) -> None:
    sent: list[str] = []

    async def act(request: Request) -> TeacherReply:
        sent.append("\n".join(turn.text for turn in request.turns))
        return TeacherReply(turn=say('{"same": false}', "j"))

    secret = "ghp_" + "a1B2c3D4" * 5
    call = Turn(
        role="assistant",
        author="tiny",
        blocks=(ToolCall("c", "login", {"password": "hunter2-horse", "by": secret}),),
    )
    recorded = replace(session(call), turns=(replace(GO, blocks=(Text(f"use {secret}"),)), call))
    judged(
        tmp_path,
        recorded,
        answers("Look at " + secret, "Look into it", "Look"),
        replace(judge(first_word, []), act=act),
    )
    assert (
        len(sent) == 6
        and not any(word in text for text in sent for word in (secret, "hunter2"))
        and "REDACTED" in sent[0]
    )
    long = answers("Look " + "x" * 9000, "Look into it", "Look")
    result = judged(tmp_path / "long", OWN, long, judge(first_word, []))
    assert result.counts["too long"] == 3 and result.counts["bought"] == 3


class Counting(FakeTeacher):
    """A judge that bounds the tokens of a request as for an endpoint: one per byte of JSON."""

    def most_input_tokens(self, request: Request) -> int:
        return len(json.dumps([turn.text for turn in request.turns]))


def test_no_question_costs_more_than_the_longest(tmp_path: Path) -> None:
    paid: list[float] = []

    async def act(request: Request) -> TeacherReply:
        paid.append(worst_usd(teacher, request))
        return TeacherReply(turn=say('{"same": null}', "j"))

    teacher = Counting(
        act,
        name="j",
        family="z",
        price=Price(input_usd_per_mtok=1.0, output_usd_per_mtok=1.0),
        salt="j",
    )
    longest = say('"' * 7_900)
    big = replace(session(longest), turns=(replace(GO, blocks=(Text('"' * 50_000),)), longest))
    judged(tmp_path, big, answers(*(letter + '"' * 7_900 for letter in "xyz")), teacher)
    assert len(paid) == most_questions(3) and max(paid) <= worst_usd(
        teacher, longest_request(SETTINGS)
    )
