"""The files of `recompose hints --writer reader`: sites, hints and the reader's answers."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from composer_replication.cli.job import Job
from composer_replication.cli.next_step import next_step
from composer_replication.cli.problems import DONE
from composer_replication.core.codec import read_sites, record_to_json
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Answer, Hint, Site
from composer_replication.core.trace import Session
from composer_replication.data.hints.hint_reader import Reading
from composer_replication.data.hints.reader_hints import DETECTOR, write_reader_hints
from composer_replication.data.hints.rules import read_rules
from composer_replication.report.html import plural

ANSWERS = "reader_answers.jsonl"


def write_readings(
    job: Job, sessions: list[Session], readings: list[Reading], *, audit: bool
) -> int:
    """Write sites, hints and answers, and print the counts; exit code 4 at the ceiling."""
    rules, by_session, counts = (
        read_rules(job.config.hints.rules_file),
        defaultdict[str, list[Site]](list),
        Counter[str](),
    )
    for site in read_sites(job.sites):
        if site.detector != DETECTOR:
            by_session[site.session_id].append(site)
    sites, hints, answers = list[Site](), list[Hint](), list[Answer]()
    read = {reading.session_id: reading for reading in readings}
    for session in sessions:
        session_sites = by_session[session.id]
        if (reading := read.get(session.id)) is not None:
            written = write_reader_hints(
                session,
                reading,
                sites=session_sites,
                rules=rules,
                max_words=job.config.hints.max_words,
            )
            session_sites = sorted(
                {*session_sites, *written.sites},
                key=lambda s: (s.turn, s.call_id or "", s.detector),
            )
            hints += written.hints
            answers += reading.answers
            counts.update(
                asked=reading.num_asked,
                unsure=reading.unsure,
                contradicted=written.contradicted,
                void=sum(reading.void.values()),
            )
            counts.update(f"refused: {refusal.reason}" for refusal in written.refused)
            counts["new_sites"] += sum(site.detector == DETECTOR for site in written.sites)
        sites += session_sites
    for path, records, made_from in (
        (job.sites, sites, [job.sessions]),
        (job.hints, hints, [job.sessions, job.sites]),
    ):
        write_lines(path, map(record_to_json, records))
        job.stamp(path, made_from=made_from)
    write_lines(job.work / ANSWERS, map(record_to_json, answers))
    stopped = next((reading.stopped for reading in readings if reading.stopped is not None), None)
    numbers: dict[str, Any] = {
        "hints": len(hints),
        "usd": sum(answer.usd for answer in answers),
        **counts,
    }
    job.screen.table(sorted(counts.items()), head=("readings, and messages they name", "count"))
    job.screen.line(
        f"\n {plural(len(hints), 'hint')} of the reader; added to {job.sites.name}, as no rule had"
        f" found them: {plural(counts['new_sites'], 'site')}"
    )
    if stopped is not None:
        job.screen.line(f" stopped  {stopped.what}; what was bought is kept", style="yellow")
    wrote = [job.sites, job.hints, job.work / ANSWERS]
    if audit:
        from composer_replication.cli.hints_audit import in_audited_position, write_audit

        wrote.append(job.audit)
        numbers["audit"] = measured = write_audit(job, hints)
        job = in_audited_position(job, measured)
    job.finish(
        {**numbers, "stopped": stopped is not None}, wrote=wrote, next_command=next_step(job)
    )
    return DONE if stopped is None else stopped.exit_code
