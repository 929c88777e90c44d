"""Logs that are cut, binary, foreign, huge or absurd: each fault is counted with file and line, no
good session is lost, nothing crashes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from examples.log_writer import Call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.trace import Opaque
from composer_replication.data.ingestion import conversation
from composer_replication.data.ingestion.lines import LineReader
from composer_replication.data.ingestion.log_records import BadRecord, decode, is_deep
from tests.data.ingestion.reading import lines, new_log, read_all, read_text, shape

GOOD = ["u:go", "a:Read", "t:ok", "a:done"]


def good_rows() -> list[dict]:
    log = new_log()
    log.human("go")
    log.act("", Call("Read", {"file_path": "a.py"}, "ok"))
    log.act("done")
    return log.records


def good_lines() -> list[bytes]:
    return lines(good_rows()).encode().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"type":"user","uuid":"x","message":{"content":"\xff\xfe"}}\n', "not UTF-8"),
        (
            b'{"type":"user","uuid":"x","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
            "nested too deep",
        ),
        (
            b'{"type":"user","uuid":"x","message":{"content":[{"type":"tool_use","input":{"a":NaN}}]}}\n',
            "NaN is not JSON",
        ),
        (
            b'{"type":"user","uuid":"x","message":{"content":[{"type":"tool_use","input":{"a":1e999}}]}}\n',
            "not finite",
        ),
        (b'{"type":"user","uuid":"x","message":"text"}\n', "wrong type"),
        (b'{"type":"user","uuid":5,"message":null}\n', "wrong type"),
        (b'{"type":7}\n', "wrong type"),
        (b"[1,2]\n", "not a JSON object"),
        (b"garbage\n", "not JSON"),
        (b'{"type":"user","uuid"\n', "not JSON"),
        (b"\x00\x01\x02\n", "not JSON"),
    ],
)
def test_a_bad_line_in_the_middle_costs_that_line_only(
    tmp_path: Path, line: bytes, why: str
) -> None:
    first, *rest = good_lines()
    result = read_text(tmp_path, b"".join([first, b"\n", line, *rest]))
    assert shape(result.sessions[0]) == GOOD
    report = result.report.to_json()
    assert (report["status"], report["damaged_lines"], report["records"]) == ("read", 1, 4)
    assert report["damage"][0]["line"] == 3
    assert why in report["damage"][0]["why"]


@pytest.mark.parametrize(
    ("extra", "left_out"),
    [
        ({"version": 3}, "version"),
        ({"timestamp": {"t": 1}}, "timestamp"),
        ({"cwd": ["x"]}, "cwd"),
        ({"isSidechain": "no"}, "isSidechain"),
        ({"parentUuid": 4}, "parentUuid"),
    ],
)
def test_a_field_of_a_wrong_type_is_left_out_and_reported(
    tmp_path: Path, extra: dict, left_out: str
) -> None:
    rows = good_rows()
    rows[0] |= extra
    result = read_text(tmp_path, lines(rows))
    assert shape(result.sessions[0]) == GOOD
    assert result.report.raw.damage == [(1, f"wrong type, left out: {left_out}")]


def test_odd_usage_does_not_cost_the_message(tmp_path: Path) -> None:
    rows = good_rows()
    rows[1]["message"]["usage"] = {"input_tokens": "many"}
    result = read_text(tmp_path, lines(rows))
    assert shape(result.sessions[0]) == GOOD
    assert result.report.raw.damage == [(2, "wrong type, left out: message.usage")]


def test_half_of_a_surrogate_pair_and_long_integers_are_kept(tmp_path: Path) -> None:
    rows = good_rows()
    text = json.dumps(rows[0]).replace('"go"', '"cut \\ud83d here"')
    big = {"n": 10**40}
    rows[1]["message"]["content"][0]["input"] = big
    result = read_text(tmp_path, text + "\n" + lines(rows[1:]))
    session = result.sessions[0]
    assert session.turns[0].text == "cut \ud83d here"
    assert dict(session.turns[1].calls[0].arguments) == big
    write_sessions(tmp_path / "s.jsonl", [session])
    assert list(read_sessions(tmp_path / "s.jsonl")) == [session]


def test_unknown_records_attachments_and_blocks_pass_and_are_counted(tmp_path: Path) -> None:
    log = new_log(version="2.9.0")
    log.human("go")
    log.record("hologram", payload=1)
    log.attachment({"type": "smell", "strength": 3})
    log.attachment({"type": "sound"}, rendered="<system-reminder>beep</system-reminder>")
    log.assistant(
        [
            {
                "type": "server_tool_use",
                "id": "s1",
                "name": "web_search",
                "input": {"query": "tides"},
                "content": {"odd": True},
            }
        ]
    )
    log.act("done")
    result = read_text(tmp_path, log.text())
    report = result.report.to_json()
    assert report["unknown_types"] == {"hologram": 1}
    assert report["unknown_attachments"] == {"smell": 1, "sound": 1}
    assert report["opaque_blocks"] == {"server_tool_use": 1}
    session = result.sessions[0]
    assert shape(session) == ["u:go", "u:<system-reminder>beep</system-reminder>", "a:", "a:done"]
    block = session.turns[2].blocks[0]
    assert isinstance(block, Opaque)
    assert json.loads(block.text)["input"] == {"query": "tides"}
    assert len(session.segments) == 1  # the chain runs through records of unknown types


def test_a_call_with_arguments_too_deep_to_walk_is_kept_apart(tmp_path: Path) -> None:
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    rows = good_rows()
    rows[1]["message"]["content"][0]["input"] = {"a": deep}
    result = read_text(tmp_path, lines(rows))
    assert [t.role for t in result.sessions[0].turns] == ["user", "assistant", "tool", "assistant"]
    assert result.sessions[0].turns[1].blocks == (Opaque("tool_use", ""),)
    assert result.report.raw.damage == [(2, "a call without id, name or usable arguments")]
    assert is_deep({"a": deep})
    assert not is_deep({"a": [1, {"b": 2}]})


def test_records_without_what_they_need_are_named_by_line(tmp_path: Path) -> None:
    rows = [
        *good_rows(),
        {"type": "user", "uuid": "n1", "sessionId": "s"},
        {"type": "assistant", "uuid": "n2", "sessionId": "s"},
    ]
    rows.append(
        {
            "type": "user",
            "uuid": "n3",
            "message": {"content": [{"type": "tool_result", "content": "to nobody"}]},
        }
    )
    raw = read_text(tmp_path, lines(rows)).report.raw
    assert raw.damage == [
        (5, "a user record without a message"),
        (6, "an assistant record without a message"),
        (7, "a result that names no call"),
    ]


def test_a_truncated_last_line_is_told_from_damage_inside(tmp_path: Path) -> None:
    text = b"".join(good_lines())
    result = read_text(tmp_path, text[:-30])
    assert shape(result.sessions[0]) == GOOD[:-1]
    assert result.report.raw.damage == [(4, "cut short at the end of the file")]
    assert read_text(tmp_path, text.rstrip(b"\n")).report.raw.damaged_lines == 0


@pytest.mark.parametrize(
    ("content", "status", "why"),
    [
        (b"", "empty", "no line"),
        (b"\n \n", "empty", "no line"),
        (os.urandom(50_000) + b"\0", "foreign", "binary"),
        (b'{\n "sessionId": "x",\n "messages": []\n}\n', "foreign", "not JSON lines"),
        (
            b'{"timestamp":"t","type":"session_meta","payload":{}}\n' * 300,
            "foreign",
            "not of Claude Code",
        ),
        (b'{"sessionId":"g","messages":[{"type":"gemini"}]}', "foreign", "not of Claude Code"),
        (b'{"type":"user","uu', "damaged", "cut short"),
    ],
)
def test_files_that_hold_no_session_say_what_they_are(
    tmp_path: Path, content: bytes, status: str, why: str
) -> None:
    result = read_text(tmp_path, content)
    assert (result.report.status, result.sessions) == (status, ())
    assert why in result.report.why
    assert result.report.to_json()["tool_use"] == 0


def test_other_files_of_a_folder_are_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(os.urandom(4000))
    (tmp_path / "b.jsonl").write_bytes(b"".join(good_lines()))
    (tmp_path / "c.jsonl").write_text("{}", "utf-8")
    (tmp_path / "d.jsonl").symlink_to(tmp_path / "gone")
    statuses = {r.report.file: r.report.status for r in read_all(tmp_path)}
    assert statuses == {
        "a.jsonl": "foreign",
        "b.jsonl": "read",
        "c.jsonl": "foreign",
        "d.jsonl": "unreadable",
    }


def test_a_file_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    from composer_replication.data.ingestion.claude_code import ingest
    from composer_replication.data.ingestion.find_logs import LogFile

    logs = [
        LogFile(path=tmp_path / "gone.jsonl", name="gone.jsonl", num_bytes=5),
        LogFile(path=tmp_path, name="folder", num_bytes=0),
    ]
    reports = [r.report for r in ingest(logs)]
    assert [r.status for r in reports] == ["unreadable", "unreadable"]
    assert "No such file" in reports[0].why


def test_a_log_that_only_rewinds_is_refused_instead_of_growing_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "MAX_STRETCHES", 20)
    log = new_log()
    root = log.human("root")
    for n in range(30):
        log.human(f"again {n}", parent=root)
    result = read_text(tmp_path, log.text())
    assert result.report.status == "refused"
    assert "more than 20" in result.report.why


def test_a_long_line_is_skipped_and_the_rest_is_read(tmp_path: Path) -> None:
    first, *rest = good_lines()
    result = read_text(
        tmp_path, b"".join([first, b"x" * 70_000 + b"\n", *rest]), max_line_bytes=60_000
    )
    assert shape(result.sessions[0]) == GOOD
    assert [line for line, _ in result.report.raw.damage] == [2]
    last = read_text(tmp_path, b"".join(good_lines()) + b"y" * 70_000, max_line_bytes=60_000)
    assert shape(last.sessions[0]) == GOOD
    assert last.report.raw.damage[0][0] == 5


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="peak memory of a process is read from /proc, which only Linux has",
)
def test_a_line_of_200_mb_is_never_held(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    first, *rest = good_lines()
    with path.open("wb") as stream:
        stream.write(first)
        for _ in range(200):
            stream.write(b"x" * 2**20)
        stream.write(b"\n")
        stream.writelines(rest)
    code = (
        "import re,sys;from pathlib import Path\n"
        "from composer_replication.data.ingestion.claude_code import ingest\n"
        "from composer_replication.data.ingestion.find_logs import find_logs\n"
        "status=Path('/proc/self/status')\n"
        "peak=lambda: int(re.search(r'VmHWM:\\s*(\\d+)', status.read_text())[1])\n"
        "before=peak()\n"
        "r=next(ingest(find_logs([sys.argv[1]])))\n"
        "print(r.report.raw.damage, len(r.sessions[0].turns), peak()-before)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    damage, num_turns, kilobytes = completed.stdout.rsplit(" ", 2)
    assert (damage, num_turns) == ("[(2, 'longer than 64 MiB')]", "4")
    assert int(kilobytes) < 170_000  # at most the limit of 64 MiB and the copy that joining makes


def test_lines_are_numbered_as_an_editor_numbers_them(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a\n\nb\r\n   \nlonger than ten\nc")
    reader = LineReader(path, 10, hashed=False)
    assert list(reader) == [(1, b"a\n"), (3, b"b\r\n"), (5, None), (6, b"c")]
    assert (reader.unfinished, reader.sha256) == (6, "")


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 10**6))
def test_no_damage_crashes_and_untouched_lines_are_all_read(tmp_path: Path, seed: int) -> None:
    """Random bytes changed, cut or swapped in random lines: every other line still counts."""
    rng = random.Random(seed)
    rows = good_lines()
    touched = set(rng.sample(range(len(rows)), rng.randint(1, len(rows))))
    for place in touched:
        line = bytearray(rows[place])
        for _ in range(rng.randint(1, 12)):
            line[rng.randrange(len(line) - 1)] = rng.choice(b'{}[]",:0aZ\\\x00\xff')
        rows[place] = bytes(line[: rng.randint(1, len(line))]).replace(b"\n", b"") + b"\n"
    result = read_text(tmp_path, b"".join(rows))
    raw = result.report.raw
    if result.report.status == "read":
        assert raw.records + raw.damaged_lines >= len(rows) - sum(
            not rows[i].strip() for i in touched
        )
    texts = {t.text for s in result.sessions for t in s.turns}
    if 0 not in touched:
        assert "go" in texts
    if 3 not in touched:
        assert "done" in texts


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_decoding_anything_gives_a_record_or_says_why(line: bytes) -> None:
    try:
        record, _ = decode(line)
    except BadRecord as error:
        assert str(error)
    else:
        assert isinstance(record.type, str)
