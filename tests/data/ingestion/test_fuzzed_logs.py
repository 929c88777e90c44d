"""Logs damaged by field and by byte: no traceback, no endless loop, no good line lost, everything
counted."""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.log_writer import Call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.config.data_settings import HintsSettings, SitesSettings
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session
from composer_replication.data.hints.context import turn_text
from composer_replication.data.hints.write import write_hints
from composer_replication.data.ingestion.claude_code import FileResult, ingest
from composer_replication.data.ingestion.counts import MAX_DAMAGE_SHOWN
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.sites.find_sites import find_sites
from tests.data.ingestion.reading import lines, new_log

MAX_SECONDS = 20.0
MARK = re.compile(r"mark-\d+-")
Rows = list[dict[str, Any]]


def rich_rows() -> Rows:
    """A log with one of everything: parallel calls, errors, thinking, steering, attachments, a
    subagent, a compaction, a rewind.

    Each text holds a mark of its own, by which it can be found again.
    """
    log = new_log(version="2.1.210")
    log.bare("summary", summary="mark-0- x", leafUuid="gone")
    log.attachment(
        {
            "type": "prompt_snapshot",
            "systemPrompt": ["mark-1- be good"],
            "tools": [{"name": "Read", "schema": {"input_schema": {}}}],
        }
    )
    log.human("mark-2- go")
    log.act(
        "mark-3- two at once",
        Call("Read", {"file_path": "mark-4-.py"}, "mark-5- ok"),
        Call("Bash", {"command": "mark-6-"}, "mark-7-"),
        thinking="mark-8-",
    )
    log.attachment(
        {"type": "hook_additional_context", "content": "mark-9-"},
        rendered="mark-10- <system-reminder>",
    )
    log.act(
        "",
        Call(
            "Edit",
            {"file_path": "a.py", "old_string": "mark-11-", "new_string": "b"},
            "mark-12- String to replace not found",
            is_error=True,
        ),
    )
    log.bare("queue-operation", operation="enqueue", content="mark-13- also the docs")
    log.bare("queue-operation", operation="remove")
    log.record(
        "system",
        subtype="compact_boundary",
        compactMetadata={"preservedMessages": {"uuids": ["x"]}},
    )
    log.record(
        "user", message={"role": "user", "content": "mark-14- summary"}, isCompactSummary=True
    )
    call_id = log.act(
        "mark-15-",
        Call(
            "Task",
            {"description": "d", "prompt": "mark-16-", "subagent_type": "Explore"},
            "mark-18- found",
        ),
    )[0]
    log.progress(
        {
            "type": "agent_progress",
            "agentId": "ab1",
            "message": {"type": "user", "message": {"role": "user", "content": "mark-17-"}},
        },
        call_id,
    )
    log.record(
        "system",
        subtype="microcompact_boundary",
        microcompactMetadata={"compactedToolIds": [call_id]},
    )
    log.snapshot()
    log.human("mark-19- thanks")
    log.act("mark-20- done")
    return log.records


ROWS = rich_rows()


def read_through(folder: Path, data: bytes) -> FileResult:
    """Ingest a file as the command does, store and reread the result, find sites and write hints,
    all within the time limit."""
    start = time.perf_counter()
    path = folder / "log.jsonl"
    path.write_bytes(data)
    (result,) = ingest(find_logs([path]), redactor=Redactor(environ={}, key=b"k"))
    write_sessions(folder / "sessions.jsonl", result.sessions)
    assert tuple(read_sessions(folder / "sessions.jsonl")) == result.sessions
    json.dumps(result.report.to_json())
    for session in result.sessions:
        sites = find_sites(session, settings=SitesSettings())
        write_hints(session, sites, settings=HintsSettings())
        for turn in range(len(session.turns)):
            session.context(turn)
    assert time.perf_counter() - start < MAX_SECONDS
    return result


def marks_of(sessions: tuple[Session, ...]) -> set[str]:
    texts = [turn_text(t) for s in sessions for t in s.turns] + [
        e.text for s in sessions for e in s.events
    ]
    return {mark for text in texts for mark in MARK.findall(text)}


