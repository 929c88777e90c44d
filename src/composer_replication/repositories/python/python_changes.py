"""Changes to Python source that make a task: a body that is removed, or one small mistake.

    source = PythonSource(text)
    for symbol in source.symbols():
        removed = deletion(source, symbol)              # edits, or None
        mistakes = list(mutations(source, symbol.node))
    changed = apply_edits(text, removed)

Positions come from the syntax tree: lines end at "\\n" only, as for the parser (str.splitlines also
ends them at form feeds), and a definition's own position leaves out its decorators.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from composer_replication.repositories.edits import Edit

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

STUB = "raise NotImplementedError"
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Mod: "//",
}
_STUBS = frozenset(("overload", "abstractmethod"))
_LARGEST = 1000
_NOT = re.compile(rb"not\s*")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function, method or class, by its qualified name: "Cart.total"."""

    name: str
    node: Definition

    def body_lines(self) -> range:
        """The lines of its body, without the docstring."""
        body = _body(self.node)
        return range(body[0].lineno, (body[-1].end_lineno or 0) + 1) if body else range(0)


class PythonSource:
    """A module's text with its syntax tree; raises SyntaxError if it does not parse."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in self.data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def start(self, node: ast.expr | ast.stmt) -> int:
        """The offset of a node's first byte."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        """The offset behind a node's last byte."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt) -> str:
        """A node as it is written."""
        return self.data[self.start(node) : self.end(node)].decode()

    def symbols(self) -> list[Symbol]:
        """The functions and classes of the module, and the methods of its classes."""
        found: list[Symbol] = []

        def walk(parent: ast.AST, prefix: str) -> None:
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    found.append(Symbol(prefix + node.name, node))
                    if isinstance(node, ast.ClassDef):
                        walk(node, f"{prefix}{node.name}.")
                elif isinstance(node, ast.If | ast.Try | ast.With):
                    walk(node, prefix)

        walk(self.tree, "")
        return found


def deletion(source: PythonSource, symbol: Symbol) -> list[Edit] | None:
    """Replace the body of a function, or of each method of a class, by NotImplementedError.

    Signatures and docstrings stay, so the rest still imports. None where there is nothing to
    remove: a body of one line, a stub, a class with fewer than two methods.
    """
    if isinstance(symbol.node, ast.ClassDef):
        methods = [
            child
            for child in symbol.node.body
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        edits = [edit for method in methods if (edit := _body_edit(source, method)) is not None]
        return edits if len(edits) >= 2 else None
    if len(symbol.body_lines()) < 2:
        return None
    edit = _body_edit(source, symbol.node)
    return None if edit is None else [edit]


def mutations(source: PythonSource, function: Definition) -> Iterator[tuple[str, int, list[Edit]]]:
    """Each single small mistake in a function: its kind, its line, its edits."""
    for node in ast.walk(function):
        if isinstance(node, ast.expr | ast.stmt):
            kind, edits = _mutation(source, node)
            if edits:
                yield kind, node.lineno, edits


def _mutation(source: PythonSource, node: ast.expr | ast.stmt) -> tuple[str, list[Edit]]:
    """What kind of mistake a node allows, and its edits; none for most nodes."""

    def replaced(text: str) -> list[Edit]:
        return [Edit(source.start(node), source.end(node), text)]

    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in _COMPARISONS
        ):
            return "comparison", [
                Edit(source.end(left), source.start(right), f" {_COMPARISONS[type(operator)]} ")
            ] if _adjacent(source, left, right) else []
        case ast.BoolOp(op=operator, values=[left, right]) if _adjacent(source, left, right):
            word = "or" if isinstance(operator, ast.And) else "and"
            return "boolean", [Edit(source.end(left), source.start(right), f" {word} ")]
        case ast.UnaryOp(op=ast.Not()):
            word = _NOT.match(source.data, source.start(node))
            return "boolean", [Edit(source.start(node), word.end(), "")] if word else []
        case ast.Constant(value=bool() as value):
            return "constant", replaced(str(not value))
        case ast.Constant(value=int() as value) if abs(value) < _LARGEST:
            return "constant", replaced(str(value + 1))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            text = isinstance(left, ast.Constant | ast.JoinedStr)
            return "arithmetic", [
                Edit(source.end(left), source.start(right), f" {_ARITHMETIC[type(operator)]} ")
            ] if not text and _adjacent(source, left, right) else []
        case ast.Call(args=[first, second]) if not isinstance(first, ast.Starred) and not (
            isinstance(second, ast.Starred)
        ):
            return "arguments", _swap(source, first, second)
        case ast.AugAssign() | ast.Assign():
            return "statement", replaced("pass")
        case ast.Expr(value=ast.Call()):
            return "statement", replaced("pass")
        case ast.If(test=ast.Name() | ast.Call() | ast.Attribute() as test):
            edit = Edit(source.start(test), source.end(test), f"not ({source.text(test)})")
            return "boolean", [edit]
        case _:
            return "", []


def _swap(source: PythonSource, first: ast.expr, second: ast.expr) -> list[Edit]:
    """Two arguments in the wrong order."""
    left, right = source.text(first), source.text(second)
    if left == right or "\n" in left + right:
        return []
    return [
        Edit(source.start(first), source.end(first), right),
        Edit(source.start(second), source.end(second), left),
    ]


def _adjacent(source: PythonSource, left: ast.expr, right: ast.expr) -> bool:
    """Whether only an operator stands between two operands: no parenthesis, comment or new line."""
    between = source.data[source.end(left) : source.start(right)]
    return not set(b"()#\n\\") & set(between)


def _body(node: Definition) -> list[ast.stmt]:
    """The statements of a definition without its docstring."""
    match node.body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
        case body:
            return body


def _body_edit(source: PythonSource, node: Function) -> Edit | None:
    """The edit that empties a function; None for a stub, or a body on the line of its `def`."""
    body = _body(node)
    if not body or body[0].lineno == node.lineno or _STUBS & set(_decorators(node)):
        return None
    first: ast.expr | ast.stmt = body[0]
    start = source.start(first)
    if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
        first.decorator_list
    ):
        start = source.start(first.decorator_list[0]) - 1  # with its "@"
    text = source.data[start : source.end(body[-1])].decode()
    return None if text.strip() == STUB else Edit(start, source.end(body[-1]), STUB)


def _decorators(node: Function) -> Iterator[str]:
    for decorator in node.decorator_list:
        match decorator:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case _:
                pass
