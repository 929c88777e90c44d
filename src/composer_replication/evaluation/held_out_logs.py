"""The messages that a student writes at the held-out sites of the user's own logs.

    restored = restore_contexts(held, renderer=renderer, max_tokens=4096, room=256)
    points = fork_points_of(restored)
    result = play_logs(player, fork_points=points, settings=config.evaluate, batch=8, seed=seed)
    result.forks[0].checked.outcome

The student sees the context above the mistaken message, without any hint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.core.codec import turn_to_json
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.evaluation.held_out_sites import RestoredContexts
from composer_replication.evaluation.players import Player, load_player
from composer_replication.evaluation.success import one_thread
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.rollouts.fork import Fork, ForkPoint, fork_to_json, room_for, sample_forks
from composer_replication.rollouts.sampler import Sampling
from composer_replication.rollouts.static_check import SiteCheck, ToolFacts

LABEL = "evaluate-logs:"
"""Prefix of every fork's name. All students share it, so that they draw from the same streams of
random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerForks:
    """The messages that one student wrote at the sites, and the hash of its weights."""

    name: str
    weights_sha256: str
    forks: tuple[Fork, ...]


def fork_points_of(restored: RestoredContexts) -> list[ForkPoint]:
    """The contexts in which students write, of those that fit, each with its check."""
    tools: dict[str, ToolFacts] = {}
    fork_points: list[ForkPoint] = []
    for held_site, prefix in restored.contexts:
        facts = tools.setdefault(held_site.session.id, ToolFacts.of(held_site.session))
        fork_points.append(
            ForkPoint(
                site=held_site.site,
                turns=prefix.turns,
                tools=held_site.session.tools,
                check=SiteCheck.of(held_site.session, held_site.site, tools=facts),
                num_tokens=prefix.num_tokens,
            )
        )
    return fork_points


def play_logs(
    player: Player,
    *,
    fork_points: Sequence[ForkPoint],
    settings: EvaluateSettings,
    batch: int,
    seed: int,
) -> PlayerForks:
    """Load one student from its files and let it write `settings.log_samples` messages per point.

    It runs on one thread and without hints.
    """
    student, renderer = load_player(player)
    sampling = Sampling(
        temperature=settings.temperature,
        max_new_tokens=settings.log_max_new_tokens,
        batch_episodes=batch,
        seed=stage_seed(seed, "evaluate-logs"),
    )
    with one_thread():
        forks = sample_forks(
            student.model,
            fork_points,
            samples=settings.log_samples,
            renderer=renderer,
            settings=room_for([point.num_tokens for point in fork_points], settings=sampling),
            author=player.name,
            label=LABEL,
        )
    return PlayerForks(
        name=player.name, weights_sha256=weights_sha256(student.model), forks=tuple(forks)
    )


def message_to_json(fork: Fork) -> dict[str, Any]:
    """One line of evaluation_logs/<row>.jsonl: the verdict of the check and the message itself."""
    return {**fork_to_json(fork), "message": turn_to_json(replace(fork.turn, sampled=None))}
