"""`recompose show example|pair`: tokens with their loss, hints where the teacher sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.text import Text

from composer_replication.cli.build_text import context_text
from composer_replication.cli.forgotten import load_shown
from composer_replication.cli.job import Job
from composer_replication.cli.lookup import find_index, ordinal
from composer_replication.cli.render_terminal import hint_panel, mask_text
from composer_replication.cli.student_tokenizer import built_tokenizer
from composer_replication.tokens.example import PreferencePair, TrainingExample

QUIET_TOKENS = 60  # of a message without loss, shown unless --full
LEGEND = {
    True: "green = lm_ce, yellow = hint target",
    False: "[lm_ce], {hint target}, | between tokens",
}


def show_example(job: Job, wanted: str, *, full: bool) -> int:
    """One example, or the list of them."""
    examples = load_shown(job).examples
    job.warn_stale(job.examples.name)
    if not wanted:
        rows = [
            (ordinal(i, letter="e"), len(e.ids), len(e.lm_spans), len(e.hints), e.id)
            for i, e in enumerate(examples, 1)
        ]
        job.screen.table(rows, head=("", "tokens", "lm_ce spans", "hints", "id"))
        listed = [
            {"ordinal": i, "id": e.id, "tokens": len(e.ids), "hints": len(e.hints)}
            for i, e in enumerate(examples, 1)
        ]
        job.screen.result({"examples": listed})
        return 0
    index = find_index(
        wanted, [e.id for e in examples], noun="example", file=job.examples, command=job.command
    )
    view = example_view(
        examples[index],
        built_tokenizer(job.examples, build_command=job.command("build")),
        number=index + 1,
    )
    for part in example_parts(view, colour=job.screen.colour, full=full):
        job.screen.show(part)
    job.screen.result(view)
    return 0


def example_view(example: TrainingExample, tokenizer: Any, *, number: int) -> dict[str, Any]:
    """An example as plain values: tokens with text and loss, messages, and views with hints."""
    loss = ["none"] * len(example.ids)
    for a, b in example.lm_spans:
        loss[a:b] = ["lm_ce"] * (b - a)
    for view in example.hints:
        for a, b in view.spans:
            loss[a:b] = ["hint"] * (b - a)
    tokens = [
        {"id": i, "text": tokenizer.decode([i]), "loss": kind}
        for i, kind in zip(example.ids, loss, strict=True)
    ]
    turns = [
        {"turn": t.turn, "role": t.role, "author": t.author, "start": t.start, "end": t.end}
        for t in example.turns
    ]
    hints = [
        {
            "site": v.site_id,
            "kind": v.kind,
            "at": v.at,
            "span": v.span,
            "rendering": v.rendering,
            "position": v.position,
            "sites": v.site_ids,
            "spans": v.spans,
            "context": asdict(v.context) if v.context else None,
            "text": tokenizer.decode(list(v.hint_ids)),
        }
        for v in example.hints
    ]
    counts = {kind: loss.count(kind) for kind in ("lm_ce", "hint", "none")}
    return {
        "ordinal": number,
        "id": example.id,
        "session": example.session_id,
        "origin": example.origin,
        "counts": counts,
        "turns": turns,
        "hints": hints,
        "tokens": tokens,
    }


def example_parts(view: dict[str, Any], *, colour: bool, full: bool) -> Iterator[Any]:
    """Yield the parts of an example: messages with their losses, and hints above their messages."""
    counts = view["counts"]
    counted = (
        f"{len(view['tokens'])} tokens: {counts['lm_ce']} in lm_ce, {counts['hint']} hint targets,"
        f" {counts['none']} without loss"
    )
    yield Text(
        f"{ordinal(view['ordinal'], letter='e')}  {view['id']}  origin {view['origin']}\n"
        f"{counted}   ({LEGEND[colour]})",
        style="bold",
    )
    above = None
    end = view["turns"][0]["start"] if view["turns"] else len(view["tokens"])
    preamble = {"turn": "-", "role": "preamble", "author": None, "start": 0, "end": end}
    for turn in [preamble] * bool(end) + view["turns"]:
        start, behind = turn["start"], turn["end"]
        yield from _hints_at(view, range(start, min(start + 1, behind)))
        if isinstance(above, int) and turn["turn"] > above + 1:
            yield Text(
                f"(turns {above + 1} to {turn['turn'] - 1} of the session are not in this window)",
                style="dim",
            )
        above = turn["turn"]
        yield Text(
            f"[{turn['turn']}] {turn['role']}" + (f" · {turn['author']}" if turn["author"] else ""),
            style="dim",
        )
        tokens = view["tokens"][start:behind]
        quiet = all(t["loss"] == "none" for t in tokens)
        shown = tokens[:QUIET_TOKENS] if quiet and not full else tokens
        yield mask_text([(t["text"], t["loss"]) for t in shown], colour=colour)
        if len(shown) < len(tokens):
            yield Text(
                f"... {len(tokens) - len(shown)} more tokens without loss (--full)", style="dim"
            )
        yield from _hints_at(view, range(start + 1, behind))


def _hints_at(view: dict[str, Any], places: range) -> Iterator[Any]:
    """The hints inserted at one of these tokens: inside a message they stand at its end, and are
    shown below it."""
    for hint in view["hints"]:
        if hint["at"] in places:
            yield hint_panel(hint["text"])
            if hint["context"]:
                yield Text(context_text(hint["context"]), style="dim")


def show_pair(job: Job, wanted: str, *, full: bool) -> int:
    """One pair, or the list of them."""
    pairs = load_shown(job).pairs
    job.warn_stale(job.examples.name)
    if not wanted:
        job.screen.table(
            [(ordinal(i, letter="p"), p.site_id or "", p.id) for i, p in enumerate(pairs, 1)],
            head=("", "site", "id"),
        )
        listed = [{"ordinal": i, "id": p.id, "site": p.site_id} for i, p in enumerate(pairs, 1)]
        job.screen.result({"pairs": listed})
        return 0
    ids = [p.id for p in pairs]
    pair = pairs[find_index(wanted, ids, noun="pair", file=job.examples, command=job.command)]
    view = pair_view(pair, built_tokenizer(job.examples, build_command=job.command("build")))
    for title, style in (("prefix", "dim"), ("chosen", "green"), ("rejected", "red")):
        is_cut = title == "prefix" and not full
        job.screen.line(title, style="bold")
        job.screen.line(view[title][-600:] if is_cut else view[title], style=style)
    job.screen.result(view)
    return 0


def pair_view(pair: PreferencePair, tokenizer: Any) -> dict[str, Any]:
    """A pair as plain values."""
    texts = {
        name: tokenizer.decode(list(getattr(pair, f"{name}_ids")))
        for name in ("prefix", "chosen", "rejected")
    }
    return {"id": pair.id, "session": pair.session_id, "site": pair.site_id, **texts}
