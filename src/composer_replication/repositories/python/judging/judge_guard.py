"""Inside the judge's sandbox: what watches the interpreter that tests and tested code share.

    changed = track_members(known)          # functions of pytest, unittest, builtins
    see_operand = track_operands(...)       # what the tests compare
    track_events(...)                       # an audit hook: frames, garbage, processes, code

A file by itself (standard library and pytest), imported by judge_launcher.py before any code of
the repository. Everything is kept in closures: no name of this module leads to the record. Each
watcher notes what the original does (`known` is None), and then reports only what it never did.
None of it is proof, because frames reach everything in one interpreter; it is a fence that the
known tricks do not climb. Where values are plain, call_replay.py judges without a shared
interpreter.
"""

from __future__ import annotations

import ast
import gc
import importlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

Report = Callable[[str], None]
Known = frozenset[str] | None

CORE = ("_pytest.python", "_pytest.runner", "_pytest.reports", "_pytest.unittest", "_pytest.raises")
CORE += (
    "_pytest.assertion",
    "_pytest.assertion.util",
    "_pytest.assertion.rewrite",
    "_pytest.nodes",
)
CORE += ("pluggy._callers", "pluggy._hooks", "builtins", "operator", "unittest.case", "pytest")
"""Compared before and after every test; the rest of WIDE after the collection and at the end."""
WIDE = ("os", "sys", "json", "hmac", "hashlib", "functools", "importlib", "inspect", "linecache")
WIDE += ("importlib._bootstrap", "importlib._bootstrap_external", "traceback", "math", "re")
WIDE += ("_pytest", "pluggy", "unittest", "threading", "warnings", "contextlib", "collections")
_SOFT = frozenset(
    f"sys.{name}"
    for name in ("stdin", "stdout", "stderr", "displayhook", "excepthook", "unraisablehook")
) | {"sys.last_value", "sys.last_type", "sys.last_traceback", "sys.last_exc", "builtins._"}
_SOFT |= {"threading.excepthook", "warnings._showwarnmsg_impl", "Config._getini_unknown_type"}
"""What pytest itself replaces while it runs."""
_EVENTS = ("os.", "gc.", "ctypes.", "socket.", "subprocess.", "signal.", "code.", "cpython.")
_EVENTS += ("marshal.", "mmap.", "shutil.", "function.__new__", "pty.", "syslog.")
_EVENTS += ("sys._", "sys.set", "sys.add", "sys.excepthook", "sys.unraisablehook", "sys.monitoring")
_LAWFUL = frozenset(("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv"))
_FRAMES = frozenset(("tb_frame", "gi_frame", "cr_frame", "ag_frame", "f_code", "__code__"))
_OFTEN = ("sys._getframe", "exec", "compile", "getattr ", "setattr ", "code.", "marshal.")
"""What the standard library itself does all the time."""
_FOR_OTHERS = ("/inspect.py", "/traceback.py", "/runpy.py", "/code.py", "/timeit.py", "/bdb.py")
"""Where it does so for its caller."""
_OPERATORS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")
_OPERATORS += ("__bool__", "__len__", "__instancecheck__", "__class__", "__sub__", "__rsub__")
_PLAIN = frozenset((int, float, str, bytes, bool, type(None), complex, range, type, slice))
_HOLDERS = frozenset((list, tuple, set, frozenset))
_DEPTH, _ITEMS, _MOST = 4, 500, 5000
_FLAGS, _CHANGEABLE = type.__dict__["__flags__"].__get__, 1 << 9
"""A class that Python code made may get another `__eq__` later: it is looked at every time."""
_IDENTITY, _referents = object.__eq__, gc.get_referents
_NO_VALUES = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, CodeType)


