"""Requests as chat-completions JSON, and answers back: pure functions, no network.

    chat_messages(session.context(7))     # [{"role": "user", "content": "fix it"}, {"role": "assistant", "tool_calls": [...]}, ...]
    read_reply(body, request=request, model="glm-5")      # TeacherReply(turn=..., usage=..., problem="")

What the protocol asks for and a log may lack is made visible, never invented: a call without a
recorded result is answered "[no result was recorded]", and a result whose call is not in view is
shown as a message of the user. Thinking is left out: another model would take it for its own.
Nothing in an answer is repaired: one that cannot be used keeps its words and carries a `problem`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from composer_replication.core.errors import TeacherError
from composer_replication.core.jsonl import dumps
from composer_replication.core.teacher import MOST_TOKENS, MOST_USD, Request, TeacherReply, Usage
from composer_replication.core.trace import (
    Block,
    Opaque,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.chat import tool_to_chat

JSON = Any
NO_RESULT = "[no result was recorded]"
LOST_CALL = "[result of a call that is not in view]"
_LEAST_LOGPROB = 1e9
_NO_PARAMETERS: Mapping[str, JSON] = {"type": "object", "properties": {}}


def chat_messages(turns: Sequence[Turn]) -> list[dict[str, JSON]]:
    """Messages of a chat-completions request; each call is followed at once by its result, as the
    protocol asks."""
    results: dict[str, ToolResult] = {}
    for turn in turns:
        for result in turn.results:
            results.setdefault(result.call_id, result)
    given: set[int] = set()  # results that stand behind their call already
    messages: list[dict[str, JSON]] = []
    for turn in turns:
        if turn.role == "assistant":
            messages += _assistant(turn, results, given)
            continue
        for result in turn.results:
            if id(result) not in given:
                messages.append({"role": "user", "content": f"{LOST_CALL}\n{_words(result)}"})
        if turn.text:
            messages.append(
                {"role": "system" if turn.role == "system" else "user", "content": turn.text}
            )
    return messages


def _assistant(
    turn: Turn, results: Mapping[str, ToolResult], given: set[int]
) -> Iterable[dict[str, JSON]]:
    if not turn.calls and not turn.text:
        return
    message: dict[str, JSON] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": dumps(c.arguments)},
            }
            for c in turn.calls
        ]
    yield message
    for call in turn.calls:
        result = results.get(call.id)
        if result is not None and id(result) not in given:
            given.add(id(result))
            yield {"role": "tool", "tool_call_id": call.id, "content": _words(result)}
        else:
            yield {"role": "tool", "tool_call_id": call.id, "content": NO_RESULT}


def _words(result: ToolResult) -> str:
    shown = "".join(f"\n[{media}: not kept]" for media in result.images)
    return (result.text + shown).strip("\n") or ("[error]" if result.is_error else "[no output]")


def chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, JSON]]:
    """Tools of a chat-completions request; one without a schema takes an object without
    properties."""
    return [
        tool_to_chat(tool if tool.parameters else replace(tool, parameters=_NO_PARAMETERS))
        for tool in tools
    ]


def read_reply(body: bytes, *, request: Request, model: str) -> TeacherReply:
    """The answer in the body of a response with status 200; raises TeacherError where there is none
    in it.

    A body without an answer may have been billed all the same, so it counts as such.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _broken("the body of the answer is not whole JSON") from error
    choices = value.get("choices") if isinstance(value, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise _broken("the body holds no answer")
    if choice.get("error"):
        raise _broken("the model broke off with an error")
    blocks, problem = _blocks(message, {tool.name for tool in request.tools})
    author = value.get("model") if isinstance(value.get("model"), str) else model
    provider = value.get("provider")
    return TeacherReply(
        turn=Turn(role="assistant", author=author, blocks=blocks),
        usage=read_usage(value.get("usage")),
        problem=_problem(message, str(choice.get("finish_reason")), blocks, problem),
        provider=provider if isinstance(provider, str) else "",
        confidence=_confidence(choice.get("logprobs")),
        raw=body.decode("utf-8", "replace"),
    )


def _broken(what: str) -> TeacherError:
    return TeacherError(what, again=True, billed=True)


def _problem(
    message: Mapping[str, JSON], finish: str, blocks: tuple[Block, ...], of_calls: str
) -> str:
    if message.get("refusal") or finish == "content_filter":
        return "refused"
    if finish == "length":
        return "cut_off"
    return of_calls or ("" if blocks else "empty")


def _blocks(message: Mapping[str, JSON], offered: set[str]) -> tuple[tuple[Block, ...], str]:
    """The blocks of a message, and the first thing that is wrong with its calls."""
    blocks: list[Block] = []
    problem = ""
    if text := _text(message.get("content")).strip():
        blocks.append(Text(text))
    calls = message.get("tool_calls")
    seen: set[str] = set()
    for place, row in enumerate(calls if isinstance(calls, list) else ()):
        function = row.get("function") if isinstance(row, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = _arguments(function.get("arguments")) if isinstance(function, dict) else None
        if not isinstance(name, str) or not name or arguments is None:
            blocks.append(Opaque("tool_call", dumps(row)))
            problem = problem or ("bad_arguments" if name else "no_name")
            continue
        given = row.get("id")
        call_id = (
            given if isinstance(given, str) and given and given not in seen else f"call_{place}"
        )
        seen.add(call_id)
        blocks.append(ToolCall(call_id, name, arguments))
        problem = problem or ("" if name in offered else "unknown_tool")
    return tuple(blocks), problem


def _text(content: JSON) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""


def _arguments(given: JSON) -> Mapping[str, JSON] | None:
    """Parsed arguments, or None for what is no JSON object; some servers send them parsed, and
    nothing for none."""
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    elif given is None or given == "":
        return {}
    return given if isinstance(given, dict) else None


def read_usage(value: JSON) -> Usage:
    """Tokens and cost as reported; what is missing or no number is None, and where one number is
    absurd none of them is believed.

    With a key of one's own behind a router (`is_byok`) the router's cost is its fee, and the
    model's own bill is added.

    >>> read_usage({"prompt_tokens": 9, "completion_tokens": 2, "cost": 0.01, "prompt_tokens_details": {"cached_tokens": 7}})
    Usage(input_tokens=9, output_tokens=2, cached_tokens=7, cache_write_tokens=0, usd=0.01)
    """
    row = value if isinstance(value, dict) else {}
    details = row.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    upstream = row.get("cost_details")
    upstream = upstream if isinstance(upstream, dict) else {}
    tokens = (
        row.get("prompt_tokens"),
        row.get("completion_tokens"),
        row.get("prompt_cache_hit_tokens"),
        *details.values(),
    )
    dollars = (row.get("cost"), upstream.get("upstream_inference_cost"))
    if any(_absurd(one, MOST_TOKENS) for one in tokens) or any(
        _absurd(one, MOST_USD) for one in dollars
    ):
        return Usage()
    cached = _count(details.get("cached_tokens")) or _count(row.get("prompt_cache_hit_tokens")) or 0
    usd = _dollars(row.get("cost"))
    if usd is not None and row.get("is_byok") is True:
        theirs = _dollars(upstream.get("upstream_inference_cost"))
        usd = None if theirs is None else usd + theirs
    return Usage(
        input_tokens=_count(row.get("prompt_tokens")),
        output_tokens=_count(row.get("completion_tokens")),
        cached_tokens=cached,
        cache_write_tokens=_count(details.get("cache_write_tokens")) or 0,
        usd=usd,
    )


def _count(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _dollars(value: JSON) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)


def _absurd(value: JSON, most: float) -> bool:
    """Whether a number is below 0, above `most`, or none at all; compared, not converted: an
    integer may be too long for a float."""
    return isinstance(value, (int, float)) and not 0 <= value <= most


def _confidence(logprobs: JSON) -> float | None:
    """Geometric mean of the tokens' probabilities."""
    rows = logprobs.get("content") if isinstance(logprobs, dict) else None
    values = (
        [row.get("logprob") for row in rows if isinstance(row, dict)]
        if isinstance(rows, list)
        else []
    )
    known = [
        value
        for value in values
        if isinstance(value, (int, float)) and -_LEAST_LOGPROB <= value <= 0
    ]
    return math.exp(sum(known) / len(known)) if known and len(known) == len(values) else None
