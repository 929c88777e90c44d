"""`ingest`, `sites` and `hints` on small logs: their files, their refusals, their output."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from composer_replication.core import codec
from composer_replication.core.codec import read_hints, read_sessions, read_sites
from tests.cli.workspace import HOSTILE, files, recompose

MODEL = "claude-test-1"
MADE_UP_KEY = "sk-" + "a1B2c3D4" * 6


def record(uuid: str, parent: str | None, message: dict[str, Any], **more: Any) -> str:
    kind = "assistant" if message["role"] == "assistant" else "user"
    base = {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": "11111111-2222",
        "version": "2.1.5",
        "cwd": "/home/dev/shop",
    }
    return json.dumps(
        {
            **base,
            "isSidechain": False,
            "timestamp": "2026-01-05T10:00:00Z",
            "message": message,
            **more,
        }
    )


def assistant(uuid: str, parent: str, *blocks: dict[str, Any]) -> str:
    return record(
        uuid,
        parent,
        {"role": "assistant", "id": f"msg_{uuid}", "model": MODEL, "content": list(blocks)},
    )


def call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(uuid: str, parent: str, call_id: str, text: str, *, error: bool = False) -> str:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": text} | (
        {"is_error": True} if error else {}
    )
    return record(uuid, parent, {"role": "user", "content": [block]})


def log_lines(text: str = "Please fix the cart.") -> list[str]:
    """A read, then an edit whose old string is not in the file, then the later turns."""
    return [
        record("u1", None, {"role": "user", "content": text}),
        assistant(
            "a1",
            "u1",
            {"type": "text", "text": "I read it first."},
            call("c1", "Read", file_path="/home/dev/shop/cart.py"),
        ),
        result("u2", "a1", "c1", "     1→def total():\n     2→    return 0"),
        assistant(
            "a2",
            "u2",
            call(
                "c2",
                "Edit",
                file_path="/home/dev/shop/cart.py",
                old_string="return 1",
                new_string="return 2",
            ),
        ),
        result(
            "u3",
            "a2",
            "c2",
            "<tool_use_error>String to replace not found in file.\nString: return"
            " 1</tool_use_error>",
            error=True,
        ),
        assistant("a3", "u3", {"type": "text", "text": "It says return 0."}),
    ]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "one.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    return folder


def test_ingest_says_how_many_of_the_calls_subagents_made(logs: Path, tmp_path: Path) -> None:
    """A count of the log's own records does not find those that stand in `progress` records."""
    calls = [call("toolu_s1", "Read", file_path="a.py"), call("toolu_s2", "Read", file_path="b.py")]
    side = json.loads(assistant("side", "m1", *calls))
    side |= {"isSidechain": True, "agentId": "a1"}
    (logs / "agent-a1.jsonl").write_text(json.dumps(side) + "\n", "utf-8")
    result = recompose("ingest", "logs", "--json", cwd=tmp_path)
    assert (result.value["calls"], result.value["subagent_calls"]) == (4, 2)
    out = recompose("ingest", "logs", "-o", "again", cwd=tmp_path).out
    assert "4 tool calls, 2 of them by subagents\n" in out


