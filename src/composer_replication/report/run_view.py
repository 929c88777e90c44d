"""A run directory as plain values: its settings, channels, metrics and events. Imports core only.

    view = run_view(Path("recompose/runs/latest"))
    view["channels"]["hint"]["statuses"]    -> {"active": 19, "exhausted": 1}

None of these values shows that a run worked: a falling loss is not evidence. That takes an
evaluation with a placebo.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.config.root import Config
from composer_replication.core.rundir import RunDir, diff_settings, open_run

CHANNEL_KEYS = ("status", "tokens", "loss", "grad_norm", "grad_norm_parameters", "scale")
# "loss" is bookkeeping: the sum of scaled losses has no meaning of its own
BOOKKEEPING = ("t", "step", "attempt", "lr", "step_s", "loss", "grad_norm", "clipped")

MOST_CLIPPED = 0.2
"""Above this share of clipped steps, clipping affects more than outliers, and the page says so."""


def run_view(path: Path) -> dict[str, Any]:
    """The values of a run's overview; raises DataError if the folder is not a run."""
    run = open_run(path)
    info, metrics, settings = run.info(), run.metrics(), run.resolved()
    return {
        "id": info["id"],
        "path": str(path),
        "state": info["state"],
        # not run.json's: a resume may change it, and earlier versions wrote a derived one
        "seed": settings.get("seed", info["seed"]),
        "started": info["started"],
        "ended": info["ended"],
        "attempts": info["attempts"],
        "versions": info["versions"],
        "command": run.command_txt.read_text("utf-8").strip(),
        "steps": len(metrics),
        "steps_planned": settings.get("train", {}).get("steps"),
        "channels": channels(metrics),
        "measures": measures(metrics),
        "clipped": clipped_steps(metrics),
        "events": run.events(),
        "checkpoints": [{"step": step, "path": str(folder)} for step, folder in run.checkpoints()],
        "inputs": inputs(run),
        "changed_settings": diff_settings(Config().model_dump(mode="json"), settings),
    }


def state_text(state: str) -> str:
    """The state of a run as people say it.

    >>> state_text("stopped:interrupted"), state_text("stopped:not_finite"), state_text("done")
    ('interrupted', 'stopped: not finite', 'done')
    """
    word, _, reason = state.partition(":")
    if reason == "interrupted":
        return reason
    return f"{word}: {reason.replace('_', ' ')}" if reason else word


def inputs(run: RunDir) -> list[dict[str, Any]]:
    """The files on which a run was trained, with hash and number of rows."""
    return list(json.loads(run.manifest_json.read_text("utf-8"))["inputs"])


def channels(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per channel: the count of each status, the tokens, and the series of loss and gradient norm.

    >>> metrics = [{"step": 1, "hint/status": "active", "hint/tokens": 4, "hint/loss": 0.5}]
    >>> channels(metrics)["hint"]["tokens"]
    4
    """
    views: dict[str, dict[str, Any]] = {}
    for name in CHANNELS:
        rows = [step_metrics for step_metrics in metrics if f"{name}/status" in step_metrics]
        if not rows:
            continue
        views[name] = {
            "statuses": dict(Counter(step_metrics[f"{name}/status"] for step_metrics in rows)),
            "last_status": rows[-1][f"{name}/status"],
            "tokens": sum(step_metrics.get(f"{name}/tokens", 0) for step_metrics in rows),
            "steps": [
                (step_metrics["step"], step_metrics[f"{name}/status"]) for step_metrics in rows
            ],
            "tokens_per_step": series(rows, f"{name}/tokens"),
            "loss": series(rows, f"{name}/loss"),
            "grad_norm": series(rows, f"{name}/grad_norm"),
        }
    return views


def clipped_steps(metrics: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on how many steps clipped the gradient; "" if the run did not record it.

    >>> clipped_steps([{"clipped": False}, {"clipped": True}, {"clipped": False}])[:40] + "..."
    'The gradient was clipped in 1 of 3 steps...'
    >>> clipped_steps([{"clipped": False}]), clipped_steps([{"loss": 1.0}])
    ('The gradient was clipped in 0 of 1 steps.', '')
    """
    clipped = [
        bool(step_metrics["clipped"]) for step_metrics in metrics if "clipped" in step_metrics
    ]
    often = sum(clipped) > len(clipped) * MOST_CLIPPED
    advice = (
        " Clipping is meant for outliers: if it is the rule, channel weights and the fading of"
        " hints have no effect."
        if often
        else ""
    )
    return (
        f"The gradient was clipped in {sum(clipped)} of {len(clipped)} steps.{advice}"
        if clipped
        else ""
    )


def measures(metrics: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every other number of the metrics by name: reward, margins, the inputs of the health rules.

    >>> list(measures([{"step": 1, "lr": 0.1, "hint/loss": 2.0, "policy/reward": 0.4}]))
    ['policy/reward']
    """
    known = {f"{name}/{key}" for name in CHANNELS for key in CHANNEL_KEYS} | set(BOOKKEEPING)
    names = {
        key: None
        for step_metrics in metrics
        for key, value in step_metrics.items()
        if key not in known and is_number(value)
    }
    return {
        name: series(
            [step_metrics for step_metrics in metrics if is_number(step_metrics.get(name))], name
        )
        for name in names
    }


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a number; true and false are not.

    >>> is_number(0.5), is_number(True)
    (True, False)
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def series(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The first and last value of a metric, and its value at every step that has one."""
    points = [
        (step_metrics["step"], step_metrics[key])
        for step_metrics in rows
        if step_metrics.get(key) is not None
    ]
    return {
        "first": points[0][1] if points else None,
        "last": points[-1][1] if points else None,
        "points": points,
    }
