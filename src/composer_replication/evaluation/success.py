"""Play a student on tasks that no training saw, without any hint, and keep every episode.

    episodes = play_tasks(
        student.model, renderer=renderer, settings=config.evaluate, limits=config.rollouts,
        seed=seed, source=source,
    )
    episodes[0]  -> EpisodeResult(task_id="...", kind="set", reward=1.0, ended="done", entropy=0.41)
    is_success(episodes[0])

The tasks follow from the seed and the settings alone, so all compared students play the same ones,
and each task has its own stream of random numbers. No argument could carry a hint, and every
episode is checked for hints afterwards (evaluation/unaided.py). Nothing is cached between calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import EvaluateSettings, RolloutSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.trace import HACK_ATTEMPT, Session
from composer_replication.evaluation.unaided import check_replay, check_task_is_told, check_unaided
from composer_replication.rollouts.chat_format import ChatFormat
from composer_replication.rollouts.episode import LOST, episode_name
from composer_replication.rollouts.episode_sessions import join_conversations
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.task_source import TaskSource, UnseenTask
from composer_replication.tokens.renderer import Renderer

LABEL = "evaluate:"
"""Prefix of every session's id. All students share it, so that they draw from the same streams of
random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """One finished episode of one task.

    `ended` is "done" if the environment ended it. `entropy` is in nats per sampled token, None if
    the player sampled no tokens; it is estimated as the mean of -log p of the sampled tokens, which
    is unbiased at temperature 1 only. `measures` are the environment's counts, see `Env.measures`.
    `later` are its other conversations: behind a summary, or of an agent program.
    """

    task_id: str
    kind: str
    reward: float
    ended: str
    measures: Mapping[str, float]
    entropy: float | None
    tokens: int
    session: Session
    later: tuple[Session, ...] = ()

    @property
    def attempts(self) -> tuple[str, ...]:
        """What its judge saw of attempts to cheat, e.g. ("start-up files: conftest.py",)."""
        sessions = (self.session, *self.later)
        return tuple(text for session in sessions for text in session.event_texts(HACK_ATTEMPT))

    @property
    def joined_session(self) -> Session:
        """All of it as one session, to count in."""
        return join_conversations((self.session, *self.later))


def is_success(episode: EpisodeResult) -> bool:
    """Whether the episode ended with a full reward; an unfinished episode is never a success."""
    return episode.ended == "done" and episode.reward >= 1.0


def play_tasks(
    model: Any,
    *,
    renderer: Renderer,
    settings: EvaluateSettings,
    limits: RolloutSettings,
    seed: int,
    source: TaskSource,
    author: str = "student",
    stats: SamplingStats | None = None,
) -> list[EpisodeResult]:
    """Play one episode on each unseen task of the source.

    On a CPU, the same seed, settings and weights give the same episodes bit for bit. To that end it
    runs on one thread, since floating-point sums depend on the number of threads. `limits` bounds
    messages and episodes as in training. Raises ConfigError for training tasks, DataError if a
    student's context held anything but the task and its results.
    """
    tasks = evaluation_tasks(settings, seed=seed, source=source)
    sampling = replace(
        Sampling.of(limits, seed=stage_seed(seed, "evaluate")), temperature=settings.temperature
    )
    envs = [task.make() for task in tasks]
    with one_thread():
        rollouts = (source.sampler or sample_rollouts)(
            model,
            envs,
            renderer=renderer,
            settings=sampling,
            author=author,
            label=LABEL,
            stats=stats,
        )
    episodes = [list(part) for _, part in itertools.groupby(rollouts, key=episode_name)]
    chat_format = ChatFormat.of(renderer, author=author)
    for task, (rollout, *_) in zip(tasks, episodes, strict=True):
        if rollout.ended in LOST or not source.replayable:
            continue  # its environment failed or hung: a replay would, too
        check_replay(rollout, task, chat_format=chat_format)
    return [
        episode_result(
            task,
            first.session,
            measures=first.measures,
            ended=first.ended,
            program=source.sampler is not None,
            later=[rollout.session for rollout in later],
            max_chars=sampling.limits.max_result_chars,
        )
        for task, (first, *later) in zip(tasks, episodes, strict=True)
    ]


def evaluation_tasks(
    settings: EvaluateSettings, *, seed: int, source: TaskSource
) -> list[UnseenTask]:
    """The tasks of an evaluation seed: all different, all from a split that is never trained on.

    Raises ConfigError if the source has none.
    """
    if source.unseen is None:
        raise ConfigError(
            f"the environment {source.name!r} has no unseen tasks",
            where="TaskSource.unseen",
            fix="judge it at the held-out mistakes of your logs: recompose evaluate --logs",
        )
    tasks = source.unseen(stage_seed(seed, "evaluate"), settings.tasks, settings.split)
    check_split(tasks)
    return tasks


def check_split(tasks: Sequence[UnseenTask]) -> None:
    """Raise ConfigError if a task is a training task."""
    training_task = next((task for task in tasks if task.split == "train"), None)
    if training_task is not None:
        raise ConfigError(
            f"{training_task.id} is a training task",
            where="evaluate.split",
            fix='use "heldout", "words" or "monitor"',
        )


def episode_result(
    task: UnseenTask,
    session: Session,
    *,
    measures: Mapping[str, float],
    ended: str,
    program: bool = False,
    later: Sequence[Session] = (),
    max_chars: int = 0,
) -> EpisodeResult:
    """The result of a finished episode; of an agent program's (`program`) the words around the task
    are its own, so only the task is looked for in it. Else the sessions in `later` go on behind
    summaries, which were cut at `max_chars`.

    Raises ConfigError for a training task, DataError if the context held a hint.
    """
    check_split([task])
    if ended not in LOST and program:
        check_task_is_told(session, task)
    elif ended not in LOST:
        check_unaided(session, task)
        for before, behind in itertools.pairwise((session, *later)):
            check_unaided(behind, task, summary=before.turns[-1], max_chars=max_chars)
    if session.outcome is None:
        raise DataError("the episode has no reward", where=session.id, fix="play it to its end")
    played = (session, *(other for other in later if other.outcome is not None))
    sampled_turns = [
        turn.sampled
        for conversation in played
        for _, turn in conversation.assistant_turns()
        if turn.sampled is not None
    ]
    tokens = sum(len(sampled.ids) for sampled in sampled_turns)
    return EpisodeResult(
        task_id=task.id,
        kind=task.kind,
        reward=session.outcome,
        ended=ended,
        measures=dict(measures),
        entropy=-sum(sum(sampled.logprobs) for sampled in sampled_turns) / tokens
        if tokens
        else None,
        tokens=tokens,
        session=session,
        later=tuple(later),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with PyTorch on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
