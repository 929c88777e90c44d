"""An environment of your own tools: Python functions with a schema and a time-out each.

    read = Tool(spec=ToolSpec(name="read", parameters={...}),
                run=lambda arguments: Path(arguments["path"]).read_bytes(), timeout_s=5.0)
    env = ToolEnv("task-1", opening=(task,), tools=(read,),
                  reward_of=lambda turns: float("depth is 3" in turns[-1].text))

A call of an unknown tool, with arguments that do not fit the schema, one that raises and one that
is late are answered with an error that the model sees; the episode goes on. Of the schema,
`required`, `additionalProperties` and the `type` of each property are checked. Tools run in
threads: those with `parallel` at the same time within a message, the others one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from composer_replication.core.trace import ENVIRONMENT, JSON, ToolCall, ToolResult, ToolSpec, Turn
from composer_replication.rollouts.call_pool import CallPool, Outcome, PooledCall
from composer_replication.rollouts.env_validation import clean_text
from composer_replication.rollouts.envs.env import Opening, Reply, RunsIn

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that a student may call; `run` takes the arguments and returns text or bytes."""

    spec: ToolSpec
    run: Callable[[Mapping[str, JSON]], str | bytes]
    timeout_s: float = 30.0
    parallel: bool = False


@dataclass(slots=True)
class ToolEnv:
    """One episode with these tools; a message without a call ends it.

    `reward_of` computes the reward from the student's messages.
    """

    task_id: str
    opening: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    reward_of: Callable[[Sequence[Turn]], float]
    max_turns: int = 20
    max_result_chars: int = 100_000
    runs_in: RunsIn = "any_thread"
    num_late: int = 0
    num_failed: int = 0
    messages: list[Turn] = field(default_factory=list)
    _pool: CallPool = field(default_factory=lambda: CallPool(num_threads=16))

    def open(self) -> Opening:
        """The opening and the tools."""
        return Opening(turns=self.opening, tools=tuple(tool.spec for tool in self.tools))

    def reply(self, turn: Turn) -> Reply:
        """One result per call, in their order."""
        self.messages.append(turn)
        if not turn.calls:
            return Reply(turns=(), done=True)
        by_name = {tool.spec.name: tool for tool in self.tools}
        issues = {call.id: text for call in turn.calls if (text := call_issue(call, by_name))}
        valid_calls = [call for call in turn.calls if call.id not in issues]
        outcomes = dict(
            zip(
                (call.id for call in valid_calls),
                self._pool.run([_job(by_name[c.name], c) for c in valid_calls]),
                strict=True,
            )
        )
        results = [
            (
                ToolResult(c.id, issues[c.id], is_error=True)
                if c.id in issues
                else self._result(c, outcomes[c.id])
            )
            for c in turn.calls
        ]
        return Reply(
            turns=tuple(
                Turn(role="tool", author=ENVIRONMENT, blocks=(result,)) for result in results
            ),
            done=False,
        )

    def reward(self) -> float:
        """The reward of the student's messages; 0 if the last one still calls a tool."""
        return (
            self.reward_of(self.messages) if self.messages and not self.messages[-1].calls else 0.0
        )

    def measures(self) -> Mapping[str, float]:
        """The numbers of calls that were late and that raised."""
        return {"late_calls": float(self.num_late), "failed_calls": float(self.num_failed)}

    def close(self) -> None:
        """Let the threads end."""
        self._pool.__exit__()

    def _result(self, call: ToolCall, outcome: Outcome[str | bytes]) -> ToolResult:
        if outcome.failure is not None:
            self.num_late += outcome.failure.late
            self.num_failed += not outcome.failure.late
            text = (
                f"Command timed out: {outcome.failure.reason}"
                if outcome.failure.late
                else f"{call.name} failed: {outcome.failure.reason}"
            )
            return ToolResult(call.id, text, is_error=True)
        if not isinstance(outcome.value, (str, bytes)):
            return ToolResult(
                call.id,
                f"{call.name} failed: it returned {type(outcome.value).__name__}, not text",
                is_error=True,
            )
        return ToolResult(
            call.id, clean_text(outcome.value, max_chars=self.max_result_chars), is_error=False
        )


def call_issue(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    """The error of an invalid call, in Claude Code's wording; "" for a valid one.

    >>> call_issue(ToolCall("c", "reed", {}), {})
    'No such tool available: reed'
    """
    if call.name not in tools:
        return f"No such tool available: {call.name}"
    schema = tools[call.name].spec.parameters
    properties: Mapping[str, JSON] = schema.get("properties", {})
    prefix = f"InputValidationError: {call.name} failed due to the following issue:\n"
    if missing := [name for name in schema.get("required", ()) if name not in call.arguments]:
        return f"{prefix}The required parameter `{missing[0]}` is missing"
    for name, value in call.arguments.items():
        if name not in properties:
            if schema.get("additionalProperties") is False:
                return f"{prefix}An unexpected parameter `{name}` was provided"
            continue
        kind = properties[name].get("type") if isinstance(properties[name], dict) else None
        expected = _TYPES.get(kind) if isinstance(kind, str) else None
        if expected is not None and (
            not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)
        ):
            return f"{prefix}The parameter `{name}` type is expected as `{kind}`"
    return ""


def _job(tool: Tool, call: ToolCall) -> PooledCall[str | bytes]:
    thread: RunsIn = "any_thread" if tool.parallel else "one_thread"
    return PooledCall(partial(tool.run, call.arguments), runs_in=thread, timeout_s=tool.timeout_s)
