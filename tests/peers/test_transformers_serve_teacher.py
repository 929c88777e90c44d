"""The chat-completions teacher against a real model server: `transformers serve` with the
workshop's student."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.errors import TeacherError
from composer_replication.core.teacher import Request, TeacherReply
from composer_replication.core.trace import Turn
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import make_task
from composer_replication.workshop.workshop_env import WorkshopEnv
from tests.peers.serving import missing, served

pytestmark = [pytest.mark.train, pytest.mark.skipif(bool(missing()), reason=missing() or "there")]
STUDENT = Path(__file__).parents[2] / "examples" / "workshop_student"


def teacher(url: str, model: str, *, logprobs: bool = False) -> OpenAICompatible:
    settings = TeacherSettings(
        model=model, family="workshop", base_url=url, key_env="", logprobs=logprobs
    )
    return OpenAICompatible("real", settings, environ={})


async def played(url: str, sandbox: Sandbox) -> tuple[WorkshopEnv, list[Turn], list[TeacherReply]]:
    """An episode in which each message of the player is an answer of the server."""
    env = WorkshopEnv(make_task(1), sandbox=sandbox)
    opening = env.open()
    turns, replies = list(opening.turns), list[TeacherReply]()
    async with teacher(url, str(STUDENT)) as asked:
        while len(replies) < env.max_turns:
            reply = await asked.ask(Request(turns=tuple(turns), tools=opening.tools, max_tokens=64))
            replies.append(reply)
            answer = env.reply(reply.turn)
            turns += [reply.turn, *answer.turns]
            if answer.done:
                break
    return env, turns, replies


async def refused(url: str) -> TeacherError:
    async with teacher(url, "another") as asked:
        with pytest.raises(TeacherError) as caught:
            await asked.ask(
                Request(turns=WorkshopEnv(make_task(1), sandbox=Sandbox()).open().turns)
            )
    return caught.value


def test_a_real_server_answers_with_calls_that_the_environment_carries_out(tmp_path: Path) -> None:
    with (
        Sandbox() as sandbox,
        served(["transformers", "serve", str(STUDENT)], cwd=tmp_path, log=tmp_path / "log") as url,
    ):
        env, turns, replies = asyncio.run(played(url, sandbox))
        again = asyncio.run(played(url, sandbox))[2]
        error = asyncio.run(refused(url))
    assert len(replies) >= 2 and replies[0].turn.calls and env.tally.valid_calls > 0
    for reply in replies:
        assert reply.usage.input_tokens and reply.usage.output_tokens and reply.usage.usd is None
        assert reply.turn.author is not None and reply.turn.author.startswith(str(STUDENT))
    assert [r.usage.input_tokens for r in replies] == sorted(
        {r.usage.input_tokens or 0 for r in replies}
    ), "each reads what came before"
    assert [[c.name for c in r.turn.calls] for r in again] == [
        [c.name for c in r.turn.calls] for r in replies
    ], "temperature 0"
    assert any(turn.results and not turn.results[0].is_error for turn in turns)
    assert error.what.startswith("status 400") and "another" in error.what and not error.billed
