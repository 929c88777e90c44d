"""The judge as an environment asks it; RepoEnv has no other by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from composer_replication.core.trace import ToolCall
from composer_replication.repositories.judged import JudgedRepository
from composer_replication.repositories.judging.judge import judge_episode
from composer_replication.repositories.judging.judge_room import JUDGE_CACHE
from composer_replication.repositories.playing.playable import EpisodeReward, PlayableRepository
from composer_replication.repositories.repo_task import RepoTask


def judged_repository(repository: PlayableRepository) -> JudgedRepository:
    """What the judge needs of a repository that is played."""
    return JudgedRepository(
        checkout=repository.checkout,
        environment=repository.environment,
        cache=repository.folder / JUDGE_CACHE,
    )


def judged_reward(
    task: RepoTask,
    repository: PlayableRepository,
    *,
    changed: Mapping[str, str],
    deleted: Sequence[str] = (),
    calls: Sequence[ToolCall] = (),
) -> EpisodeReward:
    """The reward of `judge_episode` with its reason, and what the episode tried."""
    judged = judge_episode(
        task,
        repository=judged_repository(repository),
        changed=changed,
        deleted=deleted,
        calls=calls,
    )
    attempts = tuple(f"{attempt.kind}: {attempt.shown}" for attempt in judged.attempts)
    return EpisodeReward(reward=judged.reward, reason=judged.reason, attempts=attempts)
