"""The controls of `train.placebo`: each removes the information from one signal and leaves steps,
rollouts and most sites as they are.

    shuffled_hints     each site gets the hint of another site
    neutral_hints      each site gets a text without information, as long as its hint
    permuted_rewards   the rewards of a group go to another group, in random order
    random_rewards     each reward is 1 with p = 0.3, else 0
    permuted_penalties length penalty and behaviour rewards change places within their group
    swapped_pairs      chosen and rejected are swapped with p = 1/2, fixed for the run; anchors stay

Hints are changed before they are rendered, so a placebo's view goes through the same alignment as a
true one. Views of imported examples are rendered already, so their inserted ids are exchanged:
each view is still an insertion and nothing else. All are pure functions of their arguments and a
seed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.site import Hint
from composer_replication.tokens.example import HintView, PreferencePair, TrainingExample
from composer_replication.tokens.hint_donors import DonorSlot, shuffled_donors, shuffled_views

RANDOM_REWARD_P = 0.3
"""The share of random rewards that are 1: about the success rate of the measured students, so that
groups are flat as often as with true rewards."""
SWAP_P = 0.5
_NOTHING = (
    "Please go on with your work and take all the time you need as it is a good day and there is no"
    " hurry at all"
)
_WORDS = tuple(_NOTHING.split(" "))
_FILLERS = (".", " so", " a", "!", " it", ",")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nulled:
    """The hints of a placebo, and how many sites were left out because no text was found for
    them."""

    hints: tuple[Hint, ...]
    dropped: int


def null_hints(
    hints: Sequence[Hint],
    *,
    placebos: Sequence[str],
    groups: Mapping[str, str],
    count: Callable[[str], int],
    seed: int,
) -> Nulled:
    """The hints under `placebos`; unchanged if none of these is about hints.

    `groups` maps a site to its task, `count` counts the tokens of a text. Raises ConfigError if
    both placebos for hints are on.
    """
    if {"shuffled_hints", "neutral_hints"} <= set(placebos):
        raise ConfigError(
            "a hint cannot be another site's and neutral at once",
            where="train.placebo",
            fix="choose one of the two",
        )
    if "shuffled_hints" in placebos:
        return shuffle_hints(hints, groups=groups, seed=seed)
    if "neutral_hints" in placebos:
        return neutralise_hints(hints, count=count)
    return Nulled(hints=tuple(hints), dropped=0)


def shuffle_hints(hints: Sequence[Hint], *, groups: Mapping[str, str], seed: int) -> Nulled:
    """Each site gets the text of another site's hint, of another kind and task if there is one, and
    never its own text.

    Example: [Hint(site_id="a", text="use cat"), Hint(site_id="b", text="take path")] -> a gets
    "take path", b gets "use cat"
    """
    slots = [DonorSlot(hint=h.text, kind=h.kind, group=groups[h.site_id]) for h in hints]
    donors = shuffled_donors(slots, seed=seed)
    shuffled = [
        dataclasses.replace(h, text=hints[d].text, writer="placebo")
        for h, d in zip(hints, donors, strict=True)
        if d is not None
    ]
    return Nulled(hints=tuple(shuffled), dropped=len(hints) - len(shuffled))


def neutralise_hints(hints: Sequence[Hint], *, count: Callable[[str], int]) -> Nulled:
    """Each site gets words without information, as many tokens as its hint has, or one more or
    less."""
    texts = [neutral_text(count(h.text), count=count) for h in hints]
    neutral = [
        dataclasses.replace(h, text=text, writer="placebo")
        for h, text in zip(hints, texts, strict=True)
        if text is not None
    ]
    return Nulled(hints=tuple(neutral), dropped=len(hints) - len(neutral))


def neutral_text(num_tokens: int, *, count: Callable[[str], int]) -> str | None:
    """Words without information on any task, `num_tokens` long to within one token; None if the
    tokenizer allows none.

    >>> neutral_text(4, count=lambda text: len(text.split()))
    'Please go on with'
    """
    text = _WORDS[0]
    for number in range(1, 4 * num_tokens):
        longer = f"{text} {_WORDS[number % len(_WORDS)]}"
        if count(longer) > num_tokens:
            break
        text = longer
    for _ in range(8 * num_tokens):
        if count(text) == num_tokens:
            break
        fitting = [
            text + filler for filler in _FILLERS if count(text) < count(text + filler) <= num_tokens
        ]
        if not fitting:
            break
        text = fitting[0]
    return text if abs(count(text) - num_tokens) <= 1 else None


def null_rewards(
    groups: Sequence[Sequence[float]], *, placebos: Sequence[str], seed: int
) -> list[tuple[float, ...]]:
    """The rewards of a step's groups, in their order, under `placebos`.

    Permuted rewards change places as whole groups and then within their new group, so as many
    groups are flat as before and about as many tokens are trained. A permutation over all rollouts
    would make nearly every group uneven.
    """
    rng = random.Random(seed)
    rewards_by_group = [list(rewards) for rewards in groups]
    if "random_rewards" in placebos:
        return [
            tuple(float(rng.random() < RANDOM_REWARD_P) for _ in rewards)
            for rewards in rewards_by_group
        ]
    if "permuted_rewards" in placebos:
        rng.shuffle(rewards_by_group)
        for rewards in rewards_by_group:
            rng.shuffle(rewards)
    return [tuple(rewards) for rewards in rewards_by_group]


def null_penalties(
    groups: Sequence[Sequence[str]],
    terms_of: Mapping[str, Mapping[str, float]],
    *,
    placebos: Sequence[str],
    seed: int,
) -> dict[str, Mapping[str, float]]:
    """The shaping terms of a step's rollouts by session id, under `placebos`; `groups` are the
    session ids of each group.

    Permuted terms stay in their group, so that success still earns what it did and a group is
    penalised as much as before, but not the episode that did it.
    """
    if "permuted_penalties" not in placebos:
        return dict(terms_of)
    rng = random.Random(seed)
    nulled: dict[str, Mapping[str, float]] = {}
    for names in groups:
        donors = rng.sample(list(names), len(names))
        nulled |= {name: terms_of[donor] for name, donor in zip(names, donors, strict=True)}
    return nulled


def swap_pairs(pairs: Sequence[PreferencePair], *, seed: int) -> tuple[PreferencePair, ...]:
    """The pairs, each with its sides swapped with p = 1/2.

    The pair's name and the seed decide: the same in every step and after a resume.
    """

    def is_swapped(pair: PreferencePair) -> bool:
        return random.Random(stage_seed(seed, f"swap:{pair.id}")).random() < SWAP_P

    return tuple(
        (
            dataclasses.replace(p, chosen_ids=p.rejected_ids, rejected_ids=p.chosen_ids)
            if is_swapped(p)
            else p
        )
        for p in pairs
    )


def shuffle_views(examples: Sequence[TrainingExample], *, seed: int) -> list[TrainingExample]:
    """Examples whose hint views have exchanged their inserted ids; a view without a donor is left
    out."""
    views = [(e, v) for e in examples for v in e.hints]
    donors = shuffled_views([v for _, v in views], [e.session_id for e, _ in views], seed=seed)
    donor_ids = iter([None if d is None else views[d][1].hint_ids for d in donors])

    def exchange_ids(example: TrainingExample) -> tuple[HintView, ...]:
        views_with_donors = [(view, next(donor_ids)) for view in example.hints]
        return tuple(
            dataclasses.replace(view, hint_ids=ids)
            for view, ids in views_with_donors
            if ids is not None
        )

    return [dataclasses.replace(e, hints=exchange_ids(e)) if e.hints else e for e in examples]


def null_data(
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    *,
    settings: TrainSettings,
    seed: int,
    imported: bool = True,
) -> tuple[list[TrainingExample], list[PreferencePair]]:
    """Imported examples and pairs under the placebos that apply to them; without one, the same
    items.

    `imported` is False if imported examples are not trained on: beside live rollouts they may only
    provide anchors. Raises ConfigError for neutral hints if views are built already: they hold ids,
    and no text that could be measured and replaced.
    """
    examples, pairs = list(examples), list(pairs)
    if (
        "neutral_hints" in settings.placebo
        and imported
        and settings.hint.weight
        and any(e.hints for e in examples)
    ):
        raise ConfigError(
            "neutral hints cannot be put into views that are built already",
            where="train.placebo",
            fix="use shuffled_hints, or train on live rollouts only (train.lm_ce.weight = 0)",
        )
    if "shuffled_hints" in settings.placebo:
        examples = shuffle_views(examples, seed=stage_seed(seed, "placebo:views"))
    if "swapped_pairs" in settings.placebo:
        pairs = list(swap_pairs(pairs, seed=stage_seed(seed, "placebo:pairs")))
    return examples, pairs
