"""Small sessions built by hand, in about as many words as a log has records."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.site import Site
from composer_replication.core.trace import (
    ENVIRONMENT,
    HUMAN,
    Block,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.sites.find_sites import find_sites

MODEL = "claude-opus-4-5"


def human(text: str) -> Turn:
    return Turn(role="user", author=HUMAN, blocks=(Text(text),))


def calls(*parts: tuple[str, str, dict[str, Any]] | str, author: str = MODEL) -> Turn:
    """An assistant message: texts and calls (id, tool, arguments)."""
    blocks: list[Block] = [Text(m) if isinstance(m, str) else ToolCall(*m) for m in parts]
    return Turn(role="assistant", author=author, blocks=tuple(blocks))


def bash(call_id: str, command: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    return call_id, "Bash", {"command": command, **more}


def results(*contents: tuple[str, str] | tuple[str, str, bool | None]) -> Turn:
    """A tool message: (call id, text) or (call id, text, is_error)."""
    return Turn(
        role="tool",
        author=ENVIRONMENT,
        blocks=tuple(ToolResult(g[0], g[1], g[2] if len(g) > 2 else None) for g in contents),
    )


def failed(call_id: str, text: str) -> Turn:
    return results((call_id, text, True))


def session(*turns: Turn, **more: Any) -> Session:
    fields: dict[str, Any] = {
        "id": "s1",
        "source": SourceRef(file="a.jsonl"),
        "segments": (Segment(start=0, end=len(turns)),),
        **more,
    }
    return Session(turns=turns, **fields)


def one_call(
    tool: str, arguments: dict[str, Any], text: str, error: bool | None = True, **more: Any
) -> Session:
    """human · the call c1 · its result · an answer."""
    return session(
        human("do it"),
        calls(("c1", tool, arguments)),
        results(("c1", text, error)),
        calls("done"),
        **more,
    )


def find(log: Session, **settings: Any) -> list[Site]:
    return find_sites(log, settings=SitesSettings(**settings))


def only(log: Session, **settings: Any) -> Site:
    """Return the only site of a session."""
    sites = find(log, **settings)
    assert len(sites) == 1, sites
    return sites[0]


def random_segments(num_turns: int, random: Any) -> tuple[Segment, ...]:
    """Cut a session at random turns into segments, each with random earlier ranges in view; call
    ids `c0` ... may be cleared."""
    cuts = sorted(
        {0, num_turns, *(random.randrange(num_turns + 1) for _ in range(random.choice([0, 1, 3])))}
    )
    segments: list[Segment] = []
    for start, end in pairwise(cuts):
        edges = sorted({random.randrange(start + 1) for _ in range(random.choice([0, 2, 4]))})
        context = tuple(zip(edges[::2], edges[1::2], strict=False))
        cleared = tuple(f"c{random.randrange(num_turns)}" for _ in range(random.choice([0, 0, 2])))
        segments.append(Segment(start=start, end=end, context=context, cleared=cleared))
    return tuple(segments)
