"""A local model as a teacher: the workshop's own student answers, through the same ledger as
everybody else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import ConfigError, TeacherError
from composer_replication.core.teacher import Request, TeacherReply
from composer_replication.core.trace import ToolCall
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.rollouts.local_teacher import LocalTeacher
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import make_task
from composer_replication.workshop.workshop_env import WorkshopEnv

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def student(repository_root: Path) -> str:
    return str(repository_root / "examples" / "workshop_student")


@pytest.fixture(scope="module")
def asked() -> Request:
    with Sandbox() as sandbox:
        env = WorkshopEnv(make_task("7-0", split="train"), sandbox=sandbox)
        opening = env.open()
        env.close()
    return Request(turns=opening.turns, tools=opening.tools, max_tokens=64, about="7-0:1:-")


@pytest.fixture(scope="module")
def teacher(student: str) -> LocalTeacher:
    return LocalTeacher("mine", TeacherSettings(kind="local", model=student, family="workshop"))


def ask(teacher: LocalTeacher, request: Request) -> TeacherReply:
    return asyncio.run(teacher.ask(request))


def test_it_calls_a_tool_and_says_how_sure_it_is(teacher: LocalTeacher, asked: Request) -> None:
    reply = ask(teacher, asked)
    (call,) = reply.turn.calls
    offered = {tool.name for tool in asked.tools}
    # the habit that this student is there to lose
    assert call.name == "read_file" not in offered and reply.problem == "unknown_tool"
    assert reply.turn.sampled is None and reply.turn.author == teacher.settings.model
    assert reply.confidence is not None and 0 < reply.confidence <= 1
    assert (
        reply.usage.usd == 0.0
        and (reply.usage.input_tokens or 0) > 50
        and 1 < (reply.usage.output_tokens or 0) <= 64
    )
    assert ask(teacher, asked) == reply  # greedy, so the same again


def test_draws_differ_and_each_is_the_same_again(teacher: LocalTeacher, asked: Request) -> None:
    hot = [ask(teacher, replace(asked, temperature=3.0, sample=n)).turn for n in (0, 1, 2, 0)]
    assert hot[0] == hot[3] and len({repr(turn.blocks) for turn in hot}) == 3


def test_a_message_without_an_end_is_a_problem_and_a_tool_on_offer_is_none(
    teacher: LocalTeacher, asked: Request
) -> None:
    assert ask(teacher, replace(asked, max_tokens=3)).problem == "cut_off"
    renamed = tuple(
        replace(tool, name="read_file") if tool.name == "open_file" else tool
        for tool in asked.tools
    )
    reply = ask(teacher, replace(asked, tools=renamed))
    assert reply.turn.calls[0].name in {tool.name for tool in renamed} and reply.problem == ""


def test_what_does_not_fit_or_cannot_be_done_is_said(
    teacher: LocalTeacher, asked: Request, tmp_path: Path
) -> None:
    with pytest.raises(TeacherError, match="are more than the model's") as caught:
        ask(teacher, replace(asked, max_tokens=10**6))
    assert not caught.value.billed and not caught.value.again
    with pytest.raises(TeacherError, match="schema"):
        ask(teacher, replace(asked, schema={}))
    with pytest.raises(ConfigError, match="no tokenizer"):
        ask(
            LocalTeacher("x", TeacherSettings(kind="local", model=str(tmp_path), family="x")), asked
        )


def test_its_answers_are_kept_like_bought_ones(
    teacher: LocalTeacher, asked: Request, tmp_path: Path
) -> None:
    async def work() -> None:
        with Ledger(tmp_path / LEDGER_NAME, max_usd=0.0) as ledger:
            asker = Asker(ledger)
            first, again = (
                await asker.ask(teacher, asked),
                await asker.ask(teacher, replace(asked, about="elsewhere")),
            )
            assert first.now and not again.now and again.reply.turn == first.reply.turn
            assert isinstance(again.reply.turn.blocks[-1], ToolCall)

    asyncio.run(work())
