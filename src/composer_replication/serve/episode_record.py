"""One episode of an agent program: its requests are answered, and every sampled token is kept.

    record = EpisodeRecord("task-3:0", chat_format=chat_format, writer=writer, settings=Sampling())
    reply = record.answer(request)              # in the thread of the client's connection
    record.mark_delivered(reply.id)

Sampled ids are never rendered again: the prompt of a request is the ids up to the student's last
message in it, as they were recorded, and the rendering of what the client added. A call that cannot
be read is answered here, as in an episode of the sampler, and the student writes again; the client
never sees it. A request that comes twice before its reply was continued gets the same reply.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

from composer_replication.core.config.base import stage_seed
from composer_replication.core.errors import AlignmentError, RenderError
from composer_replication.core.trace import Sampled, Text, Thinking, ToolSpec, Turn
from composer_replication.rollouts.chat_format import (
    CUT,
    PROBE,
    ChatFormat,
    ReadMessage,
    with_errors,
)
from composer_replication.rollouts.parse import without_calls
from composer_replication.rollouts.sampling import Sampling
from composer_replication.serve.client_messages import (
    ClientMessage,
    ClientRequest,
    Finish,
    Purpose,
    RefusedRequestError,
    StudentReply,
    arguments_text,
)
from composer_replication.serve.message_tree import MessageNode, MessageTree, SampledReply
from composer_replication.serve.student_writers import MessagePrompt, Writer

_REPAIRS = 3  # messages without a readable call that are answered here, one after the other


class EpisodeRecord:
    """The conversations of one episode.

    `name` names its sessions and its random numbers, as in `sample_rollouts`. Requests may come
    from several threads.
    """

    def __init__(
        self,
        name: str,
        *,
        chat_format: ChatFormat,
        writer: Writer,
        settings: Sampling,
        task_id: str = "",
    ) -> None:
        self.name, self.task_id = name, task_id or name
        self.chat_format, self.writer, self.settings = chat_format, writer, settings
        self._without_calls = replace(chat_format, parser=without_calls(chat_format.parser))
        self.tree = MessageTree()
        self.num_retries = 0
        self.random = random.Random(stage_seed(settings.seed, f"rollout:{name}"))
        tag = secrets.token_hex(4)  # client programs tell sessions apart by these ids
        self._reply_ids = (f"msg_{tag}{number:04d}" for number in itertools.count())
        self._call_ids = (f"call_{tag}{number:04d}" for number in itertools.count())
        self._lock = threading.Lock()
        self._open_answers, self._nothing_open = 0, threading.Condition()
        self._writing: dict[MessageNode, Future[StudentReply]] = {}

    def answer(self, request: ClientRequest) -> StudentReply:
        """The student's message behind a request.

        Raises RefusedRequestError if there can be none: no room, or a conversation that the
        student's template cannot write.
        """
        with self._lock:
            node, rest = self.tree.find(request)
            if not rest and (earlier := self._unanswered(node, request)) is not None:
                self.num_retries += 1
                return earlier.sent
            if not rest and node in self._writing:
                self.num_retries += 1
                future, ids = self._writing[node], None
            else:
                node = self.tree.behind(node, rest)
                ids = self._prompt_ids(node)
                self.tree.attach(node)
                self.tree.roots[request.offer].left_out = request.left_out
                self._note_changes(node, request.messages)
                future = self._writing[node] = Future()
        if ids is None:
            return future.result()
        try:
            reply = self._write(ids, node=node, request=request)
        except BaseException as error:
            with self._lock:
                del self._writing[node]
            future.set_exception(error)
            raise
        with self._lock:
            self.tree.add_reply(node, reply)
            del self._writing[node]
        future.set_result(reply.sent)
        return reply.sent

    def count_tokens(self, request: ClientRequest) -> int:
        """The number of tokens of a request's prompt."""
        with self._lock:
            node, rest = self.tree.find(request)
            node = self.tree.behind(node, rest)
            return len(self._prompt_ids(node)) - _answered_here(node)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """A client's request that is being answered, until its answer is sent and noted."""
        with self._nothing_open:
            self._open_answers += 1
        try:
            yield
        finally:
            with self._nothing_open:
                self._open_answers -= 1
                self._nothing_open.notify_all()

    def wait_for_answers(self, timeout_s: float = 5.0) -> bool:
        """Wait until no request is being answered: a client may have read its answer before the
        server has noted that it is delivered."""
        with self._nothing_open:
            return self._nothing_open.wait_for(lambda: not self._open_answers, timeout_s)

    def mark_delivered(self, reply_id: str) -> None:
        """Note that the client has got all of a reply."""
        for reply in self.replies:
            if reply.sent.id == reply_id:
                reply.delivered = True

    @property
    def replies(self) -> Iterator[SampledReply]:
        """Every message that was sampled, in order."""
        return (node.reply for node in self.tree.replies if node.reply is not None)

    def _unanswered(self, node: MessageNode, request: ClientRequest) -> SampledReply | None:
        """The reply that this request already has, if the client has not continued it."""
        for child in reversed(node.children):
            reply = child.reply
            if reply is None or child.known or reply.answered or reply.is_cut_for(request):
                continue
            if reply.digest == request.digest or not reply.delivered:
                return reply
        return None

    def _prompt_ids(self, node: MessageNode) -> tuple[int, ...]:
        """The ids that the student reads: those up to its last message here, and what follows."""
        path = node.path()
        if len(path) == 1:
            raise RefusedRequestError("a request without messages")
        if path[-1].turns[-1].role == "assistant":
            raise RefusedRequestError("the last message is the student's: nothing to answer")
        at = max((i for i, n in enumerate(path) if n.reply and not n.known), default=-1)
        last = path[at].reply if at >= 0 else None
        try:
            if last is None:
                renderer = self.chat_format.renderer
                return renderer.reply(turns_of(path), PROBE, tools=path[0].tools)[0]
            return self._continued(
                last.ids,
                before=turns_of(path[:at]) + list(last.turns),
                answers=turns_of(path[at:])[len(last.turns) :],
                tools=path[0].tools,
            )
        except RenderError as error:
            raise RefusedRequestError(f"the chat template cannot write this: {error}") from error

    def _continued(
        self,
        ids: tuple[int, ...],
        *,
        before: Sequence[Turn],
        answers: Sequence[Turn],
        tools: Sequence[ToolSpec],
    ) -> tuple[int, ...]:
        """The recorded ids of a conversation and the rendering of what follows them alone.

        A template of an unknown family is rendered from the beginning, and must begin with them.
        """
        if self.chat_format.renderer.family is not None:
            behind = self.chat_format.ids_behind(before[-1], answers, where=self.name)
            return (*ids, *behind)
        renderer = self.chat_format.renderer
        rendered, _ = renderer.reply([*before, *answers], PROBE, tools=tools)
        if rendered[: len(ids)] != ids:
            raise AlignmentError(
                "the chat template rewrites what the student wrote",
                where=self.name,
                fix="use a prefix-preserving family in student.template",
            )
        return rendered

    def _write(
        self, ids: tuple[int, ...], *, node: MessageNode, request: ClientRequest
    ) -> SampledReply:
        """Sample until there is a message for the client."""
        purpose = self._purpose(request)
        tools = node.path()[0].tools
        before = turns_of(node.path())
        read = self._sample(ids, request=request, tools=tools, purpose=purpose)
        reads, turns = [read], [read.turn]
        ids = (*ids, *_sampled_ids(read))
        while read.carried_out is None and len(reads) <= _REPAIRS:
            answers = with_errors(read.turn, read.errors, ())
            prompt_ids = self._continued(
                ids, before=[*before, *turns], answers=answers, tools=tools
            )
            if len(prompt_ids) >= self.settings.max_context_tokens:
                break
            read = self._sample(prompt_ids, request=request, tools=tools, purpose=purpose)
            reads.append(read)
            turns += [*answers, read.turn]
            ids = (*prompt_ids, *_sampled_ids(read))
        shown = read.carried_out or replace(
            read.turn, blocks=tuple(b for b in read.turn.blocks if isinstance(b, Text | Thinking))
        )
        sent = StudentReply(
            id=next(self._reply_ids),
            message=replace(shown, sampled=None),
            finish=_finish(shown),
            prompt_tokens=reads[0].turn.context_tokens - _answered_here(node),
            sampled_tokens=len(_sampled_ids(read)),
            tokens=self._tokens(read),
        )
        return SampledReply(
            reads=tuple(reads),
            turns=tuple(turns),
            ids=ids,
            sent=sent,
            digest=request.digest,
            purpose=purpose,
            agent=request.agent,
            max_tokens=request.max_tokens,
        )

    def _sample(
        self,
        ids: tuple[int, ...],
        *,
        request: ClientRequest,
        tools: tuple[ToolSpec, ...],
        purpose: Purpose,
    ) -> ReadMessage:
        """One message of the student behind these ids."""
        prompt = MessagePrompt(
            ids=ids,
            max_tokens=self._room(ids, request),
            random=self.random,
            episode=self.name,
            tools=tools,
            purpose=purpose,
        )
        completion = self.writer.write(prompt)
        if completion.failure:
            raise RefusedRequestError(completion.failure, status=529, kind="overloaded_error")
        chat_format = self.chat_format if tools else self._without_calls
        return chat_format.read_message(
            Sampled(tuple(completion.ids), tuple(completion.logprobs)),
            ended=completion.ids[-1] in self.writer.stop,
            tools=tools,
            call_ids=self._call_ids,
            position=len(ids),
            max_calls=self.settings.limits.max_calls if request.parallel else 1,
        )

    def _tokens(self, read: ReadMessage) -> tuple[tuple[str, float], ...]:
        """The text and the log-prob of each sampled token."""
        sampled, codec = read.turn.sampled, self.chat_format.renderer.codec
        if sampled is None:
            return ()
        texts = [codec.decode([token]) for token in sampled.ids]
        return tuple(zip(texts, sampled.logprobs, strict=True))

    def _room(self, ids: Sequence[int], request: ClientRequest) -> int:
        """The most tokens that the next message may have."""
        limit = self.settings.max_context_tokens
        sampled = [len(t.sampled.ids) for r in self.replies for t in r.turns if t.sampled]
        limits = self.settings.limits
        if limits.max_turns and len(sampled) >= limits.max_turns:
            raise RefusedRequestError(f"the episode has had its {limits.max_turns} messages")
        rooms = [self.settings.max_new_tokens, limit - len(ids)]
        if limits.max_sampled_tokens:
            rooms.append(limits.max_sampled_tokens - sum(sampled))
        if request.max_tokens:
            rooms.append(request.max_tokens)
        if min(rooms) < 1:
            raise RefusedRequestError(
                f"prompt is too long: {len(ids)} tokens > {limit} maximum",
                kind="context_length_exceeded",
            )
        return min(rooms)

    def _purpose(self, request: ClientRequest) -> Purpose:
        """What a request is for: as its headers say, else by its form."""
        if request.purpose != "main":
            return request.purpose
        with_tools = any(root.tools for root in self.tree.roots.values())
        return "side" if request.max_tokens == 1 or (with_tools and not request.tools) else "main"

    def _note_changes(self, node: MessageNode, messages: Sequence[ClientMessage]) -> None:
        """Note which replies the client has continued, and what it changed in them."""
        for part, message in zip(node.path()[1:], messages, strict=True):
            if part.reply is not None:
                part.reply.answered = True
                if not part.reply.changes:
                    part.reply.changes.update(changes_of(part.reply.sent.message, message))


