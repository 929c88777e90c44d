"""Sampler, health, learning rate, watch list: the parts that need no model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.channel_names import CHANNELS
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError, StoppedError
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.tokens.batch import micro_batches
from composer_replication.tokens.forward_size import forward_sizes
from composer_replication.training.draws.batch_sampler import Sampler, share
from composer_replication.training.draws.identity import data_sha256
from composer_replication.training.draws.plan import check_train_plan
from composer_replication.training.run.health import ChannelStep, Health
from composer_replication.training.run.optimiser import learning_rate, make_optimiser
from composer_replication.training.run.token_probe import probe_examples
from tests.training.small_student import make_example, make_pair, small_model

# ---- sampler ----


@settings(max_examples=80, deadline=None)
@given(
    hinted=st.integers(0, 7),
    plain=st.integers(0, 9),
    batch=st.integers(2, 12),
    pairs=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_every_step_has_every_stratum_without_replacement(
    hinted: int, plain: int, batch: int, pairs: int, seed: int
) -> None:
    if hinted + plain == 0:
        return
    examples = [make_example(i, hints=1) for i in range(hinted)] + [
        make_example(100 + i, hints=0) for i in range(plain)
    ]
    sampler = Sampler(
        examples=examples,
        pairs=[make_pair(i) for i in range(pairs)],
        batch_examples=batch,
        seed=seed,
    )
    steps = [sampler.step(k) for k in range(12)]
    size = min(batch, hinted + plain)
    for drawn, drawn_pairs in steps:
        assert len(drawn) == size
        if hinted and plain:
            assert 0 < sum(bool(e.hints) for e in drawn) < size
        assert (len(drawn_pairs) > 0) == (pairs > 0)
    for stratum, count in ((True, hinted), (False, plain)):
        order = [e.id for drawn, _ in steps for e in drawn if bool(e.hints) == stratum]
        for start in range(0, len(order) - count + 1, count) if count else ():
            # each pass holds each example once
            assert len(set(order[start : start + count])) == count
    # a function of the step alone
    assert [e.id for e in sampler.step(5)[0]] == [e.id for e in steps[5][0]]


@settings(max_examples=60, deadline=None)
@given(
    both_kinds=st.integers(0, 5),
    hint=st.integers(0, 5),
    lm=st.integers(0, 5),
    neither=st.integers(0, 3),
    batch=st.integers(2, 6),
)
def test_every_step_feeds_every_channel_of_the_data_set(
    both_kinds: int, hint: int, lm: int, neither: int, batch: int
) -> None:
    """Also if hinted examples have no trained span, so that "exhausted" never means "not drawn in
    this step"."""
    kinds = [(both_kinds, 1, True), (hint, 1, False), (lm, 0, True), (neither, 0, False)]
    examples = [
        make_example(20 * k + i, hints=h, lm=t)
        for k, (n, h, t) in enumerate(kinds)
        for i in range(n)
    ]
    sampler = Sampler(examples=examples, batch_examples=batch, seed=3)
    for step in range(10):
        drawn, _ = sampler.step(step)
        assert any(e.hints for e in drawn) == (both_kinds + hint > 0)
        assert any(e.lm_spans for e in drawn) == (both_kinds + lm > 0)
        assert all(e.hints or e.lm_spans for e in drawn)


