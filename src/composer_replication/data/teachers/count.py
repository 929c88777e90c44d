"""Count what was sent and received without a tokenizer: the least that is booked for a call.

    sent_tokens({"messages": [...], "tools": [...]})
    received_tokens({"choices": [{"message": {...}}], ...}, max_tokens=1024)

What an endpoint reports is booked only if it is more than this count.

`most_tokens` is tuned to be an upper bound, not an estimate. It was compared with the tokenizers of
Qwen 3, DeepSeek V3, GPT-4o, gpt-oss, Gemma 3 and Claude on 250 texts of agent logs, 40 Python
files, eleven other scripts and random letters, digits, base64 and hex: it was never below them, and
1.9 to 2.4 times the count on logs and code (bytes: 2.9 to 4.2 times). A vocabulary of 32,000 (Llama
2) can exceed it by a tenth on random capitals and rare signs. An adversarial text could cost up to
one token per byte, which the booked worst case covers.

`least_tokens` decides whether an answer was held to max_tokens. On the same texts it is .15 to 1 of
the lowest count; in scripts without spaces and in base64 at least a third of the highest, except
for Thai (a seventh). It exceeds the count only for one sign or word repeated over and over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from composer_replication.core.jsonl import dumps, json_strings
from composer_replication.core.trace import JSON

MESSAGE_TOKENS = 8
"""The marks that a template writes around one message."""
TOOLS_TOKENS = 200
"""The text that a template writes about tools, if there are any."""
_PIECE = re.compile(r"([A-Z]?[a-z]+|[A-Z]+)|([0-9]+)|( +)|([^\x00-\x7f]+)|(.)(\5*)", re.DOTALL)
_LONG_WORD = 12
_CJK = r"\u3000-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef"
_THREE_BYTES = r"\u0800-\u1dff\u1f00-\U0010ffff"
_WORD = re.compile(r"(\S+)|\s{128,}")
_PART = re.compile(
    rf"([0-9]+)|([{_CJK}]+)|((?:(?![{_CJK}])[{_THREE_BYTES}])+)|([^\w\s])\4{{7,}}|(?:(?!([^\w\s])\5{{7,}})[^0-9{_THREE_BYTES}])+"
)
_LONG_PART = 16
_REASONING_FIELDS = ("reasoning", "reasoning_content", "reasoning_details", "thinking")
"""Fields in which servers return thinking; some return the same text in two of them."""
_SERVER_FIELDS = {"id", "type", "role", "format", "signature", "annotations"}
_SERVER_FIELDS_OUTSIDE = _SERVER_FIELDS | {
    "object",
    "model",
    "provider",
    "system_fingerprint",
    "service_tier",
    "finish_reason",
    "native_finish_reason",
}
_SEALED_FIELDS = {"data", "encrypted_content"}
FREE_CHARACTERS = 2_000
"""So many characters that a server adds (ids, kinds, signatures) are free, plus SEALED_PER_TOKEN
times max_tokens."""
SEALED_PER_TOKEN = 6
"""Sealed thinking, e.g. in a signature, takes about five characters of base64 a token."""


def most_tokens(text: str) -> int:
    """Return an upper bound on the tokens of a text, see the head of this module.

    It is never more than the text's bytes.

    >>> most_tokens("Read the file."), most_tokens("    return 12345")
    (9, 10)
    """
    count = 0
    for piece in _PIECE.finditer(text):
        size, kind = piece.end() - piece.start(), piece.lastindex
        if kind == 1:  # letters: two per token, fewer in capitals and long runs
            count += -(-size * 5 // 8) if size > _LONG_WORD or piece[1].isupper() else size // 2 + 1
        elif kind == 2:  # some tokenizers take every digit by itself
            count += size
        elif kind == 3:  # a single space belongs to the next word
            count += 0 if size == 1 else 1 + size // 8
        elif kind == 4:
            count += -(-_num_bytes(piece[4]) * 2 // 3)
        else:  # signs; tokenizers join a run of one sign
            count += size if piece[5] in "\n\t" else min(size, 2 + size // 2)
    return min(count, _num_bytes(text))


def least_tokens(text: str) -> int:
    """Return a lower bound on the tokens of a text, see the head of this module.

    >>> least_tokens("Read the file."), least_tokens("QUJDREVG" * 100), least_tokens("\u7684" * 300)
    (3, 157, 100)
    """
    count = 0
    for run in _WORD.finditer(text):
        count += (
            max(1, sum(map(_least_tokens_of_part, _PART.finditer(run[1]))))
            if run[1]
            else len(run[0]) // 128
        )
    return count


def _least_tokens_of_part(part: re.Match[str]) -> int:
    """Return the least tokens of digits, a script without spaces, or another part of a word."""
    size = part.end() - part.start()
    if part[1] or part[2]:
        return -(-size // 3)
    if part[3]:
        return -(-size // 6)
    if part[4]:  # a run of one sign
        return size // 64
    return 1 + max(0, size - _LONG_PART) // 5


def sent_tokens(body: Mapping[str, JSON]) -> int:
    """Count a chat-completions request: its messages, its tools and the template's own text."""
    messages: Sequence[JSON] = body.get("messages", ())
    count = sum(
        MESSAGE_TOKENS + sum(map(most_tokens, json_strings(message))) for message in messages
    )
    if tools := body.get("tools"):
        count += TOOLS_TOKENS + most_tokens(dumps(tools))
    if response_format := body.get("response_format"):
        count += most_tokens(dumps(response_format))
    return count


