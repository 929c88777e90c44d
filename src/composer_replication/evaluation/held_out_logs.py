"""Held-out sites of the user's own logs, and the messages that a student writes at them.

    def read(): return read_sessions(path)
    held = held_out_sites(read, sites=read_sites(sites_path), settings=config.held_out)
    points, lost = restore_fork_points(held, renderer=renderer, max_tokens=4096, room=256)
    result = play_logs(player, fork_points=points, settings=config.evaluate, batch=8, seed=seed)
    result.forks[0].checked.outcome

A session is held out if the hash of tokens/split.py says so and the session that started it is not
trained on either. With held_out.by = "repository", its repository is not trained on. With "session"
the repository may be; such sites are counted, and the page then shows a change but claims nothing.
The student sees the context above the mistaken message, without any hint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.core.codec import turn_to_json
from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import DataError, RenderError
from composer_replication.core.site import Site
from composer_replication.core.trace import Session
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.refers import refers_to
from composer_replication.data.sites.shell_rules import PATH_EXPLORED
from composer_replication.evaluation.players import Player, load_player
from composer_replication.evaluation.success import one_thread
from composer_replication.models.pretrained_folder import weights_sha256
from composer_replication.rollouts.fork import Fork, ForkPoint, fork_to_json, room_for, sample_forks
from composer_replication.rollouts.sampler import Sampling
from composer_replication.rollouts.static_check import SiteCheck, ToolFacts
from composer_replication.tokens.prefix import restore
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import is_held_out, split_unit

LABEL = "evaluate-logs:"
"""Prefix of every fork's name. All students share it, so that they draw from the same streams of
random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSite:
    """One mistake of a held-out session.

    `cluster` is the session together with the subagents that it started: the unit over which
    intervals are computed. `shared` says that other sessions of `repository` are trained on.
    """

    session: Session
    site: Site
    cluster: str
    repository: str
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The sites at which a student is judged; `left_out` counts unusable mistakes by reason.

    Reasons: training (the session is trained on), shared_session (the session that started it is),
    path_explored (the call only looked for a path, which is no mistake), copied, whole_message (a
    site without a call, so that "the same mistake" is not defined).
    """

    sites: tuple[HeldSite, ...]
    left_out: Mapping[str, int]
    num_training_sessions: int

    @property
    def clusters(self) -> int:
        """The number of sessions that hold the sites."""
        return len({held.cluster for held in self.sites})

    @property
    def repositories(self) -> int:
        """The number of repositories that hold the sites."""
        return len({held.repository for held in self.sites})

    @property
    def num_shared(self) -> int:
        """The number of sites whose repository is trained on in other sessions."""
        return sum(held.shared for held in self.sites)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerForks:
    """The messages that one student wrote at the sites, and the hash of its weights."""

    name: str
    weights_sha256: str
    forks: tuple[Fork, ...]


def held_out_sites(
    read: Callable[[], Iterable[Session]], *, sites: Iterable[Site], settings: HeldOutSettings
) -> HeldOut:
    """The mistakes of held-out sessions; `read` is called twice, each time for all sessions.

    The first pass must end before the second begins: whether a site is shared depends on the
    repositories and the starting sessions of every training session.
    """
    repositories, families = set[str](), set[str]()
    for session in read():
        if not is_held_out(session, settings=settings):
            repositories.add(split_unit(session, by="repository"))
            families.add(split_unit(session, by="session"))
    by_session: dict[str, list[Site]] = {}
    explored: Counter[str] = Counter()
    for site in sites:
        if site.category == "mistake":
            by_session.setdefault(site.session_id, []).append(site)
        elif site.kind == PATH_EXPLORED:
            explored[site.session_id] += 1
    held_sites: list[HeldSite] = []
    left_out: Counter[str] = Counter()
    for session in read():
        repository, family = split_unit(session, by="repository"), split_unit(session, by="session")
        if explored[session.id] and is_held_out(session, settings=settings):
            left_out[PATH_EXPLORED] += explored[session.id]
        for site in by_session.get(session.id, ()):
            reason = ""
            if not is_held_out(session, settings=settings):
                reason = "training"
            elif family in families:
                reason = "shared_session"
            elif site.turn < session.copied:
                reason = "copied"
            elif site.call_id is None:
                reason = "whole_message"
            if reason:
                left_out[reason] += 1
            else:
                shared = repository in repositories
                held_sites.append(
                    HeldSite(
                        session=session,
                        site=site,
                        cluster=family,
                        repository=repository,
                        shared=shared,
                    )
                )
    return HeldOut(
        sites=tuple(held_sites),
        left_out=dict(sorted(left_out.items())),
        num_training_sessions=len(families),
    )


def check_untrained(held: HeldOut, trained: Collection[str], *, where: str) -> None:
    """Raise DataError if a run was trained on a session at which it is about to be judged."""
    trained_on = sorted({h.session.id for h in held.sites} & set(trained))
    if trained_on:
        problem = (
            f"session {trained_on[0]} is held out now, but the run was trained on it"
            f" ({len(trained_on)} such sessions)"
        )
        raise DataError(
            problem,
            where=where,
            fix=(
                "evaluate with the held_out settings that the examples were built with, or build"
                " and train again"
            ),
        )


def restore_fork_points(
    held: HeldOut, *, renderer: Renderer, max_tokens: int, room: int
) -> tuple[list[ForkPoint], dict[str, int]]:
    """The context of every site as `build` would window it, with `room` tokens for the message.

    Also returns how many sites have no such context, by reason.
    """
    fork_points: list[ForkPoint] = []
    lost: Counter[str] = Counter()
    tools: dict[str, ToolFacts] = {}
    for held_site in held.sites:
        try:
            quoted_turns = refers_to(site_context(held_site.session, held_site.site))
            prefix = restore(
                held_site.session,
                turn=held_site.site.turn,
                renderer=renderer,
                max_tokens=max_tokens,
                room=room,
                refers_to=quoted_turns,
            )
        except RenderError:
            lost["template"] += 1
            continue
        if prefix is None:
            lost["too_long"] += 1
            continue
        facts = tools.setdefault(held_site.session.id, ToolFacts.of(held_site.session))
        check = SiteCheck.of(held_site.session, held_site.site, tools=facts)
        fork_points.append(
            ForkPoint(
                site=held_site.site,
                turns=prefix.turns,
                tools=held_site.session.tools,
                check=check,
                num_tokens=prefix.num_tokens,
            )
        )
    return fork_points, dict(lost)


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
