"""Our tasks for verifiers (v1), and its traces as our sessions.

    url = "http://127.0.0.1:8000/v1"
    agent = make_agent(model="student", base_url=url, runtime=SubprocessConfig())
    async with agent:
        trace = await agent.run(tasks_of("workshop", seed=7, count=1)[0])
    session_of_trace(trace, name="s1")        # a Session: sites, hints and build go on from it

A plugin of verifiers is a top-level module that lists one Taskset and one Harness in `__all__`.
`plugin_source()` is the text of such a module, for a process that this one does not start (an env
server of prime-rl): write it to a folder on PYTHONPATH. The harness opens the environment in its
own process and plays it through verifiers' interception server, so no program is launched and no
container is needed. verifiers defaults to a cloud runtime and to its maker's endpoint: here runtime
and base_url have no default. verifiers is imported by these functions alone.
"""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_replication.core.errors import ConfigError, DataError, need
from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    HUMAN,
    Block,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.chat import from_chat, to_chat, tool_to_chat
from composer_replication.rollouts.envs.env import Env
from composer_replication.rollouts.task_source import nth_task, open_world

PLUGIN = "composer_tasks"
"""The id of our taskset and harness: verifiers imports plugins by a top-level name."""
INFO = "composer"
"""The entry of a trace's info that holds what the environment said of the episode."""
_AUTHORS = {"system": HARNESS, "user": HUMAN, "tool": ENVIRONMENT}


def make_agent(
    *,
    model: str,
    base_url: str,
    runtime: Any,
    harness: str = PLUGIN,
    api_key_var: str = "COMPOSER_API_KEY",
    **settings: Any,
) -> Any:
    """A verifiers agent whose endpoint and runtime are named: no default reaches a cloud.

    `settings` are further fields of verifiers' AgentConfig. Raises ConfigError without an endpoint
    or runtime.
    """
    for name, value, fix in (
        ("base_url", base_url, "name the endpoint, e.g. http://127.0.0.1:8000/v1"),
        ("runtime", runtime, "name the runtime, e.g. SubprocessConfig()"),
    ):
        if not value:
            raise ConfigError(
                f"no {name}: verifiers' own default is its maker's cloud", where=name, fix=fix
            )
    vf = _verifiers()
    if harness == PLUGIN:
        install_plugin()
    client = vf.EvalClientConfig(base_url=base_url, api_key_var=api_key_var)
    config = vf.AgentConfig(
        model=model, client=client, runtime=runtime, harness={"id": harness}, **settings
    )
    return vf.make_agent(config)


def tasks_of(env: str, *, seed: int, count: int, split: str = "train") -> list[Any]:
    """The first tasks of what `rollouts.env` would name, as verifiers' tasks."""
    config = plugin_classes()["ComposerTasksetConfig"](
        id=PLUGIN, env=env, seed=seed, count=count, split=split
    )
    return list(plugin_classes()["ComposerTaskset"](config))


def install_plugin() -> None:
    """Make the plugin importable by its id in this process."""
    module = types.ModuleType(PLUGIN, "Tasks of composer-replication, for verifiers.")
    for name, value in plugin_classes().items():
        setattr(module, name, value)
    module.__dict__["__all__"] = list(plugin_classes())
    sys.modules.setdefault(PLUGIN, module)


def plugin_source() -> str:
    """The text of a module `composer_tasks`, for processes that this one does not start.

    >>> print(plugin_source().splitlines()[0])
    \"""Tasks of composer-replication, for verifiers.\"""
    """
    return (
        '"""Tasks of composer-replication, for verifiers."""\n\n'
        f"from {__name__} import plugin_classes\n\n"
        "globals().update(plugin_classes())\n"
        "__all__ = list(plugin_classes())\n"
    )


@functools.cache
def plugin_classes() -> dict[str, type]:
    """verifiers' classes for our tasks; made here because their bases are verifiers'."""
    vf = _verifiers()

    class ComposerData(vf.TaskData):
        """Which task of which source."""

        env: str = "workshop"
        seed: int = 0
        number: int = 0
        split: str = "train"

    class ComposerTask(vf.Task[ComposerData]):
        """A task whose reward is the environment's."""

        @vf.reward(weight=1.0)
        async def environment_reward(self, trace: Any) -> float:
            return float(trace.info.get(INFO, {}).get("reward", 0.0))

        @vf.metric
        async def failed_calls(self, trace: Any) -> float:
            return float(len(trace.info.get(INFO, {}).get("errors", ())))

    class ComposerTasksetConfig(vf.TasksetConfig):
        """`env` is what rollouts.env would name."""

        env: str = "workshop"
        seed: int = 0
        count: int = 64
        split: str = "train"

    class ComposerTaskset(vf.Taskset[ComposerTask, ComposerTasksetConfig]):
        """The first `count` tasks of a source under a seed."""

        def load(self) -> Iterator[ComposerTask]:
            config = self.config
            for number in range(config.count):
                data = ComposerData(
                    idx=number,
                    name=f"{config.env}:{config.split}:{config.seed}:{number}",
                    prompt="",
                    env=config.env,
                    seed=config.seed,
                    number=number,
                    split=config.split,
                )
                yield ComposerTask(data, config.task)

    class ComposerHarness(vf.Harness[vf.HarnessConfig]):
        """The tool loop of our environments, in this process."""

        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: Any,
            data: Any,
            tool_interception_url: str | None = None,
        ) -> Any:
            ask = functools.partial(_ask, endpoint=endpoint, secret=secret, model=ctx.model)
            with open_world(data.env) as source:
                env = nth_task(source, seed=data.seed, number=data.number, split=data.split)
                try:
                    trace.info[INFO] = await _play(env, ask)
                finally:
                    env.close()
            result = need("verifiers.v1.runtimes", extra="verifiers").ProgramResult
            return result(exit_code=0, stdout="", stderr="")

    classes = (ComposerTaskset, ComposerTasksetConfig, ComposerTask, ComposerData, ComposerHarness)
    return {made.__name__: made for made in classes}


