"""`demo`: the complete chain with tiny settings, on the bundled student: its files, its output, and
bit-for-bit repetition."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from composer_replication.cli import demo as demo_module
from composer_replication.cli.demo_controls import Controls
from composer_replication.cli.demo_settings import CONTROLS, SETTINGS
from composer_replication.cli.demo_student import STUDENT, shipped
from composer_replication.cli.demo_text import command
from composer_replication.cli.main import VERBS
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.load_config import load_config
from composer_replication.core.errors import DataError
from tests.cli.workspace import CliResult, files, recompose
from tests.repositories.shop import make_shop

# A step of four short episodes shows the chain, not any learning.
SETTINGS_OF_A_STEP = {
    "train.steps": 2, "train.checkpoint_every": 2, "train.batch_examples": 4,
    "train.preference.batch_pairs": 2,
    "train.health.monitor_tasks": 0, "train.health.kl_episodes": 2, "rollouts.groups": 2,
    "rollouts.group_size": 2,
    "evaluate.tasks": 8, "evaluate.samples": 200,
}  # fmt: skip
SHORT = [word for name, value in SETTINGS_OF_A_STEP.items() for word in (f"--{name}", str(value))]
LOGS = ("--logs", "20")
ROWS = ["before", "more_sft", "placebo", "after"]
VERBS_OF_THE_DEMO = [
    "ingest",
    "sites",
    "hints",
    "replay",
    "build",
    "train",
    "train",
    "train",
    "evaluate",
    "report",
]


def play(folder: Path, *more: str) -> CliResult:
    return recompose("demo", *LOGS, *SHORT, *more, cwd=folder)


def table_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "demo" / "runs" / "after" / "evaluation.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CliResult]:
    """One demo, run once for the tests that only look at it."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, play(folder)


@pytest.mark.train
def test_the_demo_runs_every_stage_and_says_what_comes_next(shown: tuple[Path, CliResult]) -> None:
    folder, result = shown
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [
        shlex.split(line)[2] for line in lines if line.startswith("$ recompose")
    ] == VERBS_OF_THE_DEMO
    assert [line.strip() for line in lines if line.startswith(" next ")] == [
        "next   recompose audit --open"
    ]
    assert lines[-1].startswith(" next ") and " measure  recompose" not in result.out
    typed = [
        shlex.split(line.partition("      (")[0])
        for line in lines
        if line.startswith("$ recompose")
    ]
    assert all(
        argv[argv.index("--train.steps") + 1] == "2" and argv[-2:] == ["-c", "demo/recompose.toml"]
        for argv in typed
    )
    assert [argv[argv.index("--name") + 1] for argv in typed if "--name" in argv] == [
        "placebo",
        "more_sft",
        "after",
    ]
    assert (
        "Success on 8 unseen tasks: before " in result.out
        and "were planted in the student" in result.out
    )
    assert (
        "By construction" in result.out and "was taught" in result.out
    )  # wherever level 1 is shown
    demo = folder / "demo"
    demo_files = files(demo)
    wanted = {
        "recompose.toml",
        "sessions.jsonl",
        "sites.jsonl",
        "hints.jsonl",
        "audit.json",
        "preferences.jsonl",
        "anchors.jsonl",
    }
    wanted |= {
        "examples/examples.jsonl",
        "runs/after/evaluation.json",
        "runs/after/report.html",
        "controls.log",
    }
    assert wanted <= demo_files
    assert {f"runs/after/evaluation/{name}.jsonl" for name in ROWS} <= demo_files
    assert (
        len(list((demo / "logs").rglob("*.jsonl")))
        == len(list(read_sessions(demo / "sessions.jsonl")))
        > 10
    )
    assert [p.name for p in sorted((demo / "runs").iterdir()) if not p.is_symlink()] == [
        "after",
        "more_sft",
        "placebo",
    ]
    nulled = json.loads((demo / "runs" / "placebo" / "resolved.json").read_text("utf-8"))["train"][
        "placebo"
    ]
    assert nulled == ["shuffled_hints", "permuted_rewards", "swapped_pairs"]
    for name in ("after", *CONTROLS):
        metrics = [
            json.loads(line)
            for line in (demo / "runs" / name / "metrics.jsonl").read_text("utf-8").splitlines()
        ]
        assert [m["step"] for m in metrics] == [1, 2], name


@pytest.mark.train
def test_the_table_holds_what_was_promised(shown: tuple[Path, CliResult]) -> None:
    table = table_of(shown[0])
    assert [row["name"] for row in table["rows"]] == ROWS
    names = {
        "name",
        "n",
        "success",
        "success_low",
        "success_high",
        "targeted_mistakes_per_episode",
        "other_mistakes_per_episode",
    }
    for row in table["rows"]:
        assert (
            names <= set(row)
            and row["n"] == 8
            and 0 <= row["success_low"] <= row["success"] <= row["success_high"] <= 1
        )
    plain = [pair for pair in table["paired"] if "metric" not in pair]
    assert {("after", "before"), ("after", "placebo"), ("after", "more_sft")} <= {
        (pair["a"], pair["b"]) for pair in plain
    }
    success = {row["name"]: row["success"] for row in table["rows"]}
    for pair in plain:
        assert {"a", "b", "difference", "low", "high"} <= set(pair)
        assert pair["difference"] == pytest.approx(success[pair["a"]] - success[pair["b"]])
    assert table["steps"] == {"before": 0, "more_sft": 2, "placebo": 2, "after": 2}
    assert len(set(table["weights_sha256"].values())) == 4  # every row is another student


