"""`train` with rollouts.env: no data set is needed, the plan says what is played, and each step has one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer_replication.cli.train_text import step_text
from tests.cli.workspace import files, recompose
from tests.training.scripted import tiny_student

pytestmark = pytest.mark.train
SETTINGS = """
[student]
model = "student"
[rollouts]
env = "workshop"
groups = 2
group_size = 2
max_new_tokens = 6
max_context_tokens = 2048
[train]
steps = 2
checkpoint_every = 2
policy = { weight = 1.0 }
lm_ce = { weight = 0.0 }
health = { monitor_tasks = 2, kl_episodes = 2 }
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    student = tiny_student()
    student.model.save_pretrained(str(tmp_path / "student"))
    student.tokenizer.save_pretrained(str(tmp_path / "student"))
    (tmp_path / "recompose.toml").write_text(SETTINGS, "utf-8")
    return tmp_path


def test_the_plan_says_what_is_played_and_plays_nothing(work: Path) -> None:
    there = files(work)
    dry = recompose("train", "--dry-run", cwd=work)
    assert dry.code == 0 and "4 rollouts a step in 'workshop' (2 tasks x 2)" in dry.out and "at most 32 sites a step" in dry.out
    assert files(work) == there
    plan = recompose("train", "--dry-run", "--json", cwd=work).value["plan"]
    assert plan["rollouts_per_step"] == 4 and plan["examples"] == 0 and plan["weights"]["policy"] == 1.0


def test_a_run_without_a_data_set(work: Path) -> None:
    said = recompose("train", cwd=work)
    assert said.code == 0, said.err
    lines = [line for line in said.out.splitlines() if line.startswith(" step=")]
    assert len(lines) == 2 and all("success=" in line and "kl=" in line and "sites=" in line and "eta=" in line for line in lines)
    (run,) = (work / "recompose" / "runs").glob("20*")
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [m["rollouts/episodes"] for m in metrics] == [4.0, 4.0] and "health/monitor" in metrics[0]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_000000", "step_000002"]


def test_a_channel_that_nothing_feeds_is_refused(work: Path) -> None:
    said = recompose("train", "--train.lm_ce.weight", "1", "--dry-run", cwd=work)
    assert said.code == 1 and "channel lm_ce has weight 1.0" in said.err
    said = recompose("train", "--rollouts.env", "", "--dry-run", cwd=work)
    assert said.code == 1 and "no examples" in said.err


def test_the_placebo_is_named_in_the_plan(work: Path) -> None:
    said = recompose("train", "--train.placebo", '["permuted_rewards"]', "--dry-run", cwd=work)
    assert said.code == 0 and "permuted_rewards: nothing about these can be learnt" in said.out


def test_one_line_a_step_holds_success_sites_channels_and_the_time_left() -> None:
    channel = {"hint/status": "active", "hint/loss": 0.0123, "hint/tokens": 40, "hint/grad_norm": 0.02, "policy/status": "off"}
    line = {"step": 3, "rollouts/success": 0.25, "sites/found": 9, "sites/used": 8, "health/kl": 0.0123, **channel}
    assert step_text(line, left_s=75) == (
        "step=3 | success=0.25 sites=8/9 kl=0.012 | hint=active loss=0.0123 tokens=40 grad=0.02 | eta=1m15s"
    )
