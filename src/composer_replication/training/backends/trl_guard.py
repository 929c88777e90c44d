"""The rules on a live policy (training/health.py) over TRL's rollouts: TRL's episodes are read as
this package's own, and judged as those.

    watch = Watch(rollback=Rollback.of(trainer, live=live, run_logger=run_logger), group_size=6, end_ids=...)
    watch.rollouts(step, made, trainer.environments)     # after TRL has played and rewarded them, before they are trained on
    facts = watch.checkpoint(steps, last=False)          # before a checkpoint of these weights is written

training/rollback.py measures, warns, puts weights back and stops, as it does in the reference loop;
this file only brings it the rollouts of all ranks. TRL records no log-probs of what it samples:
entropy is that of training/rollout_metrics.py over the whole vocabulary.

TRL tells the model of whatever a tool raises and plays on. `WatchedTools` keeps what the
environment itself raised: its rollout is lost and earns nothing, and more than
train.health.max_lost of them, twice in a row, end the run. An error of this package ends it at
once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.core.errors import ComposerError, need
from composer_replication.core.trace import Event, Sampled, Session, SourceRef
from composer_replication.rollouts.call_pool import PooledCall
from composer_replication.rollouts.envs.env import MistakeFamily
from composer_replication.rollouts.envs.method_env import OVER, MethodEnv, episode_of
from composer_replication.rollouts.episode import Ended, Rollout
from composer_replication.rollouts.groups import Group, Groups
from composer_replication.training.backends.trl_rollouts import TrlExamples, TrlSession
from composer_replication.training.live import LiveStep, pick_sessions, group_advantages
from composer_replication.training.loop import NUM_SAMPLES
from composer_replication.training.rollback import Rollback
from composer_replication.training.rollout_metrics import rollout_facts

LOST = "<tool_use_error>The environment failed: this episode is over</tool_use_error>"
_NO_ENTROPY = "rollouts/entropy"


class WatchedTools(MethodEnv):
    """Put in front of an environment's own class by `watched`: keeps the environment's failures.
    `failure` has the words of the first, "" if there was none."""

    failure: str = ""
    _error: ComposerError | None = None

    def reset(self, **row: Any) -> None:
        """Begin the task of a row, as the environment does."""
        self.failure, self._error = "", None
        super().reset(**row)

    def get_reward(self) -> float:
        """The environment's reward; 0.0 for an episode that the environment lost. Raises an error of
        this package that TRL has swallowed."""
        if self._error is not None:
            raise self._error
        if self.failure:
            return 0.0
        return self._kept(super().get_reward, 0.0)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return (
            OVER
            if self.failure
            else self._kept(lambda: super(WatchedTools, self)._call(name, arguments), LOST)
        )

    def _kept(self, call: Any, instead: Any) -> Any:
        """What a call into the environment gives; `instead` where it failed."""
        job: PooledCall[Any] = PooledCall(call, runs_in="caller")
        job.run()
        if isinstance(job.error, ComposerError):
            self._error = job.error
        outcome = job.outcome()
        if outcome.failure is None:
            return outcome.value
        self.failure = outcome.failure.reason
        return instead


def record_failures(env_class: type[MethodEnv]) -> type[WatchedTools]:
    """The tools of a class, with WatchedTools in front of their own methods."""
    return type(f"Watched{env_class.__name__}", (WatchedTools, env_class), {})


@dataclass(slots=True, kw_only=True)
class TrlRollback:
    """Brings TRL's rollouts to a rollback, one generation after another; `scaled` = advantages are
    divided by the group's deviation."""

    rollback: Rollback
    group_size: int
    end_ids: frozenset[int]
    scaled: bool = False
    live_step: LiveStep | None = None

    def check_rollouts(self, step: int, made: TrlExamples, environments: Sequence[WatchedTools]) -> None:
        """Measure and judge the policy after `step` steps; raises StoppedError after the last good
        weights were put back."""
        own = [
            as_rollout(recorded, env, name=example.id, ids=example.ids, end_ids=self.end_ids)
            for recorded, env, example in zip(
                made.trl_sessions, environments, made.examples, strict=True
            )
        ]
        every: list[Rollout] = need("accelerate.utils", extra="train").gather_object(own)
        self.live_step = as_step(
            every,
            group_size=self.group_size,
            scaled=self.scaled,
            families=self.rollback.live.task_source.metadata.families,
        )
        run_logger, settings = self.rollback.run_logger, self.rollback.trainer.settings
        if step % settings.checkpoint_every == 0 or step + 1 == settings.steps:
            run_logger.samples(
                step,
                map(
                    storable_session, pick_sessions(self.live_step, group_size=self.group_size, count=NUM_SAMPLES)
                ),
            )
        run_logger.note(self.live_step.metrics)
        run_logger.note(self.rollback.check_rollouts(self.live_step, step=step))

    def check_weights(self, steps: int, *, last: bool) -> dict[str, float]:
        """Measure the weights of a checkpoint after `steps` steps; raises StoppedError as
        `rollouts` does."""
        return (
            self.rollback.check_weights(self.live_step, steps=steps, last=last) if self.live_step is not None else {}
        )


