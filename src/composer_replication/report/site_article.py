"""One site of a page: the context, the hint above the mistaken message, the message token by token,
and the later turns in grey."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.core.site import short_name
from composer_replication.report.diffs import diff_block, edit_lines, without_edit
from composer_replication.report.heat import heat
from composer_replication.report.html import Html, el, plural, with_code
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.limits import PageLimits, cut_end
from composer_replication.report.views import APART, EVIDENCE, LATER, MISTAKE, NEITHER, TEACHER_ONLY

NO_HINT = "No hint: no writer knew anything useful, or `recompose hints` has not been run."
NOT_A_MISTAKE = "No hint: this is not counted as a mistake."


def site_name(view: Mapping[str, Any]) -> str:
    """The site's name on the page, e.g. s014."""
    return view.get("name") or f"s{view['ordinal']:03d}"


def lasting_name(view: Mapping[str, Any]) -> str:
    """The site's name on every page, e.g. s7ecd45f6; "" for those of rollouts, which have none."""
    return "" if "name" in view else short_name(view["site"]["id"])


def site_article(
    view: Mapping[str, Any],
    *,
    tokens: Sequence[Mapping[str, Any]] | None,
    probe: Mapping[str, Any] | None,
    limits: PageLimits,
    folder_flags: str,
) -> Html:
    """One site with as many turns around it as `limits` allow; `tokens` are its token table."""
    site, name = view["site"], site_name(view)
    about = f"{site['kind']} · {site['category']}" + (
        f" · found by {site['detector']}" if site["detector"] else ""
    )
    context = view["before"][-limits.turns :] if limits.turns else []
    later = view["after"][: limits.turns]
    before = view["left_out_before"] + len(view["before"]) - len(context)
    after = view["left_out_after"] + len(view["after"]) - len(later)
    short = f"{lasting_name(view)} ".lstrip()
    command = f"recompose show site {short}--full{folder_flags}"
    return el(
        "article",
        el(
            "h3",
            f"{name} {kind_title(site['kind'], cut_end(site.get('tool', ''), 60))} ",
            el("small", about, data_unsearched=True),
        ),
        el("p", el("code", f"{short}{site['id']}"), f" {site.get('repository', '')}", cls="quiet"),
        (
            el("p", el("span", "Shown by: ", data_unsearched=True), cut_end(site["detail"], 300))
            if site.get("detail")
            else None
        ),
        turns_before(context, before, limits),
        hint_box(view["hint"], limits, why=_why_no_hint(view)),
        turn_block(view["message"], limits.message_chars),
        (
            el(
                "p",
                el("a", "What other models answered here", href=f"#{view['answered']}"),
                data_unsearched=True,
            )
            if view.get("answered")
            else None
        ),
        heat(tokens, probe, limits) if tokens and probe else None,
        [turn_block(turn, limits.chars) for turn in later],
        _left_out(after, "later turn", f", {NEITHER}"),
        # `show site` reads imported sites; those of rollouts have names of this page
        (
            el("p", el("code", command), cls="quiet", data_unsearched=True)
            if after and "name" not in view
            else None
        ),
        cls="site",
        id=name,
    )


def _why_no_hint(view: Mapping[str, Any]) -> str:
    return NOT_A_MISTAKE if view["message"]["place"] == APART else NO_HINT


def turns_before(
    turns: Sequence[Mapping[str, Any]], left_out: int, limits: PageLimits
) -> Html | None:
    """The messages directly above one, folded, so that this one is what is seen first."""
    note = _left_out(left_out, "earlier turn", " of its context")
    if not turns:
        return note
    blocks = [turn_block(turn, limits.chars) for turn in turns]
    return el(
        "details",
        el("summary", f"{plural(len(turns), 'message')} before it"),
        note,
        blocks,
        data_unsearched=True,
    )


def _left_out(count: int, noun: str, what: str) -> Html | None:
    if not count:
        return None
    text = f"not shown: {plural(count, noun)}{what}"
    return el("p", text, cls="quiet", data_unsearched=True)


def hint_box(text: str | None, limits: PageLimits, *, why: str = NO_HINT) -> Html:
    """The hint with its label, or `why` there is none."""
    if text is None:
        return el("p", with_code(why), cls="quiet", data_unsearched=True)
    return el(
        "div",
        el("b", "hint ", data_unsearched=True),
        el("span", TEACHER_ONLY, cls="label", data_unsearched=True),
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
        head += [" ", el("strong", "not counted as a mistake, not trained on by default")]
    if place in (EVIDENCE, LATER):
        head += [
            " ",
            el("span", f"{'evidence, ' if place == EVIDENCE else ''}{NEITHER}", cls="label"),
        ]
    return el(
        "section",
        el("header", head, data_unsearched=True),
        [_block(block, limit) for block in turn["blocks"]],
        cls=f"turn {place}",
        data_unsearched=place == LATER,
    )


def _block(block: Mapping[str, Any], limit: int) -> Html:
    kind, more = block["type"], block.get("more", 0)
    if kind == "call":
        return _call(block, limit)
    if kind == "result":
        images = f" [{len(block['images'])} images were not kept]" if block["images"] else ""
        return el(
            "div",
            el("b", "error result " if block["is_error"] else "result ", data_unsearched=True),
            cut_end(block["text"], limit, more=more),
            images,
            cls="text",
        )
    text = cut_end(block["text"] or ("(not in the log)" if kind == "thinking" else ""), limit)
    if more:
        text = cut_end(block["text"], limit, more=more)
    if kind == "text":
        return el("div", text, cls="text")
    name = "em" if kind == "thinking" else "b"
    head = el(name, f"{kind} ", data_unsearched=True)
    return el("div", head, text, cls="text")


def _call(block: Mapping[str, Any], limit: int) -> Html:
    """A call with its arguments; those of an edit as a diff."""
    arguments = block["arguments"]
    lines = edit_lines(arguments) if isinstance(arguments, Mapping) else None
    shown = arguments if lines is None else without_edit(arguments)
    text = cut_end(json.dumps(shown, ensure_ascii=False, indent=1), limit)
    call = el("div", el("b", f"call {block['name']} ", data_unsearched=True), text, cls="text")
    return call if lines is None else el("div", call, diff_block(lines, limit))
