"""A run directory as plain values."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.rundir import create_run
from composer_replication.report.run_view import channels, run_view


def test_a_run_is_told_by_channel_with_its_events_inputs_and_changed_settings(
    tmp_path: Path,
) -> None:
    (tmp_path / "examples.jsonl").write_text("{}\n{}\n", "utf-8")
    settings = Config().model_dump(mode="json")
    settings["train"]["steps"] = 3
    run = create_run(
        tmp_path / "runs",
        resolved=settings,
        command="recompose train",
        seed=7,
        inputs=[(tmp_path / "examples.jsonl", 2)],
    )
    with run.attempt():
        run.add_metrics(
            {
                "step": 1,
                "hint/status": "active",
                "hint/tokens": 4,
                "hint/loss": 0.5,
                "hint/grad_norm": 1.0,
            }
        )
        run.add_metrics(
            {
                "step": 2,
                "hint/status": "exhausted",
                "hint/tokens": 0,
                "hint/loss": None,
                "hint/grad_norm": 0.0,
            }
        )
        run.add_event("starved", step=2, channel="lm_ce")
    view = run_view(tmp_path / "runs" / "latest")
    hint = view["channels"]["hint"]
    assert (hint["statuses"], hint["last_status"], hint["tokens"]) == (
        {"active": 1, "exhausted": 1},
        "exhausted",
        4,
    )
    assert hint["loss"] == {"first": 0.5, "last": 0.5, "points": [(1, 0.5)]}
    assert set(view["channels"]) == {"hint"}
    assert (view["state"], view["steps"], view["steps_planned"], view["attempts"]) == (
        "done",
        2,
        3,
        1,
    )
    assert view["changed_settings"] == ["train.steps: 20 -> 3"]
    assert [e["kind"] for e in view["events"]] == ["starved"]
    assert view["inputs"][0]["rows"] == 2 and len(view["inputs"][0]["sha256"]) == 64


def test_no_metrics_is_no_channel() -> None:
    assert channels([]) == {}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run directory"):
        run_view(tmp_path)
