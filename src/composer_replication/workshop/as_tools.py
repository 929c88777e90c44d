"""The workshop as an object whose methods are the tools, as TRL's `environment_factory` and similar
trainers want it.

    with Sandbox() as sandbox:
        make = partial(WorkshopTools, sandbox=sandbox)
        env = make(); env.reset(task="7:0"); env.view_file(path="config.py"); env.get_reward()

The names are one fixed set of the training split (`TOOLS`), because such trainers read them off the
class. The reader is not the one that the tiny student's habit names, so wrong names occur. Errors
have the workshop's texts, except that the trainer answers calls of unknown tools. `slack` messages
beyond a task's budget leave room to recover: without them, one wrong name loses the reward of the
whole episode. Limit: the trainer never hands over the closing message, so the reward cannot depend
on whether the player said it was done; everything else is checked.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from composer_replication.core.errors import ConfigError, DataError, SessionError
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.rollouts.envs.method_env import OVER, MethodEnv
from composer_replication.workshop.task_tests import RunsTests
from composer_replication.workshop.tasks import distinct_tasks, make_task
from composer_replication.workshop.vocabulary import ToolSet, toolset_is_held_out
from composer_replication.workshop.workshop_env import SYSTEM_TEXT, WorkshopEnv

TOOLS = ToolSet(
    reader="view_file",
    editor="str_replace",
    searcher="grep",
    text="text",
    old="old",
    new="new",
    order=("grep", "list_files", "run_tests", "str_replace", "view_file"),
)
_TOOL_LINE = "{{- '\\n' ~ (tool | tojson) }}"
_PLAIN_TOOL_LINE = """{%- set f = tool.function %}
            {{- '\\n{"type": "function", "function": {"name": ' ~ (f.name | tojson) \
~ ', "description": ' ~ (f.description | tojson) }}
            {{- ', "parameters": {"type": "object", "properties": {' }}
            {%- for name, about in f.parameters.properties.items() %}
                {{- (name | tojson) ~ ': {"type": ' ~ (about.type | tojson) ~ '}' \
~ ('' if loop.last else ', ') }}
            {%- endfor %}
            {{- '}, "required": ' ~ ((f.parameters.required or []) | tojson) \
~ ', "additionalProperties": false}}}' }}"""
TOOL_SLACK = 1
"""Messages beyond a task's budget: with one fixed tool set whose reader is new to the tiny student,
no episode would earn anything."""


def task_row(seed: str) -> dict[str, Any]:
    """A row of a trainer's data set: the opening messages, and the seed from which `reset` makes
    the same task again.

    >>> [message["role"] for message in task_row("7:0")["prompt"]], task_row("7:0")["task"]
    (['system', 'user'], '7:0')
    """
    task = make_task(seed, split="train")
    messages = [
        {"role": "system", "content": SYSTEM_TEXT},
        {"role": "user", "content": task.prompt},
    ]
    return {"prompt": messages, "task": seed}


def task_rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Rows of different tasks, always the same for a seed."""
    names = (f"{seed}:{number}" for number in itertools.count())
    tasks = distinct_tasks(names, split="train")
    return [task_row(name) for name, _ in itertools.islice(tasks, count)]


def with_taught_tools(template: str) -> str:
    """`plain_tools` of a template whose student was taught them; any other template unchanged."""
    return plain_tools(template) if writes_tools_as_taught(template) else template


def plain_tools(template: str) -> str:
    """A chat template that writes every tool in the workshop's short schema, whatever schema it is
    given.

    Such trainers derive a longer schema from docstrings, and the tiny student was taught only the
    short one: it writes nonsense below any other. A real instruct model does not need this. Raises
    ConfigError for a template that does not write tools as tokens/ does.
    """
    if not writes_tools_as_taught(template):
        raise ConfigError(
            "the chat template does not write tools as the workshop's student knows them",
            where="student.template",
        )
    return template.replace(_TOOL_LINE, _PLAIN_TOOL_LINE)


def writes_tools_as_taught(template: str) -> bool:
    """Whether a student with this chat template was taught tools in the workshop's short schema:
    the template is one of tokens/."""
    return template.count(_TOOL_LINE) == 1


def _answered(method: Callable[..., str]) -> Callable[..., str]:
    """The method as a call that the workshop answers: wrong arguments give an error text, and raise
    nothing."""

    @functools.wraps(method)
    def call(self: WorkshopTools, *positional: Any, **arguments: Any) -> str:
        if positional:
            raise TypeError(f"{method.__name__} takes named arguments only")
        return self._call(method.__name__, arguments)

    return call


class WorkshopTools(MethodEnv):
    """The workshop's five tools as methods."""

    tool_names: ClassVar[tuple[str, ...]] = TOOLS.order
    unknown_tool_measure: ClassVar[str] = "A_made"

    def __init__(self, *, sandbox: RunsTests, slack: int = 0) -> None:
        self._sandbox, self._slack = sandbox, slack
        self._env: WorkshopEnv | None = None

    def reset(self, task: str = "", **row: Any) -> None:
        """Begin the task of a row; its opening messages are the row's prompt.

        Raises DataError for a tool set that is held out: success is measured on those.
        """
        if toolset_is_held_out(TOOLS):
            raise DataError("a held-out tool set reached training", where=task)
        self._env = WorkshopEnv(
            replace(make_task(task, split="train"), tools=TOOLS),
            sandbox=self._sandbox,
            slack=self._slack,
        )
        self._env.open()

    def get_reward(self) -> float:
        """1.0 or 0.0: the tests pass, they were run after the last edit, nothing else was changed,
        and the budget was kept."""
        env = self._running()
        if not env.done:
            env.reply(Turn(role="assistant", author=None, blocks=(Text("Done."),)))
        return env.reward()

    @_answered
    def grep(self, text: str) -> str:
        """
        Find lines that hold a text.

        Args:
            text: The text to find.
        """
        return ""

    @_answered
    def list_files(self) -> str:
        """
        List the files.
        """
        return ""

    @_answered
    def str_replace(self, path: str, old: str, new: str) -> str:
        """
        Replace a text in a file.

        Args:
            path: The file.
            old: The text that stands there.
            new: The text that shall stand there.
        """
        return ""

    @_answered
    def run_tests(self) -> str:
        """
        Run the tests.
        """
        return ""

    @_answered
    def view_file(self, path: str) -> str:
        """
        Read a file.

        Args:
            path: The file.
        """
        return ""

    def _running(self) -> WorkshopEnv:
        if self._env is None:
            raise SessionError("the episode was not begun", fix="call reset first")
        return self._env

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        env = self._running()
        if env.done:
            return OVER
        reply = env.reply(
            Turn(role="assistant", author=None, blocks=(ToolCall("c", name, dict(arguments)),))
        )
        return reply.turns[0].results[0].text

    def _episode(self) -> WorkshopEnv:
        return self._running()