def test_one_example_a_step_is_refused_where_it_cannot_feed_both_channels() -> None:
    mixed = [make_example(0, hints=1), make_example(1, hints=0)]
    for examples in (mixed, [make_example(0, hints=1), make_example(1, hints=1, lm=False)]):
        with pytest.raises(ConfigError, match="batch_examples = 1") as caught:
            check_train_plan(TrainSettings(batch_examples=1), examples=examples)
        assert "train.batch_examples = 2" in caught.value.fix
        check_train_plan(TrainSettings(batch_examples=2), examples=examples)
    for alike in (mixed[:1], mixed[1:], [make_example(0), make_example(1)]):
        check_train_plan(TrainSettings(batch_examples=1), examples=alike)
        drawn = [
            e.id
            for step in range(len(alike))
            for e in Sampler(examples=alike, batch_examples=1, seed=1).step(step)[0]
        ]
        assert sorted(drawn) == [e.id for e in alike]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(20, 60), max_size=5),
    hints=st.integers(0, 2),
    sides=st.lists(st.integers(1, 30), max_size=4),
)
def test_an_item_that_does_not_fit_is_named_before_the_run(
    lengths: list[int], hints: int, sides: list[int]
) -> None:
    """The sizes are those that `micro_batches` raises for: one token less than the longest and a
    run would stop in its middle."""
    examples = [make_example(i, length=n, hints=hints) for i, n in enumerate(lengths)]
    pairs = [make_pair(i, prefix=5, chosen=n, rejected=3) for i, n in enumerate(sides)]
    if not examples and not pairs:
        return
    longest, name = max(forward_sizes(examples, pairs))
    check_train_plan(
        TrainSettings(micro_tokens=longest, layout="rows"), examples=examples, pairs=pairs
    )
    assert micro_batches(examples, pairs, micro_tokens=longest)
    with pytest.raises(ConfigError):
        micro_batches(examples, pairs, micro_tokens=longest - 1)
    with pytest.raises(
        ConfigError,
        match=rf"needs {longest} tokens in one forward, train.micro_tokens is {longest - 1}",
    ) as caught:
        check_train_plan(
            TrainSettings(micro_tokens=longest - 1, layout="rows"), examples=examples, pairs=pairs
        )
    assert (
        name in str(caught.value)
        and "build.max_tokens" in caught.value.fix
        and "verl and prime-rl" in caught.value.fix
        and f"train.micro_tokens = {longest}" in caught.value.fix
    )


def test_pairs_alone_and_pairs_in_proportion() -> None:
    pairs = [make_pair(i) for i in range(6)]
    examples, alone = Sampler(examples=[], pairs=pairs, batch_examples=4, seed=0).step(0)
    assert examples == [] and len({p.id for p in alone}) == 4
    _, drawn = Sampler(
        examples=[make_example(i) for i in range(12)], pairs=pairs, batch_examples=4, seed=0
    ).step(0)
    assert len(drawn) == 2


def test_pairs_come_with_the_example_they_branch_off() -> None:
    """Every pair of a drawn session is in the step, once per pass; of two windows, the one that
    begins with the prefix carries it."""
    examples = [make_example(i, hints=0) for i in range(8)]
    window = replace(examples[0], id="e0 later", ids=examples[0].ids[5:], lm_spans=(), hints=())
    window = replace(window, lm_spans=((4, 9),))
    pairs = [replace(make_pair(i), session_id=f"s{i % 3}", id=f"p{i}") for i in range(6)]
    pairs.append(replace(make_pair(9), session_id="s0", id="late", prefix_ids=window.ids[:7]))
    sampler = Sampler(examples=[*examples, window], pairs=pairs, batch_examples=3, seed=4)
    homes = dict(zip([p.id for p in pairs], sampler.trunk_ids, strict=True))
    assert homes == {
        "p0": "e0",
        "p1": "e1",
        "p2": "e2",
        "p3": "e0",
        "p4": "e1",
        "p5": "e2",
        "late": "e0 later",
    }
    recorded: list[str] = []
    for step in range(3):
        drawn, with_them = sampler.step(step)
        brought = [p.id for p in pairs if homes[p.id] in {e.id for e in drawn}]
        assert [p.id for p in with_them] == brought or (not brought and len(with_them) == 1)
        recorded += brought
    assert sorted(recorded) == sorted(homes)  # nine examples, three a step: one pass
    apart = [
        p.id
        for step in range(7)
        for p in Sampler(
            examples=examples, pairs=pairs, batch_examples=3, seed=4, batch_pairs=1
        ).step(step)[1]
    ]
    assert sorted(apart) == sorted(homes)  # alone: a separate pass


