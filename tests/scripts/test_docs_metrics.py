"""docs/metrics.md: every key of metrics.jsonl has a row, and the page is what the script writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_replication.core.rundir import RunDir
from scripts.docs_metrics import main, row_of, rows

PREFIXES = "policy|hint|preference|lm_ce|rollouts|sites|fork|tasks|score|lost|family|health"
FOLDERS = ("training", "rollouts")
FILLED_IN = {"rollouts/NAME"}
"""Names of these come of a tuple in the code; the runs of the tests write them."""


def named_keys(source: str) -> Iterator[str]:
    """Every string of a module that reads like a metric; a part that is filled in is NAME."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "NAME"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if re.fullmatch(rf"({PREFIXES})/[\w.]+", text):
            yield text


def test_the_page_is_what_the_script_writes() -> None:
    assert main(["--check"]) == 0


def test_every_key_that_training_names_has_a_row(repository_root: Path) -> None:
    package = repository_root / "src" / "composer_replication"
    keys = {
        key
        for folder in FOLDERS
        for path in (package / folder).rglob("*.py")
        for key in named_keys(path.read_text("utf-8"))
    }
    assert len(keys) > 40
    assert sorted(key for key in keys - FILLED_IN if row_of(key) is None) == []


def test_no_key_has_two_rows_and_every_row_says_all() -> None:
    keys = [row.key for row in rows()]
    assert len(keys) == len(set(keys))
    assert all(row.unit and row.meaning.endswith(".") and row.healthy for row in rows())


def test_a_run_that_writes_a_key_without_a_row_fails_its_test(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(AssertionError, match="hint/los"):
        run.add_metrics({"step": 1, "hint/los": 0.5, "attempt": 1})
    run.add_metrics({"step": 1, "hint/loss": 0.5, "attempt": 1})
