"""`train --backend trl --check`: TRL's own step on a given batch is the reference trainer's, and
faults that are planted in the adapter are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from composer_replication.core.errors import AlignmentError
from composer_replication.tokens.example import SampledMessage
from composer_replication.training.backends.trl_settings import check_hosted
from composer_replication.training.inputs import StepInputs
from tests.backends.checked import compare, settings, student

pytestmark = [pytest.mark.train, pytest.mark.usefixtures("needs_trl")]
SCENARIOS = ["policy", "policy + hint", "policy + preference", "policy + hint + preference"]


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"hint": {"weight": 0.4, "teacher": "live", "mean": "token"}, "micro_tokens": 8192},
        {"policy": {"weight": 0.7, "objective": "grpo"}, "micro_tokens": 1024},
        {"policy": {"weight": 0.7, "objective": "gspo"}, "micro_tokens": 2048},
    ],
)
def test_trls_step_is_the_reference_trainers(train: dict[str, Any]) -> None:
    comparisons = compare(settings(**train))
    assert [" + ".join(comparison.channels) for comparison in comparisons] == SCENARIOS
    for comparison in comparisons:
        assert comparison.passes and "gradient" in comparison.differences, comparison.text()
    norms = [comparison.reference.grad_norm for comparison in comparisons]
    assert len({round(norm, 6) for norm in norms}) == 4, "a channel that adds nothing"


@pytest.mark.parametrize(
    "hint",
    [
        {"estimator": "sampled_token", "divergence": "kl(student, teacher)"},
        {"estimator": "top_k", "top_k": 8, "support": "teacher", "rest": "renormalised"},
        {"divergence": "eopd", "entropy": {"tau": 0.1, "top": 4}},
        {"divergence": "soft_gate", "entropy": {"h_max": 2.0}, "mean": "token"},
        {"divergence": "taid", "taid": {"schedule": "fixed", "t_start": 0.3}},
    ],
)
def test_every_divergence_and_estimator_is_passed_on(hint: dict[str, Any]) -> None:
    config = settings(hint={"weight": 1.0, **hint}, preference={"weight": 0.0})
    check_hosted(config, pairs=())
    comparisons = compare(config)
    assert [" + ".join(comparison.channels) for comparison in comparisons] == SCENARIOS[:2]
    for comparison in comparisons:
        assert comparison.passes, comparison.text()


def test_adapters_too() -> None:
    for comparison in compare(settings(), lora=True):
        assert comparison.passes, comparison.text()


@pytest.mark.timeout(300)
def test_two_ranks_take_the_reference_trainers_step(tmp_path: Path, repository_root: Path) -> None:
    out = tmp_path / "out.json"
    torchrun = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = subprocess.run(
        [sys.executable, *torchrun, "-m", "tests.backends.checked", str(out), "{}"],
        cwd=repository_root,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    lines = json.loads(out.read_text("utf-8"))
    assert [line["text"].split(": ")[0].removeprefix("ok  ") for line in lines] == SCENARIOS
    assert all(line["passes"] and line["gradient"] <= 1e-4 for line in lines), lines


def test_the_student_is_left_as_it_was() -> None:
    from composer_replication.training.backends.trl_check import trl_steps
    from tests.backends.frozen import _acted

    played, config = student(), settings(preference={"weight": 0.0})
    before = {name: value.clone() for name, value in played.model.state_dict().items()}
    rows = [_acted(played.model, row) for row in range(4)]
    with trl_steps(config, student=played) as take_step:
        step = take_step(config.train, StepInputs(rows, [], num_rollouts=4))
    assert step.grad_norm > 0
    assert all(
        torch.equal(value, before[name]) for name, value in played.model.state_dict().items()
    )
    assert all(parameter.grad is None for parameter in played.model.parameters())


def test_a_batch_that_trl_cannot_hold_is_refused() -> None:
    from composer_replication.training.backends.trl_check import batch_of_rows, rollout_rows
    from tests.backends.frozen import example

    row = replace(
        example(0),
        actions=tuple(
            SampledMessage(span=(a, a + 1), logprobs=(-1.0,), advantage=a / 10) for a in (6, 8)
        ),
    )
    with pytest.raises(AlignmentError, match="2 advantages in one rollout"):
        batch_of_rows([row], pad_id=0)
    with pytest.raises(AlignmentError, match="2 examples of 1 rollouts"):
        rollout_rows(StepInputs([row, row], [], num_rollouts=1))


# ---- planted faults: in the adapter, where a wrong one would make them ----


def hint_on_the_wrong_turn(trl: Any, patch: Callable[..., None]) -> None:
    real = trl.shift_to_padding

    def earlier(targets: Any, **kwargs: Any) -> Any:
        found = real(targets, **kwargs)
        return replace(found, position_N=found.position_N - 3)

    patch(trl, "shift_to_padding", earlier)


def swapped_divergence(trl: Any, patch: Callable[..., None]) -> None:
    from composer_replication.training.backends import trl_channels

    real = trl_channels.hint_loss

    def swapped(hint: Any, *args: Any, **kwargs: Any) -> Any:
        other = hint.model_copy(update={"divergence": "kl(teacher, student)"})
        return real(other, *args, **kwargs)

    patch(trl_channels, "hint_loss", swapped)


def lost_mask(trl: Any, patch: Callable[..., None]) -> None:
    from composer_replication.training.backends import trl_check

    real = trl_check.batch_of_rows

    def unmasked(*args: Any, **kwargs: Any) -> Any:
        return {name: v for name, v in real(*args, **kwargs).items() if name != "tool_mask"}

    patch(trl_check, "batch_of_rows", unmasked)


def pairs_of_one_part_twice(trl: Any, patch: Callable[..., None]) -> None:
    """As if ranks and accumulation steps did not agree about whose pairs are whose."""
    patch(trl.ComposerReplicationTrainer, "_part", lambda trainer, items: items[:3])


@pytest.mark.parametrize(
    ("plant", "failing"),
    [
        (hint_on_the_wrong_turn, [False, True, False, True]),
        (swapped_divergence, [False, True, False, True]),
        (lost_mask, [True] * 4),
        (pairs_of_one_part_twice, [False, False, True, True]),
    ],
)
def test_a_planted_fault_fails_the_check(
    plant: Any, failing: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from composer_replication.training.backends import trl

    plant(trl, monkeypatch.setattr)
    comparisons = compare(settings())
    assert [not comparison.passes for comparison in comparisons] == failing, [
        comparison.text() for comparison in comparisons
    ]
