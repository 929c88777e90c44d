"""Several files together: copies, forks, subagents, names, filters, where to look."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from examples.log_writer import Call, LogWriter

from composer_replication.core.config.data_settings import IngestSettings
from composer_replication.core.errors import DataError
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import ToolCall
from composer_replication.data.ingestion.attachments import read_attachment
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import RETENTION_NOTE, default_folders, find_logs
from composer_replication.data.ingestion.logged_tools import offered_tools, tools_from_calls
from composer_replication.data.ingestion.repository import local_remote, remote_name, repository_of
from tests.data.ingestion.reading import lines, new_log, read_all, read_log, read_text, shape


def talk(name: str, steps: int = 3) -> LogWriter:
    log = new_log(name)
    log.human(f"start of {name}")
    for step in range(steps):
        log.act(f"{name} step {step}", Call("Read", {"file_path": f"{step}.py"}, f"text {step}"))
    return log


def test_a_copy_made_half_way_is_a_duplicate_whatever_its_name(tmp_path: Path) -> None:
    log = talk("one")
    (tmp_path / "z-whole.jsonl").write_text(log.text(), "utf-8")
    (tmp_path / "a-half.jsonl").write_text(lines(log.records[:5]), "utf-8")
    (tmp_path / "b-same.jsonl").write_text(log.text(), "utf-8")
    statuses = {r.report.file: (r.report.status, len(r.sessions)) for r in read_all(tmp_path)}
    assert statuses == {
        "b-same.jsonl": ("read", 1),
        "z-whole.jsonl": ("duplicate", 0),
        "a-half.jsonl": ("duplicate", 0),
    }


def test_a_fork_keeps_the_copied_history_as_context_only(tmp_path: Path) -> None:
    log = talk("one", steps=4)
    (tmp_path / "whole.jsonl").write_text(log.text(), "utf-8")
    fork = talk("one", steps=2)
    fork.session_id = "22222222-2222"
    for row in fork.records:
        row["sessionId"] = fork.session_id
    for row in fork.records:
        row.pop("toolUseResult", None)
    fork.name = "fork"
    fork.human("now something else")
    fork.act("else")
    (tmp_path / "fork.jsonl").write_text(fork.text(), "utf-8")
    original, forked = (r.sessions[0] for r in read_all(tmp_path))
    assert original.copied == 0
    assert forked.copied == 5
    assert [t.text for _, t in forked.assistant_turns()] == ["else"]
    assert shape(forked)[:5] == shape(original)[:5]
    assert len(forked.context(6)) == 6


def test_history_copied_under_new_record_ids_is_recognised_by_message_and_call_ids(
    tmp_path: Path,
) -> None:
    log = talk("one", steps=4)
    (tmp_path / "whole.jsonl").write_text(log.text(), "utf-8")
    fork = talk("one", steps=2)
    fork.name = "fork"
    fork.human("now something else")
    fork.act("else")
    text = fork.text()
    for number, row in enumerate(fork.records):
        text = text.replace(row["uuid"], f"new-{number}")
    (tmp_path / "fork.jsonl").write_text(text, "utf-8")
    forked = read_all(tmp_path)[1].sessions[0]
    assert forked.copied == 5


def test_a_repeated_message_behind_a_new_one_is_reported_and_not_called_copied(
    tmp_path: Path,
) -> None:
    log = talk("one", steps=4)
    (tmp_path / "whole.jsonl").write_text(log.text(), "utf-8")
    other_log = talk("two", steps=1)
    other_log.records += log.records[-2:]
    (tmp_path / "other.jsonl").write_text(other_log.text(), "utf-8")
    result = read_all(tmp_path)[1]
    assert result.sessions[0].copied == 0
    assert result.report.raw.copied_inside == 2


def subagent_logs(folder: Path, *, with_file: bool, nested: bool = True) -> Path:
    log = new_log("main", version="2.1.40")
    log.human("go")
    task = Call("Task", {"description": "d", "prompt": "look", "subagent_type": "Explore"}, None)
    call_id = log.act("", task)[0]
    owner = log.parent or ""
    child = log.subagent("ab12")
    child.human("look")
    child.act("looking", Call("Read", {"file_path": "x"}, "text"))
    for row in child.records:
        message = {k: row[k] for k in ("type", "message", "uuid", "timestamp")}
        log.progress({"type": "agent_progress", "message": message, "agentId": "ab12"}, call_id)
    child.act("found")
    log.result(call_id, Call("Task", {}, "found"), owner)
    log.records[-1]["toolUseResult"] = {"agentId": "ab12"}
    log.write(folder)
    if with_file:
        child.write(folder / log.session_id / "subagents" if nested else folder, "agent-ab12.jsonl")
    return folder


@pytest.mark.parametrize("nested", [True, False])
def test_a_subagent_with_a_file_is_stored_once_from_its_file(tmp_path: Path, nested: bool) -> None:
    sessions = [
        s
        for r in read_all(subagent_logs(tmp_path, with_file=True, nested=nested))
        for s in r.sessions
    ]
    assert len(sessions) == 2
    main, side = sessions
    assert shape(side) == ["u:look", "a:looking", "t:text", "a:found"]
    assert side.parent is not None
    assert (side.parent.session_id, side.parent.call_id) == (main.id, main.turns[1].calls[0].id)
    assert side.turns[0].author == main.turns[1].author


def test_a_subagent_without_a_file_is_stored_from_progress_records(tmp_path: Path) -> None:
    (result,) = read_all(subagent_logs(tmp_path, with_file=False))
    main, side = result.sessions
    assert shape(side) == ["u:look", "a:looking", "t:text"]
    assert side.parent is not None
    assert side.parent.call_id == main.turns[1].calls[0].id
    assert result.report.to_json()["assistant_messages"] == 1
    assert result.report.to_json()["progress_subagents"]["assistant_messages"] == 1


def test_a_subagent_file_alone_names_a_parent_without_a_call(tmp_path: Path) -> None:
    subagent_logs(tmp_path, with_file=True)
    (side,) = read_all(next(tmp_path.rglob("agent-*.jsonl")))[0].sessions
    assert side.parent is not None
    assert side.parent.call_id is None
    assert side.turns[0].author is None


def test_two_subagents_in_one_old_file_are_told_apart_by_their_tasks(tmp_path: Path) -> None:
    log = new_log("old", version="1.0.71")
    log.human("go")
    prompts = ("find a", "find b")
    ids = log.act("", *(Call("Task", {"prompt": p, "subagent_type": "x"}, None) for p in prompts))
    chain = log.parent
    for prompt in prompts:
        log.parent, log.agent_id = None, "side"
        log.human(prompt)
        log.act(f"answer to {prompt}")
    log.parent, log.agent_id = chain, ""
    for row in log.records:
        row.pop("agentId", None)
    log.act("end")
    main, *sides = read_text(tmp_path, log.text()).sessions
    assert [s.parent.call_id for s in sides if s.parent] == ids
    assert [shape(s) for s in sides] == [[f"u:{p}", f"a:answer to {p}"] for p in prompts]
    assert len(main.turns) == 3


def test_sessions_can_be_chosen_by_author(tmp_path: Path) -> None:
    for name, model in (("one", "claude-opus-4-5"), ("two", "claude-sonnet-4-5")):
        log = LogWriter(name, version="2.1.30", cwd="/x", model=model)
        log.human("hi")
        log.act("ho")
        log.write(tmp_path)
    results = list(
        ingest(find_logs([tmp_path]), settings=IngestSettings(authors=("claude-opus-*",)))
    )
    assert [
        t.author for r in results for s in r.sessions for t in s.turns if t.role == "assistant"
    ] == ["claude-opus-4-5"]
    assert sum(r.report.num_filtered for r in results) == 1


def test_session_names_are_unique_and_safe(tmp_path: Path) -> None:
    for name in ("one", "two"):
        log = talk(name)
        for row in log.records:
            row["sessionId"] = "same"
        log.write(tmp_path, f"{name}.jsonl")
    bad = talk("three")
    for row in bad.records:
        row["sessionId"] = "../../etc; rm -rf"
    bad.write(tmp_path, "three.jsonl")
    names = [s.id for r in read_all(tmp_path) for s in r.sessions]
    assert len(set(names)) == 3
    assert {"same", "same~2"} < set(names)
    assert all("/" not in n and " " not in n for n in names)


def test_reading_twice_gives_the_same(tmp_path: Path) -> None:
    subagent_logs(tmp_path, with_file=True)
    talk("one").write(tmp_path)
    first, second = read_all(tmp_path), read_all(tmp_path)
    assert [r.sessions for r in first] == [r.sessions for r in second]
    assert [r.report.to_json() for r in first] == [r.report.to_json() for r in second]


def test_everything_stored_is_redacted_and_counted(tmp_path: Path) -> None:
    key = "sk-ant-api03-" + "Ab3" * 12
    log = new_log(version="2.1.284")
    tool = {
        "name": "Ask",
        "description": f"uses {key}",
        "schema": {"input_schema": {"default": key}},
    }
    log.attachment({"type": "prompt_snapshot", "systemPrompt": [f"key {key}"], "tools": [tool]})
    log.human(f"use {key}")
    ids = log.act(
        f"with {key}", Call("Ask", {"q": [f"x {key}"]}, f"got {key}"), thinking=f"hm {key}"
    )
    log.attachment(
        {
            "type": "hook_blocking_error",
            "toolUseID": ids[0],
            "blockingError": {"blockingError": f"no {key}"},
        }
    )
    log.assistant([{"type": "odd", "value": key}])
    path = log.write(tmp_path)
    redactor = Redactor(environ={})
    (result,) = ingest(find_logs([path]), redactor=redactor)
    assert key not in repr(result.sessions)
    (kind,) = redactor.counts
    assert result.report.redactions == {kind: redactor.counts[kind]}
    assert redactor.counts[kind] == 11
    masked = result.sessions[0].turns[1].text.removeprefix("use ")
    # the same name everywhere
    assert result.sessions[0].turns[2].calls[0].arguments["q"] == [f"x {masked}"]
    assert key in repr(next(ingest(find_logs([path]))).sessions)


def test_names_of_models_tools_and_records_are_redacted_too(tmp_path: Path) -> None:
    key = "ghp_" + "Ab3" * 12
    log = LogWriter("one", version="2.1.30", cwd="/x", model=f"model {key}")
    log.human("hi")
    log.act("", Call(f"mcp {key}", {}, "ok"))
    log.bare(f"kind {key}")
    (result,) = ingest(find_logs([log.write(tmp_path)]), redactor=Redactor(environ={}))
    (session,) = result.sessions
    assert key not in repr(session) and key not in json.dumps(result.report.to_json())
    assert [t.name for t in session.tools] == [session.turns[1].calls[0].name] != [""]
    assert result.report.to_json()["models"] == {session.turns[1].author: 1}


# ---- where to look -------------------------------------------------------------------------------


def test_default_folders(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert default_folders(home) == (tmp_path / ".claude" / "projects",)
    assert default_folders({**home, "CLAUDE_CONFIG_DIR": "/c"}) == (Path("/c/projects"),)
    with pytest.raises(DataError, match="no logs of an agent"):
        find_logs((), environ=home)
    talk("one").write(tmp_path / ".claude" / "projects" / "-x")
    assert len(find_logs((), environ=home)) == 1
    assert "30 days" in RETENTION_NOTE


def test_a_path_that_is_not_there_is_an_error_and_a_file_given_twice_is_read_once(
    tmp_path: Path,
) -> None:
    with pytest.raises(DataError, match="no file or folder"):
        find_logs([tmp_path / "gone"])
    path = talk("one").write(tmp_path, "log.txt")
    assert [log.name for log in find_logs([path, path, tmp_path])] == ["log.txt"]


def test_largest_first_and_subagents_last(tmp_path: Path) -> None:
    subagent_logs(tmp_path, with_file=True)
    talk("big", steps=30).write(tmp_path, "big.jsonl")
    logs = find_logs([tmp_path])
    assert logs[0].name == "big.jsonl"
    assert logs[-1].agent is not None
    assert [bool(log.agent) for log in logs] == [False, False, True]


# ---- small parts ---------------------------------------------------------------------------------


def test_a_refused_call_does_not_say_what_was_on_offer(tmp_path: Path) -> None:
    log = new_log()
    log.human("go")
    missing = (
        "<tool_use_error>InputValidationError: Read failed due to the following issue:\nThe"
        " required parameter `file_path` is missing"
    )
    log.act(
        "",
        Call(
            "Reed",
            {"file_path": "a"},
            "<tool_use_error>Error: No such tool available: Reed</tool_use_error>",
            True,
        ),
    )
    log.act("", Call("Read", {"filename": "a"}, missing, True))
    log.act("", Call("Read", {"file_path": "a"}, "File does not exist.", True))
    (read,) = read_log(tmp_path, log).tools
    assert (read.name, list(read.parameters["properties"]), read.parameters["required"]) == (
        "Read",
        ["file_path"],
        ["file_path"],
    )


def test_tools_from_calls() -> None:
    calls = [
        ToolCall("1", "Edit", {"path": "a", "all": True}),
        ToolCall("2", "Edit", {"path": "b", "n": 1}),
        ToolCall("3", "Edit", {"path": None}),
        ToolCall("4", "Bash", {}),
    ]
    bash, edit = tools_from_calls(calls)
    assert bash.parameters == {"type": "object", "properties": {}, "required": []}
    assert edit.parameters["properties"] == {
        "path": {"type": ["null", "string"]},
        "all": {"type": "boolean"},
        "n": {"type": "integer"},
    }
    assert edit.parameters["required"] == ["path"]


def test_offered_tools_leave_out_what_is_none() -> None:
    assert offered_tools("x") == ()
    tools = offered_tools(
        [
            1,
            {"name": 3},
            {"name": "A"},
            {"name": "B", "description": 5, "schema": {"type": "object"}},
        ]
    )
    assert [(t.name, t.description, dict(t.parameters)) for t in tools] == [
        ("A", "", {}),
        ("B", "", {"type": "object"}),
    ]


@pytest.mark.parametrize(
    ("payload", "text", "author", "tag"),
    [
        (
            {
                "type": "file",
                "content": {"type": "text", "file": {"filePath": "a", "content": "body"}},
            },
            "body",
            "harness",
            "attachment",
        ),
        (
            {"type": "hook_additional_context", "content": ["a", "b"]},
            "a\nb",
            "harness",
            "attachment",
        ),
        (
            {"type": "edited_text_file", "filename": "a", "snippet": "1 x"},
            "1 x",
            "harness",
            "attachment",
        ),
        (
            {"type": "queued_command", "prompt": "<task-notification>x"},
            "<task-notification>x",
            "harness",
            "queued",
        ),
        (
            {"type": "queued_command", "prompt": [{"type": "text", "text": "hurry"}]},
            "hurry",
            "human",
            "queued",
        ),
        ({"type": "total_tokens_reminder", "used": 5}, "", "harness", "attachment"),
        (
            {"type": "date_change", "rendered": [{"content": "<system-reminder>d"}]},
            "<system-reminder>d",
            "harness",
            "reminder",
        ),
        ("nonsense", "", "harness", "attachment"),
    ],
)
def test_what_an_attachment_means(payload: object, text: str, author: str, tag: str) -> None:
    attachment = read_attachment(payload)
    assert (attachment.text, attachment.author, attachment.tag) == (text, author, tag)


def test_repository_from_the_log_the_remote_or_the_folder(tmp_path: Path) -> None:
    assert repository_of("/home/dev/shop/.claude/worktrees/fix") == "shop"
    assert repository_of("C:\\work\\shop") == "shop"
    assert repository_of("") == ""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text(
        '[core]\n[remote "origin"]\n\turl = https://me:pw@host/acme/shop.git\n', "utf-8"
    )
    (tmp_path / "src").mkdir()
    local_remote.cache_clear()
    assert repository_of(str(tmp_path / "src")) == "acme/shop"
    assert remote_name("git@github.com:acme/shop.git") == "acme/shop"
    assert local_remote("//server/share") == ""


def test_a_folder_inside_another_session_s_folder_is_the_same_repository(tmp_path: Path) -> None:
    places = (
        "/home/dev/inkwell",
        "/home/dev/inkwell/src",
        "/home/dev/inkwell-two",
        "/home/dev",
        "/srv/inkwell/api",
    )
    for number, cwd in enumerate(places):
        log = LogWriter(f"s{number}", version="2.1.30", cwd=cwd)
        log.human("hi")
        log.act(f"ho {number}")
        log.write(tmp_path)
    repositories = {s.cwd: s.repository for r in read_all(tmp_path) for s in r.sessions}
    assert repositories == dict(
        zip(places, ("inkwell", "inkwell", "inkwell-two", "dev", "api"), strict=True)
    )


@pytest.mark.parametrize("with_file", [True, False])
def test_a_subagent_has_its_parent_s_repository(tmp_path: Path, with_file: bool) -> None:
    subagent_logs(tmp_path, with_file=with_file)
    for path in tmp_path.rglob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for row in rows:
            if row.get("isSidechain") or row["type"] == "progress":
                row["cwd"] = "/opt/elsewhere"
        path.write_text(lines(rows), "utf-8")
    main, side = (s for r in read_all(tmp_path) for s in r.sessions)
    assert (side.cwd, side.repository) == (
        "/opt/elsewhere",
        main.repository,
    ) and main.repository == "shop"


def test_what_cannot_be_opened_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk("one").write(tmp_path, "one.jsonl")
    (tmp_path / "shut").mkdir()
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    scan = os.scandir

    def refuse(path: str) -> object:  # the user who runs the tests may be allowed everything
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    statuses = {r.report.file: (r.report.status, r.report.why) for r in read_all(tmp_path)}
    assert statuses["shut/"] == ("unreadable", "cannot be opened: Permission denied")
    assert (
        statuses["gone.jsonl"] == ("unreadable", "a link that leads nowhere")
        and statuses["one.jsonl"][0] == "read"
    )


def test_a_pull_request_names_the_repository(tmp_path: Path) -> None:
    log = talk("one")
    log.bare(
        "pr-link",
        sessionId=log.session_id,
        prNumber=3,
        prUrl="https://github.com/acme/shop/pull/3",
        prRepository="acme/shop",
    )
    assert read_text(tmp_path, log.text()).sessions[0].repository == "acme/shop"


def test_the_report_is_json(tmp_path: Path) -> None:
    (result,) = read_all(talk("one").write(tmp_path))
    report = json.loads(json.dumps(result.report.to_json()))
    assert report["sessions"] == [result.sessions[0].id]
    assert report["sha256"] == result.sessions[0].source.sha256 != ""
