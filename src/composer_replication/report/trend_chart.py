"""Mistakes per 100 calls by week, with intervals, and small bars of one kind by week."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date

from composer_replication.report.audit_view import AuditWeek
from composer_replication.report.charts import axis_label
from composer_replication.report.html import Html, el

WIDTH, HEIGHT = 480, 170
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 14, 28
BARS = "bar: 95 % interval, from five sessions a week on"
NO_BARS = "no week has the five sessions that an interval takes, so a single week says little"
GAPS = "weeks without sessions are gaps"
MAX_SHOWN = 4.0  # an interval may be cut at this multiple of the largest rate
WEEK_DAYS = 7
MAX_BARS = 60  # thinner ones could not be seen


def trend_chart(weeks: Sequence[AuditWeek]) -> Html:
    """A dot with its interval per week; the values can be read at the pointer or with the arrow
    keys. A line joins only weeks that follow each other; weeks of fewer than five sessions have no
    interval."""
    drawn = [week for week in weeks if week.rate.calls]
    days = [_day(week.start) for week in drawn]
    most = max((week.rate.value for week in drawn), default=0.0)
    highs = [week.rate.high for week in drawn if week.rate.high is not None]
    top = round_up(min(max([most, *highs]), MAX_SHOWN * most) or 1.0)
    floor = HEIGHT - BOTTOM
    joined = stretches(days)

    def x(day: int) -> float:
        share = (day - days[0]) / (days[-1] - days[0]) if days[-1] > days[0] else 0.5
        return round(LEFT + 10 + share * (WIDTH - LEFT - RIGHT - 20), 1)

    def y(value: float) -> float:
        return round(floor - min(value, top) / top * (floor - TOP), 1)

    points = [(x(day), week) for day, week in zip(days, drawn, strict=True)]
    values = " ".join(
        f"{at:g}:{week.start}:{_value(week)}".replace(" ", "\u00a0") for at, week in points
    )
    body = [
        [_gridline(value, y(value)) for value in (top, top / 2)],
        el("polyline", points=f"{LEFT},{TOP} {LEFT},{floor} {WIDTH - RIGHT},{floor}", cls="axis"),
        el("text", "0", x=LEFT - 6, y=floor, cls="end"),
        el("text", f"week of {drawn[0].start}", x=LEFT, y=HEIGHT - 8) if drawn else None,
        (
            el("text", drawn[-1].start, x=WIDTH - RIGHT, y=HEIGHT - 8, cls="end")
            if len(drawn) > 1
            else None
        ),
        [_whisker(at, week, y) for at, week in points],
        [
            el(
                "polyline",
                points=" ".join(f"{at},{y(week.rate.value)}" for at, week in points[begin:end]),
                cls="line c1",
            )
            for begin, end in joined
            if end - begin > 1
        ],
        [el("circle", cx=at, cy=y(week.rate.value), r=4, cls="dot c1") for at, week in points],
        el("line", x1=0, x2=0, y1=TOP, y2=floor, cls="cursor", data_name="", data_values=values),
    ]
    label = "mistakes per 100 tool calls by week: " + "; ".join(
        f"{week.start} {_value(week)}" for week in drawn[-12:]
    )
    svg = el(
        "svg",
        body,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        tabindex=0,
        aria_label=label,
    )
    notes = [BARS if highs else NO_BARS, *([GAPS] if len(joined) > 1 else [])]
    return el(
        "figure",
        el(
            "figcaption",
            el("b", "mistakes per 100 tool calls, by week"),
            " ",
            el("small", "; ".join(notes)),
        ),
        svg,
        el("output", aria_live="polite"),
        cls="card curves",
        data_unit="week of",
    )


def _day(start: str) -> int:
    return date.fromisoformat(start).toordinal()


def stretches(days: Sequence[int]) -> list[tuple[int, int]]:
    """The bounds of each stretch of weeks that follow each other.

    >>> stretches([7, 14, 35, 42, 49])
    [(0, 2), (2, 5)]
    """
    starts = [i for i, day in enumerate(days) if not i or day - days[i - 1] > WEEK_DAYS]
    return list(zip(starts, [*starts[1:], len(days)], strict=True))


def round_up(value: float) -> float:
    """The next number that is easy to read on an axis.

    >>> [round_up(v) for v in (5.88, 0.031, 12.0, 1.0)]
    [6.0, 0.04, 20.0, 1.0]
    """
    unit = 10.0 ** math.floor(math.log10(value))
    step = next(s for s in (1, 2, 3, 4, 5, 6, 8, 10) if s * unit >= value * (1 - 1e-9))
    return float(f"{step * unit:.6g}")


def _gridline(value: float, y: float) -> Html:
    return el(
        "g",
        el("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, cls="axis"),
        el("text", axis_label(value), x=LEFT - 6, y=y + 4, cls="end"),
    )


def _value(week: AuditWeek) -> str:
    rate = week.rate
    ends = f", {rate.low:.1f} to {rate.high:.1f}" if rate.low is not None and rate.high else ""
    return f"{rate.value:.1f} per 100 ({rate.mistakes} of {rate.calls}{ends})"


def _whisker(at: float, week: AuditWeek, y: Callable[[float], float]) -> Html | None:
    if week.rate.low is None or week.rate.high is None:
        return None
    return el("line", x1=at, x2=at, y1=y(week.rate.low), y2=y(week.rate.high), cls="whisker c1")


def week_bars(counts: Sequence[tuple[str, int]]) -> Html:
    """The count of each week (its Monday, the count) as a small bar, with room for the weeks
    without sessions; decoration beside the number in words."""
    most = max((n for _, n in counts), default=0) or 1
    days = [_day(start) for start, _ in counts]
    width = max((days[-1] - days[0]) // WEEK_DAYS + 1, 12) if days else 12
    thick = max(0.8, width / MAX_BARS)
    bars = [
        el(
            "rect",
            x=round(min((day - days[0]) / WEEK_DAYS, width - thick), 2),
            y=round(10 - 10 * n / most, 2),
            width=thick,
            height=round(10 * n / most, 2),
        )
        for day, (_, n) in zip(days, counts, strict=True)
        if n
    ]
    return el(
        "svg",
        bars,
        viewBox=f"0 0 {width} 10",
        preserveAspectRatio="none",
        cls="weeks",
        aria_hidden="true",
        focusable="false",
    )
