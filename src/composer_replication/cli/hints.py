"""`recompose hints`: sites -> hints.jsonl; --audit measures whether hints change the model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Literal

from composer_replication.cli.audit_store import open_where_sessions_are
from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job
from composer_replication.cli.next_step import next_step
from composer_replication.cli.problems import UsageError
from composer_replication.core.codec import read_sessions, read_sites, record_to_json
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Hint, Site
from composer_replication.data.hints.write import HintReport, write_hints
from composer_replication.report.html import plural
from composer_replication.report.kind_titles import kind_title


def hints_command(
    *,
    audit: bool = False,
    writer: Literal["rules", "reader"] | None = None,
    estimate: bool = False,
    common: Common = Common(),
) -> int:
    """Write a short hint for each mistake: sites.jsonl -> hints.jsonl.

    Parameters
    ----------
    audit
        Also measure how much each kind of hint changes the student, and write audit.json. `build`
        and `train` then leave out kinds that change nothing. Needs PyTorch.
    writer
        Hint writer, overriding hints.writer. "rules" = templates for the mistakes that `sites`
        found; "reader" = a model reads the sessions, names the mistakes and writes the hints
        (hints.reader).
    estimate
        With the reader: print the maximum cost and send nothing.
    """
    job = open_where_sessions_are(common, uses=("writers", "reader"))
    job.need_file(job.sessions, verb="ingest")
    job.need_fresh(job.sites, verb="sites")
    if (writer or job.config.hints.writer) == "reader":
        from composer_replication.cli.hints_reader import read_and_write

        return read_and_write(job, estimate=estimate, audit=audit)
    if estimate:
        raise UsageError("--estimate belongs to --writer reader", fix="the rules cost nothing")
    reports = list(_reports(job))
    hints = [hint for report in reports for hint in report.hints]
    if not job.dry_run:
        write_lines(job.hints, map(record_to_json, hints))
        job.stamp(job.hints, made_from=[job.sessions, job.sites])
    value = _show(job, reports, hints, audit=audit)
    wrote = [job.hints]
    if audit:
        from composer_replication.cli.hints_audit import in_audited_position, write_audit

        wrote.append(job.audit)
        value["audit"] = measured = write_audit(job, hints)
        job = in_audited_position(job, measured)
    return job.finish(value, wrote=wrote, next_command=next_step(job))


def _reports(job: Job) -> Iterator[HintReport]:
    """One report per session that has sites; sessions are read one at a time."""
    by_session: dict[str, list[Site]] = defaultdict(list)
    for site in read_sites(job.sites):
        by_session[site.session_id].append(site)
    for session in read_sessions(job.sessions):
        if sites := by_session.get(session.id):
            yield write_hints(session, sites, settings=job.config.hints)


def _show(
    job: Job, reports: list[HintReport], hints: list[Hint], *, audit: bool
) -> dict[str, object]:
    without: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for report in reports:
        without.update(report.without)
        refused.update(report.refusals)
    written = Counter(hint.kind for hint in hints)
    mean_words = {
        kind: sum(h.num_words for h in hints if h.kind == kind) / count
        for kind, count in written.items()
    }
    rows = [
        (
            kind_title(kind),
            kind,
            written[kind],
            without[kind],
            f"{mean_words[kind]:.0f}" if kind in mean_words else "",
        )
        for kind in sorted({*written, *without})
    ]
    screen = job.screen
    screen.table(rows, head=("what went wrong", "kind", "hints", "without", "words"))
    screen.line(
        f"\n {plural(len(hints), 'hint')}; {plural(without.total(), 'mistake')} for which no"
        " writer had anything to say"
    )
    for reason, count in refused.items():
        screen.line(f" refused  {count} {reason}", style="yellow")
    if warned := sum(report.warned for report in reports):
        screen.line(
            f" note     of your own hints, {warned} say what was wrong or forbid it, which makes it"
            " likelier: name the right action",
            style="yellow",
        )
    for report in reports if screen.verbose else ():
        for refusal in report.refused:
            screen.detail(
                f"          {refusal.site_id} {refusal.writer}: {refusal.reason} {refusal.detail}"
            )
    left_out = sum(report.left_out for report in reports)
    screen.line(f" left out {plural(left_out, 'site')}: no mistakes of the agent")
    if not audit:
        screen.line(
            f" measure  {job.command('hints', '--audit')}   (a hint that changes nothing cannot"
            " teach)"
        )
    return {
        "hints": len(hints),
        "kinds": dict(written),
        "without": dict(without),
        "refused": dict(refused),
        "left_out": left_out,
        "warned": warned,
    }
