"""A step's examples from the policy's own rollouts: sample, find the mistakes, write hints, build
views, compute advantages.

    with open_world("my_env.py:tasks") as task_source:
        live = RolloutSource(config=config, renderer=renderer, task_source=task_source)
        live_step = live.collect(student.model, step=3)
        live_step.examples, live_step.num_rollouts, live_step.metrics["rollouts/success"]

A rollout is a session like an imported one, and goes through the same detectors, writers and
builder. Its ids are the sampled ones; where the builder renders them again, they are compared one
by one. lm_ce gets nothing from rollouts: the student's own text is no demonstration. Everything is
a function of (config.seed, step) and the weights, so a resumed run repeats itself bit by bit on the
same CPU. Every rank samples the same rollouts from the same seed, and takes its share of the
examples in `train_step`. An episode that reached its token limit, or ended in malformed calls, is
scored like any other. Only rollouts that are stale, or that a server left unanswered, are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import (
    BuildSettings,
    HintSettings,
    TrainSettings,
)
from composer_replication.core.errors import AlignmentError
from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import HACK_ATTEMPT, Session
from composer_replication.losses.credit import difficulty_weight
from composer_replication.rollouts.envs.env import MakeEnv
from composer_replication.rollouts.episode import Rollout, episode_name, first_rollouts
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
from composer_replication.rollouts.task_history import TaskHistory
from composer_replication.rollouts.task_source import TaskSource
from composer_replication.tokens.dataset import build_examples
from composer_replication.tokens.example import HintView, SampledMessage, TrainingExample
from composer_replication.tokens.forward_size import check_forward_size
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.draws.forked import AUTHOR
from composer_replication.training.draws.placebo import null_hints, null_penalties, null_rewards
from composer_replication.training.forwards.objectives import SCALED
from composer_replication.training.on_policy.rewards import shaped_rewards, shaping_terms
from composer_replication.training.on_policy.rollout_hints import (
    draw_messages,
    hint_rollouts,
    view_metrics,
)
from composer_replication.training.on_policy.rollout_metrics import rollout_metrics

MeasureKL = Callable[[Sequence[Rollout]], Mapping[str, float]]
"""Measures the KL of each rollout to the start weights, by session id; run/rollback.py holds
those weights."""
# an episode is one window: views that do not fit into a forward are counted here, not cut
_UNCUT = BuildSettings(max_tokens=1_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStep:
    """The rollouts of one step, and the examples made of them.

    `examples` hold every rollout with something to train on: a message with an advantage, or a hint
    view. `sites` and `hints` are those of the views. `num_left_out` counts the rollouts that are
    too old to be trained on, or that a served generator did not answer.
    """

    examples: tuple[TrainingExample, ...]
    rollouts: tuple[Rollout, ...]
    metrics: Mapping[str, float]
    sites: tuple[Site, ...] = ()
    hints: tuple[Hint, ...] = ()
    num_left_out: int = 0

    @property
    def num_rollouts(self) -> int:
        """The number that Dr.GRPO divides by: a rollout of a flat group adds zero to the sum and
        one to the count, one that was left out adds to neither. The conversations of one episode
        (serve/) count once."""
        return len(first_rollouts(self.rollouts)) - self.num_left_out

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The episodes."""
        return tuple(rollout.session for rollout in self.rollouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHints:
    """The hint views of a step by session id, and how many mistakes got none, by reason."""

    views: Mapping[str, tuple[HintView, ...]]
    metrics: Mapping[str, float]
    sites: tuple[Site, ...] = ()
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSource:
    """Gives each training step its rollouts. `kept_kinds` are the kinds of hints that the audit
    kept, None = all kinds (no audit was made). `history` is what the student did on each task, for
    a source with a curriculum.

    Raises ConfigError if an episode may be longer than one forward.
    """

    config: Config
    renderer: Renderer
    task_source: TaskSource
    kept_kinds: frozenset[str] | None = None
    author: str = AUTHOR
    stats: SamplingStats = field(default_factory=SamplingStats)
    history: TaskHistory = field(default_factory=TaskHistory)

    def __post_init__(self) -> None:
        check_forward_size(
            "an episode of rollouts.max_context_tokens",
            self.config.rollouts.max_context_tokens,
            micro_tokens=self.config.train.micro_tokens,
            remedy="lower rollouts.max_context_tokens",
        )

    def collect(self, model: Any, *, step: int, kl: MeasureKL | None = None) -> LiveStep:
        """Sample the step's rollouts with these weights and make its examples; `kl` measures the
        rollouts if the KL is part of the reward."""
        return self.examples(self.sample(model, step=step, version=step), step=step, kl=kl)

    def sample(self, model: Any, *, step: int, version: int) -> Groups:
        """Sample the rollouts of a step with weights that have taken `version` steps.

        Flat groups are replaced, by up to `extra_groups` other groups in all.
        """
        settings = self.config.rollouts
        groups = sample_groups(
            self.tasks(step),
            num_groups=settings.groups,
            size=settings.group_size,
            max_extra=settings.extra_groups,
            sample=partial(
                self.task_source.sampler or sample_rollouts,
                model,
                renderer=self.renderer,
                settings=self.sampling(),
                author=self.author,
                version=version,
                stats=self.stats,
            ),
            label=step_label(step),
        )
        if self.task_source.adaptive is not None:
            self.history.record(step, groups)
        return groups

    def tasks(self, step: int) -> Iterator[MakeEnv]:
        """The tasks of a step, in the order in which they are played."""
        seed = live_seed(self.config, f"tasks:{step}")
        if self.task_source.adaptive is not None:
            return self.task_source.adaptive(seed, self.history.before(step))
        return self.task_source.train(seed)

    def examples(self, sampled: Groups, *, step: int, kl: MeasureKL | None = None) -> LiveStep:
        """The examples and metrics of a step's rollouts."""
        settings, train = self.config.rollouts, self.config.train
        # 1. Leave out what a served generator did not answer, or what too old weights wrote.
        complete = drop_unanswered(sampled)
        groups = drop_stale(complete, now=step, max_staleness=settings.max_staleness)
        left_out = {
            "rollouts/unwritten": len(sampled.rollouts) - len(complete.rollouts),
            "rollouts/stale": len(complete.rollouts) - len(groups.rollouts),
        }
        # 2. Shape the rewards, and compare them within each group.
        kl_of = kl(groups.rollouts) if kl is not None and train.policy.kl else None
        terms_of = null_penalties(
            [
                [r.session.id for r in first_rollouts(group.rollouts).values()]
                for group in (*groups.groups, *groups.flat)
            ],
            shaping_terms(groups.rollouts, train.policy, count=self.renderer.codec.count, kl=kl_of),
            placebos=train.placebo,
            seed=self._seed(f"penalties:{step}"),
        )
        rewards_of = shaped_rewards(groups.rollouts, terms_of)
        advantage_of = group_advantages(
            groups,
            placebos=train.placebo,
            seed=self._seed(f"rewards:{step}"),
            rewards_of=rewards_of,
            scaled=train.policy.objective in SCALED,
        )
        # 3. Find the mistakes and build their hint views.
        step_hints = self._hint(groups.rollouts, step=step)
        views, difficulty_metrics = annotate_views(groups, step_hints.views, train.hint)
        # 4. One example per rollout, on the ids that were sampled.
        policy_advantage_of = advantage_of if train.policy.weight else {}
        examples = [
            rollout_example(
                rollout,
                advantage=policy_advantage_of.get(rollout.session.id),
                views=views.get(rollout.session.id, ()),
            )
            for rollout in groups.rollouts
        ]
        return LiveStep(
            examples=tuple(e for e in examples if e.actions or e.hints),
            rollouts=sampled.rollouts,
            metrics={
                **rollout_metrics(
                    sampled, advantage_of, families=self.task_source.metadata.families
                ),
                **_reward_metrics(rewards_of, terms_of, kl_of),
                **left_out,
                **(self.history.measures(step) if self.task_source.adaptive else {}),
                "rollouts/age": float(max((step - r.version for r in groups.rollouts), default=0)),
                **step_hints.metrics,
                **difficulty_metrics,
            },
            sites=step_hints.sites,
            hints=step_hints.hints,
            num_left_out=len(first_rollouts(sampled.rollouts))
            - len(first_rollouts(groups.rollouts)),
        )

    def monitor(self, model: Any, *, stats: SamplingStats | None = None) -> tuple[float, ...]:
        """The reward of each monitor task: the same tasks and the same random numbers every
        time. `stats.num_ended` counts those that have been played."""
        makers = self.task_source.monitor(
            self._seed("monitor"), self.config.train.health.monitor_tasks
        )
        envs = [make() for make in makers]
        rollouts = (self.task_source.sampler or sample_rollouts)(
            model,
            envs,
            renderer=self.renderer,
            settings=self.sampling(),
            author=self.author,
            label="monitor:",
            stats=stats,
        )
        return tuple(rollout.reward for rollout in first_rollouts(rollouts).values())

    def sampling(self) -> Sampling:
        """The sampling settings of the run's messages."""
        return message_sampling(self.config)

    def _seed(self, stage: str) -> int:
        return live_seed(self.config, stage)

    def _hint(self, rollouts: Sequence[Rollout], *, step: int) -> StepHints:
        """Find the mistakes of the step, hint at most `hint_sites` of them, and build their
        views."""
        config, train = self.config, self.config.train
        # 1. Find the sites and write their hints.
        written = hint_rollouts(
            [rollout.session for rollout in rollouts],
            sites=config.sites,
            hints=config.hints if train.hint.weight else None,
            kept_kinds=self.kept_kinds,
        )
        if not train.hint.weight:
            return StepHints(views={}, metrics=written.metrics)
        # 2. Null the hints under a placebo: before they are drawn and rendered, so that the control
        #    differs from the run in nothing else.
        task_of_session = {rollout.session.id: rollout.task_id for rollout in rollouts}
        nulled = null_hints(
            written.hints,
            placebos=train.placebo,
            groups={site.id: task_of_session[site.session_id] for site in written.sites.values()},
            count=self.renderer.codec.count,
            seed=self._seed(f"placebo:{step}"),
        )
        # 3. Draw the messages to train on, each keyed by its first site. All hints of a message are
        #    drawn together.
        messages = {hints[0].site_id: hints for hints in written.messages(nulled.hints)}
        chosen = draw_messages(
            tuple(messages),
            limit=config.rollouts.hint_sites,
            seed_of=lambda site_id: self._seed(f"site:{step}:{site_id}"),
        )
        drawn = [hint for site_id, hints in messages.items() if site_id in chosen for hint in hints]
        # 4. Build the views, and leave out those that do not fit into a forward.
        built = self._build_views(rollouts, sites=written.sites, hints=drawn)
        fitting = {
            name: tuple(view for view in views if self._fits(view)) for name, views in built.items()
        }
        trained = [view for views in fitting.values() for view in views]
        used = {site_id for view in trained for site_id in view.site_ids}
        return StepHints(
            views=fitting,
            sites=tuple(site for site in written.sites.values() if site.id in used),
            hints=tuple(hint for hint in drawn if hint.site_id in used),
            metrics={
                **written.metrics,
                "sites/no_donor": nulled.dropped,
                "sites/not_drawn": len(nulled.hints) - len(drawn),
                "sites/not_built": len(drawn) - len(used),
                **view_metrics(trained),
            },
        )

    def _build_views(
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
            settings=_UNCUT,
            position=self.config.hints.fixed_position(),
        )
        hinted_examples = [
            item for item in built if isinstance(item, TrainingExample) and item.hints
        ]
        for example in hinted_examples:
            check_rendered_ids(example, chosen[example.session_id])
        return {example.session_id: example.hints for example in hinted_examples}

    def _fits(self, view: HintView) -> bool:
        return view.span[1] + len(view.hint_ids) <= self.config.train.micro_tokens


def live_seed(config: Config, stage: str) -> int:
    """The seed of a part of the live rollouts, e.g. live_seed(config, "tasks:3")."""
    return stage_seed(config.draw_seed, f"live:{stage}")


def message_sampling(config: Config) -> Sampling:
    """The sampling settings of the messages of a run's rollouts."""
    return Sampling.of(config.rollouts, seed=live_seed(config, "rollouts"))


def step_label(step: int) -> str:
    """The prefix of the session ids of a step's rollouts: "step-3:"."""
    return f"step-{step}:"


def group_advantages(
    groups: Groups,
    *,
    placebos: Sequence[str],
    seed: int,
    rewards_of: Mapping[str, float] | None = None,
    scaled: bool = False,
) -> dict[str, float]:
    """The advantage of each rollout by session id; rollouts of flat groups have none.

    `rewards_of` are the shaped rewards of on_policy/rewards.py; None = the environment's. `scaled`
    divides by the group's standard deviation. Placebos null the rewards first, and the nulled
    rewards decide which groups are flat. The conversations of one episode have one reward, that of
    the first, and one advantage; a side request has none.
    """
    advantage_of: dict[str, float] = {}
    members: Sequence[Group] = (*groups.groups, *groups.flat)
    episodes = [first_rollouts(group.rollouts) for group in members]
    group_rewards = [
        tuple(r.reward if rewards_of is None else rewards_of[r.session.id] for r in first.values())
        for first in episodes
    ]
    nulled_rewards = null_rewards(group_rewards, placebos=placebos, seed=seed)
    for group, first, rewards in zip(members, episodes, nulled_rewards, strict=True):
        if min(rewards) != max(rewards):
            values = scaled_advantages(rewards) if scaled else advantages(rewards)
            of_episode = dict(zip(first, values, strict=True))
            advantage_of |= {
                r.session.id: of_episode[episode_name(r)]
                for r in group.rollouts
                if r.session.outcome is not None
            }
    return advantage_of


def annotate_views(
    groups: Groups, views: Mapping[str, tuple[HintView, ...]], settings: HintSettings
) -> tuple[Mapping[str, tuple[HintView, ...]], dict[str, float]]:
    """The views by session id, with the data that train.hint needs: the sampler's log-probs of
    their targets, the difficulty of their tasks; and metrics.

    Difficulty is sqrt(p (1 - p)), where p is the share of the group's rollouts with a reward above
    0, flat groups included. A view of a task that was always or never solved has weight 0: it is
    left out, and counted in the metrics.
    """
    if not (settings.importance_clip or settings.difficulty):
        return views, {}
    annotated: dict[str, tuple[HintView, ...]] = {}
    for group in (*groups.groups, *groups.flat):
        solved = sum(reward > 0 for reward in group.rewards) / len(group.rewards)
        weight = float(difficulty_weight(torch.tensor([solved], dtype=torch.float64)))
        for rollout in group.rollouts:
            rollout_views = views.get(rollout.session.id, ())
            if settings.importance_clip:
                rollout_views = tuple(
                    replace(view, logprobs=sampled_logprobs(rollout, view))
                    for view in rollout_views
                )
            if settings.difficulty:
                rollout_views = tuple(
                    replace(view, difficulty=weight) for view in rollout_views if weight > 0
                )
            annotated[rollout.session.id] = rollout_views
    dropped = sum(map(len, views.values())) - sum(map(len, annotated.values()))
    return annotated, {"sites/no_difficulty": float(dropped)} if settings.difficulty else {}


def sampled_logprobs(rollout: Rollout, view: HintView) -> tuple[float, ...]:
    """The sampler's log-probs of a view's target; raises AlignmentError if the target is not part
    of one sampled message."""
    a, b = view.span
    for turn in rollout.session.turns:
        if (
            turn.sampled is not None
            and turn.context_tokens <= a
            and b <= turn.context_tokens + len(turn.sampled.ids)
        ):
            return turn.sampled.logprobs[a - turn.context_tokens : b - turn.context_tokens]
    raise AlignmentError(
        f"the target {a}-{b} of {view.site_id} is not part of one sampled message",
        where=rollout.session.id,
    )


def _reward_metrics(
    rewards_of: Mapping[str, float],
    terms_of: Mapping[str, Mapping[str, float]],
    kl: Mapping[str, float] | None,
) -> dict[str, float]:
    """The mean shaped reward, and that of each of its terms ("score/length")."""
    count = max(1, len(rewards_of))
    metrics = {"rollouts/score": sum(rewards_of.values()) / count}
    for name in next(iter(terms_of.values()), {}):
        metrics[f"score/{name}"] = sum(terms[name] for terms in terms_of.values()) / count
    if kl is not None:
        metrics["rollouts/kl_start"] = sum(kl.values()) / max(1, len(kl))
    return metrics


def rollout_example(
    rollout: Rollout, *, advantage: float | None, views: Sequence[HintView]
) -> TrainingExample:
    """One rollout as an example on the ids that were sampled; with `advantage` None, none of its
    messages reaches the policy channel.

    Raises AlignmentError if the ids of a sampled message are not where its turn says.
    """
    session = rollout.session
    actions: list[SampledMessage] = []
    for _, turn in session.assistant_turns() if advantage is not None else ():
        if turn.sampled is not None and advantage is not None:
            a = turn.context_tokens
            b = a + len(turn.sampled.ids)
            if rollout.ids[a:b] != turn.sampled.ids:
                raise AlignmentError(
                    f"the ids at {a}-{b} are not those of the sampled message", where=session.id
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


def check_rendered_ids(example: TrainingExample, rollout: Rollout) -> None:
    """Raise AlignmentError if a rollout, rendered again, differs from the ids that its student read
    and wrote; both begin at the same place."""
    common = min(len(example.ids), len(rollout.ids))
    if example.ids[:common] != rollout.ids[:common] or any(
        view.span[1] > len(rollout.ids) for view in example.hints
    ):
        at = next(
            (i for i, (a, b) in enumerate(zip(example.ids, rollout.ids, strict=False)) if a != b),
            common,
        )
        raise AlignmentError(
            f"the rollout was rendered to other ids than were sampled, from token {at} on",
            where=rollout.session.id,
        )


def keeps_samples(live_step: LiveStep, *, step: int, settings: TrainSettings) -> bool:
    """Whether a few episodes of a step are kept: every `checkpoint_every` steps, at the end, and
    where one tried to cheat."""
    is_due = step % settings.checkpoint_every == 0 or step + 1 == settings.steps
    return is_due or any(map(has_hack_attempts, live_step.sessions))


def pick_sessions(live_step: LiveStep, *, group_size: int, count: int) -> list[Session]:
    """A few episodes to look at: those that tried something else than their task, then one of each
    group, in order."""
    tried = [session for session in live_step.sessions if has_hack_attempts(session)]
    others = [s for s in live_step.sessions[::group_size] if not has_hack_attempts(s)]
    return [*tried, *others][:count]


def has_hack_attempts(session: Session) -> bool:
    """Whether the environment saw an attempt to cheat (`Env.remarks`)."""
    return bool(session.event_texts(HACK_ATTEMPT))
