"""The guide's module paths import without a heavy package, hold the top-level names, and name the
replacement of what is gone."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import composer_replication
from composer_replication.compat import paths
from composer_replication.compat.names import ELSEWHERE, GONE, MODULES

LISTED = [
    (module, name) for module, names in MODULES.items() for name in names.split() if name != "*"
]
HERE = [(module, name) for module, name in LISTED if name not in ELSEWHERE and name not in GONE]
NOT_HERE = [(module, name) for module, name in LISTED if name in ELSEWHERE or name in GONE]


def of(module: str) -> object:
    return importlib.import_module(f"composer_replication.{module}")


def test_every_path_is_a_module_and_every_module_is_listed() -> None:
    modules = {
        module.name.removeprefix("composer_replication.")
        for module in pkgutil.walk_packages(paths.__path__, "composer_replication.")
    }
    assert (
        modules == set(MODULES) and len(modules) >= 20 and all(of(name).__doc__ for name in modules)
    )
    assert {name for names in MODULES.values() for name in names.split()} - {"*"} >= set(
        ELSEWHERE
    ) - set(MODULES) | set(GONE)


@pytest.mark.parametrize(("module", "name"), HERE)
def test_a_path_holds_what_the_top_level_holds(module: str, name: str) -> None:
    assert getattr(of(module), name) is getattr(composer_replication, name)


@pytest.mark.parametrize(("module", "name"), NOT_HERE)
def test_a_name_that_is_not_here_says_so_and_what_to_use(module: str, name: str) -> None:
    wanted = r"is gone: .*; run `" if name in GONE else r"its place is "
    with pytest.raises(ImportError, match=wanted) as by_path:
        getattr(of(module), name)
    with pytest.raises(ImportError, match=wanted) as at_the_top:
        getattr(composer_replication, name)
    assert str(by_path.value) == str(at_the_top.value) and str(by_path.value).startswith(name)


@pytest.mark.parametrize("module", [module for module, names in MODULES.items() if "*" in names])
def test_a_module_whose_names_are_elsewhere_says_so_of_whatever_is_asked(module: str) -> None:
    with pytest.raises(ImportError, match=r"main: its place is "):
        getattr(of(module), "main")  # noqa: B009 - the access is the test
    assert not hasattr(of(module), "__wrapped__"), (
        "what Python itself looks for is no name of the guide"
    )


def test_an_unknown_name_and_an_unknown_path_are_told_as_python_does() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Trainer'"):
        from composer_replication.trainer import Trainer  # noqa: F401  # pyright: ignore
    with pytest.raises(ModuleNotFoundError, match=r"composer_replication\.train2"):
        importlib.import_module("composer_replication.train2")
    with pytest.raises(ModuleNotFoundError):
        # only the paths are on the search path
        importlib.import_module("composer_replication.names")


def test_paths_cost_nothing_and_work_without_torch() -> None:
    """Every path imports, and every name of a torch-free module resolves, while importing torch is
    impossible."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "numpy", "accelerate", "trl")))
import importlib
for module in {list(MODULES)!r}:
    importlib.import_module("composer_replication." + module)
heavy = ("data", "tokens", "training", "losses")
package = "composer_replication."
assert not [m for m in sys.modules if m.startswith(package) and m.split(".")[1] in heavy]
from composer_replication.teacher_replay import *
from composer_replication.replaysim import DJNormalizer
from composer_replication.ingestion.claude_code import ClaudeCodeIngester
from composer_replication.ingestion.trace_examples import claude_states_to_trace_examples
from composer_replication.trainer.data_collator import TraceExample, TraceTurn
print(sorted(name for name in dir() if name in {MODULES["teacher_replay"].split()!r}))
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.strip() == str(sorted(MODULES["teacher_replay"].split()))
