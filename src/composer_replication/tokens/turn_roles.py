"""The role of each message in training: a hint target, trained by lm_ce, an anchor.

    roles = turn_roles(session, facts=facts, settings=BuildSettings())
    roles.targets          # {7: HintTarget(...)}: the mistaken messages that have hints
    roles.trainable        # {3, 5, 9}: what lm_ce may train

A site's message is never trained by lm_ce: a mistake or a recovery belongs to the hint channel;
what a human rejected or interrupted, and an error that no rule names, belong to no channel.
Messages of the other categories (a failed check, a permission, ...) are correct calls and remain
trainable. An anchor holds in place only what lm_ce may train.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import SiteError
from composer_replication.core.site import Anchor, Hint, Preference, Site, joined_text
from composer_replication.core.trace import Session
from composer_replication.tokens.prefix import has_body
from composer_replication.tokens.skipped import Skipped, format_turns

Unmeasured = Literal["drop", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """Sites, hints, preferences and anchors, by session; hints by site."""

    sites: dict[str, list[Site]]
    hints: dict[str, list[Hint]]
    preferences: dict[str, list[Preference]]
    anchors: dict[str, list[Anchor]]

    @classmethod
    def gather(
        cls,
        sites: Iterable[Site],
        hints: Iterable[Hint],
        preferences: Iterable[Preference],
        anchors: Iterable[Anchor],
    ) -> SessionFacts:
        """Sort the facts of all sessions."""
        sites_by_session: dict[str, list[Site]] = defaultdict(list)
        hints_by_site: dict[str, list[Hint]] = defaultdict(list)
        preferences_by_session: dict[str, list[Preference]] = defaultdict(list)
        for site in sites:
            sites_by_session[site.session_id].append(site)
        for hint in hints:
            hints_by_site[hint.site_id].append(hint)
        for preference in preferences:
            preferences_by_session[preference.session_id].append(preference)
        anchors_by_session: dict[str, list[Anchor]] = defaultdict(list)
        for anchor in anchors:
            anchors_by_session[anchor.session_id].append(anchor)
        return cls(
            sites=sites_by_session,
            hints=hints_by_site,
            preferences=preferences_by_session,
            anchors=anchors_by_session,
        )

    def unused(self, built_sessions: set[str]) -> Iterator[Skipped]:
        """Skips for facts of a session that was not built, and for hints without a site."""
        known_sites = {site.id for sites in self.sites.values() for site in sites}
        for session_id, sites in self.sites.items():
            if session_id not in built_sessions:
                yield Skipped(
                    channel="hint", reason="no_session", session_id=session_id, count=len(sites)
                )
        for session_id, pairs in self.preferences.items():
            if session_id not in built_sessions:
                yield Skipped(
                    channel="preference",
                    reason="no_session",
                    session_id=session_id,
                    count=len(pairs),
                )
        for session_id, anchors in self.anchors.items():
            if session_id not in built_sessions:
                yield Skipped(
                    channel="anchor", reason="no_session", session_id=session_id, count=len(anchors)
                )
        for site_id, hints in self.hints.items():
            if site_id not in known_sites:
                yield Skipped(channel="hint", reason="no_site", site_id=site_id, count=len(hints))
            elif len(hints) > 1:
                yield Skipped(
                    channel="hint", reason="second_hint", site_id=site_id, count=len(hints) - 1
                )


@dataclass(frozen=True, slots=True)
class HintTarget:
    """One mistaken message: the sites of its failed calls, in the order of the calls, and hints."""

    sites: tuple[Site, ...]
    hints: tuple[Hint, ...]

    @property
    def text(self) -> str:
        """The texts of all hints, joined."""
        return joined_text(self.hints)

    @property
    def refers_to(self) -> tuple[int, ...]:
        """The turns that the hints or the calls refer to."""
        return tuple(sorted({turn for hint in self.hints for turn in hint.refers_to}))

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The calls that failed; empty if a site is the whole message."""
        call_ids = [site.call_id for site in self.sites if site.call_id is not None]
        return tuple(call_ids) if len(call_ids) == len(self.sites) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRoles:
    """The roles of a session's turns, by turn number, and what got none."""

    targets: dict[int, HintTarget]
    trainable: set[int]
    anchored: set[int]
    skips: tuple[Skipped, ...]


