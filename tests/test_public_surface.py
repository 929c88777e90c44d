"""The names a user may import: all of them resolve, none of them costs anything before it is
used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

import composer_replication

TORCH_FREE = ("core.", "data.", "report.", "tokens.example")


@pytest.mark.parametrize("name", composer_replication.PUBLIC_NAMES)
def test_every_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(composer_replication, name)
    if name.isupper():
        assert isinstance(value, (str, Mapping)) and value
    else:
        assert value.__name__ == name and value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compose_lossy'"):
        composer_replication.compose_lossy  # noqa: B018 - the access is the test


def test_a_name_that_is_gone_says_what_stands_for_it() -> None:
    with pytest.raises(ImportError, match="run `recompose demo`"):
        composer_replication.build_batch  # noqa: B018 - the access is the test


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import json, sys, composer_replication as c; print(json.dumps([m for m in sys.modules if"
        " m.startswith(c.__name__ + '.')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_names_of_the_ground_floor_work_without_torch() -> None:
    """With torch and transformers made impossible to import, every torch-free name still
    resolves."""
    names = [
        name
        for home, group in composer_replication._HOMES.items()
        if home.startswith(TORCH_FREE)
        for name in group.split()
    ]
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "numpy", "accelerate")))
import composer_replication
for name in {names!r}:
    getattr(composer_replication, name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_dir_lists_the_public_names() -> None:
    assert set(composer_replication.PUBLIC_NAMES) <= set(dir(composer_replication))
