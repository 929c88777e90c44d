"""Convert requests to chat-completions JSON and answers back: pure functions, no network.

    chat_messages(session.context(7))     # [{"role": "user", "content": "fix it"}, ...]
    read_reply(body, request=request, model="glm-5")      # TeacherReply(turn=..., usage=..., ...)

What the protocol requires and a log may lack is marked, never invented: a call without a recorded
result is answered "[no result was recorded]", and a result whose call is not in view becomes a user
message. Thinking is left out: another model would take it for its own. Nothing in an answer is
repaired: an unusable one keeps its text and carries a `problem`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from composer_replication.core.errors import TeacherError
from composer_replication.core.jsonl import dumps
from composer_replication.core.teacher import MOST_TOKENS, MOST_USD, Request, TeacherReply, Usage
from composer_replication.core.trace import (
    JSON,
    Block,
    Opaque,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.chat import tool_to_chat

NO_RESULT = "[no result was recorded]"
LOST_CALL = "[result of a call that is not in view]"
_LEAST_LOGPROB = 1e9
_NO_PARAMETERS: Mapping[str, JSON] = {"type": "object", "properties": {}}


def chat_messages(turns: Sequence[Turn]) -> list[dict[str, JSON]]:
    """Return the messages of a request; its result follows each call, as the protocol requires."""
    results: dict[str, ToolResult] = {}
    for turn in turns:
        for result in turn.results:
            results.setdefault(result.call_id, result)
    answered_results: set[int] = set()  # results that already follow their call
    messages: list[dict[str, JSON]] = []
    for turn in turns:
        if turn.role == "assistant":
            messages += _assistant_messages(turn, results, answered_results)
            continue
        for result in turn.results:
            if id(result) not in answered_results:
                messages.append({"role": "user", "content": f"{LOST_CALL}\n{_result_text(result)}"})
        if turn.text:
            messages.append(
                {"role": "system" if turn.role == "system" else "user", "content": turn.text}
            )
    return messages


def _assistant_messages(
    turn: Turn, results: Mapping[str, ToolResult], answered_results: set[int]
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
        if result is not None and id(result) not in answered_results:
            answered_results.add(id(result))
            yield {"role": "tool", "tool_call_id": call.id, "content": _result_text(result)}
        else:
            yield {"role": "tool", "tool_call_id": call.id, "content": NO_RESULT}


def _result_text(result: ToolResult) -> str:
    images = "".join(f"\n[{media}: not kept]" for media in result.images)
    return (result.text + images).strip("\n") or ("[error]" if result.is_error else "[no output]")


def chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, JSON]]:
    """Return the tools of a request; one without a schema gets an object without properties."""
    return [
        tool_to_chat(tool if tool.parameters else replace(tool, parameters=_NO_PARAMETERS))
        for tool in tools
    ]


def read_reply(body: bytes, *, request: Request, model: str) -> TeacherReply:
    """Return the answer in the body of a response with status 200.

    Raises TeacherError if it holds none; that counts as billed, because it may have been.
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
    blocks, problem = _read_blocks(message, {tool.name for tool in request.tools})
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
    message: Mapping[str, JSON], finish_reason: str, blocks: tuple[Block, ...], call_problem: str
) -> str:
    if message.get("refusal") or finish_reason == "content_filter":
        return "refused"
    if finish_reason == "length":
        return "cut_off"
    return call_problem or ("" if blocks else "empty")


def _read_blocks(message: Mapping[str, JSON], offered: set[str]) -> tuple[tuple[Block, ...], str]:
    """Return the blocks of a message, and the first problem of its calls."""
    blocks: list[Block] = []
    problem = ""
    if text := _content_text(message.get("content")).strip():
        blocks.append(Text(text))
    calls = message.get("tool_calls")
    seen_ids: set[str] = set()
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        arguments = (
            _parse_arguments(function.get("arguments")) if isinstance(function, dict) else None
        )
        if not isinstance(name, str) or not name or arguments is None:
            blocks.append(Opaque("tool_call", dumps(call)))
            problem = problem or ("bad_arguments" if name else "no_name")
            continue
        given_id = call.get("id")
        call_id = (
            given_id
            if isinstance(given_id, str) and given_id and given_id not in seen_ids
            else f"call_{index}"
        )
        seen_ids.add(call_id)
        blocks.append(ToolCall(call_id, name, arguments))
        problem = problem or ("" if name in offered else "unknown_tool")
    return tuple(blocks), problem


def _content_text(content: JSON) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"]
            for part in content
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""


def _parse_arguments(arguments: JSON) -> Mapping[str, JSON] | None:
    """Return parsed arguments, or None if they are not a JSON object.

    Some servers send them parsed, and null or "" for none.
    """
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    elif arguments is None or arguments == "":
        return {}
    return arguments if isinstance(arguments, dict) else None


def read_usage(value: JSON) -> Usage:
    """Return tokens and cost as reported, None for each that is missing or not a number.

    If one number is absurd, none of them is used. With the user's own key behind a router
    (`is_byok`) the router's cost is its fee, and the model's bill is added.

    >>> tokens = {"prompt_tokens": 9, "completion_tokens": 2}
    >>> read_usage({**tokens, "cost": 0.01, "prompt_tokens_details": {"cached_tokens": 7}})
    Usage(input_tokens=9, output_tokens=2, cached_tokens=7, cache_write_tokens=0, usd=0.01)
    """
    fields = value if isinstance(value, dict) else {}
    details = fields.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    upstream = fields.get("cost_details")
    upstream = upstream if isinstance(upstream, dict) else {}
    tokens = (
        fields.get("prompt_tokens"),
        fields.get("completion_tokens"),
        fields.get("prompt_cache_hit_tokens"),
        *details.values(),
    )
    dollars = (fields.get("cost"), upstream.get("upstream_inference_cost"))
    if any(_is_absurd(number, MOST_TOKENS) for number in tokens) or any(
        _is_absurd(number, MOST_USD) for number in dollars
    ):
        return Usage()
    cached = (
        _int_or_none(details.get("cached_tokens"))
        or _int_or_none(fields.get("prompt_cache_hit_tokens"))
        or 0
    )
    usd = _float_or_none(fields.get("cost"))
    if usd is not None and fields.get("is_byok") is True:
        upstream_usd = _float_or_none(upstream.get("upstream_inference_cost"))
        usd = None if upstream_usd is None else usd + upstream_usd
    return Usage(
        input_tokens=_int_or_none(fields.get("prompt_tokens")),
        output_tokens=_int_or_none(fields.get("completion_tokens")),
        cached_tokens=cached,
        cache_write_tokens=_int_or_none(details.get("cache_write_tokens")) or 0,
        usd=usd,
    )


def _int_or_none(value: JSON) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float_or_none(value: JSON) -> float | None:
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)


def _is_absurd(value: JSON, most: float) -> bool:
    """Return whether a number is below 0, above `most`, or NaN.

    Compared, not converted: an integer may be too long for a float.
    """
    return isinstance(value, (int, float)) and not 0 <= value <= most


def _confidence(logprobs: JSON) -> float | None:
    """Return the geometric mean of the tokens' probabilities."""
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    values = (
        [token.get("logprob") for token in tokens if isinstance(token, dict)]
        if isinstance(tokens, list)
        else []
    )
    known = [
        value
        for value in values
        if isinstance(value, (int, float)) and -_LEAST_LOGPROB <= value <= 0
    ]
    return math.exp(sum(known) / len(known)) if known and len(known) == len(values) else None
