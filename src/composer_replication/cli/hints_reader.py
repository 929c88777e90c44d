"""`recompose hints --writer reader`: a model names the mistaken messages and writes the hints."""

from __future__ import annotations

import asyncio

from composer_replication.cli.hints_reader_files import write_readings
from composer_replication.cli.job import Job
from composer_replication.cli.reader_model import need_ceiling, open_reader, reader_asker
from composer_replication.core.codec import read_sessions
from composer_replication.core.teacher import Teacher, worst_usd
from composer_replication.core.trace import Session
from composer_replication.data.hints.hint_reader import Reading, read_session, reading_requests


def read_and_write(job: Job, *, estimate: bool, audit: bool) -> int:
    """Ask the reader and write its answers, sites and hints; exit code 4 at the ceiling."""
    asking = not (estimate or job.dry_run)
    teacher = open_reader(job, job.config.hints.reader, where="hints.reader", asking=asking)
    sessions = list(read_sessions(job.sessions))
    if not asking:
        return _estimate(job, teacher, sessions)
    need_ceiling(job, teacher, estimate=job.command("hints", "--writer reader --estimate"))
    readings = asyncio.run(_read(job, teacher, sessions))
    return write_readings(job, sessions, readings, audit=audit)


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
        next_command=job.command("hints", "--writer reader"),
    )


async def _read(job: Job, teacher: Teacher, sessions: list[Session]) -> list[Reading]:
    settings = job.config.hints.reader
    async with reader_asker(job, teacher, settings, stage="hints") as asker:
        redactor, readings = job.redactor(), list[Reading]()
        for session in sessions:
            asking = {
                "teacher": teacher,
                "asker": asker,
                "settings": settings,
                "redactor": redactor,
            }
            readings.append(await read_session(session, **asking))
            if readings[-1].stopped is not None:
                break
        return readings
