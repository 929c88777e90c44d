"""What the audit says, in sentences: the same on the terminal and on the page.

sentences(view)[0]
-> "Your agent made 33 mistakes in 890 tool calls (3.7 per 100), in 10 of 20 sessions, ..."
"""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.report.agent_rules import SUPPORT, AuditRule
from composer_replication.report.audit_view import AuditRow, AuditView, StoppedRow
from composer_replication.report.html import plural
from composer_replication.report.page import grouped_number, grouped_plural
from composer_replication.report.rates import MIN_SESSIONS, RateChange
from composer_replication.report.spend import NOTHING, PRICES_AS_OF, Spend

TOP_KINDS = 3
NO_USAGE = "These logs report no tokens, so nothing is known of the cost."


def token_text(tokens: float) -> str:
    """A number of tokens in few characters.

    >>> [token_text(n) for n in (950, 31_400, 1_250_000)]
    ['950', '31k', '1.2M']
    """
    if tokens < 1000:
        return f"{tokens:.0f}"
    return f"{tokens / 1000:.0f}k" if tokens < 999_500 else f"{tokens / 1e6:.1f}M"


def usd_text(usd: float) -> str:
    """Dollars with two digits, or as many as the first that is not 0.

    >>> usd_text(47.678), usd_text(0.0042), usd_text(0.0)
    ('$47.68', '$0.004', '$0.00')
    """
    return f"${usd:.2f}" if usd >= 0.01 or not usd else f"${usd:.1g}"


def time_text(seconds: float) -> str:
    """A time in words.

    >>> time_text(42.0), time_text(560.0), time_text(13_331.0)
    ('42 seconds', '9 minutes', '3.7 hours')
    """
    if seconds < 100:
        return plural(round(seconds), "second")
    return (
        plural(round(seconds / 60), "minute") if seconds < 6000 else f"{seconds / 3600:.1f} hours"
    )


def spend_text(spend: Spend) -> str:
    """A spend in words, e.g. "136k tokens (1.3M with the cache), 9 minutes, $1.08"."""
    tokens = f"{token_text(spend.new_tokens)} tokens"
    if spend.tokens >= 1.05 * spend.new_tokens + 1:
        tokens += f" ({token_text(spend.tokens)} with what was read from the cache)"
    return f"{tokens}, {time_text(spend.seconds)}, {price_text(spend)}"


def price_text(spend: Spend) -> str:
    """The dollars of a spend, and whether a part of it, or all, is of models without a price.

    >>> [price_text(Spend(usd=usd, unpriced=n)) for usd, n in ((0.0, 0), (0.36, 0.5), (0.0, 1))]
    ['$0.00', '$0.36 + unpriced', 'price unknown']
    """
    if not spend.unpriced:
        return usd_text(spend.usd)
    return f"{usd_text(spend.usd)} + unpriced" if spend.usd else "price unknown"


def sentences(view: AuditView) -> list[str]:
    """The five sentences of the audit: how often, what it costs, the costliest kinds, whether it
    gets better, and what people stopped."""
    return [
        _frequency(view),
        _cost(view),
        _costliest(view),
        change_sentence(view.change),
        _stopped(view.stopped),
    ]


def _frequency(view: AuditView) -> str:
    calls = grouped_plural(view.rate.calls, "tool call")
    if not view.rate.mistakes:
        return (
            f"No mistaken message was found in {calls} of"
            f" {plural(view.sessions, 'session')}{_subagents(view)}."
        )
    days = f", {view.first_day} to {view.last_day}" if view.first_day else ""
    return (
        f"Your agent made {plural(view.rate.mistakes, 'mistake')} in {calls}"
        f" ({view.rate.value:.1f} per 100), in {view.mistaken_sessions} of"
        f" {plural(view.sessions, 'session')}{_subagents(view)}{days}."
    )


def _subagents(view: AuditView) -> str:
    """How many of the sessions and calls are those of subagents, in brackets; "" without any."""
    if not view.subagents:
        return ""
    whose = plural(view.subagents, "of a subagent", "of subagents")
    return f" ({whose}, with {grouped_number(view.subagent_calls)} of the calls)"


def _cost(view: AuditView) -> str:
    if not view.messages_with_usage:
        return NO_USAGE
    spend, total = view.mistakes_spend, view.spend
    if total.unpriced and not total.usd:
        cost = f"They cost {spend_text(spend)}. " if view.rate.mistakes else ""
        return f"{cost}No price is known of the models that wrote these messages."
    prices = f"at the list prices of {PRICES_AS_OF}"
    text = (
        f"They cost {spend_text(spend)} of {usd_text(total.usd)} in all, {prices}."
        if view.rate.mistakes
        else f"The messages cost {usd_text(total.usd)} in all, {prices}."
    )
    if total.unpriced:
        left = plural(round(total.unpriced), "message")
        text += f" {left} of models without a price not counted."
    return text


def _costliest(view: AuditView) -> str:
    if not view.kinds:
        return "No kind of mistake to name."
    parts = [
        f"{kind.title} {grouped_number(kind.count)}x ({price_text(kind.spend)})"
        if view.messages_with_usage
        else f"{kind.title} {grouped_number(kind.count)}x"
        for kind in view.kinds[:TOP_KINDS]
    ]
    return f"Costliest: {'; '.join(parts)}."


def change_sentence(change: RateChange) -> str:
    """Whether mistakes became fewer, with both rates, or why nobody can say."""
    rates = (
        f"{change.earlier.value:.1f} per 100 calls in the earlier half of the sessions,"
        f" {change.later.value:.1f} in the later"
    )
    if change.verdict == "too short":
        return (
            "Better or worse? Too early to say: it takes a week of logs, and"
            f" {MIN_SESSIONS} sessions with tool calls in each half of it."
        )
    if change.verdict == "unclear":
        return f"Better or worse? Nobody can tell: {rates}; the difference may be chance."
    return f"It got {change.verdict}: {rates}. (Tasks may have changed, too.)"


def _stopped(rows: Sequence[StoppedRow]) -> str:
    if not rows:
        return "People stopped no message."
    parts = {"rejected": "refused a call in {}", "interrupted": "cut off {}"}
    acts = " and ".join(parts[row.category].format(row.count) for row in rows)
    number = sum(row.count for row in rows)
    spent = price_text(sum((row.spend for row in rows), NOTHING))
    words = sum(len(row.words) for row in rows)
    why = "" if not words else ", with a reason" + ("" if number == 1 else f" for {words} of them")
    return f"People stopped {plural(number, 'message')} ({spent} spent on them): they {acts}{why}."


def row_text(row: AuditRow) -> str:
    """One row in few characters, e.g. "Edit 7.1 (14 of 198)"; an arrow where it changed."""
    arrow = {"better": " ↓", "worse": " ↑"}.get(row.change.verdict, "")
    return f"{row.name} {row.rate.value:.1f}{arrow} ({row.rate.mistakes} of {row.rate.calls})"


def saving_text(rule: AuditRule) -> str:
    """What a rule may save in 30 days, and where it belongs."""
    place = f"; mostly in {rule.place}" if rule.place else ""
    return f"{rule.support}{place}; saves at most {spend_text(rule.saving)} in 30 days of use"


def rules_markdown(view: AuditView) -> str:
    """The supported rules as lines for CLAUDE.md or AGENTS.md with the evidence in comments; "" if
    there are none."""
    lines = [f"- {rule.text}  <!-- {saving_text(rule)} -->" for rule in view.rules]
    return "\n".join([f"<!-- supported = {SUPPORT} -->", *lines, ""]) if lines else ""
