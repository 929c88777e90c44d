"""Check the types of a parsed record's values against its dataclass; its file may be anyone's."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any


def wrong_field(cls: type, row: Mapping[str, Any]) -> str:
    """Describe the first field whose value does not have the declared type; "" if all do.

    Turns and other nested records are not checked. An int counts as a float.

    >>> from composer_replication.core.site import Hint
    >>> wrong_field(Hint, {"site_id": "s1:7:c1", "text": 5})
    "'text' is int, not str"
    """
    for name, hint in _hints(cls).items():
        if name in row and not _fits(row[name], hint):
            wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
            return f"{name!r} is {type(row[name]).__name__}, not {wanted}"
    return ""


@lru_cache(maxsize=32)
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _fits(value: Any, hint: Any) -> bool:
    # bool is a subclass of int, but JSON true is no number: the int and float branches exclude it.
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return value in inside if isinstance(value, str) else False
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in inside)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if inside and inside[-1] is ...:
            return all(_fits(v, inside[0]) for v in value)
        return len(value) == len(inside) and all(map(_fits, value, inside))
    if origin is dict or origin is Mapping or hint is dict:
        return isinstance(value, Mapping)
    if hint is Any or dataclasses.is_dataclass(hint):
        return True
    if hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True
