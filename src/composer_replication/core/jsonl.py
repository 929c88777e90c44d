"""Read and write JSON lines: errors name file and line, and files are written atomically."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.files import atomic_writer


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Dump JSON, compact unless indented, with non-ASCII text as it is.

    A value with lone surrogates is dumped in ASCII, so that the file stays valid UTF-8.

    >>> dumps({"a": "é"})
    '{"a":"é"}'
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, separators=separators, indent=indent)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, separators=separators, indent=indent)
    return text


def json_strings(value: Any) -> Iterator[str]:
    """Yield every string of a JSON value in order, keys included, without recursion.

    >>> list(json_strings({"a": ["b", {"c": 1}]}))
    ['a', 'b', 'c']
    """
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            stack.extend(part for pair in reversed(list(item.items())) for part in reversed(pair))
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (line number from 1, parsed value) of every non-empty line; DataError for a bad one."""
    if not path.exists():
        raise DataError(
            f"no file {path}",
            fix="run the command that writes it first (recompose --help lists them in order)",
        )
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line.decode("utf-8"))
            # ValueError: not JSON, not UTF-8, or a number with too many digits; the other: nesting
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"line {number} is not JSON: {error}",
                    where=f"{path}:{number}",
                    fix="remove the line or write the file again",
                ) from error
            yield number, value


def write_lines(path: Path, values: Iterable[Any]) -> int:
    """Write one JSON value per line, atomically; returns how many."""
    count = 0
    with atomic_writer(path) as stream:
        for value in values:
            count += 1
            stream.write(dumps(value) + "\n")
    return count


def write_json(path: Path, value: Any) -> None:
    """Write one indented JSON value, atomically."""
    with atomic_writer(path) as stream:
        stream.write(dumps(value, indent=1) + "\n")
