"""docs/coming_from_the_guide.md: every promised name exists at the named place, and no existing one
is listed as still to come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import composer_replication
from composer_replication.compat.names import ELSEWHERE, MODULES
from composer_replication.data.curate.recipe import BY_MEANING, RUN_CODE, SHIPPED

QUOTED = re.compile(r"`([^`]+)`")


def page(root: Path) -> str:
    return (root / "docs" / "coming_from_the_guide.md").read_text("utf-8")


def rows(root: Path) -> list[list[str]]:
    lines = [
        line for line in page(root).partition("\n## ")[0].splitlines() if line.startswith("| `")
    ]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names_of(cell: str) -> list[str]:
    """The names before the brackets that tell the guide's module."""
    return QUOTED.findall(re.sub(r"\([^)]*\)", "", cell))


def test_every_name_is_at_the_top_level_and_defined_where_the_page_says(
    repository_root: Path,
) -> None:
    num_rows = 0
    for names, homes, *_ in rows(repository_root):
        for name in names_of(names):
            if homes == "gone":
                with pytest.raises(ImportError, match="is gone"):
                    getattr(composer_replication, name)
                continue
            assert getattr(composer_replication, name) is not None
            files = [
                repository_root / "src" / "composer_replication" / home
                for home in QUOTED.findall(homes)
            ]
            defined = re.compile(
                rf"^(?:class|def|async def) {name}\b|^{name}(?:: .+)? =", re.MULTILINE
            )
            assert any(defined.search(file.read_text("utf-8")) for file in files), (
                f"{name} is not defined in {homes}"
            )
            num_rows += 1
    assert num_rows >= 25


def section(root: Path, title: str) -> str:
    return page(root).partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_what_is_elsewhere_is_what_the_page_says_and_nothing_else(
    repository_root: Path,
) -> None:
    first = [
        line.split(" | ")[0]
        for line in section(repository_root, "Elsewhere").splitlines()
        if line.startswith("| `")
    ]
    promised = [name for cell in first for name in names_of(cell)]
    assert sorted(promised) == sorted(ELSEWHERE)
    for name in set(promised) - set(MODULES):
        with pytest.raises(ImportError, match="its place is"):
            getattr(composer_replication, name)


def test_the_page_lists_the_module_paths(repository_root: Path) -> None:
    listed = section(repository_root, "Module paths").strip().partition("\n\n")[0]
    assert QUOTED.findall(listed) == sorted(MODULES)
    modules_on_page = {
        path
        for names, *_ in rows(repository_root)
        for path in QUOTED.findall(" ".join(re.findall(r"\(([^)]*)\)", names)))
    }
    assert modules_on_page and modules_on_page <= set(MODULES), (
        "a module of the guide that a row names is no path here"
    )


def test_the_page_names_every_recipe_that_ships(repository_root: Path) -> None:
    assert set(QUOTED.findall(section(repository_root, "Recipes of `DJNormalizer`"))) >= {
        *SHIPPED,
        BY_MEANING,
        *RUN_CODE,
    }


def test_every_name_of_the_guide_that_is_exported_has_a_row(repository_root: Path) -> None:
    names_on_page = {name for names, *_ in rows(repository_root) for name in names_of(names)}
    exported = {
        name
        for name, home in composer_replication._homes().items()
        if ".compat." in home or home.endswith(".data.teachers.defaults")
    }
    assert len(exported) > 20
    assert (
        exported - {"LossComponents"} <= names_on_page
        and "ComposerReplicationTrainer" in names_on_page
    )
