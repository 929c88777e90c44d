"""What a third trial by new users found: commands to copy, headlines, and counts in one unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from composer_replication.cli.build_refused import wider_windows
from composer_replication.cli.problems import commands_of, report_error
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ComposerError
from composer_replication.report.headline import NOT_ON_LOGS, evaluation_sentences
from composer_replication.report.logs_view import share_with_interval
from tests.cli.workspace import recompose


def test_a_command_in_an_error_keeps_the_flags_that_its_verb_reads(tmp_path: Path) -> None:
    """`build` alone would have read another model than the call that was refused."""
    flags = ("--student.model", "some/model", "--train.hint.weight", "0.5", "--train.steps", "3")
    result = recompose("train", *flags, cwd=tmp_path)
    assert result.code == 1
    said = " ".join(result.err.replace("│", " ").split())
    assert "recompose build --student.model some/model --train.hint.weight 0.5" in said
    assert "--train.steps" not in said


def test_a_window_above_micro_tokens_raises_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "composer_replication.cli.build_refused.context_length", lambda student: 4096
    )
    config = Config.model_validate({"build": {"max_tokens": 1024}, "train": {"micro_tokens": 2048}})
    (first, _), (second, wider), *_ = wider_windows(config)
    assert first == "--build.max_tokens 2048"
    assert second == "--build.max_tokens 4096 --train.micro_tokens 4096"
    assert (wider.build.max_tokens, wider.train.micro_tokens) == (4096, 4096)


def logs(undecided: float) -> dict[str, Any]:
    row = {"recurrence": 0.0, "undecided": undecided}
    rows = [{"name": name, **row} for name in ("before", "after")]
    return {"rows": rows, "verdict": {"sentence": "Null result."}}


def test_the_headline_is_about_ones_own_logs_and_the_workshop_is_a_toy() -> None:
    rows = [{"name": name, "success": 0.5} for name in ("before", "after")]
    played = {"rows": rows, "own_tasks": False, "about": {}, "verdict": {"sentence": "Better."}}
    first, second = evaluation_sentences(played, logs(0.5))
    assert first.startswith("On your own logs") and "0 % before, 0 % after" in first
    assert "a toy and not your work" in second and "50 % before" in second
    assert evaluation_sentences(played, None)[0] == NOT_ON_LOGS
    assert evaluation_sentences(dict(played, own_tasks=True), logs(0.5))[0].startswith("Success")


def test_what_was_never_decided_is_not_shown_as_zero() -> None:
    row = {"recurrence": 0.0, "recurrence_low": 0.0, "recurrence_high": 0.5}
    assert share_with_interval({**row, "undecided": 1.0}, "recurrence") == "undecided"
    assert share_with_interval({**row, "undecided": 0.5}, "recurrence") == "0.000 [0.000, 0.500]"
    assert "undecided before, undecided after" in evaluation_sentences(None, logs(1.0))[0]


def test_a_command_that_the_box_wraps_stands_below_it_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = f"recompose train --resume recompose/runs/{'long' * 30} --train.steps 40"
    report_error(ComposerError("over", fix=f"to go on: {command}"), as_json=False, debug=False)
    assert command in capsys.readouterr().err.splitlines()
    short = "recompose train --resume a"
    report_error(ComposerError("over", fix=f"to go on: {short}"), as_json=False, debug=False)
    assert short not in capsys.readouterr().err.splitlines()
    assert commands_of("run again: recompose sites, then recompose hints") == []


def test_the_settings_say_what_a_placebo_may_null() -> None:
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")
    (literal, _) = get_args(TrainSettings.model_fields["placebo"].annotation)
    names = get_args(literal)
    described = next(line for line in text.splitlines() if 'id="train.placebo"' in line)
    assert len(names) == 6 and all(name in described for name in names)
