"""The reward of an episode on a repository's task, decided where the player cannot reach.

    repository = open_repository(task, folder=folder, environment=environment)
    judged = judge_episode(task, repository=repository, changed={"shop/cart.py": "..."})
    judged.reward           # 1.0, or 0.0 with a reason
    judged.attempts         # what the hack monitor saw: such an episode earns nothing
    judged.residual_risk    # what could still be cheated on this task

The monitor (hack_monitor.py) reads what the episode did and what it left; then the language's own
judge decides (python/judging/python_judge.py), or, for a language that has none and says so, the
outcomes of the tests in a pristine room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from composer_replication.repositories.judged import JudgedEpisode, JudgedRepository
from composer_replication.repositories.judging.hack_monitor import hack_attempts
from composer_replication.repositories.judging.judge_room import judge_room
from composer_replication.repositories.making.gates import LIMIT_S, earns
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.task_language import Language, language_of


def judge_episode(
    task: RepoTask,
    *,
    repository: JudgedRepository,
    changed: Mapping[str, str],
    deleted: Sequence[str] = (),
    calls: Sequence[Any] = (),
    limit_s: float = LIMIT_S,
) -> JudgedEpisode:
    """Judge what an episode left (its changed files with their text, its deleted files) and what
    it did (its tool calls: a name and `arguments` each)."""
    attempts = hack_attempts(
        task, repository.checkout, changed=changed, deleted=deleted, calls=calls
    )
    if attempts:
        first = attempts[0]
        reason = f"the hack monitor: {first.kind} ({first.shown})"
        return JudgedEpisode(reward=0.0, reason=reason, method="strong", attempts=attempts)
    gone = [path for path in task.paths if path in deleted]
    if gone or not set(changed) & set(task.paths):  # a gate has shown that the latter fails
        reason = f"{gone[0]} was deleted" if gone else "no file of the task was changed"
        return JudgedEpisode(reward=0.0, reason=reason, method="strong")
    return judge_changes(
        task, repository=repository, changed=changed, deleted=deleted, limit_s=limit_s
    )


def judge_changes(
    task: RepoTask,
    *,
    repository: JudgedRepository,
    changed: Mapping[str, str],
    deleted: Sequence[str] = (),
    limit_s: float = LIMIT_S,
) -> JudgedEpisode:
    """The judge without the monitor."""
    language = language_of(repository.checkout)
    changes: dict[str, Any] = {"changed": changed, "deleted": deleted, "limit_s": limit_s}
    if language.judge is None:
        judged = _by_tests(task, repository, language, **changes)
    else:
        judged = language.judge.judge(task, repository, **changes)
    risks = [risk for risk in (judged.residual_risk, language.unguarded) if risk]
    return replace(judged, residual_risk="; ".join(risks))


def _by_tests(
    task: RepoTask,
    repository: JudgedRepository,
    language: Language,
    *,
    changed: Mapping[str, str],
    deleted: Sequence[str],
    limit_s: float,
) -> JudgedEpisode:
    """The outcomes of all its tests, the held-out ones too, on the pristine files with the allowed
    changes: what a gate would say."""
    checkout = repository.checkout
    with (
        judge_room(task, repository, changed=changed, deleted=deleted) as room,
        language.runner(
            repository.environment, room.tree, import_root=checkout.import_root
        ) as runner,
    ):
        earned = earns(
            runner,
            files={},
            must_pass=task.must_pass,
            must_keep=task.must_keep,
            limit_s=limit_s,
        )
    return JudgedEpisode(
        reward=earned.reward,
        reason=earned.reason,
        method="tests",
        ignored=room.ignored,
        unfinished=not earned.run.ended,
    )
