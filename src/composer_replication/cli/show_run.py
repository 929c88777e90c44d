"""`recompose show run`: the metrics and events of a run, without any claim of learning."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer_replication.cli.evaluate_logs_text import SHOWN, show_side_by_side
from composer_replication.cli.job import Job
from composer_replication.cli.lookup import find_index
from composer_replication.cli.train_text import sync_text
from composer_replication.core.errors import DataError
from composer_replication.core.rundir import LATEST, open_run
from composer_replication.report.html import plural
from composer_replication.report.logs_view import logs_view
from composer_replication.report.replicas_section import summary_text
from composer_replication.report.replicas_view import REPLICAS, replicas_view
from composer_replication.report.run_view import run_view


def show_run(job: Job, wanted: str, *, full: bool = False) -> int:
    """A run by name, by the beginning of its name, by folder, or the latest."""
    folder = run_folder(job, wanted)
    view = run_view(folder)
    screen = job.screen
    screen.line(
        f" {view['id']}  {view['state']}  {view['steps']} of {view['steps_planned']} steps  attempt"
        f" {view['attempts']}",
        style="bold",
    )
    screen.line(f" {view['command']}")
    changed = job.warn_changed(open_run(folder))
    screen.table(
        [_row(name, channel) for name, channel in view["channels"].items()],
        head=("channel", "status", "tokens", "loss", "grad"),
    )
    screen.line(
        " loss: first -> last. A loss that falls is no evidence of learning; that takes an"
        " evaluation with a placebo.",
        style="dim",
    )
    for change in view["changed_settings"]:
        screen.line(f" set    {change}")
    if view["clipped"]:
        screen.line(f" clip   {view['clipped']}")
    if (replicas := replicas_view(folder)) is not None:
        screen.line(f" syncs  {summary_text(replicas)}")
        if replicas["together"]:
            screen.line(f" replicas {_replicas_text(replicas, folder)}")
    for event in view["events"]:
        if event["kind"] == "sync":
            screen.line(f" sync   step {event['step']}, {sync_text(event)}")
            continue
        facts = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("t", "kind"))
        screen.line(f" event  {event['kind']}  {facts}")
    for checkpoint in view["checkpoints"]:
        screen.line(f" kept   {checkpoint['path']}")
    logs = logs_view(open_run(folder), work=job.work)
    if logs is not None:
        for row in logs["rows"]:
            bounds = (
                "no interval"
                if row["recurrence_low"] is None
                else f"[{row['recurrence_low']:.3f}, {row['recurrence_high']:.3f}]"
            )
            screen.line(
                f" logs   {row['name']}: recurrence {row['recurrence']:.3f} {bounds} at {row['n']}"
                " held-out sites"
            )
        screen.line(f" logs   {logs['verdict']['sentence']}")
        show_side_by_side(job, logs, most=len(logs["sites"]) if full else SHOWN)
    screen.result({**view, "logs": logs, "stale": changed})
    return 0


def run_folder(job: Job, wanted: str) -> Path:
    """The folder of a run by path, name or prefix of its name; "" and "latest" mean the newest."""
    if wanted and (Path(wanted) / "run.json").exists():
        return Path(wanted)
    names = (
        sorted(p.name for p in job.runs.iterdir() if p.name != LATEST and (p / "run.json").exists())
        if job.runs.is_dir()
        else []
    )
    if not names:
        raise DataError("no run yet", where=str(job.runs), fix=f"run first: {job.command('train')}")
    if not wanted or wanted == LATEST:
        latest = job.runs / LATEST
        return (
            latest if latest.is_dir() else job.runs / Path(latest.read_text("utf-8").strip()).name
        )
    return (
        job.runs / names[find_index(wanted, names, noun="run", file=job.runs, command=job.command)]
    )


def _row(name: str, channel: Mapping[str, Any]) -> tuple[str, ...]:
    statuses = ", ".join(f"{status} {count}" for status, count in channel["statuses"].items())
    loss, grad = channel["loss"], channel["grad_norm"]
    return (name, statuses, str(channel["tokens"]), _pair(loss), _pair(grad))


def _replicas_text(view: Mapping[str, Any], folder: Path) -> str:
    """The replicas of a run, and where the metrics of each stand."""
    parts = [
        f"{r['slot']} {r['state']} ({plural(r['took_part'], 'round')},"
        f" {plural(r['launches'], 'launch', 'launches')})"
        for r in view["replicas"]
    ]
    first = folder / REPLICAS / str(view["replicas"][0]["slot"])
    return f"{', '.join(parts)}; of each: recompose show run {shlex.quote(str(first))}"


def _pair(points: Mapping[str, Any]) -> str:
    return "" if points["first"] is None else f"{points['first']:.4g} -> {points['last']:.4g}"
