"""Runs verbs one after the other, as if each had been typed, and keeps what they said."""

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
    """Runs the verbs one after the other and keeps what they said."""

    job: Job
    config: Path
    common: Common
    seconds: dict[str, float] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    def __call__(self, shown: str, verb: Callable[[Common], int]) -> int:
        """Run one verb as if its command line had been typed; `shown` is that line without the
        settings."""
        began, name = time.monotonic(), shown.split()[0]
        settings = [
            word for key, value in dotted_settings().items() for word in (f"--{key}", value)
        ]
        self.job.screen.line(
            f"\n$ recompose {shown} {shlex.join([*settings, '-c', str(self.config)])}", style="bold"
        )
        # with --json every verb prints an object, and the demo prints one of its own
        said = io.StringIO()
        inner = Common(
            config=(self.config,),
            json=self.common.json,
            quiet=self.common.quiet,
            verbose=self.common.verbose,
        )
        with (
            driven(),
            contextlib.redirect_stdout(said) if self.common.json else contextlib.nullcontext(),
        ):
            code = verb(inner)
        self.told[name] = json.loads(said.getvalue() or "{}")
        self.seconds[name] = round(time.monotonic() - began, 1)
        return code
