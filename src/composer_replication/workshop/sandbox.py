"""The sandbox in which the code of a task runs: a worker process without torch, and a fresh child
for every run, behind walls of the kernel.

    with Sandbox() as sandbox:
        run = sandbox.run({"main.py": "depth = 7"}, [("main.py", "depth")])
        run.answers             # (ExpressionResult(value=7, error=""),)
        sandbox.mechanisms      # {"seccomp": "27 system calls pass, ...", "namespaces": "...", ...}

The system call filter (seccomp) is required: behind it there is no open, no socket, no fork and no
signal, with or without root. Namespaces with an empty root and Landlock are added if the kernel
allows them. Before the first run, a probe tries to get out in each of these ways; if one succeeds,
or there is no filter, `Sandbox` refuses. Code is never run without walls. Linux on x86_64 and
aarch64 only; the system call numbers for aarch64 are there, but were never run.

The expected values of tests stay outside: the code is asked for values, one after the other, and
they are compared here. Whether an answer can be trusted is another matter, because the code may
answer anything (`task_tests.py`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from composer_replication.core.errors import SandboxError
from composer_replication.workshop.sandbox_worker import ALL_LAYERS

End = Literal["answered", "timeout", "too_much_output", "unreadable", "died"]
_SOURCES = str(Path(__file__).resolve().parents[2])
_WORKER = "composer_replication.workshop.sandbox_worker"
_START = (
    f"import sys; sys.path.insert(0, {_SOURCES!r}); from {_WORKER} import serve_requests;"
    " serve_requests()"
)
_END_REASONS: dict[End, str] = {
    "answered": "no answer that can be read",
    "timeout": "time limit",
    "too_much_output": "too much output",
    "unreadable": "no answer that can be read",
    "died": "the process died",
}
_WAIT_S, _GRACE_S = 20.0, 1.0
_INTERPRETER_MB = 32  # address space of the bare worker, measured at 16
_FIX = (
    "run on Linux 5.13 or newer (x86_64 or aarch64) where a process may filter its own system"
    " calls; nothing runs without walls"
)
_LIBC = "__import__('ctypes').CDLL(None)"
ESCAPES: dict[str, str] = {
    "read a file": "open('/etc/passwd').read()",
    "write a file": "open('/tmp/workshop-escape', 'w')",
    "list a folder": "__import__('posix').listdir('/')",
    "open a file by a system call": f"{_LIBC}.open(b'/', 0)",
    "open an internet socket": f"{_LIBC}.socket(2, 1, 0)",
    "open a local socket": f"{_LIBC}.socket(1, 1, 0)",
    "start a process": f"{_LIBC}.fork()",
    "start a program": "__import__('posix').execv('/bin/true', ['true'])",
    "signal its parent": f"{_LIBC}.kill(__import__('posix').getppid(), 0)",
    "be traced": f"{_LIBC}.ptrace(0, 0, 0, 0)",
}
"""The attempts of the probe before the first run: each has to end in an error of the system, or in
-1 from the C library."""
_REFUSALS = ("PermissionError", "OSError", "FileNotFoundError")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of one run: CPU seconds, wall seconds, and megabytes of address space on top of
    the bare interpreter's.

    CPU time ends endless computation, at the same place on a busy machine as on an idle one; wall
    time ends code that sleeps.
    """

    time_s: float = 2.0
    wall_s: float = 30.0
    memory_mb: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpressionResult:
    """The result of one expression: a plain value, or the error that it raised, e.g.
    error="NameError: ..."."""

    value: Any = None
    error: str = ""

    def equals(self, expected: object) -> bool:
        """Whether the value is the expected one and of the same type: True is not 1."""
        return not self.error and type(self.value) is type(expected) and self.value == expected


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRun:
    """The outcome of a run, and one result per expression; an unanswered one has an error that says
    so."""

    end: End
    answers: tuple[ExpressionResult, ...]


