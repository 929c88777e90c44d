"""The conversations of one episode as a tree, in which requests with a known beginning share it.

    tree = MessageTree()
    node, rest = tree.find(request)        # the longest known beginning, and what is new
    node = tree.behind(node, rest)         # the new messages, as context
    tree.attach(node)
    tree.add_reply(node, reply)            # the message that the student wrote behind them

    offer of tools ─ system ─ user ─ [reply 0] ─ result ─ [reply 1]      the task
                           └ user' ─ (reply 0) ─ [reply 2]               after a compaction
    another offer ── system ─ user ─ [reply 3]                           a title, a subagent

A reply in brackets was sampled at its place; one in parentheses is known from another place: it is
context there, so that nothing is trained on twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from composer_replication.core.trace import ToolSpec, Turn
from composer_replication.rollouts.chat_format import ReadMessage
from composer_replication.serve.client_messages import (
    ClientMessage,
    ClientRequest,
    Purpose,
    StudentReply,
)


@dataclass(slots=True, kw_only=True)
class SampledReply:
    """A message of the student, as it was sampled, and what the client got of it.

    `reads` are all messages that were sampled for one request: one without a call that could be
    carried out is answered here and followed by another; the last one is the client's. `turns` are
    these messages with the answers between them, `ids` the conversation up to the last sampled id.
    `max_tokens` is the client's limit for it, 0 = none.
    """

    reads: tuple[ReadMessage, ...]
    turns: tuple[Turn, ...]
    ids: tuple[int, ...]
    sent: StudentReply
    digest: str
    purpose: Purpose
    agent: str
    max_tokens: int = 0
    delivered: bool = False
    answered: bool = False
    changes: dict[str, str] = field(default_factory=dict)

    def is_cut_for(self, request: ClientRequest) -> bool:
        """Whether it ended at its client's limit, and this request allows more: a client that asks
        again with a larger limit wants the whole message."""
        allows_more = not request.max_tokens or request.max_tokens > self.max_tokens
        return self.sent.finish == "length" and self.max_tokens > 0 and allows_more

    @property
    def last_turn(self) -> Turn:
        """The message that the client continues."""
        return self.turns[-1]

    @property
    def errors(self) -> Mapping[str, str]:
        """The errors of calls of the last message that were answered here, by call id."""
        return self.reads[-1].errors


@dataclass(slots=True, eq=False)
class MessageNode:
    """One message at its place; `reply` is set if the student wrote it.

    `known` = it was sampled at another place, and is context here. The root of a conversation holds
    no message, only the `tools` on offer.
    """

    parent: MessageNode | None
    turns: tuple[Turn, ...] = ()
    reply: SampledReply | None = None
    known: bool = False
    tools: tuple[ToolSpec, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    children: list[MessageNode] = field(default_factory=list)

    def path(self) -> list[MessageNode]:
        """The nodes from the root of the conversation to this one, both included."""
        nodes: list[MessageNode] = []
        node: MessageNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def is_message(self, message: ClientMessage) -> bool:
        """Whether a client's message is the one of this node."""
        if self.reply is None:
            return self.turns == message.turns
        return message.is_students and is_same_reply(self.reply, message)


def is_same_reply(reply: SampledReply, message: ClientMessage) -> bool:
    """Whether a client's message is this reply: by the ids of its calls, else by its text."""
    sent = reply.sent.message
    minted = {call.id for call in sent.calls}
    if minted or message.call_ids:
        return not minted.isdisjoint(message.call_ids)
    return sent.text.strip() == message.text


class MessageTree:
    """All conversations of one episode, by the tools on offer."""

    def __init__(self) -> None:
        self.roots: dict[str, MessageNode] = {}
        self._replies: list[MessageNode] = []

    def find(self, request: ClientRequest) -> tuple[MessageNode, Sequence[ClientMessage]]:
        """The node of the longest beginning that is known, and the messages behind it."""
        node = self.roots.get(request.offer)
        if node is None:
            node = self.roots[request.offer] = MessageNode(None, tools=request.tools)
        for number, message in enumerate(request.messages):
            child = next((c for c in node.children if c.is_message(message)), None)
            if child is None:
                return node, request.messages[number:]
            node = child
        return node, ()

    def behind(self, node: MessageNode, messages: Sequence[ClientMessage]) -> MessageNode:
        """The last of new nodes for messages behind a node, as context; `attach` makes them known.

        A message that the student wrote elsewhere in this episode keeps its sampled ids.
        """
        for message in messages:
            known = self._known(message) if message.is_students else None
            node = (
                MessageNode(node, turns=message.turns)
                if known is None
                else MessageNode(node, turns=(known.last_turn,), reply=known, known=True)
            )
        return node

    def attach(self, node: MessageNode) -> None:
        """Make a new node known, with those above it that are new."""
        while node.parent is not None and node not in node.parent.children:
            node.parent.children.append(node)
            node = node.parent

    def add_reply(self, node: MessageNode, reply: SampledReply) -> MessageNode:
        """Add the message that the student wrote behind a node."""
        child = MessageNode(node, turns=reply.turns, reply=reply)
        node.children.append(child)
        self._replies.append(child)
        return child

    @property
    def replies(self) -> list[MessageNode]:
        """The nodes of all sampled messages, each at the place where it was sampled, in order."""
        return list(self._replies)

    def _known(self, message: ClientMessage) -> SampledReply | None:
        """The newest reply that a client's message is, if it is any."""
        replies = (node.reply for node in reversed(self._replies))
        return next((r for r in replies if r is not None and is_same_reply(r, message)), None)
