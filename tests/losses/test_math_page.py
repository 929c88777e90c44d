"""docs/math.md: its examples run, and it names every public function of the losses."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from composer_replication import losses

# the fused kernels compute the row functions, and test_fused.py compares them; the Triton kernel
# needs triton to import
MODULES = [
    f"{losses.__name__}.{m.name}"
    for m in pkgutil.iter_modules(losses.__path__)
    if not m.name.startswith("fused_")
]
# other pages describe the fused functions, channel bookkeeping and the total;
# docs/coming_from_the_guide.md describes the guide's names
ELSEWHERE = {"fused", "channel", "total", "guide"}


def public_functions(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    members = inspect.getmembers(module, inspect.isfunction)
    return [
        name for name, fn in members if not name.startswith("_") and fn.__module__ == module_name
    ]


def test_the_examples_of_the_page_run(repository_root: Path) -> None:
    results = doctest.testfile(str(repository_root / "docs" / "math.md"), module_relative=False)
    assert results.attempted >= 10 and results.failed == 0


@pytest.mark.parametrize("module", [m for m in MODULES if m.rsplit(".", 1)[1] not in ELSEWHERE])
def test_the_page_names_every_public_function(module: str, repository_root: Path) -> None:
    text = (repository_root / "docs" / "math.md").read_text("utf-8")
    plumbing = {"match_logits", "logprobs", "chunk_rows"}
    missing = [
        name for name in public_functions(module) if f"`{name}" not in text and name not in plumbing
    ]
    assert not missing


@pytest.mark.parametrize("module", [m for m in MODULES if m.rsplit(".", 1)[1] != "fused"])
def test_the_worked_examples_of_the_docstrings_are_right(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("module", [m for m in MODULES if m.rsplit(".", 1)[1] != "fused"])
def test_every_public_function_has_a_worked_example(module: str) -> None:
    named = importlib.import_module(module)
    assert not [
        name
        for name in public_functions(module)
        if ">>>" not in (getattr(named, name).__doc__ or "")
    ]
