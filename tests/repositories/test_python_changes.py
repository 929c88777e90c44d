"""Changes to source text: what stays, what goes, and that the rest still parses."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from composer_replication.repositories.edits import apply_edits
from composer_replication.repositories.python import python_changes
from composer_replication.repositories.python.python_changes import (
    PythonSource,
    deletion,
    mutations,
)

PACKAGE = Path(inspect.getfile(python_changes)).parents[2]


def deleted(text: str, name: str) -> str | None:
    source = PythonSource(text)
    symbol = next(symbol for symbol in source.symbols() if symbol.name == name)
    edits = deletion(source, symbol)
    return None if edits is None else apply_edits(text, edits)


def test_a_body_goes_and_signature_docstring_and_comments_stay() -> None:
    text = 'x = 1  # é\n\ndef f(a: int) -> int:\n    """Doc."""\n    b = a\n    return b\n#\n'
    assert deleted(text, "f") == (
        'x = 1  # é\n\ndef f(a: int) -> int:\n    """Doc."""\n    raise NotImplementedError\n#\n'
    )


def test_decorators_of_an_inner_definition_go_with_it() -> None:
    text = "def f():\n    @cache\n    def g():\n        return 1\n    return g\n"
    assert deleted(text, "f") == "def f():\n    raise NotImplementedError\n"


def test_a_form_feed_ends_no_line() -> None:
    text = "x = 1\n\x0c\ndef f():\n    a = 1\n    return a\n"
    assert deleted(text, "f") == "x = 1\n\x0c\ndef f():\n    raise NotImplementedError\n"


@pytest.mark.parametrize(
    "text",
    [
        "def f(): return 1\n",
        "def f():\n    return 1\n",
        'def f():\n    """Doc."""\n',
        "@overload\ndef f():\n    a = 1\n    return a\n",
        "class f:\n    def g(self):\n        a = 1\n        return a\n",
    ],
    ids=["one line", "short", "docstring only", "overload", "class of one method"],
)
def test_nothing_to_remove(text: str) -> None:
    assert deleted(text, "f") is None


@pytest.mark.parametrize(
    ("line", "kind", "mistake"),
    [
        ("return a < b", "comparison", "return a <= b"),
        ("return a and b", "boolean", "return a or b"),
        ("return not (a)", "boolean", "return (a)"),
        ("return a + b", "arithmetic", "return a - b"),
        ("return 7", "constant", "return 8"),
        ("return True", "constant", "return False"),
        ("return g(a, b)", "arguments", "return g(b, a)"),
        ("a += b", "statement", "pass"),
        ("g(a)", "statement", "pass"),
    ],
)
def test_a_mistake_changes_one_thing(line: str, kind: str, mistake: str) -> None:
    text = f"def f(a, b):\n    {line}\n"
    source = PythonSource(text)
    made = [
        apply_edits(text, edits)
        for name, _, edits in mutations(source, source.symbols()[0].node)
        if name == kind
    ]
    assert f"def f(a, b):\n    {mistake}\n" in made


def test_every_change_of_this_package_parses() -> None:
    tried = 0
    for number, path in enumerate(sorted(PACKAGE.rglob("*.py"))):
        if number % 25:
            continue
        text = path.read_bytes().decode()
        source = PythonSource(text)
        for symbol in source.symbols():
            changes = [edits for _, _, edits in mutations(source, symbol.node)][:6]
            if (edits := deletion(source, symbol)) is not None:
                changes.append(edits)
            for edits in changes:
                ast.parse(apply_edits(text, edits))
                tried += 1
    assert tried > 300
