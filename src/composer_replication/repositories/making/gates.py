"""The gates that a change passes before it is a task. A commit has its own way through them
(commit_gates.py).

1. The unchanged repository passes its tests three times: survey.py, once for all.
2. The changed state still collects every asked test, at least one of them fails, and not most of
   the suite: then the change is what a person would call a breakage, not a task.
3. Doing nothing earns 0: the changed state, judged as an episode would be, fails.
4. The original earns 1: the same tests pass on the original when only they run, so they depend on
   no other test.

And two about the answer: no package in the sandbox holds it, and the statement does not say it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from composer_replication.repositories.making.survey import TestSurvey
from composer_replication.repositories.sandbox.test_runner import TestRun, TestRunner

MAX_FAILING = 0.6
"""A larger share of the suite fails: the package no longer works at all."""
TESTS_S = 5.0
MAX_TESTS = 300
OTHERS = 30
LIMIT_S = 60.0
HELD_OUT = 0.25
DIED, NONE_FAILS = "the run died or passed its limit", "no test fails"
"""Why a change is no task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedChange:
    """What the tests say of a change: those that must pass and keep passing, or why it is no
    task. `unimported` are test files that cannot be imported in the changed state."""

    refused: str = ""
    must_pass: tuple[str, ...] = ()
    must_keep: tuple[str, ...] = ()
    cpu_s: float = 0.0
    unimported: tuple[str, ...] = ()


def judge_change(
    runner: TestRunner, survey: TestSurvey, *, files: Mapping[str, str], tests: Sequence[str]
) -> JudgedChange:
    """Put a change through gates 2 to 4. `tests` are those that run the changed lines."""
    asked = affordable(tests, survey.durations)
    changed = runner.run(tests=asked, files=files, limit_s=LIMIT_S)
    if not changed.ended:
        return JudgedChange(refused=DIED)
    if changed.errors or set(asked) - set(changed.outcomes):
        return JudgedChange(refused="no longer imports or collects")
    failing = [name for name in asked if changed.outcomes[name] == "failed"]
    if not failing:
        return JudgedChange(refused=NONE_FAILS)
    if len(failing) > MAX_FAILING * len(survey.steady):
        return JudgedChange(refused="most of the suite fails")
    keep = [name for name in asked if changed.outcomes[name] == "passed"]
    covering = set(tests)
    others = [name for name in survey.steady if name not in covering]
    others.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    keep = sorted({*keep, *affordable(others[:OTHERS], survey.durations)})
    return judge_ends(runner, [files], must_pass=failing, must_keep=keep)


def judge_ends(
    runner: TestRunner,
    unsolved: Sequence[Mapping[str, str]],
    *,
    must_pass: Sequence[str],
    must_keep: Sequence[str],
) -> JudgedChange:
    """Gates 3 and 4: each of the unsolved states earns nothing, and the original earns 1."""
    for files in unsolved:
        if earns(runner, files=files, must_pass=must_pass, must_keep=must_keep).reward:
            return JudgedChange(refused="doing nothing earns a reward")
    original = earns(runner, files={}, must_pass=must_pass, must_keep=must_keep)
    if not original.reward:
        return JudgedChange(refused=f"the original earns nothing: {original.reason}")
    return JudgedChange(
        must_pass=tuple(must_pass), must_keep=tuple(must_keep), cpu_s=original.run.cpu_s
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EarnedReward:
    """1.0 if every asked test passed, else 0.0 with the reason."""

    reward: float
    reason: str
    run: TestRun


def earns(
    runner: TestRunner,
    *,
    files: Mapping[str, str],
    must_pass: Sequence[str],
    must_keep: Sequence[str],
    limit_s: float = LIMIT_S,
) -> EarnedReward:
    """The reward of a state of the repository: all or nothing."""
    run = runner.run(tests=[*must_pass, *must_keep], files=files, limit_s=limit_s)
    if not run.ended:
        return EarnedReward(reward=0.0, reason=DIED, run=run)
    for name in (*must_pass, *must_keep):
        if run.outcomes.get(name) != "passed":
            reason = f"{name} {run.outcomes.get(name, 'was not run')}"
            return EarnedReward(reward=0.0, reason=reason, run=run)
    return EarnedReward(reward=1.0, reason="", run=run)


def affordable(tests: Sequence[str], durations: Mapping[str, float]) -> list[str]:
    """The cheapest of some tests, up to a number and a few seconds, in the order of their names."""
    chosen: list[str] = []
    left = TESTS_S
    for name in sorted(tests, key=lambda name: (round(durations.get(name, 0.0), 1), name)):
        left -= durations.get(name, 0.0)
        if chosen and (left < 0 or len(chosen) >= MAX_TESTS):
            break
        chosen.append(name)
    return sorted(chosen)


def hold_out(tests: Sequence[str], *, seed: str) -> list[str]:
    """A quarter of the tests, whole functions at a time, that a player never sees; none where
    only one function tests the change.

    >>> hold_out(["a.py::t[1]", "a.py::t[2]"], seed="x")
    []
    """
    functions = sorted({name.partition("[")[0] for name in tests})
    functions.sort(key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    hidden = set(functions[: round(HELD_OUT * len(functions))])
    return [name for name in tests if name.partition("[")[0] in hidden]
