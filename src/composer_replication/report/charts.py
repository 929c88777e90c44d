"""Charts as inline SVG, which need no script; colours come from the classes of the style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from composer_replication.report.html import Html, el

WIDTH, HEIGHT = 340, 120
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 26
MAX_POINTS = 240
NAME_CHARS = 24  # of a name beside its row; longer names stand above theirs
LONG_NAME_CHARS = 46  # of a name above its row; the rest is in its title
DASHES = 8  # patterns of lines, so that colour is not the only difference
VALUE_WIDTH = 48  # of the column of values
CHAR_WIDTH = 6.6  # of the style sheet's 11 px, wide letters included
Point = tuple[float, float]
MARKED = ("starved", "dead", "exhausted")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, its colour class, and (step, value) points."""

    name: str
    colour: str
    points: Sequence[Point]


def thin(points: Sequence[Point], *, most: int = MAX_POINTS) -> list[Point]:
    """At most `most` finite points, evenly spaced, always with the last one.

    >>> thin([(1, 5.0), (2, math.nan), (3, 4.0), (4, 3.0)], most=2)
    [(1, 5.0), (4, 3.0)]
    """
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    if len(finite) <= most:
        return finite
    return [finite[round(i * (len(finite) - 1) / (most - 1))] for i in range(most)]


