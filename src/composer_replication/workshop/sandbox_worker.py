"""The worker's side of the sandbox: shut itself in once, then keep a fresh child ready for every
run.

Standard library only, started as `python -I -S -B`: no site-packages, so no torch. Messages on
stdin and stdout are JSON behind a four-byte length. The first message out says what is in force, or
why nothing is; then one answer per request.

    {"files": {"main.py": "depth = 7"}, "asked": [["main.py", "depth"]]}
 -> {"end": "answered", "answers": ["[\"value\", 7]"]}

A child runs the files, says that it is ready, and is then asked one expression at a time: no
question is sent before the last one is answered, so code knows nothing of what it will be asked.
Each answer carries the random number of its question; one that was written ahead has none. What the
values ought to be is never sent in here: code that takes over its process can send any value it
likes, but not one it has no way to know. Answers that came before a run ended badly stay.
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

from composer_replication.workshop import isolation

ALL_LAYERS = ("namespaces", "empty_root", "landlock", "seccomp")
MAX_RECORD_BYTES = 1 << 16
MAX_TEXT = 4000
MAX_DEPTH = 8
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of a whole process: time its threads really ran


class Walls:
    """The layers in force around every run of this worker. `in_force` names them with what each
    does."""

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
        """What is done once, in the process that forks the runs."""
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
        """What is done in each child, just before the code runs. The filter comes last: nothing
        else could follow it."""
        isolation.die_with_parent(self.libc)
        isolation.limit(cpu_s=cpu_s, memory_bytes=memory_bytes)
        isolation.drop_capabilities(self.libc, self.machine)
        if self.abi:
            isolation.landlock(self.libc, self.abi)
        if self.filter is not None:
            self.filter.install(self.libc)


class MemoryFiles:
    """The task's files as modules: `main.py` is imported as `main`, from memory, before any module
    of the same name."""

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
        """Run the file's text in the module, as any importer would: what this file imports from
        __future__ does not hold for it."""
        code = compile(
            self.sources[module.__name__], f"{module.__name__}.py", "exec", dont_inherit=True
        )
        exec(code, module.__dict__)  # noqa: S102 - this is the sandbox


class Sink(io.TextIOBase):
    """Where the code's prints go: nowhere."""

    def write(self, text: str) -> int:
        """Forget the text."""
        return len(text)


def plain_json(value: Any, depth: int = 0) -> Any:
    """A value of exactly a built-in plain type as JSON, and TypeError otherwise: an object of a
    class could equal anything."""
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
    except BaseException as error:  # noqa: BLE001 - whatever the code raises is what it answers
        return _words_of(error)


def evaluate_expression(module: ModuleType | str, expression: str) -> tuple[str, Any]:
    """What an expression comes to in a module; errors are answers too, those of its import among
    them."""
    if isinstance(module, str):
        return "error", module
    try:
        code = compile(expression, "<test>", "eval")
        return "value", plain_json(eval(code, module.__dict__))  # noqa: S307 - this is the sandbox
    except BaseException as error:  # noqa: BLE001 - as above
        return "error", _words_of(error)


def _words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def answer_all(request: int, out: int) -> None:
    """Run the files, say so, and answer question after question until nobody asks; one line for
    each, its number first."""
    # by their own names: the code may put others in their place
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
    """A run is over before every question was answered; its text is the `end`."""


