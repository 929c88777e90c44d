"""The asking of `recompose replay`: what is checked before money is spent, and the ledger of the work folder."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

from composer_replication.cli.job import Job
from composer_replication.cli.replay_plan import Plan
from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import diff_settings
from composer_replication.data.replay.families import family_of
from composer_replication.data.replay.gather import Gathered, gather
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.open import limits_of, named_teachers, patience_of
from composer_replication.data.teachers.openai_compatible import OpenAICompatible

PLAN = "replay_plan.json"


def check_plan(job: Job, plan: Plan, *, resume: bool) -> None:
    """Before money is spent: there is a ceiling, and with --resume nothing has changed since the replay was begun. Notes what is asked."""
    path, settings = job.work / PLAN, plan.settings
    paid = [teacher.name for teacher in plan.teachers if not teacher.price.free]
    if paid and not settings.max_usd:
        fix = "see what it would cost: recompose replay --estimate; then: recompose replay --max-usd 2"
        raise ConfigError(f"{paid[0]} is paid, and there is no ceiling", where="replay.max_usd", fix=fix)
    if resume:
        if not path.exists():
            raise DataError("no replay was begun here", where=str(path), fix=f"run: {job.command('replay')}")
        changed = diff_settings(json.loads(path.read_text("utf-8")), plan.record)
        if changed:
            fix = "undo that, or leave --resume out: answers that are asked for again are taken from the ledger anyway"
            raise ConfigError("this is not the replay that was begun: " + "; ".join(changed), where=str(path), fix=fix)
    write_json(path, plan.record)


def gather_answers(job: Job, plan: Plan) -> Gathered:
    """Ask, through the ledger of the work folder."""
    return asyncio.run(_gather(job, plan))


async def _gather(job: Job, plan: Plan) -> Gathered:
    settings = plan.settings
    limits = limits_of(named_teachers(settings, maker_of=family_of).values()) if plan.models else {}
    async with AsyncExitStack() as stack:
        for teacher in plan.teachers:
            if isinstance(teacher, OpenAICompatible):
                await stack.enter_async_context(teacher)
        ledger = None
        if any(teacher.identity for teacher in plan.teachers):
            ledger = stack.enter_context(Ledger(job.work / LEDGER_NAME, max_usd=settings.max_usd))
            lost = ledger.totals()
            if lost.num_lost:
                told = f" {lost.num_lost} calls brought no answer and may have been billed: they stay booked at ${lost.lost_usd:.4f}"
                job.screen.line(told, style="yellow")
        asker = Asker(ledger, limits=limits, patience=patience_of(settings), seed=stage_seed(job.config.seed, "replay"))
        return await gather(plan.sessions, plan.teachers, asker=asker, steps=plan.steps, settings=settings, redactor=job.redactor())