def track_members(known: Known, seen: set[str]) -> Callable[[bool], str]:
    """Note the members of the modules that judge; the check says which one was replaced since.

    The check's argument is whether to compare all of them, or those of CORE alone.
    """

    rows: list[tuple[Any, ...]] = []

    def add_members(name: str) -> None:
        module = importlib.import_module(name)
        owners: list[Any] = [module]
        owners += [v for v in vars(module).values() if type(v) is type and v.__module__ == name]
        for owner in owners:
            place = vars(owner)
            for key, value in list(place.items()):
                if callable(value) or isinstance(value, staticmethod | classmethod | property):
                    inner = getattr(value, "__func__", None) or getattr(value, "fget", None)
                    inner = value if inner is None else inner
                    code = getattr(inner, "__code__", None)
                    defaults = getattr(inner, "__defaults__", None)
                    label = f"{owner.__name__}.{key}"
                    rows.append((place, key, label, value, inner, code, defaults))

    tops = tuple(f"{name}." for name in ("_pytest", "pluggy", "unittest"))
    for name in CORE:
        add_members(name)
    names = [n for n in list(sys.modules) if n in WIDE or n.startswith(tops)]
    core = list(rows)
    for name in names:
        if name not in CORE:
            add_members(name)

    def changed(thorough: bool) -> str:
        for place, key, label, value, inner, code, defaults in rows if thorough else core:
            if place.get(key) is value and (
                code is None or (inner.__code__ is code and inner.__defaults__ is defaults)
            ):
                continue
            if label not in _SOFT:
                seen.add(label)
                if known is not None and label not in known:
                    return f"{label} was replaced"
        return ""

    return changed


def track_operands(
    known: Known, seen: set[str], *, lawful: Callable[[str], bool], report: Report
) -> Callable[[Any], Any]:
    """A function that looks at what a test compares and returns it.

    A value whose class answers a comparison with code of the repository, or of a package that is
    not pytest, is reported, unless the original's tests met the same class; so is one that a value
    holds which compares what it holds.
    """
    checked: dict[type, str] = {}
    reported: set[str] = set()

    def decides(kind: type) -> str:
        if kind in checked:
            return checked[kind]
        name = _decides(kind, lawful) or _decides(type(kind), lawful)
        if not _FLAGS(kind) & _CHANGEABLE:
            checked[kind] = name
        return name

    def see_operand(value: Any) -> Any:
        waiting, looked, left = [(value, 0)], set[type](), _MOST
        while waiting and left:
            item, depth = waiting.pop()
            kind, left = type(item), left - 1
            if kind in _PLAIN:
                continue
            if kind not in looked:
                looked.add(kind)
                if name := decides(kind):
                    seen.add(name)
                    if known is not None and name not in known and name not in reported:
                        reported.add(name)
                        report(f"a test compares a {name}, which decides itself what it equals")
            if depth < _DEPTH:
                waiting += [(held, depth + 1) for held in _held(item, kind)]
        return value

    return see_operand


def _held(value: Any, kind: type) -> list[Any]:
    """What a value compares when it is compared: its items, or what a library's object holds."""
    if kind in _HOLDERS:
        return list(value)[:_ITEMS]
    if kind is dict:
        return [part for row in list(value.items())[:_ITEMS] for part in row]
    if next(place for base in type.mro(kind) if (place := vars(base).get("__eq__"))) is _IDENTITY:
        return []
    return [held for held in _referents(value)[:_ITEMS] if not issubclass(type(held), _NO_VALUES)]


def _decides(kind: type, lawful: Callable[[str], bool]) -> str:
    """The name of a class that answers comparisons with code of the repository; else ""."""
    if kind in (weakref.ProxyType, weakref.CallableProxyType):
        return "weakref.proxy"  # which lets something else answer
    made = "__dataclass_fields__" in vars(kind)
    for base in type.mro(kind):
        for name in _OPERATORS:
            value = vars(base).get(name)
            value = getattr(value, "fget", None) or value
            code = getattr(value, "__code__", None)
            if code is None:
                decides = value is not None and not _built_in(value, name, base)
            else:
                decides = not (made and code.co_filename == "<string>")
                decides = decides and not lawful(code.co_filename)
            if decides:
                return f"{kind.__module__}.{kind.__qualname__}"
    return ""


def _built_in(value: Any, name: str, owner: type) -> bool:
    """Whether a method without Python code is the one that C gave its class, or a base of it."""
    return (
        type(value) in (WrapperDescriptorType, MethodDescriptorType, GetSetDescriptorType)
        and value.__name__ == name
        and value.__objclass__ in type.mro(owner)
    )


