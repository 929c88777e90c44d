"""The worker's side of the sandbox: it shuts itself in once, then keeps a fresh child ready for
every run.

Standard library only, started as `python -I -S -B`: no site-packages, so no torch. Messages on
stdin and stdout are JSON after a four-byte length. The first message out lists the layers in force,
or says why there are none; then comes one answer per request.

    {"files": {"main.py": "depth = 7"}, "asked": [["main.py", "depth"]]}
 -> {"end": "answered", "answers": ["[\"value\", 7]"]}

A child runs the files, reports that it is ready, and is then asked one expression at a time: no
question is sent before the last one is answered, so code cannot know what it will be asked. Each
answer carries the random number of its question; one that was written ahead has none. The expected
values are never sent in here: code that takes over its process can send any value it likes, but not
one that it cannot know. Answers from before a run ended badly are kept.
"""

from __future__ import annotations

import builtins
import gc
import importlib.machinery
import io
import json
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from composer_replication.core import isolation

ALL_LAYERS = ("namespaces", "empty_root", "landlock", "seccomp")
MAX_RECORD_BYTES = 1 << 16
MAX_TEXT = 4000
MAX_DEPTH = 8
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a whole process: the time that its threads really ran


class Walls:
    """The layers around every run of this worker; `in_force` describes each by its name."""

    def __init__(self, layers: Sequence[str]) -> None:
        self.libc = isolation.kernel()
        self.machine = isolation.this_machine()
        self.filter = isolation.SyscallFilter(self.machine) if "seccomp" in layers else None
        self.abi = isolation.landlock_abi(self.libc) if "landlock" in layers else 0
        self.in_force: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        if "namespaces" in layers:
            with self._optional("namespaces"):
                self.in_force["namespaces"] = ", ".join(isolation.enter_namespaces(self.libc))

    @contextmanager
    def _optional(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.missing[name] = str(error)

    def around_worker(self, layers: Sequence[str]) -> None:
        """Put up the layers that are set once, in the process that forks the runs."""
        if "empty_root" in layers and "namespaces" in self.in_force:
            with self._optional("empty_root"):
                isolation.enter_empty_root(self.libc, self.machine)
                self.in_force["empty_root"] = "pivot_root to an empty read-only tmpfs"
        isolation.no_new_privileges(self.libc)
        if self.abi:
            self.in_force["landlock"] = (
                f"version {self.abi}: no file, no TCP, no signal to the outside, as far as this"
                " version reaches"
            )
        elif "landlock" in layers:
            self.missing["landlock"] = "this kernel has none"
        if self.filter is not None:
            self.in_force["seccomp"] = (
                f"{self.filter.count} system calls pass, every other one is answered with EPERM"
            )
        self.in_force["rlimits"] = "CPU time, address space; file size, processes and core dumps 0"

    def around_run(self, *, cpu_s: int, memory_bytes: int) -> None:
        """Put up the layers of each child, just before the code runs. The filter comes last: behind
        it, no other layer could be set."""
        isolation.die_with_parent(self.libc)
        isolation.limit(cpu_s=cpu_s, memory_bytes=memory_bytes)
        isolation.drop_capabilities(self.libc, self.machine)
        if self.abi:
            isolation.landlock(self.libc, self.abi)
        if self.filter is not None:
            self.filter.install(self.libc)


class MemoryFiles:
    """The task's files as modules: `main.py` is imported as `main`, from memory, in preference to
    any module of the same name."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.sources = {
            path.removesuffix(".py").replace("/", "."): text for path, text in files.items()
        }

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module of a file, None for every other name."""
        loader: Any = self
        return (
            importlib.machinery.ModuleSpec(fullname, loader) if fullname in self.sources else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """The usual empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file's text in the module, as any importer would: this file's `__future__`
        imports do not apply to it."""
        code = compile(
            self.sources[module.__name__], f"{module.__name__}.py", "exec", dont_inherit=True
        )
        exec(code, module.__dict__)  # noqa: S102 - this is the sandbox


class Sink(io.TextIOBase):
    """Discards what the code prints."""

    def write(self, text: str) -> int:
        """Discard the text."""
        return len(text)


def plain_json(value: Any, depth: int = 0) -> Any:
    """A value that is exactly of a plain built-in type, as JSON; TypeError for any other, because
    an object of a class could equal anything."""
    kind = type(value)
    if (
        value is None
        or kind in (bool, int)
        or (kind is float and math.isfinite(value))
        or (kind is str and len(value) <= MAX_TEXT)
    ):
        return value
    if kind is list and depth < MAX_DEPTH:
        return [plain_json(item, depth + 1) for item in value]
    raise TypeError(f"the value is a {kind.__name__}, not a number, a text, None or a list of them")


def load(path: str) -> ModuleType | str:
    """The module of a file, or the text of the error that its import raised."""
    try:
        return importlib.import_module(path.removesuffix(".py").replace("/", "."))
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is its answer
        return _error_text(error)


def evaluate_expression(module: ModuleType | str, expression: str) -> tuple[str, Any]:
    """("value", the value of an expression in a module) or ("error", its text), also for an error
    of the module's import."""
    if isinstance(module, str):
        return "error", module
    try:
        code = compile(expression, "<test>", "eval")
        return "value", plain_json(eval(code, module.__dict__))  # noqa: S307 - this is the sandbox
    except BaseException as error:  # noqa: BLE001 - as above
        return "error", _error_text(error)


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def answer_all(request: int, out: int) -> None:
    """Run the files, report "ready", and answer questions until no more come; one line for each,
    its number first."""
    # local names: the code may replace these functions in their modules
    loads, dumps, write = json.loads, json.dumps, write_all
    number, files, paths = loads(read_message(request))
    finder = MemoryFiles(files)
    for name in finder.sources:
        sys.modules.pop(name, None)
    sys.meta_path[:] = [
        finder,
        importlib.machinery.BuiltinImporter,
        importlib.machinery.FrozenImporter,
    ]
    sys.path[:], sys.stdout, sys.stderr = [], Sink(), Sink()
    modules = {path: load(path) for path in paths}
    answer: Any = "ready"
    while True:
        write(out, f"{number} {dumps(answer)}\n".encode("utf-8", errors="replace"))
        if not (body := read_message(request)):
            return
        number, path, expression = loads(body)
        answer = evaluate_expression(modules[path], expression)


class Ended(Exception):
    """A run ended before every question was answered; its text is the `end`."""


class Child:
    """A process that waits behind the walls for one run; it is forked ahead of time, while nobody
    waits for it.

    It holds two descriptors: one to read questions from, and one for its answers.
    """

    def __init__(self, walls: Walls, *, time_s: float, memory_bytes: int) -> None:
        request, self.feed = os.pipe()
        self.source, out = os.pipe()
        self.received, self.num_received = b"", 0
        self.pid = os.fork()
        if self.pid == 0:
            self._live(walls, request, out, cpu_s=math.ceil(time_s) + 1, memory_bytes=memory_bytes)
        os.close(request)
        os.close(out)

    def _live(self, walls: Walls, request: int, out: int, *, cpu_s: int, memory_bytes: int) -> None:
        """Close every other descriptor, put up the walls, wait, answer, end. Never returns."""
        code, leave = 1, os._exit  # a local name: the code may replace os._exit
        try:
            previous = 0
            for descriptor in sorted((request, out)):
                os.closerange(previous, descriptor)
                previous = descriptor + 1
            os.closerange(previous, 256)
            walls.around_run(cpu_s=cpu_s, memory_bytes=memory_bytes)
            answer_all(request, out)
            code = 0
        finally:
            leave(code)

    def run(
        self,
        files: Mapping[str, str],
        asked: Sequence[Sequence[str]],
        *,
        time_s: float,
        wall_s: float,
    ) -> dict[str, Any]:
        """Hand over the files, then one question after the other, in at most `time_s` seconds of
        its CPU time and `wall_s` in all.

        `end`: "answered", "timeout", "too_much_output", "unreadable" if it sent something other
        than an answer to the question, or "died" if it sent nothing. `answers` are those that came
        before.
        """
        limits = time.monotonic() + wall_s, self.cpu_s() + time_s
        answers: list[str] = []
        try:
            self._ask((files, list(dict.fromkeys(path for path, _ in asked))), limits)
            for question in asked:
                answers.append(self._ask(question, limits))
        except Ended as ended:
            return {"end": str(ended), "answers": answers}
        return {"end": "answered", "answers": answers}

    def _ask(self, question: Sequence[Any], limits: tuple[float, float]) -> str:
        """Send one message with an unpredictable number, and return the line that answers it."""
        number = os.urandom(8).hex()
        body = json.dumps([number, *question]).encode()
        with suppress(BrokenPipeError):  # it has ended, which is noticed when its answer is read
            write_all(self.feed, len(body).to_bytes(4, "big") + body)
        while b"\n" not in self.received:
            self._receive(limits)
        line, _, self.received = self.received.partition(b"\n")
        answered_number, _, answer = line.partition(b" ")
        if answered_number != number.encode():
            raise Ended("unreadable")
        return answer.decode("utf-8", errors="replace")

    def _receive(self, limits: tuple[float, float]) -> None:
        """Wait for some output; raises Ended if the time is over, the output is too long, or no
        more will come."""
        deadline, cpu_deadline = limits
        while True:
            left_s = min(deadline - time.monotonic(), cpu_deadline - self.cpu_s())
            # one thread: CPU time is at most wall time
            ready, _, _ = select.select([self.source], [], [], max(0.0, left_s))
            if ready:
                break
            if left_s <= 0:
                raise Ended("timeout")
        part = os.read(self.source, MAX_RECORD_BYTES)
        self.num_received += len(part)
        self.received += part
        if self.num_received > MAX_RECORD_BYTES:
            raise Ended("too_much_output")
        if not part:
            raise Ended("unreadable" if self.received else "died")

    def cpu_s(self) -> float:
        """The CPU time it has used, by the clock that Linux keeps for every process
        (clock_getcpuclockid)."""
        return time.clock_gettime((~self.pid << 3) | _CPU_CLOCK)

    def bury(self) -> None:
        """Kill it, even if it closed its pipe and runs on, and reap it; a child that has ended may
        be killed too."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.feed)
        os.close(self.source)


def read_message(descriptor: int) -> bytes:
    """One message without its length; b"" if the other side has gone."""
    data, num_bytes = b"", 4
    while len(data) < num_bytes:
        part = os.read(descriptor, num_bytes - len(data))
        if not part:
            return b""
        data += part
        if num_bytes == 4 and len(data) == 4:
            num_bytes += int.from_bytes(data, "big")
    return data[4:]


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data: a pipe takes only what fits."""
    while data:
        data = data[os.write(descriptor, data) :]


def send(message: Mapping[str, Any]) -> None:
    """One message to the trainer."""
    data = json.dumps(message).encode()
    write_all(1, len(data).to_bytes(4, "big") + data)


def serve(walls: Walls, *, time_s: float, wall_s: float, memory_bytes: int) -> None:
    """Answer requests until stdin ends; the child of the next run is forked as soon as this run is
    answered."""
    gc.collect()
    gc.freeze()  # what exists now is shared with every child; a collection would copy its pages
    while True:
        child = Child(walls, time_s=time_s, memory_bytes=memory_bytes)
        body = read_message(0)
        if not body:
            child.bury()
            return
        send(child.run(**json.loads(body), time_s=time_s, wall_s=wall_s))
        child.bury()


def preload() -> None:
    """Import the modules that task code may reasonably use: behind the walls no file can be
    opened."""
    for name in ("collections", "functools", "itertools", "math", "operator", "re", "string"):
        importlib.import_module(name)
    builtins.open("/dev/null", "rb").close()  # loads the codec and io machinery once


def serve_requests() -> None:
    """Put up the walls, report them, and serve; the arguments are the layers, seconds of CPU time,
    seconds of wall time and bytes of memory."""
    layers = sys.argv[1].split(",")
    time_s, wall_s = map(float, sys.argv[2:4])
    memory_bytes = int(sys.argv[4])
    try:
        preload()
        walls = Walls(layers)
        # the first child after unshare is process 1 of the new namespace
        inner = os.fork() if "namespaces" in walls.in_force else 0
        if inner:
            os.closerange(0, 3)
            os.waitpid(inner, 0)
            return
        # otherwise the parent is the trainer, whose end shows as the end of stdin
        if "namespaces" in walls.in_force:
            isolation.die_with_parent(walls.libc)
        walls.around_worker(layers)
    except OSError as error:
        send({"refused": str(error)})
        return
    send({"in_force": walls.in_force, "missing": walls.missing})
    serve(walls, time_s=time_s, wall_s=wall_s, memory_bytes=memory_bytes)
