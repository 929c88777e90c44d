"""What is checked before real data-juicer starts, and what it receives; the real one runs in
tests/peers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.errors import ConfigError, DataError
from composer_replication.data.curate.curator import Curator
from composer_replication.data.curate.data_juicer import DataJuicer, curate_with, operator_of
from composer_replication.data.curate.recipe import load_recipe, read_recipe
from tests.data.curate.real_shaped import made_up

FAKE = """
import json, sys
config = json.load(open(sys.argv[sys.argv.index("--config") + 1]))
assert config["skip_op_error"] is False and config["np"] == 1, config
import os
assert not any("KEY" in name or "TOKEN" in name for name in os.environ)
assert os.environ["UV_OFFLINE"] == "1" == os.environ["PIP_NO_INDEX"]
rows = [json.loads(line) for line in open(config["dataset_path"])]
assert all(set(row) <= {"text", "pair", "side"} for row in rows)
out = config["export_path"]
os.makedirs(os.path.dirname(out))
seen = set()
def keep(row):
    for step in config["process"]:
        (name, options), = step.items()
        if name == "document_deduplicator":
            if row["text"] in seen:
                return False
            seen.add(row["text"])
        elif name == "text_length_filter":
            if not options["min_len"] <= len(row["text"]) <= options["max_len"]:
                return False
    return True
open(out, "w").write("".join(json.dumps(row) + "\\n" for row in rows if keep(row)))
"""


def fake_engine(
    folder: Path, *, modules: str = "data_juicer ray torch aiohttp datasets", program: str = FAKE
) -> DataJuicer:
    """A Python that finds packages of these names; its data_juicer runs the given program."""
    site = folder / "site"
    for name in modules.split():
        (site / name).mkdir(parents=True, exist_ok=True)
        (site / name / "__init__.py").write_text("", "utf-8")
    (site / "data_juicer" / "tools").mkdir(parents=True, exist_ok=True)
    (site / "data_juicer" / "tools" / "__init__.py").write_text("", "utf-8")
    body = "def main():\n" + "\n".join("    " + line for line in program.splitlines()) + "\n"
    (site / "data_juicer" / "tools" / "process_data.py").write_text(body, "utf-8")
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{site}"\nexec "{sys.executable}" -S "$@"\n', "utf-8"
    )
    python.chmod(0o755)
    return DataJuicer(python)


def test_an_environment_that_is_not_there_is_named_with_how_to_make_one() -> None:
    with pytest.raises(ConfigError, match="no Python at"):
        DataJuicer(Path("/nowhere/python")).check()


def test_a_package_that_it_would_install_by_itself_is_named_before_anything_runs(
    tmp_path: Path,
) -> None:
    engine = fake_engine(tmp_path, modules="data_juicer torch datasets")
    with pytest.raises(ConfigError, match="would install ray, aiohttp by itself"):
        curate_with(engine, load_recipe("default"), made_up(3, seed=1).pairs)


RECIPE = """
process:
  - answer_not_empty_filter
  - tool_arguments_filter
  - text_length_filter:
      min_len: 12
      max_len: 900
  - document_deduplicator
  - document_minhash_deduplicator
"""


def test_one_row_per_message_no_skipping_no_secrets_and_the_same_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-secret")
    recipe, pairs = read_recipe(RECIPE), made_up(400, seed=5).pairs
    curator, judged = curate_with(fake_engine(tmp_path), recipe, pairs)
    embedded = Curator(recipe)
    kept_ids = [pair.id for pair in pairs if embedded.judge(pair) is None]
    assert [pair.id for pair, dropped in judged if dropped is None] == kept_ids and 100 < len(
        kept_ids
    ) < 350
    reasons = {dropped.reason for _, dropped in judged if dropped is not None}
    assert {"data_juicer_text", "document_deduplicator", "tool_arguments_filter"} <= reasons
    report = curator.report()
    assert report.pairs == 400 == report.kept + sum(report.dropped.values()) and report.kept == len(
        kept_ids
    )


def test_a_run_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    engine = fake_engine(tmp_path, program="raise RuntimeError('op failed: no model')")
    with pytest.raises(DataError, match="op failed: no model"):
        engine.filter_rows([{"text": "a"}], [{"words_num_filter": {}}])


def test_bounds_without_an_end_are_left_out_and_shares_get_room_for_rounding() -> None:
    steps = {step.name: step for step in load_recipe("default").steps}
    assert operator_of(steps["words_num_filter"]) == {
        "words_num_filter": {"min_num": 1, "lang": "en"}
    }
    options: dict[str, Any] = operator_of(steps["character_repetition_filter"])[
        "character_repetition_filter"
    ]
    assert (
        options["rep_len"] == 10
        and 0.3 < options["max_ratio"] < 0.3001
        and -0.001 < options["min_ratio"] < 0
    )
