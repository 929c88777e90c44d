"""The estimate of `recompose replay`: the bill, what a step costs and can bring, whom to add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.core.config.rollout_settings import ReplaySettings
from composer_replication.core.teacher import Teacher
from composer_replication.data.replay.estimate import USUAL_ANSWER_TOKENS, Bill
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.batch_queue import asks_in_batches
from composer_replication.data.teachers.defaults import DEFAULT_TEACHERS
from composer_replication.data.teachers.openai_compatible import batch_discount_of
from composer_replication.report.html import plural


def cost_per_step(bill: Bill) -> str:
    """What a step costs and what it can bring, in a sentence; "" if nothing is bought.

    >>> from composer_replication.data.replay.estimate import TeacherBill
    >>> asked = {"kimi": TeacherBill(calls=20, usd=0.5), "glm": TeacherBill(calls=20, usd=0.7)}
    >>> cost_per_step(Bill(sessions=3, steps=50, sites=9, prompts_too_long=0, teachers=asked,
    ...     no_pair={"no_evidence": 30}))
    'about $0.06 a step; a pair can come of 20 of 50 steps, so one costs $0.06 or more'
    """
    possible = bill.steps - sum(bill.no_pair.values())
    if not bill.usd or not possible:
        return ""
    each = bill.usd / possible
    shown = f"${each:.2f}" if each >= 0.005 else f"${each:.4f}"
    return (
        f"about {shown} a step; a pair can come of {possible} of {plural(bill.steps, 'step')}, so"
        f" one costs {shown} or more"
    )


def next_teachers(settings: ReplaySettings, teachers: Sequence[Teacher], bill: Bill) -> list[str]:
    """The names of replay.teachers with default ones added until enough families can answer; []
    if families are not what is missing.

    The default teachers are of makers of their own (data/teachers/defaults.py).
    """
    if not bill.no_pair.get("too_few_families"):
        return []
    families = {teacher.family for teacher in teachers}
    names = [name for name in settings.teachers if name in {t.name for t in teachers}]
    for name, default in DEFAULT_TEACHERS.items():
        if len(families) < settings.min_families and family_of(default.model) not in families:
            families.add(family_of(default.model))
            names.append(name)
    return names


def batch_notes(teachers: Sequence[Teacher]) -> dict[str, str]:
    """How the teachers that are asked in batches are priced, by name.

    >>> from composer_replication.core.config.teacher_settings import TeacherSettings
    >>> from composer_replication.data.teachers.openai_compatible import OpenAICompatible
    >>> settings = TeacherSettings(model="m", base_url="https://api.openai.com/v1", batch=True,
    ...     max_input_usd_per_mtok=2.0)
    >>> batch_notes([OpenAICompatible("gpt", settings, environ=None)])
    {'gpt': '50 % off'}
    """
    return {
        teacher.name: f"{100 * batch_discount_of(teacher.settings):g} % off"
        for teacher in teachers
        if asks_in_batches(teacher)
    }


def print_estimate(
    job: Job, bill: Bill, settings: ReplaySettings, teachers: Sequence[Teacher]
) -> dict[str, Any]:
    """Print the estimate as a table and return its numbers."""
    screen, batched = job.screen, batch_notes(teachers)
    screen.line(
        f" {plural(bill.sessions, 'session')}, {plural(bill.steps, 'step')} to ask about,"
        f" {plural(bill.sites, 'mistake')} among them"
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
    if batched:
        noted = ", ".join(f"{name} ({note})" for name, note in batched.items())
        screen.line(
            f" at the batch price: {noted}. A batch can take up to 24 hours; the first of a teacher"
            " holds one question, and the teachers' batches follow one another"
        )
    if per_step := cost_per_step(bill):
        screen.line(f" {per_step}")
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
            f" left out, as they do not fit into replay.max_prompt_tokens:"
            f" {plural(bill.prompts_too_long, 'step')}",
            style="yellow",
        )
    screen.line(" an estimate: nothing was sent")
    return {**estimate_numbers(bill, settings), "batches": list(batched), "sent": 0}


def estimate_numbers(bill: Bill, settings: ReplaySettings) -> dict[str, Any]:
    """The bill as values of --json."""
    bills = {
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
        "teachers": bills,
    }
