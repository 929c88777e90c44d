"""Held-out mistakes of the user's own logs, and their contexts in the windows of a student.

    def read(): return read_sessions(path)
    held = held_out_sites(read, sites=read_sites(sites_path), settings=config.held_out)
    restored = restore_contexts(held, renderer=renderer, max_tokens=4096, room=256)
    restored.contexts, restored.lost        # (site, prefix) pairs; the others by reason

A session is held out if the hash of tokens/split.py says so and the session that started it is not
trained on either. With held_out.by = "repository", its repository is not trained on. With "session"
the repository may be; such sites are counted, and the page then shows a change but claims nothing.
It needs no torch, so `build` can say before any training how many sites could be evaluated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.errors import DataError, RenderError
from composer_replication.core.site import Site
from composer_replication.core.trace import Session
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.refers import refers_to
from composer_replication.data.sites.shell_rules import PATH_EXPLORED
from composer_replication.tokens.prefix import Prefix, restore
from composer_replication.tokens.renderer import Renderer
from composer_replication.tokens.split import is_held_out, split_unit


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
    num_held_out_sessions: int

    @property
    def num_sessions(self) -> int:
        """The number of sessions that hold the sites."""
        return len({held.session.id for held in self.sites})

    @property
    def clusters(self) -> int:
        """The number of groups that hold the sites: a session and those that it started are one."""
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
class RestoredContexts:
    """The sites whose context fits a window, and the others by reason.

    Reasons: too_long (not even the shortest window leaves room for the message), template (the
    chat template refuses the context).
    """

    contexts: tuple[tuple[HeldSite, Prefix], ...]
    lost: Mapping[str, tuple[HeldSite, ...]]

    @property
    def num_lost(self) -> dict[str, int]:
        """The number of lost sites, by reason."""
        return {reason: len(sites) for reason, sites in self.lost.items()}


def held_out_sites(
    read: Callable[[], Iterable[Session]], *, sites: Iterable[Site], settings: HeldOutSettings
) -> HeldOut:
    """The mistakes of held-out sessions; `read` is called twice, each time for all sessions.

    The first pass must end before the second begins: whether a site is shared depends on the
    repositories and the starting sessions of every training session.
    """
    repositories, families = set[str](), set[str]()
    num_sessions: Counter[bool] = Counter()
    for session in read():
        held_out = is_held_out(session, settings=settings)
        num_sessions[held_out] += 1
        if not held_out:
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
        num_training_sessions=num_sessions[False],
        num_held_out_sessions=num_sessions[True],
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


def restore_contexts(
    held: HeldOut, *, renderer: Renderer, max_tokens: int, room: int
) -> RestoredContexts:
    """The context of every site as `build` would window it, with `room` tokens for the message."""
    contexts: list[tuple[HeldSite, Prefix]] = []
    lost: dict[str, list[HeldSite]] = {}
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
            lost.setdefault("template", []).append(held_site)
            continue
        if prefix is None:
            lost.setdefault("too_long", []).append(held_site)
        else:
            contexts.append((held_site, prefix))
    return RestoredContexts(
        contexts=tuple(contexts), lost={reason: tuple(sites) for reason, sites in lost.items()}
    )


def smallest_window(
    held: HeldOut, restored: RestoredContexts, *, renderer: Renderer, max_tokens: int, room: int
) -> tuple[int, int] | None:
    """The smallest doubling of `max_tokens`, up to 64 times, at which a site that is too long
    fits, and how many of them do then; None if there is none."""
    too_long = replace(held, sites=restored.lost.get("too_long", ()))
    for tokens in (max_tokens << k for k in range(1, 7)) if too_long.sites else ():
        wider = restore_contexts(too_long, renderer=renderer, max_tokens=tokens, room=room)
        if wider.contexts:
            return tokens, len(wider.contexts)
    return None
