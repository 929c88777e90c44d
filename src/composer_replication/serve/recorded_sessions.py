"""The sessions of an episode that an agent program played, and their rollouts.

    sessions = played_sessions(record, reward=1.0)
    rollouts = played_rollouts(record, reward=1.0)    # the same sessions, with the ids of each

Every conversation that was not continued from another one's end is a session of its own: the task,
each subagent, what follows a compaction, a side request. Each sampled message is trained on in one
of them alone: what a session shares with an earlier one is `copied`. The reward of the episode is
that of each of its sessions but side requests: the summary that replaced a conversation, and what
followed it, earn what the task earned. Each session is rendered again and must give the recorded
ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from composer_replication.core.errors import AlignmentError
from composer_replication.core.trace import Event, Parent, Segment, Session, SourceRef, Turn
from composer_replication.rollouts.chat_format import CUT
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.self_summary import SUMMARY
from composer_replication.serve.client_messages import Purpose
from composer_replication.serve.episode_record import EpisodeRecord, turns_of
from composer_replication.serve.message_tree import MessageNode, SampledReply
from composer_replication.tokens.layout import shared_prefix_length

CHANGED = "changed_by_client"
"""Event: the client sent a message of the student back in another form; its text is that form."""
UNDELIVERED = "undelivered"
"""Event: the client was gone when the message was written, and never continued it."""
PURPOSE = "purpose"
"""Event: what a session is for, if it is not the task: "subagent", "compaction" or "side"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedConversation:
    """A path of messages that ends nowhere earlier; `shared` of its nodes are in another one."""

    path: tuple[MessageNode, ...]
    shared: int

    @property
    def replies(self) -> list[SampledReply]:
        """The messages that were sampled here."""
        nodes = self.path[self.shared :]
        return [node.reply for node in nodes if node.reply is not None and not node.known]

    @property
    def copied(self) -> int:
        """The number of leading turns that are context only."""
        known = [i + 1 for i, node in enumerate(self.path) if node.known]
        return len(turns_of(self.path[: max(self.shared, *known, 0)]))

    def purpose(self, *, with_tools: bool) -> Purpose:
        """What its first message was sampled for.

        If others have tools (`with_tools`), a conversation without any is no task: opencode asks
        for a title before it asks for the first message.
        """
        purpose = self.replies[0].purpose
        return "side" if purpose == "main" and with_tools and not self.path[0].tools else purpose


def played_conversations(record: EpisodeRecord) -> list[PlayedConversation]:
    """The conversations of an episode, in the order of their first sampled messages.

    Each sampled message is among the `replies` of exactly one.
    """
    record.wait_for_answers()
    order = {id(reply): number for number, reply in enumerate(record.replies)}
    every = [
        conversation
        for root in record.tree.roots.values()
        for conversation in _conversations(root)
        if conversation.replies
    ]
    return sorted(every, key=lambda c: order[id(c.replies[0])])


def _conversations(root: MessageNode) -> Iterator[PlayedConversation]:
    """The paths from a root: the first branch that was continued goes on, the others begin anew."""
    stack: list[tuple[list[MessageNode], int]] = [([root], 0)]
    while stack:
        path, shared = stack.pop()
        while path[-1].children:
            first, *others = sorted(path[-1].children, key=lambda node: not _is_continued(node))
            stack += [([*path, other], len(path)) for other in reversed(others)]
            # A copy behind messages that were sampled here begins a conversation: of its turns,
            # only the leading ones can be marked as context.
            if first.known and PlayedConversation(path=tuple(path), shared=shared).replies:
                yield PlayedConversation(path=tuple(path), shared=shared)
                shared = len(path)
            path.append(first)
        yield PlayedConversation(path=tuple(path), shared=shared)


def _is_continued(node: MessageNode) -> bool:
    """Whether the student wrote a message at this node or behind it."""
    stack = [node]
    while stack:
        node = stack.pop()
        if node.reply is not None and not node.known:
            return True
        stack += node.children
    return False