def accounted(result: FileResult, num_lines: int) -> None:
    """Check that every line is a record or counted as damaged, and that each fault is named."""
    raw = result.report.raw
    if result.report.status in ("foreign", "refused"):  # left before the end, and that is said
        assert result.report.why
        return
    assert raw.records + raw.damaged_lines == num_lines
    assert len(raw.damage) >= min(MAX_DAMAGE_SHOWN, raw.damaged_lines)
    assert all(why and line >= 1 for line, why in raw.damage)


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


ODD: tuple[Callable[[], Any], ...] = (
    *(
        lambda v=v: v
        for v in (
            None,
            True,
            False,
            0,
            -1,
            10**30,
            10**400,
            1.5,
            "",
            " ",
            "\0",
            "\ud800",
            "x" * 70_000,
            "mark-2- go",
            [],
            {},
            [[]],
        )
    ),
    *(
        lambda v=v: v
        for v in (
            [None],
            [1, "a", {}],
            {"type": 3},
            {"content": {"text": []}},
            "<system-reminder>",
            "../../etc/passwd",
            "\u202e\x1b[31m",
        )
    ),
    lambda: deep(50),
    lambda: deep(70),
    lambda: deep(400),
)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON tree, e.g. ("message", "content", 0, "id")."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths_in(inner, (*path, key))