@pytest.mark.train
def test_the_same_seed_gives_the_same_table_and_json_prints_it(
    shown: tuple[Path, CliResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module, "CONTROLS", {"placebo": CONTROLS["placebo"]})
    result = play(tmp_path, "--json")
    assert (result.code, result.err) == (0, "")
    table, first = table_of(tmp_path), table_of(shown[0])
    beside = {"seconds", "dry_run", "wrote", "next", "settings_read"}
    assert {k: v for k, v in result.value.items() if k not in beside} == table and beside <= set(
        result.value
    )
    played = {row["name"] for row in table["rows"]}
    assert played == {"before", "placebo", "after"}
    assert table["rows"] == [row for row in first["rows"] if row["name"] in played]
    assert table["weights_sha256"].items() <= first["weights_sha256"].items()
    assert table["seed"] == first["seed"]
    assert list(result.value["seconds"]) == list(dict.fromkeys(v for v in VERBS_OF_THE_DEMO))


@pytest.mark.train
def test_another_seed_gives_another_table(
    shown: tuple[Path, CliResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_module, "CONTROLS", {"placebo": CONTROLS["placebo"]})
    assert play(tmp_path, "--seed", "11").code == 0
    table, other_table = table_of(shown[0]), table_of(tmp_path)
    assert table["seed"] != other_table["seed"]
    for name in ("before", "placebo", "after"):
        assert [r for r in table["rows"] if r["name"] == name] != [
            r for r in other_table["rows"] if r["name"] == name
        ]
    assert table["weights_sha256"]["before"] == other_table["weights_sha256"]["before"]
    for name in ("placebo", "after"):
        assert table["weights_sha256"][name] != other_table["weights_sha256"][name]


@pytest.mark.train
def test_with_json_every_verb_prints_one_object_and_nothing_else(
    shown: tuple[Path, CliResult], tmp_path: Path
) -> None:
    folder = shown[0]
    calls = {
        "audit": [[]],
        "demo": [["--dry-run"]],
        "doctor": [[]],
        "init": [["-o", str(tmp_path / "other")], ["--schema"]],
        "trust": [["--list"]],
        "model": [["check"]],
        "ingest": [[]],
        "sessions": [[]],
        "sites": [[]],
        "hints": [[]],
        "replay": [[]],
        "curate": [[]],
        "build": [[]],
        "train": [["--dry-run", *SHORT]],
        "diloco": [["simulate", "--replicas", "2", "--rounds", "2"]],
        "tasks": [["make", str(make_shop(tmp_path / "shop")), "--dry-run"]],
        "serve": [["--player", "claude-code", "--task", "Mend calc.py.", "--dry-run"]],
        "evaluate": [["after", "--dry-run"]],
        "report": [["--audit"], ["after"]],
        "export": [["after", "--to", str(tmp_path / "exported")]],
        "push": [[str(tmp_path / "exported"), "--to", "me/after", "--dry-run"]],
        "show": [["session", "s001"], ["site", "s001"], ["example", "e001"], ["run", "after"]],
        "completion": [["zsh"]],
    }
    assert list(calls) == list(VERBS)
    for verb, lists in calls.items():
        for arguments in lists:
            settings = [] if verb in ("demo", "init") else ["-c", "demo/recompose.toml"]
            result = recompose(verb, *arguments, *settings, "--json", cwd=folder)
            # fails if anything else is printed beside the object
            assert result.code == 0 and isinstance(result.value, dict), (verb, result.out)


@pytest.mark.train
def test_logs_only_records_and_leaves_the_rest_to_be_typed(tmp_path: Path) -> None:
    result = recompose("demo", "--logs-only", "--logs", "4", cwd=tmp_path)
    assert (
        result.code == 0
        and result.out.rstrip().splitlines()[-1].strip()
        == "next   recompose ingest -c demo/recompose.toml"
    )
    assert {name.split("/")[0] for name in files(tmp_path / "demo")} == {
        "recompose.toml",
        "logs",
        ".gitignore",
    }
    settings = load_config([tmp_path / "demo" / "recompose.toml"], start=tmp_path).config
    assert Path(settings.student.model) == shipped(STUDENT) and settings.rollouts.env == "workshop"
    assert recompose("ingest", "-c", "demo/recompose.toml", cwd=tmp_path).code == 0
    assert (
        len(list(read_sessions(tmp_path / "demo" / "sessions.jsonl")))
        == len(list((tmp_path / "demo" / "logs").rglob("*.jsonl")))
        > 0
    )


def test_a_demo_without_logs_is_a_usage_error(tmp_path: Path) -> None:
    result = recompose("demo", "--logs", "0", cwd=tmp_path)
    assert result.code == 2 and "no demo without logs" in result.err and files(tmp_path) == set()


def test_a_control_that_fails_names_its_log(tmp_path: Path) -> None:
    config = tmp_path / "recompose.toml"
    config.write_text(SETTINGS.format(seed=7, student="nowhere", steps=2), "utf-8")
    log = tmp_path / "controls.log"
    with (
        Controls(config, {"broken": ("--train.steps", "0")}, log=log) as controls,
        pytest.raises(DataError, match="the control broken ended with exit code") as caught,
    ):
        controls.wait()
    assert caught.value.where == str(log) and "train.steps" in caught.value.what
    text = log.read_text("utf-8")
    assert (
        text.startswith("$ recompose train --name broken --train.steps 0")
        and "train.steps" in text.partition("\n")[2]
    )


def test_the_last_line_names_a_command_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (
        value["dry_run"] is True
        and (Path(value["student"]) / "config.json").is_file()
        and len(value["would_write"]) > 3
    )
    assert files(tmp_path) == set()
