"""The rules on a live policy (run/health.py) for TRL's rollouts: TRL's episodes are read as
rollouts of this package, and checked in the same way.

    trl_rollback = TrlRollback(rollback=rollback, group_size=6, end_ids=...)
    # after TRL has played and rewarded rollouts, before they are trained on
    trl_rollback.check_rollouts(step, trl_examples, trainer.environments)
    # before a checkpoint of these weights is written
    metrics = trl_rollback.check_weights(steps, last=False)

training/run/rollback.py measures, warns, restores weights and stops, as in the reference loop; this
file only hands it the rollouts of all ranks. TRL records no log-probs of what it samples, so the
entropy is that of training/on_policy/rollout_metrics.py over the whole vocabulary.

TRL shows the model whatever a tool raises, and goes on. `FailureRecordingTools` records the errors
that the environment itself raised: its rollout is lost and earns nothing, and if more than
train.health.max_lost of them are lost twice in a row, the run ends. An error of this package ends
it at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.core.errors import ComposerError, need
from composer_replication.core.trace import Event, Sampled, Session, SourceRef
from composer_replication.rollouts.call_pool import PooledCall
from composer_replication.rollouts.env_validation import checked_remarks
from composer_replication.rollouts.envs.env import MistakeFamily, env_remarks, remark_events
from composer_replication.rollouts.envs.method_env import OVER, MethodEnv, episode_of
from composer_replication.rollouts.episode import Ended, Rollout
from composer_replication.rollouts.groups import Group, Groups
from composer_replication.training.backends.trl_rollouts import TrlExamples, TrlSession
from composer_replication.training.loop import NUM_SAMPLES
from composer_replication.training.on_policy.live import (
    LiveStep,
    group_advantages,
    keeps_samples,
    pick_sessions,
)
from composer_replication.training.on_policy.rollout_metrics import rollout_metrics
from composer_replication.training.run.rollback import Rollback

LOST = "<tool_use_error>The environment failed: this episode is over</tool_use_error>"


class FailureRecordingTools(MethodEnv):
    """Put in front of an environment's class by `record_failures`: records the environment's
    failures. `failure` is the message of the first, "" if there was none."""

    failure: str = ""
    _error: ComposerError | None = None

    def reset(self, **row: Any) -> None:
        """Begin the task of a row, as the environment does."""
        self.failure, self._error = "", None
        super().reset(**row)

    def get_reward(self) -> float:
        """The environment's reward; 0.0 for an episode that the environment lost. Raises the error
        of this package that TRL swallowed, if there was one."""
        if self._error is not None:
            raise self._error
        if self.failure:
            return 0.0
        return self._record_failure(super().get_reward, 0.0)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self.failure:
            return OVER
        return self._record_failure(
            lambda: super(FailureRecordingTools, self)._call(name, arguments), LOST
        )

    def _record_failure(self, method: Any, default: Any) -> Any:
        """The result of a call into the environment; `default` if it failed."""
        call: PooledCall[Any] = PooledCall(method, runs_in="caller")
        call.run()
        if isinstance(call.error, ComposerError):
            self._error = call.error
        outcome = call.outcome()
        if outcome.failure is None:
            return outcome.value
        self.failure = outcome.failure.reason
        return default


def record_failures(env_class: type[MethodEnv]) -> type[FailureRecordingTools]:
    """The class with FailureRecordingTools in front of its methods."""
    return type(f"Watched{env_class.__name__}", (FailureRecordingTools, env_class), {})


@dataclass(slots=True, kw_only=True)
class TrlRollback:
    """Hands TRL's rollouts to a rollback, one generation after another; with `scaled`, advantages
    are divided by the group's deviation."""

    rollback: Rollback
    group_size: int
    end_ids: frozenset[int]
    scaled: bool = False
    live_step: LiveStep | None = None

    def check_rollouts(
        self, step: int, trl_examples: TrlExamples, environments: Sequence[FailureRecordingTools]
    ) -> None:
        """Check the policy after `step` steps. If a rule is broken, put the last good weights back
        and raise StoppedError."""
        rank_rollouts = [
            as_rollout(trl_session, env, name=example.id, ids=example.ids, end_ids=self.end_ids)
            for trl_session, env, example in zip(
                trl_examples.trl_sessions, environments, trl_examples.examples, strict=True
            )
        ]
        rollouts: list[Rollout] = need("accelerate.utils", extra="train").gather_object(
            rank_rollouts
        )
        self.live_step = as_step(
            rollouts,
            group_size=self.group_size,
            scaled=self.scaled,
            families=self.rollback.live.task_source.metadata.families,
        )
        run_logger, settings = self.rollback.run_logger, self.rollback.trainer.settings
        if keeps_samples(self.live_step, step=step, settings=settings):
            run_logger.samples(
                step,
                map(
                    storable_session,
                    pick_sessions(self.live_step, group_size=self.group_size, count=NUM_SAMPLES),
                ),
            )
        run_logger.note(self.live_step.metrics)
        run_logger.note(self.rollback.check_rollouts(self.live_step, step=step))

    def check_weights(self, steps: int, *, last: bool) -> dict[str, float]:
        """Check the weights of a checkpoint after `steps` steps; raises StoppedError as
        `check_rollouts` does."""
        if self.live_step is None:
            return {}
        return self.rollback.check_weights(self.live_step, steps=steps, last=last)


