"""Inside a sandbox, on the original: what do the tests do with the package, step by step?

A file by itself. One JSON object on stdin, one on the descriptor JUDGE_FD:

    {"tests": [...], "import_root": ".", "files": ["shop/cart.py"]}
 -> {"scripts": {"tests/test_cart.py::test_cart": "[(1, 'at', 'shop.cart', 'Cart'), ...]"}}

A script is a literal, a list of steps; each has a number, which is the handle of what it gives:

    (1, "at", "shop.cart", "Cart")          # a name of a module
    (2, "call", 1j, "", (), {})             # Cart(); a handle among the arguments is imaginary
    (3, "call", 2j, "add", (5,), {})        # the method of an object
    (4, "get", 2j, "prices"), (5, "set", 2j, "prices", [])

Calls from outside of the package are steps, what the package does inside is not. Arguments are
plain values, handles, and values of the standard library that a call can make; a step with another
argument is left out, with those that need what it gives.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

LITERALS = (type(None), bool, int, str, bytes)
MOST_STEPS, LONGEST, DEPTH = 40, 20_000, 6
_GENERATOR, _VARARGS, _VARKEYWORDS, _OPTIMIZED, _ASYNC = 0x20, 0x04, 0x08, 0x01, 0x80 | 0x200
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Step = tuple[Any, ...]
PARTS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    datetime.timedelta: lambda v: (v.days, v.seconds, v.microseconds),
    datetime.date: lambda v: (v.year, v.month, v.day),
    datetime.time: lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    datetime.datetime: lambda v: (*v.timetuple()[:6], v.microsecond, v.tzinfo),
    datetime.timezone: lambda v: (v.utcoffset(None),),
    decimal.Decimal: lambda v: (str(v),),
    fractions.Fraction: lambda v: (v.numerator, v.denominator),
    range: lambda v: (v.start, v.stop, v.step),
    frozenset: lambda v: (list(v),),
    complex: lambda v: (v.real, v.imag),
    bytearray: lambda v: (bytes(v),),
}
"""The arguments that make a value of the standard library again."""


class NoHandleError(Exception):
    """A value that neither a literal nor a handle says."""


class HandleBook:
    """The steps of one test, and the handles of the objects that they gave."""

    def __init__(self, files: frozenset[str]) -> None:
        self.files = files
        self.steps: list[Step] = []
        self.earlier: list[Step] = []  # of the collection
        self.number = 0
        self.handles: dict[int, tuple[int, Any]] = {}
        self.codes: dict[CodeType, list[tuple[Any, str, Any]]] = {}
        self.loaded = 0

    def add(self, *step: Any) -> int:
        """Write a step down; its number."""
        self.number += 1
        self.steps.append((self.number, *step))
        return self.number

    def bind(self, value: Any, number: int) -> None:
        """From here on an object has a handle."""
        if type(value) not in LITERALS and type(value) is not float:
            self.handles.setdefault(id(value), (number, value))

    def start(self) -> None:
        """Begin the script of another test; what the collection made is kept."""
        if not self.earlier:
            self.earlier, self.kept = self.steps, dict(self.handles)
        self.steps, self.handles = [], dict(self.kept)

    def script(self) -> str:
        """The steps with those of the collection that they need; "" if there are too many."""
        needed = {n for step in self.steps for n in _numbers(step[2:])}
        before: list[Step] = []
        for step in reversed(self.earlier):
            if step[0] in needed or (step[1] != "at" and needed & set(_numbers(step[2:3]))):
                needed.update(_numbers(step[2:]))
                before.append(step)
        steps = [*before[::-1], *self.steps]
        text = repr(steps)
        return text if 0 < len(steps) <= MOST_STEPS and len(text) <= LONGEST else ""

    def encoded(self, value: Any, depth: int = 0) -> Any:
        """A value as a literal with imaginary numbers for handles."""
        kind = type(value)
        if kind in LITERALS or (kind is float and value - value == 0):
            return value
        if depth > DEPTH:
            raise NoHandleError
        if id(value) in self.handles:
            return complex(0, self.handles[id(value)][0])
        if kind is list or kind is tuple:
            return kind(self.encoded(item, depth + 1) for item in value)
        if kind is set and all(type(item) in LITERALS for item in value):
            return value
        if kind is dict:
            rows = [
                (self.encoded(k, depth + 1), self.encoded(v, depth + 1)) for k, v in value.items()
            ]
            return dict(rows)
        return complex(0, self._made(value, depth))

    def _made(self, value: Any, depth: int) -> int:
        """The handle of an object that no step has given yet."""
        kind = type(value)
        if (place := self.place_of(value)) is not None:
            number = self.add("at", *place)
        elif kind in PARTS:
            parts = self.encoded(PARTS[kind](value), depth + 1)
            number = self.add("call", self.encoded(kind), "", parts, {})
        elif isinstance(value, enum.Enum):
            number = self.add("get", self.encoded(kind), value.name)
        elif isinstance(value, tuple) and hasattr(kind, "_fields"):
            parts = self.encoded(tuple(value), depth + 1)
            number = self.add("call", self.encoded(kind), "", parts, {})
        else:
            number = self._attribute(value)
        self.bind(value, number)
        return number

    def _attribute(self, value: Any) -> int:
        """An object that is an attribute of one with a handle."""
        for number, owner in list(self.handles.values()):
            names = getattr(owner, "__dict__", None)
            for name, other in names.items() if type(names) is dict else ():
                if other is value and not name.startswith("_"):
                    return self.add("get", complex(0, number), name)
        raise NoHandleError

    def place_of(self, value: Any) -> tuple[str, str] | None:
        """The module and the name under which a class or a function can be found."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if type(module) is not str or type(name) is not str or "<" in name or module == "__main__":
            return None
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None)
        if file not in self.files and module.partition(".")[0] not in sys.stdlib_module_names:
            return None
        found: Any = loaded
        for part in name.split("."):
            found = getattr(found, part, None)
        return (module, name) if found is value else None

    def record(self, frame: FrameType) -> int:
        """Write down the call that a frame begins; 0 if it cannot be said."""
        code, before = frame.f_code, len(self.steps)
        if not code.co_flags & _OPTIMIZED or code.co_flags & _ASYNC or code.co_name[0] == "<":
            return 0
        try:
            number = self._record(frame, arguments_in(frame))
        except NoHandleError:
            number = 0
        if not number:
            del self.steps[before:]
            made = {step[0] for step in (*self.steps, *self.earlier)}
            self.handles = {k: row for k, row in self.handles.items() if row[0] in made}
        return number

    def _record(self, frame: FrameType, arguments: Arguments) -> int:
        (positional, named), code = arguments, frame.f_code
        first = positional[0] if positional else None
        if code.co_name == "__init__" and id(first) not in self.handles:
            positional, named = without_defaults(
                getattr(type(first), code.co_name), positional, named
            )
            number = self._call(type(first), "", positional[1:], named)
            self.bind(first, number)
            return number
        if code.co_name == "__init__" and self.steps and self.steps[-1][0] == self.handle_of(first):
            return 0  # the second half of the step before
        if code.co_name == "__new__" and isinstance(first, type):
            return self._call(first, "", positional[1:], named)
        for name, value in _attributes(first) if positional else ():
            if code in _codes_of(value):
                if isinstance(value, property) and len(positional) == 1:
                    return self.add("get", self.encoded(first), name)
                if isinstance(value, property):
                    return self.add("set", self.encoded(first), name, self.encoded(positional[1]))
                positional, named = without_defaults(value, positional, named)
                return self._call(first, name, positional[1:], named)
        for _, function in self.handles.values():
            if code in _codes_of(function) and _same_cells(function, frame):
                return self._call(function, "", *without_defaults(function, positional, named))
        for owner, name, value in self._found(code):
            if _same_cells(value, frame):
                positional, named = without_defaults(value, positional, named)
                if isinstance(owner, type):
                    return self._call(owner, name, positional, named)
                return self._call((owner.__name__, name), "", positional, named)
        return 0

    def _call(
        self, target: Any, name: str, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> int:
        if type(target) is tuple:
            place: Any = ("at", *target)
            known = [step[0] for step in (*self.earlier, *self.steps) if step[1:] == place]
            handle = complex(0, known[0] if known else self.add(*place))
        else:
            handle = self.encoded(target)
        if not isinstance(handle, complex):
            raise NoHandleError
        values = self.encoded(tuple(positional)), self.encoded(named)
        return self.add("call", handle, name, *values)

    def handle_of(self, value: Any) -> int:
        """The number of an object's handle; 0 if it has none."""
        return self.handles.get(id(value), (0, None))[0]

    def _found(self, code: CodeType) -> list[tuple[Any, str, Any]]:
        """Where the package's modules hold a function with this code."""
        modules = [
            m for m in list(sys.modules.values()) if getattr(m, "__file__", None) in self.files
        ]
        if self.loaded != len(modules) or code not in self.codes:
            self.loaded, self.codes = len(modules), {code: []}
            for module in modules:
                for owner in (module, *(v for v in vars(module).values() if isinstance(v, type))):
                    for name, value in list(vars(owner).items()):
                        for inner in _codes_of(value):
                            self.codes.setdefault(inner, []).append((owner, name, value))
        return self.codes[code]


def arguments_in(frame: FrameType) -> Arguments:
    """The arguments of a call that has just begun."""
    code, values = frame.f_code, frame.f_locals
    count, named_only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    positional = [values[name] for name in names[:count]]
    named = {name: values[name] for name in names[count : count + named_only]}
    place = count + named_only
    if code.co_flags & _VARARGS:
        positional += values[names[place]]
        place += 1
    if code.co_flags & _VARKEYWORDS:
        named.update(values[names[place]])
    return tuple(positional), named


def without_defaults(
    function: Any, positional: tuple[Any, ...], named: dict[str, Any]
) -> Arguments:
    """The arguments that are not the very objects of the function's defaults."""
    function = getattr(function, "__func__", function)
    code, defaults = getattr(function, "__code__", None), getattr(function, "__defaults__", None)
    others = getattr(function, "__kwdefaults__", None) or {}
    named = {name: v for name, v in named.items() if name not in others or others[name] is not v}
    if code is None or not defaults or len(positional) > code.co_argcount:
        return positional, named
    start = max(code.co_argcount - len(defaults), code.co_posonlyargcount)
    rows = zip(code.co_varnames[start:], positional[start:], strict=False)
    later = dict(rows)
    skipped = code.co_argcount - len(defaults)
    for name, value in list(later.items()):
        if value is defaults[code.co_varnames.index(name) - skipped]:
            del later[name]
    return positional[:start], {**later, **named}


def _numbers(value: Any) -> Iterator[int]:
    """The handles in a part of a step."""
    if type(value) is complex:
        yield int(value.imag)
    elif type(value) in (list, tuple):
        for item in value:
            yield from _numbers(item)
    elif type(value) is dict:
        yield from _numbers([*value.keys(), *value.values()])


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object's class, or a class itself, defines, by name."""
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    for kind in kinds:
        if kind is not object:
            for name, defined in list(vars(kind).items()):
                if not isinstance(defined, staticmethod):
                    yield name, defined


def _codes_of(value: Any) -> list[CodeType]:
    """The codes that a function has, with those that it wraps."""
    codes: list[CodeType] = []
    for _ in range(4):
        if isinstance(value, property):
            ways = (value.fget, value.fset)
            codes += [way.__code__ for way in ways if isinstance(way, types.FunctionType)]
        value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType):
            codes.append(value.__code__)
        value = getattr(value, "__dict__", {}).get("__wrapped__")
        if value is None:
            break
    return codes


