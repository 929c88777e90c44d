"""An episode at an OpenEnv server, as our Env; on this machine only.

    env = OpenEnvEnv(url="http://127.0.0.1:8000", task_id="t", reset={"seed": 7})

By itself it speaks to a server of `serve_openenv` (rollouts/openenv_tasks.py). Any other server is
played with a Dialect, which says what its observations and actions mean. Addresses beyond this
machine are refused: an environment reads everything that the student writes. The package `openenv`
is imported when an episode opens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from composer_replication.core.errors import ConfigError, need
from composer_replication.core.trace import ENVIRONMENT, ToolCall, ToolResult, Turn
from composer_replication.rollouts.envs.env import Opening, Reply, RunsIn
from composer_replication.rollouts.envs.env_json import (
    message_from_wire,
    message_to_wire,
    opening_from_wire,
)

LOOPBACK = ("127.0.0.1", "localhost", "::1")
Action = Mapping[str, Any]
Observation = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the observations and actions of an OpenEnv server mean.

    `opening` makes the first messages and the tools from the observation of `reset`; `action` is
    the step that a call stands for; `result` is the answer to a call, (text, is_error). A call is
    one step.
    """

    opening: Callable[[Observation], Opening]
    action: Callable[[ToolCall], Action]
    result: Callable[[Observation], tuple[str, bool]]


@dataclass(slots=True, kw_only=True)
class OpenEnvEnv:
    """One episode at an OpenEnv server, as our Env: a session of its own, opened by `open()`.

    `reset` are the arguments of the server's reset. Without a dialect the server is one of
    `serve_openenv`, and a whole message is one step.
    """

    url: str
    task_id: str
    reset: Mapping[str, Any]
    dialect: Dialect | None = None
    max_turns: int = 32
    runs_in: RunsIn = "any_thread"
    _client: Any = field(default=None, repr=False)
    _reward: float = 0.0
    _measures: dict[str, float] = field(default_factory=dict)

    def open(self) -> Opening:
        """Connect, and reset the server to this task."""
        self._client = _connect(self.url)
        observation = self._observed(self._client.reset(**self.reset))
        if self.dialect is not None:
            return self.dialect.opening(observation)
        self.task_id, self.max_turns = observation["task_id"], observation["max_turns"]
        return opening_from_wire(observation)

    def reply(self, turn: Turn) -> Reply:
        """Answer one message of the student."""
        if self.dialect is not None:
            return self._reply_by_calls(turn, self.dialect)
        step = self._client.step({"message": message_to_wire(turn)})
        observation = self._observed(step)
        self._measures = dict(observation["measures"])
        return Reply(
            turns=tuple(map(message_from_wire, observation["messages"])), done=bool(step.done)
        )

    def _reply_by_calls(self, turn: Turn, dialect: Dialect) -> Reply:
        """One step per call; a message without one ends the episode."""
        results, done = list[ToolResult](), not turn.calls
        for call in turn.calls:
            if done:
                results.append(ToolResult(call.id, "the episode has ended", True))
                continue
            step = self._client.step(dict(dialect.action(call)))
            text, is_error = dialect.result(self._observed(step))
            results.append(ToolResult(call.id, text, is_error))
            done = bool(step.done)
        answers = tuple(
            Turn(role="tool", author=ENVIRONMENT, blocks=(result,)) for result in results
        )
        return Reply(turns=answers, done=done)

    def _observed(self, step: Any) -> Observation:
        """The observation; the last reward that a step came with is the episode's."""
        if step.reward is not None:
            self._reward = float(step.reward)
        return step.observation

    def reward(self) -> float:
        """The last reward that the server gave, within 0 and 1."""
        return min(max(self._reward, 0.0), 1.0)

    def measures(self) -> Mapping[str, float]:
        """What the server's environment counted, if it is one of ours."""
        return self._measures

    def close(self) -> None:
        """Close the session; safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


def check_loopback(url: str) -> None:
    """Raise ConfigError for an address that is not on this machine.

    >>> check_loopback("http://127.0.0.1:8000")
    """
    if (urlsplit(url).hostname or "") not in LOOPBACK:
        raise ConfigError(
            f"{url} is not on this machine; an environment reads all that the student writes",
            where="rollouts.env",
            fix="run the server here, or forward its port: ssh -L 8000:localhost:8000 HOST",
        )


def _connect(url: str) -> Any:
    check_loopback(url)
    client = need("openenv.core.generic_client", extra="openenv").GenericEnvClient(base_url=url)
    return client.sync()
