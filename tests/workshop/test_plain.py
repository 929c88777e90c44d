"""The code that a judged line may contain: nothing that gives it access to more than its own
numbers."""

from __future__ import annotations

import ast
import builtins

import pytest

from composer_replication.workshop.plain import (
    _ALLOWED,
    BUILTINS,
    MAX_CHARS,
    not_plain,
)

PLAIN = [
    "f = 3",
    "f = 3 + 4 * (2 - 1) // 1 % 9 ** 2 & 7 | 1 ^ 2 << 1 >> 1",
    "f = -3 if not 0 and 1 or 2 else ~5",
    "f: int = 3",
    "f = 3; # a comment",
    "f = 0x_ff",
    "f = [1, 2][0] + (1, 2)[-1] + {1: 2}[1] + len({1, 2}) + len([1, 2, 3][1:])",
    "f = sum(x * y for x, y in zip(range(3), [4, 5, 6]) if x)",
    "f = max([x for x in range(3)]) + len({x for x in (1, 2)}) + len({x: x for x in (1, 2)})",
    "f = int(f'{3:>4}') + int('%d' % 4)",
    "f = port * 2",
    "f = fifteen",
    "f = lambda a, b=3, *c, d=None, **e: a + b",
    "f = max",
    "def f(a, b): return a + b",
    "def f(a: int, b: int = 2) -> int: return a + b",
    "def f(a, b): c = d = a; e: int = 3; c += b; (g, h) = a, b; return c",
    "def f(a, b): assert b, 'no'; pass; 'words'; raise ValueError('no') from None",
    "def f(a, b): print(a); return f(*[a], **{}) if a else (lambda: b)()",
]
NOT_PLAIN = {
    "f = ().x": "Attribute",
    "f = f'{f.x}'": "Attribute",
    "f = '{0.x}'.format(f)": "Attribute",
    "f = (y := 3)": "NamedExpr",
    "import f": "one assignment to f",
    "from os import f": "one assignment to f",
    "f = 3; g = 4": "one assignment to f",
    "f = 3\rg = 4": "one assignment to f",
    "f = g = 3": "one assignment to f",
    "f, g = 3, 4": "one assignment to f",
    "f[0] = 3": "one assignment to f",
    "f += 3": "one assignment to f",
    "f: int": "one assignment to f",
    "class f: pass": "one assignment to f",
    "async def f(): pass": "one assignment to f",
    "for f in [3]: pass": "one assignment to f",
    "with x as f: pass": "one assignment to f",
    "if 1: f = 3": "one assignment to f",
    "f": "one assignment to f",
    "": "one assignment to f",
    "# f = 3": "one assignment to f",
    "g = 3": "binds g, not f",
    "def g(): return 3": "binds g, not f",
    "f = (lambda: 3)()": "lambda within a value",
    "f = [lambda: 3][0]": "lambda within a value",
    "def f(a=[]): return a": "default",
    "def f(*, a=len): return a": "default",
    "f = lambda a=[]: a": "default",
    "def f(a): a[0] = 3; return a": "a part",
    "def f(a): a[0] += 3; return a": "a part",
    "def f(a): del a": "Delete",
    "def f(a): global g; g = 3": "Global",
    "def f(a): import os; return a": "Import",
    "def f(a): from os import x; return a": "ImportFrom",
    "def f(a): yield a": "Yield",
    "def f(a): yield from a": "YieldFrom",
    "def f(a): await a": "Await",
    "f = __builtins__": "the name __builtins__",
    "f = __loader__": "the name __loader__",
    "f = __debug__": "the name __debug__",
    "f = ｅval('3')": "the name eval",
    "def f(a: eval('3')): return a": "the name eval",
    "def f(__class__): return 3": "the name __class__",
    "f = (3": "no Python statement",
    " f = 3": "no Python statement",
    "f = 3 \\": "no Python statement",
    "f = '''": "no Python statement",
    "f = 3\x00": "no Python statement",
    "f = '\ud800'": "no Python statement",
    f"f = {'(' * 240}3{')' * 240}": "no Python statement",
    f"f = 3{' ' * MAX_CHARS}": "more than",
}


@pytest.mark.parametrize("line", PLAIN)
def test_plain_lines_pass(line: str) -> None:
    assert not_plain(line, name="f") == ""


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_other_lines_do_not_and_it_is_said_why(line: str) -> None:
    why = not_plain(line, name="f")
    assert why.startswith("NotPlain: ") and NOT_PLAIN[line] in why


@pytest.mark.parametrize("name", sorted(set(dir(builtins)) - BUILTINS))
def test_no_other_built_in_name_passes(name: str) -> None:
    for line in (
        f"f = {name}(3)",
        f"def f(a): return {name}",
        f"f = lambda a: [{name} for x in a]",
        f"f: {name} = 3",
    ):
        assert f"the name {name} is not judged" in not_plain(line, name="f")


REACHING = """
breakpoint callable classmethod compile delattr dir eval exec format getattr globals hasattr hash
help id input issubclass iter locals memoryview next object open property repr setattr staticmethod
super type vars __import__
"""


def test_the_names_that_pass_only_compute() -> None:
    """A list for review: adding a name asserts that it reaches neither an attribute, a frame, a
    module nor a file."""
    assert not BUILTINS & set(REACHING.split())
    assert not any(name.startswith("_") for name in BUILTINS) and set(dir(builtins)) >= BUILTINS


def test_what_a_later_python_adds_does_not_pass() -> None:
    """The list holds the allowed names, not the refused ones."""
    statements = {cls for cls in _ALLOWED if issubclass(cls, ast.stmt)}
    assert statements == {
        *(ast.FunctionDef, ast.Return, ast.Assign, ast.AnnAssign, ast.AugAssign),
        *(ast.Pass, ast.Expr, ast.Raise, ast.Assert),
    }
    assert not set(_ALLOWED) & {
        ast.Attribute,
        ast.NamedExpr,
        ast.Await,
        ast.Yield,
        ast.YieldFrom,
        ast.AST,
        ast.expr,
        ast.stmt,
    }
