"""A message token by token: each token is coloured by how far the hint moves it, at the first and
at the last step of the probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.report.html import Html, el, join
from composer_replication.report.limits import PageLimits

SHADES = 9


def heat(tokens: Sequence[Mapping[str, Any]], probe: Mapping[str, Any], limits: PageLimits) -> Html:
    """Every token of the target, coloured for both steps.

    The numbers of a token are in its title; a click or the arrow keys show them below.
    """
    shown_tokens = tokens[: limits.tokens]
    left = len(tokens) - len(shown_tokens)
    return el(
        "figure",
        el("figcaption", el("small", f"the same message, token by token ({len(tokens)} tokens)")),
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
    )


def legend(probe: Mapping[str, Any]) -> Html:
    """The meaning of the colours, and the two buttons; the page opens on the first step."""
    shades = [el("span", cls=f"g{i}") for i in range(1, SHADES + 1)]
    caption = [
        f"Colour of a token: {probe['measure']} between the model with and without the hint, 0 ",
        el("span", shades, cls="scale", aria_hidden="true"),
        (
            f" {probe['most']:.3g} nats, the same scale at both steps; it grows with the square"
            " root."
        ),
    ]
    if probe["first"] == probe["last"]:
        return el("p", caption, f" Step {probe['last']} is the only one written.")
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
        el(
            "div",
            buttons,
            cls="steps script-only",
            hidden=True,
            role="group",
            aria_label="step of the colours",
        ),
    )


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
    most = probe["most"]
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
