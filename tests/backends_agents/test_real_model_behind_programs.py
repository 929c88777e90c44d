"""A small real model plays behind real agent programs, over a line that drops an answer.

SmolLM2-135M-Instruct samples (coached_model.py), `recompose serve` records; the program asks again
for the answer that was cut off, and Codex compacts. Every token in the sessions is one that was
drawn, once, with the log-prob of a forward pass of plain transformers.

    python scripts/run_real.py          # makes SmolLM2's folder
    python scripts/run_backend.py agents
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from composer_replication.core.codec import read_sessions
from composer_replication.core.trace import Sampled, Session
from composer_replication.rollouts.self_summary import SUMMARY
from composer_replication.serve import play
from composer_replication.serve.recorded_sessions import PURPOSE
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer
from tests.backends_agents.coached_model import Call, Coach, Plan
from tests.backends_agents.dropping_relay import DROPPED
from tests.cli.workspace import recompose
from tests.serve.clients import event_rows, joined_blocks

pytestmark = [pytest.mark.backend, pytest.mark.timeout(1800)]
FAMILY = "chatml-tools"
CALC = "def add(a, b):\n    return a - b\n"
TASK, CHECK = "add() in calc.py is wrong. Fix it.", "grep -q 'a + b' calc.py"
Said = tuple[str, list[tuple[str, dict[str, Any]]]]
"""The text and the calls of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A program: its command, how it is told to say less to the model, how it calls a shell, and
    the plans of the messages behind the first two. Where it compacts, `compacts` is in what it asks
    for."""

    command: str
    variables: str = ""
    flags: Sequence[str] = ()
    shell: tuple[str, str]
    plans: tuple[Plan, ...]
    compacts: str = ""

    def run(self, command: str) -> Call:
        """The call that runs a command."""
        tool, argument = self.shell
        return tool, {argument: command}

    def all_plans(self) -> tuple[Plan, ...]:
        """Two parallel calls, then a fix that may be wrong, then the program's own."""
        look, files = self.run("cat calc.py"), self.run("ls")
        fixes = [[self.run(f"sed -i 's/a - b/a {sign} b/' calc.py")] for sign in "+*"]
        first = Plan(text=10, menu=[[look, files], [files, look]])
        return (first, Plan(text=12, menu=fixes), *self.plans)


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
PLAYERS = {
    "mini-swe-agent": Played(
        command="mini",
        shell=("bash", "command"),
        plans=(  # an answer without a call is dropped, and the model is told what was wrong
            Plan(text=16),
            Plan(text=0, menu=[[("bash", {"command": SUBMIT})]]),
        ),
    ),
    "claude-code": Played(
        command="claude",
        # with a context as short as this model's it would compact after each message
        variables="CLAUDE_CODE_SIMPLE=1 CLAUDE_CODE_MAX_CONTEXT_TOKENS=100000",
        flags=("--system-prompt", "You fix code."),
        shell=("Bash", "command"),
        plans=(Plan(text=24),),
    ),
    "codex": Played(
        command="codex",
        flags=(
            *("-c", "model_instructions_file={folder}/instructions.md"),
            *("-c", "skills.bundled.enabled=false", "-c", "include_permissions_instructions=false"),
            *("-c", "model_auto_compact_token_limit=2100"),
            *("--disable", "multi_agent", "--disable", "goals", "--disable", "plugins"),
        ),
        shell=("exec_command", "cmd"),
        plans=(
            Plan(text=8, menu=[[("exec_command", {"cmd": f"seq {n}"})] for n in (180, 190)]),
            Plan(text=0, menu=[[("exec_command", {"cmd": cmd})] for cmd in ("ls", "cat calc.py")]),
            Plan(text=24),
        ),
        compacts="CONTEXT CHECKPOINT COMPACTION",
    ),
}


@pytest.fixture(scope="module")
def weights(repository_root: Path) -> Path:
    """SmolLM2's folder, where `make real` puts it."""
    cache = Path(os.environ.get("COMPOSER_REPLICATION_REAL") or repository_root / "build" / "real")
    if not (cache / "folders" / "smollm2").is_dir():
        pytest.skip("SmolLM2-135M is not there: `make real` makes its folder in build/real")
    return cache / "folders" / "smollm2"


