"""Episodes as Sessions: play one, and go back to the middle of one.

session = play(WorkshopEnv(task, sandbox=sandbox), oracle, session_id="w1")
session.outcome                         # 1.0
env = env_at(task, session.turns[:5], sandbox=sandbox)      # the episode as it was before turn 5
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from composer_replication.core.errors import SessionError
from composer_replication.core.trace import Segment, Session, SourceRef, Turn
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task
from composer_replication.workshop.workshop_env import WorkshopEnv

Player = Callable[[WorkshopEnv], Turn]


def play(env: WorkshopEnv, player: Player, *, session_id: str = "") -> Session:
    """Let a player act until the episode ends, close the environment, and return the session."""
    turns = list(env.open().turns)
    while not env.done:
        turns.append(player(env))
        turns.extend(env.reply(turns[-1]).turns)
    session = session_of(env, turns, session_id=session_id)
    env.close()
    return session


def session_of(
    env: WorkshopEnv,
    turns: Sequence[Turn],
    *,
    session_id: str = "",
    origin: Literal["trace", "student"] = "trace",
) -> Session:
    """The turns of one episode, the opening included, as a Session with its tools and its reward.

    `origin="student"` is for turns that our student sampled. The repository is the split, so a
    split by repository keeps held-out tasks held out.
    """
    return Session(
        id=session_id or env.task_id,
        source=SourceRef(file=env.task_id, format="workshop"),
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
        tools=env.task.tools.specs(),
        tools_origin="log",
        origin=origin,
        repository=f"workshop/{env.task.split}",
        outcome=env.reward() if env.done else None,
    )


def env_at(task: Task, turns: Sequence[Turn], *, sandbox: Sandbox, slack: int = 0) -> WorkshopEnv:
    """A new episode of the task, in which the assistant's messages among `turns` are replayed.

    Raises SessionError if the results differ from the recorded ones: the turns are of another task
    then.
    """
    env = WorkshopEnv(task, sandbox=sandbox, slack=slack)
    replayed: list[Turn] = list(env.open().turns)
    for turn in turns:
        if turn.role == "assistant":
            replayed.append(turn)
            replayed.extend(env.reply(turn).turns)
    for number, turn in enumerate(turns):
        if number >= len(replayed) or replayed[number].blocks != turn.blocks:
            raise SessionError(
                f"turn {number} is not what this task answers",
                where=task.id,
                fix="give the task that the session was played on",
            )
    return env
