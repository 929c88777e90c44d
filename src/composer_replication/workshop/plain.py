"""Whether a line that a player wrote can only compute: one statement that binds one name, in a
small part of Python.

    not_plain("depth = 3 + 4", name="depth")                  # ""
    not_plain("def add(a, b): return a + b", name="add")      # ""
    not_plain("depth = ().__class__", name="depth")           # "NotPlain: Attribute is not judged"

Plain code has no attributes, no imports, no names that lead to the interpreter, and no state
between two calls. So it cannot see who asks, what was asked before or what comes next, and it
evaluates to the same value everywhere. The line is parsed and never run here. Everything that is
not listed is forbidden, so the syntax of later Pythons is not judged until somebody allows it.
"""

from __future__ import annotations

import ast
import builtins

MAX_CHARS = 500
"""Longer lines are not judged: no task needs one, and the parser's stack is finite."""
_NAMES = """
ArithmeticError AssertionError Exception False IndexError KeyError None NotImplementedError
OverflowError RuntimeError True TypeError ValueError ZeroDivisionError abs all any bool dict
divmod enumerate filter float frozenset int isinstance len list map max min pow print range
reversed round set sorted str sum tuple zip
"""
BUILTINS = frozenset(_NAMES.split())
"""Built-in names that only compute: not `id` and `hash`, which differ from process to process, nor
any that takes a name as a string."""
# a console adds `_`, an honest name
_OTHER_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_")) - BUILTINS
_STATEMENTS = (
    ast.FunctionDef,
    ast.Return,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Pass,
    ast.Expr,
    ast.Raise,
    ast.Assert,
)
_EXPRESSIONS = (
    *(
        ast.Constant,
        ast.Name,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.IfExp,
        ast.Call,
        ast.keyword,
        ast.Starred,
    ),
    *(
        ast.Tuple,
        ast.List,
        ast.Set,
        ast.Dict,
        ast.Subscript,
        ast.Slice,
        ast.JoinedStr,
        ast.FormattedValue,
    ),
    *(
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
        ast.comprehension,
        ast.Lambda,
        ast.arguments,
        ast.arg,
    ),
)
_SIGNS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
_ALLOWED = (*_STATEMENTS, *_EXPRESSIONS, *_SIGNS)


def not_plain(line: str, *, name: str) -> str:
    """Why a line is not a plain statement that binds `name`, as the text of an error; "" if it is
    one."""
    problem = _line_problem(line, name)
    return f"NotPlain: {problem}" if problem else ""


def _line_problem(line: str, name: str) -> str:
    if len(line) > MAX_CHARS:
        return f"a line of more than {MAX_CHARS} characters is not judged"
    try:
        tree = ast.parse(line)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "the line is no Python statement by itself"
    match tree.body:
        case [ast.Assign(targets=[ast.Name(id=bound)], value=value)] | [
            ast.AnnAssign(target=ast.Name(id=bound), value=ast.expr() as value)
        ]:
            # A function that is made by a call could keep state between its calls, so a lambda is
            # only judged if it is the whole value.
            inner = ast.walk(value) if not isinstance(value, ast.Lambda) else ()
            if any(isinstance(node, ast.Lambda) for node in inner):
                return "a lambda within a value is not judged"
        case [ast.FunctionDef(name=bound, decorator_list=[])]:
            pass
        case _:
            return f"write one assignment to {name} or one function {name}, nothing else"
    if bound != name:
        return f"the line binds {bound}, not {name}"
    return next(
        (problem for node in ast.walk(tree.body[0]) if (problem := _node_problem(node))), ""
    )


def _node_problem(node: ast.AST) -> str:
    """Why one node is not plain; "" if it is."""
    if not isinstance(node, _ALLOWED):
        return f"{type(node).__name__} is not judged"
    if isinstance(node, ast.Name | ast.arg):
        word = node.id if isinstance(node, ast.Name) else node.arg
        if word.startswith("__") or word in _OTHER_BUILTINS:
            return f"the name {word} is not judged"
    if isinstance(node, ast.arguments) and any(
        d is not None and not isinstance(d, ast.Constant)
        for d in (*node.defaults, *node.kw_defaults)
    ):
        return "a default that is no constant is not judged"
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return "an assignment to a part is not judged"
    return ""
