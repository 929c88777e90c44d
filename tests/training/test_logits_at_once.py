"""No scoring holds the logits of all targets at once: memory must not grow with targets times
vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from composer_replication.core.config.hint_settings import HintSettings
from composer_replication.evaluation.hint_lift import audit_hints
from composer_replication.losses import chunk_size
from composer_replication.models.load_student import Student
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.forwards.reference import frozen_reference, live_reference
from composer_replication.training.on_policy.rewards import start_kl
from composer_replication.training.on_policy.rollout_metrics import measure_drift
from composer_replication.training.run import token_probe
from tests.losses.watch import Watch
from tests.training.small_student import WordTokenizer, make_example

V, D, ROWS = 4096, 8, 16
LOGPROBS = [-1.0] * 120


def long_example(number: int) -> TrainingExample:
    """A mistaken message of 60 tokens."""
    example = make_example(number, length=110, hints=1)
    (view,) = example.hints
    view = replace(view, at=48, span=(50, 110), target_ids=example.ids[50:110])
    return replace(example, hints=(view,))


EXAMPLES = [long_example(number) for number in range(4)]


def student() -> Student:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 1}
    config = LlamaConfig(vocab_size=V, hidden_size=D, intermediate_size=8, **shape)
    return Student(name="wide", model=LlamaForCausalLM(config).eval(), tokenizer=WordTokenizer())


def rollout() -> Any:
    """An episode of one message of 120 sampled tokens."""
    ids = tuple(range(2, 40)) * 4
    sampled = SimpleNamespace(ids=ids[-120:], logprobs=LOGPROBS)
    turn = SimpleNamespace(sampled=sampled, context_tokens=len(ids) - 120)
    session = SimpleNamespace(id="r", turns=[turn], assistant_turns=lambda: [(0, turn)])
    return SimpleNamespace(session=session, ids=ids)


def probe(one: Student) -> int:
    rows = token_probe.token_table(
        EXAMPLES,
        student=live_reference(one),
        teachers=[live_reference(one)],
        hint_settings=HintSettings(),
        tokenizer=one.tokenizer,
        pad_id=0,
        max_tokens=1000,
        device="cpu",
    )
    return sum(len(row["ids"]) for row in rows)


def audit(one: Student) -> int:
    found = audit_hints(one.model, EXAMPLES, pad_id=0, max_tokens=1000, seed=0)
    return sum(site.num_tokens for site in found.sites)


def kl(one: Student) -> int:
    start_kl(live_reference(one), [rollout()], pad_id=0, max_tokens=1000, device="cpu")
    return len(LOGPROBS)


def drift(one: Student) -> int:
    references = live_reference(one), frozen_reference(one)
    place: dict[str, Any] = {"pad_id": 0, "max_tokens": 1000, "device": "cpu"}
    return measure_drift(*references, [rollout()], episodes=1, **place).tokens


@pytest.mark.parametrize("score", [probe, audit, kl, drift])
def test_only_a_chunk_of_logits_exists_at_a_time(
    score: Callable[[Student], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chunk_size.BUFFERS, "cpu", 0)  # the least: 16 rows at a time
    one = student()
    with Watch() as watch:
        targets = score(one)
    # the fused losses have up to three buffers of a chunk in one tensor
    assert targets > 4 * ROWS and watch.largest <= 3 * ROWS * V