class Sandbox:
    """A worker that runs code behind walls. It starts at the first run, makes one run at a time,
    and is safe to share between episodes.

    Raises SandboxError if the walls cannot be put up, with the reason and the remedy. `layers` is
    for tests of the walls themselves; a sandbox without "seccomp" refuses.
    """

    def __init__(
        self, *, limits: SandboxLimits | None = None, layers: Sequence[str] = ALL_LAYERS
    ) -> None:
        self.limits = limits or SandboxLimits()
        self.mechanisms: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._layers = tuple(layers)
        self._worker: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the worker, read which layers are in force, and probe them; does nothing if it runs
        already."""
        with self._lock:
            self._start()

    def run(self, files: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> SandboxRun:
        """Evaluate (path, expression) pairs, one after the other, in a fresh process that holds
        these files in memory only."""
        with self._lock:
            self._start()
            return self._run(files, asked)

    def close(self) -> None:
        """End the worker; safe to call twice."""
        worker, self._worker = self._worker, None
        if worker is None or self._owner != os.getpid():
            return
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.close()  # an idle worker ends here, and its children with it
        try:
            worker.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
        worker.stdout.close()

    def _start(self) -> None:
        if self._worker is not None and self._owner == os.getpid():
            return
        if not sys.platform.startswith("linux"):
            raise SandboxError(
                f"code cannot be run safely on {sys.platform}", where="the sandbox", fix=_FIX
            )
        limits = self.limits
        memory = (limits.memory_mb + _INTERPRETER_MB) << 20
        # A process that was forked from the trainer gets its own worker: two readers of one
        # pipe would mix answers.
        self._worker = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                "-B",
                "-c",
                _START,
                ",".join(self._layers),
                *map(str, (limits.time_s, limits.wall_s, memory)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )
        self._owner = os.getpid()
        hello = self._receive(_WAIT_S)
        self.mechanisms, self.missing = (
            dict(hello.get("in_force", {})),
            dict(hello.get("missing", {})),
        )
        if "seccomp" not in self.mechanisms:
            self._refuse(
                "the system call filter cannot be put in force:"
                f" {hello.get('refused', 'not asked for')}"
            )
        self._probe()

    def _probe(self) -> None:
        probe = self._run({"probe.py": ""}, [("probe.py", code) for code in ESCAPES.values()])
        open_ways = [
            way
            for way, answer in zip(ESCAPES, probe.answers, strict=True)
            if not refused_by_the_sandbox(answer)
        ]
        if open_ways:
            self._refuse(
                f"code in the sandbox was able to {', '.join(open_ways)} (the run {probe.end})"
            )

    def _refuse(self, reason: str) -> None:
        self.close()
        raise SandboxError(reason, where="the sandbox", fix=_FIX)

    def _run(self, files: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> SandboxRun:
        body = json.dumps({"files": dict(files), "asked": asked}).encode()
        reply = self._exchange(body, self.limits.wall_s + _WAIT_S)
        end: End = reply["end"]
        stopped = ExpressionResult(error=f"Stopped: {_END_REASONS[end]}")
        answers = [_read_result(text) or stopped for text in reply["answers"]]
        return SandboxRun(end=end, answers=(*answers, *[stopped] * (len(asked) - len(answers))))

    def _exchange(self, body: bytes, wait_s: float) -> dict[str, Any]:
        worker = self._worker
        assert worker is not None and worker.stdin is not None
        try:
            data = memoryview(len(body).to_bytes(4, "big") + body)
            while data:
                data = data[worker.stdin.write(data) or 0 :]
        except BrokenPipeError:
            self._refuse("the worker has ended")
        return self._receive(wait_s)

    def _receive(self, wait_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + wait_s
        return json.loads(self._read(int.from_bytes(self._read(4, deadline), "big"), deadline))

    def _read(self, count: int, deadline: float) -> bytes:
        worker = self._worker
        assert worker is not None and worker.stdout is not None
        data = b""
        while len(data) < count:
            ready, _, _ = select.select(
                [worker.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            part = os.read(worker.stdout.fileno(), count - len(data)) if ready else b""
            if not part:
                self._refuse(
                    "the worker ended without a word" if ready else "the worker does not answer"
                )
            data += part
        return data


def refused_by_the_sandbox(answer: ExpressionResult) -> bool:
    """Whether the kernel stopped an attempt to get out."""
    return answer.error.startswith(_REFUSALS) or answer.equals(-1)


def sandbox_mechanisms() -> dict[str, str]:
    """The layers in force on this machine, by name, proven by a probe; raises SandboxError if code
    would not be run. For example {"namespaces": "user, network, mount, pid, ipc, uts", ...}."""
    with Sandbox() as sandbox:
        sandbox.start()
        return sandbox.mechanisms


def _read_result(text: str) -> ExpressionResult | None:
    """The result that a child wrote, read as untrusted text; None if it does not have the agreed
    form."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match data:
        case ["value", value]:
            return ExpressionResult(value=value)
        case ["error", str() as error]:
            return ExpressionResult(error=error[:200] or "Error")
        case _:
            return None
