"""The controls of the demo: `recompose train` with other settings, in a second process."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from types import TracebackType

from composer_replication.cli.flags import dotted_settings
from composer_replication.core.errors import DataError
from composer_replication.core.files import open_private, write_text

TAIL = 600  # characters of a failed control's log that are shown
# -P: do not import modules from the current folder
PROGRAM = (sys.executable, "-P", "-m", "composer_replication.cli")
GRACE_S = 10.0  # time for a control to end after SIGTERM, before it is killed


class Controls:
    """Trains the controls one after the other beside this process; leaving the block ends them.

    with Controls(config, {"placebo": ("--train.placebo", "shuffled_hints")}, log=log) as both:
        ...
        both.wait()
    """

    def __init__(self, config: Path, arms: Mapping[str, Sequence[str]], *, log: Path) -> None:
        self._log = log
        settings = [
            argument for key, value in dotted_settings().items() for argument in (f"--{key}", value)
        ]
        self._commands = [
            ["train", "--name", name, *flags, *settings, "-c", str(config)]
            for name, flags in arms.items()
        ]
        self._pool = ThreadPoolExecutor(1)
        self._children: list[subprocess.Popen[bytes]] = []
        self._stopped = False
        # held from the check of `_stopped` until the child is registered: a stop in between would
        # miss the child, which would then outlive the demo
        self._lock = Lock()
        self._done: Future[None] | None = None

    @property
    def command_lines(self) -> list[str]:
        """The commands as a user would type them."""
        return [shlex.join(["recompose", *arguments]) for arguments in self._commands]

    def __enter__(self) -> Controls:
        write_text(self._log, "")
        self._done = self._pool.submit(self._train)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._stopped = True
        for child in self._children:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(GRACE_S)
                except subprocess.TimeoutExpired:
                    child.kill()
        self._pool.shutdown()

    def wait(self) -> None:
        """Wait for the last control; raises DataError with the end of the log if one failed."""
        if self._done is not None:
            self._done.result()

    def _train(self) -> None:
        # the same number of threads as the main process, so that a seed gives the same table
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        for arguments in self._commands:
            with (
                self._lock,
                os.fdopen(open_private(self._log, os.O_WRONLY | os.O_APPEND), "ab") as log,
            ):
                if self._stopped:
                    return
                log.write(f"$ {shlex.join(['recompose', *arguments])}\n".encode())
                log.flush()
                child = subprocess.Popen(
                    [*PROGRAM, *arguments], stdout=log, stderr=subprocess.STDOUT, env=env
                )
                self._children.append(child)
            if code := child.wait():
                log_tail = self._log.read_text("utf-8", "replace")[-TAIL:]
                name = arguments[arguments.index("--name") + 1]
                raise DataError(
                    f"the control {name} ended with exit code {code}:\n{log_tail}",
                    where=str(self._log),
                )
