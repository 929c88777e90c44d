"""The inside of a PytestRunner: import pytest once, then fork for each run.

A file by itself, started by the repository's own interpreter: the standard library, pytest and,
for the lines that a test runs, coverage. Requests are JSON lines on stdin; answers are JSON lines
on the descriptor ANSWERS_FD, which no test inherits:

    {"files": {"shop/cart.py": "..."}, "tests": ["tests/test_cart.py::test_sum"],
     "paths": ["tests"], "limit_s": 40, "cover": false}
 -> {"outcomes": {"tests/test_cart.py::test_sum": "passed"}, "collected": 12, "errors": 0,
     "failure": "", "durations": {...}, "lines": {}, "ended": true, "cpu_s": 0.2, "wall_s": 0.3}

`files` replace those of the tree for this run. With no `tests` all that are collected run. "lines"
has, for each covered file and line, the numbers of the tests that ran it, by their order in
"outcomes". "ended" is false for a run that died or passed its limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

import _pytest.assertion.rewrite
import _pytest.doctest
import _pytest.junitxml
import _pytest.python
import _pytest.unittest  # noqa: F401  (all five: imported once, before the forks)
import pytest

TREE = "/repo"
_QUIET = ("-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:faulthandler")
_GO_ON = ("--continue-on-collection-errors", "-o", "addopts=")
"""A file that cannot be imported does not end the run, and neither do a repository's own options,
which may be those of a plugin that is not loaded."""
_DIED = 99


class OutcomeRecorder:
    """A pytest plugin: selects the asked tests and notes how each of them ended."""

    def __init__(self, wanted: list[str], cover: Any) -> None:
        self.wanted = frozenset(wanted)
        self.cover = cover
        self.outcomes: dict[str, str] = {}
        self.durations: dict[str, float] = {}
        self.collected = 0
        self.errors = 0
        self.failure = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        self.collected = len(items)
        if self.wanted:
            items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_collectreport(self, report: Any) -> None:
        self.errors += bool(report.failed)
        if report.failed and not self.failure:
            rows = [row.removeprefix("E ").strip() for row in str(report.longrepr).splitlines()]
            self.failure = f"{report.nodeid}: {[row for row in rows if row][-1]}"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.cover is not None:
            self.cover.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid
        self.durations[name] = round(self.durations.get(name, 0.0) + report.duration, 4)
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        if (report.when == "call" or outcome != "passed") and self.outcomes.get(name) in (
            None,
            "passed",
        ):
            self.outcomes[name] = outcome


def run_pytest(request: dict[str, Any]) -> dict[str, Any]:
    """Run pytest in this process, which is a fork; its output goes nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.chdir(TREE)
    cover = None
    if request["cover"]:
        import coverage

        cover = coverage.Coverage(data_file=None, source=[TREE], config_file=False, messages=False)
        cover.start()
    recorder = OutcomeRecorder(request["tests"], cover)
    code = pytest.main([*_QUIET, *_GO_ON, *request["paths"]], plugins=[recorder])
    if code == pytest.ExitCode.USAGE_ERROR and not recorder.failure:
        recorder.failure = "pytest cannot load a conftest.py or its settings"
    lines: dict[str, dict[int, list[int]]] = {}
    if cover is not None:
        cover.stop()
        number = {name: n for n, name in enumerate(recorder.outcomes)}
        data = cover.get_data()
        for path in data.measured_files():
            lines[os.path.relpath(path, TREE)] = {
                line: sorted(number[name] for name in names if name in number)
                for line, names in data.contexts_by_lineno(path).items()
            }
    return {
        "outcomes": recorder.outcomes,
        "durations": recorder.durations,
        "collected": recorder.collected,
        "errors": recorder.errors,
        "failure": recorder.failure,
        "lines": lines,
        "ended": True,
    }


def serve_request(request: dict[str, Any], answers: int) -> dict[str, Any]:
    """Put the files in place, run the tests in a fork, put the tree back as it was."""
    before: dict[str, bytes | None] = {}
    for path, text in request["files"].items():
        full = os.path.join(TREE, path)
        before[full] = None
        if os.path.exists(full):
            with open(full, "rb") as file:
                before[full] = file.read()
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", newline="", encoding="utf-8") as file:
            file.write(text)
    start, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    text = _forked(request, answers)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    for full, content in before.items():
        if content is None:
            os.remove(full)
            continue
        with open(full, "wb") as file:
            file.write(content)
    try:
        result = json.loads(text)
    except ValueError:
        result = {"outcomes": {}, "durations": {}, "collected": 0, "errors": 0, "lines": {}}
        result["ended"] = False
    result["wall_s"] = round(time.monotonic() - start, 3)
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return {**result, "cpu_s": round(cpu, 3)}


def _forked(request: dict[str, Any], answers: int) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.close(reading)
        os.close(answers)
        code = _DIED
        with contextlib.suppress(BaseException):
            data = json.dumps(run_pytest(request)).encode()
            while data:
                data = data[os.write(writing, data) :]
            code = 0
        os._exit(code)
    os.close(writing)
    text, end = b"", time.monotonic() + request["limit_s"]
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, end - time.monotonic()))
        part = os.read(reading, 1 << 16) if ready else b""
        if not part:
            break
        text += part
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return text


def serve_test_requests() -> None:
    """Answer requests until stdin ends."""
    answers = int(os.environ.pop("ANSWERS_FD"))
    os.set_inheritable(answers, False)
    for line in sys.stdin:
        data = json.dumps(serve_request(json.loads(line), answers)).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]


if __name__ == "__main__":
    serve_test_requests()