def put_on_path(played: Played, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script under the program's name that starts it with short instructions and few tools."""
    (folder / "instructions.md").write_text("You fix code.\n", "utf-8")
    real = shutil.which(played.command)
    flags = shlex.join(word.format(folder=folder) for word in played.flags)
    script = folder / "bin" / played.command
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n{played.variables} exec {real} "$@" {flags}\n', "utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")


def put_on_the_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the program reach the endpoint over the line that drops an answer; returns the folder in
    which the answers are kept."""
    line = folder / "line"
    line.mkdir()
    shutil.copy(Path(__file__).with_name("dropping_relay.py"), line)
    shutil.copy(Path(play.__file__).with_name("relay.py"), line)
    monkeypatch.setattr(play, "_RELAY", str(line / "dropping_relay.py"))
    return line / "answers"


def trained(session: Session) -> Iterator[tuple[int, Sampled]]:
    """Each message that is trained on in a session: the place of its first token, and what was
    sampled."""
    for turn in session.turns[session.copied :]:
        if turn.sampled is not None:
            yield turn.context_tokens, turn.sampled


def on_the_wire(answer: bytes) -> Said:
    """What a program was sent, in whichever of the wire formats."""
    body = answer.partition(b"\r\n\r\n")[2].decode()
    if body.startswith("{"):
        got = json.loads(body)["choices"][0]["message"]
        calls = [call["function"] for call in got.get("tool_calls", ())]
        return got["content"] or "", [(c["name"], json.loads(c["arguments"])) for c in calls]
    rows = event_rows(body)
    if rows[-1][0] == "message_stop":
        blocks = joined_blocks(rows)
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        return "".join(texts), [(call["name"], call["input"]) for call in calls]
    items = rows[-1][1]["response"]["output"]
    texts = [part["text"] for item in items for part in item.get("content", ())]
    calls = [item for item in items if item["type"] == "function_call"]
    return "".join(texts), [(call["name"], json.loads(call["arguments"])) for call in calls]


def spelled(tokenizer: Any, ids: Sequence[int]) -> Said:
    """What ids spell, read without the parser of the package."""
    text, *blocks = tokenizer.decode(ids, skip_special_tokens=True).split("<tool_call>")
    calls = [json.loads(block.partition("</tool_call>")[0]) for block in blocks]
    return text.strip(), [(call["name"], call["arguments"]) for call in calls]


def largest_gap(weights: Path, rendered: Sequence[tuple[Session, tuple[int, ...]]]) -> float:
    """The largest difference of a recorded log-prob from that of a forward of the whole session by
    plain transformers, with weights that were loaded anew."""
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32)
    gaps: list[float] = []
    for session, ids in rendered:
        rows = list(trained(session))
        places = [begin + n for begin, sampled in rows for n in range(len(sampled.ids))]
        kept_N = torch.tensor([x for _, sampled in rows for x in sampled.logprobs])
        ids_T = torch.tensor(ids[: places[-1] + 1])
        place_N = torch.tensor(places)
        with torch.no_grad():
            logits_NV = model(ids_T[None], logits_to_keep=place_N - 1).logits[0]
        own_N = logits_NV.log_softmax(-1).gather(1, ids_T[place_N, None]).squeeze(1)
        gaps.append(float((own_N - kept_N).abs().max()))
    return max(gaps)


@pytest.mark.parametrize("player", PLAYERS)
def test_what_a_real_model_samples_behind_a_program_is_what_is_recorded(
    player: str,
    tmp_path: Path,
    weights: Path,
    needs_program: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    played = PLAYERS[player]
    needs_program(played.command)
    put_on_path(played, tmp_path, monkeypatch)
    kept = put_on_the_line(tmp_path, monkeypatch)
    (tmp_path / "calc").mkdir()
    (tmp_path / "calc" / "calc.py").write_text(CALC, "utf-8")
    tokenizer = load_tokenizer(str(weights))
    renderer = Renderer.for_tokenizer(tokenizer, family=FAMILY)
    coach = Coach(renderer, plans=played.all_plans(), compacts=played.compacts)
    coach.install(monkeypatch)
    made = recompose(
        *("serve", "--player", player, "--task", TASK, "--tree", "calc", "--check", CHECK),
        *("--student.model", str(weights), "--student.template", FAMILY, "--json"),
        *("--rollouts.max_context_tokens", "8192", "--rollouts.max_new_tokens", "400"),
        *("--seed", "4", "--time-limit", "1200"),
        cwd=tmp_path,
    )
    assert made.code == 0, made.out + made.err
    drawn = coach.drawn
    assert len(drawn) == len(played.all_plans()) + bool(played.compacts)

    # what was drawn is what is recorded, once, at its place behind what the model had read
    sessions = list(read_sessions(tmp_path / "recompose" / "served" / "sessions.jsonl"))
    rendered = [(s, renderer.render(s.turns, tools=s.tools).ids) for s in sessions]
    recorded = [
        (ids[:begin], ids[begin : begin + len(sampled.ids)], sampled.ids, sampled.logprobs)
        for session, ids in rendered
        for begin, sampled in trained(session)
    ]
    assert sorted(recorded) == sorted(
        (d.prompt, tuple(d.ids), tuple(d.ids), tuple(d.logprobs)) for d in drawn
    )
    gap = largest_gap(weights, rendered)
    assert gap < 1e-4

    # what the program was sent spells the same; the dropped answer came twice and counts once
    answers = [on_the_wire(file.read_bytes()) for file in sorted(kept.iterdir())]
    assert answers.pop(DROPPED) == answers[DROPPED]
    assert [(text.strip(), calls) for text, calls in answers] == [
        spelled(tokenizer, d.ids) for d in drawn
    ]
    (row,) = made.value["episodes"]
    assert row["messages"] == len(drawn) and row["tokens"] == sum(len(d.ids) for d in drawn)
    assert {s.outcome for s in sessions} == {row["reward"]}

    # each conversation is its own session, of one episode
    purposes = [[e.text for e in s.events if e.kind == PURPOSE] for s in sessions]
    assert all(s.parent and s.parent.session_id == sessions[0].id for s in sessions[1:])
    if played.compacts:
        assert purposes == [[], ["compaction"], []]
        assert SUMMARY in {e.kind for e in sessions[1].events}
        (summary,) = [spelled(tokenizer, d.ids)[0] for d in drawn if d.is_summary]
        assert summary in sessions[2].turns[sessions[2].copied].text
    else:
        assert len(sessions) == (2 if player == "mini-swe-agent" else 1)
        assert purposes == [[]] * len(sessions)
    record_property("seen", {"gap": gap, "messages": len(drawn), "tokens": row["tokens"]})
    record_property("reward", row["reward"])
