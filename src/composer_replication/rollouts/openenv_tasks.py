"""Tasks over OpenEnv, both ways and on this machine only.

    with serve_openenv("workshop") as url:          # our tasks as an OpenEnv server
        source = openenv_source(url)                # the tasks of such a server, as our TaskSource
        env = next(source.train(7))()               # Env of rollouts/envs/env.py

The tasks of any other OpenEnv server, with a dialect of rollouts/envs/openenv.py:

    @task_source
    def tasks():                                    # rollouts.env = "envs/mine.py:tasks"
        yield openenv_source("http://127.0.0.1:8000", dialect=Dialect(opening, action, result))

The package `openenv` is imported by these functions alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pydantic

from composer_replication.core.errors import StoppedError, need
from composer_replication.rollouts.envs.env import Env, MakeEnv
from composer_replication.rollouts.envs.env_json import (
    message_from_wire,
    message_to_wire,
    opening_to_wire,
)
from composer_replication.rollouts.envs.openenv import Dialect, OpenEnvEnv, check_loopback
from composer_replication.rollouts.task_source import TaskSource, nth_task, open_world

START_S = 60.0
"""Seconds until a server that does not answer counts as broken."""


def openenv_source(url: str, *, dialect: Dialect | None = None, max_turns: int = 32) -> TaskSource:
    """The tasks of a running OpenEnv server; raises ConfigError for an address beyond this machine.

    A task is a seed and a number. For a server of `serve_openenv` it is the same task that its
    source has under that seed; another server gets one seed for each, monitor tasks from 2^31 on.
    """
    check_loopback(url)

    def maker(seed: int, number: int, split: str) -> MakeEnv:
        reset: dict[str, Any] = {"seed": seed, "number": number, "split": split}
        if dialect is not None:
            low = (seed * 1_000_003 + number) % 2**31
            reset = {"seed": low + (2**31 if split == "monitor" else 0)}
        return partial(
            OpenEnvEnv,
            url=url,
            task_id=f"{split}:{seed}:{number}",
            reset=reset,
            dialect=dialect,
            max_turns=max_turns,
        )

    return TaskSource(
        name="openenv",
        train=lambda seed: (maker(seed, number, "train") for number in itertools.count()),
        monitor=lambda seed, count: [maker(seed, number, "monitor") for number in range(count)],
    )


@contextmanager
def serve_openenv(
    name: str = "workshop", *, host: str = "127.0.0.1", port: int = 0, sessions: int = 16
) -> Iterator[str]:
    """Serve the tasks that `rollouts.env` would name as an OpenEnv server, in a thread of this
    process, until the block ends; yields its address. Port 0 takes a free one.

    Raises ConfigError for a host beyond this machine.
    """
    check_loopback(f"http://{host}")
    os.environ["ENABLE_WEB_INTERFACE"] = "false"  # else a web page is served beside it
    uvicorn = need("uvicorn", extra="openenv")
    server_side = need("openenv.core.env_server.http_server", extra="openenv")
    classes = _server_classes()
    with open_world(name) as source:
        app = server_side.create_app(
            partial(classes["environment"], source, threading.Lock()),
            classes["action"],
            classes["observation"],
            env_name=source.name,
            max_concurrent_envs=sessions,
            state_cls=classes["state"],
        )
        port = port or free_port(host)
        config = uvicorn.Config(app, host=host, port=port, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        try:
            wait_for(lambda: server.started, thread)
            yield f"http://{host}:{port}"
        finally:
            server.should_exit = True
            thread.join(START_S)


def free_port(host: str) -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def wait_for(ready: Callable[[], bool], thread: threading.Thread) -> None:
    """Wait until a server in a thread is ready; raises StoppedError if it does not get there."""
    begin = time.monotonic()
    while not ready():
        if not thread.is_alive() or time.monotonic() - begin > START_S:
            raise StoppedError("the OpenEnv server did not start", where="openenv")
        time.sleep(0.02)


@functools.cache
def _server_classes() -> dict[str, Any]:
    """OpenEnv's classes for an environment of ours; made here because their bases are OpenEnv's."""
    types = need("openenv.core.env_server.types", extra="openenv")
    interfaces = need("openenv.core.env_server.interfaces", extra="openenv")

    class MessageAction(types.Action):
        """One message of the student, as rollouts/envs/env_json.py writes it."""

        message: dict[str, Any]

    class MessagesObservation(types.Observation):
        """The environment's messages; `tools` come with the first."""

        task_id: str = ""
        max_turns: int = 0
        messages: tuple[dict[str, Any], ...] = ()
        tools: tuple[dict[str, Any], ...] = ()
        measures: dict[str, float] = pydantic.Field(default_factory=dict)

    class EpisodeState(types.State):
        """Which task is played."""

        task_id: str = ""

    class ServedEnvironment(interfaces.Environment):
        """One session: `reset` opens a task, `step` answers a message. The environments of a source
        answer one after the other, since they may share a sandbox."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self, source: TaskSource, lock: threading.Lock) -> None:
            super().__init__()
            self._source, self._lock = source, lock
            self._env: Env | None = None
            self._state = EpisodeState()

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            number: int = 0,
            split: str = "train",
            **_: Any,
        ) -> Any:
            with self._lock:
                self.close()
                self._env = env = nth_task(self._source, seed=seed or 0, number=number, split=split)
                opening = env.open()
            self._state = EpisodeState(episode_id=episode_id, step_count=0, task_id=env.task_id)
            return MessagesObservation(
                task_id=env.task_id,
                max_turns=env.max_turns,
                reward=0.0,
                **opening_to_wire(opening),
            )

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            if self._env is None:
                raise ValueError("no episode: call reset first")
            with self._lock:
                reply = self._env.reply(message_from_wire(action.message))
                reward = self._env.reward() if reply.done else 0.0
                measures = dict(self._env.measures())
            self._state.step_count += 1
            return MessagesObservation(
                task_id=self._env.task_id,
                max_turns=self._env.max_turns,
                messages=[message_to_wire(turn) for turn in reply.turns],
                measures=measures,
                reward=reward,
                done=reply.done,
            )

        @property
        def state(self) -> Any:
            return self._state

        def close(self) -> None:
            env, self._env = self._env, None
            if env is not None:
                with contextlib.suppress(Exception):
                    env.close()

    return {
        "action": MessageAction,
        "observation": MessagesObservation,
        "state": EpisodeState,
        "environment": ServedEnvironment,
    }
