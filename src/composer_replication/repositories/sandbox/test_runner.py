"""Running a repository's tests many times, with some of its files changed, whatever the language.

    with language.runner(environment, base, import_root="src") as runner:
        run = runner.run(tests=["tests/test_cart.py::test_sum"], files={"shop/cart.py": "..."})
        run.outcomes            # {"tests/test_cart.py::test_sum": "failed"}

A test's id is the path of its file, "::", and its name, with "[CASE]" behind it where one function
has several cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """How each test ended ("passed", "failed", "skipped", "xfailed"), and what the run cost.

    `ended` is False for a run that died or passed its limit; `errors` counts files that could not
    be collected, `failure` says why the first of them could not. `lines` maps a file and a line to
    the tests that ran it, for a run with `cover`.
    """

    __test__ = False  # no test class, whatever pytest thinks of its name

    outcomes: Mapping[str, str]
    durations: Mapping[str, float]
    collected: int
    errors: int
    ended: bool
    cpu_s: float
    wall_s: float
    failure: str = ""
    lines: Mapping[str, Mapping[int, Sequence[str]]] = field(default_factory=dict)

    def named(self, outcome: str) -> list[str]:
        """The tests that ended so, sorted."""
        return sorted(name for name, end in self.outcomes.items() if end == outcome)


class TestRunner(Protocol):
    """Runs the tests of one tree behind walls until it is closed."""

    __test__ = False

    cpu_s: float
    """Seconds of CPU of all runs so far."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def run(
        self,
        *,
        tests: Sequence[str] = (),
        paths: Sequence[str] = (),
        files: Mapping[str, str] | None = None,
        limit_s: float = 60.0,
        cover: bool = False,
    ) -> TestRun:
        """Run tests by their ids, or all below `paths`, with some files replaced."""
        ...
