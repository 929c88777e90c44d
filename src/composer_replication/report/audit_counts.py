"""One pass over the sessions of a work folder: what the audit counts, by session and by group.

A mistake costs the message that made it, in proportion to its calls that failed: that request was
sent, read and written for nothing. What the failure then takes up in later prompts is not counted,
so the cost is a lower bound. Its time runs from the message before it to the result of its call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from composer_replication.core.site import STOPPED_CATEGORIES, Site
from composer_replication.core.trace import CallRef, Session
from composer_replication.data.ingestion.log_records import time_of
from composer_replication.data.sites.summary import UNKNOWN
from composer_replication.report.rates import SessionCounts
from composer_replication.report.spend import NOTHING, Spend

MAX_SECONDS = 600.0
"""More than this between two records is a person who was away, or who was asked."""


@dataclass(slots=True)
class GroupCounts:
    """The sessions of one model, tool, repository, version, kind or week: their mistakes and calls,
    what the mistakes cost, and what all its messages cost."""

    sessions: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    spend: Spend = NOTHING
    total: Spend = NOTHING

    @property
    def mistakes(self) -> int:
        """How many mistakes there are."""
        return sum(mistakes for mistakes, _ in self.sessions.values())

    @property
    def counts(self) -> list[SessionCounts]:
        """(mistakes, calls) of each session."""
        return [(mistakes, calls) for mistakes, calls in self.sessions.values()]

    def add(self, session: int, *, mistakes: int = 0, calls: int = 0) -> None:
        """Add the mistakes or calls of one session."""
        row = self.sessions[session]
        row[0] += mistakes
        row[1] += calls


Groups = dict[str, GroupCounts]


def _groups() -> Groups:
    return defaultdict(GroupCounts)


@dataclass(slots=True)
class AuditCounts:
    """What `add` has counted so far; sessions are numbered in their order in the file."""

    overall: GroupCounts = field(default_factory=GroupCounts)
    models: Groups = field(default_factory=_groups)
    tools: Groups = field(default_factory=_groups)
    repositories: Groups = field(default_factory=_groups)
    versions: Groups = field(default_factory=_groups)
    kinds: Groups = field(default_factory=_groups)
    weeks: Groups = field(default_factory=_groups)
    times: dict[int, float] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    homes: dict[int, str] = field(default_factory=dict)
    subagents: int = 0
    subagent_calls: int = 0
    messages: int = 0
    messages_with_usage: int = 0
    days: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    last_seen: dict[str, float] = field(default_factory=dict)
    tools_of: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    homes_of: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    details: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    kinds_by_week: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    site_spend: dict[str, Spend] = field(default_factory=dict)
    site_days: dict[str, str] = field(default_factory=dict)
    stopped: list[StoppedMessage] = field(default_factory=list)

    def add(self, session: Session, sites: Sequence[Site]) -> None:
        """Count one session with its sites."""
        number = len(self.times)
        self.times[number] = time_of(session.started)
        self.names[number] = session.id
        self.homes[number] = session.repository or UNKNOWN
        if session.parent is not None:
            self.subagents += 1
            self.subagent_calls += sum(len(turn.calls) for turn in session.turns[session.copied :])
        groups = self._groups_of(session, number)
        spends = self._add_messages(session, number, groups)
        self._add_mistakes(session, number, sites, groups=groups, spends=spends)
        self._add_stopped(session, number, sites, spends=spends)

    def _groups_of(self, session: Session, number: int) -> list[GroupCounts]:
        """The groups to which all of a session belongs."""
        version = session.source.versions[-1] if session.source.versions else UNKNOWN
        groups = [
            self.overall,
            self.repositories[self.homes[number]],
            self.versions[f"{session.source.format or UNKNOWN} {version}"],
        ]
        if week := week_of(self.times[number]):
            groups.append(self.weeks[week])
        return groups

    def _add_messages(
        self, session: Session, number: int, groups: Sequence[GroupCounts]
    ) -> dict[int, Spend]:
        """Count the messages and calls; returns the spend of each message."""
        spends = message_spends(session)
        for index, spend in spends.items():
            turn = session.turns[index]
            self.messages += 1
            self.messages_with_usage += turn.usage is not None
            in_groups = [*groups, self.models[turn.author or UNKNOWN]]
            for group in in_groups:
                group.add(number, calls=len(turn.calls))
                group.total += spend
            for call in turn.calls:
                self.tools[call.name or UNKNOWN].add(number, calls=1)
        return spends

    def _add_mistakes(
        self,
        session: Session,
        number: int,
        sites: Sequence[Site],
        *,
        groups: Sequence[GroupCounts],
        spends: Mapping[int, Spend],
    ) -> None:
        time = self.times[number]
        for site in sites:
            calls = len(session.turns[site.turn].calls)
            spend = spends.get(site.turn, NOTHING).times(
                1.0 if site.call_id is None else 1 / max(calls, 1)
            )
            self.site_spend[site.id] = spend
            if day := day_of(session.turns[site.turn].written_at or time):
                self.site_days[site.id] = day
            if not site.is_target:
                continue
            kind, tool = site.kind, site.tool or UNKNOWN
            for group in (
                *groups,
                self.models[site.author or UNKNOWN],
                self.tools[tool],
                self.kinds[kind],
            ):
                group.add(number, mistakes=1)
                group.spend += spend
            self.days[kind].add(self.site_days.get(site.id, ""))
            self.last_seen[kind] = max(self.last_seen.get(kind, 0.0), time)
            self.tools_of[kind][tool] += 1
            self.homes_of[kind][self.homes[number]] += 1
            self.details[kind][site.detail] += 1
            self.kinds_by_week[kind][week_of(time)] += 1

    def _add_stopped(
        self,
        session: Session,
        number: int,
        sites: Sequence[Site],
        *,
        spends: Mapping[int, Spend],
    ) -> None:
        """Count each message that a person refused or cut off once."""
        by_turn: dict[int, StoppedMessage] = {}
        for site in sites:
            if site.category not in STOPPED_CATEGORIES:
                continue
            words = site.detail if site.rule else ""
            known = by_turn.get(site.turn)
            tools = (*(known.tools if known is not None else ()), site.tool)
            if known is not None and (known.words or not words):
                by_turn[site.turn] = replace(known, tools=tools)
            else:
                by_turn[site.turn] = StoppedMessage(
                    category=site.category,
                    session=number,
                    tools=tools,
                    words=words,
                    site_id=site.id,
                    spend=spends.get(site.turn, NOTHING),
                )
        for index in interrupted_messages(session):
            if index not in by_turn:
                tools = [call.name for call in session.turns[index].calls]
                by_turn[index] = StoppedMessage(
                    category="interrupted",
                    session=number,
                    tools=tuple(tools[-1:]),
                    spend=spends.get(index, NOTHING),
                )
        self.stopped += by_turn.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedMessage:
    """A message of which a person refused a call or that they cut off; `words` are what they said
    about it. `tools` are those of the refused calls, or that of the last call before the cut."""

    category: str
    session: int
    tools: tuple[str, ...]
    spend: Spend
    words: str = ""
    site_id: str = ""


def interrupted_messages(session: Session) -> Iterator[int]:
    """The indices of the messages that a person cut off, without those of an earlier session."""
    for index, turn in enumerate(session.turns):
        if not turn.is_interrupt or index < session.copied:
            continue
        message = index - 1
        while message >= 0 and session.turns[message].role == "tool":
            message -= 1
        if message >= session.copied and session.turns[message].role == "assistant":
            yield message


def message_spends(session: Session) -> dict[int, Spend]:
    """The spend of every message that no earlier session holds, by the index of its turn."""
    ends: dict[int, float] = {}
    for ref in session.calls().values():
        ends[ref.turn] = max(ends.get(ref.turn, 0.0), _result_time(session, ref))
    spends: dict[int, Spend] = {}
    before = 0.0
    for index, turn in enumerate(session.turns):
        if turn.role == "assistant" and index >= session.copied:
            end = max(turn.written_at, ends.get(index, 0.0))
            seconds = end - before if before and end else 0.0
            spends[index] = Spend.of(turn, seconds=min(max(seconds, 0.0), MAX_SECONDS))
        before = max(before, turn.written_at)
    return spends


def _result_time(session: Session, ref: CallRef) -> float:
    return session.turns[ref.result_turn].written_at if ref.result_turn is not None else 0.0


def day_of(time: float) -> str:
    """The day of a time, e.g. "2026-11-16"; "" for 0.0.

    >>> day_of(1770840654.5), day_of(0.0)
    ('2026-02-11', '')
    """
    return datetime.fromtimestamp(time, UTC).date().isoformat() if time > 0 else ""


def week_of(time: float) -> str:
    """The Monday of a time's week, e.g. "2026-11-16"; "" for 0.0.

    >>> week_of(1770840654.5)
    '2026-02-09'
    """
    if time <= 0:
        return ""
    day = datetime.fromtimestamp(time, UTC).date()
    return (day - timedelta(days=day.weekday())).isoformat()
