"""The audit of an agent's logs as plain values: what goes wrong, what it costs, whether it gets
better, what people stopped, and the rules that the counts support.

    view = audit_view(Path("recompose"))
    view.rate.value, view.change.verdict, view.kinds[0].title, view.rules[0].text

It reads sessions.jsonl and sites.jsonl, and needs no model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from composer_replication.core.codec import read_sessions, read_sites
from composer_replication.core.site import STOPPED_CATEGORIES, Site
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.log_records import time_of
from composer_replication.report.agent_rules import AuditRule, UnsupportedRule, agent_rules
from composer_replication.report.audit_counts import AuditCounts, GroupCounts, day_of
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.rates import Rate, RateChange, rate_change, rate_of
from composer_replication.report.spend import NOTHING, Spend


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWeek:
    """One week, from its Monday: sessions, calls, the rate of mistakes, and what was spent."""

    start: str
    rate: Rate
    spend: Spend
    mistakes_spend: Spend


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditKind:
    """One kind of mistake: how often, in how many calls of its tools, its cost, its weeks.

    `weeks` counts it in each week of `AuditView.weeks`.
    """

    kind: str
    title: str
    tools: tuple[tuple[str, int], ...]
    count: int
    calls: int
    sessions: int
    spend: Spend
    weeks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One model, tool, repository or version: its rate, its change, the cost of its mistakes
    (`spend`) and of everything (`total`; of a tool nothing, because a message may call several)."""

    name: str
    rate: Rate
    change: RateChange
    spend: Spend
    total: Spend


@dataclass(frozen=True, slots=True, kw_only=True)
class WordsGroup:
    """Words that people said, and the sites of all messages about which they said them."""

    text: str
    site_ids: tuple[str, ...]

    @property
    def times(self) -> str:
        """How often it was said, in brackets; "" for once."""
        return f" ({len(self.site_ids)} times)" if len(self.site_ids) > 1 else ""


