"""One step of verl's own TrainingWorker (FSDP2, gloo) against the reference trainer: 1 rank, 2
ranks, 2 Ray workers, every channel added to the policy, and faults that must be seen."""

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

from composer_replication.tokens.example import HintView, PreferencePair, TrainingExample
from composer_replication.training.backends import verl_loss
from composer_replication.training.backends.verl_rows import plan_micro_batches
from tests.backends_verl.frozen_verl import compare, settings

pytestmark = [pytest.mark.backend, pytest.mark.train]
ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ["policy", "policy + hint", "policy + preference", "policy + hint + preference"]


def in_processes(out: Path, launcher: list[str], **train: Any) -> list[dict[str, Any]]:
    """The comparisons, computed by other processes."""
    module = ["-m", "tests.backends_verl.frozen_verl", str(out), json.dumps(train)]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, *launcher, *module],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(out.read_text("utf-8"))


def check(comparisons: list[dict[str, Any]]) -> None:
    """Every scenario passes, gradients included, and each channel adds something."""
    assert [line["text"].split(": ")[0].removeprefix("ok  ") for line in comparisons] == SCENARIOS
    for line in comparisons:
        assert line["passes"] and line["gradient"] <= 1e-4, line["text"]
    assert len({line["text"].split(", backend")[0].split()[-1] for line in comparisons}) == 4


@pytest.mark.parametrize(
    "train",
    [
        {},
        {
            "hint": {"weight": 0.5, "teacher": "live", "divergence": "kl(student, teacher)"},
            "lm_ce": {"weight": 0.7},
            "preference": {"weight": 0.3, "anchor": 0.5, "objective": "ipo"},
        },
        {
            "policy": {"weight": 1.0, "objective": "gspo"},
            "hint": {"weight": 0.5, "estimator": "top_k", "top_k": 6, "contrast": True},
            "preference": {"weight": 0.3, "anchor": 0.0, "objective": "simpo"},
        },
    ],
)
def test_one_rank_takes_the_reference_trainers_step(train: dict[str, Any]) -> None:
    comparisons = compare(settings(**train))
    assert len(comparisons) >= 4
    for comparison in comparisons:
        assert comparison.passes and "gradient" in comparison.differences, comparison.text()


@pytest.mark.timeout(600)
def test_two_ranks_take_the_reference_trainers_step(tmp_path: Path) -> None:
    torchrun = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    check(in_processes(tmp_path / "out.json", torchrun))


@pytest.mark.timeout(600)
def test_two_ray_workers_take_the_reference_trainers_step(tmp_path: Path) -> None:
    check(in_processes(tmp_path / "out.json", ["-W", "ignore"], verl={"ray_workers": 2}))


# ---- planted faults: each inside the worker, where a wrong adapter would make it ----


def hint_on_the_wrong_turn(item: Any) -> Any:
    """The hint and its target four tokens too early."""
    if not isinstance(item, TrainingExample) or not item.hints:
        return item
    return replace(item, hints=tuple(_earlier(item, view) for view in item.hints))


def _earlier(example: TrainingExample, view: HintView) -> HintView:
    a, b = (end - 4 for end in view.span)
    return replace(view, at=view.at - 4, span=(a, b), target_ids=example.ids[a:b])


def sides_of_other_pairs(item: Any) -> Any:
    """A chosen side beside the rejected one of another pair, as if verl had split a pair's rows."""
    if not isinstance(item, PreferencePair):
        return item
    return replace(item, rejected_ids=tuple(reversed(item.rejected_ids)))


def lost_mask(item: Any) -> Any:
    """The token behind each sampled message is trained on too."""
    if not isinstance(item, TrainingExample):
        return item
    actions = tuple(
        replace(
            action,
            span=(action.span[0], action.span[1] + 1),
            logprobs=(*action.logprobs, action.logprobs[-1]),
        )
        for action in item.actions
    )
    return replace(item, ids=(*item.ids, 3), actions=actions)


def planting(change: Callable[[Any], Any]) -> Any:
    def plan(train: Any, items: Any, *, pad_id: int) -> Any:
        return plan_micro_batches(train, [change(item) for item in items], pad_id=pad_id)

    return plan


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (hint_on_the_wrong_turn, [False, True, False, True]),
        (sides_of_other_pairs, [False, False, True, True]),
        (lost_mask, [True] * 4),
    ],
)
def test_a_wrong_row_fails_the_check(
    change: Any, failing: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from composer_replication.training.backends import verl_worker

    monkeypatch.setattr(verl_worker, "plan_micro_batches", planting(change))
    assert [not comparison.passes for comparison in compare(settings())] == failing


def test_swapped_divergence_arguments_fail_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verl_loss.losses_on

    def swapped(models: Any, *args: Any, **kwargs: Any) -> Any:
        hint = models.settings.hint.model_copy(update={"divergence": "kl(teacher, student)"})
        train = models.settings.model_copy(update={"hint": hint})
        return real(replace(models, settings=train), *args, **kwargs)

    monkeypatch.setattr(verl_loss, "losses_on", swapped)
    config = settings(hint={"weight": 0.5, "divergence": "kl(student, teacher)"})
    passed = [comparison.passes for comparison in compare(config)]
    assert passed == [True, False, True, False]