def test_seeds_and_passes_differ() -> None:
    examples = [make_example(i, hints=0) for i in range(8)]
    orders = [
        [e.id for e in Sampler(examples=examples, batch_examples=8, seed=s).step(k)[0]]
        for s, k in ((1, 0), (1, 1), (2, 0))
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_ranks_share_a_step_without_overlap() -> None:
    parts = [share(list(range(7)), rank=rank, world=3) for rank in range(3)]
    assert sorted(item for part in parts for item in part) == list(range(7))


# ---- health ----


def channel_step(inputs: int = 1, tokens: int = 5, grad_norm: float = 1.0) -> ChannelStep:
    return ChannelStep(inputs=inputs, tokens=tokens, loss=1.0, grad_norm=grad_norm)


GOOD = {name: channel_step() for name in CHANNELS}


def test_a_streak_warns_once_and_stops_at_its_length() -> None:
    health = Health(weights=dict.fromkeys(CHANNELS, 1.0), max_bad_steps=3)
    warned = []
    for step in range(1, 4):
        statuses = health.update_statuses({**GOOD, "hint": channel_step(grad_norm=0.0)})
        warned += health.warnings(statuses)
        if step < 3:
            health.check(statuses, step=step)
    assert [(w["channel"], w["status"]) for w in warned] == [
        ("hint", "dead")
    ] and "weight = 0" in warned[0]["fix"]
    with pytest.raises(StoppedError, match="hint was dead at step 3, 3 steps in a row"):
        health.check(statuses, step=3)


def test_a_good_step_ends_the_streak_and_dead_counts_with_starved() -> None:
    health = Health(weights=dict.fromkeys(CHANNELS, 1.0), max_bad_steps=2)
    for bad in (channel_step(grad_norm=0.0), channel_step(), channel_step(tokens=0)):
        statuses = health.update_statuses({**GOOD, "lm_ce": bad})
        health.check(statuses, step=1)
    with pytest.raises(StoppedError, match="lm_ce was dead"):
        health.check(health.update_statuses({**GOOD, "lm_ce": channel_step(grad_norm=0.0)}), step=2)


def test_state_survives_a_resume() -> None:
    health = Health(weights=dict.fromkeys(CHANNELS, 1.0), max_bad_steps=9)
    health.update_statuses(GOOD)
    health.update_statuses({**GOOD, "hint": channel_step(tokens=0)})
    restored = Health(weights=dict.fromkeys(CHANNELS, 1.0), max_bad_steps=9)
    restored.restore(health.state())
    assert (
        (restored.was_active, restored.bad_steps)
        == (health.was_active, health.bad_steps)
        == (
            dict.fromkeys(CHANNELS, True),
            {**dict.fromkeys(CHANNELS, 0), "hint": 1},
        )
    )


# ---- optimiser, identity, watch ----


def test_the_rate_rises_then_falls_in_straight_lines() -> None:
    plan = TrainSettings(steps=12, warmup_steps=4, learning_rate=8.0)
    assert [learning_rate(plan, step) for step in range(12)] == [2, 4, 6, 8, 8, 7, 6, 5, 4, 3, 2, 1]
    assert learning_rate(TrainSettings(steps=2, warmup_steps=0, learning_rate=1.0), 0) == 1.0
    assert learning_rate(
        TrainSettings(steps=2, warmup_steps=5, learning_rate=1.0), 1
    ) == pytest.approx(0.4)


def test_weight_decay_is_for_matrices() -> None:
    optimiser = make_optimiser(small_model(), TrainSettings(weight_decay=0.1))
    assert [(g["weight_decay"], {p.ndim for p in g["params"]}) for g in optimiser.param_groups] == [
        (0.1, {2}),
        (0.0, {1}),
    ]


def test_hashes_see_every_token_and_every_bit() -> None:
    examples, pairs = [make_example(0), make_example(1)], [make_pair(0)]
    assert (
        data_sha256(examples, pairs)
        == data_sha256(list(examples), pairs)
        != data_sha256(examples[::-1], pairs)
    )
    assert data_sha256(examples, pairs) != data_sha256(examples, [])
    model = small_model()
    before = weights_sha256(model)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1e-6
    assert weights_sha256(model) != before == weights_sha256(small_model())
    assert weights_sha256(model.bfloat16())


def test_watched_sites_take_kinds_in_turn() -> None:
    examples = [make_example(i, hints=1) for i in range(20)]
    assert [e.id for e in probe_examples(examples, num_sites=3)] == ["e0", "e1", "e2"]
    assert probe_examples([make_example(0, hints=0)], num_sites=3) == []
