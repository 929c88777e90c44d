"""Sessions, turns and sites as plain values, which the terminal, --json and the page share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from composer_replication.core.codec import record_to_json
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Block, Opaque, Session, Text, Thinking, ToolCall, Turn

# The place of a turn relative to a site. Turns after the message ("evidence", "later") are in
# neither context: neither student nor teacher sees them.
CONTEXT, MISTAKE, APART, EVIDENCE, LATER = "context", "mistake", "apart", "evidence", "later"
TEACHER_ONLY = "seen only by the teacher"
NEITHER = "in neither context"


def block_view(block: Block) -> dict[str, Any]:
    """One block as plain values, e.g. {"type": "text", "text": "..."}."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        return {"type": "thinking", "text": block.text}
    if isinstance(block, ToolCall):
        return {"type": "call", "id": block.id, "name": block.name, "arguments": block.arguments}
    if isinstance(block, Opaque):
        return {"type": block.type, "text": block.text}
    return {
        "type": "result",
        "id": block.call_id,
        "is_error": block.is_error,
        "images": list(block.images),
        "text": block.text,
    }


def turn_view(turn: Turn, index: int, *, place: str = CONTEXT) -> dict[str, Any]:
    """One message as plain values."""
    blocks = [block_view(b) for b in turn.blocks]
    return {
        "turn": index,
        "role": turn.role,
        "author": turn.author,
        "tag": turn.tag,
        "place": place,
        "blocks": blocks,
    }


def session_line(session: Session, number: int) -> dict[str, Any]:
    """One session in a list of sessions."""
    return {
        "ordinal": number,
        "id": session.id,
        "turns": len(session.turns),
        "calls": sum(len(t.calls) for t in session.turns),
        "authors": sorted({t.author for _, t in session.assistant_turns() if t.author}),
        "repository": session.repository,
        "started": session.started,
        "file": session.source.file,
    }


def session_view(
    session: Session, sites: Sequence[Site], hints: dict[str, Hint], *, number: int
) -> dict[str, Any]:
    """A session: its turns with their sites and hints, and the context of each segment."""
    turns = [turn_view(turn, i) for i, turn in enumerate(session.turns)]
    for site in sites:
        view = turns[site.turn]
        view["place"] = MISTAKE if site.is_target else view["place"]
        view.setdefault("sites", []).append(_site(site, hints.get(site.id)))
    segments = [
        {"start": s.start, "end": s.end, "context": s.context, "cleared": list(s.cleared)}
        for s in session.segments
    ]
    events = [{"kind": e.kind, "turn": e.turn, "text": e.text} for e in session.events]
    tools = {"origin": session.tools_origin, "names": [t.name for t in session.tools]}
    return {
        **session_line(session, number),
        "copied": session.copied,
        "tools": tools,
        "segments": segments,
        "events": events,
        "requests": session.requests,
        "requests_verified": session.requests_verified,
        "turns_total": len(turns),
        "turns": turns,
    }


def _site(site: Site, hint: Hint | None) -> dict[str, Any]:
    return {
        **record_to_json(site),
        "category": site.category,
        "hint": record_to_json(hint) if hint else None,
    }


def site_view(
    session: Session, site: Site, hint: Hint | None, *, number: int, before: int, after: int
) -> dict[str, Any]:
    """A site: the last turns of its context, the hint, the mistaken message, and later turns.

    `before` and `after` bound the turns shown on each side; those left out are counted. All
    evidence is shown, even if it is further away than `after`.
    """
    context = session.context_indices(site.turn)
    context_shown = context[-before:] if before else ()
    last = max((*site.evidence, site.turn + after))
    later = range(site.turn + 1, min(last + 1, len(session.turns)))
    return {
        "ordinal": number,
        "site": _site(site, hint),
        "session": session.id,
        "left_out_before": len(context) - len(context_shown),
        "before": [turn_view(session.turn_in_view(i, at=site.turn), i) for i in context_shown],
        "hint": hint.text if hint else None,
        "message": turn_view(
            session.turns[site.turn],
            site.turn,
            place=MISTAKE if site.is_target else APART,
        ),
        "after": [
            turn_view(session.turns[i], i, place=EVIDENCE if i in site.evidence else LATER)
            for i in later
        ],
        "left_out_after": len(session.turns) - 1 - site.turn - len(later),
    }
