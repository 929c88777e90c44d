"""An environment of your own tools: Python functions with a schema and a time-out each.

    read = Tool(spec=ToolSpec(name="read", parameters={...}), run=lambda arguments: Path(arguments["path"]).read_bytes(), timeout_s=5.0)
    env = ToolEnv("task-1", opening=(task,), tools=(read,), reward_of=lambda turns: float("depth is 3" in turns[-1].text))

A call of an unknown tool, with arguments that do not fit the schema, one that raises and one that
is late are answered with an error that the model sees; the episode goes on. Of the schema
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
    """A function that a student may call; `run` gets the arguments and returns text or bytes."""

    spec: ToolSpec
    run: Callable[[Mapping[str, JSON]], str | bytes]
    timeout_s: float = 30.0
    parallel: bool = False


@dataclass(slots=True)
class ToolEnv:
    """One episode with these tools; a message without a call ends it, and `reward` rates the
    student's messages."""

    task_id: str
    opening: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    reward_of: Callable[[Sequence[Turn]], float]
    max_turns: int = 20
    max_result_chars: int = 100_000
    runs_in: RunsIn = "any_thread"
    num_late: int = 0
    num_failed: int = 0
    heard: list[Turn] = field(default_factory=list)
    _crew: CallPool = field(default_factory=lambda: CallPool(num_threads=16))

    def open(self) -> Opening:
        """The opening and the tools."""
        return Opening(turns=self.opening, tools=tuple(tool.spec for tool in self.tools))

    def reply(self, turn: Turn) -> Reply:
        """One result per call, in their order."""
        self.heard.append(turn)
        if not turn.calls:
            return Reply(turns=(), done=True)
        by_name = {tool.spec.name: tool for tool in self.tools}
        wrong = {call.id: words for call in turn.calls if (words := issue(call, by_name))}
        fine = [call for call in turn.calls if call.id not in wrong]
        found = dict(
            zip(
                (call.id for call in fine),
                self._crew.run([_job(by_name[c.name], c) for c in fine]),
                strict=True,
            )
        )
        results = [
            (
                ToolResult(c.id, wrong[c.id], is_error=True)
                if c.id in wrong
                else self._result(c, found[c.id])
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
        """The reward of the messages; 0 if none of them ended the episode."""
        return self.reward_of(self.heard) if self.heard and not self.heard[-1].calls else 0.0

    def measures(self) -> Mapping[str, float]:
        """Calls that were late, and that raised."""
        return {"late_calls": float(self.num_late), "failed_calls": float(self.num_failed)}

    def close(self) -> None:
        """Let the threads end."""
        self._crew.__exit__()

    def _result(self, call: ToolCall, outcome: Outcome[str | bytes]) -> ToolResult:
        if outcome.failure is not None:
            self.num_late += outcome.failure.late
            self.num_failed += not outcome.failure.late
            words = (
                f"Command timed out: {outcome.failure.words}"
                if outcome.failure.late
                else f"{call.name} failed: {outcome.failure.words}"
            )
            return ToolResult(call.id, words, is_error=True)
        if not isinstance(outcome.value, (str, bytes)):
            return ToolResult(
                call.id,
                f"{call.name} failed: it returned {type(outcome.value).__name__}, not text",
                is_error=True,
            )
        return ToolResult(
            call.id, clean_text(outcome.value, max_chars=self.max_result_chars), is_error=False
        )


def issue(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    """What is wrong with a call, in Claude Code's words; "" where nothing is.

    >>> issue(ToolCall("c", "reed", {}), {})
    'No such tool available: reed'
    """
    if call.name not in tools:
        return f"No such tool available: {call.name}"
    schema = tools[call.name].spec.parameters
    properties: Mapping[str, JSON] = schema.get("properties", {})
    head = f"InputValidationError: {call.name} failed due to the following issue:\n"
    if missing := [name for name in schema.get("required", ()) if name not in call.arguments]:
        return f"{head}The required parameter `{missing[0]}` is missing"
    for name, value in call.arguments.items():
        if name not in properties:
            if schema.get("additionalProperties") is False:
                return f"{head}An unexpected parameter `{name}` was provided"
            continue
        kind = properties[name].get("type") if isinstance(properties[name], dict) else None
        wanted = _TYPES.get(kind) if isinstance(kind, str) else None
        if wanted is not None and (
            not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)
        ):
            return f"{head}The parameter `{name}` type is expected as `{kind}`"
    return ""


def _job(tool: Tool, call: ToolCall) -> PooledCall[str | bytes]:
    where: RunsIn = "any_thread" if tool.parallel else "one_thread"
    return PooledCall(partial(tool.run, call.arguments), runs_in=where, timeout_s=tool.timeout_s)