def _same_cells(function: Any, frame: FrameType) -> bool:
    """Whether a function's free variables are those of a frame: closures share their code."""
    function = getattr(function, "__func__", function)
    cells = getattr(function, "__closure__", None) or ()
    if getattr(function, "__code__", None) is not frame.f_code:
        return not frame.f_code.co_freevars
    values = frame.f_locals
    for name, cell in zip(frame.f_code.co_freevars, cells, strict=True):
        try:
            if values.get(name) is not cell.cell_contents:
                return False
        except ValueError:
            return False
    return True


def follow(book: HandleBook) -> Callable[[FrameType, str, Any], None]:
    """A profile function that writes calls from outside of the package into a book."""
    active: list[FrameType] = []
    number = [0]
    begun: list[FrameType] = []

    def profile_call(frame: FrameType, event: str, value: Any) -> None:
        if event == "return" and active and frame is active[0]:
            active.clear()
            if number[0] and not frame.f_code.co_flags & _GENERATOR:
                book.bind(value, number[0])
        elif event == "call" and not active and frame.f_globals.get("__file__") in book.files:
            active.append(frame)
            number[0] = 0
            if frame.f_code.co_flags & _GENERATOR:
                if any(frame is other for other in begun):
                    return
                begun.append(frame)
            number[0] = book.record(frame)

    return profile_call


