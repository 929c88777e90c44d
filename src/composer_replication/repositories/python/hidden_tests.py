"""Take the held-out tests of a task out of the tree that its player sees.

    hidden = hide_tests(texts, ["tests/test_cart.py::test_total[1]"])
    hidden.files["tests/test_cart.py"]      # without test_total, whatever its cases
    hidden.visible                          # held-out tests that could not be taken out

A test that a class inherits is cut where it is written. One that is made while the tests are
collected, from a file of cases, stays in sight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from composer_replication.repositories.edits import Edit, apply_edits
from composer_replication.repositories.python.python_changes import (
    Definition,
    PythonSource,
    Symbol,
)
from composer_replication.repositories.task_language import HiddenTests


def hide_tests(
    read: Callable[[str], str], tests: Sequence[str], *, others: Sequence[str] = ()
) -> HiddenTests:
    """Cut the functions of some tests out of their files; `read` gives a file's text. A method that
    is not written in its file is looked for in the classes of `others`."""
    texts: dict[str, PythonSource | None] = {}

    def source_of(path: str) -> PythonSource | None:
        if path not in texts:
            try:
                texts[path] = PythonSource(read(path))
            except (OSError, ValueError, SyntaxError):
                texts[path] = None
        return texts[path]

    cut: dict[str, dict[int, Definition]] = {}
    visible: list[str] = []
    for name in tests:
        path, _, test = name.partition("[")[0].partition("::")
        for place in (path, *(others if "::" in test else ())):
            source = source_of(place)
            if source is not None and (nodes := _defined(source.symbols(), test)):
                cut.setdefault(place, {}).update({id(node): node for node in nodes})
                break
        else:
            visible.append(name)
    files: dict[str, str] = {}
    for path, nodes in cut.items():
        if (source := texts[path]) is not None:
            edits = [_cut(source, node) for node in nodes.values()]
            files[path] = apply_edits(source.data.decode(), edits)
    return HiddenTests(files=files, visible=tuple(visible))


def _defined(symbols: Sequence[Symbol], test: str) -> list[Definition]:
    """Where a test is written: under its class, else under any class of the file."""
    qualified = test.replace("::", ".")
    exact = [symbol.node for symbol in symbols if symbol.name == qualified]
    if exact or "." not in qualified:
        return exact
    ending = f".{qualified.rpartition('.')[2]}"
    return [symbol.node for symbol in symbols if symbol.name.endswith(ending)]


def _cut(source: PythonSource, node: Definition) -> Edit:
    """Put `pass` in a definition's place: its block may have nothing else."""
    start = source.start(node)
    for decorator in node.decorator_list:
        before = source.data.rindex(b"@", 0, source.start(decorator))
        start = min(start, before)
    return Edit(start, source.end(node), "pass")
