"""What the tests of an unchanged repository do: which pass every time, and which lines each runs.

survey = survey_tests(runner, checkout)
survey.steady                           # ids that passed three times
survey.tests_of("shop/cart.py", range(10, 14))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from composer_replication.core.errors import DataError
from composer_replication.repositories.checkout import Checkout
from composer_replication.repositories.sandbox.test_runner import TestRun, TestRunner
from composer_replication.repositories.task_language import language_of

RUNS = 3
LIMIT_S = 300.0
COVERED = 3
"""The run that also counts lines may take this many times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestSurvey:
    """The steady tests (passed in each of three runs), those left out with the reason, what each
    costs in seconds, and the tests that ran each line."""

    __test__ = False

    steady: tuple[str, ...]
    left_out: Mapping[str, str]
    durations: Mapping[str, float]
    collected: int
    suite_s: float
    lines: Mapping[str, Mapping[int, tuple[str, ...]]]

    def tests_of(self, path: str, lines: Iterable[int]) -> list[str]:
        """The steady tests that run one of these lines, sorted."""
        covered = self.lines.get(path, {})
        return sorted({test for line in lines for test in covered.get(line, ())})


def survey_tests(runner: TestRunner, checkout: Checkout) -> TestSurvey:
    """Run the whole suite three times, once with coverage; raises DataError if none passes."""
    runs = [
        runner.run(paths=checkout.tests, cover=number == 0, limit_s=limit_s)
        for number, limit_s in enumerate((COVERED * LIMIT_S, *[LIMIT_S] * (RUNS - 1)))
    ]
    if late := [number for number, run in enumerate(runs) if not run.ended]:
        counting = ", only the one that counts lines" if late == [0] else ""
        raise DataError(
            f"its tests died or took more than {LIMIT_S:.0f} s ({COVERED * LIMIT_S:.0f} s with"
            f" their lines counted) in {len(late)} of {RUNS} runs{counting}",
            where=str(checkout.folder),
            fix="try it on an idle machine, or on a copy without the slowest test files",
        )
    steady = set(runs[0].named("passed")).intersection(*(run.named("passed") for run in runs[1:]))
    if not steady:
        first = f"; {runs[0].failure}" if runs[0].failure else ""
        raise DataError(
            f"none of its {runs[0].collected} tests passes {RUNS} times"
            f" ({runs[0].errors} files cannot be collected{first})",
            where=str(checkout.folder),
            fix=language_of(checkout).advice,
        )
    return TestSurvey(
        steady=tuple(sorted(steady)),
        left_out=_left_out(runs, steady),
        durations=runs[-1].durations,
        collected=runs[0].collected,
        suite_s=runs[-1].cpu_s,
        lines={
            path: {
                line: tuple(name for name in names if name in steady)
                for line, names in covered.items()
            }
            for path, covered in runs[0].lines.items()
        },
    )


def _left_out(runs: list[TestRun], steady: set[str]) -> dict[str, str]:
    """Why each other test is left out: "flaky", or how it always ends."""
    reasons: dict[str, str] = {}
    for name in sorted({name for run in runs for name in run.outcomes} - steady):
        ends = {run.outcomes.get(name, "not collected") for run in runs}
        reasons[name] = ends.pop() if len(ends) == 1 else "flaky"
    return reasons
