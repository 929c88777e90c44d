"""The output of `recompose evaluate --logs`: the held-out sites, their power, and the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer_replication.cli.job import Job
from composer_replication.report.html import plural
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.logs_view import number_or_none, outcome_tally, share_with_interval

if TYPE_CHECKING:
    from composer_replication.evaluation.held_out_sites import HeldOut

SHOWN, LINE_CHARS = 3, 160


def print_plan(job: Job, held: HeldOut) -> dict[str, Any]:
    """Print what is held out and what it can show; returns both."""
    from composer_replication.evaluation.logs_table import plan_of

    plan, print_line = plan_of(held), job.screen.line
    print_line(
        f" held out {plural(plan['sites'], 'mistake')} in {plan['sessions_with_sites']} of"
        f" {plural(plan['held_out_sessions'], 'held-out session')} and"
        f" {plural(plan['repositories'], 'repository', 'repositories')}; as for `build`,"
        f" {plural(plan['training_sessions'], 'session')} to train on"
    )
    if plan["sessions"] != plan["sessions_with_sites"]:
        print_line(
            f"          below, a session and those that it started count as one: {plan['sessions']}"
        )
    if plan["shared_repository"]:
        print_line(
            f" note     {plan['shared_repository']} of them in repositories that are trained on:"
            " held out by session alone, so no claim",
            style="yellow",
        )
    if plan["kinds"]:
        kinds = [(kind_title(kind), kind, count) for kind, count in plan["kinds"].items()]
        job.screen.table(kinds, head=("what went wrong", "kind", "sites"))
    if plan["left_out"]:
        print_line(
            " left out"
            f" {', '.join(f'{count} {reason}' for reason, count in plan['left_out'].items())}"
        )
    if plan["smallest_difference"] is None:
        print_line(
            " power    so few cannot show any change, not even from always to never"
            f" ({plan['assumes']})",
            style="yellow",
        )
    else:
        print_line(
            " power    the smallest change of the recurrence that they can show:"
            f" {plan['smallest_difference']:.2f} ({plan['assumes']})"
        )
    one_way, by_session = (
        number_or_none(plan[name]) for name in ("smallest_one_way", "smallest_by_session")
    )
    print_line(
        f"          at best, every change in one direction: {one_way}; if the sites of a session"
        f" rise and fall together: {by_session}"
    )
    return plan


def show_rows(job: Job, table: Mapping[str, Any]) -> None:
    """Print rows, differences, and the verdict."""
    from composer_replication.evaluation.logs_table import METRICS, RECURRENCE

    rows = [
        (
            row["name"],
            str(row["n"]),
            str(row["sessions"]),
            *(share_with_interval(row, metric) for metric in METRICS),
        )
        for row in table["rows"]
    ]
    job.screen.table(rows, head=("row", "sites", "sessions", *METRICS))
    for pair in table["paired"]:
        if pair["metric"] in (RECURRENCE, "ok"):
            bounds = (
                "no interval"
                if pair["low"] is None
                else f"[{pair['low']:+.3f}, {pair['high']:+.3f}]"
            )
            detectable = ""
            if pair["detectable"] is not None:
                shows = f"{pair['detectable']:.2f}" if pair["detectable"] < 1 else "none"
                detectable = f", could show {shows}"
            job.screen.line(
                f" {pair['metric']}: {pair['a']} - {pair['b']} = {pair['difference']:+.3f}"
                f" {bounds}{detectable}"
            )
    job.screen.line(f" {table['verdict']['sentence']}", style="bold")
    for note in (*table["verdict"]["reasons"], *table["notes"]):
        job.screen.line(f" note     {note}", style="dim")


def show_side_by_side(job: Job, view: Mapping[str, Any] | None, *, most: int) -> None:
    """Print the first sites: the log's message and each student's, one line each."""
    for site in view["sites"][:most] if view else ():
        job.screen.line(f" {site['name']}  {site['kind']}  {site['id']}", style="bold")
        if site["log"] is not None:
            job.screen.line(f"   {'log':7} {in_a_line(site['log'])}")
        for name, samples in site["written"].items():
            for sample in samples[:1]:
                job.screen.line(f"   {name:7} {in_a_line(sample['turn'])}")
                job.screen.line(
                    f"   {'':7} {sample['outcome']}: {sample['reason']}   (of {len(samples)}:"
                    f" {outcome_tally(samples)})",
                    style="dim",
                )
    left = len(view["sites"]) - most if view else 0
    if left > 0:
        job.screen.line(
            f" {left} more sites: {job.command('report')} shows them side by side", style="dim"
        )


def in_a_line(turn: Mapping[str, Any] | None) -> str:
    """A message on one line, calls as NAME {arguments}; a longer one is cut, with a note."""
    if turn is None:
        return "(not kept)"
    parts = [
        (
            f"{block['name']} {json.dumps(block['arguments'], ensure_ascii=False)}"
            if block["type"] == "call"
            else str(block.get("text", ""))
        )
        # calls first: they are what the check judges
        for block in sorted(turn["blocks"], key=lambda block: block["type"] != "call")
    ]
    text = " ".join(" · ".join(parts).split())
    return (
        text
        if len(text) <= LINE_CHARS
        else f"{text[:LINE_CHARS]} [{len(text) - LINE_CHARS} more characters]"
    )
