"""Random sessions for property tests: valid by construction, odd in content."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from composer_replication.core.trace import (
    Block,
    Event,
    Opaque,
    Parent,
    Sampled,
    Segment,
    Session,
    SourceRef,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)

texts = st.text(max_size=20) | st.sampled_from(
    ["\ud800", "\u2028", "\x00", "]", '["x"]', "é", "{}"]
)
names = st.text(alphabet="abcdef", min_size=1, max_size=3)
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(texts, values, max_size=3)


@st.composite
def turns(draw: st.DrawFn, calls: list[str]) -> Turn:
    """Draw a turn; `calls` collects the ids of the calls drawn so far."""
    role = draw(st.sampled_from(("system", "user", "assistant", "tool")))
    blocks: list[Block] = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from("xhcro"))
        if kind == "c":
            calls.append(
                draw(st.sampled_from(calls))
                if calls and draw(st.booleans())
                else f"toolu_{len(calls)}"
            )
            blocks.append(ToolCall(calls[-1], draw(names), draw(arguments)))
        elif kind == "r":
            call_id = draw(st.sampled_from([*calls, "unknown", "0"]))
            images = tuple(draw(st.lists(st.sampled_from(("image/png", "")), max_size=2)))
            blocks.append(ToolResult(call_id, draw(texts), draw(st.none() | st.booleans()), images))
        else:
            word = draw(texts)
            blocks.append(
                {"x": Text(word), "h": Thinking(word), "o": Opaque(draw(texts), word)}[kind]
            )
    sampled = None
    if draw(st.booleans()):
        ids = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
        sampled = Sampled(ids, tuple(-0.5 * i for i in ids))
    author = draw(st.none() | st.sampled_from(("human", "harness", "environment", "m1")) | texts)
    return Turn(
        role=role,
        author=author,
        blocks=tuple(blocks),
        tag=draw(texts),
        context_tokens=draw(st.integers(0, 9)),
        sampled=sampled,
    )


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Draw a session with segments, tools, events and everything else that a header can hold."""
    calls: list[str] = []
    drawn_turns = tuple(draw(turns(calls)) for _ in range(draw(st.integers(0, 8))))
    cuts = (
        sorted(draw(st.sets(st.integers(1, max(1, len(drawn_turns) - 1)), max_size=2)))
        if len(drawn_turns) > 1
        else []
    )
    bounds = [0, *cuts, len(drawn_turns)]
    segments: list[Segment] = []
    for start, end in pairwise(bounds):
        visible_turns = (
            sorted(draw(st.sets(st.integers(0, start - 1), max_size=3))) if start else []
        )
        cleared = tuple(draw(st.lists(st.sampled_from(calls), max_size=2))) if calls else ()
        segments.append(
            Segment(
                start=start,
                end=end,
                context=tuple((k, k + 1) for k in visible_turns),
                cleared=cleared,
            )
        )
    event = st.builds(
        Event,
        kind=names,
        turn=st.integers(0, len(drawn_turns)),
        call_id=st.none() | names,
        text=texts,
    )
    return Session(
        id=draw(names),
        source=SourceRef(
            file=draw(texts),
            sha256=draw(texts),
            format=draw(texts),
            versions=tuple(draw(st.lists(texts, max_size=2))),
        ),
        turns=drawn_turns,
        segments=tuple(segments),
        tools=tuple(
            draw(
                st.lists(
                    st.builds(ToolSpec, name=names, description=texts, parameters=arguments),
                    max_size=2,
                )
            )
        ),
        tools_origin=draw(st.sampled_from(("log", "reconstructed", "none"))),
        events=tuple(draw(st.lists(event, max_size=2))),
        parent=draw(st.none() | st.builds(Parent, session_id=names, call_id=st.none() | names)),
        copied=draw(st.integers(0, len(drawn_turns))),
        origin=draw(st.sampled_from(("trace", "student"))),
        cwd=draw(texts),
        repository=draw(texts),
        started=draw(texts),
        ended=draw(texts),
        outcome=draw(st.none() | st.floats(0, 1)),
    )
