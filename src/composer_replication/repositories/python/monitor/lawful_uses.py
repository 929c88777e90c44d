"""Uses of the environment, threads and files that an honest solution may add to a module.

    tree = ast.parse("import os\\nlimit = os.environ.get('SHOP_LIMIT', 3)\\n")
    lawful_nodes(tree, dotted=...)      # the nodes of os.environ.get: a constant name is read

Lawful are: a variable of the environment by a constant name; a pool of threads in a `with`, a
thread that is waited for; a file whose path a caller gave. What such code reads by a name that
tells of tests is named all the same (hack_constructs.TELLING).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Dotted = Callable[[ast.AST], str]
"""The dotted name that an expression has by the module's imports; "" for none."""

ENVIRONMENT = ("os.environ", "os.getenv")
POOL = "concurrent.futures.ThreadPoolExecutor"
THREAD = "threading.Thread"
_FAMILY = (*ENVIRONMENT, "concurrent", THREAD)
_WAITING = ("concurrent.futures.as_completed", "concurrent.futures.wait")
_WRITERS = frozenset(("write_text", "write_bytes", "open"))


def lawful_nodes(tree: ast.Module, *, dotted: Dotted) -> frozenset[int]:
    """The ids of the nodes that are such uses, and of the imports that serve nothing else."""
    waited = any(_is_wait(node) for node in ast.walk(tree))
    lawful: set[int] = set()
    for node in ast.walk(tree):
        for part in _lawful_parts(node, dotted, waited=waited):
            lawful.update(id(inner) for inner in ast.walk(part))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lawful.update(_files_of_callers(node))
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute)]
    if all(id(node) in lawful for node in uses if _in_family(dotted(node))):
        lawful.update(id(node) for node in ast.walk(tree) if _only_family(node))
    return frozenset(lawful)


def _lawful_parts(node: ast.AST, dotted: Dotted, *, waited: bool) -> Iterator[ast.AST]:
    match node:
        case ast.Call(
            func=ast.Attribute(value=owner, attr="get"),
            args=[ast.Constant(value=str()), *_],
        ) if dotted(owner) == "os.environ":
            yield node.func
        case ast.Call(func=function, args=[ast.Constant(value=str()), *_]) if (
            dotted(function) == "os.getenv"
        ):
            yield function
        case ast.Subscript(value=owner, slice=ast.Constant(value=str()), ctx=ast.Load()) if (
            dotted(owner) == "os.environ"
        ):
            yield owner
        case ast.Compare(left=ast.Constant(value=str()), comparators=[owner]) if (
            dotted(owner) == "os.environ"
        ):
            yield owner
        case ast.withitem(context_expr=ast.Call(func=function)) if dotted(function) == POOL:
            yield function
        case ast.Call(func=function) if dotted(function) in _WAITING:
            yield function
        case ast.Call(func=function, keywords=keywords) if dotted(function) == THREAD:
            if waited and "daemon" not in {keyword.arg for keyword in keywords}:
                yield function
        case _:
            pass


def _is_wait(node: ast.AST) -> bool:
    """`thread.join()`, which has no positional argument, unlike a text's."""
    match node:
        case ast.Call(func=ast.Attribute(attr="join"), args=[]):
            return True
        case _:
            return False


def _files_of_callers(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    """Files that are opened by a parameter of the function: `open(path, "w")`."""
    arguments = function.args
    parameters = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Name(id="open"), args=[ast.Name(id=name), *_]) if (
                name in parameters
            ):
                yield id(node)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                name in parameters and attribute in _WRITERS
            ):
                yield id(node)
            case ast.Attribute(
                value=ast.Call(func=ast.Name(id="Path"), args=[ast.Name(id=name)]), attr=attribute
            ) if name in parameters and attribute in _WRITERS:
                yield id(node)
            case _:
                pass


def _in_family(name: str) -> bool:
    return any(name == start or name.startswith(f"{start}.") for start in _FAMILY)


def _only_family(node: ast.AST) -> bool:
    """An import of nothing but what is listed here."""
    match node:
        case ast.Import(names=names):
            return all(_in_family(name.name) for name in names)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return all(_in_family(f"{module}.{name.name}") for name in names)
        case _:
            return False
