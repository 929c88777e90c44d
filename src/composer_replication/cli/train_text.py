"""The output of `train`: the plan before anything is loaded, one line per step, and events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from composer_replication.cli.channel_units import unfed, weights_in_settings
from composer_replication.cli.job import Job
from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.time_left import TimeLeft, duration
from composer_replication.report.html import plural
from composer_replication.tokens.artefact import Dataset
from composer_replication.training.draws.batch_sampler import drawn_examples, imported_channels
from composer_replication.training.draws.hint_inputs import views_with_donor

WARNINGS = ("starved", "dead", "clipped", "drift", "restored", "tracker_lost")
"""The kinds of events that are printed as a warning."""
COLOUR = {"active": "green", "exhausted": "green", "off": "dim", "starved": "red", "dead": "red"}


def show_plan(job: Job, data: Dataset) -> dict[str, Any]:
    """Print weight and data of each channel, and rollouts per step; returns them.

    Raises ConfigError for a weighted channel without data.
    """
    settings, rollouts = job.config.train, job.config.rollouts
    weights = weights_in_settings(job.config)
    # as in training/loop.py: otherwise only anchors are drawn from imported examples
    imported = not rollouts.env or settings.lm_ce.weight > 0
    units = {
        "policy": sum(len(action.logprobs) for e in data.examples for action in e.actions),
        "lm_ce": sum(b - a for e in data.examples for a, b in e.lm_spans),
        "hint": sum(len(v.target_ids) for e in data.examples for v in e.hints) if imported else 0,
        "preference": (
            len(data.pairs)
            + sum(len(e.anchored) for e in data.examples) * (settings.preference.anchor > 0)
        ),
    }
    played = rollouts.groups * rollouts.group_size if rollouts.env else 0
    by_play = (
        {
            "policy": f"{plural(played, 'rollout')} a step",
            "hint": f"at most {plural(rollouts.hint_sites, 'site')} a step of rollouts",
        }
        if played
        else {}
    )
    shown = {"hint": f"{units['hint']} imported"} if played else {}
    job.screen.table(
        [
            (
                name,
                weights[name],
                shown.get(name, units[name]),
                "off" if weights[name] == 0 else by_play.get(name, ""),
            )
            for name in CHANNELS
        ],
        head=("channel", "weight", "tokens, or pairs and anchors", ""),
    )
    _print_plan(job, data, played=played)
    controls = _print_hint_controls(job, data) if imported or settings.fork else {}
    for name in CHANNELS:
        if weights[name] == 0 and units[name]:
            job.screen.line(
                f" note     there is data for {name}, but its weight is 0: set train.{name}.weight",
                style="yellow",
            )
    if played and (note := _untrained_play(job)):
        job.screen.line(f" note     {note}", style="yellow")
    from composer_replication.models.processor import emulates_bfloat16

    if job.config.student.dtype == "bfloat16" and emulates_bfloat16():
        job.screen.line(
            " note     this processor has no bfloat16 and emulates it: about ten times slower than"
            ' student.dtype = "float32"',
            style="yellow",
        )
    if (lacking := unfed(job, units)) is not None:
        raise lacking.error()
    plan = {
        "weights": weights,
        "units": units,
        "steps": settings.steps,
        "examples": len(data.examples),
        "pairs": len(data.pairs),
    }
    return {**plan, **controls, "rollouts_per_step": played, "placebo": list(settings.placebo)}


def _untrained_play(job: Job) -> str:
    """What of the rollouts trains nothing, and the setting that mends it; "" if all of it does."""
    train, sites = job.config.train, job.config.rollouts.hint_sites
    if train.policy.weight:
        return ""
    if train.hint.weight and sites:
        return (
            "the rewards of the rollouts train nothing, only the mistakes in them do:"
            " train.policy.weight is 0; set it, e.g. to 1"
        )
    name = "rollouts.hint_sites" if train.hint.weight else "train.hint.weight"
    return (
        f"the rollouts train nothing: train.policy.weight and {name} are 0; set"
        ' train.policy.weight, e.g. to 1, or rollouts.env = ""'
    )


def _print_hint_controls(job: Job, data: Dataset) -> dict[str, int]:
    """Print what train.hint.focus and contrast leave of the imported hint views; returns it."""
    hint, left = job.config.train.hint, {}
    views = [view for example in data.examples for view in example.hints]
    if not hint.weight or not views:
        return left
    if hint.focus == "decision":
        unknown = sum(not view.knows_decisions for view in views)
        left["focused_tokens"] = sum(
            len(view.target_ids) for example in data.examples for view in example.focused().hints
        )
        job.screen.line(
            f" focus    {left['focused_tokens']} of {sum(len(v.target_ids) for v in views)} tokens"
            f" are distilled; {unknown} of {len(views)} hint views keep the whole message: their"
            " decision is not known"
        )
    if hint.contrast:
        left["views_with_donor"] = views_with_donor(data.examples)
        job.screen.line(
            f" contrast {left['views_with_donor']} of {len(views)} hint views have a hint of"
            " another session to be compared with; the others are left out"
        )
    return left


def _print_plan(job: Job, data: Dataset, *, played: int) -> None:
    settings, rollouts = job.config.train, job.config.rollouts
    parts = [plural(settings.steps, "step")]
    if played:
        extra = (
            f", and at most {rollouts.extra_groups * rollouts.group_size} more for flat groups"
            if rollouts.extra_groups
            else ""
        )
        parts.append(
            f"{plural(played, 'rollout')} a step in {rollouts.env!r}"
            f" ({plural(rollouts.groups, 'task')} x"
            f" {rollouts.group_size}{extra})"
        )
    if data.examples and (not played or settings.lm_ce.weight):
        drawn = drawn_examples(data.examples, imported_channels(settings))
        per_epoch = -(-len(drawn) // settings.batch_examples)
        parts.append(
            f"{plural(settings.batch_examples, 'example')} a step, one pass is"
            f" {plural(per_epoch, 'step')}"
        )
    job.screen.line(
        f" plan     {'; '.join(parts)}; at most {settings.micro_tokens} padded tokens per"
        " micro-batch"
    )
    if settings.placebo:
        job.screen.line(
            f" placebo  {', '.join(settings.placebo)}: nothing about these can be learnt from"
            " this run",
            style="yellow",
        )


class Steps:
    """Prints one line per step as key=value, with the time left (core/time_left.py).

    After `every_s` seconds without a line it prints the current activity, so that a long step does
    not look like a hang.
    """

    def __init__(self, job: Job, *, every_s: float = 10.0) -> None:
        self.job, self.began, self.done, self.every_s = job, time.monotonic(), 0, every_s
        self.time_left = TimeLeft()
        self.doing: Callable[[], str] = lambda: "getting ready"
        self._over, self._said = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def __enter__(self) -> Steps:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def progress(self, doing: Callable[[], str]) -> None:
        """Set the function that describes the current activity."""
        self.doing = doing

    def go_on_from(self, step: int) -> None:
        """Set how many steps the run has taken: a resumed one, or one that joined others."""
        self.done = step

    def _wait(self) -> None:
        while not self._over.wait(max(0.0, self._said + self.every_s - time.monotonic())):
            if time.monotonic() - self._said >= self.every_s:
                self._said = time.monotonic()
                self.job.screen.line(f" ...      {self.waiting()}", style="dim")

    def waiting(self) -> str:
        """The line that is printed while a step takes long.

        Example: "step 1 of 20: part 3 of 12, backward, eta 30s (41s since the start)"
        """
        steps, spent = self.job.config.train.steps, time.monotonic() - self.began
        at = f"step {self.done + 1} of {steps}" if self.done < steps else "after the last step"
        return f"{at}: {self.doing()} ({duration(spent)} since the start)"

    def __call__(self, metrics: Mapping[str, Any]) -> None:
        """Print a step."""
        self.done, self._said = int(metrics["step"]), time.monotonic()
        self.time_left.step_ended(self._said, took_s=step_took_s(metrics, self._said - self.began))
        left = self.time_left.text(steps=self.job.config.train.steps - self.done)
        bad = any(metrics.get(f"{name}/status") in ("starved", "dead") for name in CHANNELS)
        self.job.screen.line(" " + step_text(metrics, left=left), style="red" if bad else "")


def step_took_s(metrics: Mapping[str, Any], since_start_s: float) -> float | None:
    """How long a launch's first step took at most: `step_s` leaves out what is played or written
    before it, and then only the time since the start is known to hold all of it.

    >>> step_took_s({"step_s": 2.5}, 60.0), step_took_s({"step_s": 2.5, "rollouts/success": 1}, 60)
    (2.5, 60)
    """
    samples = any(name.startswith(("rollouts/", "fork")) for name in metrics)
    return since_start_s if samples else metrics.get("step_s")


def step_text(metrics: Mapping[str, Any], *, left: str) -> str:
    """One step on one line.

    >>> sites = {"sites/found": 9, "sites/used": 8}
    >>> played = {"rollouts/success": 0.25, **sites, "health/kl": 0.0123}
    >>> step_text({"step": 3, **played}, left="1m15s")
    'step=3 | success=0.25 sites=8/9 kl=0.012 | eta=1m15s'
    """
    parts = [f"step={metrics['step']}"]
    if "rollouts/success" in metrics:
        sites = (
            f" sites={metrics.get('sites/used', 0)}/{metrics['sites/found']}"
            if "sites/found" in metrics
            else ""
        )
        kl = f" kl={metrics['health/kl']:.3f}" if "health/kl" in metrics else ""
        parts.append(f"success={metrics['rollouts/success']:.2f}{sites}{kl}")
    for name in CHANNELS:
        status = metrics.get(f"{name}/status", "off")
        if status != "off":
            loss = metrics[f"{name}/loss"]
            shown = "" if loss is None else f" loss={loss:.4f}"
            parts.append(
                f"{name}={status}{shown} tokens={metrics[f'{name}/tokens']}"
                f" grad={metrics[f'{name}/grad_norm']:.3g}"
            )
    if metrics.get("clipped"):
        parts.append("clipped")
    return " | ".join([*parts, f"eta={left}"])


def show_event(job: Job, event: Mapping[str, Any]) -> None:
    """Print warnings and the layout of the forwards; other events with --verbose."""
    if event["kind"] in WARNINGS:
        job.screen.line(f" WARNING  {event_text(event)}", style="bold red")
    elif event["kind"] == "took_over":
        job.screen.line(
            f" note     the previous launch died: {event['owner']}; this one takes its place",
            style="yellow",
        )
    elif event["kind"] == "joined":
        job.screen.line(f" joined   as replica {event['slot']}, in round {event['round']}")
    elif event["kind"] == "sync":
        job.screen.line(f" sync     {sync_text(event)}")
    elif event["kind"] == "start" and event.get("layout"):
        why = event.get("why_rows") or event.get("sharing")
        job.screen.line(f" layout   {event['layout']}{f': {why}' if why else ''}")
    else:
        job.screen.detail(f" event    {event_text(event)}")


def sync_text(event: Mapping[str, Any]) -> str:
    """A sync of the replicas on one line.

    >>> traffic = {"bytes_up": 600000, "bytes_down": 600000, "wait_s": 0.31}
    >>> sync_text({"round": 3, "slots": [0, 1], "contributed": True, "refused": "", **traffic})
    'round 3: replicas 0 1, 0.60 MB up, 0.60 MB down, waited 0.31 s'
    """
    slots = " ".join(str(slot) for slot in event["slots"])
    why = event["refused"] or "too late, it is added to the next round"
    late = "" if event["contributed"] else f"; without this replica's pseudo-gradient: {why}"
    return (
        f"round {event['round']}: replicas {slots}, {event['bytes_up'] / 1e6:.2f} MB up,"
        f" {event['bytes_down'] / 1e6:.2f} MB down, waited {event['wait_s']:.2f} s{late}"
    )


def event_text(event: Mapping[str, Any]) -> str:
    """An event on one line, its numbers to four digits.

    >>> event = {"kind": "drift", "step": 5, "measure": "entropy", "value": 0.0123685909}
    >>> event_text({"t": 1.0, **event, "start": 0.005})
    'drift: step 5, measure entropy, value 0.01237, start 0.005 (a warning, nothing is stopped)'
    """
    facts = [
        f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
        for k, v in event.items()
        if k not in ("t", "kind", "attempt")
    ]
    stops = " (a warning, nothing is stopped)" if event["kind"] == "drift" else ""
    return f"{event['kind']}: {', '.join(facts)}{stops}"


def round_text(facts: Mapping[str, Any]) -> str:
    """One round on one line.

    >>> round_text({"round": 3, "step": 20, "slots": [0, 1], "bytes": 1200000, "wait_s": 0.31})
    'round 3 | step=20 | replicas 0 1 | 1.20 MB | waited at most 0.31 s'
    """
    slots = " ".join(str(slot) for slot in facts["slots"])
    size = facts["bytes"] / 1e6
    return (
        f"round {facts['round']} | step={facts['step']} | replicas {slots} | {size:.2f} MB"
        f" | waited at most {facts['wait_s']:.2f} s"
    )