async def _play(env: Env, ask: Any) -> dict[str, Any]:
    """Play an episode; what the environment says of it."""
    opening = env.open()
    turns, errors = list(opening.turns), list[str]()
    for _ in range(env.max_turns):
        turn = student_turn(await ask(_as_chat(turns), list(map(tool_to_chat, opening.tools))))
        reply = env.reply(turn)
        turns += [turn, *reply.turns]
        errors += [r.call_id for answer in reply.turns for r in answer.results if r.is_error]
        if reply.done:
            break
    return {
        "task_id": env.task_id,
        "reward": env.reward(),
        "measures": dict(env.measures()),
        "errors": errors,
    }


def _as_chat(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The messages of a request; an endpoint does not know `is_error`."""
    messages = [message for turn in turns for message in to_chat(turn)]
    return [{k: v for k, v in message.items() if k != "is_error"} for message in messages]


def student_turn(message: Mapping[str, Any]) -> Turn:
    """The student's message; arguments that are no JSON object become a call that the environment
    answers with an error, under the name of their text."""
    calls = [_readable(call) for call in message.get("tool_calls") or ()]
    return from_chat({**message, "role": "assistant", "tool_calls": calls})


def _readable(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    written = function.get("arguments") or "{}"
    try:
        parsed = json.loads(written)
    except json.JSONDecodeError:
        parsed = None
    arguments = parsed if isinstance(parsed, dict) else {"": written}
    return {"id": call["id"], "function": {"name": function["name"], "arguments": arguments}}


async def _ask(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    *,
    endpoint: str,
    secret: str,
    model: str,
) -> dict[str, Any]:
    """The student's next message, through verifiers' interception server."""
    httpx = need("httpx", extra="verifiers")
    async with httpx.AsyncClient(timeout=600.0, trust_env=False) as client:
        answer = await client.post(
            f"{endpoint}/chat/completions",
            headers={"Authorization": f"Bearer {secret}"},
            json={"model": model, "messages": messages, "tools": tools},
        )
        answer.raise_for_status()
        return answer.json()["choices"][0]["message"]


def session_of_trace(trace: Any, *, name: str) -> Session:
    """A trace of verifiers as a Session, whoever played it: its last branch, with the results that
    the environment called errors where it said so.

    Raises DataError for a trace without a message.
    """
    nodes = trace.branches[-1].nodes if trace.branches else []
    if not nodes:
        raise DataError("a trace without a message", where=name)
    record = trace.info.get(INFO, {})
    errors = set(record["errors"]) if record else None
    turns = tuple(_turn(node, errors) for node in nodes)
    return Session(
        id=name,
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        tools=tuple(
            ToolSpec(
                name=tool.name,
                description=tool.description or "",
                parameters=dict(tool.parameters or {}),
            )
            for tool in nodes[0].tools
        ),
        source=SourceRef(file=str(trace.id), format="verifiers"),
        outcome=trace.reward,
    )


def _turn(node: Any, errors: set[str] | None) -> Turn:
    """A node's message; a result is an error if the environment said so, None if nobody did."""
    message = node.message
    if message.role == "tool":
        call_id = message.tool_call_id
        is_error = None if errors is None else call_id in errors
        block: Block = ToolResult(call_id, _text_of(message.content), is_error)
        return Turn(role="tool", author=ENVIRONMENT, blocks=(block,))
    blocks: list[Block] = [Text(text)] if (text := _text_of(message.content)) else []
    if message.role == "assistant":
        blocks += student_turn({"tool_calls": _calls(message)}).blocks
    author = None if message.role == "assistant" else _AUTHORS[message.role]
    return Turn(role=message.role, author=author, blocks=tuple(blocks))


def _calls(message: Any) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls or ()
    ]


def _text_of(content: Any) -> str:
    """The text of a message's content, which may be in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text for part in content if getattr(part, "text", None))


def _verifiers() -> Any:
    return need("verifiers.v1", extra="verifiers")
