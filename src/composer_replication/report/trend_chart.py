"""Mistakes per 100 calls by week, with intervals, and small bars of one kind by week."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date

from composer_replication.report.audit_view import AuditWeek
from composer_replication.report.charts import axis_label
from composer_replication.report.html import Html, el

WIDTH, HEIGHT = 480, 170
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 14, 28
NOTE = "with 95 % intervals where a week has five sessions or more"
MAX_SHOWN = 4.0  # an interval may be cut at this multiple of the largest rate


def trend_chart(weeks: Sequence[AuditWeek]) -> Html:
    """A dot with its interval per week; the values can be read at the pointer or with the arrow
    keys. Weeks of fewer than five sessions have no interval."""
    drawn = [week for week in weeks if week.rate.calls]
    days = [date.fromisoformat(week.start).toordinal() for week in drawn]
    most = max((week.rate.value for week in drawn), default=0.0)
    highs = [week.rate.high for week in drawn if week.rate.high is not None]
    top = min(max([most, *highs]), MAX_SHOWN * most) or 1.0
    floor = HEIGHT - BOTTOM

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
        el("polyline", points=f"{LEFT},{TOP} {LEFT},{floor} {WIDTH - RIGHT},{floor}", cls="axis"),
        el("text", axis_label(top), x=LEFT - 6, y=TOP + 4, cls="end"),
        el("text", "0", x=LEFT - 6, y=floor, cls="end"),
        el("text", f"week of {drawn[0].start}", x=LEFT, y=HEIGHT - 8) if drawn else None,
        (
            el("text", drawn[-1].start, x=WIDTH - RIGHT, y=HEIGHT - 8, cls="end")
            if len(drawn) > 1
            else None
        ),
        [_whisker(at, week, y) for at, week in points],
        (
            el(
                "polyline",
                points=" ".join(f"{at},{y(week.rate.value)}" for at, week in points),
                cls="line c1",
            )
            if len(points) > 1
            else None
        ),
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
    return el(
        "figure",
        el("figcaption", el("b", "mistakes per 100 tool calls, by week"), " ", el("small", NOTE)),
        svg,
        el("output", aria_live="polite"),
        cls="card curves",
        data_unit="week of",
    )


def _value(week: AuditWeek) -> str:
    rate = week.rate
    ends = f", {rate.low:.1f} to {rate.high:.1f}" if rate.low is not None and rate.high else ""
    return f"{rate.value:.1f} per 100 ({rate.mistakes} of {rate.calls}{ends})"


def _whisker(at: float, week: AuditWeek, y: Callable[[float], float]) -> Html | None:
    if week.rate.low is None or week.rate.high is None:
        return None
    return el("line", x1=at, x2=at, y1=y(week.rate.low), y2=y(week.rate.high), cls="whisker c1")


def week_bars(counts: Sequence[int]) -> Html:
    """The count of each week as a small bar; decoration beside the number in words."""
    most = max(counts, default=0) or 1
    width = max(len(counts), 12)
    bars = [
        el("rect", x=i, y=round(10 - 10 * n / most, 2), width=0.8, height=round(10 * n / most, 2))
        for i, n in enumerate(counts)
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
