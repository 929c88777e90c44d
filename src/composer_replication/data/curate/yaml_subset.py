"""The subset of YAML for recipes: nested mappings and lists, plain and quoted scalars, comments.

    read_yaml("process:\\n  - text_length_filter: {min_len: 1}\\n")
    # {"process": [{"text_length_filter": {"min_len": 1}}]}

Lists and mappings may also be in brackets and braces. Everything else (anchors, tags, block
scalars, several documents) is refused with its line: a recipe that is read in part is another
recipe.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from composer_replication.core.errors import ConfigError

_KEY = re.compile(r"(?P<key>[A-Za-z_][\w.-]*|\"[^\"]*\"|'[^']*')\s*:(?:\s+(?P<rest>.*))?$")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$")
_PLAIN_VALUES: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}
_AMBIGUOUS = frozenset(("yes", "no", "on", "off", "y", "n"))
_REFUSED = tuple("&*!|>%@`")
_CLOSES = {"[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def read_yaml(text: str, *, where: str = "recipe") -> Any:
    """Parse the YAML subset; raises ConfigError with the line of anything else.

    >>> read_yaml("a: [1, 'b']  # two\\nc:\\n  - d: 0.5\\n    e: true\\n")
    {'a': [1, 'b'], 'c': [{'d': 0.5, 'e': True}]}
    """
    lines = [
        line
        for number, raw in enumerate(text.splitlines(), 1)
        if (line := _line(number, raw, where)) is not None
    ]
    if not lines:
        return None
    value, unread = _block(lines, lines[0].indent, where)
    if unread:
        raise _error("this line is indented as none above it", unread[0], where)
    return value


def _line(number: int, raw: str, where: str) -> _Line | None:
    text = _without_comment(raw).rstrip()
    bare = text.lstrip(" ")
    if not bare:
        return None
    line = _Line(number, len(text) - len(bare), bare)
    if "\t" in raw[: len(raw) - len(raw.lstrip())] or bare.startswith(("---", "...")):
        raise _error("tabs and several documents are not read", line, where)
    return line


def _without_comment(text: str) -> str:
    quote = ""
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (position == 0 or text[position - 1] in " \t"):
            return text[:position]
    return text


def _block(lines: list[_Line], indent: int, where: str) -> tuple[Any, list[_Line]]:
    return (_list if lines[0].text == "-" or lines[0].text.startswith("- ") else _mapping)(
        lines, indent, where
    )


def _list(lines: list[_Line], indent: int, where: str) -> tuple[list[Any], list[_Line]]:
    items: list[Any] = []
    while (
        lines
        and lines[0].indent == indent
        and (lines[0].text == "-" or lines[0].text.startswith("- "))
    ):
        first, lines = lines[0], lines[1:]
        bare = first.text[1:].lstrip(" ")
        inner = indent + len(first.text) - len(bare)
        if not bare:
            value, lines = _nested(lines, indent, where)
        elif _KEY.match(bare) or bare.startswith("- "):
            value, lines = _block([_Line(first.number, inner, bare), *lines], inner, where)
        else:
            value = _scalar(bare, first, where)
        items.append(value)
    return items, lines


def _mapping(lines: list[_Line], indent: int, where: str) -> tuple[dict[str, Any], list[_Line]]:
    values: dict[str, Any] = {}
    while lines and lines[0].indent == indent:
        line, lines = lines[0], lines[1:]
        match = _KEY.match(line.text)
        if match is None:
            raise _error('this is not "key: value"', line, where)
        key = match["key"].strip("\"'")
        if key in values:
            raise _error(f"the key {key!r} stands here for the second time", line, where)
        rest = (match["rest"] or "").strip()
        if rest:
            values[key] = _scalar(rest, line, where)
        elif lines and lines[0].indent == indent and lines[0].text.startswith("-"):
            values[key], lines = _list(lines, indent, where)
        else:
            values[key], lines = _nested(lines, indent, where)
    if lines and lines[0].indent > indent:
        raise _error("this line is indented deeper than what it belongs to", lines[0], where)
    return values, lines


def _nested(lines: list[_Line], indent: int, where: str) -> tuple[Any, list[_Line]]:
    return (
        _block(lines, lines[0].indent, where)
        if lines and lines[0].indent > indent
        else (None, lines)
    )


def _scalar(text: str, line: _Line, where: str) -> Any:
    if text[0] in _CLOSES and text.endswith(_CLOSES[text[0]]):
        return _flow(text, line, where)
    if (
        len(text) > 1
        and text[0] in "\"'"
        and text[-1] == text[0]
        and text[0] not in text[1:-1]
        and "\\" not in text
    ):
        return text[1:-1]
    if (
        text.startswith((*_REFUSED, *_CLOSES, '"', "'"))
        or ": " in text
        or text.endswith(":")
        or text.lower() in _AMBIGUOUS
    ):
        raise _error(f"{text!r} is more of YAML than recipes are read with", line, where)
    if _NUMBER.match(text):
        return float(text) if any(c in text for c in ".eE") else int(text)
    return _PLAIN_VALUES.get(text.lower(), text)


def _flow(text: str, line: _Line, where: str) -> Any:
    """Parse a list in brackets or a mapping in braces, which may be nested."""
    items = _split_items(text[1:-1], line, where)
    if text[0] == "[":
        return [_scalar(item, line, where) for item in items]
    values: dict[str, Any] = {}
    for item in items:
        match = _KEY.match(item)
        if match is None or (key := match["key"].strip("\"'")) in values:
            raise _error(
                f'{item!r} is not "key: value", or its key stands there already', line, where
            )
        values[key] = _scalar((match["rest"] or "").strip() or "null", line, where)
    return values


def _split_items(text: str, line: _Line, where: str) -> list[str]:
    """Split a list or mapping at its commas, except those in quotes and inner brackets."""
    items, depth, quote, start = list[str](), 0, "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and text[start:position].rstrip()[-1:] in ("", ":", ",", "[", "{"):
            quote = letter  # elsewhere it is an apostrophe
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            items.append(text[start:position].strip())
            start = position + 1
        if depth < 0:
            break
    if depth or quote:
        raise _error(f"{text!r} does not close what it opens", line, where)
    last = text[start:].strip()
    if "" in items:
        raise _error(f"there is nothing between two commas of {text!r}", line, where)
    return [*items, *([last] if last else [])]


def _error(what: str, line: _Line, where: str) -> ConfigError:
    return ConfigError(
        what,
        where=f"{where}:{line.number}",
        fix='write plain "key: value" lines and "- item" lists; quote other text',
    )
