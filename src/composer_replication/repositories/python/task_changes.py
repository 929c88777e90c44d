"""The changes of a module that could make tasks, with what a statement may say of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from composer_replication.repositories.python.python_changes import (
    Definition,
    PythonSource,
    Symbol,
    deletion,
    mutations,
)
from composer_replication.repositories.task_language import RemovedCode, SourceChange


def module_changes(text: str) -> Iterator[SourceChange]:
    """Each removed function, method and class, and each small mistake, in the order of the file;
    none of a template, or of another version's Python."""
    try:
        source = PythonSource(text)
    except (SyntaxError, ValueError):
        return
    for symbol in source.symbols():
        yield from _of_symbol(source, symbol)


def parses(text: str) -> bool:
    """Whether a text is a module.

    >>> parses("a = 1"), parses("a = ")
    (True, False)
    """
    try:
        compile(text, "module", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def code_lines(text: str) -> list[str]:
    """The lines of code without indentation and comments.

    >>> code_lines("def f():  # a\\n\\n    return 1\\n")
    ['def f():', 'return 1']
    """
    return [plain for line in text.splitlines() if (plain := line.split("#")[0].strip())]


def signature(node: Definition, name: str) -> str:
    """A definition's first line, as it would be written: "def total(self, tax: float)"."""
    if isinstance(node, ast.ClassDef):
        return f"class {name}"
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{word} {name}({ast.unparse(node.args)}){returned}"


def _of_symbol(source: PythonSource, symbol: Symbol) -> Iterator[SourceChange]:
    is_class = isinstance(symbol.node, ast.ClassDef)
    if edits := deletion(source, symbol):
        yield SourceChange(
            kind="class" if is_class else "function",
            symbol=symbol.name,
            detail="",
            edits=tuple(edits),
            lines=symbol.body_lines(),
            removed=_removed(symbol),
        )
    if is_class:
        return
    for detail, line, change in mutations(source, symbol.node):
        yield SourceChange(
            kind="bug", symbol=symbol.name, detail=detail, edits=tuple(change), lines=(line,)
        )


def _removed(symbol: Symbol) -> RemovedCode:
    is_class = isinstance(symbol.node, ast.ClassDef)
    bodies = "the bodies of its methods raise" if is_class else "its body raises"
    summary = (ast.get_docstring(symbol.node) or "").split("\n\n")[0].replace("\n", " ").strip()
    return RemovedCode(
        signature=signature(symbol.node, symbol.name),
        instead=f"{bodies} NotImplementedError",
        summary=summary,
    )
