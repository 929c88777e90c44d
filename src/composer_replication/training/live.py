"""A step's examples from the policy's own rollouts: play, find the mistakes, write hints, build
views, weigh the messages.

    with open_world("workshop") as world:
        live = RolloutSource(config=config, renderer=Renderer.for_tokenizer(tokenizer), world=world)
        made = live.step(student.model, step=3)
        made.examples, made.num_rollouts, made.facts["rollouts/success"]

A rollout is a session like an imported one: the same detectors and writers, the same builder. Its
ids are those that were sampled; where the builder renders them again, they are compared one by one.
lm_ce gets nothing of it: what the student wrote is no model answer. Everything is a function of
(config.seed, step) and the weights, so a resumed run repeats itself bit by bit on the same CPU. On
several ranks every rank samples the same rollouts from the same seed and then takes its share of
the examples in `train_step`. An episode that ended for want of room, or in malformed calls, is
scored like any other; none is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import BuildSettings, HintSettings
from composer_replication.core.errors import AlignmentError
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Session
from composer_replication.losses.credit import difficulty_weight
from composer_replication.rollouts.behaviours import check_behaviours
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.groups import (
    Group,
    Groups,
    advantages,
    drop_stale,
    drop_unanswered,
    sample_groups,
    scaled_advantages,
)
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import Sampling
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.task_source import TaskSource
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import HintView, SampledMessage, TrainingExample
from composer_replication.tokens.forward_size import check_forward_size
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.objectives import SCALED
from composer_replication.training.placebo import null_hints, null_rewards
from composer_replication.training.rewards import shaped_rewards
from composer_replication.training.rollout_hints import draw_messages, hint_rollouts, view_metrics
from composer_replication.training.rollout_metrics import rollout_facts

AUTHOR = "student"
MeasureKL = Callable[[Sequence[Rollout]], Mapping[str, float]]
"""The KL of each rollout to the start by session id: training/rollback.py has the start's
weights."""
# an episode is one window: what does not fit into a forward is counted here
_WHOLE = BuildSettings(max_tokens=1_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStep:
    """What one step's rollouts gave; `num_rollouts` counts all of them, flat groups included.
    `facts` are numbers by metric name.

    `examples` hold every rollout with something to train on: a message with an advantage, or a hint
    view. `sites` and `hints` are those of the views.
    """

    examples: tuple[TrainingExample, ...]
    rollouts: tuple[Rollout, ...]
    metrics: Mapping[str, float]
    sites: tuple[Site, ...] = ()
    hints: tuple[Hint, ...] = ()
    num_left_out: int = 0

    @property
    def num_rollouts(self) -> int:
        """By this Dr.GRPO divides: a flat group's rollouts add zero to the sum and one each to the
        count, those left out neither."""
        return len(self.rollouts) - self.num_left_out

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The episodes."""
        return tuple(rollout.session for rollout in self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinted:
    """The hint views of a step by session, and what became of its mistakes on the way."""

    views: Mapping[str, tuple[HintView, ...]]
    facts: Mapping[str, float]
    sites: tuple[Site, ...] = ()
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSource:
    """The producer of a run; `kept` are the kinds of hints that the audit kept, None = all kinds
    (no audit was made).

    Raises ConfigError where an episode may be longer than one forward.
    """

    config: Config
    renderer: Renderer
    task_source: TaskSource
    kept_kinds: frozenset[str] | None = None
    author: str = AUTHOR
    stats: SamplingStats = field(default_factory=SamplingStats)

    def __post_init__(self) -> None:
        check_behaviours(self.config.train.policy.behaviours)
        check_forward_size(
            "an episode of rollouts.max_context_tokens",
            self.config.rollouts.max_context_tokens,
            micro_tokens=self.config.train.micro_tokens,
            remedy="lower rollouts.max_context_tokens",
        )

    def step(self, model: Any, *, step: int, kl: MeasureKL | None = None) -> LiveStep:
        """Play the step's tasks with these weights and make its examples; `kl` measures rollouts
        where it is part of the reward."""
        settings, train = self.config.rollouts, self.config.train
        sampled = sample_groups(
            self.task_source.train(self._seed(f"tasks:{step}")),
            num_groups=settings.groups,
            size=settings.group_size,
            max_extra=settings.extra_groups,
            sample=partial(
                sample_rollouts,
                model,
                renderer=self.renderer,
                settings=self.sampling(),
                author=self.author,
                version=step,
                stats=self.stats,
            ),
            label=f"step-{step}:",
        )
        complete = drop_unanswered(sampled)
        groups = drop_stale(complete, now=step, max_staleness=settings.max_staleness)
        told = {
            "rollouts/unwritten": len(sampled.rollouts) - len(complete.rollouts),
            "rollouts/stale": len(complete.rollouts) - len(groups.rollouts),
        }
        measured = kl(groups.rollouts) if kl is not None and train.policy.kl else None
        rewards_of = shaped_rewards(
            groups.rollouts, train.policy, count=self.renderer.codec.count, kl=measured
        )
        advantage = group_advantages(
            groups,
            how=train.placebo,
            seed=self._seed(f"rewards:{step}"),
            rewards_of=rewards_of,
            scaled=train.policy.objective in SCALED,
        )
        hinted = self._hinted(groups.rollouts, step=step)
        weighted = advantage if train.policy.weight else {}
        views, no_difficulty = informed(groups, hinted.views, how=train.hint)
        examples = [
            example_of(r, advantage=weighted.get(r.session.id), views=views.get(r.session.id, ()))
            for r in groups.rollouts
        ]
        return LiveStep(
            examples=tuple(e for e in examples if e.actions or e.hints),
            rollouts=sampled.rollouts,
            metrics={
                **rollout_facts(sampled, advantage, families=self.task_source.metadata.families),
                **_reward_metrics(rewards_of, measured),
                **told,
                **hinted.facts,
                **no_difficulty,
            },
            sites=hinted.sites,
            hints=hinted.hints,
            num_left_out=sum(told.values()),
        )

    def monitor(self, model: Any) -> tuple[float, ...]:
        """Success on each task of the monitor set: the same tasks and the same random numbers every
        time."""
        makers = self.task_source.monitor(self._seed("monitor"), self.config.train.health.monitor_tasks)
        envs = [make() for make in makers]
        played = sample_rollouts(
            model,
            envs,
            renderer=self.renderer,
            settings=self.sampling(),
            author=self.author,
            label="monitor:",
        )
        return tuple(rollout.reward for rollout in played)

    def sampling(self) -> Sampling:
        """How messages are sampled in this run."""
        return Sampling.of(self.config.rollouts, seed=self._seed("rollouts"))

    def _seed(self, stage: str) -> int:
        return stage_seed(self.config.seed, f"live:{stage}")

    def _hinted(self, rollouts: Sequence[Rollout], *, step: int) -> Hinted:
        """Find the mistakes of the step, hint at most `hint_sites` of them, and build their
        views."""
        config, train = self.config, self.config.train
        written = hint_rollouts(
            [r.session for r in rollouts],
            sites=config.sites,
            hints=config.hints if train.hint.weight else None,
            kept_kinds=self.kept_kinds,
        )
        if not train.hint.weight:
            return Hinted(views={}, facts=written.metrics)
        tasks = {r.session.id: r.task_id for r in rollouts}
        nulled = null_hints(
            written.hints,
            how=train.placebo,
            groups={site.id: tasks[site.session_id] for site in written.sites.values()},
            count=self.renderer.codec.count,
            seed=self._seed(f"placebo:{step}"),
        )
        messages = {hints[0].site_id: hints for hints in written.messages(nulled.hints)}
        chosen = draw_messages(
            tuple(messages),
            limit=config.rollouts.hint_sites,
            lot=lambda site_id: self._seed(f"site:{step}:{site_id}"),
        )
        drawn = [hint for first, hints in messages.items() if first in chosen for hint in hints]
        views = self._views(rollouts, sites=written.sites, hints=drawn)
        fitting = {name: tuple(v for v in found if self._fits(v)) for name, found in views.items()}
        trained = [view for found in fitting.values() for view in found]
        used = {site_id for view in trained for site_id in view.site_ids}
        return Hinted(
            views=fitting,
            sites=tuple(site for site in written.sites.values() if site.id in used),
            hints=tuple(hint for hint in drawn if hint.site_id in used),
            facts={
                **written.metrics,
                "sites/no_donor": nulled.dropped,
                "sites/not_drawn": len(nulled.hints) - len(drawn),
                "sites/not_built": len(drawn) - len(used),
                **view_metrics(trained),
            },
        )

    def _views(
        self,
        rollouts: Sequence[Rollout],
        *,
        sites: Mapping[str, Site],
        hints: Sequence[Hint],
    ) -> dict[str, tuple[HintView, ...]]:
        """The views of the rollouts that have a hint; the others are not rendered again."""
        hinted = {sites[hint.site_id].session_id for hint in hints}
        chosen = {r.session.id: r for r in rollouts if r.session.id in hinted}
        built = build_examples(
            [r.session for r in chosen.values()],
            sites=[site for site in sites.values() if site.session_id in chosen],
            hints=hints,
            renderer=self.renderer,
            settings=_WHOLE,
        )
        found = [item for item in built if isinstance(item, TrainingExample) and item.hints]
        for example in found:
            check_ids(example, chosen[example.session_id])
        return {example.session_id: example.hints for example in found}

    def _fits(self, view: HintView) -> bool:
        return view.span[1] + len(view.hint_ids) <= self.config.train.micro_tokens


def group_advantages(
    groups: Groups,
    *,
    how: Sequence[str],
    seed: int,
    rewards_of: Mapping[str, float] | None = None,
    scaled: bool = False,
) -> dict[str, float]:
    """The advantage of each rollout by session id; rollouts of flat groups have none.

    `rewards_of` are the shaped rewards of training/rewards.py; None = the environment's. `scaled`
    divides by the group's standard deviation. With a placebo the rewards of the step are nulled
    first, and which groups are flat is decided by what they are then.
    """
    found: dict[str, float] = {}
    members: Sequence[Group] = (*groups.groups, *groups.flat)
    given = [
        (
            group.rewards
            if rewards_of is None
            else tuple(rewards_of[r.session.id] for r in group.rollouts)
        )
        for group in members
    ]
    nulled = null_rewards(given, how=how, seed=seed)
    for group, own in zip(members, nulled, strict=True):
        if min(own) != max(own):
            among = scaled_advantages(own) if scaled else advantages(own)
            found |= {r.session.id: a for r, a in zip(group.rollouts, among, strict=True)}
    return found


def informed(
    groups: Groups, views: Mapping[str, tuple[HintView, ...]], *, how: HintSettings
) -> tuple[Mapping[str, tuple[HintView, ...]], dict[str, float]]:
    """The views by session with what train.hint asks for: the sampler's log-probs of their targets,
    the difficulty of their tasks.

    Difficulty is sqrt(p (1 - p)), p the share of the group's rollouts with a reward above 0, flat
    groups included; a view of a task that was always or never solved has weight 0 and is left out,
    counted in what comes second.
    """
    if not (how.importance_clip or how.difficulty):
        return views, {}
    found: dict[str, tuple[HintView, ...]] = {}
    for group in (*groups.groups, *groups.flat):
        solved = sum(reward > 0 for reward in group.rewards) / len(group.rewards)
        weight = float(difficulty_weight(torch.tensor([solved], dtype=torch.float64)))
        for rollout in group.rollouts:
            own = views.get(rollout.session.id, ())
            if how.importance_clip:
                own = tuple(replace(view, logprobs=sampled_logprobs(rollout, view)) for view in own)
            if how.difficulty:
                own = tuple(replace(view, difficulty=weight) for view in own if weight > 0)
            found[rollout.session.id] = own
    dropped = sum(map(len, views.values())) - sum(map(len, found.values()))
    return found, {"sites/no_difficulty": float(dropped)} if how.difficulty else {}


def sampled_logprobs(rollout: Rollout, view: HintView) -> tuple[float, ...]:
    """The sampler's log-probs of a view's target; raises AlignmentError where it is not a part of
    one sampled message."""
    a, b = view.span
    for turn in rollout.session.turns:
        if (
            turn.sampled is not None
            and turn.context_tokens <= a
            and b <= turn.context_tokens + len(turn.sampled.ids)
        ):
            return turn.sampled.logprobs[a - turn.context_tokens : b - turn.context_tokens]
    raise AlignmentError(
        f"the target {a}-{b} of {view.site_id} is not a part of one sampled message",
        where=rollout.session.id,
    )


def _reward_metrics(
    rewards_of: Mapping[str, float], kl: Mapping[str, float] | None
) -> dict[str, float]:
    facts = {"rollouts/score": sum(rewards_of.values()) / max(1, len(rewards_of))}
    return (
        facts if kl is None else facts | {"rollouts/kl_start": sum(kl.values()) / max(1, len(kl))}
    )


def example_of(
    rollout: Rollout, *, advantage: float | None, views: Sequence[HintView]
) -> TrainingExample:
    """One rollout as an example on the very ids that were sampled; `advantage` None = no message of
    it reaches the policy channel.

    Raises AlignmentError where a sampled message does not stand at its place.
    """
    session = rollout.session
    actions: list[SampledMessage] = []
    for turn in session.turns if advantage is not None else ():
        if turn.sampled is not None and advantage is not None:
            a = turn.context_tokens
            b = a + len(turn.sampled.ids)
            if rollout.ids[a:b] != turn.sampled.ids:
                raise AlignmentError(
                    f"the message at {a}-{b} is not what was sampled", where=session.id
                )
            actions.append(
                SampledMessage(span=(a, b), logprobs=turn.sampled.logprobs, advantage=advantage)
            )
    return TrainingExample(
        id=session.id,
        session_id=session.id,
        ids=rollout.ids,
        hints=tuple(views),
        actions=tuple(actions),
        origin="student",
    )


def check_ids(example: TrainingExample, rollout: Rollout) -> None:
    """Raise AlignmentError where a rendered rollout differs from what its student read and wrote;
    both begin at the same place."""
    both = min(len(example.ids), len(rollout.ids))
    if example.ids[:both] != rollout.ids[:both] or any(
        view.span[1] > len(rollout.ids) for view in example.hints
    ):
        at = next(
            (i for i, (a, b) in enumerate(zip(example.ids, rollout.ids, strict=False)) if a != b),
            both,
        )
        raise AlignmentError(
            f"the rollout was rendered to other ids than were sampled, from token {at} on",
            where=rollout.session.id,
        )


def pick_sessions(made: LiveStep, *, group_size: int, count: int) -> list[Session]:
    """A handful of episodes to look at: one of each group, in order."""
    return list(made.sessions[::group_size][:count])
