"""Do the arguments of a call fit the JSON Schema of its tool? A small reader of schemas that never
guesses.

    misfit({"path": 3}, {"type": "object", "properties": {"path": {"type": "string"}}}).problem   -> "path: 3 is not a string"
    misfit({}, {"type": "object", "not": {}}).unread                                              -> "not"

It reads what tools write: type, properties, required, additionalProperties (true or false), items,
enum, const, anyOf, allOf, bounds and `$ref` inside the schema. A keyword that it does not read
could forbid anything, so it is named and the question stays open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# They describe and forbid nothing; "format" and "pattern" are no annotations to every validator, so
# they stand among the unread.
_SILENT = frozenset(
    (
        "$schema",
        "$id",
        "$defs",
        "definitions",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
    )
)
_TYPE_ALONE = _SILENT | {"type"}
_OBJECT = (dict, Mapping)  # a dict is known for one at once
_MAX_DEPTH = 60
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Misfit:
    """What is wrong with some arguments, and the keywords that were met and not read; both "" where
    everything fits.

    A problem that was found is one whatever was not read.
    """

    problem: str = ""
    unread: str = ""


def misfit(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Misfit:
    """The first problem of a call's arguments under a JSON Schema of an object.

    >>> schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"], "additionalProperties": False}
    >>> misfit({"path": "a.py"}, schema), misfit({}, schema).problem, misfit({"path": "a", "x": 1}, schema).problem
    (Misfit(problem='', unread=''), "'path' is missing", "there is no argument 'x'")
    """
    found = _look(arguments, schema, at="", root=schema, depth=0)
    if not found:
        return _FITS
    problem = next((one.problem for one in found if one.problem), "")
    return Misfit(
        problem=problem, unread=", ".join(dict.fromkeys(one.unread for one in found if one.unread))
    )


_FITS = Misfit()


def _look(value: Any, schema: Any, *, at: str, root: Mapping[str, Any], depth: int) -> list[Misfit]:
    if schema is True or schema == {}:
        return []
    if schema is False:
        return [Misfit(problem=_told(at, value, "is not allowed"))]
    if not isinstance(schema, _OBJECT) or depth > _MAX_DEPTH:
        return [Misfit(unread="a schema that is no object" if depth <= _MAX_DEPTH else "nesting")]
    spot, found = _SchemaCursor(at, root, depth + 1), list[Misfit]()
    for keyword, wanted in schema.items():
        if reader := _READERS.get(keyword):
            found += reader(value, wanted, schema, spot)
        elif keyword not in _SILENT:
            found.append(Misfit(unread=str(keyword)))
    return found


@dataclass(frozen=True, slots=True)
class _SchemaCursor:
    at: str
    root: Mapping[str, Any]
    depth: int

    def look(self, value: Any, schema: Any, name: str = "") -> list[Misfit]:
        return _look(
            value,
            schema,
            at=f"{self.at}.{name}".strip(".") if name else self.at,
            root=self.root,
            depth=self.depth,
        )


def _told(at: str, value: Any, what: str) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f"{at}: {text} {what}" if at else f"{text} {what}"


_IS: dict[str, Callable[[Any], bool]] = {
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": (
        lambda v: (
            not isinstance(v, bool)
            and (isinstance(v, int) or (isinstance(v, float) and v.is_integer()))
        )
    ),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "array": lambda v: isinstance(v, (list, tuple)),
    "object": lambda v: isinstance(v, _OBJECT),
    "null": lambda v: v is None,
}


def _type(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    names = wanted if isinstance(wanted, list) else [wanted]
    if not names or not all(isinstance(name, str) and name in _IS for name in names):
        return [Misfit(unread="type")]
    if any(_IS[name](value) for name in names):
        return ()
    return [
        Misfit(
            problem=_told(
                spot.at,
                value,
                f"is not {' or '.join(('an ' if n[0] in 'aio' else 'a ') + n for n in names)}",
            )
        )
    ]


def _plainly_fits(value: Any, schema: Any) -> bool:
    """Whether a schema names a type and asks for nothing else, and the value is of it: most
    arguments, in a tenth of the time."""
    return (
        isinstance(schema, dict)
        and schema.keys() <= _TYPE_ALONE
        and str(schema.get("type")) in _IS
        and _IS[str(schema["type"])](value)
    )


def _properties(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(wanted, _OBJECT):
        return [Misfit(unread="properties")]
    found = list[Misfit]()
    if isinstance(value, _OBJECT):
        for name, inner in wanted.items():
            if name in value and not _plainly_fits(value[name], inner):
                found += spot.look(value[name], inner, str(name))
    return found


def _required(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(wanted, list):
        return [Misfit(unread="required")]
    missing = [name for name in wanted if name not in value] if isinstance(value, _OBJECT) else []
    return [
        Misfit(problem=f"{spot.at}: " * bool(spot.at) + f"{name!r} is missing") for name in missing
    ]


def _additional(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    known = schema.get("properties", {})
    if (
        not isinstance(value, _OBJECT)
        or not isinstance(known, _OBJECT)
        or "patternProperties" in schema
    ):
        return ()  # the last is named as unread by itself
    more = [name for name in value if name not in known]
    if wanted is False:
        return [
            Misfit(problem=f"{spot.at}: " * bool(spot.at) + f"there is no argument {name!r}")
            for name in more
        ]
    return [one for name in more for one in spot.look(value[name], wanted, str(name))]


def _items(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    if isinstance(wanted, list):
        return [Misfit(unread="items")]
    items = enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [one for number, item in items for one in spot.look(item, wanted, f"[{number}]")]


def _enum(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(wanted, list):
        return [Misfit(unread="enum")]
    if any(_same(value, choice) for choice in wanted):
        return ()
    choices = ", ".join(
        json.dumps(choice, ensure_ascii=False, default=str) for choice in wanted[:8]
    )
    return [Misfit(problem=_told(spot.at, value, f"is none of {choices}"))]


def _const(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    return _enum(value, [wanted], schema, spot)


def _same(one: Any, other: Any) -> bool:
    """JSON's equality: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _any_of(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(wanted, list) or not wanted:
        return [Misfit(unread="anyOf")]
    tried = [spot.look(value, choice) for choice in wanted]
    if not all(tried):
        return ()
    open_ones = [one for found in tried if not any(f.problem for f in found) for one in found]
    return open_ones or [Misfit(problem=_told(spot.at, value, "fits none of its alternatives"))]


