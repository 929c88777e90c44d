"""docs/coming_from_the_guide.md: every name it promises is there, where it says, and nothing that is there is called still to come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import composer_replication

QUOTED = re.compile(r"`([^`]+)`")


def page(root: Path) -> str:
    return (root / "docs" / "coming_from_the_guide.md").read_text("utf-8")


def rows(root: Path) -> list[list[str]]:
    lines = [line for line in page(root).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names_of(cell: str) -> list[str]:
    """The names before the brackets that tell the guide's module."""
    return QUOTED.findall(re.sub(r"\([^)]*\)", "", cell))


def test_every_name_is_at_the_top_level_and_defined_where_the_page_says(repository_root: Path) -> None:
    found = 0
    for names, homes, *_ in rows(repository_root):
        for name in names_of(names):
            if homes == "gone":
                with pytest.raises(ImportError, match="is gone"):
                    getattr(composer_replication, name)
                continue
            assert getattr(composer_replication, name) is not None
            files = [repository_root / "src" / "composer_replication" / home for home in QUOTED.findall(homes)]
            defined = re.compile(rf"^(?:class|def|async def) {name}\b|^{name}(?:: .+)? =", re.MULTILINE)
            assert any(defined.search(file.read_text("utf-8")) for file in files), f"{name} is not defined in {homes}"
            found += 1
    assert found >= 25


def test_what_is_still_to_come_is_not_there(repository_root: Path) -> None:
    (paragraph,) = [part for part in page(repository_root).split("\n\n") if part.startswith("Still to come")]
    promised = names_of(paragraph.partition("Of the guide's extras")[0])
    assert {"make_diloco_outer_loop", "loss_fn"} <= set(promised)
    for name in promised:
        assert not hasattr(composer_replication, name), f"{name} is here: give it a row"


def test_every_name_of_the_guide_that_is_exported_has_a_row(repository_root: Path) -> None:
    told = {name for names, *_ in rows(repository_root) for name in names_of(names)}
    homes = [home for home in composer_replication._HOMES if home.endswith(".guide") or home == "data.teachers.defaults"]
    exported = {name for home in homes for name in composer_replication._HOMES[home].split()}
    assert exported - {"LossComponents"} <= told and "ComposerReplicationTrainer" in told