def test_three_stages_find_the_mistaken_message_and_hint_at_it(logs: Path, tmp_path: Path) -> None:
    result = recompose("ingest", "logs", cwd=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "1 session  6 turns  2 tool calls" in result.out
    assert "deletes its logs after 30 days" in result.out
    assert "recompose/sessions.jsonl" in result.out and "next   recompose sites" in result.out
    assert recompose("sites", cwd=tmp_path).code == 0
    (site,) = read_sites(tmp_path / "recompose" / "sites.jsonl")
    assert (site.turn, site.call_id, site.kind, site.category, site.author) == (
        3,
        "c2",
        "edit_no_match",
        "mistake",
        MODEL,
    )
    result = recompose("hints", cwd=tmp_path)
    assert result.code == 0 and "next   recompose report" in result.out
    (hint,) = read_hints(tmp_path / "recompose" / "hints.jsonl")
    assert (
        hint.site_id == site.id
        and hint.text
        in recompose("show", "site", "s001", "--full", "--json", cwd=tmp_path).value["hint"]
    )


def test_json_is_one_object_with_the_files(logs: Path, tmp_path: Path) -> None:
    result = recompose("ingest", "logs", "--json", cwd=tmp_path)
    assert result.err == ""
    (file,) = result.value["files"]
    assert (file["file"], file["tool_use"], file["is_error"], file["assistant_messages"]) == (
        "one.jsonl",
        2,
        1,
        3,
    )
    assert result.value["sessions"] == 1 and result.value["wrote"]
    for verb in ("sites", "hints"):
        result = recompose(verb, "--json", cwd=tmp_path)
        assert result.err == "" and result.value["wrote"]


@pytest.mark.parametrize("verb", ["ingest", "sites", "hints"])
def test_a_dry_run_counts_and_writes_nothing(logs: Path, tmp_path: Path, verb: str) -> None:
    before = ("ingest", "sites", "hints")
    for earlier in before[: before.index(verb)]:
        recompose(earlier, *(["logs"] if earlier == "ingest" else []), cwd=tmp_path)
    files_before = files(tmp_path)
    arguments = [verb, *(["logs"] if verb == "ingest" else []), "--dry-run"]
    result = recompose(*arguments, cwd=tmp_path)
    assert result.code == 0 and "nothing was written" in result.out and "would write" in result.out
    value = recompose(*arguments, "--json", cwd=tmp_path).value
    assert value["dry_run"] is True and value["would_write"] and "wrote" not in value
    assert files(tmp_path) == files_before


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = recompose("ingest", "empty", cwd=tmp_path)
    assert result.code == 1 and "no .jsonl file there" in result.err and result.out == ""
    result = recompose("ingest", "nowhere", cwd=tmp_path)
    assert result.code == 1 and "nowhere" in result.err


def test_damaged_and_foreign_files_are_counted_and_lose_no_good_session(
    logs: Path, tmp_path: Path
) -> None:
    good = log_lines()
    (logs / "one.jsonl").write_text(
        "\n".join([*good[:3], "{broken", *good[3:]]) + '\n{"type": "assis', "utf-8"
    )
    (logs / "binary.jsonl").write_bytes(bytes(range(256)) * 40)
    (logs / "foreign.jsonl").write_text('{"a": 1}\n{"b": 2}\n', "utf-8")
    result = recompose("ingest", "logs", cwd=tmp_path)
    assert result.code == 0 and "1 session " in result.out
    assert (
        "one.jsonl:4" in result.out
        and "binary.jsonl: foreign" in result.out
        and "foreign.jsonl: foreign" in result.out
    )
    (session,) = read_sessions(tmp_path / "recompose" / "sessions.jsonl")
    assert len(session.turns) == 6


def test_files_without_a_session_end_with_1_and_keep_what_was_there(
    logs: Path, tmp_path: Path
) -> None:
    recompose("ingest", "logs", cwd=tmp_path)
    stored_before = (tmp_path / "recompose" / "sessions.jsonl").read_bytes()
    (tmp_path / "foreign.jsonl").write_text('{"a": 1}\n', "utf-8")
    result = recompose("ingest", "foreign.jsonl", "--json", cwd=tmp_path)
    assert (
        result.code == 1
        and result.value["files"][0]["status"] == "foreign"
        and result.value["problem"]
    )
    assert (tmp_path / "recompose" / "sessions.jsonl").read_bytes() == stored_before


def test_without_a_path_a_pipe_must_say_yes(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects = tmp_path / "claude" / "projects" / "shop"
    projects.mkdir(parents=True)
    (logs / "one.jsonl").rename(projects / "one.jsonl")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    result = recompose("ingest", cwd=tmp_path)
    assert result.code == 2 and "--yes" in result.err and files(tmp_path / "recompose") == set()
    assert recompose("ingest", "--yes", "--json", cwd=tmp_path).value["sessions"] == 1


def test_secrets_do_not_reach_the_disk_unless_told_to(logs: Path, tmp_path: Path) -> None:
    (logs / "one.jsonl").write_text(
        "\n".join(log_lines(f"The key is {MADE_UP_KEY}, of Initech.")) + "\n", "utf-8"
    )
    result = recompose("ingest", "logs", "--ingest.redact_words", "Initech", cwd=tmp_path)
    written = "".join(p.read_text("utf-8") for p in (tmp_path / "recompose").iterdir())
    assert MADE_UP_KEY not in written and "Initech" not in written
    assert "removed" in result.out and MADE_UP_KEY not in result.out
    recompose("ingest", "logs", "--ingest.redact", "false", cwd=tmp_path)
    assert MADE_UP_KEY in (tmp_path / "recompose" / "sessions.jsonl").read_text("utf-8")


def test_a_hostile_log_cannot_steer_the_terminal(logs: Path, tmp_path: Path) -> None:
    lines = log_lines(HOSTILE)
    lines[4] = result(
        "u3",
        "a2",
        "c2",
        f"<tool_use_error>String to replace not found in file. {HOSTILE}</tool_use_error>",
        error=True,
    )
    (logs / "x\x1b[31m.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    (logs / "one.jsonl").unlink()
    for arguments in (
        ["ingest", "logs"],
        ["sites"],
        ["hints"],
        ["show", "site", "s001"],
        ["show", "session", "s001"],
        ["show", "site"],
    ):
        outcome = recompose(*arguments, cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert not set(outcome.out) & {"\x1b", "\x07", "\x9b", "\u202e"}, arguments


def test_the_filter_on_authors_is_applied(logs: Path, tmp_path: Path) -> None:
    result = recompose("ingest", "logs", "--ingest.authors", "other-*", "--json", cwd=tmp_path)
    assert result.code == 1 and result.value["files"][0]["filtered_sessions"] == 1
    assert (
        recompose("ingest", "logs", "--ingest.authors", "claude-*", "--json", cwd=tmp_path).code
        == 0
    )


def test_the_recovery_choice_warns(logs: Path, tmp_path: Path) -> None:
    recompose("ingest", "logs", cwd=tmp_path)
    result = recompose("sites", "--sites.site", "recovery", cwd=tmp_path)
    assert result.code == 0 and "the turn after an error" in result.out
    (site,) = read_sites(tmp_path / "recompose" / "sites.jsonl")
    assert (site.turn, site.category) == (5, "recovery")
    assert recompose("sites", "--sites.site", "recovery", "--json", cwd=tmp_path).value["notes"]


def test_counts_are_those_of_the_file_that_was_written(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = codec._encode_block
    monkeypatch.setattr(
        codec,
        "_encode_block",
        lambda block, ordinals: [x for x in encode(block, ordinals) if x is not True],
    )
    value = recompose("ingest", "logs", "--json", cwd=tmp_path).value
    assert (
        value["files"][0]["is_error"],
        value["files"][0]["error_kinds"],
        value["files"][0]["tool_result"],
    ) == (0, {}, 2)
    monkeypatch.setattr(
        codec, "_encode_turn", lambda turn, authors, ordinals: ["u", 0, ["x", "lost"]]
    )
    value = recompose("ingest", "logs", "--json", cwd=tmp_path).value
    assert (value["files"][0]["tool_use"], value["calls"], value["turns"]) == (0, 0, 6)


def test_a_lone_surrogate_and_a_file_name_that_is_not_text_are_stored(
    logs: Path, tmp_path: Path
) -> None:
    text = "\n".join(log_lines()).replace(MODEL, "odd\\ud800model") + "\n"
    name = os.fsencode(logs) + b"/caf\xe9.jsonl"
    Path(os.fsdecode(name)).write_text(text, "utf-8")
    (logs / "one.jsonl").unlink()
    result = recompose("ingest", "logs", "--json", cwd=tmp_path)
    assert (result.code, result.err) == (0, "") and result.value["files"][0]["models"] == {
        "odd\ud800model": 3
    }
    stored = json.loads((tmp_path / "recompose" / "ingest.json").read_text("utf-8"))
    assert (
        stored["files"] == result.value["files"] and stored["files"][0]["file"] == "caf\udce9.jsonl"
    )


def test_files_of_other_kinds_are_counted(logs: Path, tmp_path: Path) -> None:
    for name in ("a.json", "b.json", "c.traj"):
        (logs / name).write_text("{}", "utf-8")
    assert recompose("ingest", "logs", "--json", cwd=tmp_path).value["not_read"] == {
        ".json": 2,
        ".traj": 1,
    }
    assert (
        "not read 3 files of other kinds (.json 2, .traj 1)"
        in recompose("ingest", "logs", cwd=tmp_path).out
    )


@pytest.mark.real
def test_real_sessions_give_the_expected_counts(traces_dir: Path, tmp_path: Path) -> None:
    """Every expected number of every file, with the message counts read back from
    sessions.jsonl."""
    expected = json.loads((traces_dir / "EXPECTED.json").read_text("utf-8"))
    value = recompose("ingest", str(traces_dir), "--json", cwd=tmp_path).value
    counts_of_file = {file["file"]: file for file in value["files"]}
    for expected_file in expected:
        assert {
            key: counts_of_file[expected_file["file"]].get(key) for key in expected_file
        } == expected_file, expected_file["file"]
