"""`recompose replay`: sessions -> answers.jsonl, preferences.jsonl and anchors.jsonl, what others would have done at each turn."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, open_job
from composer_replication.core.codec import read_sessions, record_to_json
from composer_replication.core.errors import ConfigError
from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.core.site import Anchor, Answer, Preference
from composer_replication.core.trace import Session, Turn
from composer_replication.data.replay.ask import Asked
from composer_replication.data.replay.ask import replay as ask_all
from composer_replication.rollouts.envs.workshop.recorded import was_recorded_here
from composer_replication.rollouts.envs.workshop.sandbox import Sandbox
from composer_replication.rollouts.envs.workshop.teachers import ask_scripted, fails_here

MEANINGS = {
    "pair": "others agree on another action: a preference",
    "agreed": "others did the same: an anchor",
    "no_consensus": "others do not agree among themselves: an anchor",
    "outvoted": "most others did something else, too few for a pair",
    "chosen_fails": "others agree on an action that raises an error here: no preference",
    "after_error": "the turn after an error, where the environment had already answered",
    "erred": "its own call raised an error: never an anchor",
    "too_few_families": "fewer than two families answered",
    "copied": "stands in another session, too",
    "interrupted": "a human cut it off",
    "no_text_or_call": "it says and does nothing",
}


def replay(*, common: Common = Common()) -> int:
    """What other models would have done: sessions.jsonl -> answers.jsonl, preferences.jsonl, anchors.jsonl.

    For now the teachers are the three scripted players of the workshop, so the sessions have to be recorded there.
    """
    job = open_job(common)
    job.need_file(job.sessions, verb="ingest")
    asked = _ask(job)
    answers = [answer for one in asked for answer in one.answers]
    pairs = [one.result for one in asked if isinstance(one.result, Preference)]
    anchors = [one.result for one in asked if isinstance(one.result, Anchor)]
    wrote = [job.answers, job.preferences, job.anchors]
    if not job.dry_run:
        for path, records in zip(wrote, (answers, pairs, anchors), strict=True):
            write_lines(path, map(record_to_json, records))
            job.stamp(path, made_from=[job.sessions])
        write_json(job.work / "replay.json", {"outcomes": dict(Counter(one.outcome for one in asked))})
    return job.finish(_show(job, asked, answers, pairs), wrote=wrote, next_command=job.command("build"))


def _ask(job: Job) -> list[Asked]:
    sessions = list(read_sessions(job.sessions))
    settings = job.config.replay
    answers = {"scripted": _scripted}[settings.teachers]
    elsewhere = [session.id for session in sessions if not was_recorded_here(session)]
    if elsewhere:
        raise ConfigError(
            f"the scripted teachers know the workshop only, and {len(elsewhere)} of {len(sessions)} sessions were not recorded there",
            where=f"replay.teachers, session {elsewhere[0]}",
            fix="leave replay out for these logs (real teachers come with a later version), or give pairs of your own: build.pairs",
        )
    with Sandbox() as sandbox:
        ask, fails = partial(answers, sandbox=sandbox), partial(_fails, sandbox=sandbox)
        return list(ask_all(sessions, ask, min_families=settings.min_families, fails=fails))


def _scripted(session: Session, turn: int, *, sandbox: Sandbox) -> tuple[Answer, ...]:
    return ask_scripted(session, turn, sandbox)


def _fails(session: Session, turn: int, message: Turn, *, sandbox: Sandbox) -> bool:
    return fails_here(session, turn, message, sandbox)


def _show(job: Job, asked: list[Asked], answers: list[Answer], pairs: list[Preference]) -> dict[str, Any]:
    counts = Counter(one.outcome for one in asked)
    screen = job.screen
    num_asked = sum(bool(one.answers) for one in asked)
    teachers = sorted({answer.teacher for answer in answers})
    screen.line(f" {num_asked} turns asked about, {len(answers)} answers of {len(teachers)} teachers: {', '.join(teachers) or 'none'}")
    rows = [(outcome, counts[outcome], meaning) for outcome, meaning in MEANINGS.items() if counts[outcome]]
    screen.table(rows, head=("what came of it", "turns", "meaning"))
    if teachers:
        screen.line("\n the teachers are scripts that look into the state of the workshop: labels for a demonstration, never a measurement")
    if not pairs:
        screen.line(f" no pair: {job.config.replay.min_families} families have to agree (replay.min_families)", style="yellow")
    skipped = {k: n for k, n in sorted(counts.items()) if k not in ("pair", "agreed", "no_consensus")}
    usd = sum(answer.usd for answer in answers)
    numbers = {"asked": num_asked, "answers": len(answers), "usd": usd, "teachers": teachers}
    return {**numbers, "pairs": counts["pair"], "agreed": counts["agreed"], "no_consensus": counts["no_consensus"], "skipped": skipped}
