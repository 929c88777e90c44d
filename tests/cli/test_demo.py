"""`demo`: every stage on the logs that ship with the package, from a folder that holds nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from composer_replication.cli.demo_text import command
from composer_replication.cli.main import VERBS
from composer_replication.core.config.load import load_config
from tests.cli.workspace import files, recompose


@pytest.mark.train
def test_the_demo_runs_every_stage_and_says_what_comes_next(tmp_path: Path) -> None:
    said = recompose("demo", "--train.steps", "2", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    stages = [line for line in said.out.splitlines() if line.startswith("$ recompose")]
    assert [line.split()[2] for line in stages] == ["ingest", "sites", "hints", "build", "train"]
    assert said.out.rstrip().splitlines()[-1].strip() == "next   recompose ingest ~/.claude/projects"
    assert "says nothing about a better agent" in said.out
    demo = tmp_path / "demo"
    assert {"recompose.toml", "sessions.jsonl", "sites.jsonl", "hints.jsonl", "examples/examples.jsonl"} <= files(demo)
    metrics = [json.loads(line) for line in (demo / "runs" / "latest" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert len(metrics) == 2
    assert {metrics[-1][f"{name}/status"] for name in ("lm_ce", "hint", "preference")} == {"active"}
    assert load_config([demo / "recompose.toml"], start=tmp_path).config.train.preference.weight > 0
    again = recompose("show", "site", "s001", "-c", "demo/recompose.toml", cwd=tmp_path)
    assert again.code == 0


@pytest.mark.train
def test_with_json_every_verb_prints_one_object_and_nothing_else(tmp_path: Path) -> None:
    said = recompose("demo", "--json", "--train.steps", "1", cwd=tmp_path)
    assert (said.code, said.err) == (0, "")
    stages = said.value["stages"]
    assert list(stages) == ["ingest", "sites", "hints", "build", "train"] and all(stage["wrote"] for stage in stages.values())
    calls = {
        "demo": [["--dry-run"]],
        "doctor": [[]],
        "init": [["-o", "other"], ["--schema"]],
        "ingest": [[]],
        "sites": [[]],
        "hints": [[]],
        "replay": [[]],
        "build": [[]],
        "train": [["--train.steps", "1"]],
        "report": [["--audit"], []],
        "show": [["session", "s001"], ["site", "s001"], ["example", "e001"], ["run"]],
    }
    assert list(calls) == list(VERBS)
    for verb, lists in calls.items():
        for arguments in lists:
            settings = [] if verb in ("demo", "init") else ["-c", "demo/recompose.toml"]
            said = recompose(verb, *arguments, *settings, "--json", cwd=tmp_path)
            assert isinstance(said.value, dict), (verb, said.out)  # fails where anything stands beside the object


def test_the_last_line_names_a_command_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / ".venv" / "bin" / "recompose"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n", "utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "demo"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command() == ".venv/bin/recompose"
    monkeypatch.setenv("PATH", str(script.parent))
    assert command() == "recompose"


def test_a_dry_run_of_the_demo_writes_nothing_and_json_is_one_object(tmp_path: Path) -> None:
    value = recompose("demo", "--dry-run", "--json", cwd=tmp_path).value
    assert value["dry_run"] is True and Path(value["logs"]).is_dir() and len(value["would_write"]) > 3
    assert files(tmp_path) == set()