def put(row: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    target: Any = row
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value


def marks_in(row: dict[str, Any]) -> set[str]:
    return set(MARK.findall(json.dumps(row)))


PLACES = [(number, path) for number, row in enumerate(ROWS) for path in paths_in(row)]


def test_the_fixture_holds_one_of_everything(tmp_path: Path) -> None:
    result = read_through(tmp_path, lines(ROWS).encode())
    assert result.report.status == "read"
    assert (result.report.raw.damaged_lines, result.report.raw.odd_fields) == (0, 0)
    assert len(result.sessions) == 2
    assert len(PLACES) > 250


@pytest.mark.parametrize("part", range(4))
def test_a_wrong_value_in_any_field_costs_no_more_than_its_own_line(
    tmp_path: Path, part: int
) -> None:
    """Every field of every record once with each of some odd values, drawn by turns; ids are tried
    apart below."""
    all_marks = marks_of(read_through(tmp_path, lines(ROWS).encode()).sessions)
    rng = random.Random(part)
    for place, (number, path) in enumerate(PLACES):
        if place % 4 != part:
            continue
        rows = copy.deepcopy(ROWS)
        put(rows[number], path, rng.choice(ODD)())
        result = read_through(tmp_path, lines(rows).encode("utf-8", "surrogatepass"))
        accounted(result, len(rows))
        if result.report.status == "read":
            lost = all_marks - marks_of(result.sessions) - marks_in(ROWS[number])
            # what was typed in mid-turn stands in one record, and another says what became of it
            assert lost <= ({"mark-13-"} if ROWS[number]["type"] == "queue-operation" else set()), (
                number,
                path,
                rows[number],
            )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_cyclic_parents_and_ids_met_twice_end_in_a_session_or_a_named_refusal(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Any record may name any record as its parent, itself too, and any two may share an id: what
    is left out is counted."""
    rows = copy.deepcopy(ROWS)
    ids = [row["uuid"] for row in rows if "uuid" in row]
    for _ in range(data.draw(st.integers(1, 8))):
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        field = data.draw(
            st.sampled_from(
                ("parentUuid", "parentUuid", "uuid", "message id", "call id", "result id")
            )
        )
        blocks = (
            [b for b in row.get("message", {}).get("content", ()) if isinstance(b, dict)]
            if isinstance(row.get("message"), dict)
            else []
        )
        if field == "message id" and isinstance(row.get("message"), dict):
            row["message"]["id"] = data.draw(st.sampled_from(("msg_1", "msg_2")))
        elif field == "call id":
            for block in blocks:
                if block["type"] == "tool_use":
                    block["id"] = data.draw(st.sampled_from(("c1", "c2")))
        elif field == "result id":
            for block in blocks:
                if block["type"] == "tool_result":
                    block["tool_use_id"] = data.draw(st.sampled_from(("c1", "c2", "c3")))
        elif "uuid" in row and field in row:
            row[field] = data.draw(st.sampled_from([*ids, row["uuid"]]))
    result = read_through(tmp_path, lines(rows).encode())
    accounted(result, len(rows))
    if result.report.status == "read" and not result.report.raw.duplicates:
        all_marks = marks_of(read_through(tmp_path, lines(ROWS).encode()).sessions)
        assert all_marks <= marks_of(result.sessions)


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "utf-8 with a mark": lambda data: b"\xef\xbb\xbf" + data,
    "utf-16": lambda data: data.decode().encode("utf-16"),
    "utf-32, big end first": lambda data: data.decode().encode("utf-32-be"),
    "latin-1 letters": lambda data: data.replace(b"thanks", b"gr\xfc\xdfe"),
    "packed": lambda data: gzip.compress(data),
    "carriage returns only": lambda data: data.replace(b"\n", b"\r"),
    "both line ends": lambda data: data.replace(b"\n", b"\r\n"),
    "NULs between": lambda data: data.replace(b"\n", b"\n\0\0\n"),
    "NULs within": lambda data: data.replace(b'"type"', b'"ty\0pe"', 3),
    "a list of records": lambda data: b"[" + b",".join(data.splitlines()) + b"]",
    "records in one line": lambda data: data.replace(b"\n", b" "),
    "indented": lambda data: b"\n".join(
        json.dumps(json.loads(line), indent=1).encode() for line in data.splitlines()
    ),
    "twice": lambda data: data + data,
    "backwards": lambda data: b"".join(reversed(data.splitlines(keepends=True))),
    "keys twice": lambda data: data.replace(b'{"parentUuid"', b'{"parentUuid": 5, "parentUuid"'),
    "deep": lambda data: data + b'{"type":"user","message":' * 3000 + b"1" + b"}" * 3000 + b"\n",
    "brackets without end": lambda data: data + b"[" * 200_000 + b"\n",
    "a huge number": lambda data: data + b'{"type":"user","uuid":' + b"9" * 100_000 + b"}\n",
    "a huge line": (
        lambda data: data + b'{"type":"user","message":{"content":"' + b"x" * 3_000_000 + b'"}}\n'
    ),
}
WHOLE = (
    "utf-16",
    "utf-32, big end first",
    "packed",
    "carriage returns only",
    "a list of records",
    "records in one line",
    "indented",
)


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_file_in_another_encoding_or_shape_is_read_or_named(tmp_path: Path, name: str) -> None:
    data = lines(ROWS).encode()
    all_marks = marks_of(read_through(tmp_path, data).sessions)
    changed = ENCODINGS[name](data)
    result = read_through(tmp_path, changed)
    if name in WHOLE:
        assert result.report.status in ("foreign", "damaged")
        assert result.report.why
        assert not result.sessions
        return
    assert result.report.status == "read"
    accounted(result, sum(bool(line.strip()) for line in changed.split(b"\n")))
    lost = all_marks - marks_of(result.sessions)
    allowed = {"NULs within": 3, "keys twice": 0, "latin-1 letters": 1, "backwards": 2}
    assert len(lost) <= allowed.get(name, 0), lost
    assert len(lost) <= result.report.raw.damaged_lines + (name == "backwards") * 2


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32), st.booleans())
def test_a_file_cut_anywhere_gives_all_that_stands_before_the_cut(
    tmp_path: Path, seed: int, refill: bool
) -> None:
    data = lines(ROWS).encode()
    cut = seed % len(data)
    # a file system fills a torn block with NULs
    result = read_through(tmp_path, data[:cut] + (b"\0" * 512 if refill else b""))
    before = data[: data.rfind(b"\n", 0, cut) + 1]
    if result.report.status == "read":
        complete = marks_of(read_through(tmp_path, before).sessions) if before else set()
        assert complete <= marks_of(result.sessions)
        assert result.report.raw.damaged_lines <= 1
