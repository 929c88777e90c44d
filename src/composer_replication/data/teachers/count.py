"""Our own count of what was sent and received, without a tokenizer: what is booked at least,
whatever an endpoint reports.

    sent_tokens({"messages": [...], "tools": [...]})          # of a request as it left
    received_tokens({"choices": [{"message": {...}}], ...}, max_tokens=1024)       # of an answer as it came

`most_tokens` is tuned to lie above real tokenizers, not to be near them: measured against those of
Qwen 3, DeepSeek V3, GPT-4o, gpt-oss, Gemma 3 and Claude on 250 texts of agent logs, 40 Python
files, eleven other scripts and random letters, digits, base64 and hex it was never below, and 1.9
to 2.4 times the count on logs and code (bytes: 2.9 to 4.2 times). A vocabulary of 32,000 (Llama 2)
can be above it on random capitals and rare signs by a tenth. A text made to defeat it could cost up
to its bytes, which is what the worst case holds.

`least_tokens` decides whether an answer was held to max_tokens. On the same texts it is .15 to 1 of
the lowest count, in scripts without spaces and in base64 at least a third of the highest but for
Thai (a seventh); only in one sign or word over and over is it above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from composer_replication.core.jsonl import dumps, json_strings

JSON = Any
MESSAGE_TOKENS = 8
"""A template's marks around one message."""
TOOLS_TOKENS = 200
"""A template's own words about tools, where there are some."""
_PIECE = re.compile(r"([A-Z]?[a-z]+|[A-Z]+)|([0-9]+)|( +)|([^\x00-\x7f]+)|(.)(\5*)", re.DOTALL)
_LONG_WORD = 12
_CJK = r"\u3000-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_THREE_BYTES = r"\u0800-\u1dff\u1f00-\U0010ffff"
_WORD = re.compile(r"(\S+)|\s{128,}")
_PART = re.compile(
    rf"([0-9]+)|([{_CJK}]+)|((?:(?![{_CJK}])[{_THREE_BYTES}])+)|([^\w\s])\4{{7,}}|(?:(?!([^\w\s])\5{{7,}})[^0-9{_THREE_BYTES}])+"
)
_LONG_PART = 16
_REASONING = ("reasoning", "reasoning_content", "reasoning_details", "thinking")
"""Names under which servers show thinking; some show the same under two of them."""
_SERVERS = {"id", "type", "role", "format", "signature", "annotations"}
_SERVERS_BESIDE = _SERVERS | {
    "object",
    "model",
    "provider",
    "system_fingerprint",
    "service_tier",
    "finish_reason",
    "native_finish_reason",
}
_SEALED = {"data", "encrypted_content"}
FREE_CHARACTERS = 2_000
"""Of what a server adds by itself - ids, kinds, signatures - so many characters are free, and
SEALED_PER_TOKEN times max_tokens."""
SEALED_PER_TOKEN = 6
"""Thinking that a server seals, as a signature does, takes about five characters of base64 a
token."""


