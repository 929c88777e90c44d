"""The output of `recompose replay`: the estimate, and the outcomes of the answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.replay_ask import ReplayAnswers
from composer_replication.cli.replay_bill import bill_of, print_answers
from composer_replication.cli.replay_plan import ReplayPlan
from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.data.replay.ask import ReplayedTurn
from composer_replication.data.replay.estimate import USUAL_ANSWER_TOKENS, Bill
from composer_replication.data.teachers.scripted import Scripted

MEANINGS = {
    "pair": "others agree on another action: a preference",
    "agreed": "others did the same: an anchor",
    "no_consensus": "others do not agree among themselves: an anchor",
    "outvoted": "most others did something else, too few for a pair",
    "chosen_fails": "others agree on an action that raises an error here: no preference",
    "no_evidence": "others agree, and nothing but their agreement speaks for it",
    "after_error": "the turn after an error, to which the environment had already replied",
    "erred": "its own call raised an error: never an anchor",
    "too_few_families": "fewer than two families answered",
    "not_asked": "nobody was asked about it",
    "copied": "also in another session",
    "interrupted": "a person interrupted it",
    "no_text_or_call": "it holds neither text nor a call",
}


def print_estimate(job: Job, bill: Bill, settings: ReplaySettings) -> dict[str, Any]:
    """Print the estimate as a table and return its numbers."""
    screen = job.screen
    screen.line(
        f" {bill.sessions} sessions, {bill.steps} steps to ask about, {bill.sites} of them mistakes"
    )
    rows = [
        (
            name,
            teacher_bill.calls,
            teacher_bill.kept,
            f"{teacher_bill.input_tokens / 1e6:.3f}",
            f"{teacher_bill.usd:.4f}",
            f"{teacher_bill.most_usd:.4f}",
        )
        for name, teacher_bill in bill.teachers.items()
    ]
    screen.table(rows, head=("teacher", "calls", "kept", "M tokens", "$ about", "$ at most"))
    screen.line(
        f" about ${bill.usd:.2f} at full price with {USUAL_ANSWER_TOKENS} tokens an answer, before"
        f" caches; ceiling ${settings.max_usd:g}"
    )
    if settings.gate == "value" and any(
        teacher_bill.usd for teacher_bill in bill.teachers.values()
    ):
        screen.line(
            " later teachers are asked only where the first did something else than the student"
            " (replay.gate)"
        )
    if bill.no_pair:
        reasons = ", ".join(f"{count} ({reason})" for reason, count in bill.no_pair.items())
        screen.line(
            f" steps of which no pair can come, about which no paid teacher is asked: {reasons};"
            " see replay.gate",
            style="yellow",
        )
    if bill.judge:
        screen.line(
            f" {bill.judge} judges: only where the tiers before give nothing and a pair can come of"
            " it, at most what stands here"
        )
    if bill.prompts_too_long:
        screen.line(
            f" {bill.prompts_too_long} steps do not fit into replay.max_prompt_tokens and are"
            " left out",
            style="yellow",
        )
    screen.line(" an estimate: nothing was sent")
    teachers = {
        name: {
            "calls": b.calls,
            "kept": b.kept,
            "input_tokens": b.input_tokens,
            "usd": b.usd,
            "most_usd": b.most_usd,
        }
        for name, b in bill.teachers.items()
    }
    numbers = {
        "sessions": bill.sessions,
        "steps": bill.steps,
        "sites": bill.sites,
        "too_long": bill.prompts_too_long,
    }
    return {
        **numbers,
        "no_pair": dict(bill.no_pair),
        "usd": bill.usd,
        "most_usd": bill.most_usd,
        "max_usd": settings.max_usd,
        "teachers": teachers,
        "sent": 0,
    }


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
        f" {len(gathered.asked)} turns asked about, {len(answers)} answers of {len(teachers)}"
        f" teachers: {', '.join(teachers) or 'none'}"
    )
    rows = [
        (outcome, counts[outcome], meaning)
        for outcome, meaning in MEANINGS.items()
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
            f" no pair: {plan.settings.min_families} families have to agree (replay.min_families)",
            style="yellow",
        )
    if plan.models and (failed := gathered.counts.get("failed")):
        screen.line(
            f" {failed} calls brought no answer: run it again to ask for these alone, the others"
            " are kept",
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