def as_rollout(
    recorded: TrlSession | None,
    env: WatchedTools,
    *,
    name: str,
    ids: Sequence[int],
    end_ids: frozenset[int],
) -> Rollout:
    """A rollout that TRL played in `env`, as the reference loop's own sampler would hand it over;
    its log-probs are not known (NaN)."""
    episode = episode_of(env)
    reward, measures = (0.0, {}) if env.failure else (episode.reward(), dict(episode.measures()))
    session = _empty(name) if recorded is None else recorded.session
    places = {} if recorded is None else recorded.spans
    turns = list(session.turns)
    for turn, (a, b) in places.items():
        turns[turn] = replace(turns[turn], sampled=Sampled(tuple(ids[a:b]), (math.nan,) * (b - a)))
    ended = _ended(
        session, env, closed=not places or ids[max(b for _, b in places.values()) - 1] in end_ids
    )
    events = () if ended == "done" else (Event(kind=ended, turn=len(turns), text=env.failure),)
    wrong_name = any(call.name not in env.tool_names for turn in turns for call in turn.calls)
    # TRL answers a wrong tool name by itself: the environment never hears of it
    if wrong_name and measures and env.unknown_tool_measure:
        measures[env.unknown_tool_measure] = 1.0
    return Rollout(
        session=replace(session, turns=tuple(turns), events=events, outcome=reward),
        task_id=episode.task_id,
        ids=tuple(ids),
        ended=ended,
        num_cut=int(ended == "max_context"),
        num_malformed=0 if recorded is None else recorded.num_malformed,
        measures=measures,
        failure=env.failure,
    )


def _ended(session: Session, env: WatchedTools, *, closed: bool) -> Ended:
    """Why TRL stopped playing: it bounds the whole completion, so a message without an end has used
    up the context."""
    if env.failure:
        return "env_error"
    if not closed:
        return "max_context"
    last = session.turns[-1] if session.turns else None
    return "max_turns" if last is not None and last.role == "assistant" and last.calls else "done"


def _empty(name: str) -> Session:
    return Session(
        id=name, source=SourceRef(file=name, format="trl"), turns=(), segments=(), origin="student"
    )


def as_step(
    rollouts: Sequence[Rollout],
    *,
    group_size: int,
    scaled: bool,
    families: Sequence[MistakeFamily] = (),
) -> LiveStep:
    """The rollouts of a step, of which each `group_size` in a row are of one task, and their
    numbers by metric name."""
    groups = [
        Group(rollouts[i].task_id, tuple(rollouts[i : i + group_size]))
        for i in range(0, len(rollouts), group_size)
    ]
    split = Groups(
        groups=tuple(g for g in groups if not g.is_flat),
        flat=tuple(g for g in groups if g.is_flat),
        num_extra=0,
    )
    facts = rollout_facts(
        split, group_advantages(split, how=(), seed=0, scaled=scaled), families=families
    )
    del facts[_NO_ENTROPY]  # the rollback measures it
    return LiveStep(examples=(), rollouts=tuple(rollouts), metrics=facts)


def storable_session(session: Session) -> Session:
    """The session without log-probs that nobody recorded, as it goes to a file."""
    return replace(session, turns=tuple(replace(turn, sampled=None) for turn in session.turns))