def axis_label(value: float) -> str:
    """A number for an axis, in at most seven characters.

    >>> [axis_label(v) for v in (1234.5, 0.0253, 0.0000479, -0.0)]
    ['1234', '0.0253', '4.8e-5', '0']
    """
    if not value:  # -0.0 too
        return "0"
    if abs(value) < 0.01 or abs(value) >= 99999:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def is_constant(points: Sequence[Point]) -> bool:
    """Whether a curve has the same value in every step.

    >>> is_constant([(1, 48.0), (2, 48.0)]), is_constant([(1, 0.1), (2, 0.4)])
    (True, False)
    """
    return len({value for _, value in points}) == 1


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    note: str = "",
    log: bool = False,
    marks: Sequence[tuple[int, str]] = (),
) -> Html:
    """Lines over steps, with a tick on the axis for each step in `marks` that trained on nothing.

    `marks` are (step, status). Values that are not finite, or not positive on a logarithmic axis,
    are left out and counted in the note.
    """
    thinned = [
        Line(line.name, line.colour, thin([p for p in line.points if not log or p[1] > 0]))
        for line in lines
    ]
    num_off_axis = sum(
        not math.isfinite(y) or (log and y <= 0) for line in lines for _, y in line.points
    )
    ticks = [(step, status) for step, status in marks if status in MARKED]
    if num_off_axis:
        note = f"{note}{'; ' if note else ''}{num_off_axis} values cannot be drawn on this axis"
    head = el("figcaption", el("b", title), " ", el("small", note))
    points = [p for line in thinned for p in line.points]
    if not points and not ticks:
        return el("figure", head, el("p", "no values", cls="quiet"), cls="card")
    steps = [x for x, _ in points] + [step for step, _ in marks]
    plot = _Plot.around(steps, [y for _, y in points], log=log)
    classes = [
        f"{line.colour} d{i % DASHES}" if len(thinned) > 1 else line.colour
        for i, line in enumerate(thinned)
    ]
    body = [
        plot.axes(),
        [plot.tick(step, status) for step, status in ticks],
        [plot.line(line, cls) for line, cls in zip(thinned, classes, strict=True) if line.points],
        el("line", x1=0, x2=0, y1=TOP, y2=HEIGHT - BOTTOM, cls="cursor"),
    ]
    keys = (
        [
            el("span", _swatch(cls), el("span", line.name, cls="name"), cls="key")
            for line, cls in zip(thinned, classes, strict=True)
        ]
        if len(thinned) > 1
        else None
    )
    ranges = "; ".join(
        f"{line.name} from {axis_label(line.points[0][1])} to {axis_label(line.points[-1][1])}"
        for line in thinned
        if line.points
    )
    label = f"{title}: {ranges or 'no values'}" + (f"; {len(ticks)} marked steps" if ticks else "")
    svg = el("svg", body, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", tabindex=0, aria_label=label)
    return el(
        "figure",
        head,
        svg,
        el("div", keys, cls="keys") if keys else None,
        el("output", aria_live="polite"),
        cls="card curves",
        data_unit="step",
    )


def _swatch(cls: str) -> Html:
    """A piece of a line for the key of its chart."""
    line = el("line", x1=0, x2=26, y1=3, y2=3, cls=f"line {cls}")
    return el("svg", line, viewBox="0 0 26 6", cls="swatch", aria_hidden="true", focusable="false")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    """The scales of one chart."""

    first: float
    last: float
    low: float
    high: float
    log: bool

    @classmethod
    def around(cls, steps: Sequence[float], values: Sequence[float], *, log: bool) -> _Plot:
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if low == high:  # a flat line is drawn in the middle
            low, high = (
                (low / 2, high * 2)
                if log
                else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
            )
        return cls(first=min(steps), last=max(steps), low=low, high=high, log=log)

    def x(self, step: float) -> float:
        share = 0.5 if self.last == self.first else (step - self.first) / (self.last - self.first)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(value))
            if self.log
            else (self.low, self.high, value)
        )
        return round(HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    def axes(self) -> list[Html]:
        floor = HEIGHT - BOTTOM
        frame = el(
            "polyline", points=f"{LEFT},{TOP} {LEFT},{floor} {WIDTH - RIGHT},{floor}", cls="axis"
        )
        labels = [
            el("text", axis_label(self.high), x=LEFT - 4, y=TOP + 4, cls="end"),
            el("text", axis_label(self.low), x=LEFT - 4, y=floor, cls="end"),
            el("text", f"step {axis_label(self.first)}", x=LEFT, y=HEIGHT - 6),
        ]
        if self.last > self.first:
            labels.append(
                el("text", axis_label(self.last), x=WIDTH - RIGHT, y=HEIGHT - 6, cls="end")
            )
        return [frame, *labels]

    def tick(self, step: int, status: str) -> Html:
        floor = HEIGHT - BOTTOM
        return el(
            "line",
            el("title", f"step {step}: {status}"),
            x1=self.x(step),
            x2=self.x(step),
            y1=floor - 9,
            y2=floor + 4,
            cls=f"tick {status}",
        )

    def line(self, line: Line, cls: str) -> Html:
        """The line, with its values ("x:step:value") for the script that reads them at a point."""
        values = " ".join(
            f"{self.x(step):g}:{axis_label(step)}:{axis_label(value)}"
            for step, value in line.points
        )
        if len(line.points) == 1:
            step, value = line.points[0]
            return el(
                "circle",
                el("title", f"{line.name}, step {step}: {axis_label(value)}"),
                cx=self.x(step),
                cy=self.y(value),
                r=3,
                cls=f"dot {cls}",
                data_name=line.name,
                data_values=values,
            )
        points = " ".join(f"{self.x(step)},{self.y(value)}" for step, value in line.points)
        return el(
            "polyline",
            points=points,
            cls=f"line {cls}",
            data_name=line.name,
            data_values=values,
        )


def interval_chart(
    title: str,
    rows: Sequence[tuple[str, float, float, float]],
    *,
    low: float,
    high: float,
    zero: bool = False,
) -> Html:
    """One dot with its interval per row (name, value, low, high) on an axis from `low` to `high`,
    and the value at the right.

    `zero` draws a line at zero. A name stands beside its row, or above it if one is long.
    """
    longest = max((len(name) for name, *_ in rows), default=0)
    is_above = longest > NAME_CHARS
    width, step = 340, 36 if is_above else 22
    left = 8 if is_above else max(60, round(CHAR_WIDTH * longest) + 12)
    height, right = step * len(rows) + 26, width - VALUE_WIDTH

    def x(value: float) -> float:
        share = (min(max(value, low), high) - low) / (high - low)
        return round(left + share * (right - left), 1)

    body: list[Html] = []
    floor = step * len(rows) + 6
    if zero:
        body.append(el("line", x1=x(0), x2=x(0), y1=2, y2=floor, cls="zero"))
    for i, (name, value, a, b) in enumerate(rows):
        y = step * (i + 1) - 8
        text_title = el("title", f"{name}: {value:.3f}, interval {a:.3f} to {b:.3f}")
        body.append(
            el(
                "g",
                text_title,
                el("text", fit_name(name, LONG_NAME_CHARS), x=0, y=y - 11, cls="start")
                if is_above
                else el("text", name, x=left - 8, y=y + 4, cls="end"),
                el("line", x1=x(a), x2=x(b), y1=y, y2=y, cls="whisker"),
                el("circle", cx=x(value), cy=y, r=4, cls="dot c0"),
                el("text", _value_text(value, zero=zero), x=width, y=y + 4, cls="end value"),
            )
        )
    body += [
        el("line", x1=left, x2=right, y1=floor, y2=floor, cls="axis"),
        el("text", axis_label(low), x=left, y=floor + 14, cls="start" if is_above else "middle"),
        el("text", axis_label(high), x=right, y=floor + 14, cls="end"),
    ]
    label = f"{title}: " + "; ".join(
        f"{name} {value:.3f} ({a:.3f} to {b:.3f})" for name, value, a, b in rows
    )
    svg = el("svg", body, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)
    return el("figure", el("figcaption", el("b", title)), svg, cls="card")


def _value_text(value: float, *, zero: bool) -> str:
    return f"{value:+.2f}" if zero else axis_label(round(value, 3))


def fit_name(text: str, limit: int) -> str:
    """A long name without its middle: what tells names apart is often at their end.

    >>> fit_name("a-very-long-name-of-a-run: before", 20)
    'a-very-lo…un: before'
    """
    if len(text) <= limit:
        return text
    end = limit // 2
    return f"{text[: limit - end - 1]}…{text[-end:]}"


def bar(count: float, most: float) -> Html:
    """The bar of a table cell: its length is the count relative to the largest count."""
    width = round(100 * count / most, 1) if most else 0.0
    inside = el("rect", width=max(width, 0.6) if count else 0, height=10, rx=1)
    return el(
        "svg",
        inside,
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        cls="bar",
        aria_hidden="true",
        focusable="false",
    )
