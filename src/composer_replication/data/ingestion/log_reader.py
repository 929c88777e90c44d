"""Read one log file in one pass: decode each line, hand it to its conversation, count records."""

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
from composer_replication.data.ingestion.conversation import Conversation, RequestSummary
from composer_replication.data.ingestion.counts import RawCounts
from composer_replication.data.ingestion.file_results import mark_of
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
    decode_all_fields,
    decode_progress,
    decode_typed,
    is_deep,
    time_of,
)
from composer_replication.data.ingestion.logged_tools import offered_tools

SYNTHETIC_MODEL = "<synthetic>"
SUBAGENT_TOOLS = ("Task", "Agent")
FOREIGN_AFTER_RECORDS = 200
NUM_SHARDS = 256


@dataclass(slots=True)
class Stream:
    """One conversation of a file, the main one or a subagent's, with its metadata."""

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
    request_summary: RequestSummary = field(default_factory=RequestSummary)
    synthetic: set[str] = field(default_factory=set)


class KnownIds:
    """The ids of all messages read so far, as hashes (`mark_of`): about 14 MB per gigabyte of logs.

    The ids are spread over many small sets: a set is copied when it grows, and the copy of one
    large set would be the peak of memory. `agents` are the subagents that have their own file;
    their copies in progress records are left out.

    >>> known = KnownIds()
    >>> known.update([mark_of("msg_1")])
    >>> known.has(mark_of("msg_1")), known.has(mark_of("msg_2"))
    (True, False)
    """

    def __init__(self, agents: Iterable[tuple[str, str]] = ()) -> None:
        self.agents = set(agents)
        self._shards: tuple[set[int], ...] = tuple(set() for _ in range(NUM_SHARDS))

    def has(self, mark: int) -> bool:
        """Whether an earlier file holds this id."""
        return mark in self._shards[mark % NUM_SHARDS]

    def update(self, marks: Iterable[int]) -> None:
        """Add the ids of a file."""
        for mark in marks:
            self._shards[mark % NUM_SHARDS].add(mark)

    @property
    def num_bytes(self) -> int:
        """The size of the index in bytes."""
        return sum(sys.getsizeof(shard) + sum(map(sys.getsizeof, shard)) for shard in self._shards)


