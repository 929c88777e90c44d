"""Pages that repeat what the program prints do not go stale, and the wheel carries what the demo needs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path


def test_the_page_of_verbs_is_what_help_prints(repository_root: Path) -> None:
    command = [sys.executable, "scripts/docs_cli.py", "--check"]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_short_and_its_links_lead_somewhere(repository_root: Path) -> None:
    text = (repository_root / "README.md").read_text("utf-8")
    assert len(text.split()) < 900
    for part in text.split("](")[1:]:
        target = part.split(")")[0]
        assert target.startswith("http") or (repository_root / target).exists(), target


def test_the_wheel_carries_the_demo_and_the_templates(repository_root: Path, tmp_path: Path) -> None:
    """Built from the tree as it is, without a network; tests and secrets of the checkout stay out."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=repository_root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    student = {n.rsplit("/", 1)[-1] for n in names if n.startswith("composer_replication/workshop_student/")}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= student
    templates = {p.name for p in (repository_root / "src" / "composer_replication" / "tokens" / "templates").iterdir()}
    assert templates and templates <= {n.rsplit("/", 1)[-1] for n in names}
    assert not [n for n in names if n.startswith(("tests/", "scripts/"))]
