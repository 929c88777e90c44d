"""The output of `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.report.claims import claims
from composer_replication.report.evaluation_section import read_evaluation, signed


def show_evaluation(job: Job, path: Path) -> None:
    """Print the table and its claims, worded as on the page."""
    evaluation: dict[str, Any] = read_evaluation(path) or {}
    names = ("success", "targeted_mistakes_per_episode", "other_mistakes_per_episode")
    lines = [
        (row["name"], str(row["n"]), *(_cell(row, name) for name in names))
        for row in evaluation["rows"]
    ]
    job.screen.table(lines, head=("row", "n", "success", "targeted mistakes", "other mistakes"))
    for pair in evaluation["paired"]:
        if "metric" not in pair:
            job.screen.line(
                f" {pair['a']} - {pair['b']}: {signed(pair['difference'])}  [{signed(pair['low'])},"
                f" {signed(pair['high'])}]"
            )
    job.screen.line(f" {evaluation['verdict']['sentence']}", style="bold")
    for claim in claims(evaluation):
        job.screen.line(
            f" {claim.text}", style="bold yellow" if claim.against else "" if claim.holds else "dim"
        )
    for note in evaluation["notes"]:
        job.screen.line(f" note     {note}", style="dim")


def _cell(row: dict[str, Any], name: str) -> str:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return f"{row[name]:.3f}" + (
        f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""
    )
