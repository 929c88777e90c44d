"""Sessions, turns and sites as plain values, which the terminal, --json and the page share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.core.codec import record_to_json
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Block, Opaque, Session, Text, Thinking, ToolCall, Turn
from composer_replication.report.limits import cut_end

# The place of a turn relative to a site. Turns after the message ("evidence", "later") are in
# neither context: neither student nor teacher sees them.
CONTEXT, MISTAKE, APART, EVIDENCE, LATER = "context", "mistake", "apart", "evidence", "later"
TEACHER_ONLY = "seen only by the teacher"
NEITHER = "in neither context"
MAX_VALUES = 100  # of a call's arguments


def block_view(block: Block, *, chars: int | None = None) -> dict[str, Any]:
    """One block as plain values, e.g. {"type": "text", "text": "..."}.

    A text is cut after `chars` characters; "more" counts those that are left out.
    """
    if isinstance(block, ToolCall):
        arguments = block.arguments if chars is None else cut_values(block.arguments, chars)
        return {"type": "call", "id": block.id, "name": block.name, "arguments": arguments}
    text: dict[str, Any] = {"text": block.text[:chars]}
    if chars is not None and len(block.text) > chars:
        text["more"] = len(block.text) - chars
    if isinstance(block, Text):
        return {"type": "text", **text}
    if isinstance(block, Thinking):
        return {"type": "thinking", **text}
    if isinstance(block, Opaque):
        return {"type": block.type, **text}
    return {
        "type": "result",
        "id": block.call_id,
        "is_error": block.is_error,
        "images": list(block.images),
        **text,
    }


def cut_values(value: Any, chars: int) -> Any:
    """The arguments of a call with every text cut, and their number bounded.

    >>> cut_values({"path": "abcdefgh"}, 4)
    {'path': 'abcd [4 more characters]'}
    """
    if isinstance(value, str):
        return cut_end(value, chars)
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MAX_VALUES]
        return {cut_end(str(key), chars): cut_values(inner, chars) for key, inner in pairs}
    if isinstance(value, list):
        return [cut_values(inner, chars) for inner in value[:MAX_VALUES]]
    return value


def turn_view(
    turn: Turn, index: int, *, place: str = CONTEXT, chars: int | None = None
) -> dict[str, Any]:
    """One message as plain values."""
    blocks = [block_view(b, chars=chars) for b in turn.blocks]
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
    session: Session,
    site: Site,
    hint: Hint | None,
    *,
    number: int,
    before: int,
    after: int,
    chars: int | None = None,
) -> dict[str, Any]:
    """A site: the last turns of its context, the hint, the mistaken message, and later turns.

    `before` and `after` bound the turns shown on each side; those left out are counted. All
    evidence is shown, even if it is further away than `after`. Texts are cut after `chars`.
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
        "before": [
            turn_view(session.turn_in_view(i, at=site.turn), i, chars=chars) for i in context_shown
        ],
        "hint": hint.text if hint else None,
        "message": turn_view(
            session.turns[site.turn],
            site.turn,
            place=MISTAKE if site.is_target else APART,
            chars=chars,
        ),
        "after": [
            turn_view(
                session.turns[i],
                i,
                place=EVIDENCE if i in site.evidence else LATER,
                chars=chars,
            )
            for i in later
        ],
        "left_out_after": len(session.turns) - 1 - site.turn - len(later),
    }
