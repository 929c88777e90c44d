"""Assemble one conversation from records: merge messages, join results, and track what was in
context at each turn.

Records arrive in file order, the only order that can be trusted: timestamps run backwards, and the
parent chain alone loses parallel calls. The parent chain serves one purpose, to detect that the
human went back and continued from an earlier message. A new stretch then begins, whose context
leaves out the abandoned messages.

A second child of a record is not always a rewind. The results of parallel calls each name their
own record of the message as parent, and the next message names one of the results; attachments
are siblings of each other. All of these continue the current stretch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from composer_replication.core.errors import SessionError
from composer_replication.core.trace import (
    Block,
    Event,
    Role,
    Segment,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.data.ingestion.log_records import LogUsage
from composer_replication.data.ingestion.logged_tools import is_refusal

MAX_STRETCHES = 4096


class TurnDraft:
    """A turn under construction: later records may add blocks to it."""

    __slots__ = (
        "anchor",
        "author",
        "blocks",
        "home",
        "index",
        "is_copied",
        "is_side_message",
        "rank",
        "role",
        "tag",
        "usage",
        "usd",
        "written_at",
    )

    def __init__(
        self,
        role: Role,
        author: str | None,
        blocks: list[Block],
        *,
        tag: str = "",
        is_copied: bool = False,
    ) -> None:
        self.role: Role = role
        self.author = author
        self.blocks = blocks
        self.tag = tag
        self.is_copied = is_copied  # an earlier session holds it, too
        self.is_side_message = False  # an attachment: beside the parent chain, never a rewind
        # the last one reported: earlier records of a message may hold partial counts
        self.usage: LogUsage | None = None
        self.usd: float | None = None  # as reported last, like the usage
        self.written_at = 0.0
        # for a result, the message that holds the call; None = the draft itself
        self.anchor: TurnDraft | None = None
        self.home: Stretch | None = None
        self.rank = 0
        self.index = -1

    @property
    def group(self) -> TurnDraft:
        """The message to which this belongs: for a result the one with the call, else itself."""
        return self if self.anchor is None else self.anchor

    def turn(self) -> Turn:
        """The turn with the blocks so far."""
        usage = self.usage
        return Turn(
            role=self.role,
            author=self.author,
            blocks=tuple(self.blocks),
            tag=self.tag,
            context_tokens=usage.context_tokens if usage is not None else 0,
            usage=usage.turn_usage(self.usd) if usage is not None else None,
            written_at=self.written_at,
        )


class Stretch:
    """Turns written one after the other in one context: `base`, then `drafts` so far."""

    __slots__ = ("base", "cleared", "drafts", "pinned")

    def __init__(
        self,
        base: list[TurnDraft],
        cleared: tuple[str, ...] = (),
        pinned: tuple[TurnDraft, ...] = (),
    ) -> None:
        self.base = base
        self.drafts: list[TurnDraft] = []
        self.cleared = cleared
        self.pinned = pinned  # the summary: it stays if the human goes back to a preserved message


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """The requests of a conversation: how many were answered, how many of these are reproduced
    exactly (`verified`), and the tools that they offered."""

    requests: int = 0
    verified: int = 0
    tools: tuple[ToolSpec, ...] = ()


class FinishedConversation(NamedTuple):
    """The parts of a Session that come from its conversation."""

    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    copied: int
    copied_inside: int


class Conversation:
    """Collects records in file order (`add_assistant`, `add_message`, `add_result`, ...) and
    returns turns, segments and events.

    `chained`: the records name their parents; a message without one then starts a new context.
    Example: c = Conversation(); c.add_message("u1", None, [Text("hi")], author="human");
    c.finish().turns
    """

    def __init__(self, *, chained: bool = True) -> None:
        self.chained = chained
        # record uuid -> the turn that it belongs to or follows
        self.draft_of_record: dict[str, TurnDraft | None] = {}
        self.draft_of_message: dict[str, TurnDraft] = {}
        self.draft_of_call: dict[str, TurnDraft] = {}
        self.calls: list[ToolCall] = []
        self.draft_of_result: dict[str, TurnDraft] = {}
        # ids of calls of an unknown tool, or with arguments that do not fit the tool
        self.refused: set[str] = set()
        self.current = Stretch([])
        self.stretches = [self.current]
        self.last: TurnDraft | None = None
        self.num_duplicates = 0
        self.has_copies = False
        self.num_dangling = 0
        self._events: list[tuple[str, TurnDraft | None, str | None, str]] = []
        self._preserved: list[str] | None = None  # set between a compaction and the next turn
        self._last_preserved: str | None = (
            None  # the last preserved message, until the summary comes
        )
        self._awaits_summary = False  # a compaction came, its summary has not
        self._has_request_order = False  # the stretches follow the requests, not the file

    # ---- records ---------------------------------------------------------------------------------

    def add_assistant(
        self,
        uuid: str | None,
        parent: str | None,
        *,
        message_id: str,
        author: str | None,
        is_copied: bool,
    ) -> TurnDraft:
        """Return the draft of an API message: the one that an earlier record of the same id began,
        else a new one."""
        draft = self.draft_of_message.get(message_id)
        if draft is None:
            draft = self.draft_of_message[message_id] = TurnDraft(
                "assistant", author, [], is_copied=is_copied
            )
            self._append(draft, self._parent_draft(parent))
        if uuid is not None:
            self.draft_of_record[uuid] = draft
        return draft

    def add_call(self, draft: TurnDraft, block: ToolCall) -> None:
        """Add a call to a message; a call id that exists already marks a repeated record."""
        if block.id in self.draft_of_call:
            self.num_duplicates += 1
            return
        self.draft_of_call[block.id] = draft
        self.calls.append(block)
        draft.blocks.append(block)

    def add_result(
        self,
        uuid: str | None,
        parent: str | None,
        block: ToolResult,
        *,
        author: str,
        is_copied: bool,
        written_at: float = 0.0,
    ) -> None:
        """Add a tool result as a turn of its own, behind the message that holds its call."""
        if block.call_id in self.draft_of_result:
            self.num_duplicates += 1
            if uuid is not None:
                self.draft_of_record.setdefault(uuid, self._draft_at(parent))
            return
        if block.is_error and is_refusal(block.text):
            self.refused.add(block.call_id)
        draft = self.draft_of_result[block.call_id] = TurnDraft(
            "tool", author, [block], is_copied=is_copied
        )
        draft.written_at = written_at
        caller = self.draft_of_call.get(block.call_id)
        if caller is not None:
            draft.anchor = caller
            home = caller.home
            if home is self.current or any(d is caller for d in self.current.base):
                self._append(draft, None)
            else:
                self._append(draft, caller)
        else:
            self._append(draft, self._parent_draft(parent))
        if uuid is not None:
            self.draft_of_record[uuid] = draft

    def add_message(
        self,
        uuid: str | None,
        parent: str | None,
        blocks: list[Block],
        *,
        author: str | None,
        tag: str = "",
        is_copied: bool = False,
        role: Role = "user",
        is_side_message: bool = False,
    ) -> TurnDraft:
        """Add a message of the human or the harness; `is_side_message`: an attachment, which is not
        part of the parent chain."""
        draft = TurnDraft(role, author, blocks, tag=tag, is_copied=is_copied)
        parent_draft = self.draft_of_record.get(parent) if parent is not None else None
        if is_side_message:
            draft.is_side_message, draft.anchor = (
                True,
                parent_draft.group if parent_draft is not None else None,
            )
            self._append(draft, None)
        elif (
            parent is None
            and self.chained
            and uuid is not None
            and self._preserved is None
            and self._has_begun()
        ):
            self._restart()
            self._append(draft, None)
        else:
            self._append(draft, self._parent_draft(parent))
        if tag == "compact_summary":
            self.current.pinned = (*self.current.pinned, draft)
            if self._last_preserved is not None:
                # The chain runs: summary, preserved messages, next message.
                self.draft_of_record[self._last_preserved] = draft
            self._last_preserved, self._awaits_summary = None, False
        if uuid is not None:
            self.draft_of_record[uuid] = draft
        return draft

    def link(self, uuid: str | None, parent: str | None) -> None:
        """Register a record that is not a turn but may be the parent of one: it resolves to its
        own parent."""
        if uuid is not None and uuid not in self.draft_of_record:
            self.draft_of_record[uuid] = self._draft_at(parent)

    def add_event(self, kind: str, *, call_id: str | None = None, text: str = "") -> None:
        """Add an event, such as a compaction, after the turns so far."""
        self._events.append((kind, self.last, call_id, text))

    def begin_compaction(self, preserved: Iterable[str]) -> None:
        """Keep only the system text and the preserved messages in context from the next turn on."""
        self._preserved = list(preserved)

    def begin_compaction_at_summary(self) -> bool:
        """Begin a new context at a summary; returns False if a boundary record has done so."""
        if self._preserved is not None or self._last_preserved is not None or self._awaits_summary:
            return False
        self.begin_compaction(())
        return True

    def clear_results(self, call_ids: Iterable[str], *, attachments: Iterable[str] = ()) -> None:
        """Mark the results of these calls as cleared, and drop these attachments, from the next
        turn on."""
        cleared = dict.fromkeys((*self.current.cleared, *call_ids))
        removed = {id(self.draft_of_record.get(uuid)) for uuid in attachments}
        base = [
            d
            for d in (*self.current.base, *self.current.drafts)
            if not (d.is_side_message and d.role == "user" and id(d) in removed)
        ]
        self._open_stretch(base, cleared=tuple(cleared), pinned=self.current.pinned)

    def set_system(self, blocks: list[Block], author: str) -> None:
        """Set the system prompt: as the first turn if the model has written nothing yet, else from
        here on."""
        draft = TurnDraft("system", author, blocks)
        draft.is_side_message = True
        if len(self.stretches) == 1 and all(
            d.role != "assistant" and d.role != "system" for d in self.current.drafts
        ):
            self.current.drafts.insert(0, draft)
            for rank, following in enumerate(self.current.drafts):
                following.rank = rank
            draft.home = self.current
            return
        self._open_stretch(
            [d for d in (*self.current.base, *self.current.drafts) if d.role != "system"],
            pinned=self.current.pinned,
        )
        self._append(draft, None)

    # ---- context ---------------------------------------------------------------------------------

    def _draft_at(self, parent: str | None) -> TurnDraft | None:
        return self.draft_of_record.get(parent) if parent is not None else None

    def _parent_draft(self, parent: str | None) -> TurnDraft | None:
        if parent is None:
            return None
        if parent not in self.draft_of_record:
            self.num_dangling += 1
            return None
        return self.draft_of_record[parent]

    def _append(self, draft: TurnDraft, parent: TurnDraft | None) -> None:
        """Append a draft; without a `parent` it continues from the last turn, whatever that is."""
        if self._preserved is not None:
            self._open_after_compaction()
        elif parent is not None:
            current = self.current
            last = (
                current.drafts[-1] if current.drafts else current.base[-1] if current.base else None
            )
            if parent is not last:
                self._go_back(parent)
        current = self.current
        drafts = current.drafts
        draft.home, draft.rank = current, len(drafts)
        drafts.append(draft)
        self.last = draft
        if draft.is_copied:
            self.has_copies = True

    def _open_stretch(
        self,
        base: list[TurnDraft],
        *,
        cleared: tuple[str, ...] | None = None,
        pinned: tuple[TurnDraft, ...] = (),
    ) -> None:
        if cleared is None:
            cleared = self.current.cleared
        if not self.current.drafts:
            self.stretches.pop()
        if len(self.stretches) >= MAX_STRETCHES:
            raise SessionError(
                f"more than {MAX_STRETCHES} rewinds and compactions",
                fix="leave this file out: no agent writes such a log",
            )
        self.current = Stretch(base, cleared, pinned)
        self.stretches.append(self.current)

    def _has_begun(self) -> bool:
        return any(not d.is_side_message for d in (*self.current.base, *self.current.drafts))

    def _restart(self) -> None:
        self._open_stretch(
            [d for d in (*self.current.base, *self.current.drafts) if d.role == "system"]
        )

    def _open_after_compaction(self) -> None:
        uuids, self._preserved = self._preserved or [], None
        preserved = {id(d) for uuid in uuids if (d := self.draft_of_record.get(uuid)) is not None}
        in_context = [*self.current.base, *self.current.drafts]
        # A message is preserved with all its results: the API refuses a request that has a call
        # without its result.
        preserved |= {id(d.group) for d in in_context if id(d) in preserved and d.role == "tool"}
        base = [
            d
            for d in in_context
            if d.role == "system"
            or id(d) in preserved
            or (d.role == "tool" and id(d.group) in preserved)
        ]
        self._open_stretch(base)
        self._last_preserved = uuids[-1] if uuids else None
        self._awaits_summary = True

    def _go_back(self, parent: TurnDraft) -> None:
        """Open a stretch that continues from `parent`, unless only its results and attachments
        follow it."""
        current, home = self.current, parent.home
        if home is current:
            before, tail, pinned = (
                [*current.base, *current.drafts[: parent.rank + 1]],
                current.drafts[parent.rank + 1 :],
                current.pinned,
            )
        elif parent in current.base:
            cut = current.base.index(parent) + 1
            before, tail, pinned = (
                current.base[:cut],
                [*current.base[cut:], *current.drafts],
                current.pinned,
            )
            before = [*before, *(d for d in pinned if d not in before)]
        elif home is not None:
            before, tail, pinned = (
                [*home.base, *home.drafts[: parent.rank + 1]],
                home.drafts[parent.rank + 1 :],
                home.pinned,
            )
            results = [d for d in tail if d.role == "tool" and d.group is parent.group]
            self._open_stretch([*before, *results], pinned=pinned)
            return
        else:
            return
        # Parallel results and attachments are siblings in the chain: going on from one of them is
        # no rewind.
        if all(
            d.is_side_message or d in pinned or (d.role == "tool" and d.group is parent.group)
            for d in tail
        ):
            return
        results = [d for d in tail if d.role == "tool" and d.group is parent.group]
        self._open_stretch([*before, *results], pinned=pinned)

    def replace_stretches(self, stretches: list[Stretch]) -> None:
        """Replace the stretches by ones in the order in which the turns were sent; an event stays
        behind the turn that it followed."""
        placed = {id(d) for stretch in stretches for d in stretch.drafts}
        last_placed: dict[int, TurnDraft | None] = {}
        last: TurnDraft | None = None
        for draft in (d for stretch in self.stretches for d in stretch.drafts):
            last = draft if id(draft) in placed else last
            last_placed[id(draft)] = last
        self._events = [
            (
                kind,
                followed if followed is None else last_placed.get(id(followed), followed),
                call,
                text,
            )
            for kind, followed, call, text in self._events
        ]
        self.stretches, self._has_request_order = stretches, True
        self.has_copies = any(d.is_copied for stretch in stretches for d in stretch.drafts)

    # ---- result ----------------------------------------------------------------------------------

    def finish(self) -> FinishedConversation:
        """Return the turns in order, the segments over them, the events, and the number of copied
        turns.

        To be called once: it releases the drafts, which refer to each other and would otherwise
        wait for the garbage collector.
        """
        order: list[TurnDraft] = []
        segments: list[Segment] = []
        for stretch in self.stretches:
            if not stretch.drafts:
                continue
            start = len(order)
            order += stretch.drafts if self._has_request_order else _results_first(stretch.drafts)
            for index in range(start, len(order)):
                order[index].index = index
            cleared = tuple(c for c in stretch.cleared if c in self.draft_of_result)
            segments.append(
                Segment(
                    start=start,
                    end=len(order),
                    context=_ranges(stretch.base, keep_order=self._has_request_order),
                    cleared=cleared,
                )
            )
        turns = tuple([d.turn() for d in order])
        events = tuple(
            Event(
                kind=kind,
                turn=0 if followed is None else followed.index + 1,
                call_id=call_id,
                text=text,
            )
            for kind, followed, call_id, text in self._events
        )
        copied, copied_inside = _count_copied(order) if self.has_copies else (0, 0)
        for stretch in self.stretches:
            stretch.drafts, stretch.base, stretch.pinned = [], [], ()
        return FinishedConversation(turns, tuple(segments), events, copied, copied_inside)


def _results_first(drafts: list[TurnDraft]) -> Iterable[TurnDraft]:
    """Return the drafts in file order, but with the results of a message directly behind it.

    The API refuses a request with text between a message and its results, so this is the order
    that the model saw.
    """
    order: list[TurnDraft] = []
    delayed: list[TurnDraft] = []  # texts that may have to go behind later results
    for draft in drafts:
        role = draft.role
        if role == "tool":
            order.append(draft)
        elif role == "assistant":
            if delayed:
                order += delayed
                delayed = []
            order.append(draft)
        elif delayed or (order and order[-1].role != "user"):
            delayed.append(draft)
        else:
            order.append(draft)
    return [*order, *delayed] if delayed else order


def _ranges(drafts: list[TurnDraft], *, keep_order: bool = False) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for index in [d.index for d in drafts] if keep_order else sorted({d.index for d in drafts}):
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)


def _count_copied(order: list[TurnDraft]) -> tuple[int, int]:
    """Count the leading turns copied from another session, and the copies behind the first new
    turn."""
    copied, copied_later = 0, 0
    is_leading = True
    for index, draft in enumerate(order):
        if draft.is_copied:
            copied, copied_later = (
                (index + 1, copied_later) if is_leading else (copied, copied_later + 1)
            )
        elif draft.role in ("assistant", "tool"):
            is_leading = False
    return copied, copied_later
