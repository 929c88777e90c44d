"""TAID's schedule: the published rule, and steps without a site, which do not advance it."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.losses.schedules import TaidSchedule


def published(
    losses: list[float], steps: int, t_end: float = 1.0, alpha: float = 5e-4
) -> list[float]:
    """The rule of arXiv 2501.16937's code, written down once more."""
    t, previous, momentum, out = 0.4, math.inf, 0.0, []
    for step, loss in enumerate(losses):
        if math.isinf(previous):
            previous = loss
        else:
            momentum = 0.99 * momentum + 0.01 * (previous - loss) / (previous + 1e-15)
            previous = loss
            gain = alpha / (1 + math.exp(-momentum)) * (1 - t)
            t = min(t_end, max(0.4 + (t_end - 0.4) * step / steps, t + gain))
        out.append(t)
    return out


@given(
    losses=st.lists(st.floats(0.01, 5.0), min_size=1, max_size=60),
    alpha=st.floats(0.0, 1.0),
    t_end=st.floats(0.5, 1.0),
)
def test_the_published_rule(losses: list[float], alpha: float, t_end: float) -> None:
    schedule = TaidSchedule(num_steps=80, alpha=alpha, t_end=t_end)
    got = [schedule.update(loss, step=step, tokens=5) for step, loss in enumerate(losses)]
    assert got == pytest.approx(published(losses, 80, t_end, alpha), rel=1e-12)
    assert all(a <= b for a, b in itertools.pairwise(got)) and got[-1] <= t_end


def test_a_step_without_a_site_is_not_an_update() -> None:
    """Taken as a loss of 0, it would hold t still for thousands of steps."""
    losses = [2.0 - 0.004 * i for i in range(60)]
    stepped, silent, trapped = (TaidSchedule(num_steps=100_000, alpha=5e-3) for _ in range(3))
    for step, loss in enumerate(losses):
        stepped.update(loss, step=step, tokens=30)
        silent.update(loss, step=step, tokens=30)
        trapped.update(loss, step=step, tokens=30)
        if step == 3:
            before = (silent.t, silent.momentum, silent.previous_loss)
            assert silent.update(0.0, step=step, tokens=0) == silent.t and before == (
                silent.t,
                silent.momentum,
                silent.previous_loss,
            )
            silent.update(math.nan, step=step, tokens=0)  # the mean of no tokens
            trapped.update(0.0, step=step, tokens=1)
    assert silent.t == stepped.t and stepped.t > 0.45
    assert trapped.t < 0.42 and trapped.momentum < -1e12


def test_an_empty_first_step_is_not_the_first_loss() -> None:
    schedule = TaidSchedule(num_steps=10)
    schedule.update(0.0, step=0, tokens=0)
    assert schedule.previous_loss is None and schedule.t == 0.4


def test_the_linear_schedule_is_as_published_and_its_state_is_plain() -> None:
    schedule = TaidSchedule(num_steps=10, adaptive=False)
    schedule.update(1.0, step=0, tokens=1)
    assert schedule.update(1.0, step=5, tokens=1) == pytest.approx(0.7) and schedule.update(
        1.0, step=11, tokens=1
    ) == pytest.approx(1.06)
    saved = {name: getattr(schedule, name) for name in ("t", "previous_loss", "momentum")}
    again = TaidSchedule(num_steps=10, adaptive=False, **saved)
    assert again == schedule


@pytest.mark.parametrize(
    "options",
    [
        {"num_steps": 0},
        {"t_start": 1.0},
        {"t_end": 0.0},
        {"alpha": 1.5},
        {"beta": 1.0},
        {"t_start": -0.1},
    ],
    ids=str,
)
def test_settings_out_of_bounds_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=r"num_steps|out of bounds"):
        TaidSchedule(**{"num_steps": 10, **options})


def test_a_loss_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        TaidSchedule(num_steps=10).update(math.nan, step=0, tokens=3)