def played_sessions(record: EpisodeRecord, *, reward: float | None = None) -> list[Session]:
    """The sessions of an episode; raises AlignmentError if one does not render to its ids."""
    return [rollout.session for rollout in played_rollouts(record, reward=reward)]


def played_rollouts(record: EpisodeRecord, *, reward: float | None = None) -> list[Rollout]:
    """The rollouts of an episode, one for each of its conversations."""
    every = played_conversations(record)
    with_tools = any(conversation.path[0].tools for conversation in every)
    rollouts: list[Rollout] = []
    for number, conversation in enumerate(every):
        purpose = conversation.purpose(with_tools=with_tools)
        rollout = _rollout(record, conversation, number=number, purpose=purpose)
        earned = None if purpose == "side" else reward
        rollouts.append(replace(rollout, session=replace(rollout.session, outcome=earned)))
    return rollouts


def _rollout(
    record: EpisodeRecord,
    conversation: PlayedConversation,
    *,
    number: int,
    purpose: Purpose,
) -> Rollout:
    replies, path = conversation.replies, conversation.path
    ids = replies[-1].ids
    reads = [read for reply in replies for read in reply.reads]
    tools = path[0].tools
    turns = _placed(record, turns_of(path), conversation, ids=ids)
    session = Session(
        id=f"{record.name}.{number}" if number else record.name,
        source=SourceRef(file=record.task_id, format="rollout"),
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
        tools=tools,
        tools_origin="log" if tools else "none",
        events=_events(conversation, purpose=purpose),
        parent=Parent(session_id=record.name, call_id=None) if number else None,
        copied=conversation.copied,
        origin="student",
    )
    return Rollout(
        session=session,
        task_id=record.task_id,
        ids=ids,
        ended="cut_off" if replies[-1].sent.finish == "length" else "done",
        num_cut=sum(read.turn.tag == CUT for read in reads),
        num_malformed=sum(read.num_malformed for read in reads),
        num_refused=sum(read.num_refused for read in reads),
        measures={},
        version=record.writer.version,
        episode=record.name,
    )


def _placed(
    record: EpisodeRecord,
    turns: list[Turn],
    conversation: PlayedConversation,
    *,
    ids: tuple[int, ...],
) -> list[Turn]:
    """The turns with the place of each sampled message in this conversation, once it is checked."""
    rendered = record.chat_format.renderer.render(turns, tools=conversation.path[0].tools)
    if rendered.ids[: len(ids)] != ids:
        at = shared_prefix_length(rendered.ids, ids)
        raise AlignmentError(
            f"the conversation renders to other ids than were sampled, from token {at} of"
            f" {len(ids)} on",
            where=record.name,
            fix="the chat template rewrites what came earlier: use a prefix-preserving family",
        )
    return [
        replace(turn, context_tokens=span.body[0]) if turn.sampled is not None else turn
        for turn, span in zip(turns, rendered.spans, strict=True)
    ]


def _events(conversation: PlayedConversation, *, purpose: Purpose) -> tuple[Event, ...]:
    events: list[Event] = []
    if purpose != "main":
        events.append(Event(kind=PURPOSE, turn=0, text=purpose))
    for number, node in enumerate(conversation.path):
        reply = node.reply
        if reply is None or number < conversation.shared or node.known:
            continue
        turn = len(turns_of(conversation.path[: number + 1])) - len(
            turns_of((node,))[len(reply.turns) :]
        )
        if reply.purpose == "compaction":
            events.append(Event(kind=SUMMARY, turn=turn))
        for key, text in reply.changes.items():
            call_id = None if key == "text" else key
            events.append(Event(kind=CHANGED, turn=turn, call_id=call_id, text=text))
        if not (reply.delivered or reply.answered):
            events.append(Event(kind=UNDELIVERED, turn=turn))
    for kind, count in conversation.path[0].left_out.items():
        events.append(Event(kind="left_out", turn=0, text=f"{count} {kind}"))
    return tuple(events)
