"""The fields of a request beside its messages: which are used, ignored, or refused.

    check_fields("chat", {"messages": [], "n": 3})      # RefusedRequestError: n = 3: ...
    check_fields("chat", {"messages": [], "foo": 1})    # {"field foo": 1}: ignored, and counted

A field is ignored if the client loses nothing that it can read from the answer; one that promises
something about the answer is refused. docs/serve.md shows this table, and a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from composer_replication.serve.client_messages import RefusedRequestError, Wire

_TOKEN_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRefusal:
    """A field that is refused unless its value is `accepted` (in words); `why` tells the client.

    `is_fine` sees the field's value and the whole request.
    """

    accepted: str
    why: str
    is_fine: Callable[[Any, Mapping[str, Any]], bool]


def _empty(value: Any, body: Mapping[str, Any]) -> bool:
    return not value


def _one_message(value: Any, body: Mapping[str, Any]) -> bool:
    return value in (None, 1)


def _free_choice(value: Any, body: Mapping[str, Any]) -> bool:
    kind = value.get("type") if isinstance(value, Mapping) else value
    return kind in (None, "auto") or (kind == "none" and not body.get("tools"))


def _free_text(value: Any, body: Mapping[str, Any]) -> bool:
    """A format of chat completions, or an object of another wire that holds one."""
    if not isinstance(value, Mapping):
        return value is None
    kind = value.get("format", {"type": value.get("type")})
    return kind is None or (isinstance(kind, Mapping) and kind.get("type") in (None, "text"))


def _text_only(value: Any, body: Mapping[str, Any]) -> bool:
    return value in (None, [], ["text"])


def _no_logprobs(value: Any, body: Mapping[str, Any]) -> bool:
    return not isinstance(value, list) or _TOKEN_LOGPROBS not in value


_CHOICE = FieldRefusal(
    accepted='"auto", "none" without tools',
    why='the student chooses its calls itself: send "auto", or leave tools out',
    is_fine=_free_choice,
)
_FORMAT = FieldRefusal(
    accepted="text",
    why="the student's words are not constrained: ask for the format in a message",
    is_fine=_free_text,
)


def _absent(why: str, accepted: str = "") -> FieldRefusal:
    return FieldRefusal(accepted=accepted, why=why, is_fine=_empty)


_STOP = _absent(
    "a message ends with the student's own end token: cut the text yourself", accepted="empty"
)
_ALTERNATIVES = _absent("the log-probs of tokens that were not sampled are not kept", accepted="0")
_OLD_TOOLS = _absent("this is the old form of tools: send tools")
_WHOLE = _absent("nothing is stored here: send the whole conversation")

USED: Mapping[Wire, tuple[str, ...]] = MappingProxyType(
    {
        "chat": (
            "messages", "tools", "model", "stream", "max_completion_tokens", "max_tokens",
            "parallel_tool_calls", "logprobs",
        ),
        "responses": (
            "input", "instructions", "tools", "model", "stream", "max_output_tokens",
            "parallel_tool_calls",
        ),
        "messages": ("messages", "system", "tools", "model", "stream", "max_tokens"),
    }
)  # fmt: skip
"""The fields that shape the prompt or the answer."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty",
             "presence_penalty")  # fmt: skip
_ACCOUNT = ("metadata", "service_tier", "store", "user", "safety_identifier", "moderation",
            "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")  # fmt: skip
IGNORED: Mapping[Wire, tuple[str, ...]] = MappingProxyType(
    {
        "chat": (
            *_SAMPLING, *_ACCOUNT, "stream_options", "reasoning_effort", "verbosity", "prediction",
        ),
        "responses": (
            "temperature", "top_p", *_ACCOUNT, "client_metadata", "stream_options", "reasoning",
            "truncation", "max_tool_calls", "context_management",
        ),
        "messages": (
            "temperature", "top_p", "top_k", "metadata", "service_tier", "inference_geo", "speed",
            "thinking", "cache_control", "container", "context_management", "compaction", "betas",
            "diagnostics", "fallbacks", "fallback_credit_token", "billing_policy",
            "user_profile_id", "workspace_id",
        ),
    }
)  # fmt: skip
"""The fields that change nothing: sampling is set by `rollouts`, thinking by the template."""

REFUSED: Mapping[Wire, Mapping[str, FieldRefusal]] = MappingProxyType(
    {
        "chat": {
            "n": FieldRefusal(
                accepted="1", why="one message is sampled for a request", is_fine=_one_message
            ),
            "tool_choice": _CHOICE,
            "response_format": _FORMAT,
            "stop": _STOP,
            "top_logprobs": _ALTERNATIVES,
            "logit_bias": _absent("the student is sampled from its own distribution"),
            "functions": _OLD_TOOLS,
            "function_call": _OLD_TOOLS,
            "modalities": FieldRefusal(
                accepted="text", why="the student writes text only", is_fine=_text_only
            ),
            "audio": _absent("the student writes text only"),
            "web_search_options": _absent("no tool is carried out here"),
        },
        "responses": {
            "tool_choice": _CHOICE,
            "text": _FORMAT,
            "top_logprobs": _ALTERNATIVES,
            "include": FieldRefusal(
                accepted=f"anything but {_TOKEN_LOGPROBS}",
                why="chat completions have log-probs, with logprobs = true",
                is_fine=_no_logprobs,
            ),
            "previous_response_id": _WHOLE,
            "conversation": _WHOLE,
            "background": _absent("an answer is sent once it is written"),
            "prompt": _absent("no prompt is stored here: send it as input"),
        },
        "messages": {
            "tool_choice": _CHOICE,
            "stop_sequences": _STOP,
            "output_config": FieldRefusal(
                accepted="without a format", why=_FORMAT.why, is_fine=_free_text
            ),
            "output_format": _FORMAT,
            "thread": _WHOLE,
            "mcp_servers": _absent("no tool is carried out here: give its tools to the client"),
        },
    }
)
"""The fields that promise something about the answer that it would not keep."""


def check_fields(wire: Wire, body: Mapping[str, Any]) -> dict[str, int]:
    """The fields that no list here knows, each counted once.

    Raises RefusedRequestError, with the field as `param`, for what cannot be had.
    """
    for name, refusal in REFUSED[wire].items():
        if not refusal.is_fine(body.get(name), body):
            shown = json.dumps(body[name], ensure_ascii=False)
            raise RefusedRequestError(f"{name} = {shown[:100]}: {refusal.why}", param=name)
    known = {*USED[wire], *IGNORED[wire], *REFUSED[wire]}
    return {f"field {name}": 1 for name in body if name not in known}


def allows_parallel_calls(body: Mapping[str, Any]) -> bool:
    """Whether a message may hold several calls, in any of the wire formats.

    >>> allows_parallel_calls({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}})
    False
    """
    choice = body.get("tool_choice")
    of_choice = isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use")
    return body.get("parallel_tool_calls") is not False and not of_choice
