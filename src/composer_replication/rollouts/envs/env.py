"""The environment protocol: open a task, answer the student's messages, score the episode.

    env = make(task)            # single use: one object, one episode
    opening = env.open()        # Opening(turns=(system, human), tools=(ToolSpec(...), ...))
    reply = env.reply(turn)     # Reply(turns=(tool results, ...), done=False)
    env.reward()                # 0.0 ... 1.0 once `done`
    env.close()

The messages are Turns, so an episode is a Session like an imported log. An environment that raises,
hangs or answers nonsense loses its own episode (rollouts/episode.py). Its attribute `runs_in` may
name the thread in which its methods run:

    "any_thread"    at the same time as other environments of the batch; with a time-out
    "one_thread"    one after the other, in a thread that all such environments share; with a
                    time-out. This is the default
    "caller"        one after the other in the sampler's own thread; without a time-out, so only if
                    every method surely returns

The function or class that makes the environments of a run may say more about them, by an attribute
`env_metadata`: the families of mistakes that `measures()` counts, and the notes that belong beside
every result.

    class Guess:
        env_metadata = EnvMetadata(
            families=(MistakeFamily(name="blind", title="answered without reading"),),
            notes=("The numbers are drawn from 0 to 99: one guess in a hundred is right.",),
        )
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from composer_replication.core.trace import Event, ToolSpec, Turn

RunsIn = Literal["any_thread", "one_thread", "caller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The beginning of an episode: the messages before the student's first, and the tools on offer.

    `logged` = the messages come from a log, as `build` renders them: others wrote some of them, and
    nothing in them is cleaned or cut, since another character would be another context. Only code
    of this package that has read the log sets it.
    """

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...]
    logged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What follows one message of the student; `done` ends the episode.

    One tool turn per call, or other messages.
    """

    turns: tuple[Turn, ...]
    done: bool


class Env(Protocol):
    """One episode of one task.

    `task_id` is stable over runs; `max_turns` is how many messages the student may write. It may
    also have `remarks() -> Sequence[Remark]`, asked once after `measures`: what a person should
    read beside the reward. Each becomes an event behind the session's last turn, which the student
    never reads.
    """

    task_id: str
    max_turns: int

    def open(self) -> Opening:
        """The first messages and the tools; called once, before anything else."""
        ...

    def reply(self, turn: Turn) -> Reply:
        """Answer one message of the student.

        A call that cannot be carried out is answered with an error result, never an exception.
        """
        ...

    def reward(self) -> float:
        """The reward of the episode, between 0 and 1; 0 if it did not finish."""
        ...

    def measures(self) -> Mapping[str, float]:
        """What the environment counted in this episode, by name; never part of the reward.

        For evaluation and reports.
        """
        ...

    def close(self) -> None:
        """Free what the episode holds; safe to call twice."""
        ...


Remark = tuple[str, str]
"""The kind of an event and its text, e.g. (HACK_ATTEMPT, "start-up files: conftest.py")."""

MakeEnv = Callable[[], Env]
"""A task: makes a new environment of it every time, e.g. partial(make, task)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MistakeFamily:
    """A kind of mistake that an environment counts: two entries of `Env.measures()`, 1.0 or 0.0.

    `NAME_open` = the mistake was possible in this episode, `NAME_made` = it was made. `title` is
    how tables and pages call it ("" = `made`). `set_by_task` = the task alone decides whether the
    mistake is possible, so tasks can be told apart by it.
    """

    name: str
    title: str = ""
    set_by_task: bool = False

    @property
    def open(self) -> str:
        """The measure that says whether the mistake was possible."""
        return f"{self.name}_open"

    @property
    def made(self) -> str:
        """The measure that says whether the mistake was made."""
        return f"{self.name}_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvMetadata:
    """What an environment says about itself, for metrics, tables and pages; all of it is optional.

    `title` names it in a sentence, e.g. "the built-in workshop". `notes` are shown beside every
    result, `levels` beside the results of students of that level (`evaluate.level`).
    """

    title: str = ""
    families: tuple[MistakeFamily, ...] = ()
    notes: tuple[str, ...] = ()
    levels: Mapping[int, str] = field(default_factory=dict)


def remark_events(remarks: Iterable[Remark], *, turn: int) -> tuple[Event, ...]:
    """The remarks as events behind the last of `turn` turns.

    >>> remark_events([("judged", "a test failed")], turn=4)[0].turn
    4
    """
    return tuple(Event(kind=kind, turn=turn, text=text) for kind, text in remarks)


def env_remarks(env: Env) -> Sequence[Remark]:
    """What the environment's `remarks()` returns; () if it has no such method."""
    remarks: Callable[[], Sequence[Remark]] | None = getattr(env, "remarks", None)
    return () if remarks is None else remarks()


def runs_in(env: Env) -> RunsIn:
    """The environment's attribute `runs_in`, by default "one_thread"."""
    return getattr(env, "runs_in", "one_thread")
