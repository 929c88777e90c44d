"""The workshop as a real OpenEnv server on this machine, played by OpenEnv's own client through our
Env; and a server of another kind, through a dialect."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import HUMAN, Text, ToolCall, ToolSpec, Turn
from composer_replication.rollouts.env_validation import checked_opening, checked_reply
from composer_replication.rollouts.envs.env import Opening, Reply
from composer_replication.rollouts.envs.openenv import Dialect, OpenEnvEnv
from composer_replication.rollouts.openenv_tasks import (
    free_port,
    openenv_source,
    serve_openenv,
    wait_for,
)
from composer_replication.rollouts.sampling import EpisodeLimits
from composer_replication.rollouts.task_source import TaskSource, nth_task, open_world
from composer_replication.workshop.demonstrators import oracle

pytestmark = pytest.mark.backend
SEED = 7


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_openenv("workshop") as address:
        yield address


@pytest.fixture(scope="module")
def workshop() -> Iterator[TaskSource]:
    with open_world("workshop") as source:
        yield source


def sound_opening(opening: Opening) -> Opening:
    return checked_opening(opening, limits=EpisodeLimits())


def sound_reply(reply: Reply, message: Turn) -> Reply:
    return checked_reply(reply, calls=[call.id for call in message.calls], limits=EpisodeLimits())


def remote_env(url: str, number: int) -> Any:
    makers = openenv_source(url).train(SEED)
    return [next(makers) for _ in range(number + 1)][-1]()


@pytest.mark.parametrize("number", [0, 3])
def test_an_episode_over_openenv_is_the_episode_here(
    url: str, workshop: TaskSource, number: int
) -> None:
    here: Any = nth_task(workshop, seed=SEED, number=number, split="train")
    there = remote_env(url, number)
    assert sound_opening(there.open()) == sound_opening(here.open())
    assert (there.task_id, there.max_turns) == (here.task_id, here.max_turns)
    done = False
    while not done:
        message = oracle(here)
        expected = here.reply(message)
        found = there.reply(message)
        assert sound_reply(found, message) == sound_reply(expected, message)
        done = expected.done
    assert there.reward() == here.reward() == 1.0
    assert there.measures() == here.measures()
    there.close()
    there.close()


def test_a_wrong_call_comes_back_as_an_error(url: str) -> None:
    env = remote_env(url, 0)
    env.open()
    call = ToolCall("c1", "no_such_tool", {})
    reply = env.reply(Turn(role="assistant", author=None, blocks=(call,)))
    (result,) = reply.turns[0].results
    assert result.call_id == "c1"
    assert result.is_error is True
    assert not reply.done
    assert env.reward() == 0.0
    env.close()


def test_sessions_at_the_same_time_do_not_mix(url: str) -> None:
    def task_of(number: int) -> tuple[str, str]:
        env = remote_env(url, number)
        request = env.open().turns[-1].text
        answer = env.reply(
            Turn(role="assistant", author=None, blocks=(ToolCall("c", "list_files", {}),))
        )
        env.close()
        return env.task_id, request + answer.turns[0].results[0].text

    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(task_of, range(4)))
    assert at_once == [task_of(number) for number in range(4)]
    assert len({task for task, _ in at_once}) == 4


def test_any_client_reads_the_schema(url: str) -> None:
    with urllib.request.urlopen(f"{url}/schema") as answer:
        schema = json.load(answer)
    assert "message" in schema["action"]["properties"]
    assert {"messages", "tools"} <= set(schema["observation"]["properties"])


def test_monitor_tasks_are_others(url: str, workshop: TaskSource) -> None:
    (make,) = openenv_source(url).monitor(SEED, 1)
    env = make()
    env.open()
    assert env.task_id == workshop.monitor(SEED, 1)[0]().task_id
    env.close()


def test_an_address_beyond_this_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="not on this machine") as error:
        openenv_source("http://envs.example.org:8000")
    assert "ssh -L" in str(error.value)
    with pytest.raises(ConfigError, match="not on this machine"), serve_openenv(host="0.0.0.0"):
        pass
    env = OpenEnvEnv(url="http://10.0.0.5:8000", task_id="t", reset={})
    with pytest.raises(ConfigError, match="not on this machine"):
        env.open()


# ---- a server that is not ours ----


@pytest.fixture(scope="module")
def guessing() -> Iterator[str]:
    """A number-guessing server, made with OpenEnv's own classes."""
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Guess(Action):
        number: int

    class Answer(Observation):
        said: str = ""
        invalid: bool = False

    class Game(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: Any = None, **_: Any) -> Any:
            self.secret = (seed or 0) % 10
            return Answer(said="guess a number from 0 to 9", reward=0.0)

        def step(self, action: Any, timeout_s: Any = None, **_: Any) -> Any:
            if not 0 <= action.number <= 9:
                return Answer(said="out of range", invalid=True, reward=0.0)
            right = action.number == self.secret
            return Answer(said="right" if right else "wrong", reward=float(right), done=right)

        @property
        def state(self) -> Any:
            return State()

    port = free_port("127.0.0.1")
    server = uvicorn.Server(
        uvicorn.Config(create_app(Game, Guess, Answer), port=port, log_level="warning")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started, thread)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


GUESS = ToolSpec(
    name="guess", parameters={"type": "object", "properties": {"number": {"type": "integer"}}}
)
DIALECT = Dialect(
    opening=lambda seen: Opening(
        turns=(Turn(role="user", author=HUMAN, blocks=(Text(seen["said"]),)),), tools=(GUESS,)
    ),
    action=lambda call: {"number": int(call.arguments["number"])},
    result=lambda seen: (seen["said"], seen["invalid"]),
)


def guesses(*numbers: int) -> Turn:
    calls = tuple(ToolCall(f"c{n}", "guess", {"number": n}) for n in numbers)
    return Turn(role="assistant", author=None, blocks=calls)


def test_a_foreign_server_is_played_by_its_dialect(guessing: str) -> None:
    env = next(openenv_source(guessing, dialect=DIALECT).train(5))()
    opening = sound_opening(env.open())
    assert opening.turns[0].text == "guess a number from 0 to 9"
    secret = env.reset["seed"] % 10
    wrong = (secret + 1) % 10
    message = guesses(12, wrong)
    reply = sound_reply(env.reply(message), message)
    results = [turn.results[0] for turn in reply.turns]
    assert [(r.text, r.is_error) for r in results] == [("out of range", True), ("wrong", False)]
    assert (reply.done, env.reward()) == (False, 0.0)
    last = env.reply(guesses(secret, wrong))
    assert last.done
    assert env.reward() == 1.0
    assert last.turns[1].results[0].text == "the episode has ended"
    env.close()


def test_monitor_tasks_of_a_foreign_server_have_other_seeds(guessing: str) -> None:
    source = openenv_source(guessing, dialect=DIALECT)
    trained = source.train(5)
    seeds = {next(trained)().reset["seed"] for _ in range(20)}
    watched = {make().reset["seed"] for make in source.monitor(5, 20)}
    assert len(seeds) == len(watched) == 20
    assert not seeds & watched
