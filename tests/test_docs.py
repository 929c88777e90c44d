"""Pages that repeat program output do not go stale, and the wheel contains the demo's files."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import io
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import composer_replication

NEEDS = {"composer_replication.losses.fused_triton": "triton"}
"""What a module imports at its head besides this package's own dependencies."""
NOT_CODE = "composer_replication.compat.paths."
"""Names of the earlier guide: each module is a list of where they went."""


def test_the_page_of_verbs_is_what_help_prints(repository_root: Path) -> None:
    command = [sys.executable, "scripts/docs_cli.py", "--check"]
    completed = subprocess.run(
        command, cwd=repository_root, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_the_readme_is_short_and_its_links_lead_somewhere(repository_root: Path) -> None:
    text = (repository_root / "README.md").read_text("utf-8")
    assert len(text.split()) < 900
    for part in text.split("](")[1:]:
        target = part.split(")")[0]
        assert target.startswith("http") or (repository_root / target).exists(), target


def test_the_wheel_carries_the_demo_and_the_templates(
    repository_root: Path, tmp_path: Path
) -> None:
    """Built from the tree as it is, without a network; tests and secrets of the checkout stay
    out."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    completed = subprocess.run(
        command, cwd=repository_root, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    student = {
        n.rsplit("/", 1)[-1]
        for n in names
        if n.startswith("composer_replication/workshop_student/")
    }
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= student
    templates = {
        p.name
        for p in (
            repository_root / "src" / "composer_replication" / "tokens" / "templates"
        ).iterdir()
    }
    assert templates and templates <= {n.rsplit("/", 1)[-1] for n in names}
    assert not [n for n in names if n.startswith(("tests/", "scripts/"))]


@pytest.mark.train
def test_every_worked_example_of_a_docstring_is_right() -> None:
    """A reader believes them: eight had gone stale while nobody ran them."""
    names = [
        module.name
        for module in pkgutil.walk_packages(composer_replication.__path__, "composer_replication.")
    ]
    with_examples = [
        name
        for name in names
        if name not in NEEDS or importlib.util.find_spec(NEEDS[name]) is not None
    ]
    output, attempted = io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        for name in with_examples:
            if not name.startswith(NOT_CODE):
                attempted += doctest.testmod(importlib.import_module(name)).attempted
    assert not output.getvalue() and attempted >= 300