def most_tokens(text: str) -> int:
    """At least as many tokens as a tokenizer makes of a text, see the head of this module; never
    more than its bytes.

    >>> most_tokens("Read the file."), most_tokens("    return 12345")
    (9, 10)
    """
    count = 0
    for piece in _PIECE.finditer(text):
        size, kind = piece.end() - piece.start(), piece.lastindex
        if kind == 1:  # letters: two a token, fewer in capitals and in what is no word
            count += -(-size * 5 // 8) if size > _LONG_WORD or piece[1].isupper() else size // 2 + 1
        elif kind == 2:  # some tokenizers take every digit by itself
            count += size
        elif kind == 3:  # one space belongs to the word behind it
            count += 0 if size == 1 else 1 + size // 8
        elif kind == 4:
            count += -(-_num_bytes(piece[4]) * 2 // 3)
        else:  # signs; a line of one sign is joined
            count += size if piece[5] in "\n\t" else min(size, 2 + size // 2)
    return min(count, _num_bytes(text))


def least_tokens(text: str) -> int:
    """So many tokens are in a text at least, also where it has no spaces; see the head of this
    module.

    >>> least_tokens("Read the file."), least_tokens("QUJDREVG" * 100), least_tokens("\u7684" * 300)
    (3, 157, 100)
    """
    count = 0
    for run in _WORD.finditer(text):
        count += (
            max(1, sum(map(_least_of, _PART.finditer(run[1])))) if run[1] else len(run[0]) // 128
        )
    return count


def _least_of(part: re.Match[str]) -> int:
    """Of what no tokenizer joins with its neighbours: digits, a script without spaces, or the rest
    of a word."""
    size = part.end() - part.start()
    if part[1] or part[2]:
        return -(-size // 3)
    if part[3]:
        return -(-size // 6)
    if part[4]:  # a line of one sign
        return size // 64
    return 1 + max(0, size - _LONG_PART) // 5


def sent_tokens(body: Mapping[str, JSON]) -> int:
    """The tokens of a chat-completions request: its messages, its tools, and what a template writes
    around them."""
    messages: Sequence[JSON] = body.get("messages", ())
    count = sum(
        MESSAGE_TOKENS + sum(map(most_tokens, json_strings(message))) for message in messages
    )
    if tools := body.get("tools"):
        count += TOOLS_TOKENS + most_tokens(dumps(tools))
    if schema := body.get("response_format"):
        count += most_tokens(dumps(schema))
    return count


def received_tokens(body: Mapping[str, JSON], *, max_tokens: int) -> int:
    """The tokens of an answer as it came: of every choice, the thinking that it shows, and whatever
    stands beside the messages.

    A choice of which even the least is more than `max_tokens` was not held to it, and counts in
    full; any other one has that many at most.
    """
    choices = body.get("choices")
    rows = (
        [choice for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else []
    )
    beside = list(
        _texts(
            {name: value for name, value in body.items() if name != "choices"},
            without=_SERVERS_BESIDE,
        )
    )
    added = list(_added(body))
    if sum(map(len, added)) > FREE_CHARACTERS + SEALED_PER_TOKEN * max_tokens:
        beside += added
    count = 0
    for row in rows or [{}]:
        count += _of_choice(row, beside, max_tokens=max_tokens)
        beside = []
    return count


def _of_choice(choice: Mapping[str, JSON], beside: Sequence[str], *, max_tokens: int) -> int:
    """The tokens of one choice, and of texts beside all of them; log-probs show the words of a
    message a second time."""
    message = choice.get("message")
    row = dict(message) if isinstance(message, dict) else {"content": message}
    rest = {name: value for name, value in choice.items() if name not in ("message", "logprobs")}
    thinking = [parts[name] for parts in (row, rest) for name in _REASONING if name in parts]
    row, rest = (
        {name: value for name, value in parts.items() if name not in _REASONING}
        for parts in (row, rest)
    )
    other = [*_texts(rest, without=_SERVERS_BESIDE), *beside]
    again = "".join(_texts(choice.get("logprobs")))
    shown = _once(" ".join(_texts(one)) for one in thinking)
    most = sum(map(most_tokens, [*json_strings(row), *shown, *other]))
    open_ = _once(" ".join(_texts(one, without=_SERVERS | _SEALED)) for one in thinking)
    least = max(sum(map(least_tokens, [*_texts(row), *open_, *other])), least_tokens(again))
    return max(most, most_tokens(again)) if least > max_tokens else min(most, max_tokens)


def _once(texts: Iterable[str]) -> list[str]:
    """Texts without those that stand in another one, spaces aside."""
    kept: dict[str, str] = {}
    for text in sorted(texts, key=len, reverse=True):
        bare = "".join(text.split())
        if not any(bare in other for other in kept):
            kept[bare] = text
    return list(kept.values())


def _texts(value: JSON, *, without: Set[str] = _SERVERS) -> Iterator[str]:
    """Strings that a model wrote: no names of fields, and no ids and kinds, which a server adds."""
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            stack.extend(part for name, part in reversed(one.items()) if name not in without)
        elif isinstance(one, list):
            stack.extend(reversed(one))


def _added(value: JSON) -> Iterator[str]:
    """What `_texts` leaves out of an answer: strings under names that servers use for what they
    add, and each name of a field once."""
    stack, names = [value], set[str]()
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            names |= one.keys()
            for name, part in one.items():
                if name in _SERVERS_BESIDE | _SEALED:
                    yield from json_strings(part)
                else:
                    stack.append(part)
        elif isinstance(one, list):
            stack.extend(one)
    yield from names


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
