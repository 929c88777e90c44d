"""`train` with rollouts.env: it needs no data set, the plan names the rollouts, and each step
prints one line."""

from __future__ import annotations

import io
import json
import shlex
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from composer_replication.cli.console import Screen
from composer_replication.cli.train_text import event_text, show_plan, step_text
from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.core.rundir import create_run
from composer_replication.rollouts import task_source
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
    files_before = files(work)
    dry = recompose("train", "--dry-run", cwd=work)
    assert (
        dry.code == 0
        and "4 rollouts a step in 'workshop' (2 tasks x 2)" in dry.out
        and "at most 32 sites a step" in dry.out
    )
    assert files(work) == files_before
    plan = recompose("train", "--dry-run", "--json", cwd=work).value["plan"]
    assert (
        plan["rollouts_per_step"] == 4
        and plan["examples"] == 0
        and plan["weights"]["policy"] == 1.0
    )


def test_the_plan_does_not_count_imported_hints_that_are_not_drawn() -> None:
    """With live rollouts and no weight of lm_ce, of imported examples only the anchors are
    trained."""
    views = (SimpleNamespace(target_ids=(1, 2, 3)),)
    example = SimpleNamespace(actions=(), lm_spans=((0, 4),), hints=views, anchored=())
    data: Any = SimpleNamespace(examples=(example,), pairs=())
    for rollouts, weight, units, message in (
        ({"env": "workshop"}, 0, 0, "hint 1.0 0 imported at most 32 sites a step of rollouts"),
        ({"env": "workshop"}, 1, 3, "hint 1.0 3 imported at most 32 sites a step of rollouts"),
        ({}, 1, 3, "hint 1.0 3"),
    ):
        config = Config.model_validate(
            {"rollouts": rollouts, "train": {"hint": {"weight": 1.0}, "lm_ce": {"weight": weight}}}
        )
        screen = Screen(console=Console(file=io.StringIO(), width=120))
        job: Any = SimpleNamespace(config=config, screen=screen)
        assert show_plan(job, data)["units"]["hint"] == units
        output = cast("io.StringIO", screen.console.file).getvalue()
        (line,) = [
            " ".join(line.split()) for line in output.splitlines() if line.startswith("hint")
        ]
        assert line == message


@pytest.mark.parametrize(
    ("policy", "hint", "sites", "words"),
    [
        (0, 0, 32, "train nothing: train.policy.weight and train.hint.weight are 0; set"),
        (0, 1, 0, "train nothing: train.policy.weight and rollouts.hint_sites are 0; set"),
        (0, 1, 32, "the rewards of the rollouts train nothing, only the mistakes in them do:"),
        (1, 0, 32, ""),
    ],
)
def test_rollouts_that_train_nothing_are_said_in_a_line(
    policy: float, hint: float, sites: int, words: str
) -> None:
    config = Config.model_validate(
        {
            "rollouts": {"env": "workshop", "hint_sites": sites},
            "train": {"policy": {"weight": policy}, "hint": {"weight": hint}},
        }
    )
    example = SimpleNamespace(actions=(), lm_spans=((0, 4),), hints=(), anchored=())
    screen = Screen(console=Console(file=io.StringIO(), width=300))
    job: Any = SimpleNamespace(config=config, screen=screen)
    data: Any = SimpleNamespace(examples=(example,), pairs=())
    show_plan(job, data)
    output = cast("io.StringIO", screen.console.file).getvalue()
    notes = [line for line in output.splitlines() if "train nothing" in line]
    assert len(notes) == bool(words)
    assert all(words in note for note in notes)


def test_a_weight_without_rollouts_names_the_setting(work: Path) -> None:
    refused = recompose("train", "--dry-run", "--rollouts.env", "", cwd=work)
    assert refused.code == 1 and "no examples" in refused.err
    live = recompose("train", "--dry-run", "--train.lm_ce.weight", "1", cwd=work)
    said = " ".join(live.err.replace("│", "").split())
    assert (
        live.code == 1 and "import logs (recompose ingest), or set train.lm_ce.weight = 0" in said
    )


def test_a_named_run_keeps_its_name_in_its_command(work: Path) -> None:
    assert recompose("train", "--name", "first one", "--train.steps", "1", cwd=work).code == 0
    argv = shlex.split(
        (work / "recompose" / "runs" / "first one" / "command.txt").read_text("utf-8")
    )
    assert argv[:4] == ["recompose", "train", "--name", "first one"]


