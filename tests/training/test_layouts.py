"""A step in the layout "tree" is the step in "rows": every channel's value, its norm, and every
parameter's gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.channel_names import CHANNELS, Channel
from composer_replication.core.config.student_settings import LoraSettings, StudentSettings
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.models import tree_forward as tree_module
from composer_replication.models.load_student import Student, load_student
from composer_replication.tokens.batch import collate
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    SampledMessage,
    TrainingExample,
)
from composer_replication.tokens.forward_size import forward_sizes
from composer_replication.tokens.tree import Forest
from composer_replication.training.draws.packing import (
    Sharing,
    assign_to_ranks,
    measure_sharing,
    pack_micro_batches,
    session_trees,
)
from composer_replication.training.draws.plan import check_train_plan
from composer_replication.training.forwards import passes as passes_module
from composer_replication.training.forwards.passes import RequiredForwards, run_passes
from composer_replication.training.loop import train
from tests.models.tree_models import gap, make
from tests.training.small_student import (
    WordTokenizer,
    make_config,
    make_example,
    make_pair,
    make_run,
    make_student,
    small_model,
)
from tests.training.trees import Session, make_session, outcome, sessions, trainer_of

TEACHERS = ("live", "frozen", "ema")


def exact_student(family: str = "qwen3", **options: Any) -> Student:
    return Student(name="test", model=make(family, **options).double(), tokenizer=WordTokenizer())


def check_layouts(
    student: Callable[[], Student], data: Session, *, within: float = 1e-6, **train: Any
) -> None:
    """Both layouts on their own copy of one student: values and gradients of all channels
    together."""
    (losses, gradients), (expected, wanted) = (
        outcome(trainer_of(student(), layout, **train), data) for layout in ("tree", "rows")
    )
    for name in CHANNELS:
        assert losses[name].tokens == expected[name].tokens > 0
        assert losses[name].loss == pytest.approx(expected[name].loss, rel=within, abs=within)
        assert losses[name].grad_norm == pytest.approx(expected[name].grad_norm, rel=10 * within)
        assert losses[name].metrics == pytest.approx(expected[name].metrics, rel=within, abs=within)
    assert gap(gradients, wanted) <= within


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), teacher=st.sampled_from(TEACHERS), repeated=st.booleans())
def test_random_sessions(seed: int, teacher: str, repeated: bool) -> None:
    check_layouts(
        exact_student,
        sessions(seed, seed + 1, turns=7, repeated=repeated),
        hint={"weight": 1.0, "teacher": teacher},
    )


@pytest.mark.parametrize("teacher", TEACHERS)
@pytest.mark.parametrize("overlap", ["whole", "half"])
def test_a_hint_that_repeats_the_trunk(teacher: str, overlap: str) -> None:
    """A hint of the very tokens that follow it: its branch is (partly) the trunk itself, a part of
    it that gets a gradient."""
    ids = tuple(2 + (k % 4) for k in range(40))  # four tokens over and over
    hint = ids[8:12] if overlap == "whole" else (*ids[8:10], 30, 31)
    view = HintView(
        site_id="s", kind="k", at=8, hint_ids=hint, span=(14, 19), target_ids=ids[14:19]
    )
    later = HintView(
        site_id="t", kind="k", at=20, hint_ids=ids[20:24], span=(21, 23), target_ids=ids[21:23]
    )
    action = SampledMessage(span=(30, 34), logprobs=(-3.0,) * 4, advantage=0.5)
    example = TrainingExample(
        id="e",
        session_id="s0",
        ids=ids,
        lm_spans=((4, 7), (35, 40)),
        hints=(view, later),
        actions=(action,),
        anchored=((24, 28),),
    )
    pair = PreferencePair(
        id="p",
        session_id="s0",
        prefix_ids=ids[:12],
        chosen_ids=ids[12:15],
        rejected_ids=(ids[12], 33),
    )
    forest = Forest.grow([ids, example.teacher_ids(view)])
    assert forest.over(range(2)).size == 40 + (
        0 if overlap == "whole" else len(example.teacher_ids(view)) - 10
    )
    check_layouts(exact_student, ([example], [pair]), hint={"weight": 1.0, "teacher": teacher})


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_sliding_windows(family: str) -> None:
    check_layouts(lambda: exact_student(family), sessions(1, turns=9))


def test_lora_whose_teacher_is_its_start(tmp_path: Path) -> None:
    small_model().save_pretrained(str(tmp_path / "base"))
    settings = StudentSettings(model=str(tmp_path / "base"), lora=LoraSettings(rank=2, alpha=8))

    def student() -> Student:
        loaded = load_student(settings, tokenizer=WordTokenizer(), seed=3)
        return dataclasses.replace(loaded, model=loaded.model.double())

    for teacher in ("frozen", "live"):
        check_layouts(student, sessions(2, 3), hint={"weight": 1.0, "teacher": teacher})


def test_gradient_checkpointing() -> None:
    def student() -> Student:
        checkpointed = exact_student()
        checkpointed.model.gradient_checkpointing_enable({"use_reentrant": False})
        return checkpointed

    check_layouts(student, sessions(4, 5))


@pytest.mark.parametrize("objective", ["dpo", "clone"])
def test_cutting_a_step_into_trees_changes_nothing(objective: str) -> None:
    data = sessions(1, 2, 3)
    trainer = trainer_of(
        exact_student(), "tree", preference={"weight": 1.0, "objective": objective}
    )
    losses, gradients = outcome(trainer, data)
    for micro_tokens in (64, 90, 200):
        small = trainer_of(
            exact_student(),
            "tree",
            preference={"weight": 1.0, "objective": objective},
            micro_tokens=micro_tokens,
        )
        again, again_gradients = outcome(small, data)
        assert gap(again_gradients, gradients) <= 1e-6
        assert all(
            again[name].loss == pytest.approx(losses[name].loss, rel=1e-7) for name in CHANNELS
        )
        assert all(
            again[name].grad_norm == pytest.approx(losses[name].grad_norm, rel=1e-6)
            for name in CHANNELS
        )


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_channels_share_the_leaves_and_nothing_else(layout: str) -> None:
    """The gradient of all together is the sum of those of each alone, and a channel's norm is that
    of its own mean, whatever its scale."""
    trainer, data = trainer_of(exact_student(), layout), sessions(1, 2)
    scales: dict[Channel, float] = {"policy": 0.5, "lm_ce": 1.0, "hint": 2.0, "preference": 0.25}
    together, gradients = outcome(trainer, data, scales)
    sums = [torch.zeros_like(g) for g in gradients]
    for name, scale in scales.items():
        alone, scaled = outcome(trainer, data, {name: 3.0 * scale})
        assert (
            alone[name].grad_norm == pytest.approx(together[name].grad_norm, rel=1e-9)
            and together[name].grad_norm > 0
        )
        assert max(float(g.abs().max()) for g in scaled) > 1e-6
        sums = [a + b / 3.0 for a, b in zip(sums, scaled, strict=True)]
    assert gap(sums, gradients) <= 1e-6


# ---- which passes are made ----


def forward_passes(
    monkeypatch: pytest.MonkeyPatch, student: Student, **train: Any
) -> list[tuple[int, bool, bool]]:
    """(tokens, with gradient, on a cache) of each forward of a step's one micro-batch."""
    passes: list[tuple[int, bool, bool]] = []
    original = tree_module.tree_hidden

    def spying(model: Any, plan: Any, **kwargs: Any) -> torch.Tensor:
        passes.append((plan.size, torch.is_grad_enabled(), plan.cached is not None))
        return original(model, plan, **kwargs)

    monkeypatch.setattr(passes_module, "tree_hidden", spying)
    trainer = trainer_of(student, "tree", **train)
    examples, pairs = sessions(1)
    batch = collate(examples, pairs, pad_id=0)
    run_passes(trainer.models, batch, RequiredForwards.of(trainer.settings, batch))
    return passes


