"""The live panel of `train`: its rows after known steps, 80 columns wide, never with a NaN."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from composer_replication.cli import panel as panel_module
from composer_replication.cli.console import Screen
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job
from composer_replication.cli.panel import TrainPanel, shown_steps
from composer_replication.cli.train_text import Steps
from composer_replication.core.config.load_config import load_config

STEP = {
    "policy/status": "active", "policy/tokens": 5213, "policy/loss": -0.0123,
    "policy/grad_norm": 0.0312,
    "hint/status": "exhausted", "hint/tokens": 0, "hint/loss": None, "hint/grad_norm": 0.0,
    "preference/status": "dead", "preference/tokens": 1234567, "preference/loss": float("nan"),
    "preference/grad_norm": float("inf"),
    "lm_ce/status": "off", "lm_ce/tokens": 0, "lm_ce/loss": None, "lm_ce/grad_norm": 0.0,
    "rollouts/flat": 0.25, "rollouts/unresolvable": 0.06, "sites/found": 14, "sites/used": 12,
    "health/kl": 0.31,
}  # fmt: skip


def job_on(console: Console, tmp_path: Path, **screen: Any) -> Job:
    loaded = load_config([], flags={"train.steps": "4"}, start=tmp_path)
    return Job(
        loaded=loaded, screen=Screen(console=console, **screen), work=tmp_path, common=Common()
    )


def terminal(**options: Any) -> Console:
    return Console(
        file=io.StringIO(),
        width=80,
        force_terminal=True,
        record=True,
        markup=False,
        highlight=False,
        **options,
    )


def drawn(panel: TrainPanel, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(panel.render())
    return (
        Console(file=io.StringIO(), width=200)
        .render_str(captured.get(), markup=False)
        .plain.splitlines()
    )


@pytest.fixture
def plain(tmp_path: Path) -> tuple[TrainPanel, Console]:
    console = Console(
        file=io.StringIO(), width=80, markup=False, highlight=False, color_system=None
    )
    return TrainPanel(job_on(console, tmp_path)), console


def test_known_steps_give_known_rows(
    plain: tuple[TrainPanel, Console], monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, console = plain
    now = [panel.began]
    monkeypatch.setattr(panel_module.time, "monotonic", lambda: now[0])
    assert (
        drawn(panel, console)[0]
        == " step 0 of 4   elapsed 0s   waiting for the first step: getting ready"
    )
    panel.progress(lambda: "token probe: 3 of 16 rows, eta 1m15s")
    assert (
        drawn(panel, console)[0]
        == " step 0 of 4   elapsed 0s   token probe: 3 of 16 rows, eta 1m15s"
    )
    now[0] += 50
    panel({**STEP, "step": 1, "rollouts/success": 0.0, "health/monitor": 0.25})
    # the first step takes several times as long as the others
    assert drawn(panel, console)[0] == " step 1 of 4   elapsed 50s   eta at most 2m30s"
    now[0] += 10
    panel({**STEP, "step": 2, "rollouts/success": 0.5, "policy/status": "exhausted"})
    assert [line.rstrip() for line in drawn(panel, console)] == [
        " step 2 of 4   elapsed 1m00s   eta 20s",
        " channel     status       tokens       loss   gradient  active",
        " policy      exhausted      5213    -0.0123     0.0312     50%",
        " lm_ce       off               0          -          0      0%",
        " hint        exhausted         0          -          0      0%",
        " preference  dead        1234567          -          -      0%",
        " rollouts    success 0.50 ▁▅  flat 25%  sites 12 of 14 used",
        " health      KL 0.310 of 0.3   unresolvable 6% of 10%   monitor 0.25, was 0.25",
    ]


def test_what_follows_the_last_step_is_shown_until_it_is_over(
    plain: tuple[TrainPanel, Console],
) -> None:
    panel, console = plain
    with panel:
        panel.progress(lambda: "part 1 of 2, backward, eta 9s")
        panel({**STEP, "step": 4})
        assert drawn(panel, console)[0].endswith("eta 0s")
        panel.progress(lambda: "token probe: 3 of 16 rows, eta 1m15s")
        assert drawn(panel, console)[0].endswith("s   token probe: 3 of 16 rows, eta 1m15s")
    assert drawn(panel, console)[0].endswith("eta 0s")


def test_no_row_is_wider_than_the_terminal_or_holds_what_steers_it(
    plain: tuple[TrainPanel, Console],
) -> None:
    panel, console = plain
    for step in range(1, 200):
        hostile = {
            "policy/status": "\x1b[2Jactive\nrow",
            "rollouts/success": step / 200,
            "health/monitor": 0.5,
            "health/kl": float("nan"),
        }
        panel({**STEP, **hostile, "step": step})
    lines = drawn(panel, console)
    assert len(lines) == 8 and all(len(line) <= 80 for line in lines)
    assert lines[-1].endswith("was 0.50") and lines[-2].endswith("sites 12 of 14 used")
    text = "\n".join(lines)
    assert "\x1b" not in text and "nan" not in text.lower() and "inf" not in text


def test_colours_tell_good_from_bad_and_limits_warn(tmp_path: Path) -> None:
    console = terminal(color_system="standard")
    panel = TrainPanel(job_on(console, tmp_path))
    panel({**STEP, "step": 1, "rollouts/success": 0.5})
    with console.capture() as captured:
        console.print(panel.render())
    text = captured.get()
    assert "\x1b[31mdead" in text and "\x1b[32mexhausted" in text
    assert "\x1b[1;31mKL 0.310 of 0.3" in text and "\x1b[33m6% of 10%" in text


def test_without_rollouts_only_channels_are_shown(plain: tuple[TrainPanel, Console]) -> None:
    panel, console = plain
    panel(
        {
            "step": 1,
            "lm_ce/status": "active",
            "lm_ce/tokens": 3,
            "lm_ce/loss": 1.5,
            "lm_ce/grad_norm": 0.1,
        }
    )
    text = "\n".join(drawn(panel, console))
    assert "rollouts" not in text and "health" not in text and "100%" in text


def test_the_panel_is_for_terminals_and_its_last_state_stays(tmp_path: Path) -> None:
    console = terminal(color_system=None)
    with shown_steps(job_on(console, tmp_path)) as shown:
        assert isinstance(shown, TrainPanel)
        shown({**STEP, "step": 4, "rollouts/success": 0.75})
    left = console.export_text().splitlines()
    assert any(line.startswith(" step 4 of 4") for line in left) and left[-1].startswith(" health")
    for job in (
        job_on(terminal(), tmp_path, quiet=True),
        job_on(terminal(), tmp_path, json=True),
        job_on(Console(file=io.StringIO()), tmp_path),
        job_on(terminal(quiet=True), tmp_path),
    ):
        with shown_steps(job) as shown:
            assert isinstance(shown, Steps)
