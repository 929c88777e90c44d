"""The output of `recompose replay`: the outcomes of the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.replay_ask import ReplayAnswers
from composer_replication.cli.replay_bill import bill_of, print_answers
from composer_replication.cli.replay_plan import ReplayPlan
from composer_replication.data.replay.ask import ReplayedTurn
from composer_replication.data.teachers.scripted import Scripted
from composer_replication.report.explanations import ANSWERED
from composer_replication.report.html import plural


def print_outcomes(
    job: Job, plan: ReplayPlan, replayed_turns: Sequence[ReplayedTurn], collected: ReplayAnswers
) -> dict[str, Any]:
    """Print the outcomes of the answers as a table and return their numbers."""
    gathered, judge_result, stopped = collected.gathered, collected.judge_result, collected.stopped
    counts = Counter(replayed.outcome for replayed in replayed_turns)
    screen, answers = job.screen, gathered.answers
    teachers = sorted({answer.teacher for answer in answers})
    judge_usd = 0.0 if judge_result is None else sum(judge_result.usd.values())
    screen.line(
        f" {plural(len(gathered.asked), 'turn')} asked about, {plural(len(answers), 'answer')} of"
        f" {plural(len(teachers), 'teacher')}: {', '.join(teachers) or 'none'}"
    )
    rows = [
        (outcome, counts[outcome], meaning)
        for outcome, meaning in ANSWERED.items()
        if counts[outcome]
    ]
    screen.table(rows, head=("what came of it", "turns", "meaning"))
    if plan.teachers and all(isinstance(teacher, Scripted) for teacher in plan.teachers):
        screen.line(
            "\n the teachers are scripts that look into the state of the environment: labels for"
            " a demonstration, never a measurement"
        )
    else:
        print_answers(job, answers, gathered)
    if judge_result is not None:
        judged = ", ".join(f"{name} {count}" for name, count in judge_result.counts.items())
        screen.line(f" judge {judge_result.name}: {judged or 'not needed'}, ${judge_usd:.4f}")
    if not counts["pair"]:
        screen.line(
            " no pair: replay.min_families ="
            f" {plan.settings.min_families} of the families that answer have to agree",
            style="yellow",
        )
    if plan.models and (failed := gathered.counts.get("failed")):
        screen.line(
            f" {plural(failed, 'call')} brought no answer: run it again to ask for no others; what"
            " came is kept",
            style="yellow",
        )
    if stopped is not None:
        screen.line(f" stopped: {stopped}", style="red")
    skipped = {
        k: n for k, n in sorted(counts.items()) if k not in ("pair", "agreed", "no_consensus")
    }
    numbers = {
        "asked": len(gathered.asked),
        "answers": len(answers),
        "usd": sum(answer.usd for answer in answers) + judge_usd,
        "teachers": teachers,
        "asking": gathered.counts,
    }
    if judge_result is not None:
        numbers["judge"] = {"name": judge_result.name, "usd": judge_usd, **judge_result.counts}
    if plan.models:
        numbers["bill"] = bill_of(answers)
    ended = None if stopped is None else {"what": stopped.what, "exit_code": stopped.exit_code}
    outcomes = {
        "pairs": counts["pair"],
        "agreed": counts["agreed"],
        "no_consensus": counts["no_consensus"],
        "skipped": skipped,
    }
    return {**numbers, **outcomes, "stopped": ended}
