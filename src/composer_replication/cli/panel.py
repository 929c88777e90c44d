"""The live panel of `train` on a terminal: channels, rollouts, health and the time left.

    with TrainPanel(job) as panel:
        panel({"step": 1, "hint/status": "active", ...})       # the metrics of a step (`on_step`)

It redraws itself, so the clock moves between two steps, and its last state stays on the screen. A
missing number is shown as "-". Elsewhere `train` prints one line per step.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from composer_replication.cli.figures import finite, format_number, spark
from composer_replication.cli.job import Job
from composer_replication.cli.train_text import COLOUR, Steps, step_took_s
from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.harmless import harmless
from composer_replication.core.time_left import TimeLeft, duration

SPARK = 18
"""Most columns of the curve of success; with more steps, neighbours are averaged."""
REDRAWS = 2  # per second


class TrainPanel:
    """The state of a run so far; called with the metrics of each step."""

    def __init__(self, job: Job) -> None:
        self.job, self.began, self.seen = job, time.monotonic(), 0
        self.time_left, self.at_the_end = TimeLeft(), False
        self.line: Mapping[str, Any] = {}
        self.doing: Callable[[], str] = lambda: "waiting for the first step: getting ready"
        self.active: Counter[str] = Counter()
        self.success: list[float] = []
        self.monitor: list[float] = []
        self._live = Live(
            get_renderable=self.render,
            console=job.screen.console,
            refresh_per_second=REDRAWS,
            vertical_overflow="visible",
        )

    def __enter__(self) -> TrainPanel:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.at_the_end = False
        self._live.stop()

    def __call__(self, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of a step."""
        self.seen += 1
        now = time.monotonic()
        self.time_left.step_ended(now, took_s=step_took_s(metrics, now - self.began))
        self.active.update(name for name in CHANNELS if metrics.get(f"{name}/status") == "active")
        self.success += finite(metrics.get("rollouts/success"))
        self.monitor += finite(metrics.get("health/monitor"))
        self.line = metrics

    def progress(self, doing: Callable[[], str]) -> None:
        """Set the function that describes the current activity; called at every redraw."""
        self.doing = doing
        self.at_the_end = int(self.line.get("step", 0)) >= self.job.config.train.steps

    def go_on_from(self, step: int) -> None:
        """Set how many steps the run has taken."""
        self.line = {**self.line, "step": step}

    def render(self) -> Group:
        """The panel as it is now, at most 80 columns wide."""
        return Group(
            self._clock(),
            *self._channels(),
            *([self._rollouts(), self._health()] if self.success else []),
        )

    def _clock(self) -> Text:
        steps, spent = self.job.config.train.steps, time.monotonic() - self.began
        step = int(self.line.get("step", 0))
        left = self.doing()
        if self.seen and not self.at_the_end:
            left = f"eta {self.time_left.text(steps=steps - step)}"
        return _row(
            (f" step {step} of {steps}", "bold"), (f"   elapsed {duration(spent)}   {left}", "")
        )

    def _channels(self) -> list[Text]:
        head = (
            f" {'channel':<12}{'status':<11}{'tokens':>8}{'loss':>11}{'gradient':>11}{'active':>8}"
        )
        rows = [_row((head, "bold"))]
        for name in CHANNELS:
            status = str(self.line.get(f"{name}/status", "-"))
            share = f"{self.active[name] / self.seen:.0%}" if self.seen else "-"
            tokens, loss, norm = (
                format_number(self.line.get(f"{name}/{k}"), form)
                for k, form in (("tokens", ".0f"), ("loss", ".4f"), ("grad_norm", ".3g"))
            )
            cells = f"{tokens:>8}{loss:>11}{norm:>11}{share:>8}"
            dim = "dim" if status in ("off", "-") else ""
            rows.append(
                _row(
                    (f" {name:<12}", dim),
                    (f"{status:<11}", COLOUR.get(status, "dim")),
                    (cells, dim),
                )
            )
        return rows

    def _rollouts(self) -> Text:
        flat, used, sites_found = (
            self.line.get(name) for name in ("rollouts/flat", "sites/used", "sites/found")
        )
        sites = f"sites {format_number(used, '.0f')} of {format_number(sites_found, '.0f')} used"
        shares = (
            f" {spark(self.success, columns=SPARK)}  flat {format_number(flat, '.0%')}  {sites}"
        )
        return _row(
            (" rollouts    ", ""), (f"success {self.success[-1]:.2f}", "bold"), (shares, "")
        )

    def _health(self) -> Text:
        limits, kl, calls = (
            self.job.config.train.health,
            self.line.get("health/kl"),
            self.line.get("rollouts/unresolvable"),
        )
        monitor = (
            f"monitor {self.monitor[-1]:.2f}, was {self.monitor[0]:.2f}"
            if self.monitor
            else "monitor -"
        )
        return _row(
            (" health      ", ""),
            (f"KL {format_number(kl, '.3f')} of {limits.max_kl:g}", _warm(kl, limits.max_kl)),
            ("   unresolvable ", ""),
            (
                f"{format_number(calls, '.0%')} of {limits.max_unresolvable:.0%}",
                _warm(calls, limits.max_unresolvable),
            ),
            (f"   {monitor}", ""),
        )


def shown_steps(job: Job) -> AbstractContextManager[Steps | TrainPanel]:
    """The panel on a terminal; one line per step in a pipe, with --quiet and with --json."""
    console, screen = job.screen.console, job.screen
    quiet = console.quiet or screen.quiet or screen.json
    drawn = console.is_terminal and not console.is_dumb_terminal and not quiet
    return TrainPanel(job) if drawn else Steps(job)


def _warm(value: Any, limit: float) -> str:
    """The colour of a measure: yellow above half of its limit, red above the limit."""
    share = next(iter(finite(value)), 0.0) / limit
    return "bold red" if share > 1 else "yellow" if share > 0.5 else "green"


def _row(*parts: tuple[str, str]) -> Text:
    return Text.assemble(
        *((harmless(text).replace("\n", " "), style) for text, style in parts),
        no_wrap=True,
        overflow="ellipsis",
    )