def test_a_refused_start_leaves_no_run_and_its_name_free(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ("train", "--name", "mine", "--train.steps", "1", "--train.checkpoint_every", "1")

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("no such world", where="rollouts.env", fix="name another")

    earlier = create_run(work / "recompose" / "runs", resolved={}, command="", seed=0)
    with monkeypatch.context() as patch:
        patch.setattr(task_source, "open_world", refuse)
        refused = recompose(*start, cwd=work)
    runs = work / "recompose" / "runs"
    assert refused.code == 1 and "no such world" in refused.err
    assert not (runs / "mine").exists() and (runs / "latest").resolve() == earlier.path.resolve()
    started = recompose(*start, cwd=work)
    assert started.code == 0, started.err
    assert (runs / "latest").resolve().name == "mine"


def test_an_event_has_four_digits_and_a_drift_stops_nothing() -> None:
    event = {
        "t": 1.5,
        "attempt": 1,
        "kind": "drift",
        "step": 5,
        "measure": "rollouts/entropy",
        "value": 0.012368590960148328,
    }
    assert (
        event_text(event)
        == "drift: step 5, measure rollouts/entropy, value 0.01237 (a warning, nothing is stopped)"
    )
    assert (
        event_text({"kind": "restored", "step": 12345, "limit": 0.6})
        == "restored: step 12345, limit 0.6"
    )


def test_a_run_without_a_data_set(work: Path) -> None:
    result = recompose("train", cwd=work)
    assert result.code == 0, result.err
    lines = [row for row in result.out.splitlines() if row.startswith(" step=")]
    assert len(lines) == 2 and all(
        "success=" in row and "kl=" in row and "sites=" in row and "eta=" in row for row in lines
    )
    (run,) = (work / "recompose" / "runs").glob("20*")
    metrics = [json.loads(row) for row in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [m["rollouts/episodes"] for m in metrics] == [4.0, 4.0] and "health/monitor" in metrics[
        0
    ]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_000000", "step_000002"]


def test_a_channel_that_nothing_feeds_is_refused(work: Path) -> None:
    result = recompose("train", "--train.lm_ce.weight", "1", "--dry-run", cwd=work)
    assert result.code == 1 and "channel lm_ce has weight 1.0" in result.err
    result = recompose("train", "--rollouts.env", "", "--dry-run", cwd=work)
    assert result.code == 1 and "no examples" in result.err


def test_the_placebo_is_named_in_the_plan(work: Path) -> None:
    result = recompose("train", "--train.placebo", '["permuted_rewards"]', "--dry-run", cwd=work)
    assert result.code == 0 and "permuted_rewards: nothing about these can be learnt" in result.out


def test_one_line_a_step_holds_success_sites_channels_and_the_time_left() -> None:
    channel = {
        "hint/status": "active",
        "hint/loss": 0.0123,
        "hint/tokens": 40,
        "hint/grad_norm": 0.02,
        "policy/status": "off",
    }
    step_metrics = {
        "step": 3,
        "rollouts/success": 0.25,
        "sites/found": 9,
        "sites/used": 8,
        "health/kl": 0.0123,
        **channel,
    }
    assert (
        step_text(step_metrics, left="1m15s")
        == "step=3 | success=0.25 sites=8/9 kl=0.012 | hint=active loss=0.0123 tokens=40 grad=0.02"
        " | eta=1m15s"
    )


PRIME_RL = (
    "--backend", "prime_rl", "--train.policy.objective", "dppo", "--train.balance", "none",
    "--train.hint.weight", "0", "--train.max_grad_norm_ratio", "0",
)  # fmt: skip


def test_for_prime_rl_the_settings_file_and_the_launch_line_are_written(work: Path) -> None:
    (work / "recompose.toml").write_text(SETTINGS.partition("health")[0], "utf-8")
    done = recompose("train", *PRIME_RL, "--name", "there", cwd=work)
    assert done.code == 0, done.err
    path = work / "recompose" / "runs" / "there" / "prime_rl" / "rl.toml"
    settings = tomllib.loads(path.read_text("utf-8"))
    assert settings["trainer"]["loss"]["type"] == "custom"
    assert settings["orchestrator"]["batch_size"] == 4
    assert "written, not run here" in done.out
    assert f"uv run rl @ {path.resolve()}" in done.out


def test_what_prime_rl_cannot_host_is_refused_before_a_run_exists(work: Path) -> None:
    refused = recompose("train", "--backend", "prime_rl", cwd=work)
    assert refused.code != 0
    assert "train.balance" in refused.out + refused.err
    assert not (work / "recompose" / "runs").exists()


def test_check_compares_a_step_with_the_reference_trainer_and_writes_nothing(work: Path) -> None:
    """Every group of an untrained student is flat: the advantages are planted."""
    files_before = files(work)
    unfed = recompose("train", "--check", cwd=work)
    assert unfed.code == 3 and "NOTHING IN THE BATCH FOR hint" in unfed.err + unfed.out
    result = recompose("train", "--check", "--json", "--train.hint.weight", "0", cwd=work)
    assert result.code == 0, result.err
    (scenario,) = result.value["scenarios"]
    assert scenario["passes"] and scenario["channels"] == ["policy"]
    assert scenario["grad_norm"][0] == pytest.approx(scenario["grad_norm"][1], rel=1e-6)
    assert files(work) == files_before
