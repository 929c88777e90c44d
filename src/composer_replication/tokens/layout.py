"""Where each message, and the part its author wrote, stands in a rendered conversation.

    <|im_start|>assistant\\n Let me look.<|im_end|> \\n
    ^ start                 ^ body[0]             ^ body[1]

`marked_layout` reads it from marks that our own templates write. `prefix_layout` works with any
template: it renders the conversation up to each message, with and without generation prompt, and
refuses a template for which these are not prefixes of one another, or in which a text, call name or
argument is nowhere to be found.
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
    """Character positions of one message: where it starts, and its body (empty unless an assistant
    wrote it)."""

    start: int
    body: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A rendered conversation and the place of each of its messages."""

    text: str
    places: tuple[MessageSpan, ...]


def num_shared(left: Sequence[Any], right: Sequence[Any]) -> int:
    """How many items two strings or lists share at their beginning.

    >>> num_shared("abcd", "abxd")
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
    """Take the marks (message, body, end) out of a rendering and keep where they stood.

    >>> marked_layout("[hi [a:well; ", marks="[:;", messages=[{"role": "user"}, {"role": "assistant"}]).places
    (MessageSpan(start=0, body=(0, 0)), MessageSpan(start=3, body=(4, 8)))
    """
    at_message, at_body, at_end = marks
    starts: list[int] = []
    bodies: list[Span] = []
    parts: list[str] = []
    position = begun = 0
    for part in re.split(f"([{re.escape(marks)}])", marked):
        if part == at_message:
            starts.append(position)
            bodies.append((position, position))
        elif part == at_body:
            begun = position
        elif part == at_end:
            bodies[-1] = (begun, position)
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
        places=tuple(MessageSpan(a, b) for a, b in zip(starts, bodies, strict=True)),
    )


def prefix_layout(
    render: Callable[..., str],
    messages: Sequence[Message],
    *,
    names: Sequence[str],
    ends: re.Pattern[str],
) -> Layout:
    """The layout under a template we do not know, found by rendering prefixes; `names[i]` says
    which turn message i belongs to.

    `ends` matches a control token. Raises RenderError, with both renderings around the difference,
    where the template rewrites what came earlier, loses something, or ends a message without a
    control token.
    """
    full = render(messages, add_generation_prompt=False)
    starts, bodies = [0], [(0, 0)]
    joint = 0  # so many messages at the beginning end where only the next one ends
    for index, message in enumerate(messages):
        if index > 0:
            shorter = _alone(
                render, messages[:index], names[index], needed=message["role"] == "assistant"
            )
            joint += shorter is None
            starts.append(num_shared(shorter, full) if shorter is not None else starts[-1])
            bodies.append((starts[-1], starts[-1]))
            if message["role"] == "assistant":
                _must_begin(full, shorter or "", f"the messages before {names[index]}")
        if message["role"] == "assistant":
            bodies[index] = _body(render, messages, index, full, names[index], ends)
    for index, message in enumerate(messages):
        behind = max(index, joint) + 1
        end = starts[behind] if behind < len(messages) else len(full)
        _must_hold(full[starts[index] : end], message, names[index])
    return Layout(
        text=full, places=tuple(MessageSpan(a, b) for a, b in zip(starts, bodies, strict=True))
    )


def _alone(
    render: Callable[..., str], messages: Sequence[Message], name: str, *, needed: bool
) -> str | None:
    """The messages before one, without it; None where the template demands a user message and none
    has come yet, if that is no matter.

    Where the beginning cannot be told apart it counts as part of the first message that can.
    """
    try:
        return render(messages, add_generation_prompt=False)
    except RenderError as error:
        if not needed and not any(m["role"] == "user" for m in messages):
            return None
        raise RenderError(
            f"the messages before {name} cannot be rendered without it: {error.what}", where=name
        ) from error


def _body(
    render: Callable[..., str],
    messages: Sequence[Message],
    index: int,
    full: str,
    name: str,
    ends: re.Pattern[str],
) -> Span:
    if index == 0:
        raise RenderError(
            "the conversation begins with an assistant message, which no generation prompt"
            " precedes",
            where=name,
        )
    prompt = render(messages[:index], add_generation_prompt=True)
    upto = render(messages[: index + 1], add_generation_prompt=False)
    _must_begin(upto, prompt, f"the generation prompt of {name}")
    _must_begin(full, upto, f"the messages up to {name}")
    tokens = [match.end() for match in ends.finditer(upto, len(prompt))]
    if not tokens or upto[tokens[-1] :].strip():
        raise RenderError(
            f"the message ends without a control token: ...{upto[-_SHOWN:]!r}",
            where=name,
            fix="use a supported template",
        )
    return len(prompt), tokens[-1]


def _must_begin(longer: str, shorter: str, what: str) -> None:
    if longer.startswith(shorter):
        return
    at = num_shared(longer, shorter)
    raise RenderError(
        f"the chat template rewrites what came earlier: {what} alone read"
        f" ...{_around(shorter, at)!r}, but with what follows ...{_around(longer, at)!r}",
        where=what,
    )


def _around(text: str, at: int) -> str:
    return text[max(0, at - _SHOWN) : at + _SHOWN]


def _must_hold(stretch: str, message: Message, name: str) -> None:
    for what, text in _texts(message):
        if (
            text.strip() not in stretch
            and json.dumps(text.strip(), ensure_ascii=False)[1:-1] not in stretch
        ):
            raise RenderError(
                f"the chat template loses {what} of {name}: {text[:_SHOWN]!r} is not in its"
                f" rendering {stretch[: 2 * _SHOWN]!r}",
                where=name,
            )


def _texts(message: Message) -> list[tuple[str, str]]:
    found = [("the text", message["content"])]
    for call in message.get("tool_calls", ()):
        found.append(("the name of a call", call["function"]["name"]))
        found.extend(
            ("an argument of a call", leaf) for leaf in _leaves(call["function"]["arguments"])
        )
    return found


def _leaves(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in (key, *_leaves(item))]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return (
        [value]
        if isinstance(value, str)
        else []
        if value is None or isinstance(value, bool)
        else [json.dumps(value)]
    )
