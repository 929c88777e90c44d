"""`recompose serve`: a program plays, its sessions go on to `sites`, and what a person sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from composer_replication.core.codec import read_sessions
from composer_replication.serve.relay import NO_NAMESPACE
from tests.cli.test_ingest import log_lines
from tests.cli.workspace import recompose
from tests.training.scripted import tiny_student

RELAY = Path(__file__).parents[2] / "src/composer_replication/serve/relay.py"
PLAYER = '''
"""A player: speaks chat completions, and carries out shell commands."""
import json, os, subprocess, urllib.request

messages = [{"role": "user", "content": os.environ["RECOMPOSE_TASK"]}]
tool = {"type": "function", "function": {"name": "Bash", "parameters": {
    "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
while True:
    body = json.dumps({"messages": messages, "tools": [tool]}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    got = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(got)
    if not got.get("tool_calls"):
        break
    for call in got["tool_calls"]:
        if call["function"]["name"] == "Bash":
            command = json.loads(call["function"]["arguments"])["command"]
            text = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        else:
            text = "<tool_use_error>Error: No such tool available: Bahs</tool_use_error>"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
'''
SCRIPT = [
    {"text": "I look.", "calls": [{"name": "Bahs", "arguments": {"command": "cat a.txt"}}]},
    {"calls": [{"name": "Bash", "arguments": {"command": "echo right > a.txt"}}]},
    {"text": "Done."},
]


def no_namespaces() -> bool:
    command = [sys.executable, "-I", "-S", str(RELAY), "/nowhere", "8801", "true"]
    return subprocess.run(command, capture_output=True).returncode == NO_NAMESPACE


needs_namespaces = pytest.mark.skipif(
    no_namespaces(), reason="this machine gives no network namespace"
)


def workplace(folder: Path, repository_root: Path) -> tuple[str, ...]:
    """A folder with a tree, a player and a script; returns the flags of `serve`."""
    (folder / "tree").mkdir()
    (folder / "tree" / "a.txt").write_text("wrong\n", "utf-8")
    (folder / "player.py").write_text(PLAYER, "utf-8")
    (folder / "script.json").write_text(json.dumps(SCRIPT), "utf-8")
    student = repository_root / "examples" / "workshop_student"
    player = f"{sys.executable} {folder / 'player.py'}"
    return (
        *("--player", player, "--task", "Make a.txt right.", "--tree", "tree"),
        *("--check", "grep -q right a.txt", "--script", "script.json"),
        *("--student.model", str(student), "--rollouts.max_context_tokens", "4000"),
        *("--rollouts.max_new_tokens", "300"),
    )


@needs_namespaces
@pytest.mark.train
def test_sessions_of_a_program_go_on_to_sites(tmp_path: Path, repository_root: Path) -> None:
    flags = workplace(tmp_path, repository_root)
    made = recompose("serve", *flags, "--json", cwd=tmp_path)
    assert made.code == 0, made.out + made.err
    (row,) = json.loads(made.out)["episodes"]
    assert (row["messages"], row["conversations"], row["reward"]) == (3, 1, 1.0)
    again = recompose("serve", *flags, cwd=tmp_path)  # the sessions accumulate
    assert again.code == 0 and "recompose sites -o" in again.out
    sessions = list(read_sessions(tmp_path / "recompose" / "served" / "sessions.jsonl"))
    assert [s.id for s in sessions] == ["tree:0", "tree:1"]
    assert all(s.outcome == 1.0 and s.origin == "student" for s in sessions)
    assert sum(len(t.sampled.ids) for t in sessions[0].turns if t.sampled) == row["tokens"]
    assert (tmp_path / "tree" / "a.txt").read_text("utf-8") == "wrong\n"  # it got a copy
    sites = recompose("sites", "-o", "recompose/served", cwd=tmp_path)
    assert sites.code == 0 and "unknown_tool" in sites.out
    student = ("--student.model", str(repository_root / "examples" / "workshop_student"))
    argv = ("sessions", "-o", "recompose/served", "--form", "training_trace", *student)
    written = recompose(*argv, "--write", "traces.jsonl", cwd=tmp_path)
    assert written.code == 0 and "traces of 2 sessions" in written.out, written.err
    traces = [json.loads(text) for text in (tmp_path / "traces.jsonl").read_text().splitlines()]
    for session, trace in zip(sessions, traces, strict=True):
        messages = [t.sampled for t in session.turns if t.sampled]
        assert [tuple(e["completion_token_ids"]) for e in trace["turns"]] == [
            m.ids for m in messages
        ]
        before = trace["turns"][0]
        for entry in trace["turns"]:
            n = len(entry["completion_token_ids"])
            assert len(entry["per_token_logps"]) == n == sum(entry["loss_mask"])
            assert len(entry["loss_mask"]) == len(entry["prompt_token_ids"]) + n
            assert entry["metadata"]["reward"] == 1.0
            if entry is not before:  # a prompt goes on from the message before it, id by id
                whole = before["prompt_token_ids"] + before["completion_token_ids"]
                assert entry["prompt_token_ids"][: len(whole)] == whole
            before = entry


@pytest.mark.train
def test_imported_logs_are_no_training_traces(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_text("\n".join(log_lines()) + "\n", "utf-8")
    assert recompose("ingest", "logs", cwd=tmp_path).code == 0
    argv = ("sessions", "--form", "training_trace", "--write", "traces.jsonl")
    refused = recompose(*argv, cwd=tmp_path)
    assert refused.code == 1 and "none of 1 sessions" in refused.err
    assert not (tmp_path / "traces.jsonl").exists()


@pytest.mark.train
def test_a_tiny_student_without_a_tokenizer_says_what_to_run(tmp_path: Path) -> None:
    refused = recompose("serve", "--player", "true", "--task", "x", cwd=tmp_path)
    assert refused.code == 1 and "recompose build" in refused.err
    assert "the tiny student has no tokenizer yet" in refused.err


def built(folder: Path) -> None:
    """A work folder as `build` leaves it for the tiny student."""
    student = tiny_student()
    student.tokenizer.save_pretrained(str(folder / "recompose" / "examples" / "tokenizer"))


@needs_namespaces
@pytest.mark.train
def test_sessions_of_the_tiny_student_keep_its_tokenizer(
    tmp_path: Path, repository_root: Path
) -> None:
    """`training_trace` and `build` read the ids as they were sampled, in no vocabulary of their
    own, and none are added in another one."""
    built(tmp_path)
    flags = list(workplace(tmp_path, repository_root))
    at = flags.index("--student.model")
    del flags[at : at + 2]
    made = recompose("serve", *flags, cwd=tmp_path)
    assert made.code == 0, made.err
    served = tmp_path / "recompose" / "served"
    argv = ("sessions", "-o", "recompose/served", "--form", "training_trace")
    written = recompose(*argv, "--write", "traces.jsonl", cwd=tmp_path)
    assert written.code == 0 and "traces of 1 session" in written.out, written.err
    for verb in ("sites", "hints"):
        assert recompose(verb, "-o", "recompose/served", cwd=tmp_path).code == 0
    build = recompose("build", "-o", "recompose/served", cwd=tmp_path)
    assert build.code == 0, build.err
    same = [folder / "tokenizer" / "tokenizer.json" for folder in (served, served / "examples")]
    assert json.loads(same[0].read_text()) == json.loads(same[1].read_text())

    # without it, and with another one
    shutil.rmtree(served / "tokenizer")
    shutil.rmtree(served / "examples")
    refused = recompose(*argv, "--write", "more.jsonl", cwd=tmp_path)
    assert refused.code == 1 and "--student.model" in refused.err
    shutil.copytree(
        repository_root / "examples" / "workshop_student",
        served / "tokenizer",
        ignore=shutil.ignore_patterns("*.safetensors"),
    )
    refused = recompose("serve", *flags, cwd=tmp_path)
    assert refused.code == 1 and "sampled with another tokenizer" in refused.err


@needs_namespaces
def test_a_player_has_no_network_but_the_endpoint(tmp_path: Path) -> None:
    """A connection to another port of loopback is refused, one to the outside has no route."""
    code = (
        "import socket\n"
        "for address in (('127.0.0.1', 9), ('192.0.2.1', 80)):\n"
        "    try: socket.create_connection(address, timeout=5)\n"
        "    except OSError as error: print(error.errno)\n"
    )
    command = [sys.executable, "-I", "-S", str(RELAY), str(tmp_path / "s"), "8801"]
    done = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["111", "101"], done.stderr


@needs_namespaces
@pytest.mark.train
def test_a_program_that_asks_for_nothing_is_an_error(tmp_path: Path, repository_root: Path) -> None:
    flags = list(workplace(tmp_path, repository_root))
    flags[1] = "no-such-agent --now"
    made = recompose("serve", *flags, cwd=tmp_path)
    assert made.code == 1 and "no-such-agent" in made.err and "is it installed" in made.err


def test_a_player_needs_a_task(tmp_path: Path) -> None:
    refused = recompose("serve", "--player", "codex", cwd=tmp_path)
    assert refused.code == 2 and "--task" in refused.err
