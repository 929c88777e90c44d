"""The output of `build`, and its refusal if a channel lost everything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_json
from composer_replication.models.context_length import context_length
from composer_replication.tokens.artefact import META, BuildReport
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import MIN_REPOSITORIES

_LOST = ("template", "not_insertable", "too_long", "evidence_lost")
_WAYS = {
    "template": "set student.template to a family that can write what these sessions hold",
    "not_insertable": (
        "set hints.position = user, or student.template to a family that takes a message above an"
        " assistant's"
    ),
    "too_long": "raise build.max_tokens, at most to the model's context",
    "evidence_lost": (
        "raise build.max_tokens, at most to the model's context, or set build.without_evidence ="
        " keep"
    ),
}
"""Reasons for which a unit cannot be built, and the remedy for each."""


def remedies(skipped: Mapping[str, int]) -> list[str]:
    """What helps against the reasons for which units were left out, most frequent first.

    >>> remedies({"too_long": 3, "no_site": 9})
    ["raise build.max_tokens, at most to the model's context"]
    """
    frequent = sorted(skipped, key=lambda reason: -skipped[reason])
    return [_WAYS[reason] for reason in frequent if reason in _WAYS]


def _way(reason: str, config: Config) -> str:
    """The remedy for a reason, with the model's context where it bounds it."""
    way, context = _WAYS[reason], context_length(config.student)
    if context is None:
        return way.replace(", at most to the model's context", "")
    if config.build.max_tokens >= context:
        return way.replace(
            "raise build.max_tokens, at most to the model's context",
            f"take a model that reads more than {context} tokens",
        )
    return way.replace("at most to the model's context", f"at most to the model's {context}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A build that lost a channel: the error, and flags that avoid it ("" = none was found)."""

    error: DataError
    flags: str = ""


def wider_windows(config: Config) -> Iterator[tuple[str, BuildSettings]]:
    """Yield (flags, settings) that lose less: longer windows, then views without evidence.

    A window never exceeds train.micro_tokens, which must fit into one forward, nor the model's
    context.
    """
    build, tokens = config.build, 2 * config.build.max_tokens
    most = min(
        config.train.micro_tokens, context_length(config.student) or config.train.micro_tokens
    )
    while tokens <= most:
        yield f"--build.max_tokens {tokens}", build.model_copy(update={"max_tokens": tokens})
        tokens *= 2
    if build.without_evidence == "skip":
        yield "--build.without_evidence keep", build.model_copy(update={"without_evidence": "keep"})


def note_refused(examples: Path, refused: Refused) -> None:
    """Record in the examples' meta.json that the build was refused, and which flags avoid it.

    `next_step` reads it.
    """
    path = examples / META
    write_json(
        path,
        {
            **json.loads(path.read_bytes()),
            "refused": {"what": refused.error.what, "flags": refused.flags},
        },
    )


def lost_channel(config: Config, report: BuildReport) -> DataError | None:
    """The error of a build that lost all hints or most messages of a weighted channel, or None.

    With live rollouts, which have their own hints, imported hints may be lost.
    """
    train, channels = config.train, []
    if train.hint.weight and not config.rollouts.env:
        channels.append(("hint", "hints", report.hinted_sites, 0.0))
    if train.lm_ce.weight:
        channels.append(("lm_ce", "messages", report.trained_messages, 0.5))
    for channel, noun, built, least in channels:
        reasons = {
            reason: n for reason in _LOST if (n := report.skipped.get(f"{channel}/{reason}", 0))
        }
        lost, most = sum(reasons.values()), max(reasons, key=lambda name: reasons[name], default="")
        if lost and built <= least * reasons.get("template", 0):
            listed = ", ".join(f"{name} {n}" for name, n in reasons.items())
            message = f"{built} of {lost + built} {noun} could be built for {channel}: {listed}"
            return DataError(
                message,
                where="skipped.jsonl has each",
                fix=f"{_way(most, config)}, or set train.{channel}.weight = 0, and build again",
            )
    return None


def show_build(job: Job, renderer: Renderer, report: BuildReport, split: dict[str, Any]) -> None:
    """Print the split, the channels, the views' context and evidence, and what was left out."""
    screen, about = job.screen, renderer.describe()
    screen.line(
        f" student  {job.config.student.model}, template {about['family']}, {about['vocab_size']}"
        " tokens in its vocabulary"
    )
    by = split["by"]
    sizes = f"{split['train_sessions']} sessions to train on, {split['held_out_sessions']} held out"
    auto = job.config.held_out.by == "auto" and by == "session" and split["fraction"]
    reason = f", as there are fewer than {MIN_REPOSITORIES} repositories" if auto else ""
    screen.line(f" split    by {by}{reason}: {sizes}{_units(split)}")
    screen.line(
        f" examples {report.examples}, {report.tokens} tokens, longest {report.longest} of"
        f" {job.config.build.max_tokens}"
    )
    rows = [
        ("lm_ce", report.trained_messages, report.trained_tokens, "messages that are no mistake"),
        ("hint", report.views, report.target_tokens, "mistaken messages with a hint"),
        ("preference", report.pairs, "", "pairs"),
        (
            "anchors",
            report.anchors,
            report.anchored_tokens,
            "messages that the preference channel holds in place",
        ),
    ]
    screen.table(rows, head=("channel", "units", "tokens", "what"))
    if report.views:
        share = (
            f"{report.context_kept} of {report.context_available} tokens above the mistaken"
            " messages are in their windows"
        )
        screen.line(f" context  {share}")
        evidence = (
            f"{report.views_with_evidence} of {report.views} views hold every turn that the hint"
            " or the call refers to"
        )
        lost = report.skipped.get("hint/evidence_lost", 0)
        screen.line(
            f" evidence {evidence}"
            + (f"; {lost} hints whose window would lose one are left out" if lost else "")
        )
        if (position := job.config.hints.position) in ("reminder", "result"):
            apart = report.views_by_rendering.get("message", 0)
            screen.line(
                f" hints    {report.views - apart} at the end of the text above (hints.position ="
                f" {position}), {apart} as a user message: no text directly above, or its last"
                " tokens would change"
            )
        joined = f"{report.hinted_sites} failing calls in {report.views} messages, one view each"
        screen.line(
            f" views    {joined}; by tokens they weigh as {report.effective_views:g} equal ones"
            " (train.hint.mean)"
        )
    if report.skipped:
        screen.line("\n left out, by channel and reason (skipped.jsonl has each):")
        screen.table(report.skipped.items(), head=("channel/reason", "count"))
    screen.line(f" look     {job.command('show example e001')}")


def _units(split: Mapping[str, Any]) -> str:
    """The number of repositories on either side; "" for a split by session.

    >>> _units({"by": "repository", "train_units": 18, "held_out_units": 0})
    ' (of 18 and 0 repositories)'
    """
    return (
        f" (of {split['train_units']} and {split['held_out_units']} repositories)"
        if split["by"] == "repository"
        else ""
    )


def context_text(context: Mapping[str, Any]) -> str:
    """One line of a view, e.g. "context: 3980 of 21400 tokens above it; refers to turns [4, 5], not
    in the window: []"."""
    refers = (
        f"; refers to turns {list(context['refers_to'])}, not in the window:"
        f" {list(context['lost'])}"
    )
    refers = refers if context["refers_to"] or context["lost"] else ""
    return f"context: {context['kept']} of {context['available']} tokens above it{refers}"
