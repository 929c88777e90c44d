"""Render the views of sessions, sites and examples in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.panel import Panel
from rich.text import Text

from composer_replication.core.harmless import harmless
from composer_replication.core.site import short_name
from composer_replication.report.diffs import edit_lines, without_edit
from composer_replication.report.html import plural
from composer_replication.report.kind_titles import kind_title
from composer_replication.report.views import APART, EVIDENCE, LATER, MISTAKE, NEITHER, TEACHER_ONLY

ROLE_STYLE = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
MAX_LINES, MAX_CHARS = 14, 1400
# Loss of a token -> style, and the opening and closing marker that replace it without colour.
MASK_STYLE = {
    "lm_ce": ("black on green", "[", "]"),
    "hint": ("black on yellow", "{", "}"),
    "none": ("dim", "", ""),
}


def shorten(text: str, *, full: bool) -> str:
    """Harmless text, shortened unless `full`, with the number of characters left out."""
    clean = harmless(text)
    if full or (len(clean) <= MAX_CHARS and clean.count("\n") < MAX_LINES):
        return clean
    cut = "\n".join(clean[:MAX_CHARS].split("\n")[:MAX_LINES])
    return f"{cut}\n... {len(clean) - len(cut)} more characters (--full)"


def _arguments_text(arguments: Any) -> str:
    """The arguments of a call; those of an edit as a diff."""
    lines = edit_lines(arguments) if isinstance(arguments, Mapping) else None
    shown = arguments if lines is None else without_edit(arguments)
    return "\n".join([json.dumps(shown, ensure_ascii=False, indent=1), *(lines or ())])


def block_text(block: Mapping[str, Any], *, full: bool) -> Text:
    """One block of a message."""
    kind = block["type"]
    if kind == "text":
        return Text(shorten(block["text"], full=full))
    if kind == "thinking":
        return Text(
            shorten(f"(thinking) {block['text'] or 'not in the log'}", full=full), style="italic"
        )
    if kind == "call":
        arguments = _arguments_text(block["arguments"])
        return Text.assemble(
            ("call ", "bold"),
            (harmless(f"{block['name']} "), "bold"),
            shorten(arguments, full=full),
            (harmless(f"  {block['id']}"), "dim"),
        )
    if kind == "result":
        head = "error result " if block["is_error"] else "result "
        images = f" [{len(block['images'])} image(s) not kept]" if block["images"] else ""
        return Text.assemble(
            (head, "bold red" if block["is_error"] else "bold"),
            shorten(block["text"] + images, full=full),
            (harmless(f"  {block['id']}"), "dim"),
        )
    return Text(shorten(f"({kind}) {block['text']}", full=full), style="dim")


def render_turn(turn: Mapping[str, Any], *, full: bool, note: str = "") -> Text:
    """One message with its header; later turns are greyed."""
    grey = turn["place"] in (EVIDENCE, LATER)
    labels = [label for label in (turn["author"], turn["tag"], note) if label]
    if turn["place"] == EVIDENCE:
        labels.append("evidence")
    if grey:
        labels.append(NEITHER)
    if turn["place"] == MISTAKE:
        labels.append("the mistaken message")
    if turn["place"] == APART:
        labels.append("not a mistake, never trained on by default")
    style = "dim" if grey else f"bold {ROLE_STYLE[turn['role']]}"
    text = Text(
        harmless(f"[{turn['turn']}] {turn['role']}" + "".join(f" · {label}" for label in labels))
        + "\n",
        style=style,
    )
    body = Text("\n").join(block_text(block, full=full) for block in turn["blocks"])
    text.append_text(body)
    if grey:
        text.stylize("dim")
    text.append("\n")
    return text


def decision_text(decision: Mapping[str, Any] | None) -> str:
    """The wrong part of the mistaken call, and the texts that count as right there.

    >>> decision_text({"part": "tool", "wrong": "Edit", "right": ["Read"]})
    'wrong: the tool Edit · right: Read'
    >>> decision_text({"part": "value", "wrong": "rg", "argument": "command", "occurrence": 1})
    'wrong: rg (place 2 of this text) in command · right: not known'
    """
    if decision is None:
        return "wrong: not known · right: not known"
    part, wrong = decision["part"], decision.get("wrong", "")
    argument, occurrence = decision.get("argument", ""), decision.get("occurrence", 0)
    if part == "tool":
        what = f"the tool {wrong}"
    elif part == "argument":
        what = f"the argument {wrong}" if wrong else "an argument is missing"
    elif part == "value":
        place = f" (place {occurrence + 1} of this text)" if occurrence else ""
        what = f"{wrong}{place} in {argument}" if wrong else f"the value of {argument}"
    else:
        what = "the whole call"
    return f"wrong: {what} · right: {', '.join(decision.get('right', ())) or 'not known'}"


def hint_panel(hint: str | None, *, decision: str = "") -> Panel:
    """The hint above the mistaken message, and its decision as `decision_text` writes it."""
    none = (
        "no hint: not a mistake, or no writer had anything to say, or `recompose hints` has not run"
    )
    body = Text(harmless(hint)) if hint else Text(none, style="dim")
    if decision:
        body.append(f"\n{harmless(decision)}", style="dim")
    return Panel(body, title=f"hint · {TEACHER_ONLY}", title_align="left", border_style="yellow")


def _site_hint(site: Mapping[str, Any]) -> Panel:
    hint = site["hint"]
    if hint is None:
        return hint_panel(None)
    return hint_panel(hint["text"], decision=decision_text(hint.get("decision")))


def site_parts(view: Mapping[str, Any], *, full: bool) -> Iterator[Any]:
    """A site from top to bottom."""
    site = view["site"]
    yield Text(
        harmless(
            f"{short_name(site['id'])}  {site['id']}\n{kind_title(site['kind'], site['tool'])}\n"
            f"{site['kind']} · {site['category']} · found by {site['detector']}"
        ),
        style="bold",
    )
    if site.get("detail"):
        yield Text(shorten(site["detail"], full=full), style="red")
    if view["left_out_before"]:
        yield Text(
            f"... {plural(view['left_out_before'], 'earlier turn')} in context (--before N)\n",
            style="dim",
        )
    for turn in view["before"]:
        yield render_turn(turn, full=full)
    yield _site_hint(site)
    yield render_turn(view["message"], full=full)
    for turn in view["after"]:
        yield render_turn(turn, full=full)
    if view["left_out_after"]:
        left = plural(view["left_out_after"], "later turn")
        yield Text(f"... {left}, {NEITHER} (--after N)", style="dim")


def session_parts(view: Mapping[str, Any], *, full: bool) -> Iterator[Any]:
    """A session from top to bottom, hints above the messages they belong to."""
    checked = (
        f" · context verified {view['requests_verified']} of {view['requests']}"
        if view["requests"]
        else ""
    )
    turns = plural(view["turns_total"], "turn")
    facts = f"{view['file']} · {turns} · tools {view['tools']['origin']}{checked}"
    yield Text(harmless(f"{view['id']}\n{facts}"), style="bold")
    starts = {s["start"]: s for s in view["segments"] if s["start"]}
    for turn in view["turns"]:
        if turn["turn"] in starts:
            num_kept = sum(b - a for a, b in starts[turn["turn"]]["context"])
            yield Text(
                f"--- context rewritten here: {num_kept} earlier turns stay in view ---",
                style="magenta",
            )
        for site in turn.get("sites", ()):
            if site["hint"] is not None:
                yield _site_hint(site)
        notes = ", ".join(
            f"{kind_title(site['kind'], site['tool'])} · {site['kind']} ({site['category']})"
            for site in turn.get("sites", ())
        )
        yield render_turn(turn, full=full, note=notes)


def mask_text(pieces: Sequence[tuple[str, str]], *, colour: bool) -> Text:
    """Render tokens by their loss: coloured, or without colour with markers around each run.

    >>> mask_text([("a", "none"), ("b", "lm_ce"), ("c", "lm_ce")], colour=False).plain
    'a[b|c]'
    """
    text = Text()
    previous = "none"
    for number, (piece, loss) in enumerate(pieces):
        style, opening, _ = MASK_STYLE[loss]
        if loss != "none" and number % 2:
            style += " bold underline"  # every other token, so that neighbours are distinguishable
        if not colour:
            if loss != previous:
                text.append(MASK_STYLE[previous][2] + opening)
            elif loss != "none":
                text.append("|")
        text.append(harmless(piece), style=style if colour else "")
        previous = loss
    if not colour:
        text.append(MASK_STYLE[previous][2])
    return text