class FileReader:
    """Reads one file into its conversations (`main`, `sides`) and its counts (`raw`).

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
        self.known_marks: list[int] = []
        self.new_marks: list[int] = []
        self._known = known
        self._side_of_record: dict[str, Stream] = {}
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
        raw, record_types, session_ids, main = (
            self.raw,
            self.raw.record_types,
            self.raw.session_ids,
            self.main,
        )
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
            record_type = record.type
            name = f"{record_type}/{record.subtype}" if record.subtype else record_type
            record_types[name] = record_types.get(name, 0) + 1
            if session_id := record.sessionId:
                session_ids[session_id] = session_ids.get(session_id, 0) + 1
            if record.version != version and record.version:
                raw.versions.add(version := record.version)
            if record.isSidechain:
                raw.sidechain_records += 1
            if record_type == "assistant":
                self._read_assistant(
                    record, line, self._side_stream(record) if record.isSidechain else main
                )
                self._count_assistant(record)
            elif record_type == "user":
                self._num_users += 1
                self._read_user(
                    record, line, self._side_stream(record) if record.isSidechain else main
                )
            else:
                self._read_other(record, line)
                if not self.is_claude_code and sum(record_types.values()) >= FOREIGN_AFTER_RECORDS:
                    break
        raw.records = sum(record_types.values())
        for stream in (self.main, *self.sides.values()):
            raw.duplicates += stream.conversation.num_duplicates
            raw.dangling_parents += stream.conversation.num_dangling

    def _decode_again(self, line: bytes) -> LogRecord | None:
        """Decode a line that the fast decoder refused; returns None if it is unusable. Either way
        the damage is noted."""
        raw, number = self.raw, self._number
        try:
            record, dropped_fields = decode(line)
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
        if dropped_fields:
            raw.odd_fields += len(dropped_fields)
            raw.note(number, f"wrong type, left out: {', '.join(dropped_fields)}")
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
        """Whether an earlier file holds this message. New ids are collected, to be added to the
        index once the whole file is read: a message may span several records of this file."""
        if key is None:
            return False
        mark = mark_of(key)
        if self._known.has(mark):
            self.known_marks.append(mark)
            return True
        self.new_marks.append(mark)
        return False

    # ---- messages --------------------------------------------------------------------------------

    def _start_stream(self, stream: Stream, record: LogRecord) -> None:
        """Take the start time and the folder of a stream from its first message."""
        stream.started = record.timestamp or ""
        stream.cwd = stream.cwd or record.cwd or ""
        if record.sessionId or record.uuid:
            self.is_claude_code = True

    def _side_stream(self, record: LogRecord) -> Stream:
        key = record.agentId or ""
        stream = self.sides.get(key) if key else self._side_of_record.get(record.parentUuid or "")
        if stream is None:
            key = key or f"{len(self.sides) + 1}"
            stream = self.sides[key] = Stream(Conversation(), agent_id=key)
        if record.uuid:
            self._side_of_record[record.uuid] = stream
        return stream

    def _new_message(self, record: LogRecord, stream: Stream, kind: str) -> Message | None:
        """Return the message of a record that is new to its stream; else count the record as odd
        or as a duplicate and return None."""
        if record.message is None:
            self._note_odd_field(f"{kind} record without a message")
            return None
        if not stream.started:
            self._start_stream(stream, record)
        stream.ended = record.timestamp or stream.ended
        if record.uuid is not None and record.uuid in stream.conversation.draft_of_record:
            self.raw.duplicates += 1
            return None
        return record.message

    def _read_assistant(self, record: LogRecord, line: bytes, stream: Stream) -> None:
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
                conversation.add_event("synthetic", text=_plain_text(message.content))
            return
        is_copied = key not in conversation.draft_of_message and self._is_known(key)
        draft = conversation.add_assistant(
            uuid,
            record.parentUuid,
            message_id=key,
            author=message.model,
            is_copied=is_copied,
        )
        if message.usage is not None:
            draft.usage = message.usage
        if record.costUSD is not None:
            draft.usd = record.costUSD
        draft.written_at = time_of(record.timestamp)
        content, blocks = message.content, draft.blocks
        if isinstance(content, str):
            content = [RawBlock(type="text", text=content)]
        for index, raw in enumerate(content or ()):
            if raw.type == "tool_use" and (call := tool_call(raw)) is not None:
                conversation.add_call(draft, call)
                if call.name in SUBAGENT_TOOLS:
                    self._task_calls.add(call.id)
                continue
            block = self._block(raw, line, index)
            if blocks and block in blocks:
                self.raw.duplicates += 1
            else:
                blocks.append(block)

    def _block(self, raw: RawBlock, line: bytes, index: int) -> Block:
        """Convert a block of an assistant message that is not a usable call."""
        if raw.type == "text":
            return Text(raw.text or "")
        if raw.type == "thinking":
            return Thinking(raw.thinking or "")
        if raw.type == "tool_use":
            self._note_odd_field("a call without id, name or usable arguments")
        return self._opaque(raw, line, index)

    def _read_user(self, record: LogRecord, line: bytes, stream: Stream) -> None:
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
        if record.isCompactSummary and conversation.begin_compaction_at_summary():
            conversation.add_event("compaction")
        parent, texts = record.parentUuid, []
        for index, raw in enumerate(content or ()):
            if raw.type == "tool_result":
                if raw.tool_use_id is None:
                    self._note_odd_field("a result that names no call")
                    continue
                call_id = raw.tool_use_id
                is_copied = call_id not in conversation.draft_of_result and self._is_known(call_id)
                conversation.add_result(
                    uuid,
                    parent,
                    tool_result(raw, call_id),
                    author=ENVIRONMENT,
                    is_copied=is_copied,
                    written_at=time_of(record.timestamp),
                )
                if call_id in self._task_calls:
                    self._remember_agent(record, call_id)
                parent = uuid or parent
            elif raw.type == "text":
                if raw.text:
                    texts.append(
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
                texts.append(
                    (authorship("", is_meta=bool(record.isMeta)), self._opaque(raw, line, index))
                )
        if texts:
            self._add_texts(record, stream, texts, parent)
        if parent == record.parentUuid:
            conversation.link(uuid, parent)  # an empty message still has children

    def _add_texts(
        self, record: LogRecord, stream: Stream, texts: list[tuple[Any, Block]], parent: str | None
    ) -> None:
        """Add the texts of a user record; neighbours with the same author and tag are one turn."""
        uuid, is_copied = record.uuid, self._is_known(record.uuid)
        if not stream.prompt and isinstance(texts[0][1], Text):
            stream.prompt = texts[0][1].text
        while texts:
            writer = texts[0][0]
            length = 1
            while length < len(texts) and texts[length][0] == writer:
                length += 1
            draft = stream.conversation.add_message(
                uuid,
                parent,
                [block for _, block in texts[:length]],
                author=writer.author,
                tag=writer.tag,
                is_copied=is_copied,
            )
            draft.written_at = time_of(record.timestamp)
            parent = uuid or parent
            del texts[:length]

    def _opaque(self, raw: RawBlock, line: bytes, index: int) -> Opaque:
        """Count and convert a block that is kept but not interpreted."""
        self.raw.opaque_blocks[raw.type or "?"] += 1
        # Of a picture only the media type is kept, which does not need the line decoded again.
        return opaque_block(raw, _content_block(line, index) if raw.source is None else None)

    def _note_odd_field(self, reason: str) -> None:
        self.raw.odd_fields += 1
        self.raw.note(self._number, reason)

    def _remember_agent(self, record: LogRecord, call_id: str) -> None:
        agent = agent_of_result(record.toolUseResult)
        if agent:
            self.agent_calls[agent] = call_id

    # ---- other records ---------------------------------------------------------------------------

    def _read_other(self, record: LogRecord, line: bytes) -> None:
        kind = record.type
        if kind not in RECORD_TYPES:
            self.raw.unknown_types[kind] += 1
        elif record.sessionId or record.uuid or kind in ("summary", "file-history-snapshot"):
            self.is_claude_code = True
        if kind == "progress":
            if record.data is not None and record.data.type == "agent_progress":
                self._read_progress(record, line)
            self.main.conversation.link(record.uuid, record.parentUuid)
        elif kind == "attachment":
            self._read_attachment(record, decode_all_fields(line))
        elif kind == "system":
            self._read_system(record, line)
        elif kind == "api-request":
            self.has_requests = True
        elif kind == "queue-operation":
            self._read_queue_operation(decode_all_fields(line))
        elif kind == "pr-link":
            name = decode_all_fields(line).get("prRepository")
            self.repository = name if isinstance(name, str) else self.repository
        else:
            self.main.conversation.link(record.uuid, record.parentUuid)

    def _read_progress(self, record: LogRecord, line: bytes) -> None:
        """Read a subagent's message inside a progress record, unless the subagent has its own
        file."""
        agent = (record.data.agentId if record.data is not None else None) or ""
        if (record.sessionId or "", agent) in self._known.agents:
            return
        progress = decode_progress(line)
        if progress is None or progress.data.message is None:
            self._note_odd_field("a progress record whose message cannot be used")
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
            self._read_assistant(inner, line, stream)
        elif inner.type == "user":
            self._read_user(inner, line, stream)

    def _read_attachment(self, record: LogRecord, fields: dict[str, Any]) -> None:
        payload = fields.get("attachment")
        if isinstance(payload, dict) and "rendered" in fields:
            payload = {**payload, "rendered": fields["rendered"]}
        attachment = read_attachment(payload)
        self.raw.attachments[attachment.kind] += 1
        if attachment.kind not in ATTACHMENT_TYPES:
            self.raw.unknown_attachments[attachment.kind] += 1
        stream = self._side_stream(record) if record.isSidechain else self.main
        conversation = stream.conversation
        if record.uuid is not None and record.uuid in conversation.draft_of_record:
            self.raw.duplicates += 1
            return
        if attachment.event:
            conversation.add_event(
                attachment.event, call_id=attachment.call_id, text=attachment.event_text
            )
        if attachment.tools is not None:
            stream.tools = offered_tools(attachment.tools) or stream.tools
        if attachment.kind == "prompt_snapshot":
            if attachment.text and attachment.text != stream.system:
                stream.system = attachment.text
                conversation.set_system([Text(attachment.text)], HARNESS)
        elif attachment.text:
            conversation.add_message(
                record.uuid,
                record.parentUuid,
                [Text(attachment.text)],
                author=attachment.author,
                tag=attachment.tag,
                is_side_message=True,
            )
        conversation.link(record.uuid, record.parentUuid)

    def _read_system(self, record: LogRecord, line: bytes) -> None:
        conversation = (
            self._side_stream(record).conversation if record.isSidechain else self.main.conversation
        )
        kind = record.subtype
        if kind == "compact_boundary":
            if record.uuid in conversation.draft_of_record:
                self.raw.duplicates += 1
                return
            conversation.add_event("compaction")
            conversation.begin_compaction(
                _preserved(decode_all_fields(line).get("compactMetadata"), conversation)
            )
            conversation.link(record.uuid, None)
            return
        if kind == "microcompact_boundary":
            metadata = decode_all_fields(line).get("microcompactMetadata")
            metadata = metadata if isinstance(metadata, dict) else {}
            conversation.add_event("microcompaction")
            conversation.clear_results(
                _ids(metadata.get("compactedToolIds")),
                attachments=_ids(metadata.get("clearedAttachmentUUIDs")),
            )
        elif kind == "api_error":
            conversation.add_event("api_error")
        conversation.link(record.uuid, record.parentUuid)

    def _read_queue_operation(self, fields: dict[str, Any]) -> None:
        """Track text that the human typed while the agent worked: "remove" hands it to the model in
        mid-turn, "dequeue" sends it as a message later."""
        operation, content = fields.get("operation"), fields.get("content")
        if operation == "enqueue":
            self._queue.append(content if isinstance(content, str) else "")
        elif operation in ("dequeue", "remove") and self._queue:
            text = self._queue.pop(0)
            if operation == "remove" and text and authorship(text).author == HUMAN:
                self.main.conversation.add_event("queued", text=text)
        elif operation == "popAll":
            self._queue.clear()


def _ids(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _preserved(metadata: Any, conversation: Conversation) -> list[str]:
    """The record ids of the messages that a compaction preserved: as listed, or all from the head
    to the tail of a segment."""
    if not isinstance(metadata, dict):
        return []
    messages, segment = metadata.get("preservedMessages"), metadata.get("preservedSegment")
    if isinstance(messages, dict) and (uuids := _ids(messages.get("uuids"))):
        return uuids
    if isinstance(segment, dict):
        head, tail = segment.get("headUuid"), segment.get("tailUuid")
        order = list(conversation.draft_of_record)
        if head in conversation.draft_of_record and tail in conversation.draft_of_record:
            return order[order.index(head) : order.index(tail) + 1]
    return []


def _plain_text(content: str | list[RawBlock] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(b.text for b in content or () if b.text)


def _content_block(line: bytes, index: int) -> Any:
    """The block at `index` of a record's message, as JSON; None if it cannot be had."""
    fields = decode_all_fields(line)
    if isinstance(fields.get("data"), dict):
        fields = fields["data"].get("message")  # a progress record wraps the record
    message = fields.get("message") if isinstance(fields, dict) else None
    blocks = message.get("content") if isinstance(message, dict) else None
    return blocks[index] if isinstance(blocks, list) and index < len(blocks) else None


def tool_call(raw: RawBlock) -> ToolCall | None:
    """The call that a block holds; None if it lacks an id, a name or usable arguments."""
    if raw.id is None or raw.name is None or type(raw.input) is not dict or is_deep(raw.input):
        return None
    return ToolCall(raw.id, raw.name, raw.input)


def opaque_block(raw: RawBlock, value: Any) -> Opaque:
    """A block that is kept but not interpreted: its JSON, or only the media type of a picture."""
    kind = raw.type or "?"
    if raw.source is not None:
        return Opaque(kind, json.dumps({"media_type": raw.source.media_type}))
    if value is None or is_deep(value):
        return Opaque(kind, "")
    return Opaque(kind, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def tool_result(raw: RawBlock, call_id: str) -> ToolResult:
    """Convert a result; a reference to a tool becomes text, a picture its media type."""
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
