"""The names that a later version of a module adds, as stubs in the earlier one.

    with_stubs("def a(): ...\n", "def a(): ...\ndef b(): return 2\n")
    # the earlier text, and `def b(*_, **__): raise NotImplementedError`

A test file that imports a name which is not there yet cannot be collected. With stubs it can, and
its tests fail or pass by themselves: it is what the laziest player would write.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

_EXPORTS = "__all__"


def with_stubs(before: str, after: str) -> str:
    """The earlier text with a stub of each name that `after` adds to the module's top level.

    >>> print(with_stubs("a = 1\\n", "a = 1\\nclass B(Exception):\\n    code = 3\\n"))
    a = 1
    class B(Exception):
        pass
    """
    try:
        old, new = ast.parse(before), ast.parse(after)
    except (SyntaxError, ValueError):
        return before
    known = {name for name, _ in _bindings(old.body)}
    bases = known | set(dir(builtins))
    added: dict[str, str] = {}
    for name, node in _bindings(new.body):
        if name not in {*known, *added, _EXPORTS}:
            added[name] = _stub(name, node, bases=bases)
            if isinstance(node, ast.ClassDef):
                bases.add(name)
    if not added:
        return before
    if _EXPORTS in known:
        added[_EXPORTS] = f"{_EXPORTS} = [*{_EXPORTS}, {', '.join(map(repr, added))}]"
    return "\n".join([before.removesuffix("\n"), *added.values()])


def _bindings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Each name that statements bind in their own scope, with the statement."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.ImportFrom(module="__future__"):
                pass  # it has to stand at the top
            case ast.Import() | ast.ImportFrom():
                names = [a.asname or a.name.partition(".")[0] for a in node.names]
                yield from ((name, node) for name in names if name != "*")
            case ast.If() | ast.For() | ast.While():
                yield from _bindings([*node.body, *node.orelse])
            case ast.With():
                yield from _bindings(node.body)
            case ast.Try():
                handled = [inside for handler in node.handlers for inside in handler.body]
                yield from _bindings([*node.body, *handled, *node.orelse, *node.finalbody])
            case ast.Assign(targets=targets):
                inside = (n for target in targets for n in ast.walk(target))
                yield from ((n.id, node) for n in inside if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case _:
                pass


def _stub(name: str, node: ast.stmt, *, bases: set[str]) -> str:
    """The least that binds a name: a body that raises, an empty class or collection, None. A class
    keeps its bases, and an import stays, because neither says how anything is done."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return f"def {name}(*_, **__):\n    raise NotImplementedError"
        case ast.ClassDef():
            kept = [ast.unparse(base) for base in node.bases if _root(base) in bases]
            return f"class {name}({', '.join(kept)}):\n    pass".replace("()", "")
        case ast.Import() | ast.ImportFrom():
            return f"try:\n    {ast.unparse(node)}\nexcept ImportError:\n    {name} = None"
        case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign():
            return f"{name} = {_empty(node.value)}"
        case _:
            return f"{name} = None"


def _empty(value: ast.expr | None) -> str:
    """An empty collection in place of one, so that test files can be parametrised over it."""
    match value:
        case ast.List() | ast.ListComp():
            return "[]"
        case ast.Tuple():
            return "()"
        case ast.Dict() | ast.DictComp():
            return "{}"
        case ast.Set() | ast.SetComp():
            return "set()"
        case ast.Call(func=ast.Name(id="dict" | "frozenset" | "list" | "set" | "tuple" as kind)):
            return f"{kind}()"
        case _:
            return "None"


def _root(base: ast.expr) -> str:
    """The name that a base class is reached from; "" if it is no plain name."""
    while isinstance(base, ast.Attribute):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""
