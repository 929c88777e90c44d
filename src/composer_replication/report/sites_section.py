"""The sites of a page: the context, the hint above the mistaken message, the message token by
token, and the later turns in grey."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.report.html import Html, el, join, plural
from composer_replication.report.views import APART, EVIDENCE, LATER, MISTAKE, NEITHER, TEACHER_ONLY

NO_HINT = (
    "No hint: this is not a mistake, or no writer knew anything useful, or `recompose hints` has"
    " not been run."
)
SHADES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Bounds on the content of a page; they are halved until the page fits."""

    sites: int = 24
    chars: int = 1500
    message_chars: int = 4000
    tokens: int = 800
    rows: int = 25

    def halved(self) -> PageLimits:
        """Half of every bound, but at least one site and a little text."""
        names = {"sites": 1, "chars": 60, "message_chars": 120, "tokens": 20, "rows": 3}
        return replace(
            self, **{name: max(getattr(self, name) // 2, least) for name, least in names.items()}
        )


def cut_end(text: str, limit: int) -> str:
    """The beginning of a text, and the number of characters that are cut.

    >>> cut_end("abcdef", 4)
    'abcd [2 more characters]'
    """
    return text if len(text) <= limit else f"{text[:limit]} [{len(text) - limit} more characters]"


def sites_section(
    views: Sequence[Mapping[str, Any]],
    *,
    total: int,
    probe: Mapping[str, Any] | None,
    limits: PageLimits,
    folder_flags: str,
    rollouts: int = 0,
) -> Html:
    """The list of sites and one article per site.

    The first `rollouts` of `views` are from the student's rollouts; `total` counts the imported
    sites. `probe` are the token tables of `run_report.probe_tables`; `folder_flags` complete the
    `recompose show` command.
    """
    shown_views = views[: limits.sites]
    tables: Mapping[str, Any] = probe["sites"] if probe else {}
    num_rollout_sites = min(rollouts, len(shown_views))
    shown_of_total = f"{len(shown_views) - num_rollout_sites} of {total} sites are shown"
    lead = [
        (
            el(
                "p",
                f"First the {num_rollout_sites} probed sites of the student's rollouts (w), then"
                " imported sites (s).",
            )
            if num_rollout_sites
            else None
        ),
        (
            el(
                "p",
                f"{shown_of_total}; the rest: ",
                el("code", f"recompose show site{folder_flags}"),
                ".",
            )
            if total
            else None
        ),
        el(
            "p",
            "Keys: j and k move to the next and the previous site; each site has its own address.",
            cls="quiet script-only",
            hidden=True,
        ),
    ]
    legend = (
        _legend(probe)
        if probe and any(view["site"]["id"] in tables for view in shown_views)
        else None
    )
    links = [
        el(
            "li",
            el(
                "a",
                el("b", _name(view)),
                f" {view['site']['kind']}",
                _mark(view, tables),
                href=f"#{_name(view)}",
            ),
        )
        for view in shown_views
    ]
    articles = [
        _article(
            view,
            tokens=tables.get(view["site"]["id"]),
            probe=probe,
            limits=limits,
            folder_flags=folder_flags,
        )
        for view in shown_views
    ]
    body = el(
        "div", el("nav", el("ol", links), aria_label="sites"), el("div", articles), cls="sites"
    )
    return join(lead, legend, body)


def _name(view: Mapping[str, Any]) -> str:
    return view.get("name") or f"s{view['ordinal']:03d}"


def _mark(view: Mapping[str, Any], tables: Mapping[str, Any]) -> Html:
    labels = [view["site"]["category"]] if view["message"]["place"] == APART else []
    labels += ["token by token"] if view["site"]["id"] in tables else []
    return el("small", f" {', '.join(labels)}" if labels else "")


def _legend(probe: Mapping[str, Any]) -> Html:
    """The meaning of the colours, and the two buttons."""
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
            aria_pressed="true" if name == "last" else "false",
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


def _article(
    view: Mapping[str, Any],
    *,
    tokens: Sequence[Mapping[str, Any]] | None,
    probe: Mapping[str, Any] | None,
    limits: PageLimits,
    folder_flags: str,
) -> Html:
    site, name = view["site"], _name(view)
    about = f"{site['kind']} · {site['category']}" + (
        f" · found by {site['detector']}" if site["detector"] else ""
    )
    before, after = view["left_out_before"], view["left_out_after"]
    return el(
        "article",
        el("h3", f"{name} ", el("small", about)),
        el("p", el("code", site["id"]), f" {site.get('repository', '')}", cls="quiet"),
        el("p", "Shown by: ", cut_end(site["detail"], 300)) if site.get("detail") else None,
        (
            el("p", f"not shown: {plural(before, 'earlier turn')} of its context", cls="quiet")
            if before
            else None
        ),
        [turn_block(turn, limits.chars) for turn in view["before"]],
        _hint(view["hint"], limits),
        turn_block(view["message"], limits.message_chars),
        _heat(tokens, probe, limits) if tokens and probe else None,
        [turn_block(turn, limits.chars) for turn in view["after"]],
        (
            el(
                "p",
                f"not shown: {plural(after, 'later turn')}, {NEITHER}",
                (
                    [": ", el("code", f"recompose show site {name} --full{folder_flags}")]
                    # `show site` reads imported sites; those of rollouts have names of this page
                    if "name" not in view
                    else None
                ),
                cls="quiet",
            )
            if after
            else None
        ),
        cls="site",
        id=name,
    )


def _hint(text: str | None, limits: PageLimits) -> Html:
    if text is None:
        return el("p", NO_HINT, cls="quiet")
    return el(
        "div",
        el("b", "hint "),
        el("span", TEACHER_ONLY, cls="label"),
        el("div", cut_end(text, limits.chars), cls="text"),
        cls="hint",
    )


def turn_block(turn: Mapping[str, Any], limit: int) -> Html:
    """One message with its header; a turn after the mistake is marked as in neither context."""
    place = turn["place"]
    labels = [label for label in (turn["author"], turn["tag"]) if label]
    head: list[Html | str] = [
        f"{turn['turn']} · {turn['role']}",
        *(f" · {label}" for label in labels),
    ]
    if place == MISTAKE:
        head += [" ", el("strong", "the mistaken message")]
    if place == APART:
        head += [" ", el("strong", "not a mistake of the model, not trained on by default")]
    if place in (EVIDENCE, LATER):
        head += [
            " ",
            el("span", f"{'evidence, ' if place == EVIDENCE else ''}{NEITHER}", cls="label"),
        ]
    return el(
        "section",
        el("header", head),
        [_block(block, limit) for block in turn["blocks"]],
        cls=f"turn {place}",
    )


def _block(block: Mapping[str, Any], limit: int) -> Html:
    kind = block["type"]
    if kind == "call":
        arguments = cut_end(json.dumps(block["arguments"], ensure_ascii=False, indent=1), limit)
        return el("div", el("b", f"call {block['name']} "), arguments, cls="text")
    if kind == "result":
        images = f" [{len(block['images'])} images were not kept]" if block["images"] else ""
        return el(
            "div",
            el("b", "error result " if block["is_error"] else "result "),
            cut_end(block["text"], limit),
            images,
            cls="text",
        )
    if kind == "text":
        return el("div", cut_end(block["text"], limit), cls="text")
    if kind == "thinking":
        return el(
            "div",
            el("em", "thinking "),
            cut_end(block["text"] or "(not in the log)", limit),
            cls="text",
        )
    return el("div", el("b", f"{kind} "), cut_end(block["text"], limit), cls="text")


def _heat(
    tokens: Sequence[Mapping[str, Any]], probe: Mapping[str, Any], limits: PageLimits
) -> Html:
    """Every token of the target, coloured for both steps.

    The numbers of a token are in its title; a click or the arrow keys show them below.
    """
    shown_tokens = tokens[: limits.tokens]
    left = len(tokens) - len(shown_tokens)
    spans = [_token(token, probe) for token in shown_tokens]
    return el(
        "figure",
        el("figcaption", el("small", f"the same message, token by token ({len(tokens)} tokens)")),
        el(
            "div",
            spans,
            cls="tokens",
            tabindex=0,
            role="group",
            aria_label="tokens; arrow keys read the numbers of each",
        ),
        el("p", f"[{left} more tokens]", cls="quiet") if left else None,
        el("output", aria_live="polite"),
        cls="heat",
    )


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
