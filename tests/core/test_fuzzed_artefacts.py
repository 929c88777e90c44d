"""Our own files, damaged: reading gives what was written or a DataError that names file and line,
never another error or an endless loop."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core.codec import (
    read_anchors,
    read_hints,
    read_preferences,
    read_sessions,
    read_sites,
    record_to_json,
    write_sessions,
)
from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import write_lines
from composer_replication.core.site import Anchor, Hint, Preference, Site
from composer_replication.core.trace import (
    Event,
    Sampled,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)

TURN = Turn(role="assistant", author="m", blocks=(Text("better"),))
SITE = Site(
    session_id="s1",
    turn=1,
    kind="unknown_tool",
    detector="tool_error",
    evidence=(2,),
    call_id="c1",
    tool="x",
)
ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        3,
        10**30,
        1.5,
        "",
        "x",
        "\ud800",
        "\0",
        [],
        {},
        [[]],
        [None],
        [1, "a"],
        [[0, -1]],
        [[5, 2]],
    ),
    *({"type": 3}, {"role": "user"}, [{"text": 1}], {"a": {"b": []}}),
)


SESSION = Session(
    id="s1",
    source=SourceRef(file="a.jsonl", sha256="0", format="claude_code", versions=("2",)),
    turns=(
        Turn(role="user", author="human", blocks=(Text("go"),)),
        Turn(
            role="assistant",
            author="m",
            blocks=(Text("so"), ToolCall("c1", "Read", {"path": "a"})),
            sampled=Sampled((1, 2), (-0.5, -0.1)),
        ),
        Turn(role="tool", author="environment", blocks=(ToolResult("c1", "no", True),)),
    ),
    segments=(Segment(start=0, end=2), Segment(start=2, end=3, context=((0, 2),))),
    tools=(ToolSpec(name="Read", parameters={"type": "object"}),),
    tools_origin="log",
    events=(Event(kind="compaction", turn=1),),
)


def _sessions(path: Path) -> None:
    write_sessions(path, [SESSION])


ARTEFACTS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Iterator[Any]]]] = {
    "sessions": (_sessions, read_sessions),
    "sites": (lambda p: write_lines(p, [record_to_json(SITE)]), read_sites),
    "hints": (
        lambda p: write_lines(
            p,
            [
                record_to_json(
                    Hint(site_id="s1:1:c1", text="t", writer="w", kind="k", knows=("kind",))
                )
            ],
        ),
        read_hints,
    ),
    "preferences": (
        lambda p: write_lines(
            p,
            [
                record_to_json(
                    Preference(
                        session_id="s1", turn=1, chosen=TURN, teachers=("a", "b"), evidence={"t": 1}
                    )
                )
            ],
        ),
        read_preferences,
    ),
    "anchors": (
        lambda p: write_lines(
            p, [record_to_json(Anchor(session_id="s1", turn=1, reason="agreed", teachers=("a",)))]
        ),
        read_anchors,
    ),
}


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(inner, (*path, key))


def _put(rows: list[Any], path: tuple[Any, ...], value: Any) -> None:
    target: Any = rows
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value


def _drop(rows: list[Any], path: tuple[Any, ...]) -> None:
    target: Any = rows
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]


def _read(path: Path, read: Callable[[Path], Iterator[Any]]) -> str:
    """Return "read", or the text of the DataError."""
    try:
        list(read(path))
    except DataError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize("name", ARTEFACTS)
def test_any_field_of_a_wrong_type_or_missing_is_named_or_harmless(
    tmp_path: Path, name: str
) -> None:
    write, read = ARTEFACTS[name]
    path, rng = tmp_path / f"{name}.jsonl", random.Random(3)
    write(path)
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    refused = 0
    for place in (p for p in _paths(rows) if p):
        for change in (*rng.sample(ODD, 4), "drop"):
            changed = copy.deepcopy(rows)
            if change == "drop":
                _drop(changed, place)
            else:
                _put(changed, place, change)
            path.write_text("".join(json.dumps(row) + "\n" for row in changed), "utf-8")
            outcome = _read(path, read)
            assert outcome == "read" or path.name in outcome, (place, change, outcome)
            refused += outcome != "read"
    assert refused


@pytest.mark.parametrize("name", ARTEFACTS)
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) * 2 // 3],
        lambda data: b"\xff\xfe" + data,
        lambda data: data.decode().encode("utf-16"),
        lambda data: b"\0" * 64 + data,
        lambda data: data + b"[" * 100_000 + b"\n",
        lambda data: data + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n",
        lambda data: data + b"9" * 10_000 + b"\n",
        lambda data: data + b"NaN\n",
        lambda data: data + b'"text"\n',
    ],
)
def test_a_damaged_file_is_refused_by_file_and_line(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes]
) -> None:
    write, read = ARTEFACTS[name]
    path = tmp_path / f"{name}.jsonl"
    write(path)
    path.write_bytes(change(path.read_bytes()))
    outcome = _read(path, read)
    assert path.name in outcome
    assert outcome != "read"
