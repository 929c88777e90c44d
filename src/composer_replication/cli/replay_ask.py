"""The asking of `recompose replay`: checks before money is spent, then calls via the ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.replay_plan import ReplayPlan
from composer_replication.cli.replay_teachers import judge_settings
from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ComposerError, ConfigError, DataError, TeacherError
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import diff_settings
from composer_replication.data.replay.agree import AnsweredTurn
from composer_replication.data.replay.ask import answered_turn, failed_turns
from composer_replication.data.replay.gather import Gathered, gather, lookup
from composer_replication.data.replay.judging import JudgeResult, judge_turns
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.open import limits_of, named_teachers, retry_policy_of
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from composer_replication.data.teachers.owner import held_alone

PLAN = "replay_plan.json"


def check_before_asking(job: Job, plan: ReplayPlan, *, resume: bool, stack: ExitStack) -> None:
    """Check, before money is spent, that this replay may ask.

    No other replay may be running in the folder, paid teachers need a ceiling, and with --resume
    nothing may have changed since the replay was begun. Writes the plan for a later --resume; the
    folder stays locked until `stack` ends.
    """
    stack.enter_context(held_alone(job.work / ".replay.lock", what="replay"))
    path, settings = job.work / PLAN, plan.settings
    paid = [teacher.name for teacher in plan.everybody if not teacher.price.free]
    if paid and not settings.max_usd:
        fix = (
            "see what it would cost: recompose replay --estimate; then: recompose replay"
            " --max-usd 2"
        )
        raise ConfigError(
            f"{paid[0]} is paid, and there is no ceiling above $0", where="replay.max_usd", fix=fix
        )
    if resume:
        if not path.exists():
            raise DataError(
                "no replay was begun here", where=str(path), fix=f"run: {job.command('replay')}"
            )
        changed = diff_settings(json.loads(path.read_text("utf-8")), plan.record)
        if changed:
            fix = (
                "undo that, or leave --resume out: answers that are asked for again are taken from"
                " the ledger anyway"
            )
            raise ConfigError(
                "this is not the replay that was begun: " + "; ".join(changed),
                where=str(path),
                fix=fix,
            )
    write_json(path, plan.record)


@dataclass(frozen=True, slots=True)
class ReplayAnswers:
    """The teachers' answers, and the judge's verdicts if there is a judge."""

    gathered: Gathered
    judge_result: JudgeResult | None = None

    @property
    def stopped(self) -> ComposerError | None:
        """The error that ended the asking early, if any."""
        return self.gathered.stopped or (
            None if self.judge_result is None else self.judge_result.stopped
        )


def gather_answers(job: Job, plan: ReplayPlan) -> ReplayAnswers:
    """Ask the teachers and then the judge; raises the error that stopped it if nobody answered."""
    try:
        collected = asyncio.run(_gather(job, plan))
    except KeyboardInterrupt:
        resume_command = job.command("replay", "--resume")
        job.screen.line(
            " every answer that came is kept, and what was in flight stays booked; go on with:"
            f" {resume_command}",
            style="yellow",
        )
        raise
    counts, stopped = collected.gathered.counts, collected.stopped
    if collected.gathered.answers or (stopped is None and not counts.get("failed")):
        return collected
    if stopped is not None:
        raise stopped
    reason = max(
        (name for name in counts if name.startswith("failed: ")), key=lambda name: counts[name]
    )
    problem = (
        f"none of {counts['failed']} calls brought an answer: {reason.removeprefix('failed: ')}"
    )
    fix = "nothing was written; check that the endpoint answers, and run it again"
    raise TeacherError(problem, where="replay.teachers", fix=fix, again=False, billed=False)


async def _gather(job: Job, plan: ReplayPlan) -> ReplayAnswers:
    settings = plan.settings
    named = {
        **(named_teachers(settings, maker_of=family_of) if plan.models else {}),
        **judge_settings(settings),
    }
    async with AsyncExitStack() as stack:
        for teacher in plan.everybody:
            if isinstance(teacher, OpenAICompatible):
                await stack.enter_async_context(teacher)
        ledger = None
        if any(teacher.identity for teacher in plan.everybody):
            ledger = stack.enter_context(Ledger(job.work / LEDGER_NAME, max_usd=settings.max_usd))
            lost = ledger.totals()
            if lost.num_lost:
                warning = (
                    f" {lost.num_lost} earlier calls brought no answer and may have been billed:"
                    f" they stay booked at ${lost.lost_usd:.4f}"
                )
                warning += "; settle them by the provider's bill: --settle-lost"
                job.screen.line(warning, style="yellow")
        seed = stage_seed(job.config.seed, "replay")
        asker = Asker(
            ledger,
            limits=limits_of(named.values()),
            retry_policy=retry_policy_of(settings),
            seed=seed,
            report=job.screen.line,
        )
        await asker.collect_batches(plan.everybody)
        options: dict[str, Any] = {
            "asker": asker,
            "settings": settings,
            "redactor": job.redactor(),
            "gaps": plan.gaps,
        }
        family = "" if plan.judge is None else plan.judge.family
        gathered = await gather(
            plan.sessions,
            plan.teachers,
            steps=plan.steps,
            refuse=plan.refuse,
            judge_family=family,
            **options,
        )
        if plan.judge is None or gathered.stopped is not None:
            return ReplayAnswers(gathered)
        return ReplayAnswers(
            gathered,
            await judge_turns(
                plan.sessions, _answered_turns(plan, gathered), plan.judge, **options
            ),
        )


def _answered_turns(plan: ReplayPlan, gathered: Gathered) -> Iterator[AnsweredTurn]:
    ask = lookup(gathered.answers, min_confidence=plan.settings.min_confidence)
    for session in plan.sessions:
        errors = failed_turns(session)
        for turn, _ in session.assistant_turns():
            if answers := ask(session, turn):
                yield answered_turn(session, turn, answers, errors=errors)
