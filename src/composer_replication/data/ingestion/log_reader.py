"""One log file into Sessions, in one pass: decode each line, merge, join, keep the raw counts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    HUMAN,
    Block,
    Opaque,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from composer_replication.data.ingestion.attachments import ATTACHMENT_TYPES, read_attachment
from composer_replication.data.ingestion.authorship import authorship
from composer_replication.data.ingestion.conversation import Conversation, Sent
from composer_replication.data.ingestion.counts import RawCounts
from composer_replication.data.ingestion.find_logs import LogFile
from composer_replication.data.ingestion.lines import LineReader
from composer_replication.data.ingestion.log_records import (
    RECORD_TYPES,
    BadRecord,
    LogRecord,
    Message,
    RawBlock,
    agent_of_result,
    decode,
    decode_progress,
    decode_typed,
    is_deep,
    rare,
)
from composer_replication.data.ingestion.logged_tools import offered_tools

SYNTHETIC_MODEL = "<synthetic>"
SUBAGENT_TOOLS = ("Task", "Agent")
FOREIGN_AFTER_RECORDS = 200
NUM_SHARDS = 256


@dataclass(slots=True)
class Stream:
    """One conversation of a file with what is known about it: the main one, or a subagent's."""

    conversation: Conversation
    agent_id: str = ""
    call_id: str | None = None
    from_progress: bool = False
    prompt: str = ""
    cwd: str = ""
    started: str = ""
    ended: str = ""
    tools: tuple[ToolSpec, ...] = ()
    system: str = ""
    sent: Sent = field(default_factory=Sent)
    synthetic: set[str] = field(default_factory=set)


class KnownIds:
    """Ids of messages read so far in any file, as 60-bit hashes, so that a gigabyte of logs takes
    some 14 MB.

    Many small sets instead of a large one: when a set grows it is copied, and a large copy would be
    the peak of memory. `agents` are the subagents that have a file of their own: their copies in
    progress records are left out.

    >>> known = KnownIds(); known.update([known.mark("msg_1")]); known.has(known.mark("msg_1")), known.has(known.mark("msg_2"))
    (True, False)
    """

    def __init__(self, agents: Iterable[tuple[str, str]] = ()) -> None:
        self.agents = set(agents)
        self._shards: tuple[set[int], ...] = tuple(set() for _ in range(NUM_SHARDS))

    @staticmethod
    def mark(key: str) -> int:
        """The number that stands for an id; it fits the smaller of Python's long integers (32
        bytes)."""
        return hash(key) & 0xFFFFFFFFFFFFFFF

    def has(self, mark: int) -> bool:
        """Whether an id was read in a file before."""
        return mark in self._shards[mark % NUM_SHARDS]

    def update(self, marks: Iterable[int]) -> None:
        """Add the ids of a file that was read."""
        for mark in marks:
            self._shards[mark % NUM_SHARDS].add(mark)

    @property
    def num_bytes(self) -> int:
        """Bytes that the index takes."""
        return sum(sys.getsizeof(shard) + sum(map(sys.getsizeof, shard)) for shard in self._shards)


