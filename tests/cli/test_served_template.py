"""A trained folder carries the template of its training: any server renders the prompts that the
model learned to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.codec import write_sessions
from composer_replication.tokens.messages import conversation, tool_messages
from composer_replication.tokens.renderer import Renderer
from tests.cli.workspace import recompose, session
from tests.tokens.students import chatml_tokenizer, official

pytestmark = pytest.mark.train


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """A one-layer Qwen3 in a folder, with the official template, which drops the empty think block
    from history."""
    tokenizer: Any = chatml_tokenizer()
    tokenizer.chat_template = official("qwen3")
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(tokenizer), intermediate_size=32, **shape)
    ).save_pretrained(tmp_path / "student")
    tokenizer.save_pretrained(tmp_path / "student")
    return tmp_path / "student"


def test_the_checkpoint_reads_a_conversation_as_it_was_trained(
    student: Path, tmp_path: Path
) -> None:
    write_sessions(tmp_path / "recompose" / "sessions.jsonl", [session()])
    model = ("--student.model", str(student))
    for verb in (
        ("sites",),
        ("hints",),
        ("build", *model),
        ("train", *model, "--train.steps", "1", "--train.hint.weight", "0"),
    ):
        result = recompose(*verb, cwd=tmp_path)
        assert result.code == 0, result.err
    served: Any = AutoTokenizer.from_pretrained(
        tmp_path / "recompose" / "runs" / "latest" / "checkpoints" / "step_000001"
    )
    renderer = Renderer.for_tokenizer(AutoTokenizer.from_pretrained(student))
    assert renderer.family is not None and renderer.family.name == "qwen3"
    turns = session().turns
    messages = [m for item in conversation(turns, thinking=False) for m in item.messages]
    text = served.apply_chat_template(messages, tools=tool_messages(()), tokenize=False)
    assert text == renderer.render(turns).text and text.count("<think>\n\n</think>") == 3
    official_text: Any = AutoTokenizer.from_pretrained(student).apply_chat_template(
        messages, tokenize=False
    )
    assert official_text != text, "the fixture's template would make this test say nothing"