def serve_handles() -> None:
    """Run the tests under a profile function."""
    request = json.loads(sys.stdin.read())
    out = int(os.environ["JUDGE_FD"])
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.path[:1] = [os.path.normpath(f"/repo/{request['import_root']}"), "/repo", "/metadata"]
    os.chdir("/repo")
    import pytest

    book = HandleBook(frozenset(f"/repo/{path}" for path in request["files"]))
    profile_call = follow(book)
    scripts: dict[str, str] = {}

    class HandlePlugin:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            wanted = frozenset(request["tests"])
            items[:] = [item for item in items if item.nodeid in wanted]

        def pytest_runtest_logstart(self) -> None:
            book.start()
            sys.setprofile(profile_call)

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            sys.setprofile(None)
            scripts[nodeid] = book.script()

    files = sorted({name.partition("::")[0] for name in request["tests"]})
    quiet = ["-q", "--tb=no", "-p", "no:cacheprovider", "-o", "addopts="]
    sys.setprofile(profile_call)
    pytest.main([*quiet, *files], plugins=[HandlePlugin()])
    sys.setprofile(None)
    data = json.dumps({"scripts": {name: text for name, text in scripts.items() if text}}).encode()
    while data:
        data = data[os.write(out, data) :]
    os._exit(0)


if __name__ == "__main__":
    serve_handles()