class FileReader:
    """Reads one file; afterwards `main`, `sides` and `raw` hold what it gave.

    Example: reader = FileReader(log, KnownIds()); reader.read(); reader.main.conversation.finish()
    """

    def __init__(
        self, log: LogFile, known: KnownIds, *, max_line_bytes: int = 2**26, hashed: bool = True
    ) -> None:
        self.log = log
        self.lines = LineReader(log.path, max_line_bytes, hashed=hashed)
        self.raw = RawCounts()
        self.main = Stream(Conversation())
        self.sides: dict[str, Stream] = {}
        # agent id -> call id, from the results of subagent calls
        self.agent_calls: dict[str, str] = {}
        self.repository = ""
        self.is_claude_code = False
        self.has_requests = False
        self.num_known = 0
        self.fresh: list[int] = []
        self._known = known
        self._side_of: dict[str, Stream] = {}
        self._first_users: dict[str, int] = {}
        self._num_users = 0
        self._task_calls: set[str] = set()
        self._queue: list[str] = []
        self._number = 0

    @property
    def num_lines(self) -> int:
        """The number of the last line that was read."""
        return self._number

    def read(self) -> None:
        """Read the whole file; raises OSError if it cannot be opened or read, SessionError if it is
        refused."""
        raw, types, ids, main = self.raw, self.raw.record_types, self.raw.session_ids, self.main
        version = None
        for number, line in self.lines:
            if line is None:
                raw.damaged_lines += 1
                raw.note(number, f"longer than {self.lines.max_line_bytes / 2**20:g} MiB")
                continue
            self._number = number
            try:
                record = decode_typed(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                record = self._decode_again(line)
                if record is None:
                    continue
            kind = record.type
            name = f"{kind}/{record.subtype}" if record.subtype else kind
            types[name] = types.get(name, 0) + 1
            if session_id := record.sessionId:
                ids[session_id] = ids.get(session_id, 0) + 1
            if record.version != version and record.version:
                raw.versions.add(version := record.version)
            if record.isSidechain:
                raw.sidechain_records += 1
            if kind == "assistant":
                self._assistant(record, line, self._side(record) if record.isSidechain else main)
                self._count_assistant(record)
            elif kind == "user":
                self._num_users += 1
                self._user(record, line, self._side(record) if record.isSidechain else main)
            else:
                self._other(record, line)
                if not self.is_claude_code and sum(types.values()) >= FOREIGN_AFTER_RECORDS:
                    break
        raw.records = sum(types.values())
        for stream in (self.main, *self.sides.values()):
            raw.duplicates += stream.conversation.num_duplicates
            raw.dangling_parents += stream.conversation.num_dangling

    def _decode_again(self, line: bytes) -> LogRecord | None:
        """A line the fast decoder refused: what can be used of it, or None; either way it is
        noted."""
        raw, number = self.raw, self._number
        try:
            record, left_out = decode(line)
        except BadRecord as error:
            raw.damaged_lines += 1
            raw.note(
                number,
                (
                    "cut short at the end of the file"
                    if number == self.lines.unfinished
                    else str(error)
                ),
            )
            return None
        if left_out:
            raw.odd_fields += len(left_out)
            raw.note(number, f"wrong type, left out: {', '.join(left_out)}")
        return record

    # ---- counting --------------------------------------------------------------------------------

    def _count_assistant(self, record: LogRecord) -> None:
        raw = self.raw
        raw.assistant_records += 1
        message = record.message
        if message is not None:
            if model := message.model:
                raw.models[model] = raw.models.get(model, 0) + 1
            if name := message.id:
                first = self._first_users.setdefault(name, self._num_users)
                if first != self._num_users:
                    raw.interleaved.add(name)

    def _is_known(self, key: str | None) -> bool:
        """Whether a message stands in a file read before; a new one is remembered when the file is
        done."""
        if key is None:
            return False
        mark = self._known.mark(key)
        if self._known.has(mark):
            self.num_known += 1
            return True
        self.fresh.append(mark)
        return False

    # ---- messages --------------------------------------------------------------------------------

    def _begin(self, stream: Stream, record: LogRecord) -> None:
        """What the first message of a stream tells of it."""
        stream.started = record.timestamp or ""
        stream.cwd = stream.cwd or record.cwd or ""
        if record.sessionId or record.uuid:
            self.is_claude_code = True

    def _side(self, record: LogRecord) -> Stream:
        key = record.agentId or ""
        stream = self.sides.get(key) if key else self._side_of.get(record.parentUuid or "")
        if stream is None:
            key = key or f"{len(self.sides) + 1}"
            stream = self.sides[key] = Stream(Conversation(), agent_id=key)
        if record.uuid:
            self._side_of[record.uuid] = stream
        return stream

    def _new_message(self, record: LogRecord, stream: Stream, kind: str) -> Message | None:
        """The message of a record that is new to its stream; None, and counted, where there is none
        or it was met before."""
        if record.message is None:
            self._damaged(f"{kind} record without a message")
            return None
        if not stream.started:
            self._begin(stream, record)
        stream.ended = record.timestamp or stream.ended
        if record.uuid is not None and record.uuid in stream.conversation.at:
            self.raw.duplicates += 1
            return None
        return record.message

    def _assistant(self, record: LogRecord, line: bytes, stream: Stream) -> None:
        message, uuid, conversation = (
            self._new_message(record, stream, "an assistant"),
            record.uuid,
            stream.conversation,
        )
        if message is None:
            return
        key = message.id or uuid or f"line {self._number}"
        if message.model == SYNTHETIC_MODEL or record.isApiErrorMessage:
            conversation.link(uuid, record.parentUuid)
            if key not in stream.synthetic:
                stream.synthetic.add(key)
                conversation.event("synthetic", text=_plain_text(message.content))
            return
        known = key not in conversation.by_message and self._is_known(key)
        draft = conversation.assistant(uuid, record.parentUuid, key, message.model, known=known)
        if message.usage is not None:
            draft.usage = message.usage
        content, blocks = message.content, draft.blocks
        if isinstance(content, str):
            content = [RawBlock(type="text", text=content)]
        for place, raw in enumerate(content or ()):
            if (
                raw.type == "tool_use"
                and type(raw.input) is dict
                and raw.id is not None
                and raw.name is not None
                and not is_deep(raw.input)
            ):
                conversation.call(draft, ToolCall(raw.id, raw.name, raw.input))
                if raw.name in SUBAGENT_TOOLS:
                    self._task_calls.add(raw.id)
                continue
            block = self._block(raw, line, place)
            if blocks and block in blocks:
                self.raw.duplicates += 1
            else:
                blocks.append(block)

    def _block(self, raw: RawBlock, line: bytes, place: int) -> Block:
        """A block of an assistant message that is not a usable call."""
        if raw.type == "text":
            return Text(raw.text or "")
        if raw.type == "thinking":
            return Thinking(raw.thinking or "")
        if raw.type == "tool_use":
            self._damaged("a call without id, name or usable arguments")
        return self._opaque(raw, line, place)

    def _user(self, record: LogRecord, line: bytes, stream: Stream) -> None:
        message, uuid, conversation = (
            self._new_message(record, stream, "a user"),
            record.uuid,
            stream.conversation,
        )
        if message is None:
            return
        content = message.content
        if isinstance(content, str):
            content = [RawBlock(type="text", text=content)]
        if record.isCompactSummary and conversation.begins_compaction():
            conversation.event("compaction")
        parent, spoken = record.parentUuid, []
        for place, raw in enumerate(content or ()):
            if raw.type == "tool_result":
                if raw.tool_use_id is None:
                    self._damaged("a result that names no call")
                    continue
                call_id = raw.tool_use_id
                known = call_id not in conversation.answered and self._is_known(call_id)
                conversation.result(uuid, parent, tool_result(raw, call_id), ENVIRONMENT, known)
                if call_id in self._task_calls:
                    self._learn_agent(record, call_id)
                parent = uuid or parent
            elif raw.type == "text":
                if raw.text:
                    spoken.append(
                        (
                            authorship(
                                raw.text,
                                is_meta=bool(record.isMeta),
                                is_summary=bool(record.isCompactSummary),
                            ),
                            Text(raw.text),
                        )
                    )
            else:
                spoken.append(
                    (authorship("", is_meta=bool(record.isMeta)), self._opaque(raw, line, place))
                )
        if spoken:
            self._say(record, stream, spoken, parent)
        if parent == record.parentUuid:
            conversation.link(uuid, parent)  # an empty message still has children

    def _say(
        self, record: LogRecord, stream: Stream, spoken: list[tuple[Any, Block]], parent: str | None
    ) -> None:
        """The texts of a user record; neighbours by the same author are one turn."""
        uuid, known = record.uuid, self._is_known(record.uuid)
        if not stream.prompt and isinstance(spoken[0][1], Text):
            stream.prompt = spoken[0][1].text
        while spoken:
            who = spoken[0][0]
            run = 1
            while run < len(spoken) and spoken[run][0] == who:
                run += 1
            stream.conversation.say(
                uuid, parent, who.author, who.tag, [block for _, block in spoken[:run]], known=known
            )
            parent = uuid or parent
            del spoken[:run]

    def _opaque(self, raw: RawBlock, line: bytes, place: int) -> Opaque:
        """A block that is kept but not interpreted; pictures and documents without their bytes."""
        kind = raw.type or "?"
        self.raw.opaque_blocks[kind] += 1
        if raw.source is not None:
            return Opaque(kind, json.dumps({"media_type": raw.source.media_type}))
        whole = rare(line)
        if isinstance(whole.get("data"), dict):
            whole = whole["data"].get("message")  # a progress record wraps the record
        message = whole.get("message") if isinstance(whole, dict) else None
        blocks = message.get("content") if isinstance(message, dict) else None
        value = blocks[place] if isinstance(blocks, list) and place < len(blocks) else None
        return Opaque(
            kind,
            (
                ""
                if value is None or is_deep(value)
                else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            ),
        )

    def _damaged(self, why: str) -> None:
        self.raw.odd_fields += 1
        self.raw.note(self._number, why)

    def _learn_agent(self, record: LogRecord, call_id: str) -> None:
        agent = agent_of_result(record.toolUseResult)
        if agent:
            self.agent_calls[agent] = call_id

    # ---- other records ---------------------------------------------------------------------------

    def _other(self, record: LogRecord, line: bytes) -> None:
        kind = record.type
        if kind not in RECORD_TYPES:
            self.raw.unknown_types[kind] += 1
        elif record.sessionId or record.uuid or kind in ("summary", "file-history-snapshot"):
            self.is_claude_code = True
        if kind == "progress":
            if record.data is not None and record.data.type == "agent_progress":
                self._progress(record, line)
            self.main.conversation.link(record.uuid, record.parentUuid)
        elif kind == "attachment":
            self._attachment(record, rare(line))
        elif kind == "system":
            self._system(record, line)
        elif kind == "api-request":
            self.has_requests = True
        elif kind == "queue-operation":
            self._queued(rare(line))
        elif kind == "pr-link":
            name = rare(line).get("prRepository")
            self.repository = name if isinstance(name, str) else self.repository
        else:
            self.main.conversation.link(record.uuid, record.parentUuid)

    def _progress(self, record: LogRecord, line: bytes) -> None:
        """A subagent's message inside a progress record, unless the subagent has a file of its
        own."""
        agent = (record.data.agentId if record.data is not None else None) or ""
        if (record.sessionId or "", agent) in self._known.agents:
            return
        progress = decode_progress(line)
        if progress is None or progress.data.message is None:
            self._damaged("a progress record whose message cannot be used")
            return
        inner, call_id = progress.data.message, progress.parentToolUseID
        key = agent or call_id or "?"
        stream = self.sides.get(key)
        if stream is None:
            stream = self.sides[key] = Stream(
                Conversation(chained=False), agent_id=key, from_progress=True, cwd=record.cwd or ""
            )
            stream.call_id = call_id
        inner.parentUuid = None
        if inner.type == "assistant":
            self._assistant(inner, line, stream)
        elif inner.type == "user":
            self._user(inner, line, stream)

    def _attachment(self, record: LogRecord, whole: dict[str, Any]) -> None:
        payload = whole.get("attachment")
        if isinstance(payload, dict) and "rendered" in whole:
            payload = {**payload, "rendered": whole["rendered"]}
        found = read_attachment(payload)
        self.raw.attachments[found.kind] += 1
        if found.kind not in ATTACHMENT_TYPES:
            self.raw.unknown_attachments[found.kind] += 1
        stream = self._side(record) if record.isSidechain else self.main
        conversation = stream.conversation
        if record.uuid is not None and record.uuid in conversation.at:
            self.raw.duplicates += 1
            return
        if found.event:
            conversation.event(found.event, call_id=found.call_id, text=found.event_text)
        if found.tools is not None:
            stream.tools = offered_tools(found.tools) or stream.tools
        if found.kind == "prompt_snapshot":
            if found.text and found.text != stream.system:
                stream.system = found.text
                conversation.set_system([Text(found.text)], HARNESS)
        elif found.text:
            conversation.say(
                record.uuid,
                record.parentUuid,
                found.author,
                found.tag,
                [Text(found.text)],
                loose=True,
            )
        conversation.link(record.uuid, record.parentUuid)

    def _system(self, record: LogRecord, line: bytes) -> None:
        conversation = (
            self._side(record).conversation if record.isSidechain else self.main.conversation
        )
        kind = record.subtype
        if kind == "compact_boundary":
            if record.uuid in conversation.at:
                self.raw.duplicates += 1
                return
            conversation.event("compaction")
            conversation.compact(_preserved(rare(line).get("compactMetadata"), conversation))
            conversation.link(record.uuid, None)
            return
        if kind == "microcompact_boundary":
            metadata = rare(line).get("microcompactMetadata")
            metadata = metadata if isinstance(metadata, dict) else {}
            conversation.event("microcompaction")
            conversation.clear_results(
                _ids(metadata.get("compactedToolIds")),
                attachments=_ids(metadata.get("clearedAttachmentUUIDs")),
            )
        elif kind == "api_error":
            conversation.event("api_error")
        conversation.link(record.uuid, record.parentUuid)

    def _queued(self, whole: dict[str, Any]) -> None:
        """Text typed while the agent worked: "remove" = handed to it in mid-turn, "dequeue" = sent
        as a message later."""
        operation, content = whole.get("operation"), whole.get("content")
        if operation == "enqueue":
            self._queue.append(content if isinstance(content, str) else "")
        elif operation in ("dequeue", "remove") and self._queue:
            text = self._queue.pop(0)
            if operation == "remove" and text and authorship(text).author == HUMAN:
                self.main.conversation.event("queued", text=text)
        elif operation == "popAll":
            self._queue.clear()


def _ids(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _preserved(metadata: Any, conversation: Conversation) -> list[str]:
    """Record ids of the messages that a compaction kept: listed, or all from the head to the tail
    of a segment."""
    if not isinstance(metadata, dict):
        return []
    messages, segment = metadata.get("preservedMessages"), metadata.get("preservedSegment")
    if isinstance(messages, dict) and (uuids := _ids(messages.get("uuids"))):
        return uuids
    if isinstance(segment, dict):
        head, tail = segment.get("headUuid"), segment.get("tailUuid")
        order = list(conversation.at)
        if head in conversation.at and tail in conversation.at:
            return order[order.index(head) : order.index(tail) + 1]
    return []


def _plain_text(content: str | list[RawBlock] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(b.text for b in content or () if b.text)


def tool_result(raw: RawBlock, call_id: str) -> ToolResult:
    """A result as it was shown; a reference to a tool is written as such, a picture as its media
    type."""
    content = raw.content
    if content is None or isinstance(content, str):
        return ToolResult(call_id, content or "", raw.is_error)
    texts: list[str] = []
    images: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.text is not None:
            texts.append(part.text)
        elif part.type == "tool_reference":
            texts.append(f"tool_reference: {part.tool_name}")
        elif part.source is not None or part.type == "image":
            images.append(part.source.media_type if part.source is not None else "")
    return ToolResult(call_id, "\n".join(texts), raw.is_error, tuple(images))