TEXT_ALONE = "text without a call"
"""What stands for the tool of a stopped message that called none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRow:
    """Messages of which people refused a call ("rejected") or that they cut off ("interrupted"),
    and what was said, by site. `tools` counts each refused call, and a message that was cut off
    once."""

    category: str
    count: int
    sessions: int
    spend: Spend
    tools: tuple[tuple[str, int], ...]
    words: tuple[tuple[str, str], ...]

    @property
    def grouped_words(self) -> tuple[WordsGroup, ...]:
        """The words, each once: said most often first, then in the order of the sessions."""
        sites: dict[str, list[str]] = defaultdict(list)
        for site_id, text in self.words:
            sites[" ".join(text.split())].append(site_id)
        groups = [WordsGroup(text=text, site_ids=tuple(ids)) for text, ids in sites.items()]
        return tuple(sorted(groups, key=lambda group: -len(group.site_ids)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    """All that the audit says; kinds, rows and rules are sorted, the costliest first.

    `subagents` of the sessions are those of subagents, with `subagent_calls` of all calls.
    `messages_with_usage` of the `messages` have a usage report; without any there are no costs.
    """

    path: str
    since: str
    project: str
    session_ids: frozenset[str]
    sessions: int
    subagents: int
    subagent_calls: int
    messages: int
    messages_with_usage: int
    mistaken_sessions: int
    first_day: str
    last_day: str
    rate: Rate
    change: RateChange
    spend: Spend
    mistakes_spend: Spend
    weeks: tuple[AuditWeek, ...]
    kinds: tuple[AuditKind, ...]
    models: tuple[AuditRow, ...]
    tools: tuple[AuditRow, ...]
    repositories: tuple[AuditRow, ...]
    versions: tuple[AuditRow, ...]
    stopped: tuple[StoppedRow, ...]
    rules: tuple[AuditRule, ...]
    unsupported: tuple[UnsupportedRule, ...]
    site_spend: Mapping[str, Spend]
    site_days: Mapping[str, str]


def audit_view(work: Path, *, since: str = "", project: str = "") -> AuditView:
    """The audit of a work folder; only sessions that ended on the day `since` or later, and whose
    repository or folder holds `project`."""
    by_session: dict[str, list[Site]] = defaultdict(list)
    for site in read_sites(work / "sites.jsonl"):
        by_session[site.session_id].append(site)
    return view_of(
        (
            (session, by_session.get(session.id, []))
            for session in read_sessions(work / "sessions.jsonl")
            if is_chosen(session, since=since, project=project)
        ),
        path=str(work),
        since=since,
        project=project,
    )


def is_chosen(session: Session, *, since: str, project: str) -> bool:
    """Whether the audit counts a session; one without a time is never since a day."""
    names = f"{session.repository}\n{session.cwd}".lower()
    return (not since or end_day(session) >= since) and project.lower() in names


def end_day(session: Session) -> str:
    """The day on which a session ended, e.g. "2026-11-16"; "" for one without a time."""
    return day_of(time_of(session.ended) or time_of(session.started))


def view_of(
    sessions: Iterable[tuple[Session, list[Site]]],
    *,
    path: str = "",
    since: str = "",
    project: str = "",
) -> AuditView:
    """The audit of sessions, each with its sites."""
    counts, session_ids = AuditCounts(), set[str]()
    for session, sites in sessions:
        counts.add(session, sites)
        session_ids.add(session.id)
    overall, times = counts.overall, [time for time in counts.times.values() if time]
    rules, unsupported = agent_rules(counts)
    return AuditView(
        path=path,
        since=since,
        project=project,
        session_ids=frozenset(session_ids),
        sessions=len(counts.times),
        subagents=counts.subagents,
        subagent_calls=counts.subagent_calls,
        messages=counts.messages,
        messages_with_usage=counts.messages_with_usage,
        mistaken_sessions=sum(mistakes > 0 for mistakes, _ in overall.counts),
        first_day=day_of(min(times, default=0.0)),
        last_day=max((*counts.site_days.values(), day_of(max(times, default=0.0)))),
        rate=rate_of(overall.counts),
        change=_change(overall, counts),
        spend=overall.total,
        mistakes_spend=overall.spend,
        weeks=_weeks(counts),
        kinds=_kinds(counts),
        models=_rows(counts.models, counts),
        tools=_rows(counts.tools, counts),
        repositories=_rows(counts.repositories, counts),
        versions=_rows(counts.versions, counts),
        stopped=_stopped(counts),
        rules=rules,
        unsupported=unsupported,
        site_spend=counts.site_spend,
        site_days=counts.site_days,
    )


def _change(group: GroupCounts, counts: AuditCounts) -> RateChange:
    dated = [
        (counts.times[number], (mistakes, calls))
        for number, (mistakes, calls) in group.sessions.items()
        if counts.times[number]
    ]
    return rate_change(dated)


def _weeks(counts: AuditCounts) -> tuple[AuditWeek, ...]:
    return tuple(
        AuditWeek(
            start=start,
            rate=rate_of(group.counts),
            spend=group.total,
            mistakes_spend=group.spend,
        )
        for start, group in sorted(counts.weeks.items())
    )


def _kinds(counts: AuditCounts) -> tuple[AuditKind, ...]:
    weeks = sorted(counts.weeks)
    rows = [
        AuditKind(
            kind=kind,
            title=kind_title(kind, tools[0][0] if len(tools) == 1 else ""),
            tools=tools,
            count=group.mistakes,
            calls=sum(c for tool, _ in tools for _, c in counts.tools[tool].counts),
            sessions=sum(mistakes > 0 for mistakes, _ in group.counts),
            spend=group.spend,
            weeks=tuple(counts.kinds_by_week[kind][week] for week in weeks),
        )
        for kind, group in counts.kinds.items()
        for tools in [tuple(counts.tools_of[kind].most_common())]
    ]
    return tuple(sorted(rows, key=lambda r: (-r.spend.usd, -r.spend.tokens, -r.count, r.kind)))


def _rows(groups: Mapping[str, GroupCounts], counts: AuditCounts) -> tuple[AuditRow, ...]:
    rows = [
        AuditRow(
            name=name,
            rate=rate_of(group.counts),
            change=_change(group, counts),
            spend=group.spend,
            total=group.total,
        )
        for name, group in groups.items()
        if any(group.counts)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.rate.mistakes, -row.rate.calls, row.name)))


def _stopped(counts: AuditCounts) -> tuple[StoppedRow, ...]:
    rows: list[StoppedRow] = []
    for category in STOPPED_CATEGORIES:
        messages = [m for m in counts.stopped if m.category == category]
        if messages:
            rows.append(
                StoppedRow(
                    category=category,
                    count=len(messages),
                    sessions=len({m.session for m in messages}),
                    spend=sum((m.spend for m in messages), start=NOTHING),
                    tools=tuple(
                        Counter(
                            tool or TEXT_ALONE for m in messages for tool in m.tools or ("",)
                        ).most_common()
                    ),
                    words=tuple((m.site_id, m.words) for m in messages if m.words),
                )
            )
    return tuple(rows)
