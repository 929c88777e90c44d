"""The inputs of a run, and of each of its steps.

    data = prepare_data(config, examples=examples, pairs=pairs, live=live, forked=forked)
    inputs = StepInputs.of(*data.sampler(config).step(0), live_step=live_step, hint_sites=8)

Imported data are checked, nulled by a placebo and split into fork points here and nowhere else.
What comes after (sampler, token probe, identity, layout) reads `TrainingData`; the step reads
`StepInputs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.draws.batch_sampler import Sampler, imported_channels
from composer_replication.training.draws.forked import (
    ForkSource,
    ForkStep,
    TrainForkPoint,
    without_views,
)
from composer_replication.training.draws.identity import data_sha256
from composer_replication.training.draws.packing import Sharing, measure_sharing
from composer_replication.training.draws.placebo import null_data
from composer_replication.training.draws.plan import check_train_plan
from composer_replication.training.on_policy.live import LiveStep, RolloutSource


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of one optimiser step, over all ranks; each rank takes its share in `train_step`.

    `num_rollouts` is how many rollouts were sampled for the step, those of groups with equal
    rewards included: the policy's sum is divided by it. None = the examples that have an action
    with an advantage. `num_conversations` is how many conversations these rollouts have, if some
    have several (a subagent, a compaction): each is an example of its own. `hint_sites` is how many
    hint views a full step has: with fewer the hint channel weighs less in proportion, so that the
    last few mistakes do not move the policy as far as many did. 0 = it always weighs the same.
    `dataset` are the imported examples of the whole run: a contrast takes other sites' hints from
    them.
    """

    examples: list[TrainingExample]
    pairs: list[PreferencePair]
    num_rollouts: int | None = None
    num_conversations: int = 0
    hint_sites: int = 0
    dataset: Sequence[TrainingExample] = ()

    @classmethod
    def of(
        cls,
        examples: list[TrainingExample],
        pairs: list[PreferencePair],
        *,
        live_step: LiveStep | None = None,
        fork_step: ForkStep | None = None,
        hint_sites: int = 0,
        dataset: Sequence[TrainingExample] = (),
    ) -> Self:
        """Imported examples and pairs, with those of the step's rollouts and forks before them."""
        return cls(
            examples=[
                *(() if fork_step is None else fork_step.examples),
                *(() if live_step is None else live_step.examples),
                *examples,
            ],
            pairs=pairs,
            num_rollouts=None if live_step is None else live_step.num_rollouts,
            num_conversations=0 if live_step is None else len(live_step.rollouts),
            hint_sites=hint_sites,
            dataset=dataset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The data imported for a run, and the part of it that the steps are drawn from.

    `imported_examples` and `imported_pairs` are what `build` wrote: they identify the run.
    `examples` and `pairs` are the same after the placebo. `fork_points` are the sites at which the
    student writes anew (train.fork). `draws_examples` is False if rollouts take the place of
    imported examples; pairs and anchors are drawn all the same.
    """

    imported_examples: Sequence[TrainingExample]
    imported_pairs: Sequence[PreferencePair]
    examples: list[TrainingExample]
    pairs: list[PreferencePair]
    fork_points: tuple[TrainForkPoint, ...] = ()
    draws_examples: bool = True

    def sampler(self, config: Config) -> Sampler:
        """The sampler of each step's imported examples and pairs."""
        settings, preference = config.train, config.train.preference
        anchored = preference.weight and preference.anchor
        return Sampler(
            # the student writes at a fork point: what another model wrote there is not distilled
            examples=without_views(self.examples) if self.fork_points else self.examples,
            pairs=self.pairs,
            batch_examples=settings.batch_examples,
            seed=stage_seed(config.draw_seed, "sampler"),
            batch_pairs=preference.batch_pairs,
            batch_anchors=preference.batch_anchors if anchored else 0,
            imported=self.draws_examples,
            channels=imported_channels(settings),
        )

    def check_rows(self, settings: TrainSettings) -> None:
        """Raise ConfigError for an item that fits into a forward as a tree, and not as rows."""
        check_train_plan(
            settings,
            examples=self.imported_examples,
            pairs=self.imported_pairs,
            imported=self.draws_examples,
            layout="rows",
        )

    def sha256(self) -> str:
        """The hash of what was imported: a resume on other data is refused."""
        return data_sha256(self.imported_examples, self.imported_pairs)

    def sharing(self, *, hints: bool, pairs: bool) -> Sharing:
        """The part of the data that shares a trunk in the tree layout, by the channels that are
        on."""
        examples = self.imported_examples
        return measure_sharing(
            examples if hints else [replace(e, hints=()) for e in examples],
            self.imported_pairs if pairs else [],
        )


def prepare_data(
    config: Config,
    *,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    live: RolloutSource | None,
    forked: ForkSource | None,
) -> TrainingData:
    """Check what was imported against the settings, and apply the placebo to it.

    Raises DataError if there is nothing to train on, ConfigError if a channel that is on could
    never be fed, or if an item does not fit into one forward.
    """
    _check_sources(config, examples=examples, pairs=pairs, live=live, forked=forked)
    is_live = live is not None
    draws_examples = not is_live or config.train.lm_ce.weight > 0
    check_train_plan(config.train, examples=examples, pairs=pairs, imported=draws_examples)
    data = nulled_data(config, examples=examples, pairs=pairs, is_live=is_live)
    # after the placebo: the student writes below the hint that the placebo puts there
    fork_points = () if forked is None else forked.fork_points(data.examples)
    return replace(data, fork_points=fork_points)


def nulled_data(
    config: Config,
    *,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    is_live: bool,
) -> TrainingData:
    """The imported data, under the placebo of the settings; unchecked, and without fork points."""
    draws_examples = not is_live or config.train.lm_ce.weight > 0
    nulled_examples, nulled_pairs = null_data(
        examples, pairs, settings=config.train, seed=config.seed, imported=draws_examples
    )
    return TrainingData(
        imported_examples=examples,
        imported_pairs=pairs,
        examples=nulled_examples,
        pairs=nulled_pairs,
        draws_examples=draws_examples,
    )


def _check_sources(
    config: Config,
    *,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
    live: RolloutSource | None,
    forked: ForkSource | None,
) -> None:
    """Raise if there is nothing to train on, or if a channel is on that only rollouts could
    feed."""
    if config.train.fork != (forked is not None):
        raise ConfigError(
            "train.fork and its producer must be given together",
            where="train.fork",
            fix="give `forked`, or set it to false",
        )
    if config.train.fork and not config.train.hint.weight:
        raise ConfigError(
            "forks feed the hint channel, whose weight is 0",
            where="train.fork",
            fix="set train.hint.weight, or train.fork = false",
        )
    if not examples and not pairs and live is None:
        raise DataError(
            "no examples and no pairs: nothing to train on",
            fix="run `recompose build` and look at what it counts",
        )
    if config.train.policy.weight and live is None and not any(e.actions for e in examples):
        raise ConfigError(
            f"channel policy has weight {config.train.policy.weight}, but nothing is played",
            where="rollouts.env",
            fix="set rollouts.env to an environment, or train.policy.weight = 0",
        )
