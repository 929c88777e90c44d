"""Random sessions under every template: the gradient of a channel is non-zero exactly at the
predictors of its tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.core.channel_names import Channel
from composer_replication.core.trace import Turn
from composer_replication.models.load_student import Student
from composer_replication.tokens.batch import collate, count
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.forwards.channels import channel_losses
from tests.tokens.students import CASES, renderer, session_of, turn_lists
from tests.tokens.test_dataset import build, hint, site
from tests.training.small_student import make_config, start_trainer
from tests.training.test_channels import perturbed


@cache
def student_of(family: str, fixture: str) -> Student:
    """One layer over the fixture's tokenizer."""
    tokenizer = renderer(family, fixture).tokenizer
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), intermediate_size=32, **shape))
    return Student(name="test", model=model, tokenizer=tokenizer)


def spans_of(example: TrainingExample, channel: Channel) -> list[tuple[int, int]]:
    """The positions of the channel's tokens in the student's ids."""
    return list(example.lm_spans) if channel == "lm_ce" else [view.span for view in example.hints]


@pytest.mark.parametrize("channel", ["lm_ce", "hint"])
@pytest.mark.parametrize(("family", "fixture"), CASES)
@settings(max_examples=6, deadline=None)
@given(turns=turn_lists(max_steps=4), data=st.data())
def test_the_gradient_stands_exactly_at_the_spans(
    family: str, fixture: str, channel: Channel, turns: list[Turn], data: st.DataObject
) -> None:
    session = session_of(turns)
    assistants = [i for i, turn in enumerate(turns) if turn.role == "assistant"]
    at = data.draw(st.sets(st.sampled_from(assistants), max_size=2))
    sites = [site(session, turn) for turn in sorted(at)]
    items = build(
        session, sites, [hint(s) for s in sites], render=renderer(family, fixture), max_tokens=900
    )
    weights = {"lm_ce": {"weight": 0.0}, "hint": {"weight": 0.0}, channel: {"weight": 1.0}}
    trainer = perturbed(start_trainer(make_config(**weights), student_of(family, fixture)))
    for example in (item for item in items if isinstance(item, TrainingExample)):
        wanted = sorted(j - 1 for a, b in spans_of(example, channel) for j in range(a, b))
        losses, hidden = channel_losses(
            trainer.models, collate([example], pad_id=0), count([example])
        )
        if not losses:
            assert not wanted
            continue
        (grad_BTD,) = torch.autograd.grad(losses[0].mean_part(), hidden)
        assert (grad_BTD[0].abs().sum(-1) > 0).nonzero()[:, 0].tolist() == wanted