def turn_roles(
    session: Session,
    *,
    facts: SessionFacts,
    settings: BuildSettings,
    kept_kinds: Collection[str] | None = None,
    unmeasured: Unmeasured = "keep",
) -> TurnRoles:
    """The roles of a session's turns; `kept_kinds` and `unmeasured` as in `build_examples`.

    Raises SiteError for sites of another state of the session.
    """
    rules = _RoleRules(
        session=session,
        facts=facts,
        settings=settings,
        kept_kinds=kept_kinds,
        unmeasured=unmeasured,
    )
    return rules.roles()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoleRules:
    session: Session
    facts: SessionFacts
    settings: BuildSettings
    kept_kinds: Collection[str] | None
    unmeasured: Unmeasured

    @property
    def _sites(self) -> Sequence[Site]:
        return self.facts.sites.get(self.session.id, ())

    @property
    def _preferences(self) -> Sequence[Preference]:
        return self.facts.preferences.get(self.session.id, ())

    def roles(self) -> TurnRoles:
        targets, target_skips = self._targets()
        trainable, left_out = self._trainable()
        left_out_skips = [
            Skipped(
                channel="lm_ce",
                reason=reason,
                session_id=self.session.id,
                count=len(turns),
                detail=format_turns(turns),
            )
            for reason, turns in left_out.items()
        ]
        anchored, anchor_skips = self._anchored(trainable, left_out)
        return TurnRoles(
            targets=targets,
            trainable=trainable,
            anchored=anchored,
            skips=(*target_skips, *left_out_skips, *anchor_skips),
        )

    def _targets(self) -> tuple[dict[int, HintTarget], list[Skipped]]:
        hinted_sites: dict[int, list[tuple[Site, Hint]]] = defaultdict(list)
        skips: list[Skipped] = []
        for site in self._sites:
            hints = self.facts.hints.get(site.id, [])
            reason = self._why_no_target(site, hints[0] if hints else None)
            if reason:
                skips.append(
                    Skipped(
                        channel="hint",
                        reason=reason,
                        session_id=self.session.id,
                        site_id=site.id,
                        detail=site.category if reason == "category" else "",
                    )
                )
            else:
                hinted_sites[site.turn].append((site, hints[0]))
        return {turn: self._target(turn, pairs) for turn, pairs in hinted_sites.items()}, skips

    def _target(self, turn: int, hinted_sites: list[tuple[Site, Hint]]) -> HintTarget:
        order = {call.id: number for number, call in enumerate(self.session.turns[turn].calls)}
        ordered = sorted(
            hinted_sites, key=lambda site_and_hint: order.get(site_and_hint[0].call_id or "", -1)
        )
        return HintTarget(tuple(site for site, _ in ordered), tuple(hint for _, hint in ordered))

    def _why_no_target(self, site: Site, hint: Hint | None) -> str:
        turns = self.session.turns
        if site.call_id is not None and site.call_id not in {
            c.id for turn in turns[site.turn : site.turn + 1] for c in turn.calls
        }:
            problem = (
                f"turn {site.turn} does not hold the call {site.call_id}: the site belongs to"
                " another state of this session"
            )
            raise SiteError(
                problem, where=site.id, fix="run again: recompose sites, then recompose hints"
            )
        if not site.is_target:
            return "category"
        if not 0 <= site.turn < len(turns) or turns[site.turn].role != "assistant":
            return "not_assistant"
        if site.turn < self.session.copied:
            return "copied"
        if not self._author_passes(turns[site.turn].author):
            return "author"
        if not has_body(turns[site.turn]):
            return "no_text_or_call"
        if hint is None:
            return "no_hint"
        if self.kept_kinds is None:
            return ""
        if site.kind not in self.kept_kinds:
            return "weak_hint"
        is_used = self.unmeasured == "keep" or hint.is_measurable
        return "" if is_used else "unmeasured_hint"

    def _author_passes(self, author: str | None) -> bool:
        patterns = self.settings.authors
        return not patterns or any(fnmatchcase(author or "", pattern) for pattern in patterns)

    def _trainable(self) -> tuple[set[int], dict[str, list[int]]]:
        """Turns of models that lm_ce may train, and by reason those that it may not."""
        at_sites = {site.turn for site in self._sites if site.bars_lm_ce}
        rejected = {p.turn for p in self._preferences if p.rejected is None}
        trainable: set[int] = set()
        left_out: dict[str, list[int]] = defaultdict(list)
        turns = self.session.turns
        for number, turn in enumerate(turns):
            if turn.role != "assistant":
                continue
            if number < self.session.copied:
                left_out["copied"].append(number)
            elif number in at_sites:
                left_out["site"].append(number)
            elif number in rejected:
                left_out["dispreferred"].append(number)
            elif not self._author_passes(turn.author):
                left_out["author"].append(number)
            elif not has_body(turn):
                left_out["no_text_or_call"].append(number)
            elif number + 1 < len(turns) and turns[number + 1].is_interrupt:
                left_out["interrupted"].append(number)
            else:
                trainable.add(number)
        return trainable, left_out

    def _anchored(
        self, trainable: set[int], left_out: dict[str, list[int]]
    ) -> tuple[set[int], list[Skipped]]:
        """Turns to hold in place, and skips; what lm_ce must leave alone is never an anchor."""
        reasons = {number: reason for reason, numbers in left_out.items() for number in numbers}
        anchored: set[int] = set()
        lost_turns: dict[str, list[int]] = defaultdict(list)
        for turn in (anchor.turn for anchor in self.facts.anchors.get(self.session.id, ())):
            if turn in anchored:
                lost_turns["second_anchor"].append(turn)
            elif turn in trainable:
                anchored.add(turn)
            else:
                lost_turns[reasons.get(turn, "not_assistant")].append(turn)
        return anchored, [
            Skipped(
                channel="anchor",
                reason=reason,
                session_id=self.session.id,
                count=len(turns),
                detail=format_turns(turns),
            )
            for reason, turns in lost_turns.items()
        ]
