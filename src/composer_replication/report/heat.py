"""A message token by token: each token is coloured by how far the hint moves it, at the first and
at the last step of the probe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.html import Html, el, join, plural
from composer_replication.report.limits import PageLimits

SHADES = 9
LEAST_SCALE = 0.01
"""Nats at the dark end of the scale, at least: a hint that moves no token so far says nothing."""
GUESSING = 100.0
"""A student to whom a token of the message is one of so many, in the geometric mean, guesses."""
MEASURES = {
    "jsd": "Jensen-Shannon divergence",
    "kl(teacher, student)": "KL divergence from the hinted model",
    "kl(student, teacher)": "KL divergence towards the hinted model",
}


def heat(tokens: Sequence[Mapping[str, Any]], probe: Mapping[str, Any], limits: PageLimits) -> Html:
    """Every token of the target, coloured for both steps.

    The numbers of a token are in its title; a click or the arrow keys show them below.
    """
    shown_tokens = tokens[: limits.tokens]
    left = len(tokens) - len(shown_tokens)
    return el(
        "figure",
        el("figcaption", el("small", _caption(tokens))),
        el(
            "div",
            [_token(token, probe) for token in shown_tokens],
            cls="tokens",
            tabindex=0,
            role="group",
            aria_label="tokens; arrow keys read the numbers of each",
        ),
        el("p", f"[{left} more tokens]", cls="quiet") if left else None,
        el("output", aria_live="polite"),
        cls="heat",
        data_unsearched=True,
    )


def legend(probe: Mapping[str, Any]) -> Html:
    """The meaning of the colours, and the two buttons; the page opens on the first step."""
    shades = [el("span", cls=f"g{i}") for i in range(1, SHADES + 1)]
    caption = [
        "The darker a token, the more the hint changes what the model would write there: 0 ",
        el("span", shades, cls="scale", aria_hidden="true"),
        (
            f" {_top(probe):.3g} nats ({MEASURES.get(probe['measure'], probe['measure'])}), the"
            " same scale for all messages and steps; the shade grows with the square root."
        ),
    ]
    doubt = doubt_of(probe)
    note = el("p", doubt, cls="note") if doubt else None
    if probe["first"] == probe["last"]:
        return join(el("p", caption, f" Step {probe['last']} is the only one written."), note)
    buttons = [
        el(
            "button",
            f"{name} step ({probe[name]})",
            type="button",
            data_show=name,
            aria_pressed="true" if name == "first" else "false",
        )
        for name in ("first", "last")
    ]
    return join(
        el("p", caption),
        note,
        el(
            "div",
            buttons,
            cls="steps script-only",
            hidden=True,
            role="group",
            aria_label="step of the colours",
        ),
    )


def doubt_of(probe: Mapping[str, Any]) -> str:
    """Why the colours of the first step say little; "" if they say what the hint is about.

    >>> token = {"text": "a", "first": (1e-4, -7.6, -7.6), "last": (1e-4, -7.6, -7.6)}
    >>> doubt_of({"first": 0, "most": 1e-4, "sites": {"s1": [token] * 9}})[:70]
    'At step 0 this student guesses: to it, a token is one of about 2,000, '
    """
    firsts = [token["first"] for tokens in probe["sites"].values() for token in tokens]
    if not firsts:
        return ""
    mean = sum(log_prob for _, log_prob, _ in firsts) / len(firsts)
    chance = math.exp(min(-mean, 50.0))
    if chance >= GUESSING:
        rounded = float(f"{chance:.1g}")
        return (
            f"At step {probe['first']} this student guesses: to it, a token is one of about"
            f" {rounded:,.0f}, as to an untrained model. What a hint changes is noise then, spread"
            " over the message, and no colour names a mistake."
        )
    if probe["most"] < LEAST_SCALE:
        return (
            f"No hint moves a token by more than {probe['most']:.2g} nats here: to this student"
            " they say nothing."
        )
    return ""


def half_in(tokens: Sequence[Mapping[str, Any]]) -> int:
    """How few tokens hold half of what the hint changes at the first step; 0 if it changes nothing.

    >>> half_in([{"first": (value, 0, 0)} for value in (0.1, 0.0, 5.0, 0.2)])
    1
    """
    values = sorted((max(token["first"][0], 0.0) for token in tokens), reverse=True)
    half, held = sum(values) / 2, 0.0
    for number, value in enumerate(values, start=1):
        held += value
        if value and held >= half:
            return number
    return 0


def _caption(tokens: Sequence[Mapping[str, Any]]) -> str:
    title = f"the mistaken message, token by token ({plural(len(tokens), 'token')}"
    number = half_in(tokens)
    return title + (f"; half of the change is in {number} of them)" if number else ")")


def _top(probe: Mapping[str, Any]) -> float:
    """The divergence at the dark end of the scale."""
    return max(probe["most"], LEAST_SCALE)


def clearest_site(probe: Mapping[str, Any]) -> str:
    """The probed site whose hint moves a token furthest at the first step; "" if there is none.

    >>> token = {"text": "a", "first": (0.5, 0, 0), "last": (0.1, 0, 0)}
    >>> clearest_site({"sites": {"s1": [], "s2": [token]}})
    's2'
    """
    most = {
        site: max((token["first"][0] for token in tokens), default=0.0)
        for site, tokens in probe["sites"].items()
    }
    best = max(most, key=lambda site: most[site], default="")
    return best if best and most[best] > 0 else ""


def _token(token: Mapping[str, Any], probe: Mapping[str, Any]) -> Html:
    first, last = token["first"], token["last"]
    numbers = (
        [f"step {probe['first']}: {_numbers(first)}"] if probe["first"] != probe["last"] else []
    )
    numbers.append(f"step {probe['last']}: {_numbers(last)}")
    # A line end stays one, so that the message keeps its lines, and is visible as a token.
    text = str(token["text"]).replace("\n", "↵\n") or "(empty)"
    most = _top(probe)
    return el(
        "span",
        text,
        cls=f"t f{shade(first[0], most)} l{shade(last[0], most)}",
        title="; ".join(numbers),
    )


def _numbers(triple: Sequence[float]) -> str:
    return f"{triple[0]:.3g}, log-prob {triple[1]:.2f}, with the hint {triple[2]:.2f}"


def shade(value: float, most: float) -> int:
    """A shade from 0 to 9: the square root of the value relative to the largest.

    >>> [shade(v, 1.0) for v in (0.0, 0.01, 0.25, 1.0)]
    [0, 1, 5, 9]
    """
    if not most > 0 or not value > 0:
        return 0
    return min(SHADES, max(1, round(SHADES * (value / most) ** 0.5 + 1e-9)))
