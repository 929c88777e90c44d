"""A chat template that loses calls is refused before anything is built, with the family to name;
that one is trained with and exported."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from composer_replication.cli.build_lost_calls import FEW_LOST_CALLS, MAX_LOST_CALLS, lost_calls
from composer_replication.core.codec import write_sessions
from composer_replication.core.errors import RenderError
from composer_replication.core.trace import Session, ToolCall
from composer_replication.tokens.artefact import build_report
from composer_replication.tokens.messages import tool_messages
from composer_replication.tokens.renderer import Renderer
from tests.cli.workspace import CliResult, fill, recompose, session
from tests.tokens.students import TOOLS, chatml_tokenizer, tokenizer_for
from tests.tokens.test_unknown_template import SOUND, renderer_of

pytestmark = pytest.mark.train

LOSES_CALLS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n'"
    " }}{% endif %}"
)
"""As SmolLM2's own: system, user and assistant, and no word of a call."""


def save_student(folder: Path, tokenizer: Any, *, template: str) -> Path:
    """A one-layer Llama in a folder, with this chat template."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    heads["max_position_embeddings"] = 8192
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **heads))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """A student whose tokenizer has ChatML's two control tokens and whose template loses calls."""
    return save_student(tmp_path / "student", tokenizer_for("chatml-tools"), template=LOSES_CALLS)


def run(*argv: str, student: Path, cwd: Path) -> CliResult:
    return recompose(*argv, "--student.model", str(student), cwd=cwd)


def test_it_is_refused_by_name_before_anything_is_built(student: Path, tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()])
    for verb in (("build",), ("build", "--dry-run"), ("hints", "--audit")):
        result = run(*verb, student=student, cwd=tmp_path)
        assert result.code == 1
        assert "cannot write a tool call and its result: the chat template loses" in result.err
        assert "chatml-tools" in result.err and "qwen3-2507" not in result.err
    assert not (tmp_path / "recompose" / "examples").exists()
    named = ("--student.template", "chatml-tools")
    assert run("build", *named, student=student, cwd=tmp_path).code == 0
    trained = run("train", "--dry-run", student=student, cwd=tmp_path)
    assert trained.code == 1 and "cannot write a tool call" in trained.err


def test_the_named_family_is_trained_with_and_exported(student: Path, tmp_path: Path) -> None:
    fill(tmp_path / "recompose", [session()])
    named = ("--student.template", "chatml-tools")
    for verb in (
        ("build", *named),
        ("train", *named, "--name", "a", "--train.steps", "1"),
        ("export", "a", "--to", "out", *named),
    ):
        result = run(*verb, student=student, cwd=tmp_path)
        assert result.code == 0, result.err
    served: Any = AutoTokenizer.from_pretrained(tmp_path / "out")
    renderer = Renderer.for_tokenizer(AutoTokenizer.from_pretrained(student), family="chatml-tools")
    messages = [m for item in renderer.messages_of(session().turns) for m in item.messages]
    text = served.apply_chat_template(messages, tools=tool_messages(TOOLS), tokenize=False)
    assert text == renderer.render(session().turns, tools=TOOLS).text
    assert '<tool_call>\n{"name": "Read", "arguments": {"file_path": "a.py"}}' in text
    again = Renderer.for_tokenizer(served)
    assert again.family is not None and again.family.name == "chatml-tools"


WRITES_SOME = SOUND.replace(
    "{%- for c in m.tool_calls or [] %}",
    "{%- for c in m.tool_calls or [] if c.function.name != 'Bash' %}",
)


def call_of(tool: str, *, name: str) -> Session:
    """The small session, its calls renamed."""
    given = session(name)
    renamed = tuple(
        replace(
            turn,
            blocks=tuple(
                ToolCall(b.id, tool, {"command": "ls a"}) if isinstance(b, ToolCall) else b
                for b in turn.blocks
            ),
        )
        for turn in given.turns
    )
    return replace(given, turns=renamed)


@pytest.mark.parametrize(
    ("lost_sessions", "code"), [(1, 0), (2, 1)], ids=["two messages", "four messages"]
)
def test_more_than_a_few_lost_calls_are_refused_and_fewer_are_told(
    tmp_path: Path, lost_sessions: int, code: int
) -> None:
    sessions = [session(f"sess-{i}") for i in range(4)]
    sessions += [call_of("Bash", name=f"lost-{i}") for i in range(lost_sessions)]
    fill(tmp_path / "recompose", sessions[:4])
    write_sessions(tmp_path / "recompose" / "sessions.jsonl", sessions)
    student = save_student(tmp_path / "student", chatml_tokenizer(), template=WRITES_SOME)
    result = run("build", student=student, cwd=tmp_path)
    assert result.code == code
    assert f"cannot write {2 * lost_sessions} messages with calls" in result.out
    if code:
        assert "cannot write 4 of 12 messages with calls" in result.err
        assert "qwen3-2507" in result.err


def test_the_examples_of_a_refused_build_are_shown_and_never_trained_on(tmp_path: Path) -> None:
    work = tmp_path / "recompose"
    sessions = [session(), *(call_of("Bash", name=f"lost-{i}") for i in range(2))]
    fill(work, sessions[:1])
    write_sessions(work / "sessions.jsonl", sessions)
    student = save_student(tmp_path / "student", chatml_tokenizer(), template=WRITES_SOME)
    assert run("build", student=student, cwd=tmp_path).code == 1
    for flags in (("--dry-run",), ("--train.steps", "1"), ("--train.hint.weight", "0")):
        refused = run("train", *flags, student=student, cwd=tmp_path)
        said = " ".join(refused.err.replace("│", " ").split())
        assert refused.code == 1 and "the build of these examples was refused" in said
        assert "cannot write 4 of 6 messages with calls" in said
        assert "qwen3-2507" in said and "and build again" in said
    assert not (work / "runs").exists()
    assert "sess-aaaa" in run("show", "example", student=student, cwd=tmp_path).out
    named = ("--student.template", "qwen3-2507")
    assert run("build", *named, student=student, cwd=tmp_path).code == 0
    assert run("train", *named, "--dry-run", student=student, cwd=tmp_path).code == 0


def test_what_counts_as_a_few() -> None:
    tokenizer: Any = chatml_tokenizer()
    renderer = Renderer.for_tokenizer(tokenizer, family="qwen3-2507")

    def refused(lost: int, *, of: int) -> bool:
        report = build_report(Counter({"skipped content/lost_calls": lost}))
        return lost_calls(renderer, report, count=lambda: of) is not None

    assert (FEW_LOST_CALLS, MAX_LOST_CALLS) == (3, 0.01)
    assert not refused(0, of=0) and not refused(2, of=2) and refused(3, of=3)
    assert not refused(7, of=700) and refused(8, of=700)


def test_the_probe_accepts_a_template_that_writes_calls() -> None:
    renderer_of(SOUND).check_calls()
    with pytest.raises(RenderError, match=r"loses the name of a call of turn 1: 'look'"):
        renderer_of(LOSES_CALLS).check_calls()