def _all_of(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    return [
        one
        for choice in (wanted if isinstance(wanted, list) else ())
        for one in spot.look(value, choice)
    ]


def _ref(
    value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
) -> Iterable[Misfit]:
    inner: Any = spot.root
    path = str(wanted)
    for key in path.removeprefix("#/").split("/") if path.startswith("#/") else ("",):
        inner = (
            inner.get(key.replace("~1", "/").replace("~0", "~"))
            if isinstance(inner, Mapping)
            else None
        )
    return [Misfit(unread="$ref")] if inner is None else spot.look(value, inner)


def _bound(size: Callable[[Any], Any], beyond: Callable[[Any, Any], bool], words: str) -> _Reader:
    def read(
        value: Any, wanted: Any, schema: Mapping[str, Any], spot: _SchemaCursor
    ) -> Iterable[Misfit]:
        measured = size(value)
        if not _IS["number"](wanted):
            return [Misfit(unread=words)]
        beyond_it = measured is not None and beyond(measured, wanted)
        return [Misfit(problem=_told(spot.at, value, f"is {words} {wanted}"))] if beyond_it else ()

    return read


_Reader = Callable[[Any, Any, Mapping[str, Any], _SchemaCursor], Iterable[Misfit]]


def _number(value: Any) -> float | None:
    return value if _IS["number"](value) else None


def _characters(value: Any) -> int | None:
    return len(value) if isinstance(value, str) else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, (list, tuple)) else None


_READERS: dict[str, _Reader] = {
    "type": _type,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "enum": _enum,
    "const": _const,
    "anyOf": _any_of,
    "allOf": _all_of,
    "$ref": _ref,
    "minimum": _bound(_number, lambda v, w: v < w, "below"),
    "maximum": _bound(_number, lambda v, w: v > w, "above"),
    "exclusiveMinimum": _bound(_number, lambda v, w: v <= w, "not above"),
    "exclusiveMaximum": _bound(_number, lambda v, w: v >= w, "not below"),
    "minLength": _bound(_characters, lambda v, w: v < w, "shorter than"),
    "maxLength": _bound(_characters, lambda v, w: v > w, "longer than"),
    "minItems": _bound(_length, lambda v, w: v < w, "shorter than"),
    "maxItems": _bound(_length, lambda v, w: v > w, "longer than"),
}
