"""An environment as an object whose methods are the tools, as TRL's `environment_factory` wants it:
such trainers play by themselves, and read names, schemas and docstrings off the class.

    class Desk(MethodEnv):
        tool_names = ("read",)
        def reset(self, **row): ...                   begins the episode of a row
        def read(self, path: str) -> str: ...         a tool: a public method that calls self._call
        def get_reward(self) -> float: ...

    MethodEnvs(env_class=Desk, rows=rows)               what a TaskSource offers such a trainer
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from composer_replication.rollouts.envs.env import Env

OVER = (
    "<tool_use_error>Cancelled: parallel tool call beyond the budget of this task</tool_use_error>"
)
"""The answer to a call after the end of the episode."""


class MethodEnv:
    """One pooled environment: `reset` begins an episode, every other public method is a tool,
    `get_reward` ends it.

    A trainer answers a call of a name that is no tool by itself, so the environment never hears of
    it: `unknown_tool_measure` is the entry of `Env.measures()` that such a call sets to 1.0, "" if
    there is none.
    """

    tool_names: ClassVar[tuple[str, ...]] = ()
    unknown_tool_measure: ClassVar[str] = ""

    def reset(self, **row: Any) -> None:
        """Begin the task of a row; its opening messages are the row's prompt."""
        raise NotImplementedError

    def get_reward(self) -> float:
        """End the episode; its reward, 0 to 1."""
        raise NotImplementedError

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call: every tool comes here."""
        raise NotImplementedError

    def _episode(self) -> Env:
        raise NotImplementedError


def episode_of(env: MethodEnv) -> Env:
    """The episode that these tools play; a function, because a trainer takes every public method
    for a tool."""
    return env._episode()


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodEnvs:
    """The tool environments of a TaskSource: made as `env_class(**arguments)`.

    `rows(seed, count)` are rows of a trainer's data set, one per task: {"prompt": opening messages,
    ...}; `reset` gets what else is in a row. `adapt_template` makes a chat template write the tools
    as the student knows them.
    """

    env_class: type[MethodEnv]
    rows: Callable[[int, int], list[dict[str, Any]]]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    adapt_template: Callable[[str], str] = lambda template: template
