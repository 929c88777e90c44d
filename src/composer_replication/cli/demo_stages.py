"""Runs verbs one after the other, as if a user had typed them, and keeps their output."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from composer_replication.cli.flags import Common, dotted_settings
from composer_replication.cli.job import Job, driven


@dataclass(slots=True)
class Stages:
    """Runs verbs and keeps their output and duration by name."""

    job: Job
    config: Path
    common: Common
    seconds: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)

    def __call__(self, command_line: str, verb: Callable[[Common], int]) -> int:
        """Run one verb as if a user had typed `command_line`, which has no settings."""
        began, name = time.monotonic(), command_line.split()[0]
        settings = [
            argument for key, value in dotted_settings().items() for argument in (f"--{key}", value)
        ]
        self.job.screen.line(
            f"\n$ recompose {command_line} {shlex.join([*settings, '-c', str(self.config)])}",
            style="bold",
        )
        # with --json every verb prints an object, but the demo must print only its own
        output = io.StringIO()
        inner = Common(
            config=(self.config,),
            json=self.common.json,
            quiet=self.common.quiet,
            verbose=self.common.verbose,
        )
        with (
            driven(),
            contextlib.redirect_stdout(output) if self.common.json else contextlib.nullcontext(),
        ):
            code = verb(inner)
        self.outputs[name] = json.loads(output.getvalue() or "{}")
        self.seconds[name] = round(time.monotonic() - began, 1)
        return code
