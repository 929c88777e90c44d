"""Facts to examples: sessions, sites, hints and preferences become token sequences, and nothing is
left out without being counted.

    items = build_examples(sessions, sites=sites, hints=hints, anchors=anchors, renderer=renderer, settings=BuildSettings())
    report = write_dataset(Path("recompose/examples"), items, meta=renderer.describe())        # tokens/artefact.py

Each segment of a session is what the model really had in view (compaction, cleared results). A
segment that fits `max_tokens` is one example; a longer one is cut into windows of whole messages
(tokens/window.py), those of hint targets first. A message with several failing calls is one view
with the hints of all of them. A view whose window lost a turn that its hint or the call refers to,
or the message directly above it, is left out (`evidence_lost`), unless build.without_evidence =
"keep". Each message a model wrote is trained by lm_ce in one window at most, and never if it is a
site's: a mistake or a recovery is the hint channel's, what a human rejected or interrupted is
nobody's, and so is an error that no rule names. Messages of the other categories (a failed check, a
permission, ...) are correct calls and remain trainable. A pair uses the window of the example that
covers its message where that fits, so both share their context. An anchor holds in place only what
lm_ce may train: never a site's message, a copied one, or one that a pair rejects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import AlignmentError, RenderError, SiteError
from composer_replication.core.site import (
    Anchor,
    Hint,
    Preference,
    Site,
    joined_text,
)
from composer_replication.core.trace import Segment, Session, Turn
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    Span,
    TrainingExample,
    ViewContext,
)
from composer_replication.tokens.prefix import has_body, lay_out_segment, wanted_above
from composer_replication.tokens.renderer import Rendered, Renderer
from composer_replication.tokens.split import is_held_out
from composer_replication.tokens.window import (
    SegmentCosts,
    Window,
    WindowTarget,
    before,
    later_starts,
    window_of,
    windows,
)

Channel = Literal["session", "content", "lm_ce", "hint", "preference", "anchor"]
_HINT_FRAME = 16  # tokens a template writes around a hint, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that was not used, and why; `count` of them where they are told apart by nothing
    else.

    Reasons per channel: session: held_out content: what a template has no place for, see
    `TurnMessages`; straddle lm_ce: author, copied, site, interrupted, dispreferred,
    no_text_or_call, too_long, template hint: no_hint, weak_hint, author, copied, category,
    not_assistant, no_text_or_call, too_long, template, not_insertable, no_session, second_hint,
    no_site, evidence_lost; preference: copied, not_assistant, too_long, template, no_session,
    same_tokens anchor: those of lm_ce, not_assistant, no_session, second_anchor
    Example: Skipped(channel="hint", reason="too_long", session_id="s1", site_id="s1:7:c1",
    detail="5210 tokens")
    """

    channel: Channel
    reason: str
    session_id: str = ""
    site_id: str = ""
    count: int = 1
    detail: str = ""


Item = TrainingExample | PreferencePair | Skipped