def _answered_here(node: MessageNode) -> int:
    """The tokens of a prompt that its client never saw: messages that were answered here."""
    replies = [part.reply for part in node.path() if part.reply is not None and not part.known]
    return sum(
        reply.reads[-1].turn.context_tokens - reply.reads[0].turn.context_tokens
        for reply in replies
    )


def turns_of(path: Sequence[MessageNode]) -> list[Turn]:
    """The turns of a path, with the errors of calls that were answered here among the results."""
    turns: list[Turn] = []
    reply: SampledReply | None = None
    behind: list[Turn] = []
    for node in [*path, None]:
        if node is not None and node.reply is None:
            behind += node.turns
            continue
        turns += behind if reply is None else with_errors(reply.last_turn, reply.errors, behind)
        if node is not None:
            turns += node.turns
            reply, behind = node.reply, []
    return turns


def changes_of(sent: Turn, message: ClientMessage) -> dict[str, str]:
    """What a client changed in a message that it sends back: by call id, or "text".

    A call `{"path": "a"}` that comes back with a default added gives
    {"call_1": 'Edit {"path": "a", "replace_all": false}'}.
    """
    changes: dict[str, str] = {}
    if sent.text.strip() != message.text:
        changes["text"] = message.text
    back = {call.id: call for turn in message.turns for call in turn.calls}
    for call in sent.calls:
        if call.id not in back:
            changes[call.id] = ""
        elif (back[call.id].name, dict(back[call.id].arguments)) != (
            call.name,
            dict(call.arguments),
        ):
            changes[call.id] = f"{back[call.id].name} {arguments_text(back[call.id].arguments)}"
    return changes


def _sampled_ids(read: ReadMessage) -> tuple[int, ...]:
    return read.turn.sampled.ids if read.turn.sampled is not None else ()


def _finish(message: Turn) -> Finish:
    if message.calls:
        return "calls"
    return "length" if message.tag == CUT else "stop"
