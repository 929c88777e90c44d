"""What the audit page says first: the trend and the three costliest mistakes, then the rules, what
people stopped, and where it goes wrong."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.report.agent_rules import SUPPORT, AuditRule
from composer_replication.report.audit_sentences import (
    TOP_KINDS,
    saving_text,
    sentences,
    spend_text,
    token_text,
    usd_text,
)
from composer_replication.report.audit_view import AuditKind, AuditRow, AuditView, StoppedRow
from composer_replication.report.html import Child, Html, el, join, listed_counts, plural, table
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.page import grouped_number
from composer_replication.report.rates import MIN_SESSIONS
from composer_replication.report.sites_section import site_link
from composer_replication.report.spend import Spend
from composer_replication.report.trend_chart import trend_chart, week_bars

WORDS_SHOWN = 12
STOPPED_TITLES = {
    "rejected": "Messages of which people refused a call",
    "interrupted": "Messages that people cut off",
}
ARROWS = {"better": "fewer than before", "worse": "more than before", "unclear": "may be chance"}


def audit_top(view: AuditView) -> Html:
    """The first sentence, then the trend and the other sentences beside the costliest mistakes."""
    first, *others = sentences(view)
    weeks = [week for week in view.weeks if week.rate.calls]
    starts = [week.start for week in view.weeks]
    cards = [
        _kind_card(kind, starts, costs=bool(view.messages_with_usage))
        for kind in view.kinds[:TOP_KINDS]
    ]
    return el(
        "section",
        el("p", first, cls="lead"),
        el(
            "div",
            el(
                "div",
                trend_chart(weeks) if weeks else el("p", "These logs have no dates.", cls="quiet"),
                [el("p", text) for text in others],
            ),
            (el("ol", cards, cls="costliest", aria_label="costliest mistakes") if cards else None),
            cls="picture trend" if cards and weeks else "picture alone",
        ),
        id="audit",
        aria_label="in short",
    )


def _kind_card(kind: AuditKind, weeks: Sequence[str], *, costs: bool) -> Html:
    head = usd_text(kind.spend.usd) if costs and kind.spend.usd else grouped_number(kind.count)
    return el(
        "li",
        el("b", head, cls="figure"),
        el("strong", kind.title),
        " ",
        el("code", kind.kind),
        el("p", f"{plural(kind.count, 'time')} in {plural(kind.sessions, 'session')}"),
        el("p", spend_text(kind.spend), cls="quiet") if costs else None,
        week_bars(list(zip(weeks, kind.weeks, strict=True))),
        site_link("look at them", kind=kind.kind),
    )


def rules_section(view: AuditView) -> Html:
    """The rules that the counts support, as text to copy, and the kinds without one."""
    without = [
        (
            site_link(kind_title(row.kind), kind=row.kind),
            row.failures,
            row.why,
        )
        for row in view.unsupported
    ]
    return join(
        el(
            "p",
            "Lines to copy into CLAUDE.md or AGENTS.md, if you agree; nothing was written there."
            f" A rule needs {SUPPORT}.",
        ),
        (
            el("ol", [_rule(rule, i) for i, rule in enumerate(view.rules)], cls="rules")
            if view.rules
            else el("p", "The counts support no rule yet.", cls="note")
        ),
        (
            table(
                without,
                head=("kind of mistake", "failures", "why no rule"),
                numbers=(1,),
                caption="mistakes without a rule",
            )
            if without
            else None
        ),
    )


def _rule(rule: AuditRule, number: int) -> Html:
    name = f"rule-{number}"
    return el(
        "li",
        el("pre", f"- {rule.text}", id=name),
        el(
            "p",
            saving_text(rule),
            ". ",
            site_link("look at them", kind=rule.kind),
            " ",
            el("button", "copy", type="button", data_copy=name, cls="script-only", hidden=True),
            cls="quiet",
        ),
    )


def stopped_section(rows: Sequence[StoppedRow], limits: PageLimits) -> Html:
    """What people refused or cut off, by tool, in their own words."""
    if not rows:
        return el("p", "People stopped no message.")
    return join([_stopped(row, limits) for row in rows])


def _stopped(row: StoppedRow, limits: PageLimits) -> Html:
    groups = row.grouped_words
    words = [
        el(
            "li",
            f"{cut_end(group.text, limits.chars // 5)}{group.times} ",
            site_link("look at it", q=group.site_ids[0]),
        )
        for group in groups[:WORDS_SHOWN]
    ]
    left = len(groups) - len(words)
    tools = f": {listed_counts(list(row.tools), most=6)}" if row.tools else ""
    return el(
        "div",
        el(
            "h3",
            STOPPED_TITLES.get(row.category, row.category),
            f" ({row.count})",
        ),
        el(
            "p",
            f"In {plural(row.sessions, 'session')}{tools}. Spent on them:"
            f" {spend_text(row.spend)}. ",
            site_link("look at them", category=row.category),
        ),
        el("p", "What they said:") if words else None,
        el("ul", words, cls="words") if words else None,
        el("p", f"and {left} more", cls="quiet") if left > 0 else None,
    )


def where_section(view: AuditView, limits: PageLimits) -> Html:
    """Rates with intervals and costs per model, tool, repository and version."""
    return join(
        _rows(view.tools, "tool", limits, total=False),
        _rows(view.repositories, "repository", limits),
        _rows(view.models, "model", limits),
        _rows(view.versions, "version", limits, linked=False),
        el(
            "p",
            f"A dash: too few sessions, fewer than {MIN_SESSIONS} (in each half) or less than"
            " a week. The copied history of resumed sessions is counted once. Do not"
            " compare models by their rates: they had different tasks.",
            cls="quiet",
        ),
    )


def _rows(
    rows: Sequence[AuditRow],
    name: str,
    limits: PageLimits,
    *,
    linked: bool = True,
    total: bool = True,
) -> Html | None:
    """The rows with mistakes, and one sentence that names those without any."""
    if not rows:
        return None
    wrong = [row for row in rows if row.rate.mistakes]
    right = [f"{cut_end(row.name, 60)} ({row.rate.calls})" for row in rows if not row.rate.mistakes]
    head = (
        name,
        "mistakes",
        "calls",
        "per 100 calls",
        "95 % interval",
        "later half of the sessions",
        "cost of mistakes",
        *(("cost of everything",) if total else ()),
    )
    cells = [_cells(row, name, linked=linked, total=total) for row in wrong[: limits.rows]]
    left = len(wrong) - len(cells)
    more = f", and {len(right) - limits.rows} more" if len(right) > limits.rows else ""
    return join(
        table(cells, head=head, numbers=(1, 2, 3), caption=f"per {name}") if cells else None,
        el("p", f"and {left} more rows", cls="quiet") if left else None,
        (
            el(
                "p",
                f"Without a mistake (calls): {', '.join(right[: limits.rows])}{more}.",
                cls="quiet",
            )
            if right
            else None
        ),
    )


def _cells(row: AuditRow, name: str, *, linked: bool, total: bool) -> list[Child]:
    shown, rate = cut_end(row.name, 80), row.rate
    ends = f"{rate.low:.1f} to {rate.high:.1f}" if rate.low is not None and rate.high else "–"
    return [
        site_link(shown, **{name: row.name}) if linked else shown,
        rate.mistakes,
        grouped_number(rate.calls),
        f"{rate.value:.1f}",
        ends,
        ARROWS.get(row.change.verdict, "–"),
        cost_text(row.spend),
        *([cost_text(row.total)] if total else []),
    ]


def cost_text(spend: Spend) -> str:
    """A cost in few characters.

    >>> cost_text(Spend(new_tokens=31_400, usd=1.5)), cost_text(Spend())
    ('$1.50, 31k tokens', '–')
    """
    if not spend.new_tokens:
        return "–"
    tokens = f"{token_text(spend.new_tokens)} tokens"
    return f"{usd_text(spend.usd)}, {tokens}" if spend.usd else tokens
