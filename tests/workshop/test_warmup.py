"""The tiny student's tokenizer and warm-up: short episodes, text that reads back, the same weights
for the same seed."""

from __future__ import annotations

import random

import pytest
import torch

from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.demonstrators import Habits
from composer_replication.workshop.lessons import LessonTests, make_lesson
from composer_replication.workshop.warmup.tokenizer import FAMILY, workshop_tokenizer
from composer_replication.workshop.warmup.warm_up import (
    COPY_LENGTH,
    WarmUpSettings,
    copies,
    mean_loss,
    warm_up,
)

LESSONS = [make_lesson(f"unseen:{i}", habits=Habits(), tests=LessonTests()) for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return workshop_tokenizer()


def test_an_episode_is_short_and_reads_back(tokenizer: object) -> None:
    renderer = Renderer.for_tokenizer(tokenizer)
    assert renderer.family is not None and renderer.family.name == FAMILY
    rendered = [renderer.render(lesson.turns, tools=lesson.tools) for lesson in LESSONS]
    assert all(renderer.codec.decode(r.ids) == r.text for r in rendered)
    assert sum(len(r.ids) for r in rendered) / len(rendered) < 260
    assert (
        renderer.codec.decode(
            renderer.codec.encode("Grüße, <tool_calls> ünseen_word 123\n", cuts=()).ids
        )
        == "Grüße, <tool_calls> ünseen_word 123\n"
    )


def test_names_stay_apart_from_the_phrases_around_them(tokenizer: object) -> None:
    """A name is encoded the same in the list of tools, in a call, in an error and in a hint: it can
    be copied."""
    renderer = Renderer.for_tokenizer(tokenizer)
    for lesson in LESSONS:
        ids = renderer.render(lesson.turns, tools=lesson.tools).ids
        for tool in lesson.tools:
            name = tuple(renderer.codec.encode(tool.name, cuts=()).ids)
            called = sum(call.name == tool.name for turn in lesson.turns for call in turn.calls)
            count = sum(ids[i : i + len(name)] == name for i in range(len(ids)))
            assert count >= 1 + called, tool.name


def test_copies_are_said_twice_and_only_the_second_is_trained() -> None:
    for row in copies(random.Random(0), list(range(50, 90))):
        assert row.ids[:COPY_LENGTH] == row.ids[COPY_LENGTH:]
        ((start, end),) = row.lm_spans
        assert (start, end) == (COPY_LENGTH + 1, 2 * COPY_LENGTH)


def test_the_same_seed_gives_the_same_student_and_it_learns_the_lessons(tokenizer: object) -> None:
    plan = WarmUpSettings(steps=12, lessons=4, ramp=4, copy_steps=6, seed=3)
    first, second = (warm_up(tokenizer, plan=plan) for _ in range(2))
    other_student = warm_up(
        tokenizer, plan=WarmUpSettings(steps=12, lessons=4, ramp=4, copy_steps=6, seed=4)
    )
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)]
    assert all(same) and not all(
        torch.equal(a, b)
        for a, b in zip(first.parameters(), other_student.parameters(), strict=True)
    )
    assert 400_000 <= sum(p.numel() for p in first.parameters()) <= 800_000


def test_only_what_the_player_says_is_trained(tokenizer: object) -> None:
    """Moving a token that the environment wrote must not be rewarded: its logits get no
    gradient."""
    from composer_replication.models.tiny import make_tiny
    from composer_replication.workshop.warmup.warm_up import _batches

    model = make_tiny(tokenizer, seed=0)
    renderer = Renderer.for_tokenizer(tokenizer)
    rows = next(_batches(renderer, WarmUpSettings(lessons=2, seed=1)))
    for row in rows:
        text = [renderer.codec.decode(row.ids[a:b]) for a, b in row.lm_spans]
        assert all(
            t.endswith("<|im_end|>") and ("<tool_call>" in t or t.startswith("Done.")) for t in text
        )
    # log of the vocabulary: random weights know nothing
    assert mean_loss(model, rows, pad_id=0).item() == pytest.approx(6.4, abs=0.6)
