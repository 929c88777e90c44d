"""The position of each message, and of the part its author wrote, in a rendered conversation.

    <|im_start|>assistant\\n Let me look.<|im_end|> \\n
    ^ start                 ^ body[0]             ^ body[1]

`marked_layout` reads it from marks that our own templates write. `prefix_layout` works with any
template: it renders the conversation up to each message, with and without generation prompt. It
refuses a template for which these are not prefixes of one another, or which loses a text, a call
name or an argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import RenderError
from composer_replication.tokens.example import Span
from composer_replication.tokens.messages import Message

_SHOWN = 70  # characters shown on either side of a difference


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Character positions of one message: its start, and its body (empty unless an assistant's)."""

    start: int
    body: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A rendered conversation and the position of each of its messages."""

    text: str
    spans: tuple[MessageSpan, ...]


def shared_prefix_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    """The length of the common prefix of two strings or lists.

    >>> shared_prefix_length("abcd", "abxd")
    2
    """
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def marked_layout(marked: str, *, marks: str, messages: Sequence[Message]) -> Layout:
    """Remove the marks (message, body, end) from a rendering and record their positions.

    >>> messages = [{"role": "user"}, {"role": "assistant"}]
    >>> marked_layout("[hi [a:well; ", marks="[:;", messages=messages).spans
    (MessageSpan(start=0, body=(0, 0)), MessageSpan(start=3, body=(4, 8)))
    """
    at_message, at_body, at_end = marks
    starts: list[int] = []
    bodies: list[Span] = []
    parts: list[str] = []
    position = body_start = 0
    for part in re.split(f"([{re.escape(marks)}])", marked):
        if part == at_message:
            starts.append(position)
            bodies.append((position, position))
        elif part == at_body:
            body_start = position
        elif part == at_end:
            bodies[-1] = (body_start, position)
        else:
            parts.append(part)
            position += len(part)
    if len(starts) != len(messages):
        raise RenderError(
            f"the template wrote {len(starts)} of {len(messages)} messages",
            fix="it leaves out a role that it does not know",
        )
    return Layout(
        text="".join(parts),
        spans=tuple(MessageSpan(a, b) for a, b in zip(starts, bodies, strict=True)),
    )


def prefix_layout(
    render: Callable[..., str],
    messages: Sequence[Message],
    *,
    names: Sequence[str],
    ends: re.Pattern[str],
) -> Layout:
    """The layout under an unknown template, found by rendering prefixes.

    `names[i]` is the turn that message i belongs to, for errors; `ends` matches a control token.
    Raises RenderError, with both renderings around the difference, if the template rewrites earlier
    text, loses something, or ends a message without a control token.
    """
    full = render(messages, add_generation_prompt=False)
    starts, bodies = [0], [(0, 0)]
    joint = 0  # number of messages at the beginning that cannot be told apart from the next one
    for index, message in enumerate(messages):
        if index > 0:
            shorter = _render_alone(
                render, messages[:index], names[index], needed=message["role"] == "assistant"
            )
            joint += shorter is None
            starts.append(
                shared_prefix_length(shorter, full) if shorter is not None else starts[-1]
            )
            bodies.append((starts[-1], starts[-1]))
            if message["role"] == "assistant":
                _check_prefix(full, shorter or "", f"the messages before {names[index]}")
        if message["role"] == "assistant":
            bodies[index] = _body_span(
                render, messages, index=index, full=full, name=names[index], ends=ends
            )
    for index, message in enumerate(messages):
        next_message = max(index, joint) + 1
        end = starts[next_message] if next_message < len(messages) else len(full)
        _check_holds(full[starts[index] : end], message, names[index])
    return Layout(
        text=full, spans=tuple(MessageSpan(a, b) for a, b in zip(starts, bodies, strict=True))
    )


def _render_alone(
    render: Callable[..., str], messages: Sequence[Message], name: str, *, needed: bool
) -> str | None:
    """The messages before one, rendered without it.

    None if the template demands a user message, none has come yet, and the rendering is not
    `needed`: what cannot be separated then counts as part of the first message that can.
    """
    try:
        return render(messages, add_generation_prompt=False)
    except RenderError as error:
        if not needed and not any(m["role"] == "user" for m in messages):
            return None
        raise RenderError(
            f"the messages before {name} cannot be rendered without it: {error.what}", where=name
        ) from error


def _body_span(
    render: Callable[..., str],
    messages: Sequence[Message],
    *,
    index: int,
    full: str,
    name: str,
    ends: re.Pattern[str],
) -> Span:
    """The body of an assistant message: from behind its generation prompt to its end token."""
    if index == 0:
        raise RenderError(
            "the conversation begins with an assistant message, which no generation prompt"
            " precedes",
            where=name,
        )
    prompt = render(messages[:index], add_generation_prompt=True)
    upto = render(messages[: index + 1], add_generation_prompt=False)
    _check_prefix(upto, prompt, f"the generation prompt of {name}")
    _check_prefix(full, upto, f"the messages up to {name}")
    end_positions = [match.end() for match in ends.finditer(upto, len(prompt))]
    if not end_positions or upto[end_positions[-1] :].strip():
        raise RenderError(
            f"the message ends without a control token: ...{upto[-_SHOWN:]!r}",
            where=name,
            fix="use a supported template",
        )
    return len(prompt), end_positions[-1]


def _check_prefix(longer: str, shorter: str, description: str) -> None:
    if longer.startswith(shorter):
        return
    at = shared_prefix_length(longer, shorter)
    raise RenderError(
        f"the chat template rewrites what came earlier: {description} alone read"
        f" ...{_excerpt(shorter, at)!r}, but with what follows ...{_excerpt(longer, at)!r}",
        where=description,
    )


def _excerpt(text: str, at: int) -> str:
    return text[max(0, at - _SHOWN) : at + _SHOWN]


def _check_holds(rendering: str, message: Message, name: str) -> None:
    for description, text in _expected_texts(message):
        if (
            text.strip() not in rendering
            and json.dumps(text.strip(), ensure_ascii=False)[1:-1] not in rendering
        ):
            raise RenderError(
                f"the chat template loses {description} of {name}: {text[:_SHOWN]!r} is not in its"
                f" rendering {rendering[: 2 * _SHOWN]!r}",
                where=name,
            )


def _expected_texts(message: Message) -> list[tuple[str, str]]:
    texts = [("the text", message["content"])]
    for call in message.get("tool_calls", ()):
        texts.append(("the name of a call", call["function"]["name"]))
        texts.extend(
            ("an argument of a call", leaf)
            for leaf in _argument_texts(call["function"]["arguments"])
        )
    return texts


def _argument_texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in (key, *_argument_texts(item))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _argument_texts(item)]
    return (
        [value]
        if isinstance(value, str)
        else []
        if value is None or isinstance(value, bool)
        else [json.dumps(value)]
    )
