"""The comparison of a backend's step with the reference trainer's: what it compares, and that a
planted difference fails it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ConfigError
from composer_replication.training.backends.step_check import (
    StepGradients,
    TakeStep,
    check_steps,
    reference_steps,
    registered_steps,
    scenarios,
)
from composer_replication.training.inputs import StepInputs
from tests.training.small_student import make_config, make_pair, make_rollout, make_student

pytestmark = pytest.mark.train
SETTINGS: dict[str, Any] = {
    "policy": {"weight": 1.0},
    "lm_ce": {"weight": 0.0},
    "hint": {"weight": 0.5},
    "preference": {"weight": 0.3, "anchor": 0.0},
}
INPUTS = StepInputs(
    [make_rollout(n, advantage=(0.5, -0.5)[n % 2]) for n in range(4)],
    [make_pair(n) for n in range(3)],
    num_rollouts=5,
)


def test_each_channel_is_added_to_the_first_and_then_all() -> None:
    names = [channels for channels, _ in scenarios(make_config(**SETTINGS).train)]
    assert names == [
        ("policy",),
        ("policy", "hint"),
        ("policy", "preference"),
        ("policy", "hint", "preference"),
    ]


def test_the_reference_trainer_passes_its_own_check_in_either_layout() -> None:
    @contextmanager
    def in_rows(config: Config, *, student: Any) -> Iterator[TakeStep]:
        rows = config.train.model_copy(update={"layout": "rows"})
        config = config.model_copy(update={"train": rows})
        with reference_steps(config, student=student) as steps:
            yield lambda settings, inputs: steps(
                settings.model_copy(update={"layout": "rows"}), inputs
            )

    config = make_config(**SETTINGS, layout="tree")
    comparisons = check_steps(config, student=make_student(), inputs=INPUTS, open_steps=in_rows)
    assert len(comparisons) == 4
    for comparison in comparisons:
        assert comparison.passes, comparison.text()
        assert set(comparison.reference.losses) == set(comparison.channels)
        assert {"gradient norm", "gradient"} < set(comparison.differences)
    norms = [comparison.reference.grad_norm for comparison in comparisons]
    assert len({round(norm, 6) for norm in norms}) == 4, "a channel that adds nothing"


def altered(change: Any) -> Any:
    """The reference trainer's step on a changed batch or result."""

    @contextmanager
    def opened(config: Config, *, student: Any) -> Iterator[TakeStep]:
        with reference_steps(config, student=student) as steps:
            yield lambda settings, inputs: change(steps, settings, inputs)

    return opened


def on_other_pairs(steps: TakeStep, settings: Any, inputs: StepInputs) -> StepGradients:
    swapped = [
        replace(p, chosen_ids=p.rejected_ids, rejected_ids=p.chosen_ids) for p in inputs.pairs
    ]
    return steps(settings, replace(inputs, pairs=swapped))


def without_a_loss(steps: TakeStep, settings: Any, inputs: StepInputs) -> StepGradients:
    result = steps(settings, inputs)
    losses = {name: loss for name, loss in result.losses.items() if name != "hint"}
    return replace(result, losses=losses)


def turned(steps: TakeStep, settings: Any, inputs: StepInputs) -> StepGradients:
    """The same norm in another direction."""
    result = steps(settings, inputs)
    return replace(result, gradients={n: -grad for n, grad in result.gradients.items()})


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (on_other_pairs, [False, False, True, True]),
        (without_a_loss, [False, True, False, True]),
        (turned, [True] * 4),
    ],
)
def test_a_planted_difference_fails_where_it_is(change: Any, failing: list[bool]) -> None:
    comparisons = check_steps(
        make_config(**SETTINGS), student=make_student(), inputs=INPUTS, open_steps=altered(change)
    )
    assert [not comparison.passes for comparison in comparisons] == failing


def test_a_batch_without_a_gradient_compares_nothing_and_fails() -> None:
    flat = replace(INPUTS, examples=[make_rollout(n, advantage=0.0) for n in range(2)])
    comparisons = check_steps(
        make_config(**SETTINGS), student=make_student(), inputs=flat, open_steps=reference_steps
    )
    assert not any(comparison.passes for comparison in comparisons)
    assert comparisons[1].reference.grad_norm > 0, "the hint alone has one"
    assert comparisons[1].text().startswith("NOTHING IN THE BATCH FOR policy")


def test_a_backend_without_a_step_is_named() -> None:
    with pytest.raises(ConfigError, match="no step that could be compared"):
        registered_steps("prime_rl_of_another_day")
