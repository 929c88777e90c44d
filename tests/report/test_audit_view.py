"""The values of the audit: rates with intervals, the trend, and what mistakes cost, by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from composer_replication.core.codec import decode_session, encode_session
from composer_replication.core.site import Site
from composer_replication.core.trace import (
    Parent,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
    TurnUsage,
)
from composer_replication.report.audit_counts import MAX_SECONDS, message_spends
from composer_replication.report.audit_sentences import sentences
from composer_replication.report.audit_view import AuditView, view_of
from composer_replication.report.rates import MIN_SESSIONS, rate_change, rate_of
from composer_replication.report.spend import list_price, usd_of

DAY = 86_400.0
START = 1_790_000_000.0  # a Monday
MODEL = "claude-opus-4-6"


def a_message(at: float, *calls: str, usage: TurnUsage | None = None, tokens: int = 0) -> Turn:
    return Turn(
        role="assistant",
        author=MODEL,
        blocks=tuple(ToolCall(name, "Edit", {"file_path": name}) for name in calls),
        context_tokens=tokens,
        usage=usage or TurnUsage(output_tokens=1_000),
        written_at=at,
    )


def a_result(at: float, call: str) -> Turn:
    return Turn(
        role="tool",
        author="environment",
        blocks=(ToolResult(call, "no", True),),
        written_at=at,
    )


def a_session(*turns: Turn, name: str = "s1", copied: int = 0, day: int = 0) -> Session:
    started = datetime.fromtimestamp(START + day * DAY, UTC).isoformat()
    return Session(
        id=name,
        source=SourceRef(file="a.jsonl", format="claude_code", versions=("2.1.5",)),
        turns=turns,
        segments=(Segment(start=0, end=len(turns)),),
        copied=copied,
        started=started,
        ended=started,
        repository="shop",
    )


def a_mistake(turn: int, call: str, *, session: str = "s1") -> Site:
    return Site(
        session_id=session,
        turn=turn,
        call_id=call,
        kind="edit_no_match",
        detector="tool_error",
        evidence=(turn + 1,),
        tool="Edit",
        author=MODEL,
    )


def dated(rates: list[int], calls: int = 50) -> list[tuple[float, tuple[int, int]]]:
    """One session a day, with these mistakes."""
    return [(START + day * DAY, (mistakes, calls)) for day, mistakes in enumerate(rates)]


def test_calls_of_subagents_are_named_in_the_first_sentence() -> None:
    main = a_session(a_message(10.0, "c1", "c2"), a_result(20.0, "c1"))
    sub = a_session(a_message(10.0, "c3"), name="s1.agent-1")
    sub = replace(sub, parent=Parent(session_id="s1", call_id="c2"))
    alone = view_of([(main, [a_mistake(0, "c1")])])
    assert "in 2 tool calls (50.0 per 100), in 1 of 1 session, " in sentences(alone)[0]
    both = view_of([(main, [a_mistake(0, "c1")]), (sub, [])])
    assert (both.subagents, both.subagent_calls) == (1, 1)
    said = "in 1 of 2 sessions (1 of a subagent, with 1 of the calls), "
    assert said in sentences(both)[0]
    clean = view_of([(a_session(a_message(10.0, "c1")), [])])
    assert sentences(clean)[0] == "No mistaken message was found in 1 tool call of 1 session."


def test_a_rate_is_of_totals_and_its_interval_is_over_sessions() -> None:
    alike, unlike = [(5, 50)] * 10, [(0, 50)] * 9 + [(50, 50)]
    assert rate_of(alike).value == rate_of(unlike).value == 10.0
    widths = [(rate.high or 0.0) - (rate.low or 0.0) for rate in map(rate_of, (alike, unlike))]
    assert widths[1] > 2 * widths[0], "one bad session is not fifty independent mistakes"
    assert rate_of([(1, 10)] * (MIN_SESSIONS - 1)).low is None
    assert rate_of([(0, 100)] * 9).high == pytest.approx(100 * 1.96 / 900)


@pytest.mark.parametrize(
    ("mistakes", "verdict"),
    [
        ([10] * 8 + [2] * 8, "better"),
        ([2] * 8 + [10] * 8, "worse"),
        ([5, 6] * 8, "unclear"),
        ([10] * 3 + [2] * 3, "too short"),
        ([10] * 4 + [2] * 4, "too short"),
    ],
)
def test_a_trend_is_named_only_where_it_is_shown(mistakes: list[int], verdict: str) -> None:
    change = rate_change(dated(mistakes))
    assert change.verdict == verdict


def test_chance_is_rarely_called_a_trend() -> None:
    draw = random.Random(7)

    def mistakes() -> list[int]:
        return [sum(draw.random() < 0.1 for _ in range(50)) for _ in range(20)]

    verdicts = [rate_change(dated(mistakes())).verdict for _ in range(400)]
    assert sum(v in ("better", "worse") for v in verdicts) <= 32, "above 8 % of 400"


def test_a_mistake_costs_its_share_of_the_message_and_the_time_to_its_result() -> None:
    usage = TurnUsage(output_tokens=1_000, cached_tokens=10_000)
    turns = (
        Turn(role="user", author="human", blocks=(Text("go"),), written_at=START),
        a_message(START + 30, "c1", "c2", usage=usage, tokens=12_000),
        a_result(START + 31, "c1"),
        a_result(START + 50, "c2"),
    )
    view = view_of([(a_session(*turns), [a_mistake(1, "c1")])])
    spend = view.mistakes_spend
    assert (spend.tokens, spend.new_tokens, spend.seconds) == (6_500, 1_500, 25.0)
    assert spend.usd == pytest.approx((2_000 * 5 + 10_000 * 0.5 + 1_000 * 25) / 2e6)
    assert view.spend.usd == pytest.approx(2 * spend.usd)


def test_a_person_who_was_away_is_not_the_agents_time() -> None:
    turns = (
        Turn(role="user", author="human", blocks=(Text("go"),), written_at=START),
        a_message(START + 10, "c1"),
        a_result(START + 5 * 3600, "c1"),
    )
    assert message_spends(a_session(*turns))[1].seconds == MAX_SECONDS


def test_what_an_earlier_session_holds_is_paid_once() -> None:
    turns = (a_message(START, "c1"), a_result(START, "c1"), a_message(START + 5, "c2"))
    copy = a_session(*turns, name="s2", copied=2)
    view = view_of([(a_session(*turns[:2]), []), (copy, [])])
    assert (view.messages, view.rate.calls, view.spend.output_tokens) == (2, 2, 2_000)


def test_a_model_without_a_price_is_counted_and_not_free() -> None:
    turns = (replace(a_message(START, "c1"), author="new-model-9"),)
    view = view_of([(a_session(*turns), [])])
    assert (view.spend.usd, view.spend.unpriced) == (0.0, 1.0)
    assert usd_of(replace(turns[0], usage=TurnUsage(output_tokens=5, usd=0.25))) == 0.25


@pytest.mark.parametrize(
    ("model", "output"),
    [
        ("claude-opus-4-20250514", 75.0),
        ("claude-opus-4-5-20251101", 25.0),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 15.0),
        ("anthropic/claude-haiku-4-5", 5.0),
        ("claude-sonnet-4-6[1m]", 15.0),
        ("gpt-5.2-codex", 14.0),
        ("claude-opus-4-99", None),
        (None, None),
    ],
)
def test_a_price_is_that_of_the_model_never_of_its_elder(
    model: str | None, output: float | None
) -> None:
    price = list_price(model)
    assert (price and price.output_usd_per_mtok) == output


def weeks_view() -> AuditView:
    sessions = []
    for day in (0, 1, 7, 21):
        turns = (a_message(START, "c1"), a_result(START, "c1"))
        sessions.append(
            (a_session(*turns, name=f"s{day}", day=day), [a_mistake(0, "c1", session=f"s{day}")])
        )
    return view_of(sessions)


def test_weeks_begin_on_monday_and_kinds_are_counted_in_them() -> None:
    view = weeks_view()
    assert [week.start for week in view.weeks] == ["2026-09-21", "2026-09-28", "2026-10-12"]
    assert [week.rate.mistakes for week in view.weeks] == [2, 1, 1]
    assert view.kinds[0].weeks == (2, 1, 1)
    assert view.kinds[0].title == "Edit: text not found"


def test_usage_and_time_survive_the_file_and_do_not_tell_copies_apart() -> None:
    usage = TurnUsage(output_tokens=7, cached_tokens=5, cache_write_tokens=3, usd=0.5)
    session = a_session(a_message(START + 0.25, "c1", usage=usage, tokens=9))
    header, *rows = map(json.loads, encode_session(session))
    (turn,) = decode_session(header, rows).turns
    assert (turn.usage, turn.written_at, turn.context_tokens) == (usage, START + 0.25, 9)
    assert turn == replace(turn, usage=None, written_at=0.0)
