"""The output of `evaluate`."""

from __future__ import annotations

from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.rundir import RunDir
from composer_replication.report.claims import claims
from composer_replication.report.evaluation_section import read_evaluation, signed
from composer_replication.report.headline import TOY_TITLE, logs_sentence
from composer_replication.report.logs_view import read_logs


def show_evaluation(job: Job, run: RunDir, *, on_logs: str) -> None:
    """Print the table and its claims, worded as on the page.

    What was played in the workshop after a training on logs is called a toy, and the bold sentence
    is about the logs; `on_logs` is the command that judges at them.
    """
    evaluation: dict[str, Any] = read_evaluation(run.evaluation_json) or {}
    is_users = evaluation["own_tasks"]
    if not is_users:
        job.screen.line(f" {TOY_TITLE}:", style="yellow")
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
    job.screen.line(f" {evaluation['verdict']['sentence']}", style="bold" if is_users else "dim")
    for claim in claims(evaluation):
        job.screen.line(
            f" {claim.text}",
            style="dim"
            if not (is_users and (claim.against or claim.holds))
            else "bold yellow"
            if claim.against
            else "",
        )
    for note in evaluation["notes"]:
        job.screen.line(f" note     {note}", style="dim")
    if not is_users:
        logs = read_logs(run)
        job.screen.line(
            f" {logs_sentence(logs)}"
            if logs is not None
            else " Your own logs: not evaluated yet. This does it:",
            style="bold",
        )
        if logs is None:
            job.screen.line(f"   {on_logs}")


def _cell(row: dict[str, Any], name: str) -> str:
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return f"{row[name]:.3f}" + (
        f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""
    )
