"""A channel without a weight gets no slots of a step; with all weights the draws stay as they are,
so that published runs can be repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from composer_replication.core.channel_names import Channel
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.tokens.example import TrainingExample
from composer_replication.training.draws.batch_sampler import (
    IMPORTED,
    Sampler,
    drawn_examples,
    imported_channels,
)
from composer_replication.training.draws.plan import check_train_plan
from composer_replication.training.inputs import nulled_data
from tests.training.small_student import make_example, make_pair

HINTED = [make_example(i, hints=1) for i in range(3)]
PLAIN = [make_example(10 + i, hints=0) for i in range(6)]
HINT_ONLY = [make_example(20 + i, hints=1, lm=False) for i in range(2)]


def sampler_of(
    examples: list[TrainingExample], *, lm_ce: float, hint: float, batch: int, seed: int = 5
) -> Sampler:
    """The sampler of a run with these weights."""
    config = Config.model_validate(
        {
            "seed": seed,
            "train": {
                "batch_examples": batch,
                "lm_ce": {"weight": lm_ce},
                "hint": {"weight": hint},
            },
        }
    )
    check_train_plan(config.train, examples=examples)
    return nulled_data(config, examples=examples, pairs=[], is_live=False).sampler(config)


def ids(sampler: Sampler, *, steps: int) -> list[list[str]]:
    return [[e.id for e in sampler.step(k)[0]] for k in range(steps)]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_without_lm_ce_every_slot_goes_to_an_example_with_hint_views(batch: int) -> None:
    """Slots used to go to sessions without a hint in proportion, which trained nothing; with one
    example a step the run was refused."""
    examples = [*HINTED, *PLAIN, *HINT_ONLY]
    steps = ids(sampler_of(examples, lm_ce=0.0, hint=1.0, batch=batch), steps=15)
    hinted = {e.id for e in (*HINTED, *HINT_ONLY)}
    assert all(len(step) == min(batch, 5) and set(step) <= hinted for step in steps)
    drawn = [name for step in steps for name in step]
    for start in range(0, len(drawn) - 5 + 1, 5):  # each pass holds each once
        assert set(drawn[start : start + 5]) == hinted


def test_without_hints_every_slot_goes_to_a_message_that_lm_ce_trains() -> None:
    """And where every example has one, the sessions are those that the hint channel's run draws."""
    alone = ids(sampler_of([*HINTED, *PLAIN, *HINT_ONLY], lm_ce=1.0, hint=0.0, batch=4), steps=6)
    both = ids(sampler_of([*HINTED, *PLAIN], lm_ce=1.0, hint=1.0, batch=4), steps=6)
    assert alone == both
    one = ids(sampler_of([*HINTED, *PLAIN], lm_ce=1.0, hint=0.0, batch=1), steps=9)
    assert sorted(name for (name,) in one) == sorted(e.id for e in (*HINTED, *PLAIN))


def test_with_all_weights_the_draws_are_those_of_the_published_runs() -> None:
    examples = [make_example(i, hints=i % 4 == 1) for i in range(9)]
    pairs = [make_pair(i) for i in range(6)]
    sampler = Sampler(examples=examples, pairs=pairs, batch_examples=4, seed=7)
    assert ids(sampler, steps=3) == [
        ["e1", "e6", "e8", "e3"],
        ["e5", "e7", "e2", "e4"],
        ["e1", "e0", "e4", "e0"],
    ]
    assert [[p.id for p in sampler.step(k)[1]] for k in range(3)] == [
        ["p1", "p3"],
        ["p2", "p4", "p5"],
        ["p0", "p1", "p4"],
    ]


@pytest.mark.parametrize("channels", [(), ("hint",)])
def test_where_no_example_trains_a_channel_they_are_drawn_for_their_pairs(
    channels: tuple[Channel, ...],
) -> None:
    pairs = [replace(make_pair(i), session_id=f"s{10 + i}") for i in range(6)]
    both, without = (
        Sampler(examples=PLAIN, pairs=pairs, batch_examples=2, seed=1, channels=some)
        for some in (IMPORTED, channels)
    )
    assert [both.step(k) for k in range(4)] == [without.step(k) for k in range(4)]


def test_pairs_of_sessions_that_are_not_drawn_come_on_their_own() -> None:
    pairs = [replace(make_pair(i), session_id=f"s{10 + i}") for i in range(6)]
    sampler = Sampler(
        examples=[*HINTED, *PLAIN], pairs=pairs, batch_examples=3, seed=1, channels=("hint",)
    )
    drawn = [p.id for p in sampler.step(0)[1]]
    assert sorted(drawn) == sorted(p.id for p in pairs)  # one pass over the three hinted examples


def test_a_run_that_forks_feeds_the_hint_channel_itself() -> None:
    settings = TrainSettings.model_validate({"fork": True, "batch_examples": 1})
    assert imported_channels(settings) == ("lm_ce",)
    check_train_plan(settings, examples=[*HINTED, *PLAIN])
    assert drawn_examples(HINT_ONLY + PLAIN, ("lm_ce",)) == PLAIN
