"""`recompose tasks`: from a folder to tasks, what is refused, and what a person sees."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from composer_replication.repositories.make_repo_tasks import PACKAGES
from tests.cli.workspace import recompose
from tests.repositories.shop import make_shop, needs_walls

FEW = ("--python", sys.executable, "--functions", "1", "--bugs", "1", "--classes", "0")


def without_packages(work: Path) -> None:
    """Reading the packages of these tests' interpreter would take most of a minute."""
    metadata = work / "recompose" / "tasks" / "environments" / "shop" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / PACKAGES).write_text("", encoding="ascii")


@needs_walls
def test_a_repository_becomes_tasks_that_can_be_listed(tmp_path: Path) -> None:
    make_shop(tmp_path / "shop")
    without_packages(tmp_path)
    made = recompose("tasks", "make", "shop", *FEW, cwd=tmp_path)
    assert made.code == 0, made.out + made.err
    assert "shop" in made.out and "tasks list" in made.out
    again = recompose("tasks", "make", "shop", *FEW, "--json", cwd=tmp_path)
    (row,) = json.loads(again.out)["repositories"].values()
    assert row["made"] == {"function": 1, "bug": 1} and json.loads(again.out)["tasks"] == 2
    listed = recompose("tasks", "list", cwd=tmp_path)
    assert "These tests fail now and must pass" in listed.out and "2 tasks" in listed.out


@needs_walls
def test_a_folder_without_tests_is_skipped_and_the_others_are_not(tmp_path: Path) -> None:
    make_shop(tmp_path / "shop")
    (tmp_path / "empty").mkdir()
    without_packages(tmp_path)
    made = recompose("tasks", "make", "empty", "shop", *FEW, cwd=tmp_path)
    assert made.code == 0 and "skipped  empty" in made.out and "no Python files" in made.out
    assert (tmp_path / "recompose" / "tasks" / "tasks.jsonl").exists()


def test_a_call_without_a_repository_says_what_is_missing(tmp_path: Path) -> None:
    assert recompose("tasks", "make", cwd=tmp_path).code == 2
    assert "no tasks" in recompose("tasks", "list", cwd=tmp_path).err
