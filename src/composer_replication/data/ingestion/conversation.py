"""One conversation put together from records: messages merged, results joined, and what was in
context when.

Records arrive in file order, which is the only order that can be trusted (timestamps run backwards,
and the parent chain alone loses parallel calls). The parent chain is used for one thing: to see
that the human went back and wrote on from an earlier message. Then a new stretch begins whose
context leaves the abandoned messages out.

Not every second child is a way back. The results of parallel calls each hang on their own record of
the message, and the next message hangs on one of them; attachments hang beside each other. These go
on in one line.
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
    """A turn that may still grow."""

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
    )

    def __init__(
        self,
        role: Role,
        author: str | None,
        blocks: list[Block],
        tag: str = "",
        is_copied: bool = False,
    ) -> None:
        self.role: Role = role
        self.author = author
        self.blocks = blocks
        self.tag = tag
        self.is_copied = is_copied  # stands in another session too
        self.is_side_message = False  # an attachment: hangs beside the chain, never a way back
        # the last one reported: earlier records of a message may hold a part only
        self.usage: LogUsage | None = None
        # of a result: the message that holds the call; None = the draft itself
        self.anchor: TurnDraft | None = None
        self.home: Stretch | None = None
        self.rank = 0
        self.index = -1

    @property
    def group(self) -> TurnDraft:
        """The message this belongs to: of a result the one with the call, else the draft itself."""
        return self if self.anchor is None else self.anchor

    def turn(self) -> Turn:
        """The turn as it stands now."""
        tokens = self.usage.context_tokens if self.usage is not None else 0
        return Turn(
            role=self.role,
            author=self.author,
            blocks=tuple(self.blocks),
            tag=self.tag,
            context_tokens=tokens,
        )


class Stretch:
    """Turns written one after the other in one context."""

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
        self.pinned = pinned  # the summary: stays when the human goes back to a preserved message


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """A conversation in the order of its requests: how many were answered, how many of them stand
    in it as sent, and their tools."""

    requests: int = 0
    verified: int = 0
    tools: tuple[ToolSpec, ...] = ()


class FinishedConversation(NamedTuple):
    """The parts of a Session that a conversation gives."""

    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...]
    events: tuple[Event, ...]
    copied: int
    copied_inside: int


class Conversation:
    """Takes records in file order (`assistant`, `say`, `result`, ...) and gives turns, segments and
    events.

    `chained` = the records name their parents; a message without one then starts afresh.
    Example: c = Conversation(); c.say("u1", None, "human", "", [Text("hi")]); c.finish().turns
    """

    def __init__(self, *, chained: bool = True) -> None:
        self.chained = chained
        # record uuid -> the turn it belongs to or follows
        self.draft_of_record: dict[str, TurnDraft | None] = {}
        self.draft_of_message: dict[str, TurnDraft] = {}
        self.draft_of_call: dict[str, TurnDraft] = {}
        self.calls: list[ToolCall] = []
        self.draft_of_result: dict[str, TurnDraft] = {}
        # calls of a tool that is none, or with arguments it does not take
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
            None  # the last preserved message, until the summary is met
        )
        self._awaits_summary = False  # a compaction was met, its summary not yet
        self._has_request_order = False  # the stretches are in the order of the requests

    # ---- records ---------------------------------------------------------------------------------

    def add_assistant(
        self,
        uuid: str | None,
        parent: str | None,
        message_id: str,
        author: str | None,
        is_copied: bool,
    ) -> TurnDraft:
        """The draft of an API message: the one begun by an earlier record of the same id, else a
        new one."""
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
        """Add a call to a message; a call id seen before is a repeated record."""
        if block.id in self.draft_of_call:
            self.num_duplicates += 1
            return
        self.draft_of_call[block.id] = draft
        self.calls.append(block)
        draft.blocks.append(block)

    def add_result(
        self, uuid: str | None, parent: str | None, block: ToolResult, author: str, is_copied: bool
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
        author: str | None,
        tag: str,
        blocks: list[Block],
        *,
        is_copied: bool = False,
        role: Role = "user",
        is_side_message: bool = False,
    ) -> TurnDraft:
        """Add a message of the human or the harness; `loose` = it hangs beside the chain (an
        attachment)."""
        draft = TurnDraft(role, author, blocks, tag, is_copied)
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
                # the chain goes summary, preserved messages, next message
                self.draft_of_record[self._last_preserved] = draft
            self._last_preserved, self._awaits_summary = None, False
        if uuid is not None:
            self.draft_of_record[uuid] = draft
        return draft

    def link(self, uuid: str | None, parent: str | None) -> None:
        """A record that is no turn, but may be the parent of one: it stands for its own parent."""
        if uuid is not None and uuid not in self.draft_of_record:
            self.draft_of_record[uuid] = self._draft_at(parent)

    def add_event(self, kind: str, *, call_id: str | None = None, text: str = "") -> None:
        """Note something that is not a message, after the turns so far."""
        self._events.append((kind, self.last, call_id, text))

    def begin_compaction(self, preserved: Iterable[str]) -> None:
        """From the next turn on, only system text and the preserved messages are in context."""
        self._preserved = list(preserved)

    def begin_compaction_at_summary(self) -> bool:
        """A summary was met: begin a new context, unless a boundary record did so already (then
        False)."""
        if self._preserved is not None or self._last_preserved is not None or self._awaits_summary:
            return False
        self.begin_compaction(())
        return True

    def clear_results(self, call_ids: Iterable[str], *, attachments: Iterable[str] = ()) -> None:
        """From the next turn on, the results of these calls read as cleared and these attachments
        are gone."""
        cleared = dict.fromkeys((*self.current.cleared, *call_ids))
        removed = {id(self.draft_of_record.get(uuid)) for uuid in attachments}
        base = [
            d
            for d in (*self.current.base, *self.current.drafts)
            if not (d.is_side_message and d.role == "user" and id(d) in removed)
        ]
        self._open_stretch(base, cleared=tuple(cleared), pinned=self.current.pinned)

    def set_system(self, blocks: list[Block], author: str) -> None:
        """The system prompt: first of all if no message was written yet, else in force from here
        on."""
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
        """Put a draft at the end; `parent` None = it goes on from whatever stands there."""
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
        # A message is preserved with all its results: the parts of a group are never apart in a
        # request.
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
        """Open a stretch that goes on from `parent`, unless what follows it are only its results
        and attachments."""
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
        if all(
            d.is_side_message or d in pinned or (d.role == "tool" and d.group is parent.group)
            for d in tail
        ):
            return
        results = [d for d in tail if d.role == "tool" and d.group is parent.group]
        self._open_stretch([*before, *results], pinned=pinned)

    def replace_stretches(self, stretches: list[Stretch]) -> None:
        """Take over stretches that hold every turn in the order in which it was sent; events stay
        behind what they followed."""
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
        """Turns in order, segments over them, events; and how many leading turns stand in another
        session.

        Once only: the drafts are let go, so that a finished file leaves no cycles for the garbage
        collector.
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
    """File order, but a message's results directly behind it.

    A request in which text stands between a message and its results is refused by the API, so the
    model saw them so.
    """
    order: list[TurnDraft] = []
    delayed: list[TurnDraft] = []  # texts that would have to let a result pass
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
    """(leading turns known from another session, known turns behind the first new one)."""
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