def build_examples(
    sessions: Iterable[Session],
    *,
    sites: Iterable[Site],
    hints: Iterable[Hint],
    renderer: Renderer,
    settings: BuildSettings,
    preferences: Iterable[Preference] = (),
    anchors: Iterable[Anchor] = (),
    held_out: HeldOutSettings | None = None,
    kept: Collection[str] | None = None,
) -> Iterator[Item]:
    """Examples, pairs and skips, one session at a time, in the order of the sessions.

    `sites` are all sites, of every category: those without a hint still keep their message out of
    lm_ce. `kept` are the kinds of hints that the audit kept (None = all kinds): a hint of another
    kind is a counted skip, `weak_hint`. Raises the first RenderError of a template only if not one
    example came of all the sessions.
    """
    facts = _Facts.gather(sites, hints, preferences, anchors)
    first_error: RenderError | None = None
    seen: set[str] = set()
    built = False
    for session in sessions:
        seen.add(session.id)
        if held_out is not None and is_held_out(session, settings=held_out):
            yield Skipped(channel="session", reason="held_out", session_id=session.id)
            continue
        work = _SessionBuild(session, facts=facts, renderer=renderer, settings=settings, kept=kept)
        for item in work.items():
            built = built or not isinstance(item, Skipped)
            yield item
        first_error = first_error or work.first_error
    yield from facts.unused(seen)
    if first_error is not None and not built:
        raise first_error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
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
    ) -> _Facts:
        by_session: dict[str, list[Site]] = defaultdict(list)
        by_site: dict[str, list[Hint]] = defaultdict(list)
        pairs: dict[str, list[Preference]] = defaultdict(list)
        for site in sites:
            by_session[site.session_id].append(site)
        for hint in hints:
            by_site[hint.site_id].append(hint)
        for preference in preferences:
            pairs[preference.session_id].append(preference)
        held: dict[str, list[Anchor]] = defaultdict(list)
        for anchor in anchors:
            held[anchor.session_id].append(anchor)
        return cls(sites=by_session, hints=by_site, preferences=pairs, anchors=held)

    def unused(self, seen: set[str]) -> Iterator[Skipped]:
        """What names a session that was not among those given, and hints that name no site."""
        known = {site.id for sites in self.sites.values() for site in sites}
        for session_id, sites in self.sites.items():
            if session_id not in seen:
                yield Skipped(
                    channel="hint", reason="no_session", session_id=session_id, count=len(sites)
                )
        for session_id, pairs in self.preferences.items():
            if session_id not in seen:
                yield Skipped(
                    channel="preference",
                    reason="no_session",
                    session_id=session_id,
                    count=len(pairs),
                )
        for session_id, anchors in self.anchors.items():
            if session_id not in seen:
                yield Skipped(
                    channel="anchor", reason="no_session", session_id=session_id, count=len(anchors)
                )
        for site_id, hints in self.hints.items():
            if site_id not in known:
                yield Skipped(channel="hint", reason="no_site", site_id=site_id, count=len(hints))
            elif len(hints) > 1:
                yield Skipped(
                    channel="hint", reason="second_hint", site_id=site_id, count=len(hints) - 1
                )


