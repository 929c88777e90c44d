"""Rules for CLAUDE.md or AGENTS.md, each with its evidence, what it may save, and whether the
counts support it.

Nothing writes a rule into a file of the user's: they are shown, and a person decides. A rule is
supported if its mistake was made at least MIN_FAILURES times, in MIN_SESSIONS sessions, on
MIN_DAYS days, again in the later half of the time, and if following it would save more than the
rule itself costs as a part of every prompt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from composer_replication.data.hints.ran import missing_programs
from composer_replication.data.sites.waste import CHARS_PER_TOKEN
from composer_replication.report.audit_counts import AuditCounts, GroupCounts
from composer_replication.report.html import plural
from composer_replication.report.spend import Spend

MIN_FAILURES, MIN_SESSIONS, MIN_DAYS = 5, 3, 2
SUPPORT = (
    f"at least {MIN_FAILURES} failures in {MIN_SESSIONS} sessions on {MIN_DAYS} days, again in the"
    " later half of the time, and a saving above what the rule costs in every prompt"
)
MONTH_DAYS = 30.0
SCOPE_SHARE = 0.8
"""A rule belongs to one repository if it has this share of the failures."""
MOST_PROGRAMS = 5

RULES: Mapping[str, str] = MappingProxyType(
    {
        "unknown_tool": "Call only the tools that are on offer; do not guess a tool's name.",
        "bad_arguments": (
            "Before a call of {tools}, check the names and types of its parameters in its schema;"
            " leave out what it does not list."
        ),
        "malformed_call": "Write every tool call as one complete JSON object.",
        "structured_output_invalid": (
            "Check an answer against the schema asked for before giving it: every required field,"
            " no other."
        ),
        "file_missing": (
            "Do not guess paths: find a file by searching for its name, or list the folder, before"
            " reading or editing it."
        ),
        "is_directory": "List a directory instead of reading it as a file.",
        "too_large": (
            "Before reading a long file, search it for what is needed and read only those lines"
            " (offset and limit)."
        ),
        "edit_not_read": (
            "Read a file in this session before the first edit or overwrite of it, even if its"
            " content is known from a command's output."
        ),
        "edit_no_match": (
            "Copy the old text of an edit verbatim from the latest reading of the file, with its"
            " indentation; after a failed edit, a formatter or another change, read again first."
        ),
        "edit_multi_match": (
            "Give the old text of an edit enough neighbouring lines to be unique in the file, or"
            " replace all on purpose."
        ),
        "edit_no_change": "Before an edit, check that the change is not in the file already.",
        "edit_stale": (
            "After a command that may rewrite files (formatter, linter, generator, git), read a"
            " file again before editing it."
        ),
        "repeated_call": (
            "Do not repeat a call whose result is in view and which nothing has changed since."
        ),
        "shell_syntax": (
            "Keep command lines simple: quote patterns and special characters, and put code of"
            " more than one line into a file or a here-document with a quoted delimiter."
        ),
        "shell_unknown_command": (
            "These programs are not installed here: {programs}. Run `command -v NAME` before"
            " relying on another."
        ),
        "shell_bad_option": (
            "Read a program's --help (or the list of tasks of the project) before using an option,"
            " subcommand or task that was not used here before."
        ),
        "shell_missing_path": (
            "Use absolute paths in commands, or check the current folder first: a `cd` of an"
            " earlier command may still hold, or not."
        ),
        "shell_unknown_ref": "List the branches (`git branch -a`) before naming one.",
    }
)
"""A line for the agent's instructions by kind of mistake; kinds without one get no rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRule:
    """A line for the agent's instructions, with the evidence for it.

    `place` is the repository whose failures these mostly are, "" for all. `saving` is what the
    failures cost in 30 days of weeks with sessions: the most that following the rule could save;
    `upkeep_usd` is what the rule costs in as many days as a part of every prompt, read from the
    cache.
    """

    kind: str
    tool: str
    text: str
    failures: int
    calls: int
    sessions: int
    days: int
    spend: Spend
    saving: Spend
    upkeep_usd: float
    place: str = ""

    @property
    def support(self) -> str:
        """The evidence in words, e.g. "14 failures in 198 calls, 6 sessions, 5 days"."""
        return (
            f"{plural(self.failures, 'failure')} in {plural(self.calls, 'call')},"
            f" {plural(self.sessions, 'session')}, {plural(self.days, 'day')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedRule:
    """A kind of mistake for which the counts support no rule, and why."""

    kind: str
    failures: int
    why: str


def agent_rules(counts: AuditCounts) -> tuple[tuple[AuditRule, ...], tuple[UnsupportedRule, ...]]:
    """The rules that the counts support, the greatest saving first, and the kinds without one."""
    rules: list[AuditRule] = []
    without: list[UnsupportedRule] = []
    for kind, group in counts.kinds.items():
        rule = _rule_for(kind, group, counts)
        if why := _objection(rule, kind, counts):
            without.append(UnsupportedRule(kind=kind, failures=group.mistakes, why=why))
        elif rule is not None:
            rules.append(rule)
    rules.sort(key=lambda rule: (-rule.saving.usd, -rule.saving.new_tokens, rule.kind))
    without.sort(key=lambda row: (-row.failures, row.kind))
    return tuple(rules), tuple(without)


def _objection(rule: AuditRule | None, kind: str, counts: AuditCounts) -> str:
    """Why a rule is not supported; "" if it is."""
    if rule is None:
        return "no general rule helps against it: look at its sites"
    if rule.failures < MIN_FAILURES or rule.sessions < MIN_SESSIONS or rule.days < MIN_DAYS:
        return f"too few: {rule.support}"
    times = [time for time in counts.times.values() if time]
    if counts.last_seen[kind] < (min(times) + max(times)) / 2:
        return "not made again in the later half of the time"
    if rule.saving.usd and rule.saving.usd <= rule.upkeep_usd:
        return "the rule would cost more in every prompt than it could save"
    return ""


def _rule_for(kind: str, group: GroupCounts, counts: AuditCounts) -> AuditRule | None:
    programs = programs_not_found(counts.details[kind]) if kind == "shell_unknown_command" else []
    text = RULES.get(kind)
    if text is None or ("{programs}" in text and not programs):
        return None
    tools = counts.tools_of[kind]
    text = text.format(
        programs=", ".join(f"`{name}`" for name in programs),
        tools=", ".join(name for name, _ in tools.most_common(3)),
    )
    # weeks in which nobody worked would make every failure cheap
    months = max(1.0, 7 * len(counts.weeks) / MONTH_DAYS)
    place, failures = counts.homes_of[kind].most_common(1)[0]
    is_local = len(counts.repositories) > 1 and failures >= SCOPE_SHARE * group.mistakes
    return AuditRule(
        kind=kind,
        tool=tools.most_common(1)[0][0] if len(tools) == 1 else "",
        text=text,
        failures=group.mistakes,
        calls=sum(c for tool in tools for _, c in counts.tools[tool].counts),
        sessions=sum(m > 0 for m, _ in group.counts),
        days=len(counts.days[kind] - {""}),
        spend=group.spend,
        saving=group.spend.times(1 / months),
        upkeep_usd=_upkeep(text, counts) / months,
        place=place if is_local else "",
    )


def _upkeep(text: str, counts: AuditCounts) -> float:
    """About the dollars of a text in every prompt of these logs, at the mean price of their tokens:
    most of those were read from the cache, as the text would be."""
    total = counts.overall.total
    mean_price = total.usd / total.tokens if total.tokens else 0.0
    return len(text) / CHARS_PER_TOKEN * counts.messages * mean_price


def programs_not_found(details: Counter[str]) -> list[str]:
    """The programs that shells did not find, the most frequent first.

    >>> programs_not_found(Counter({"bash: line 1: rg: command not found": 3}))
    ['rg']
    """
    names: Counter[str] = Counter()
    for detail, count in details.items():
        names.update(dict.fromkeys(missing_programs(detail), count))
    return [name for name, _ in names.most_common(MOST_PROGRAMS)]