class OperandLooks(ast.NodeTransformer):
    """Sends each operand of a comparison, and each argument of an assert method, through a look.

    The look is a constant of the code, because a name could be bound to something else.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def _look(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Starred | ast.Constant):
            return node
        mark = ast.Constant(self._mark)  # alone, the compiler would warn that a text is called
        look = ast.IfExp(ast.Constant(True), mark, mark)
        return ast.copy_location(ast.Call(look, [node], []), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Both sides of ==, in, < and the like."""
        self.generic_visit(node)
        node.left = self._look(node.left)
        node.comparators = [self._look(operand) for operand in node.comparators]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`self.assertEqual(a, b)`, `isinstance(a, b)`."""
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(attr=name) | ast.Name(id=name) if (
                name.lower().startswith("assert") or name == "isinstance"
            ):
                node.args = [self._look(argument) for argument in node.args]
            case _:
                pass
        return node


def with_constant(code: CodeType, mark: str, value: Any) -> CodeType:
    """The code with a value in the place of a marked constant, also in all that it defines."""
    constants = tuple(
        with_constant(constant, mark, value)
        if isinstance(constant, CodeType)
        else value
        if constant == mark
        else constant
        for constant in code.co_consts
    )
    return code.replace(co_consts=constants)


def track_events(
    known: Known,
    seen: set[str],
    *,
    guarded: frozenset[str],
    library: tuple[str, ...],
    secret: tuple[str, ...],
    report: Report,
) -> Callable[[], None]:
    """Add an audit hook; the returned function switches it on.

    An event counts if its nearest frame outside of the standard library (`library`) is code of a
    guarded file, or code without a file. `secret` are the beginnings of paths that no tested code
    needs to open: tests, /proc, the judge.
    """
    on, busy = [False], [False]
    get_frame = sys._getframe

    def concerns(event: str, arguments: tuple[Any, ...]) -> str:
        if event.startswith("object.__"):
            name = str(arguments[1])
            return f"{event[9:-2]} {name}" if name in _FRAMES or event[9] != "g" else ""
        if event == "open":
            path = arguments[0]
            text = os.fsdecode(path) if type(path) in (str, bytes) else ""
            full = text if text.startswith("/") else f"{os.getcwd()}/{text}"
            return f"opens {text}" if text and full.startswith(secret) else ""
        if event in ("compile", "exec"):
            return event
        return event if event.startswith(_EVENTS) and event not in _LAWFUL else ""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not on[0] or busy[0]:
            return
        busy[0] = True  # asking for a frame, and for its code, are events of their own
        try:
            what = concerns(event, arguments)
            caller = _caller(get_frame(1), what, guarded, library) if what else ""
            if not caller:
                return
            seen.add(f"{what} in {caller}")
            if known is not None and f"{what} in {caller}" not in known:
                report(f"{what} in {caller}")
        finally:
            busy[0] = False

    sys.addaudithook(hook)

    def start() -> None:
        on[0] = True

    return start


def _caller(
    frame: FrameType | None, what: str, guarded: frozenset[str], library: tuple[str, ...]
) -> str:
    """ "cart.py:total" if the nearest frame outside of the library is the player's; else "".

    Importing is lawful whatever the imported module does, and so is what the library does inside
    (a namedtuple compiles code and asks for a frame), except where it does so for its caller.
    """
    direct = frame
    while frame is not None:
        name = frame.f_code.co_filename
        if name in guarded:
            asker = direct.f_code.co_filename if direct is not None else ""
            inside = asker != name and (
                what == "getattr __code__" or not asker.endswith(_FOR_OTHERS)
            )
            if inside and what.startswith(_OFTEN):
                return ""
            return f"{os.path.basename(name)}:{frame.f_code.co_name}"
        if name.startswith("<frozen importlib"):
            return ""
        if not name.startswith(("<frozen ", *library)):
            generated = not name.startswith("/") and _below(frame.f_back, guarded)
            return f"{name}:{frame.f_code.co_name}" if generated else ""
        frame = frame.f_back
    return ""


def _below(frame: FrameType | None, guarded: frozenset[str]) -> bool:
    """Whether code of a guarded file called this frame, directly or not."""
    while frame is not None:
        if frame.f_code.co_filename in guarded:
            return True
        frame = frame.f_back
    return False


def compiled_codes(code: CodeType) -> Iterable[CodeType]:
    """A code object and all that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from compiled_codes(constant)
