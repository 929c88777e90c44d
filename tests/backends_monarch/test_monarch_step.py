"""The step of the trainer actors is the reference loop's: policy alone, each channel added, all
three, on one rank and on two. A fault that is planted in the actors is seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from composer_replication.models.load_student import Student
from composer_replication.training.backends.monarch_run import Cluster, Trainers, _values
from composer_replication.training.backends.step_check import StepComparison, check_steps
from composer_replication.training.inputs import StepInputs
from tests.backends_monarch.planted import FAULTS, PlantedTrainer
from tests.training.small_student import make_config, make_pair, make_rollout, make_student

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]
SETTINGS: dict[str, Any] = {
    "policy": {"weight": 1.0},
    "lm_ce": {"weight": 0.0},
    "hint": {"weight": 0.5, "divergence": "kl(student, teacher)"},
    "preference": {"weight": 0.3, "anchor": 0.0},
}
INPUTS = StepInputs(
    [make_rollout(n, advantage=(0.5, -0.5)[n % 2], hints=1) for n in range(4)],
    [make_pair(n) for n in range(4)],
    num_rollouts=5,
)
SCENARIOS = [
    ("policy",),
    ("policy", "hint"),
    ("policy", "preference"),
    ("policy", "hint", "preference"),
]
FAILING = {
    "": [False, False, False, False],
    "hint_on_the_wrong_turn": [False, True, False, True],
    "swapped_divergence": [False, True, False, True],
    "lost_mask": [True, True, True, True],
    "pairs_split_across_ranks": [False, False, True, True],
}


@pytest.fixture(scope="module", params=[1, 2], ids=["1_rank", "2_ranks"])
def trainers(request: pytest.FixtureRequest) -> Iterator[Trainers]:
    with Cluster() as cluster:
        yield Trainers(cluster, ranks=request.param, actor=PlantedTrainer)


def sharp_student() -> Student:
    """Random weights with sharp logits: both directions of a KL differ."""
    student = make_student()
    with torch.no_grad():
        student.model.model.norm.weight.mul_(6.0)
    return student


def compare(trainers: Trainers, *, fault: str) -> list[StepComparison]:
    """Every scenario by the actors and by the reference trainer in this process."""

    @contextmanager
    def by_actors(config: Any, *, student: Any) -> Iterator[Any]:
        yield lambda settings, inputs: trainers.compute(config, student, settings, inputs)

    _values(trainers._actors.plant, fault)
    return check_steps(
        make_config(**SETTINGS), student=sharp_student(), inputs=INPUTS, open_steps=by_actors
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_the_actors_step_is_the_reference_loops_and_a_planted_fault_is_seen(
    fault: str, trainers: Trainers
) -> None:
    comparisons = compare(trainers, fault=fault)
    assert [comparison.channels for comparison in comparisons] == SCENARIOS
    failing = [not comparison.passes for comparison in comparisons]
    assert failing == FAILING[fault], [comparison.text() for comparison in comparisons]
    norms = [comparison.reference.grad_norm for comparison in comparisons]
    assert len({round(norm, 6) for norm in norms}) == 4, "a channel that adds nothing"
