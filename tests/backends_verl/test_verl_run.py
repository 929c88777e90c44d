"""Whole runs with `train.backend = "verl"`: metrics and weights are the reference trainer's, and
the command line launches it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer_replication.core.errors import StoppedError
from composer_replication.training.backends import verl_launch
from composer_replication.training.loop import train
from tests.backends_verl.frozen_verl import INPUTS, settings, sharp_student
from tests.cli.test_train_live import SETTINGS as LIVE
from tests.cli.workspace import recompose
from tests.training.scripted import tiny_student
from tests.training.small_student import make_run

pytestmark = [pytest.mark.backend, pytest.mark.train]


def run(folder: Path, backend: str, **options: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The metrics of each step and the last weights of a run on imported data."""
    from composer_replication.training.backends.verl_run import step_engine

    config = settings(
        **{"backend": backend, "lm_ce": {"weight": 1.0}, "steps": 3, "layout": "rows", **options}
    )
    student, run_dir = sharp_student(), make_run(folder, config)
    train(
        config,
        student=student,
        examples=INPUTS.examples,
        pairs=INPUTS.pairs,
        run=run_dir,
        step_engine=step_engine if backend == "verl" else None,
    )
    assert not (run_dir.path / "verl_start").exists()
    return run_dir.metrics(), [p.detach().clone() for p in student.model.parameters()]


def test_a_run_repeats_the_reference_trainers(tmp_path: Path) -> None:
    """Balance, warm-up, clip and three updates."""
    options = {"learning_rate": 1e-2, "max_grad_norm_ratio": 1.0}
    expected, weights = run(tmp_path / "reference", "reference", **options)
    metrics, other_weights = run(tmp_path / "verl", "verl", **options)
    assert len(metrics) == 3
    assert any(line["clipped"] for line in expected)
    for line, reference in zip(metrics, expected, strict=True):
        assert line["clipped"] == reference["clipped"]
        for key in ("loss", "grad_norm", "lr", "hint/grad_norm", "hint/scale", "preference/loss"):
            assert line[key] == pytest.approx(reference[key], rel=1e-3), key
    for weight, reference in zip(other_weights, weights, strict=True):
        assert torch.allclose(weight, reference, atol=2e-4)


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(StoppedError, match="not finite"):
        run(tmp_path, "verl", policy={"weight": 1e38, "clip": 0.2}, balance="none")


def test_the_command_line_trains_on_its_own_rollouts_and_checks_itself(tmp_path: Path) -> None:
    student = tiny_student()
    student.model.save_pretrained(str(tmp_path / "student"))
    student.tokenizer.save_pretrained(str(tmp_path / "student"))
    (tmp_path / "recompose.toml").write_text(LIVE, "utf-8")
    options = ("--backend", "verl", "--train.hint.weight", "0")
    result = recompose("train", *options, "--json", cwd=tmp_path)
    assert result.code == 0, result.err
    assert result.value["steps"] == 2
    checked = recompose("train", *options, "--check", "--json", cwd=tmp_path)
    assert checked.code == 0, checked.err
    assert [scenario["passes"] for scenario in checked.value["scenarios"]] == [True]


def test_verl_knows_our_names_and_computes_our_advantages_and_policy_loss() -> None:
    verl_launch.prepare_environment()
    from verl import DataProto
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from composer_replication.training.backends.verl_plugin import NAME, registered

    assert registered()
    rewards = torch.zeros(4, 3)
    rewards[:, -1] = torch.tensor([1.0, 0.0, 0.5, 0.5])
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]])
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": mask},
        non_tensors={"uid": np.array(["a", "a", "b", "b"], dtype=object)},
    )
    data = compute_advantage(data, adv_estimator=NAME, config=None)
    expected = torch.tensor([0.5, -0.5, 0.0, 0.0])[:, None] * mask
    assert torch.equal(data.batch["advantages"], expected)
    old, new = torch.full((4, 3), -1.0), torch.full((4, 3), -0.9)
    loss, _ = get_policy_loss_fn(NAME)(
        old_log_prob=old,
        log_prob=new,
        advantages=expected,
        response_mask=mask,
        loss_agg_mode="seq-mean-token-sum",
        config=None,
        rollout_is_weights=None,
    )
    ratio = float(torch.exp(torch.tensor(0.1)))
    assert float(loss) == pytest.approx(-(3 * 0.5 - 2 * 0.5) * ratio / 4, rel=1e-5)


def test_verl_finds_the_plugin_by_its_entry_point() -> None:
    found = importlib.metadata.entry_points(group="verl.plugins")
    assert verl_launch.PLUGIN in {entry.value for entry in found}
