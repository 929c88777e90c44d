"""The public names: all of them resolve, and none costs anything before it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

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
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert json.loads(completed.stdout) == []


def test_names_of_the_ground_floor_work_without_torch() -> None:
    """With torch and transformers made impossible to import, every torch-free name still
    resolves."""
    names = [
        name
        for name, home in composer_replication._homes().items()
        if home.removeprefix("composer_replication.").startswith(TORCH_FREE)
    ]
    assert len(names) > 30
    code = f"""
import sys
sys.modules.update(dict.fromkeys(("torch", "transformers", "numpy", "accelerate")))
import composer_replication
for name in {names!r}:
    getattr(composer_replication, name)
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr


def test_a_type_checker_knows_every_public_name(repository_root: Path, tmp_path: Path) -> None:
    """Without the stub, a name of a lazy module has no type and a misuse of it passes unseen."""
    package = repository_root / "src" / "composer_replication"
    assert (package / "py.typed").exists()
    user = tmp_path / "user.py"
    names = composer_replication.PUBLIC_NAMES
    user.write_text(
        "import composer_replication as c\n"
        + "".join(f"reveal_type(c.{name})\n" for name in names)
        + "c.Price(nonsense=1)\n",
        "utf-8",
    )
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(json.dumps({"extraPaths": [str(package.parent)], "include": ["user.py"]}))
    completed = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "-p", str(settings)],
        capture_output=True,
        text=True,
        check=False,
    )
    diagnostics = json.loads(completed.stdout)["generalDiagnostics"]
    types = [
        diagnostic["message"]
        for diagnostic in diagnostics
        if diagnostic["severity"] == "information"
    ]
    errors = [
        diagnostic["message"] for diagnostic in diagnostics if diagnostic["severity"] == "error"
    ]
    assert len(types) == len(names) and not [text for text in types if 'is "Unknown"' in text]
    assert [text for text in errors if "nonsense" in text] and len(errors) <= 2


def test_dir_lists_the_public_names() -> None:
    assert set(composer_replication.PUBLIC_NAMES) <= set(dir(composer_replication))
