"""`recompose build`: sessions, sites, hints and preferences become training examples and pairs.

    items = build_examples(sessions, sites=sites, hints=hints, anchors=anchors,
                           renderer=renderer, settings=BuildSettings())
    report = write_dataset(Path("recompose/examples"), items, meta=renderer.describe())

What is left out is counted, as `Skipped` items. A segment of a session holds what the model had in
context there (after a compaction, or without cleared results). A segment that fits `max_tokens` is
one example; a longer one is cut into windows of whole messages (tokens/window.py), those of hint
targets first. A message with several failing calls is one view with the hints of all of them. A
view is left out (`evidence_lost`) if its window lost the message directly above it or a turn that
its hint or call refers to, unless build.without_evidence = "keep".

What each message may be - a hint target, trained by lm_ce, an anchor - is in tokens/turn_roles.py.
A message is trained by lm_ce in one window at most. A pair uses the window of the example that
covers its message if the pair fits there, so both share their context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from composer_replication.core.config.data_settings import HeldOutSettings, HintPosition
from composer_replication.core.config.train_settings import BuildSettings
from composer_replication.core.errors import AlignmentError, RenderError
from composer_replication.core.site import (
    Anchor,
    Hint,
    Preference,
    Site,
)
from composer_replication.core.trace import Session, Turn
from composer_replication.tokens.decision_tokens import decision_tokens
from composer_replication.tokens.example import (
    HintView,
    PreferencePair,
    Span,
    TrainingExample,
    ViewContext,
)
from composer_replication.tokens.prefix import lay_out_segment, wanted_above
from composer_replication.tokens.renderer import Rendered, Renderer, hint_in_position
from composer_replication.tokens.skipped import Channel, Skipped, format_turns
from composer_replication.tokens.split import is_held_out
from composer_replication.tokens.turn_roles import (
    HintTarget,
    SessionFacts,
    TurnRoles,
    Unmeasured,
    turn_roles,
)
from composer_replication.tokens.window import (
    SegmentCosts,
    Window,
    WindowTarget,
    earliest_start,
    plan_windows,
    shorter_windows,
    target_window,
)

_HINT_FRAME = 16  # at most so many tokens are written around a hint by a template

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
    kept_kinds: Collection[str] | None = None,
    unmeasured: Unmeasured = "keep",
    position: HintPosition = "system",
) -> Iterator[Item]:
    """Examples, pairs and skips, one session at a time, in the order of the sessions.

    `sites` are all sites, of every category: those without a hint still keep their message out of
    lm_ce. `kept_kinds` are the kinds of hints that the audit kept (None = all): a hint of another
    kind is a counted skip, `weak_hint`, and with `unmeasured` = "drop" one that no audit can
    measure is `unmeasured_hint`. `position` is hints.position. A RenderError of a
    template is a skip; the first one is raised only if all the sessions gave not one example.
    """
    facts = SessionFacts.gather(sites, hints, preferences, anchors)
    first_error: RenderError | None = None
    built_sessions: set[str] = set()
    any_built = False
    for session in sessions:
        built_sessions.add(session.id)
        if held_out is not None and is_held_out(session, settings=held_out):
            yield Skipped(channel="session", reason="held_out", session_id=session.id)
            continue
        session_build = _SessionBuild(
            session,
            roles=turn_roles(
                session,
                facts=facts,
                settings=settings,
                kept_kinds=kept_kinds,
                unmeasured=unmeasured,
            ),
            preferences=facts.preferences.get(session.id, []),
            renderer=renderer,
            settings=settings,
            position=position,
        )
        for item in session_build.items():
            any_built = any_built or not isinstance(item, Skipped)
            yield item
        first_error = first_error or session_build.first_error
    yield from facts.unused(built_sessions)
    if first_error is not None and not any_built:
        raise first_error


@dataclass(slots=True, kw_only=True)
class _SegmentBuild:
    """One segment under construction: its conversation, its costs, and the role of each position.

    `numbers` maps a position to the session's turn number.
    """

    turns: Sequence[Turn]
    numbers: Sequence[int]
    costs: SegmentCosts
    trainable: set[int]
    anchored: set[int]
    targets: dict[int, HintTarget]
    # the needs of each target in its window
    window_targets: dict[int, WindowTarget] = field(default_factory=dict)
    trunks: list[Window] = field(default_factory=list)  # the windows of the examples


class _SessionBuild:
    """The examples, pairs and skips of one session."""

    def __init__(
        self,
        session: Session,
        *,
        roles: TurnRoles,
        preferences: Sequence[Preference],
        renderer: Renderer,
        settings: BuildSettings,
        position: HintPosition,
    ) -> None:
        self.session, self.renderer = session, renderer
        self.settings = settings
        self.hint_position: HintPosition = position
        self.roles, self.preferences = roles, preferences
        self.first_error: RenderError | None = None
        self.straddles: set[int] = set()

    def items(self) -> Iterator[Item]:
        yield from self._content()
        yield from self.roles.skips
        targets, trainable = self.roles.targets, self.roles.trainable
        anchored = self.roles.anchored
        # Each segment by itself: its context is what the model had in view there.
        for segment in self.session.segments:
            segment_turns = range(segment.start, segment.end)
            loss_turns = [t for t in segment_turns if t in trainable or t in targets]
            pairs = [p for p in self.preferences if p.turn in segment_turns]
            if not loss_turns and not pairs:
                continue
            try:
                layout = lay_out_segment(self.session, segment, renderer=self.renderer)
            except RenderError as error:
                yield from self._refused(
                    error,
                    [t for t in loss_turns if t in trainable],
                    [targets[t] for t in loss_turns if t in targets],
                    pairs,
                )
                yield from self._anchors_lost(
                    "template",
                    [t for t in loss_turns if t in anchored],
                    detail=str(error),
                )
                continue
            positions = {number: p for p, number in enumerate(layout.numbers)}
            build = _SegmentBuild(
                turns=layout.turns,
                numbers=layout.numbers,
                costs=layout.costs,
                trainable={positions[t] for t in loss_turns if t in trainable},
                anchored={positions[t] for t in loss_turns if t in anchored},
                targets={positions[t]: targets[t] for t in loss_turns if t in targets},
            )
            for p, target in build.targets.items():
                wanted = wanted_above(build.turns, build.numbers, p, refers_to=target.refers_to)
                text = hint_in_position(target.text, position=self.hint_position)
                build.window_targets[p] = WindowTarget(
                    extra=_HINT_FRAME + self.renderer.codec.count(text), wanted=wanted
                )
            yield from self._examples(build)
            # After the examples, because a pair may share the window of one of them.
            yield from self._pairs(build, pairs, positions)
        if self.straddles:
            yield self._skip(
                "content",
                "straddle",
                count=len(self.straddles),
                detail=format_turns(self.straddles),
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

    def _anchors_lost(
        self, reason: str, turns: Sequence[int], *, detail: str = ""
    ) -> Iterator[Skipped]:
        if turns:
            yield self._skip(
                "anchor", reason, count=len(turns), detail=detail or format_turns(turns)
            )

    def _examples(self, build: _SegmentBuild) -> Iterator[Item]:
        costs, max_tokens = build.costs, self.settings.max_tokens
        # A target that cannot have the turns it refers to is dropped before windows are planned:
        # it would take context from others.
        for position, target in list(build.targets.items()):
            alone = target_window(
                costs, position, target=build.window_targets[position], max_tokens=max_tokens
            )
            if alone is not None and (lost := self._lost(build, alone, position)):
                yield from self._without_evidence(target, lost)
                del build.targets[position]
        asks = {p: build.window_targets[p] for p in build.targets}
        for window in plan_windows(
            costs, trained=sorted(build.trainable), targets=asks, max_tokens=max_tokens
        ):
            if isinstance(window, int):
                latest_start = max(s for s in costs.starts if s <= window)
                cost = (
                    costs.cost(latest_start, window + 1)
                    + build.window_targets.get(window, WindowTarget()).extra
                )
                yield from self._too_long(build, [window], f"{cost} tokens with the head, at least")
                continue
            try:
                yield from self._example(build, window)
            except RenderError as error:
                numbers = [build.numbers[p] for p in window.covers if p in build.trainable]
                yield from self._refused(
                    error,
                    numbers,
                    [build.targets[p] for p in window.covers if p in build.targets],
                    [],
                )
                anchors = [build.numbers[p] for p in window.covers if p in build.anchored]
                yield from self._anchors_lost("template", anchors, detail=str(error))

    def _lost(self, build: _SegmentBuild, window: Window, position: int) -> tuple[int, ...]:
        """The missing turns that keep a target from being a view in this window.

        Empty if the settings keep views without evidence.
        """
        return (
            _missing_turns(build, window, position)
            if self.settings.without_evidence == "skip"
            else ()
        )

    def _without_evidence(self, target: HintTarget, lost: Sequence[int]) -> Iterator[Skipped]:
        detail = f"{format_turns(lost)} that it refers to do not fit into its window"
        for site in target.sites:
            yield self._skip("hint", "evidence_lost", site_id=site.id, detail=detail)

    def _too_long(
        self, build: _SegmentBuild, positions: Sequence[int], detail: str
    ) -> Iterator[Skipped]:
        for position in positions:
            if position in build.trainable:
                yield self._skip(
                    "lm_ce", "too_long", detail=f"turn {build.numbers[position]}: {detail}"
                )
            if position in build.anchored:
                yield from self._anchors_lost("too_long", [build.numbers[position]])
            for site in build.targets[position].sites if position in build.targets else ():
                yield self._skip("hint", "too_long", site_id=site.id, detail=detail)

    def _refused(
        self,
        error: RenderError,
        turns: Sequence[int],
        targets: Sequence[HintTarget],
        pairs: Sequence[Preference],
    ) -> Iterator[Skipped]:
        self.first_error = self.first_error or error
        if turns:
            yield self._skip("lm_ce", "template", count=len(turns), detail=str(error))
        lost_turns = {*turns, *(site.turn for target in targets for site in target.sites)}
        if lost_calls := [t for t in sorted(lost_turns) if self.session.turns[t].calls]:
            yield self._skip(
                "content", "lost_calls", count=len(lost_calls), detail=format_turns(lost_calls)
            )
        for site in (site for target in targets for site in target.sites):
            yield self._skip("hint", "template", site_id=site.id, detail=str(error))
        for pair in pairs:
            yield self._skip(
                "preference", "template", site_id=pair.site_id or "", detail=str(error)
            )

    def _example(self, build: _SegmentBuild, window: Window) -> Iterator[Item]:
        fit = self._fit(build, window)
        if fit is None and len(window.covers) > 1:
            yield from self._halves(build, window)
            return
        if fit is None:
            yield from self._too_long(
                build, window.covers, "more, once rendered, than was estimated"
            )
            return
        window, rendered = fit
        spans = dict(zip(window.positions, rendered.spans, strict=True))
        trained: list[Span] = []
        views: list[HintView] = []
        for position in window.covers:
            if position in build.trainable:
                a, b = spans[position].body
                if a < b:
                    trained.append((a, b))
            if position in build.targets:
                view = self._view(build, window, rendered, position)
                if isinstance(view, HintView):
                    views.append(view)
                else:
                    yield from view
        self.straddles.update(rendered.straddles)
        if trained or views:
            first, last = build.numbers[window.start], build.numbers[window.end - 1]
            build.trunks.append(window)
            yield TrainingExample(
                id=f"{self.session.id}:{first}-{last}",
                session_id=self.session.id,
                ids=rendered.ids,
                lm_spans=tuple(trained),
                anchored=tuple(
                    spans[p].body
                    for p in window.covers
                    if p in build.anchored and spans[p].body in trained
                ),
                hints=tuple(views),
                turns=rendered.spans,
                origin=self.session.origin,
            )

    def _halves(self, build: _SegmentBuild, window: Window) -> Iterator[Item]:
        """Two windows in place of one whose estimated length was too low."""
        half = len(window.covers) // 2
        first, second = window.covers[:half], window.covers[half:]
        yield from self._example(build, replace(window, end=first[-1] + 1, covers=first))
        yield from self._example(build, replace(window, covers=second))

    def _fit(self, build: _SegmentBuild, window: Window) -> tuple[Window, Rendered] | None:
        """The window, shortened at its start if the plan was an estimate; None if it never fits.

        While it covers more than one message it only fits if every target has room for its hint and
        for everything it refers to.
        """
        max_tokens, targets = (
            self.settings.max_tokens,
            [p for p in window.covers if p in build.targets],
        )
        for attempt in (window, *shorter_windows(build.costs, window, keep=window.covers)):
            rendered = self._render(build, attempt.positions)
            if len(rendered.ids) > max_tokens:
                continue
            ends = dict(
                zip(attempt.positions, (span.body[1] for span in rendered.spans), strict=True)
            )
            all_targets_fit = all(
                ends[p] + build.window_targets[p].extra <= max_tokens
                and not self._lost(build, attempt, p)
                for p in targets
            )
            if all_targets_fit or (
                len(window.covers) == 1
                and attempt.start == max(s for s in build.costs.starts if s <= window.covers[0])
            ):
                return attempt, rendered
        return None

    def _render(self, build: _SegmentBuild, positions: Sequence[int]) -> Rendered:
        return self.renderer.render(
            [build.turns[p] for p in positions],
            tools=self.session.tools,
            numbers=[build.numbers[p] for p in positions],
        )

    def _view(
        self, build: _SegmentBuild, window: Window, rendered: Rendered, position: int
    ) -> HintView | list[Skipped]:
        """The view of one message, or a skip for each of its sites."""
        target = build.targets[position]
        site, *others = target.sites

        def skips(reason: str, detail: str) -> list[Skipped]:
            return [
                self._skip("hint", reason, site_id=other_site.id, detail=detail)
                for other_site in target.sites
            ]

        if lost := self._lost(build, window, position):
            return list(self._without_evidence(target, lost))
        try:
            view = self.renderer.hint_view(
                [build.turns[p] for p in window.positions],
                target=window.positions.index(position),
                hint=target.text,
                site_id=site.id,
                kind=site.kind,
                tools=self.session.tools,
                call_ids=target.call_ids if self.settings.target == "call" else (),
                others=tuple((other_site.id, other_site.kind) for other_site in others),
                within=rendered,
                position=self.hint_position,
            )
        except (AlignmentError, RenderError) as error:
            return skips("not_insertable", str(error))
        length = view.span[1] + len(view.hint_ids)
        if length > self.settings.max_tokens:
            return skips("too_long", f"{length} tokens with the hint")
        index = window.positions.index(position)
        start = rendered.spans[index].start
        left_out = sum(
            build.costs.tokens[p] for p in range(position) if p not in set(window.positions)
        )
        a, b = rendered.spans[index].body
        found = [
            decision_tokens(
                self.renderer,
                build.turns[position],
                site_id=target_site.id,
                call_id=target_site.call_id,
                decision=hint.decision,
                ids=rendered.ids[a:b],
                start=a,
            )
            for target_site, hint in zip(target.sites, target.hints, strict=True)
        ]
        return replace(
            view,
            decisions=tuple(decision for decision in found if decision is not None),
            context=ViewContext(
                kept=start,
                available=start + left_out,
                refers_to=target.refers_to,
                lost=_missing_turns(build, window, position),
            ),
        )

    def _pairs(
        self, build: _SegmentBuild, pairs: Sequence[Preference], positions: dict[int, int]
    ) -> Iterator[Item]:
        for number, pair in enumerate(pairs):
            try:
                yield self._pair(
                    build,
                    pair,
                    positions[pair.turn],
                    name=f"{self.session.id}:{pair.turn}:{number}",
                )
            except AlignmentError as error:
                yield self._skip(
                    "preference", "same_tokens", site_id=pair.site_id or "", detail=str(error)
                )
            except RenderError as error:
                yield from self._refused(error, [], [], [pair])

    def _pair(
        self, build: _SegmentBuild, pair: Preference, at: int, *, name: str
    ) -> PreferencePair | Skipped:
        chosen, rejected = pair.chosen, pair.rejected_turn(self.session)
        site_id = pair.site_id or ""
        if chosen.role != "assistant" or rejected.role != "assistant":
            return self._skip("preference", "not_assistant", site_id=site_id)
        if pair.turn < self.session.copied:
            return self._skip("preference", "copied", site_id=site_id)
        max_tokens = self.settings.max_tokens
        context = [build.turns[p] for p in build.costs.head if p < at] or build.turns[:at]
        longest = max(
            len(self.renderer.reply(context, side, tools=self.session.tools)[1])
            for side in (chosen, rejected)
        )
        costs = replace(build.costs, tokens=(*build.costs.tokens[:at], longest + _HINT_FRAME))
        start = earliest_start(costs, at, budget=max_tokens, room=max_tokens)
        if start is None:
            return self._skip("preference", "too_long", site_id=site_id)
        window = Window(head=costs.head, start=start, end=at + 1)
        for attempt in (
            *_shared_windows(build, at, least=start),
            window,
            *shorter_windows(costs, window, keep=[at]),
        ):
            turns = [build.turns[p] for p in attempt.positions[:-1]]
            prefix, chosen_ids = self.renderer.reply(turns, chosen, tools=self.session.tools)
            other_prefix, rejected_ids = self.renderer.reply(
                turns, rejected, tools=self.session.tools
            )
            if prefix != other_prefix:
                raise RenderError("the prefix depends on the reply", where=name)
            if len(prefix) + max(len(chosen_ids), len(rejected_ids)) <= max_tokens:
                return PreferencePair(
                    id=name,
                    session_id=self.session.id,
                    site_id=pair.site_id,
                    prefix_ids=prefix,
                    chosen_ids=chosen_ids,
                    rejected_ids=rejected_ids,
                )
        return self._skip("preference", "too_long", site_id=site_id)


def _shared_windows(build: _SegmentBuild, at: int, *, least: int) -> list[Window]:
    """Windows of examples for a pair, whose tokens are then computed once.

    First the one that covers the pair's position, otherwise all from the first on. None begins
    before `least`, where even a window for the pair alone would be too long. A window that does not
    cover the position must leave it at least half of the context that such a window has: an example
    gives its own targets that much.
    """
    candidates = [
        (at in window.covers, window) for window in build.trunks if least <= window.start < at
    ]
    cost = build.costs.cost
    roomy = [window for _, window in candidates if 2 * cost(window.start, at) >= cost(least, at)]
    best = [window for covers, window in candidates if covers] or sorted(
        roomy, key=lambda w: w.start
    )
    return [replace(window, end=at + 1) for window in best]


def _missing_turns(build: _SegmentBuild, window: Window, position: int) -> tuple[int, ...]:
    """The turns that a target needs and that are not above it in the window.

    It needs the turns it refers to and the turn directly above it.
    """
    present = {build.numbers[p] for p in window.positions if p < position}
    needed = {*build.targets[position].refers_to, *build.numbers[max(0, position - 1) : position]}
    return tuple(sorted(needed - present))
