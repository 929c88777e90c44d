"""`recompose hints --writer reader`: a model names the mistaken messages and writes the hints."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from composer_replication.cli.hints_reader_files import write_readings
from composer_replication.cli.job import Job
from composer_replication.cli.replay_teachers import open_teacher
from composer_replication.core.codec import read_sessions
from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import ConfigError
from composer_replication.core.teacher import Teacher, worst_usd
from composer_replication.core.trace import Session
from composer_replication.data.hints.hint_reader import Reading, read_session, reading_requests
from composer_replication.data.replay.model_families import family_of
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.ledger import LEDGER_NAME, Ledger
from composer_replication.data.teachers.open import limits_of, named_teachers, retry_policy_of
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from composer_replication.data.teachers.recorded_teachers import recorded_teachers


def read_and_write(job: Job, *, estimate: bool, audit: bool) -> int:
    """Ask the reader and write its answers, sites and hints; exit code 4 at the ceiling."""
    teacher = _teacher(job, asking=not (estimate or job.dry_run))
    sessions = list(read_sessions(job.sessions))
    if estimate or job.dry_run:
        return _estimate(job, teacher, sessions)
    if not teacher.price.free and not job.config.replay.max_usd:
        fix = (
            f"see what it would cost: {job.command('hints')} --writer reader --estimate; then set"
            " replay.max_usd"
        )
        raise ConfigError(
            f"{teacher.name} is paid, and there is no ceiling", where="replay.max_usd", fix=fix
        )
    readings = asyncio.run(_read(job, teacher, sessions))
    return write_readings(job, sessions, readings, audit=audit)


def _teacher(job: Job, *, asking: bool) -> Teacher:
    settings = job.config.hints.reader
    if settings.recorded:
        recorded = recorded_teachers(Path(settings.recorded))
        if len(recorded) != 1:
            raise ConfigError(
                f"{len(recorded)} readers in {settings.recorded!r}, not one",
                where="hints.reader.recorded",
            )
        return recorded[0]
    if not settings.teacher:
        raise ConfigError(
            "no reader is named",
            where="hints.reader.teacher",
            fix='give a name of [replay.teacher.NAME], e.g. "kimi"',
        )
    (name, teacher_settings), *_ = named_teachers(_of_reader(job), maker_of=family_of).items()
    return open_teacher(name, teacher_settings, asking=asking)


def _of_reader(job: Job) -> Any:
    return job.config.replay.model_copy(update={"teachers": (job.config.hints.reader.teacher,)})


def _estimate(job: Job, teacher: Teacher, sessions: list[Session]) -> int:
    redactor, settings = job.redactor(make=False), job.config.hints.reader
    requests = [
        request
        for session in sessions
        for _, request in reading_requests(session, settings=settings, redactor=redactor)
    ]
    usd = sum(worst_usd(teacher, request) for request in requests)
    job.screen.line(
        f" {len(requests)} readings by {teacher.name} would cost at most ${usd:.4f}; nothing was"
        " sent"
    )
    return job.finish(
        {"readings": len(requests), "worst_usd": usd},
        wrote=[],
        next_command=job.command("hints") + " --writer reader",
    )


async def _read(job: Job, teacher: Teacher, sessions: list[Session]) -> list[Reading]:
    async with AsyncExitStack() as stack:
        if isinstance(teacher, OpenAICompatible):
            await stack.enter_async_context(teacher)
        ledger = (
            stack.enter_context(Ledger(job.work / LEDGER_NAME, max_usd=job.config.replay.max_usd))
            if teacher.identity
            else None
        )
        limits = (
            limits_of(named_teachers(_of_reader(job), maker_of=family_of).values())
            if teacher.identity
            else {}
        )
        asker = Asker(
            ledger,
            limits=limits,
            retry_policy=retry_policy_of(job.config.replay),
            seed=stage_seed(job.config.seed, "hints"),
        )
        redactor, readings = job.redactor(), list[Reading]()
        for session in sessions:
            asking = {
                "teacher": teacher,
                "asker": asker,
                "settings": job.config.hints.reader,
                "redactor": redactor,
            }
            readings.append(await read_session(session, **asking))
            if readings[-1].stopped is not None:
                break
        return readings