def test_a_live_teacher_reads_only_the_hints_and_a_frozen_one_is_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    student, live, reference = forward_passes(monkeypatch, make_student())
    assert (
        student[1:] == (True, False)
        and live[1:] == (False, True)
        and reference[1:] == (False, False)
        and live[0] < student[0] / 2
    )
    again, frozen_hint = forward_passes(
        monkeypatch, make_student(), hint={"weight": 1.0, "teacher": "frozen"}
    )
    assert (
        again == student
        and frozen_hint[1:] == (False, False)
        and reference[0] < frozen_hint[0] <= reference[0] + student[0] + live[0]
    )
    _, ema, ema_passes = forward_passes(
        monkeypatch, make_student(), hint={"weight": 1.0, "teacher": "ema"}
    )
    assert ema_passes == reference and ema[1:] == (False, False)


def test_with_dropout_the_live_teacher_scores_the_trunk_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, teacher, _ = forward_passes(monkeypatch, make_student(dropout=0.5))
    assert teacher[1:] == (False, False)


def test_a_rejected_turn_of_the_session_costs_nothing() -> None:
    example = make_example(0, length=40, hints=0)
    pair = PreferencePair(
        id="p",
        session_id="s0",
        prefix_ids=example.ids[:20],
        chosen_ids=(2, 3),
        rejected_ids=example.ids[20:24],
    )
    (tree,) = session_trees([example], [pair], micro_tokens=1000)
    assert tree.tokens == 42


