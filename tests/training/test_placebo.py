"""The controls as pure functions: the nulled signal, and everything else unchanged."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.site import Hint
from composer_replication.training.draws.placebo import (
    RANDOM_REWARD_P,
    neutral_text,
    null_data,
    null_hints,
    null_penalties,
    null_rewards,
    shuffle_hints,
    shuffle_views,
    swap_pairs,
)
from tests.training.small_student import make_example, make_pair


def hint(number: int, text: str, kind: str = "unknown_tool") -> Hint:
    return Hint(site_id=f"s{number}", text=text, writer="w", kind=kind)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 3)), max_size=14),
    seed=st.integers(0, 50),
)
def test_no_site_keeps_its_own_text_and_each_hint_is_used_once(
    texts: list[tuple[int, int, int]], seed: int
) -> None:
    hints = [hint(i, f"text {t}", f"kind {k}") for i, (t, k, _) in enumerate(texts)]
    groups = {f"s{i}": f"task {g}" for i, (_, _, g) in enumerate(texts)}
    nulled = shuffle_hints(hints, groups=groups, seed=seed)
    true_hints = {h.site_id: h for h in hints}
    assert all(
        h.text != true_hints[h.site_id].text and h.kind == true_hints[h.site_id].kind
        for h in nulled.hints
    )
    assert not Counter(h.text for h in nulled.hints) - Counter(h.text for h in hints)
    assert len(nulled.hints) + nulled.dropped == len(hints)
    assert nulled == shuffle_hints(hints, groups=groups, seed=seed)


def test_donors_are_of_another_kind_and_another_task_where_there_are_some() -> None:
    hints = [hint(i, f"text {i}", "ab"[i % 2]) for i in range(8)]
    groups = {f"s{i}": f"task {i % 4 // 2}" for i in range(8)}
    nulled = shuffle_hints(hints, groups=groups, seed=3)
    donor = {h.text: h for h in hints}
    assert len(nulled.hints) == 8
    for h in nulled.hints:
        assert donor[h.text].kind != h.kind and groups[donor[h.text].site_id] != groups[h.site_id]


def test_a_site_for_which_only_its_own_text_is_left_is_dropped_and_counted() -> None:
    alike = [hint(0, "same"), hint(1, "same"), hint(2, "same")]
    nulled = shuffle_hints(alike, groups={"s0": "a", "s1": "b", "s2": "c"}, seed=1)
    assert nulled.hints == () and nulled.dropped == 3


@settings(max_examples=60, deadline=None)
@given(num_tokens=st.integers(1, 60))
def test_neutral_texts_are_as_long_as_asked_for(num_tokens: int) -> None:
    def by_letters(text: str) -> int:  # a tokenizer that cuts words into pieces of three letters
        return sum(-(-len(word) // 3) for word in text.split(" "))

    for count in (lambda text: len(text.split(" ")), by_letters):
        text = neutral_text(num_tokens, count=count)
        if num_tokens >= 2:
            assert text is not None and abs(count(text) - num_tokens) <= 1
        assert text is None or text.startswith("Please")


def test_without_a_placebo_hints_are_as_they_were_and_two_at_once_are_refused() -> None:
    hints = [hint(0, "a"), hint(1, "b")]
    groups = {"s0": "t", "s1": "u"}
    assert null_hints(
        hints, placebos=("swapped_pairs",), groups=groups, count=len, seed=0
    ).hints == tuple(hints)
    with pytest.raises(ConfigError, match="at once"):
        null_hints(
            hints, placebos=("shuffled_hints", "neutral_hints"), groups=groups, count=len, seed=0
        )


def test_rewards_are_permuted_or_thrown() -> None:
    # every other group is flat, and a reward depends on the place in its group
    groups = [
        tuple(float(k % 3 == 0) for k in range(6)) if g % 2 else (0.0,) * 6 for g in range(60)
    ]
    flat = [rewards for group in groups for rewards in group]
    assert null_rewards(groups, placebos=(), seed=1) == groups
    permuted = null_rewards(groups, placebos=("permuted_rewards",), seed=1)
    assert sum(len(set(group)) == 1 for group in permuted) == 30 and sum(map(sum, permuted)) == sum(
        flat
    )
    assert [len(set(group)) for group in permuted] != [len(set(group)) for group in groups]
    uneven = [group for group in permuted if len(set(group)) == 2]
    by_place = [sum(group[k] for group in uneven) / 30 for k in range(6)]
    assert by_place == pytest.approx([1 / 3] * 6, abs=0.2)  # no position is favoured
    thrown = null_rewards(groups, placebos=("random_rewards",), seed=1)
    assert sum(map(sum, thrown)) / 360 == pytest.approx(RANDOM_REWARD_P, abs=0.08)
    # independent of the true ones
    assert thrown == null_rewards([(0.0,) * 6] * 60, placebos=("random_rewards",), seed=1)
    assert null_rewards(groups, placebos=("permuted_rewards",), seed=2) != permuted


def test_permuted_penalties_stay_in_their_group_and_leave_the_episode_that_earned_them() -> None:
    groups = [[f"g{i}:{k}" for k in range(4)] for i in range(40)]
    terms_of = {
        name: {"length": -0.1 * i} for i, name in enumerate(n for group in groups for n in group)
    }
    assert null_penalties(groups, terms_of, placebos=("permuted_rewards",), seed=3) == terms_of
    nulled = null_penalties(groups, terms_of, placebos=("permuted_penalties",), seed=3)
    for names in groups:
        true, changed = ([d[n]["length"] for n in names] for d in (terms_of, nulled))
        assert sorted(true) == sorted(changed)
    kept = sum(nulled[name] == terms_of[name] for name in terms_of)
    assert 15 <= kept <= 70  # one in four, by chance
    again = null_penalties(groups, terms_of, placebos=("permuted_penalties",), seed=4)
    assert again != nulled


def test_about_half_of_the_pairs_are_swapped_for_good() -> None:
    pairs = [make_pair(i) for i in range(200)]
    swapped = swap_pairs(pairs, seed=5)
    turned = [
        a.chosen_ids == b.rejected_ids and a.rejected_ids == b.chosen_ids
        for a, b in zip(swapped, pairs, strict=True)
    ]
    assert all(t or a == b for t, a, b in zip(turned, swapped, pairs, strict=True))
    assert 75 <= sum(turned) <= 125
    assert swap_pairs(pairs[::-1], seed=5) == swapped[::-1] and swap_pairs(pairs, seed=6) != swapped


def test_views_of_imported_examples_change_hints_and_stay_insertions() -> None:
    examples = [make_example(i, hints=i % 3) for i in range(9)]
    changed = shuffle_views(examples, seed=4)
    true_hints = {v.site_id: v for e in examples for v in e.hints}
    views = [v for e in changed for v in e.hints]
    assert len(views) == len(true_hints) == 9
    for view in views:
        true = true_hints[view.site_id]
        assert view.hint_ids != true.hint_ids
        assert (view.at, view.span, view.target_ids) == (true.at, true.span, true.target_ids)
    assert [(e.id, e.ids, e.lm_spans) for e in changed] == [
        (e.id, e.ids, e.lm_spans) for e in examples
    ]


def test_what_is_imported_follows_the_setting() -> None:
    examples, pairs = [make_example(i) for i in range(4)], [make_pair(i) for i in range(20)]
    same = null_data(examples, pairs, settings=TrainSettings(), seed=1)
    assert all(a is b for a, b in zip([*same[0], *same[1]], [*examples, *pairs], strict=True))
    hints, sides = null_data(
        examples, pairs, settings=TrainSettings(placebo=("shuffled_hints", "swapped_pairs")), seed=1
    )
    assert hints != examples and sides != pairs
    with pytest.raises(ConfigError, match="neutral hints cannot be put"):
        null_data(examples, pairs, settings=TrainSettings(placebo=("neutral_hints",)), seed=1)
    unused = null_data(
        examples, pairs, settings=TrainSettings(placebo=("neutral_hints",)), seed=1, imported=False
    )
    assert unused == (examples, pairs)  # with live rollouts these views are never trained