class Child:
    """A process that stands ready behind the walls for one run; it is made ahead of time, while
    nobody waits.

    It holds two descriptors: one to read questions from, and one for its answers.
    """

    def __init__(self, walls: Walls, *, time_s: float, memory_bytes: int) -> None:
        request, self.feed = os.pipe()
        self.source, out = os.pipe()
        self.heard, self.num_heard = b"", 0
        self.pid = os.fork()
        if self.pid == 0:
            self._live(walls, request, out, cpu_s=math.ceil(time_s) + 1, memory_bytes=memory_bytes)
        os.close(request)
        os.close(out)

    def _live(self, walls: Walls, request: int, out: int, *, cpu_s: int, memory_bytes: int) -> None:
        """Close every other descriptor, put up the walls, wait, answer, end. Never returns."""
        code, leave = 1, os._exit  # by its own name: the code may put another function in its place
        try:
            previous = 0
            for kept in sorted((request, out)):
                os.closerange(previous, kept)
                previous = kept + 1
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

        `end`: "answered", "timeout", "too_much_output", "unreadable" where something else came than
        an answer to the question, or "died" where nothing came. `answers` are those that came
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
        """Send one message with a number that nobody could know, and return the line that answers
        to it."""
        number = os.urandom(8).hex()
        body = json.dumps([number, *question]).encode()
        with suppress(BrokenPipeError):  # it has ended, which shows when its answer is read
            write_all(self.feed, len(body).to_bytes(4, "big") + body)
        while b"\n" not in self.heard:
            self._hear(limits)
        line, _, self.heard = self.heard.partition(b"\n")
        given, _, answer = line.partition(b" ")
        if given != number.encode():
            raise Ended("unreadable")
        return answer.decode("utf-8", errors="replace")

    def _hear(self, limits: tuple[float, float]) -> None:
        """Wait for some output; raises Ended where the time is over, the output too long, or no
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
        self.num_heard += len(part)
        self.heard += part
        if self.num_heard > MAX_RECORD_BYTES:
            raise Ended("too_much_output")
        if not part:
            raise Ended("unreadable" if self.heard else "died")

    def cpu_s(self) -> float:
        """The CPU time it has used, by the clock that Linux keeps for every process
        (clock_getcpuclockid)."""
        return time.clock_gettime((~self.pid << 3) | _CPU_CLOCK)

    def bury(self) -> None:
        """Kill it, also where it closed its pipe and runs on, and collect it; one that has ended
        does not mind."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.feed)
        os.close(self.source)


def read_message(descriptor: int) -> bytes:
    """One message without its length; b"" where the other side has gone."""
    data, wanted = b"", 4
    while len(data) < wanted:
        part = os.read(descriptor, wanted - len(data))
        if not part:
            return b""
        data += part
        if wanted == 4 and len(data) == 4:
            wanted += int.from_bytes(data, "big")
    return data[4:]


def write_all(descriptor: int, data: bytes) -> None:
    """Write to the end: a pipe takes what fits."""
    while data:
        data = data[os.write(descriptor, data) :]


def send(message: Mapping[str, Any]) -> None:
    """One message to the trainer."""
    data = json.dumps(message).encode()
    write_all(1, len(data).to_bytes(4, "big") + data)


def serve(walls: Walls, *, time_s: float, wall_s: float, memory_bytes: int) -> None:
    """Answer requests until stdin ends; the child of the next run is forked once the answer of this
    one is out."""
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
    """Import what task code may reasonably want: behind the walls no file can be opened."""
    for name in ("collections", "functools", "itertools", "math", "operator", "re", "string"):
        importlib.import_module(name)
    builtins.open("/dev/null", "rb").close()  # loads the codec and io machinery once


def serve_requests() -> None:
    """Set the walls, say which stand, and serve; the arguments are the layers, seconds of CPU time
    and in all, bytes of memory."""
    layers, (time_s, wall_s), memory_bytes = (
        sys.argv[1].split(","),
        map(float, sys.argv[2:4]),
        int(sys.argv[4]),
    )
    try:
        preload()
        walls = Walls(layers)
        # the first child after unshare is process 1 of the new namespace
        inner = os.fork() if "namespaces" in walls.in_force else 0
        if inner:
            os.closerange(0, 3)
            os.waitpid(inner, 0)
            return
        # else the parent is the trainer, whose end shows as the end of stdin
        if "namespaces" in walls.in_force:
            isolation.die_with_parent(walls.libc)
        walls.around_worker(layers)
    except OSError as error:
        send({"refused": str(error)})
        return
    send({"in_force": walls.in_force, "missing": walls.missing})
    serve(walls, time_s=time_s, wall_s=wall_s, memory_bytes=memory_bytes)