# ---- trees, ranks, sizes ----


@settings(max_examples=40, deadline=None)
@given(
    numbers=st.sets(st.integers(0, 99), min_size=1, max_size=6),
    limit=st.integers(80, 300),
    ranks=st.integers(1, 4),
)
def test_nothing_is_lost_cut_or_too_long_on_any_rank(
    numbers: set[int], limit: int, ranks: int
) -> None:
    examples, pairs = sessions(*sorted(numbers))
    shares = assign_to_ranks(
        session_trees(examples, pairs, micro_tokens=limit), ranks=ranks, pair_weight=1e-3
    )
    micros = [micro for trees in shares for micro in pack_micro_batches(trees, micro_tokens=limit)]
    assert sorted(e.id for part, _ in micros for e in part) == sorted(e.id for e in examples)
    assert sorted(p.id for _, part in micros for p in part) == sorted(p.id for p in pairs)
    for trees in shares:
        assert all(
            tree.tokens <= limit and len({item.session_id for item in tree.items}) == 1
            for tree in trees
        )
    work = [sum(tree.work(pair_weight=1e-3) for tree in trees) for trees in shares]
    largest = max(tree.work(pair_weight=1e-3) for trees in shares for tree in trees)
    # no rank has more than one tree more than another
    assert max(work) - min(work) <= largest + 1e-9


def test_a_session_stays_in_one_forward_where_it_fits() -> None:
    examples, pairs = sessions(1, 2, 3)
    for part, part_pairs in pack_micro_batches(
        session_trees(examples, pairs, micro_tokens=110), micro_tokens=110
    ):
        assert {p.session_id for p in part_pairs} <= {e.session_id for e in part}


def test_the_sizes_of_the_plan_are_those_that_trees_are_cut_by() -> None:
    examples, pairs = (
        [make_example(0, length=40, hints=1)],
        [make_pair(1, prefix=30, chosen=9, rejected=11)],
    )
    longest, name = max(forward_sizes(examples, pairs, layout="tree"))
    assert (longest, name) == (50, "pair p1 (both sides)")
    check_train_plan(TrainSettings(micro_tokens=50), examples=examples, pairs=pairs)
    assert session_trees(examples, pairs, micro_tokens=50)
    for check in (
        lambda: check_train_plan(TrainSettings(micro_tokens=49), examples=examples, pairs=pairs),
        lambda: session_trees(examples, pairs, micro_tokens=49),
    ):
        with pytest.raises(
            ConfigError, match=r"needs 50 tokens in one forward, train.micro_tokens is 49"
        ):
            check()


def test_what_shares_a_trunk_is_counted() -> None:
    data = make_session(1, turns=12)
    sharing = measure_sharing(*data)
    assert sharing == Sharing(sites=len(data[0][0].hints), pairs=len(data[1]), pairs_alone=1)
    assert "1 pairs bring a context of their own" in sharing.text()
    assert measure_sharing([], [make_pair(0)]).pairs_alone == 1
    (example,) = data[0]
    # a single other token is a context of its own
    for prefix_ids, alone in ((example.ids[:9], 0), ((*example.ids[:9], 1 + example.ids[9]), 1)):
        pair = replace(make_pair(0), session_id=example.session_id, prefix_ids=prefix_ids)
        assert measure_sharing([example], [pair]).pairs_alone == alone


# ---- models for which a tree is not exact ----


def test_a_model_with_state_falls_back_to_rows_and_says_why(tmp_path: Path) -> None:
    config = make_config(steps=1, layout="tree")
    run = make_run(tmp_path, config)
    train(
        config,
        student=Student(name="t", model=make("qwen3_5"), tokenizer=WordTokenizer()),
        examples=[make_example(0)],
        run=run,
    )
    (start,) = [e for e in run.events() if e["kind"] == "start"]
    assert start["layout"] == "rows" and "linear_attention layers" in start["why_rows"]
    fallback = make_run(tmp_path, config, name="tree")
    train(
        config,
        student=make_student(),
        examples=[make_example(0)],
        pairs=[make_pair(0)],
        run=fallback,
    )
    (start,) = [e for e in fallback.events() if e["kind"] == "start"]
    assert start["layout"] == "tree" and "sites" in start["sharing"] and "why_rows" not in start
