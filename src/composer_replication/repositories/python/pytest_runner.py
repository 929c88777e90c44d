"""Run a repository's tests behind walls, many times, with some of its files changed.

    with PytestRunner(tree=base, python=python, import_root="src") as runner:
        run = runner.run(tests=["tests/test_cart.py::test_sum"], files={"shop/cart.py": "..."})
        run.outcomes            # {"tests/test_cart.py::test_sum": "failed"}

pytest is imported once; each run is a fork, so it starts in milliseconds and leaves nothing behind
in memory. The tree is a copy in memory; files that a test itself leaves in it stay for the next
run.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.errors import SandboxError
from composer_replication.repositories.sandbox.test_runner import TestRun
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox, refused

_WORKER = Path(__file__).with_name("pytest_worker.py")
_START_S = 60.0


def python_path(import_root: str) -> dict[str, str]:
    """The variable by which a tree's modules, and the made `dist-info`, are found."""
    return {"PYTHONPATH": f"/repo/{import_root}:/repo:/metadata"}


class PytestRunner:
    """A worker for one tree; it starts at the first run and again if it was lost."""

    def __init__(
        self, *, tree: Path, python: str, import_root: str, metadata: Path | None = None
    ) -> None:
        self._tree = tree
        self._import_root = import_root
        read_only = [(str(_WORKER), "/worker.py")]
        if metadata is not None:
            read_only.append((str(metadata), "/metadata"))
        self._sandbox = TreeSandbox(python=python, read_only=tuple(read_only))
        self._process: subprocess.Popen[Any] | None = None
        self._answers = -1
        self._buffer = b""
        self.cpu_s = 0.0
        """Seconds of CPU of all runs so far."""

    def __enter__(self) -> PytestRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        at = list(paths) or sorted({name.partition("::")[0] for name in tests})
        request = {
            "files": dict(files or {}),
            "tests": list(tests),
            "paths": at,
            "limit_s": limit_s,
            "cover": cover,
        }
        process = self._worker()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._lost()
        reply = self._receive(limit_s + _START_S)
        if reply is None:
            self.close()
            return TestRun(
                outcomes={},
                durations={},
                collected=0,
                errors=0,
                ended=False,
                cpu_s=0.0,
                wall_s=limit_s,
            )
        self.cpu_s += reply["cpu_s"]
        names = list(reply["outcomes"])
        lines = {
            path: {int(line): [names[n] for n in numbers] for line, numbers in covered.items()}
            for path, covered in reply.pop("lines").items()
        }
        return TestRun(**reply, lines=lines)

    def close(self) -> None:
        """End the worker and everything that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()
        os.close(self._answers)

    def _worker(self) -> subprocess.Popen[Any]:
        if self._process is None:
            reading, writing = os.pipe()
            env = {
                **python_path(self._import_root),
                "ANSWERS_FD": str(writing),
            }
            self._process = self._sandbox.start(
                ["/worker.py"], tree=self._tree, env=env, pass_fds=(writing,)
            )
            os.close(writing)
            self._answers, self._buffer = reading, b""
        return self._process

    def _receive(self, wait_s: float) -> dict[str, Any] | None:
        """The next answer; None if there is none in time."""
        end = time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            part = os.read(self._answers, 1 << 20)
            if not part:
                self._lost()
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _lost(self) -> None:
        """Say why the worker ended."""
        process = self._process
        assert process is not None
        error = process.communicate()[1].decode(errors="replace").strip()
        os.close(self._answers)
        self._process = None
        last = (error.splitlines() or ["it said nothing"])[-1]
        raise SandboxError(
            f"the tests' process ended: {last}",
            where="the sandbox",
            fix="no walls, nothing runs: see the reason"
            if refused(process)
            else "the interpreter needs pytest and coverage",
        )
