"""What `train` says: the plan before anything is loaded, one line a step, and events as they happen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.errors import ConfigError
from composer_replication.tokens.artefact import Dataset

CHANNELS = ("policy", "lm_ce", "hint", "preference")
COLOUR = {"active": "green", "exhausted": "green", "off": "dim", "starved": "red", "dead": "red"}


def show_plan(job: Job, data: Dataset) -> dict[str, Any]:
    """Tokens and weights per channel; refuses a weighted channel for which the data set holds nothing and no rollout will."""
    settings = job.config.train
    weights = {
        "policy": settings.policy.weight,
        "lm_ce": settings.lm_ce.weight,
        "hint": settings.hint.weight,
        "preference": settings.preference.weight,
    }
    units = {
        "policy": sum(len(action.logprobs) for e in data.examples for action in e.actions),
        "lm_ce": sum(b - a for e in data.examples for a, b in e.trained),
        "hint": sum(len(v.target_ids) for e in data.examples for v in e.hints),
        "preference": len(data.pairs) + sum(len(e.anchored) for e in data.examples) * (settings.preference.anchor > 0),
    }
    per_epoch = -(-len(data.examples) // settings.batch_examples)
    job.screen.table(
        [(name, weights[name], units[name], "off" if weights[name] == 0 else "") for name in CHANNELS],
        head=("channel", "weight", "tokens, or pairs and anchors", ""),
    )
    told = f"{settings.steps} steps of {settings.batch_examples} examples; one pass is {per_epoch} steps"
    job.screen.line(f" plan     {told}; at most {settings.micro_tokens} padded tokens in one forward")
    unused = [name for name in CHANNELS if weights[name] == 0 and units[name]]
    for name in unused:
        job.screen.line(f" note     there is data for {name}, but its weight is 0: set train.{name}.weight", style="yellow")
    for name in CHANNELS:
        if weights[name] and not units[name] and not job.config.rollouts.env:
            fixes = {"preference": "give pairs with build.pairs and build again", "policy": "let the student act: set rollouts.env"}
            fix = fixes.get(name, f"look at what `{job.command('build')}` left out")
            raise ConfigError(
                f"channel {name} has weight {weights[name]}, but the examples hold nothing for it",
                fix=f"{fix}, or set train.{name}.weight = 0",
            )
    return {"weights": weights, "units": units, "steps": settings.steps, "examples": len(data.examples), "pairs": len(data.pairs)}


def show_step(job: Job, line: Mapping[str, Any]) -> None:
    """One line a step, key=value, so that it can be searched."""
    parts = [f"step={line['step']}"]
    for name in CHANNELS:
        status = line[f"{name}/status"]
        if status == "off":
            continue
        loss = line[f"{name}/loss"]
        shown = "" if loss is None else f" loss={loss:.4f}"
        parts.append(f"{name}={status}{shown} tokens={line[f'{name}/tokens']} grad={line[f'{name}/grad_norm']:.3g}")
    bad = any(line[f"{name}/status"] in ("starved", "dead") for name in CHANNELS)
    job.screen.line(" " + " | ".join(parts), style="red" if bad else "")


def show_event(job: Job, event: Mapping[str, Any]) -> None:
    """A warning at once; the rest with --verbose."""
    facts = ", ".join(f"{k} {v}" for k, v in event.items() if k not in ("t", "kind", "attempt"))
    if event["kind"] in ("starved", "dead"):
        job.screen.line(f" WARNING  {event['kind']}: {facts}", style="bold red")
    else:
        job.screen.detail(f" event    {event['kind']}: {facts}")