@dataclass(frozen=True, slots=True)
class _Target:
    """One mistaken message: the sites of its calls that failed, in the order of the calls, and
    their hints."""

    sites: tuple[Site, ...]
    hints: tuple[Hint, ...]

    @property
    def text(self) -> str:
        """The hints in one."""
        return joined_text(self.hints)

    @property
    def refers_to(self) -> tuple[int, ...]:
        """Turns that the hints or the calls speak of."""
        return tuple(sorted({turn for hint in self.hints for turn in hint.refers_to}))

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The calls that failed; none where a site is its whole message."""
        named = [site.call_id for site in self.sites if site.call_id is not None]
        return tuple(named) if len(named) == len(self.sites) else ()


@dataclass(slots=True, kw_only=True)
class _Scene:
    """One segment: its conversation, the session's number of each position, the plan, and what each
    position is needed for."""

    turns: list[Turn]
    numbers: list[int]
    plan: SegmentCosts
    trainable: set[int] = field(default_factory=set)
    anchored: set[int] = field(default_factory=set)
    targets: dict[int, _Target] = field(default_factory=dict)
    # what each target asks of its window
    asks: dict[int, WindowTarget] = field(default_factory=dict)
    trunks: list[Window] = field(default_factory=list)  # the windows of the examples


class _SessionBuild:
    def __init__(
        self,
        session: Session,
        *,
        facts: _Facts,
        renderer: Renderer,
        settings: BuildSettings,
        kept: Collection[str] | None,
    ) -> None:
        self.session, self.renderer, self.settings, self.kept = session, renderer, settings, kept
        self.sites = facts.sites.get(session.id, [])
        self.hints = facts.hints
        self.preferences = facts.preferences.get(session.id, [])
        self.anchors = facts.anchors.get(session.id, [])
        self.first_error: RenderError | None = None
        self.straddles: set[int] = set()

    def items(self) -> Iterator[Item]:
        yield from self._content()
        targets, skips = self._targets()
        yield from skips
        trainable, left_out = self._trainable()
        for reason, found in left_out.items():
            yield self._skip("lm_ce", reason, count=len(found), detail=_listed(found))
        anchored, skips = self._anchored(trainable, left_out)
        yield from skips
        for segment in self.session.segments:
            own = range(segment.start, segment.end)
            here = [t for t in own if t in trainable or t in targets]
            pairs = [p for p in self.preferences if p.turn in own]
            if not here and not pairs:
                continue
            try:
                scene = self._scene(segment)
            except RenderError as error:
                yield from self._refused(
                    error,
                    [t for t in here if t in trainable],
                    [targets[t] for t in here if t in targets],
                    pairs,
                )
                yield from self._anchors_lost(
                    "template", [t for t in here if t in anchored], detail=str(error)
                )
                continue
            position = {number: p for p, number in enumerate(scene.numbers)}
            scene.trainable = {position[t] for t in here if t in trainable}
            scene.anchored = {position[t] for t in here if t in anchored}
            scene.targets = {position[t]: targets[t] for t in here if t in targets}
            for p, target in scene.targets.items():
                wanted = wanted_above(scene.turns, scene.numbers, p, refers_to=target.refers_to)
                scene.asks[p] = WindowTarget(
                    extra=_HINT_FRAME + self.renderer.codec.count(target.text), wanted=wanted
                )
            yield from self._examples(scene)
            yield from self._pairs(scene, pairs, position)
        if self.straddles:
            yield self._skip(
                "content", "straddle", count=len(self.straddles), detail=_listed(self.straddles)
            )

    def _skip(
        self, channel: Channel, reason: str, *, site_id: str = "", count: int = 1, detail: str = ""
    ) -> Skipped:
        return Skipped(
            channel=channel,
            reason=reason,
            session_id=self.session.id,
            site_id=site_id,
            count=count,
            detail=detail,
        )

    def _content(self) -> Iterator[Skipped]:
        notes: Counter[str] = Counter()
        for item in self.renderer.messages_of(self.session.turns):
            notes.update(item.notes)
        for name, count in sorted(notes.items()):
            yield self._skip("content", name, count=count)

    def _author_passes(self, author: str | None) -> bool:
        patterns = self.settings.authors
        return not patterns or any(fnmatchcase(author or "", pattern) for pattern in patterns)

    def _targets(self) -> tuple[dict[int, _Target], list[Skipped]]:
        found: dict[int, list[tuple[Site, Hint]]] = defaultdict(list)
        skips: list[Skipped] = []
        for site in self.sites:
            hints = self.hints.get(site.id, [])
            reason = self._why_no_target(site, bool(hints))
            if reason:
                skips.append(
                    self._skip(
                        "hint",
                        reason,
                        site_id=site.id,
                        detail=site.category if reason == "category" else "",
                    )
                )
            else:
                found[site.turn].append((site, hints[0]))
        return {turn: self._target(turn, pairs) for turn, pairs in found.items()}, skips

    def _target(self, turn: int, found: list[tuple[Site, Hint]]) -> _Target:
        order = {call.id: number for number, call in enumerate(self.session.turns[turn].calls)}
        ordered = sorted(found, key=lambda one: order.get(one[0].call_id or "", -1))
        return _Target(tuple(site for site, _ in ordered), tuple(hint for _, hint in ordered))

    def _why_no_target(self, site: Site, hinted: bool) -> str:
        turns = self.session.turns
        if site.call_id is not None and site.call_id not in {
            c.id for turn in turns[site.turn : site.turn + 1] for c in turn.calls
        }:
            what = (
                f"turn {site.turn} does not hold the call {site.call_id}: the site belongs to"
                " another state of this session"
            )
            raise SiteError(
                what, where=site.id, fix="run again: recompose sites, then recompose hints"
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
        if not hinted:
            return "no_hint"
        return "" if self.kept is None or site.kind in self.kept else "weak_hint"

    def _trainable(self) -> tuple[set[int], dict[str, list[int]]]:
        """Turns of models that lm_ce may train, and those it may not, by reason."""
        at_sites = {site.turn for site in self.sites if site.bars_lm_ce}
        rejected = {p.turn for p in self.preferences if p.rejected is None}
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
        """Turns to hold in place: what lm_ce must leave alone, nobody shall hold on to."""
        why = {number: reason for reason, numbers in left_out.items() for number in numbers}
        anchored: set[int] = set()
        lost: dict[str, list[int]] = defaultdict(list)
        for turn in (anchor.turn for anchor in self.anchors):
            if turn in anchored:
                lost["second_anchor"].append(turn)
            elif turn in trainable:
                anchored.add(turn)
            else:
                lost[why.get(turn, "not_assistant")].append(turn)
        return anchored, [
            skip for reason, turns in lost.items() for skip in self._anchors_lost(reason, turns)
        ]

    def _anchors_lost(
        self, reason: str, turns: Sequence[int], *, detail: str = ""
    ) -> Iterator[Skipped]:
        if turns:
            yield self._skip("anchor", reason, count=len(turns), detail=detail or _listed(turns))

    def _scene(self, segment: Segment) -> _Scene:
        scene = lay_out_segment(self.session, segment, renderer=self.renderer)
        return _Scene(turns=list(scene.turns), numbers=list(scene.numbers), plan=scene.plan)

    def _examples(self, scene: _Scene) -> Iterator[Item]:
        plan, room = scene.plan, self.settings.max_tokens
        # one that cannot have what it refers to needs no window
        for position, target in list(scene.targets.items()):
            alone = window_of(plan, position, target=scene.asks[position], max_tokens=room)
            if alone is not None and (lost := self._lost(scene, alone, position)):
                yield from self._without_evidence(target, lost)
                del scene.targets[position]
        asks = {p: scene.asks[p] for p in scene.targets}
        for window in windows(plan, trained=sorted(scene.trainable), targets=asks, max_tokens=room):
            if isinstance(window, int):
                least = max(s for s in plan.starts if s <= window)
                cost = plan.cost(least, window + 1) + scene.asks.get(window, WindowTarget()).extra
                yield from self._too_long(scene, [window], f"{cost} tokens with the head, at least")
                continue
            try:
                yield from self._example(scene, window)
            except RenderError as error:
                numbers = [scene.numbers[p] for p in window.covers if p in scene.trainable]
                yield from self._refused(
                    error,
                    numbers,
                    [scene.targets[p] for p in window.covers if p in scene.targets],
                    [],
                )
                anchors = [scene.numbers[p] for p in window.covers if p in scene.anchored]
                yield from self._anchors_lost("template", anchors, detail=str(error))

    def _lost(self, scene: _Scene, window: Window, position: int) -> tuple[int, ...]:
        """The turns for want of which a target is no view in this window: none where views may do
        without."""
        return _missing(scene, window, position) if self.settings.without_evidence == "skip" else ()

    def _without_evidence(self, target: _Target, lost: Sequence[int]) -> Iterator[Skipped]:
        detail = f"{_listed(lost)} that it refers to do not fit into its window"
        for site in target.sites:
            yield self._skip("hint", "evidence_lost", site_id=site.id, detail=detail)

    def _too_long(self, scene: _Scene, positions: Sequence[int], detail: str) -> Iterator[Skipped]:
        for position in positions:
            if position in scene.trainable:
                yield self._skip(
                    "lm_ce", "too_long", detail=f"turn {scene.numbers[position]}: {detail}"
                )
            if position in scene.anchored:
                yield from self._anchors_lost("too_long", [scene.numbers[position]])
            for site in scene.targets[position].sites if position in scene.targets else ():
                yield self._skip("hint", "too_long", site_id=site.id, detail=detail)

    def _refused(
        self,
        error: RenderError,
        turns: Sequence[int],
        targets: Sequence[_Target],
        pairs: Sequence[Preference],
    ) -> Iterator[Skipped]:
        self.first_error = self.first_error or error
        if turns:
            yield self._skip("lm_ce", "template", count=len(turns), detail=str(error))
        for site in (site for target in targets for site in target.sites):
            yield self._skip("hint", "template", site_id=site.id, detail=str(error))
        for pair in pairs:
            yield self._skip(
                "preference", "template", site_id=pair.site_id or "", detail=str(error)
            )

    def _example(self, scene: _Scene, window: Window) -> Iterator[Item]:
        fitting = self._fit(scene, window)
        if fitting is None and len(window.covers) > 1:
            yield from self._halves(scene, window)
            return
        if fitting is None:
            yield from self._too_long(
                scene, window.covers, "more, once rendered, than was estimated"
            )
            return
        window, rendered = fitting
        spans = dict(zip(window.positions, rendered.spans, strict=True))
        trained: list[Span] = []
        views: list[HintView] = []
        for position in window.covers:
            if position in scene.trainable:
                a, b = spans[position].body
                if a < b:
                    trained.append((a, b))
            if position in scene.targets:
                view = self._view(scene, window, rendered, position)
                if isinstance(view, HintView):
                    views.append(view)
                else:
                    yield from view
        self.straddles.update(rendered.straddles)
        if trained or views:
            first, last = scene.numbers[window.start], scene.numbers[window.end - 1]
            scene.trunks.append(window)
            yield TrainingExample(
                id=f"{self.session.id}:{first}-{last}",
                session_id=self.session.id,
                ids=rendered.ids,
                lm_spans=tuple(trained),
                anchored=tuple(
                    spans[p].body
                    for p in window.covers
                    if p in scene.anchored and spans[p].body in trained
                ),
                hints=tuple(views),
                turns=rendered.spans,
                origin=self.session.origin,
            )

    def _halves(self, scene: _Scene, window: Window) -> Iterator[Item]:
        """Two windows in place of one whose estimated length was too low."""
        half = len(window.covers) // 2
        first, second = window.covers[:half], window.covers[half:]
        yield from self._example(scene, replace(window, end=first[-1] + 1, covers=first))
        yield from self._example(scene, replace(window, covers=second))

    def _fit(self, scene: _Scene, window: Window) -> tuple[Window, Rendered] | None:
        """The window as planned, or with fewer turns at its start where the plan was an estimate;
        None if it never fits.

        While it covers more than one message it only fits where every target has room for its hint
        and all that it refers to.
        """
        room, targets = self.settings.max_tokens, [p for p in window.covers if p in scene.targets]
        for attempt in (window, *later_starts(scene.plan, window, keep=window.covers)):
            rendered = self._render(scene, attempt.positions)
            if len(rendered.ids) > room:
                continue
            ends = dict(
                zip(attempt.positions, (span.body[1] for span in rendered.spans), strict=True)
            )
            whole = all(
                ends[p] + scene.asks[p].extra <= room and not self._lost(scene, attempt, p)
                for p in targets
            )
            if whole or (
                len(window.covers) == 1
                and attempt.start == max(s for s in scene.plan.starts if s <= window.covers[0])
            ):
                return attempt, rendered
        return None

    def _render(self, scene: _Scene, positions: Sequence[int]) -> Rendered:
        return self.renderer.render(
            [scene.turns[p] for p in positions],
            tools=self.session.tools,
            numbers=[scene.numbers[p] for p in positions],
        )

    def _view(
        self, scene: _Scene, window: Window, rendered: Rendered, position: int
    ) -> HintView | list[Skipped]:
        """The view of one message, or why it is none, for each of its sites."""
        target = scene.targets[position]
        site, *others = target.sites

        def skips(reason: str, detail: str) -> list[Skipped]:
            return [
                self._skip("hint", reason, site_id=one.id, detail=detail) for one in target.sites
            ]

        if lost := self._lost(scene, window, position):
            return list(self._without_evidence(target, lost))
        try:
            view = self.renderer.hint_view(
                [scene.turns[p] for p in window.positions],
                target=window.positions.index(position),
                hint=target.text,
                site_id=site.id,
                kind=site.kind,
                tools=self.session.tools,
                call_ids=target.call_ids if self.settings.target == "call" else (),
                others=tuple((one.id, one.kind) for one in others),
                within=rendered,
            )
        except (AlignmentError, RenderError) as error:
            return skips("not_insertable", str(error))
        length = view.span[1] + len(view.hint_ids)
        if length > self.settings.max_tokens:
            return skips("too_long", f"{length} tokens with the hint")
        above = rendered.spans[window.positions.index(position)].start
        left_out = sum(
            scene.plan.tokens[p] for p in range(position) if p not in set(window.positions)
        )
        return replace(
            view,
            context=ViewContext(
                kept=above,
                available=above + left_out,
                refers_to=target.refers_to,
                lost=_missing(scene, window, position),
            ),
        )

    def _pairs(
        self, scene: _Scene, pairs: Sequence[Preference], position: dict[int, int]
    ) -> Iterator[Item]:
        for number, pair in enumerate(pairs):
            try:
                yield self._pair(
                    scene, pair, position[pair.turn], name=f"{self.session.id}:{pair.turn}:{number}"
                )
            except AlignmentError as error:
                yield self._skip(
                    "preference", "same_tokens", site_id=pair.site_id or "", detail=str(error)
                )
            except RenderError as error:
                yield from self._refused(error, [], [], [pair])

    def _pair(
        self, scene: _Scene, pair: Preference, at: int, *, name: str
    ) -> PreferencePair | Skipped:
        chosen, rejected = pair.chosen, pair.rejected_turn(self.session)
        site_id = pair.site_id or ""
        if chosen.role != "assistant" or rejected.role != "assistant":
            return self._skip("preference", "not_assistant", site_id=site_id)
        if pair.turn < self.session.copied:
            return self._skip("preference", "copied", site_id=site_id)
        room = self.settings.max_tokens
        context = [scene.turns[p] for p in scene.plan.head if p < at] or scene.turns[:at]
        longest = max(
            len(self.renderer.reply(context, side, tools=self.session.tools)[1])
            for side in (chosen, rejected)
        )
        plan = replace(scene.plan, tokens=(*scene.plan.tokens[:at], longest + _HINT_FRAME))
        start = before(plan, at, budget=room, room=room)
        if start is None:
            return self._skip("preference", "too_long", site_id=site_id)
        window = Window(head=plan.head, start=start, end=at + 1)
        for attempt in (
            *_shared_windows(scene, at, least=start),
            window,
            *later_starts(plan, window, keep=[at]),
        ):
            turns = [scene.turns[p] for p in attempt.positions[:-1]]
            prefix, chosen_ids = self.renderer.reply(turns, chosen, tools=self.session.tools)
            other_prefix, rejected_ids = self.renderer.reply(
                turns, rejected, tools=self.session.tools
            )
            if prefix != other_prefix:
                raise RenderError("the prefix depends on the reply", where=name)
            if len(prefix) + max(len(chosen_ids), len(rejected_ids)) <= room:
                return PreferencePair(
                    id=name,
                    session_id=self.session.id,
                    site_id=pair.site_id,
                    prefix_ids=prefix,
                    chosen_ids=chosen_ids,
                    rejected_ids=rejected_ids,
                )
        return self._skip("preference", "too_long", site_id=site_id)


def _shared_windows(scene: _Scene, at: int, *, least: int) -> list[Window]:
    """Windows of examples for a pair, whose tokens are then computed once: the one that covers its
    position, else from the first on.

    None begins before `least`, where even an own window would be too long, and none that does not
    cover the position leaves it less than half of the context that an own window has: an example
    gives its own targets that much.
    """
    known = [(at in window.covers, window) for window in scene.trunks if least <= window.start < at]
    cost = scene.plan.cost
    half = [window for _, window in known if 2 * cost(window.start, at) >= cost(least, at)]
    best = [window for covers, window in known if covers] or sorted(half, key=lambda w: w.start)
    return [replace(window, end=at + 1) for window in best]


def _missing(scene: _Scene, window: Window, position: int) -> tuple[int, ...]:
    """The turns that a target refers to and that do not stand above it in the window; what stood
    directly above it is one of them."""
    held = {scene.numbers[p] for p in window.positions if p < position}
    needed = {*scene.targets[position].refers_to, *scene.numbers[max(0, position - 1) : position]}
    return tuple(sorted(needed - held))


def _listed(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    return "turns " + ", ".join(map(str, ordered[:20])) + (", ..." if len(ordered) > 20 else "")