def as_rollout(
    trl_session: TrlSession | None,
    env: FailureRecordingTools,
    *,
    name: str,
    ids: Sequence[int],
    end_ids: frozenset[int],
) -> Rollout:
    """A rollout that TRL played in `env`, in the form that this package's sampler gives; its
    log-probs are not known (NaN)."""
    episode = episode_of(env)
    reward, measures = (0.0, {}) if env.failure else (episode.reward(), dict(episode.measures()))
    session = _empty_session(name) if trl_session is None else trl_session.session
    spans = {} if trl_session is None else trl_session.spans
    turns = list(session.turns)
    for turn, (a, b) in spans.items():
        turns[turn] = replace(turns[turn], sampled=Sampled(tuple(ids[a:b]), (math.nan,) * (b - a)))
    ended = _ended(
        session, env, has_end=not spans or ids[max(b for _, b in spans.values()) - 1] in end_ids
    )
    events = () if ended == "done" else (Event(kind=ended, turn=len(turns), text=env.failure),)
    if not env.failure:
        events += remark_events(checked_remarks(env_remarks(episode)), turn=len(turns))
    has_unknown_tool = any(call.name not in env.tool_names for turn in turns for call in turn.calls)
    # TRL itself answers a call of an unknown tool: the environment never sees the call
    if has_unknown_tool and measures and env.unknown_tool_measure:
        measures[env.unknown_tool_measure] = 1.0
    return Rollout(
        session=replace(session, turns=tuple(turns), events=events, outcome=reward),
        task_id=episode.task_id,
        ids=tuple(ids),
        ended=ended,
        num_cut=int(ended == "max_context"),
        num_malformed=0 if trl_session is None else trl_session.num_malformed,
        measures=measures,
        failure=env.failure,
    )


def _ended(session: Session, env: FailureRecordingTools, *, has_end: bool) -> Ended:
    """Why TRL stopped the episode: it bounds the whole completion, so a message without an end
    token has used up the context."""
    if env.failure:
        return "env_error"
    if not has_end:
        return "max_context"
    last = session.turns[-1] if session.turns else None
    return "max_turns" if last is not None and last.role == "assistant" and last.calls else "done"


def _empty_session(name: str) -> Session:
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
    """The rollouts of a step, each `group_size` in a row of one task, and their metrics."""
    groups = [
        Group(rollouts[i].task_id, tuple(rollouts[i : i + group_size]))
        for i in range(0, len(rollouts), group_size)
    ]
    split = Groups(
        groups=tuple(g for g in groups if not g.is_flat),
        flat=tuple(g for g in groups if g.is_flat),
        num_extra=0,
    )
    metrics = rollout_metrics(
        split, group_advantages(split, placebos=(), seed=0, scaled=scaled), families=families
    )
    del metrics["rollouts/entropy"]  # needs log-probs; the rollback measures it
    return LiveStep(examples=(), rollouts=tuple(rollouts), metrics=metrics)


def storable_session(session: Session) -> Session:
    """The session as it is written: without sampled ids, whose log-probs are not known."""
    return replace(session, turns=tuple(replace(turn, sampled=None) for turn in session.turns))
