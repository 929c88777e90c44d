"""`recompose sites` with a reader: a model is shown what `sites.signals` found, one a call."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict

from composer_replication.cli.job import Job
from composer_replication.cli.reader_model import need_ceiling, open_reader, reader_asker
from composer_replication.cli.sites_verdicts import SITE_ANSWERS, VERDICTS, read_stored
from composer_replication.core.codec import read_sessions, record_to_json
from composer_replication.core.jsonl import write_lines
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Site
from composer_replication.core.teacher import Teacher, worst_usd
from composer_replication.data.hints.candidate_reader import (
    CandidateReading,
    CandidateRequest,
    candidate_requests,
    read_candidates,
)
from composer_replication.data.sites.corrections import READER_ALONE
from composer_replication.data.sites.find_sites import reader_candidates


def judge_candidates(job: Job) -> CandidateReading:
    """Show the candidates to the reader, and write its answers and verdicts."""
    teacher = _open(job, asking=True)
    need_ceiling(job, teacher, estimate=job.command("sites", "--estimate"))
    requests = _requests(job, job.redactor())
    reading = asyncio.run(_ask(job, teacher, requests))
    write_lines(job.work / SITE_ANSWERS, map(record_to_json, reading.answers))
    write_lines(job.work / VERDICTS, map(record_to_json, reading.verdicts))
    return reading


def estimate_candidates(job: Job) -> int:
    """Print the most that the reader could cost; sends nothing."""
    teacher = _open(job, asking=False)
    requests = _requests(job, job.redactor(make=False))
    usd = sum(worst_usd(teacher, asked.request) for asked in requests)
    num_candidates = len({asked.site for asked in requests})
    job.screen.line(
        f" {len(requests)} readings of {num_candidates} candidates by {teacher.name} would cost at"
        f" most ${usd:.4f}; nothing was sent"
    )
    value = {"candidates": num_candidates, "readings": len(requests), "worst_usd": usd}
    return job.finish(value, wrote=[], next_command=job.command("sites"))


def _open(job: Job, *, asking: bool) -> Teacher:
    return open_reader(job, job.config.sites.reader, where="sites.reader", asking=asking)


async def _ask(job: Job, teacher: Teacher, requests: list[CandidateRequest]) -> CandidateReading:
    settings = job.config.sites.reader
    async with reader_asker(job, teacher, settings, stage="sites") as asker:
        return await read_candidates(requests, teacher=teacher, asker=asker, settings=settings)


def _requests(job: Job, redactor: Redactor) -> list[CandidateRequest]:
    """The questions about the candidates of all sessions, those that a rule found first."""
    found, unmatched = defaultdict[str, list[Site]](list), list[Site]()
    for session in read_sessions(job.sessions):
        for site in reader_candidates(session, settings=job.config.sites):
            if site.rule == READER_ALONE:
                unmatched.append(site)
            else:
                found[session.id].append(site)
    for site in _chosen(job, unmatched):
        found[site.session_id].append(site)
    settings = job.config.sites.reader
    requests = [
        asked
        for session in read_sessions(job.sessions)
        if session.id in found
        for asked in candidate_requests(
            session, found[session.id], settings=settings, redactor=redactor
        )
    ]
    return sorted(requests, key=lambda asked: asked.site.rule == READER_ALONE)


def _chosen(job: Job, unmatched: list[Site]) -> list[Site]:
    """At most `unmatched` people's messages: those that were read before, then by hash, so that
    the choice stays as the store grows."""
    known = {
        (verdict.session_id, verdict.candidate)
        for verdict in read_stored(job)
        if verdict.rule == READER_ALONE
    }

    def order(site: Site) -> tuple[bool, str]:
        name = f"{site.session_id}:{site.evidence}"
        is_new = (site.session_id, site.candidate) not in known
        return is_new, hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()

    return sorted(unmatched, key=order)[: job.config.sites.reader.unmatched]
