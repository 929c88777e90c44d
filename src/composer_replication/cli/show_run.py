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
from composer_replication.core.rundir import LATEST, RunDir, open_run
from composer_replication.report.html import plural
from composer_replication.report.logs_view import RECURRENCE, logs_view, share_with_interval
from composer_replication.report.replicas_section import summary_text
from composer_replication.report.replicas_view import REPLICAS, replicas_view
from composer_replication.report.run_view import run_view, state_text


def show_run(job: Job, wanted: str, *, full: bool = False) -> int:
    """A run by name, by the beginning of its name, by folder, or the latest; without one, a list
    of all."""
    if not wanted:
        return _list_runs(job)
    folder = run_folder(job, wanted)
    view = run_view(folder)
    screen = job.screen
    screen.line(
        f" {view['id']}  {state_text(view['state'])}  {view['steps']} of"
        f" {plural(view['steps_planned'], 'step')}  attempt"
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
            bounds = " no interval" if row["recurrence_low"] is None else ""
            screen.line(
                f" logs   {row['name']}: recurrence {share_with_interval(row, RECURRENCE)}{bounds}"
                f" at {row['n']} held-out sites"
            )
        screen.line(f" logs   {logs['verdict']['sentence']}")
        show_side_by_side(job, logs, most=len(logs["sites"]) if full else SHOWN)
    screen.result({**view, "logs": logs, "stale": changed})
    return 0


def run_folder(job: Job, wanted: str) -> Path:
    """The folder of a run by path, name or prefix of its name; "" and "latest" mean the newest."""
    if wanted and (Path(wanted) / "run.json").exists():
        return Path(wanted)
    names = _run_names(job)
    if not wanted or wanted == LATEST:
        latest = job.runs / LATEST
        return (
            latest if latest.is_dir() else job.runs / Path(latest.read_text("utf-8").strip()).name
        )
    return (
        job.runs / names[find_index(wanted, names, noun="run", file=job.runs, command=job.command)]
    )


def _run_names(job: Job) -> list[str]:
    """The names of the runs in the work folder; raises DataError if there are none."""
    names = (
        sorted(p.name for p in job.runs.iterdir() if p.name != LATEST and (p / "run.json").exists())
        if job.runs.is_dir()
        else []
    )
    if not names:
        raise DataError("no run yet", where=str(job.runs), fix=f"run first: {job.command('train')}")
    return names


def _list_runs(job: Job) -> int:
    """List the runs: the latest is marked, and a placebo says so."""
    names, latest = _run_names(job), run_folder(job, LATEST).resolve().name
    rows: list[dict[str, Any]] = []
    for run in (open_run(job.runs / name) for name in names):
        view = run_view(run.path)
        evaluated = [
            title
            for title, path in (
                ("logs", run.evaluation_logs_json),
                ("tasks", run.evaluation_json),
            )
            if path.exists()
        ]
        rows.append(
            {
                "name": run.path.name,
                "latest": run.path.name == latest,
                "state": view["state"],
                "steps": view["steps"],
                "planned": view["steps_planned"],
                "placebo": placebo_of(run),
                "evaluated": evaluated,
                "started": view["started"],
            }
        )
    job.screen.table(
        [
            (
                row["name"] + (f" ({LATEST})" if row["latest"] else ""),
                state_text(row["state"]),
                f"{row['steps']} of {row['planned']}",
                ", ".join(row["placebo"]) or "no",
                " and ".join(row["evaluated"]) or "no",
                str(row["started"]).partition(".")[0],
            )
            for row in rows
        ],
        head=("run", "state", "steps", "placebo", "evaluated", "started"),
    )
    job.screen.line(f" look     {job.command('show run')} {shlex.quote(latest)}")
    job.screen.result({"runs": rows})
    return 0


def placebo_of(run: RunDir) -> list[str]:
    """The signals that a run nulls; [] if it is no placebo."""
    return [str(name) for name in run.resolved().get("train", {}).get("placebo", ())]


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
