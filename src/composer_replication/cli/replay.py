"""`recompose replay`: sessions -> answers.jsonl, preferences.jsonl and anchors.jsonl."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from contextlib import ExitStack
from typing import Any

from composer_replication.cli.audit_store import open_where_sessions_are
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job
from composer_replication.cli.problems import DONE, UsageError
from composer_replication.cli.replay_ask import ReplayAnswers, check_before_asking, gather_answers
from composer_replication.cli.replay_bill import explain_write_errors, settle_bookings
from composer_replication.cli.replay_estimate import next_teachers, print_estimate
from composer_replication.cli.replay_nobody import estimate_nobody, explain_nobody
from composer_replication.cli.replay_plan import ReplayPlan, open_plan
from composer_replication.cli.replay_teachers import NoTeacherError
from composer_replication.cli.replay_text import print_outcomes
from composer_replication.core.codec import record_to_json
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.site import Anchor, Preference, turn_site_id
from composer_replication.core.trace import Session, Turn
from composer_replication.data.replay.ask import ReplayedTurn
from composer_replication.data.replay.ask import replay as weigh_all
from composer_replication.data.replay.estimate import Bill
from composer_replication.data.replay.estimate import estimate as estimate_bill
from composer_replication.data.replay.gather import lookup
from composer_replication.data.teachers.ledger import LEDGER_NAME, bought_keys


def replay_command(
    *,
    estimate: bool = False,
    max_usd: float | None = None,
    resume: bool = False,
    settle_lost: float | None = None,
    common: Common = Common(),
) -> int:
    """Ask other models what they would have done: sessions.jsonl -> answers.jsonl,
    preferences.jsonl, anchors.jsonl.

    The teachers are those of replay.teachers: models behind an endpoint, the scripted players of
    the built-in environment, or a file of answers. Every answer is kept in ledger.sqlite3 with what
    it cost, so running again costs nothing and a run that was killed goes on where it was.

    Parameters
    ----------
    estimate
        Print what this would cost and send nothing.
    max_usd
        Budget in USD for all calls from this work folder, overriding replay.max_usd. Exit code 4
        when it is reached.
    resume
        Continue the replay that was started here. Refused if its settings or sessions have changed
        since.
    settle_lost
        Send nothing. Book all calls without an answer at this total in USD, the amount on the
        provider's own bill.
    """
    job = open_where_sessions_are(common, uses=("teachers", "recipe"))
    for flag, usd in (("--max-usd", max_usd), ("--settle-lost", settle_lost)):
        if usd is not None and not 0 <= usd < math.inf:
            raise UsageError(
                f"{usd} is no amount of dollars", where=flag, fix=f"give a number, e.g. {flag} 2"
            )
    if settle_lost is not None:
        return settle_bookings(job, settle_lost)
    job.need_file(job.sessions, verb="ingest")
    settings = job.config.replay
    if max_usd is not None:
        settings = settings.model_copy(update={"max_usd": max_usd})
    asking = not (estimate or job.dry_run)
    with ExitStack() as stack:
        try:
            plan = open_plan(job, settings, stack=stack, asking=asking)
        except NoTeacherError as error:
            if estimate:
                return estimate_nobody(job, settings)
            raise explain_nobody(job, settings, error) from error
        if not asking:
            return _estimate(job, plan)
        check_before_asking(job, plan, resume=resume, stack=stack)
        collected = gather_answers(job, plan)
        with explain_write_errors(job, collected.stopped):
            return _write(job, plan, collected)


def _estimate(job: Job, plan: ReplayPlan) -> int:
    bought = bought_keys(job.work / LEDGER_NAME)
    options = {
        "settings": plan.settings,
        "bought": bought,
        "redactor": job.redactor(make=False),
        "judge": plan.judge,
        "gaps": plan.gaps,
    }
    bill = estimate_bill(plan.sessions, plan.teachers, steps=plan.steps, **options)
    numbers = print_estimate(job, bill, plan.settings, plan.teachers)
    wrote = [job.answers, job.preferences, job.anchors] if job.dry_run else []
    return job.finish(numbers, wrote=wrote, next_command=_next_command(job, plan, bill))


def _next_command(job: Job, plan: ReplayPlan, bill: Bill) -> str:
    """With enough families, to ask under a ceiling that covers the estimate; else to estimate with
    teachers of other makers too."""
    if names := next_teachers(plan.settings, plan.teachers, bill):
        job.screen.line(
            f" {plan.settings.min_families} families besides the student's own have to agree on a"
            f" pair (replay.min_families): add {' and '.join(names[len(plan.teachers) :])}",
            style="yellow",
        )
        teachers = shlex.quote(json.dumps(names))
        return job.command("replay", f"--estimate --replay.teachers {teachers}")
    if bill.usd > plan.settings.max_usd:
        return job.command("replay", f"--max-usd {math.ceil(bill.usd * 10) / 10:g}")
    return job.command("replay")


def _write(job: Job, plan: ReplayPlan, collected: ReplayAnswers) -> int:
    """Weigh the answers and write the three files; exit code 4 if the ceiling ended the asking."""
    settings, gathered = plan.settings, collected.gathered
    ask = lookup(gathered.answers, min_confidence=settings.min_confidence)
    fails = _never_fails if plan.recorded is None else plan.recorded.fails
    gap = _no_gap if plan.recorded is None else plan.recorded.gap
    options = {
        "min_families": settings.min_families,
        "tiers": settings.tiers,
        "need_evidence": settings.need_evidence,
    }
    judge = (lambda place: None) if collected.judge_result is None else collected.judge_result.at
    replayed_turns: list[ReplayedTurn] = list(
        weigh_all(plan.sessions, ask, **options, fails=fails, gap=gap, judge=judge)
    )
    pairs = [
        replayed.result for replayed in replayed_turns if isinstance(replayed.result, Preference)
    ]
    anchors = [
        replayed.result for replayed in replayed_turns if isinstance(replayed.result, Anchor)
    ]
    wrote = [job.answers, job.preferences, job.anchors]
    for path, records in zip(wrote, (gathered.answers, pairs, anchors), strict=True):
        write_lines(path, map(record_to_json, records))
        job.stamp(path, made_from=[job.sessions])
    counts: dict[str, Any] = {
        "outcomes": dict(Counter(replayed.outcome for replayed in replayed_turns)),
        "asking": gathered.counts,
        "turns": {
            turn_site_id(replayed.session_id, replayed.turn): replayed.record()
            for replayed in replayed_turns
            if replayed.agreement is not None
        },
    }
    if collected.judge_result is not None:
        counts["judge"] = dict(collected.judge_result.counts)
    write_json(job.work / "replay.json", counts)
    stopped = collected.stopped
    numbers = print_outcomes(job, plan, replayed_turns, collected)
    job.finish(numbers, wrote=wrote, next_command=job.command("replay" if stopped else "curate"))
    return DONE if stopped is None else stopped.exit_code


def _never_fails(session: Session, turn: int, message: Turn) -> bool:
    """For logs from elsewhere: no action can be tried, so none is known to fail."""
    return False


def _no_gap(session: Session, turn: int, message: Turn) -> None:
    """For logs from elsewhere: no gap can be measured."""
