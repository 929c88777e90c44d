"""Pages that repeat program output do not go stale, and the wheel contains the demo's files."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import importlib.util
import io
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import composer_replication
from composer_replication.data.hints.write import KNOWN_KINDS
from composer_replication.data.sites.shell_rules import CHECK_KINDS, SHELL_RULES
from composer_replication.report.explanations import CATEGORIES
from composer_replication.report.kind_titles import KIND_TITLES

NEEDS = {
    "composer_replication.losses.fused_triton": "triton",
    **{
        f"composer_replication.training.backends.verl_{name}": "verl"
        for name in ("cpu", "plugin", "worker")
    },
}
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
    presets = {n.rsplit("/", 1)[-1] for n in names if "/cli/preset_settings/" in n}
    assert "qwen3-4b-24gb.toml" in presets and len(presets) == 7
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


PAGES = (
    "CONTRIBUTING.md",
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "audit",
            "concepts",
            "glossary",
            "limits",
            "math",
            "redaction",
            "replay",
            "rollouts",
        )
    ),
)
NOT_OURS = {
    "utils.py",
    "tests/mutants/NAME.toml",
    "guess.py",
    "data/manifest.json",
    "loss_max_clamp",
}
"""Quoted names of files that must not exist, of examples, and of other libraries."""


def missing_names(page: str, *, files: set[str], words: set[str]) -> list[str]:
    """The quoted paths that are no file, and the quoted identifiers that no source file has."""
    missing = []
    for quoted in re.findall(r"`([^`\n]+)`", page):
        if re.fullmatch(r"[\w/.-]+\.(py|md|toml|json|svg)", quoted):
            if not any(path == quoted or path.endswith("/" + quoted) for path in files):
                missing.append(quoted)
        elif (
            re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", quoted)
            and quoted.rstrip("()").rpartition(".")[2] not in words
        ):
            missing.append(quoted)
    return [name for name in missing if name not in NOT_OURS]


def test_every_name_that_a_page_quotes_exists(repository_root: Path) -> None:
    folders = ("src", "tests", "benchmarks", "scripts", "docs", "examples")
    paths = [path for folder in folders for path in (repository_root / folder).rglob("*.*")]
    files = {
        str(path.relative_to(repository_root)) for path in (*paths, *repository_root.glob("*"))
    }
    words = {
        word
        for path in paths
        if path.suffix in (".py", ".pyi")
        for word in re.findall(r"\w+", path.read_text("utf-8"))
    }
    # artefacts that a run writes are named in the source
    files |= {word for path in paths if path.suffix == ".py" for word in quoted_files(path)}
    missing = {
        name: missing_names((repository_root / name).read_text("utf-8"), files=files, words=words)
        for name in PAGES
    }
    assert {name: names for name, names in missing.items() if names} == {}


def kinds_in_code(folder: Path) -> dict[str, set[str]]:
    """Every kind that the source of the detectors names, with the categories beside it."""
    found: dict[str, set[str]] = {kind: {"failed_check"} for kind, _ in CHECK_KINDS}
    for rule in SHELL_RULES:
        found.setdefault(rule.kind, set()).add("mistake")
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "_check_kind":
                returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return)]
                for kind in (w for value in returned if value for w in words_in(value)):
                    found.setdefault(kind, set()).add("failed_check")
            if not isinstance(node, ast.Call):
                continue
            named = {word.arg: word.value for word in node.keywords}
            if isinstance(node.func, ast.Name) and node.func.id == "error_pattern":
                named = {"category": node.args[0], "kind": node.args[1]}
            for kind in words_in(named["kind"]) if "kind" in named else ():
                if re.fullmatch(r"[a-z_]+", kind):
                    found.setdefault(kind, set()).update(words_in(named.get("category")))
    return found


def words_in(value: ast.expr | None) -> list[str]:
    """The strings that an expression may be, without the sets that it looks into."""
    if isinstance(value, ast.Constant):
        return [value.value] if isinstance(value.value, str) else []
    if isinstance(value, ast.IfExp):
        return [*words_in(value.body), *words_in(value.orelse)]
    return []


def quoted_files(path: Path) -> list[str]:
    """File names in the strings of a source file."""
    return re.findall(r"[\w.-]+\.(?:json|toml|md)\b", path.read_text("utf-8"))


def test_a_name_that_does_not_exist_is_seen() -> None:
    page = "`training/gone.py` and `vanished_name` stand in `loop.py` beside `train`"
    files, words = {"src/training/loop.py"}, {"train"}
    assert missing_names(page, files=files, words=words) == ["training/gone.py", "vanished_name"]


def test_the_page_of_kinds_has_every_kind_and_category(repository_root: Path) -> None:
    text = (repository_root / "docs" / "kinds.md").read_text("utf-8")
    kinds, categories = text.split("| category |", 1)
    assert set(re.findall(r"^\| `(\w+)`", kinds, re.MULTILINE)) == KNOWN_KINDS
    categories, apart = categories.split("\n## ")[0].split("| kind | category |")
    kinds_apart = {
        (kind, category)
        for names, category in re.findall(r"^\| (.+?) \| `(\w+)` \|", apart, re.MULTILINE)
        for kind in re.findall(r"`(\w+)`", names)
    }
    given = kinds_in_code(repository_root / "src/composer_replication/data/sites")
    assert {kind for kind, _ in kinds_apart} | KNOWN_KINDS == set(given)
    assert all(category in given[kind] for kind, category in kinds_apart if given[kind])
    assert set(given) <= set(KIND_TITLES), "a kind without a readable name"
    listed = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", categories, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(listed))) == set(CATEGORIES)


def test_the_version_is_the_same_in_the_package_the_citation_and_the_changelog(
    repository_root: Path,
) -> None:
    project = tomllib.loads((repository_root / "pyproject.toml").read_text("utf-8"))["project"]
    citation = (repository_root / "CITATION.cff").read_text("utf-8")
    assert re.findall(r'^version: "(.+)"$', citation, re.MULTILINE) == [project["version"]]
    headings = re.findall(
        r"^## (\S+)", (repository_root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    # what comes next may stand first; the newest version below it is this one
    assert headings[headings[0] == "Unreleased"] == project["version"]