def received_tokens(body: Mapping[str, JSON], *, max_tokens: int) -> int:
    """Count an answer as received: every choice, its thinking, and the text outside the messages.

    A choice counts `max_tokens` at most, unless even its lower bound is above that: then the
    endpoint did not respect the limit, and the choice counts in full.
    """
    choices = body.get("choices")
    choice_rows = (
        [choice for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else []
    )
    outside_texts = list(
        _model_texts(
            {name: value for name, value in body.items() if name != "choices"},
            without=_SERVER_FIELDS_OUTSIDE,
        )
    )
    server_texts = list(_server_texts(body))
    # A server may hide generated text in its own fields: beyond the allowance all of it counts.
    if sum(map(len, server_texts)) > FREE_CHARACTERS + SEALED_PER_TOKEN * max_tokens:
        outside_texts += server_texts
    count = 0
    for choice_row in choice_rows or [{}]:
        count += _choice_tokens(choice_row, outside_texts, max_tokens=max_tokens)
        outside_texts = []
    return count


def _choice_tokens(
    choice: Mapping[str, JSON], outside_texts: Sequence[str], *, max_tokens: int
) -> int:
    """Count one choice and the texts outside all choices.

    Log-probs repeat the message's text, so the larger of the two counts.
    """
    message = choice.get("message")
    message_fields = dict(message) if isinstance(message, dict) else {"content": message}
    choice_fields = {
        name: value for name, value in choice.items() if name not in ("message", "logprobs")
    }
    thinking = [
        parts[name]
        for parts in (message_fields, choice_fields)
        for name in _REASONING_FIELDS
        if name in parts
    ]
    message_fields, choice_fields = (
        {name: value for name, value in parts.items() if name not in _REASONING_FIELDS}
        for parts in (message_fields, choice_fields)
    )
    other_texts = [*_model_texts(choice_fields, without=_SERVER_FIELDS_OUTSIDE), *outside_texts]
    logprob_text = "".join(_model_texts(choice.get("logprobs")))
    thinking_texts = _without_contained(
        " ".join(_model_texts(thinking_value)) for thinking_value in thinking
    )
    most = sum(map(most_tokens, [*json_strings(message_fields), *thinking_texts, *other_texts]))
    unsealed_texts = _without_contained(
        " ".join(_model_texts(thinking_value, without=_SERVER_FIELDS | _SEALED_FIELDS))
        for thinking_value in thinking
    )
    least = max(
        sum(map(least_tokens, [*_model_texts(message_fields), *unsealed_texts, *other_texts])),
        least_tokens(logprob_text),
    )
    return max(most, most_tokens(logprob_text)) if least > max_tokens else min(most, max_tokens)


def _without_contained(texts: Iterable[str]) -> list[str]:
    """Drop the texts that another one contains, ignoring spaces."""
    longest: dict[str, str] = {}
    for text in sorted(texts, key=len, reverse=True):
        bare = "".join(text.split())
        if not any(bare in text_seen for text_seen in longest):
            longest[bare] = text
    return list(longest.values())


def _model_texts(value: JSON, *, without: Set[str] = _SERVER_FIELDS) -> Iterator[str]:
    """Yield the strings that a model wrote: no field names, ids or kinds, which a server adds."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            stack.extend(part for name, part in reversed(node.items()) if name not in without)
        elif isinstance(node, list):
            stack.extend(reversed(node))


def _server_texts(value: JSON) -> Iterator[str]:
    """Yield what `_model_texts` leaves out: strings in server fields, and each field name once."""
    stack, names = [value], set[str]()
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            names |= node.keys()
            for name, part in node.items():
                if name in _SERVER_FIELDS_OUTSIDE | _SEALED_FIELDS:
                    yield from json_strings(part)
                else:
                    stack.append(part)
        elif isinstance(node, list):
            stack.extend(node)
    yield from names


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
