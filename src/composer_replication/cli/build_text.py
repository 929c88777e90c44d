"""The output of `build`, and what helps against what it left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.report.explanations import why_left_out
from composer_replication.report.html import plural
from composer_replication.tokens.artefact import BuildReport
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import MIN_REPOSITORIES

WAYS = {
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
    """The remedies for the reasons for which units were left out, most frequent first.

    >>> remedies({"too_long": 3, "no_site": 9})
    ["raise build.max_tokens, at most to the model's context"]
    """
    frequent = sorted(skipped, key=lambda reason: -skipped[reason])
    return [WAYS[reason] for reason in frequent if reason in WAYS]


def show_build(job: Job, renderer: Renderer, report: BuildReport, split: dict[str, Any]) -> None:
    """Print the split, the channels, the views' context and evidence, and what was left out."""
    screen, about = job.screen, renderer.describe()
    screen.line(
        f" student  {job.config.student.model}, template {about['family']}, {about['vocab_size']}"
        " tokens in its vocabulary"
    )
    by = split["by"]
    sizes = (
        f"{plural(split['train_sessions'], 'session')} to train on,"
        f" {split['held_out_sessions']} held out"
    )
    auto = job.config.held_out.by == "auto" and by == "session" and split["fraction"]
    reason = f", as there are fewer than {MIN_REPOSITORIES} repositories" if auto else ""
    screen.line(f" split    by {by}{reason}: {sizes}{_repository_counts(split)}")
    screen.line(
        f" examples {report.examples}, {plural(report.tokens, 'token')}, longest"
        f" {report.longest} of {job.config.build.max_tokens}"
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
            + (f"; hints left out because their window would lose one: {lost}" if lost else "")
        )
        if (position := job.config.hints.position) in ("reminder", "result"):
            apart = report.views_by_rendering.get("message", 0)
            screen.line(
                f" hints    {report.views - apart} at the end of the text above (hints.position ="
                f" {position}), {apart} as a user message: no text directly above, or its last"
                " tokens would change"
            )
        joined = (
            f"{plural(report.hinted_sites, 'failing call')} in {plural(report.views, 'message')},"
            " one view each"
        )
        screen.line(
            f" views    {joined}; by tokens they weigh as {report.effective_views:g} equal ones"
            " (train.hint.mean)"
        )
    if report.skipped:
        screen.line("\n left out, by channel and reason (skipped.jsonl has each):")
        skipped = [(name, count, why_left_out(name)) for name, count in report.skipped.items()]
        screen.table(skipped, head=("channel/reason", "count", "that is"))
    screen.line(f" look     {job.command('show example e001')}")


def _repository_counts(split: Mapping[str, Any]) -> str:
    """The text that counts the repositories on either side; "" for a split by session.

    >>> _repository_counts({"by": "repository", "train_units": 18, "held_out_units": 0})
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
