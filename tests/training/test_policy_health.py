"""The health rules on a live policy, with planted numbers: each fires at its limit and not
before."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.core.config.train_settings import HealthSettings
from composer_replication.core.errors import StoppedError
from composer_replication.training.run.health import PolicyHealth


def health(**settings: Any) -> PolicyHealth:
    return PolicyHealth(settings=HealthSettings(**settings))


def calls(unresolvable: float, **more: float) -> dict[str, float]:
    return {"rollouts/unresolvable": unresolvable, **{f"rollouts/{k}": v for k, v in more.items()}}


def half(successes: int, of: int = 48) -> tuple[float, ...]:
    """So many of the tasks solved, always the first ones."""
    return tuple(float(i < successes) for i in range(of))


def rule(watched: PolicyHealth) -> str:
    breach = watched.find_breach()
    return breach.rule if breach else ""


# The means of KL to the start and the shares of unresolvable calls that five runs of the prototype
# had (facts/demo.md, part 2, section 5).
HEALTHY_KL, COLLAPSED_KL = (
    (0.0, 0.002, 0.037, 0.03, 0.079, 0.088, 0.082, 0.162),
    (
        0.0,
        0.002,
        0.036,
        0.029,
        0.134,
        1.632,
    ),
)


def test_kl_fires_above_its_limit_and_not_at_it() -> None:
    watched = health()
    for value in (*HEALTHY_KL, 0.3):
        watched.observe_kl(value)
        assert rule(watched) == ""
    watched.observe_kl(0.3001)
    breach = watched.find_breach()
    assert breach is not None and (breach.rule, breach.value, breach.limit) == ("kl", 0.3001, 0.3)
    fired = []
    for value in COLLAPSED_KL:
        watched.observe_kl(value)
        fired.append(rule(watched))
    assert fired == [""] * 5 + ["kl"]


def test_unresolvable_calls_must_last_two_steps() -> None:
    watched = health()
    for share in (0.21, 0.09, 0.11, 0.0, 0.16, 0.06, 0.1):  # the values of two runs that recovered
        watched.observe_rollouts(calls(share))
        assert rule(watched) == ""
    watched.observe_rollouts(calls(0.10))
    breach = watched.find_breach()
    assert (
        breach is not None
        and (breach.rule, breach.value, breach.limit) == ("unresolvable", 0.10, 0.10)
        and "2 steps in a row" in breach.reason
    )
    watched.observe_rollouts(calls(0.0))
    assert rule(watched) == ""


def test_a_limit_of_one_switches_the_rule_off() -> None:
    """A control is trained to its end even if every call is lost."""
    watched = health(max_unresolvable=1.0)
    for share in (1.0, 1.0, 1.0):
        watched.observe_rollouts(calls(share))
        assert rule(watched) == ""


def test_a_step_without_calls_is_no_step_of_the_streak() -> None:
    watched = health()
    for facts in (calls(0.5), {"rollouts/success": 0.0}, calls(0.5)):
        watched.observe_rollouts(facts)
        assert rule(watched) == ""


@pytest.mark.parametrize(
    ("start", "now", "fires"),
    [
        (40, 40, False),
        (40, 21, False),
        (40, 19, True),
        (40, 0, True),
        (4, 1, False),
        (6, 1, True),
        (0, 0, False),
        (10, 48, False),
    ],
)
def test_success_must_fall_by_half_and_by_more_than_chance(
    start: int, now: int, fires: bool
) -> None:
    watched = health()
    watched.observe_monitor(half(start))
    assert rule(watched) == ""
    watched.observe_monitor(half(now))
    assert rule(watched) == ("monitor" if fires else "")
    assert watched.best_success == half(max(start, now))


def test_what_was_learnt_and_lost_again_counts_although_the_start_was_low() -> None:
    watched = health()
    for solved in (5, 24):
        watched.observe_monitor(half(solved))
        assert rule(watched) == ""
    watched.observe_monitor(half(3))
    assert rule(watched) == "monitor"


def test_the_monitor_compares_task_by_task() -> None:
    """The same two means: with other tasks solved than before, the fall could as well be chance."""
    watched = health()
    watched.observe_monitor(half(9))
    watched.observe_monitor((*(0.0,) * 44, *(1.0,) * 4))
    assert rule(watched) == ""
    watched.observe_monitor(half(4))
    assert rule(watched) == "monitor"


def test_good_is_half_of_every_limit() -> None:
    watched = health()
    assert watched.is_good
    watched.observe_kl(0.15)
    assert watched.is_good
    watched.observe_kl(0.151)
    assert not watched.is_good and rule(watched) == ""
    watched.observe_kl(0.0)
    watched.observe_rollouts(calls(0.049))
    assert watched.is_good
    watched.observe_rollouts(calls(0.05))
    assert not watched.is_good and rule(watched) == ""
    watched.observe_rollouts(calls(0.0))
    watched.observe_monitor(half(40))
    watched.observe_monitor(half(31))
    assert watched.is_good
    watched.observe_monitor(half(29))
    assert not watched.is_good and rule(watched) == ""


def test_measures_warn_on_both_sides_once_and_stop_nothing() -> None:
    watched = health()
    first = {"valid_calls": 0.8, "changing_calls": 0.2, "entropy": 0.02, "message_tokens": 20.0}
    assert watched.observe_rollouts(calls(0.0, **first)) == []
    up = watched.observe_rollouts(calls(0.0, **{**first, "entropy": 0.05}))
    assert [(w["measure"], w["value"], w["start"]) for w in up] == [
        ("rollouts/entropy", 0.05, 0.02)
    ]
    # still outside: already reported
    assert watched.observe_rollouts(calls(0.0, **{**first, "entropy": 0.06})) == []
    assert watched.observe_rollouts(calls(0.0, **first)) == []
    down = watched.observe_rollouts(
        calls(
            0.0,
            **{
                **first,
                "entropy": 0.009,
                "valid_calls": 0.5,
                "changing_calls": 0.05,
                "message_tokens": 50.0,
            },
        )
    )
    assert [w["measure"] for w in down] == [
        "rollouts/valid_calls",
        "rollouts/changing_calls",
        "rollouts/entropy",
        "rollouts/message_tokens",
    ]
    assert rule(watched) == ""


def test_everything_it_remembers_survives_a_resume() -> None:
    watched, restored = health(), health()
    watched.observe_kl(0.2)
    watched.observe_rollouts(calls(0.3, entropy=0.02))
    watched.observe_rollouts(calls(0.3, entropy=0.2))
    watched.observe_monitor(half(40))
    watched.observe_monitor(half(10))
    restored.restore(watched.state())
    assert restored == watched and rule(restored) == "unresolvable"
    restored.observe_rollouts(calls(0.0, entropy=0.2))
    assert rule(restored) == "monitor"


def test_the_error_names_rule_value_limit_and_what_was_put_back() -> None:
    watched = health(max_kl=0.25)
    watched.observe_kl(0.5)
    breach = watched.find_breach()
    assert breach is not None
    error = breach.error(step=14, restored=10)
    assert isinstance(error, StoppedError) and error.exit_code == 3 and error.where == "kl"
    for phrase in (
        "'kl' after 14 steps",
        "0.5 nats",
        "the limit is 0.25",
        "after 10 steps were put back",
    ):
        assert phrase in error.what
