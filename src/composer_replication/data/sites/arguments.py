"""Check the arguments of a call against the JSON Schema of its tool, without ever guessing.

    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    find_misfit({"path": 3}, schema).problem                   -> "path: 3 is not a string"
    find_misfit({}, {"type": "object", "not": {}}).unread      -> "not"

It supports the keywords that tools use: type, properties, required, additionalProperties, items,
enum, const, anyOf, allOf, bounds, and `$ref` inside the schema. Any other keyword could forbid
anything, so it is reported as unread and the question stays open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Keywords that forbid nothing. "format" and "pattern" are not among them: some validators enforce
# them, so they are reported as unread.
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
_OBJECT = (dict, Mapping)  # dict first: isinstance is much faster on it than on Mapping
_MAX_DEPTH = 60
_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Misfit:
    """The first problem of some arguments, and the unsupported keywords; both "" if all is well.

    A problem counts even if other keywords were not read.
    """

    problem: str = ""
    unread: str = ""


def find_misfit(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Misfit:
    """Find the first problem of a call's arguments under a JSON Schema of an object.

    >>> schema = {"properties": {"path": {}}, "required": ["path"], "additionalProperties": False}
    >>> find_misfit({"path": "a.py"}, schema)
    Misfit(problem='', unread='')
    >>> find_misfit({}, schema).problem, find_misfit({"path": "a", "x": 1}, schema).problem
    ("'path' is missing", "there is no argument 'x'")
    """
    misfits = _check(arguments, schema, at="", root=schema, depth=0)
    if not misfits:
        return _FITS
    problem = next((misfit.problem for misfit in misfits if misfit.problem), "")
    return Misfit(
        problem=problem,
        unread=", ".join(dict.fromkeys(misfit.unread for misfit in misfits if misfit.unread)),
    )


_FITS = Misfit()


def _check(
    value: Any, schema: Any, *, at: str, root: Mapping[str, Any], depth: int
) -> list[Misfit]:
    if schema is True or schema == {}:
        return []
    if schema is False:
        return [Misfit(problem=_describe_value(at, value, "is not allowed"))]
    if not isinstance(schema, _OBJECT) or depth > _MAX_DEPTH:
        return [Misfit(unread="a schema that is no object" if depth <= _MAX_DEPTH else "nesting")]
    cursor, misfits = _SchemaCursor(at, root, depth + 1), list[Misfit]()
    for keyword, expected in schema.items():
        if check := _CHECKS.get(keyword):
            misfits += check(value, expected, schema, cursor)
        elif keyword not in _SILENT:
            misfits.append(Misfit(unread=str(keyword)))
    return misfits


@dataclass(frozen=True, slots=True)
class _SchemaCursor:
    at: str
    root: Mapping[str, Any]
    depth: int

    def check(self, value: Any, schema: Any, name: str = "") -> list[Misfit]:
        return _check(
            value,
            schema,
            at=f"{self.at}.{name}".strip(".") if name else self.at,
            root=self.root,
            depth=self.depth,
        )


def _describe_value(at: str, value: Any, problem: str) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
    return f"{at}: {text} {problem}" if at else f"{text} {problem}"


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


def _check_type(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    names = expected if isinstance(expected, list) else [expected]
    if not names or not all(isinstance(name, str) and name in _IS for name in names):
        return [Misfit(unread="type")]
    if any(_IS[name](value) for name in names):
        return ()
    return [
        Misfit(
            problem=_describe_value(
                cursor.at,
                value,
                f"is not {' or '.join(('an ' if n[0] in 'aio' else 'a ') + n for n in names)}",
            )
        )
    ]


def _plainly_fits(value: Any, schema: Any) -> bool:
    """Whether a schema demands only a type and the value has it: a fast path for most arguments."""
    return (
        isinstance(schema, dict)
        and schema.keys() <= _TYPE_ALONE
        and str(schema.get("type")) in _IS
        and _IS[str(schema["type"])](value)
    )


def _check_properties(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(expected, _OBJECT):
        return [Misfit(unread="properties")]
    misfits = list[Misfit]()
    if isinstance(value, _OBJECT):
        for name, inner in expected.items():
            if name in value and not _plainly_fits(value[name], inner):
                misfits += cursor.check(value[name], inner, str(name))
    return misfits


def _check_required(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(expected, list):
        return [Misfit(unread="required")]
    missing = [name for name in expected if name not in value] if isinstance(value, _OBJECT) else []
    return [
        Misfit(problem=f"{cursor.at}: " * bool(cursor.at) + f"{name!r} is missing")
        for name in missing
    ]


def _check_additional(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    properties = schema.get("properties", {})
    if (
        not isinstance(value, _OBJECT)
        or not isinstance(properties, _OBJECT)
        or "patternProperties" in schema
    ):
        return ()  # patternProperties is itself reported as unread
    extra = [name for name in value if name not in properties]
    if expected is False:
        return [
            Misfit(problem=f"{cursor.at}: " * bool(cursor.at) + f"there is no argument {name!r}")
            for name in extra
        ]
    return [misfit for name in extra for misfit in cursor.check(value[name], expected, str(name))]


def _check_items(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    if isinstance(expected, list):
        return [Misfit(unread="items")]
    items = enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [
        misfit for number, item in items for misfit in cursor.check(item, expected, f"[{number}]")
    ]


def _check_enum(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(expected, list):
        return [Misfit(unread="enum")]
    if any(_json_equal(value, choice) for choice in expected):
        return ()
    choices = ", ".join(
        json.dumps(choice, ensure_ascii=False, default=str) for choice in expected[:8]
    )
    return [Misfit(problem=_describe_value(cursor.at, value, f"is none of {choices}"))]


def _check_const(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    return _check_enum(value, [expected], schema, cursor)


def _json_equal(left: Any, right: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _check_any_of(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    if not isinstance(expected, list) or not expected:
        return [Misfit(unread="anyOf")]
    misfits_by_choice = [cursor.check(value, choice) for choice in expected]
    if not all(misfits_by_choice):
        return ()
    undecided = [
        misfit
        for misfits in misfits_by_choice
        if not any(m.problem for m in misfits)
        for misfit in misfits
    ]
    return undecided or [
        Misfit(problem=_describe_value(cursor.at, value, "fits none of its alternatives"))
    ]


def _check_all_of(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    return [
        misfit
        for choice in (expected if isinstance(expected, list) else ())
        for misfit in cursor.check(value, choice)
    ]


def _check_ref(
    value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
) -> Iterable[Misfit]:
    inner: Any = cursor.root
    path = str(expected)
    for key in path.removeprefix("#/").split("/") if path.startswith("#/") else ("",):
        inner = (
            inner.get(key.replace("~1", "/").replace("~0", "~"))
            if isinstance(inner, Mapping)
            else None
        )
    return [Misfit(unread="$ref")] if inner is None else cursor.check(value, inner)


def _check_bound(
    size: Callable[[Any], Any], is_violated: Callable[[Any, Any], bool], relation: str
) -> _Check:
    def read(
        value: Any, expected: Any, schema: Mapping[str, Any], cursor: _SchemaCursor
    ) -> Iterable[Misfit]:
        measured = size(value)
        if not _IS["number"](expected):
            return [Misfit(unread=relation)]
        violated = measured is not None and is_violated(measured, expected)
        return (
            [Misfit(problem=_describe_value(cursor.at, value, f"is {relation} {expected}"))]
            if violated
            else ()
        )

    return read


_Check = Callable[[Any, Any, Mapping[str, Any], _SchemaCursor], Iterable[Misfit]]


def _number(value: Any) -> float | None:
    return value if _IS["number"](value) else None


def _characters(value: Any) -> int | None:
    return len(value) if isinstance(value, str) else None


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, (list, tuple)) else None


_CHECKS: dict[str, _Check] = {
    "type": _check_type,
    "properties": _check_properties,
    "required": _check_required,
    "additionalProperties": _check_additional,
    "items": _check_items,
    "enum": _check_enum,
    "const": _check_const,
    "anyOf": _check_any_of,
    "allOf": _check_all_of,
    "$ref": _check_ref,
    "minimum": _check_bound(_number, lambda v, w: v < w, "below"),
    "maximum": _check_bound(_number, lambda v, w: v > w, "above"),
    "exclusiveMinimum": _check_bound(_number, lambda v, w: v <= w, "not above"),
    "exclusiveMaximum": _check_bound(_number, lambda v, w: v >= w, "not below"),
    "minLength": _check_bound(_characters, lambda v, w: v < w, "shorter than"),
    "maxLength": _check_bound(_characters, lambda v, w: v > w, "longer than"),
    "minItems": _check_bound(_length, lambda v, w: v < w, "shorter than"),
    "maxItems": _check_bound(_length, lambda v, w: v > w, "longer than"),
}
