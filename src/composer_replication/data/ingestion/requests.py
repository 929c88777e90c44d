"""Rebuild the prompts that were sent to the model, which the newest logs (Claude Code 2.1.330)
record by hash.

    api-request-shape  {"shapeHash", "shape": {"system": [...], "tools": [...]}}
    api-request-blob   {"hash", "message"}             a message that no other record holds as sent
    api-request        {"id", "base", "keep", "tail"}  the messages: the first `keep` of the request
                                                       `base`, then those with the hashes `tail`
    assistant          {"requestRef": id}              the answer to a request

A hash is the SHA-256 of the message as JSON in UTF-8 with sorted keys and without blanks, its
content as a list of blocks. Records whose hash does not match are ignored. A session takes the
order of its requests if every one of them can be rebuilt; else it keeps the order of the log and
none counts as verified. A message that the program sent with the role "system" in mid-conversation
becomes a turn of the harness, like other reminders: most templates have no place for it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from composer_replication.core.trace import (
    CLEARED_TEXT,
    HARNESS,
    Block,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from composer_replication.data.ingestion.authorship import authorship
from composer_replication.data.ingestion.conversation import (
    Conversation,
    RequestSummary,
    Stretch,
    TurnDraft,
)
from composer_replication.data.ingestion.lines import LineReader
from composer_replication.data.ingestion.log_reader import opaque_block, tool_call, tool_result
from composer_replication.data.ingestion.log_records import RawBlock
from composer_replication.data.ingestion.logged_tools import offered_tools

MAX_RUN = 32
"""The most user records that make up one message (the results of parallel calls)."""
MAX_REQUESTS, MAX_MESSAGES, MAX_IN_BASES = 10_000, 20_000_000, 5_000_000
"""Limits on the requests, on the messages of all of them, and on the drafts in all bases: a hostile
log could name a long base a million times."""


class _LoggedNumber(float):
    """A number that keeps its spelling in the log, because the hash covers its digits."""

    text: str


@dataclass(frozen=True, slots=True)
class _Prompt:
    base: _Prompt | None
    keep: int
    tail: tuple[str, ...]
    shape: str

    def messages(self) -> list[str] | None:
        """List the hashes of all messages in order; None if a base is missing or too short."""
        parts: list[tuple[str, ...]] = []
        prompt: _Prompt | None = self
        num_wanted = self.keep + len(self.tail)
        while num_wanted:
            if prompt is None or num_wanted > prompt.keep + len(prompt.tail):
                return None
            if num_wanted > prompt.keep:
                parts.append(prompt.tail[: num_wanted - prompt.keep])
                num_wanted = prompt.keep
            prompt = prompt.base
        return [digest for part in reversed(parts) for digest in part]


class _UserBlock(NamedTuple):
    """A content block with the flags and the uuid of the user record that holds it."""

    block: Any
    is_meta: bool = False
    is_summary: bool = False
    uuid: str = ""


@dataclass(slots=True)
class Requests:
    """The request records of one file.

    `shapes` and `blobs` are keyed by hash; so are `user_messages` and `model_messages`, the
    messages of ordinary records (a hash may occur several times). `prompts` and `answers` are keyed
    by stream ("" = the main one, else the subagent's id), then by request id.
    """

    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    blobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    user_messages: dict[str, list[list[_UserBlock]]] = field(default_factory=dict)
    model_messages: dict[str, list[str]] = field(default_factory=dict)
    prompts: dict[str, dict[str, _Prompt]] = field(default_factory=dict)
    answers: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def answered(self, stream: str) -> list[tuple[_Prompt, list[str]]]:
        """The answered requests of a stream in order, each with the ids of its answers."""
        answers = self.answers.get(stream, {})
        return [
            (prompt, answers[name])
            for name, prompt in self.prompts.get(stream, {}).items()
            if name in answers
        ]


def message_hash(message: Any) -> str:
    """The hash by which a request names a message; "" if the value is not a message.

    >>> blocks = [{"type": "text", "text": "hi"}]
    >>> plain = message_hash({"role": "user", "content": "hi"})
    >>> plain == message_hash({"content": blocks, "role": "user"})
    True
    """
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return ""
    return _hash_of(_blocks_of(message), message["role"])


def shape_hash(shape: Any) -> str:
    """The hash by which a request names its system prompt and tools.

    >>> shape_hash({"tools": [], "system": []})[:8]
    'd6a3087c'
    """
    return _sha256(_canonical(shape))


def read_requests(lines: LineReader, *, last: int) -> Requests:
    """Read a file a second time, up to line `last`, for its requests; skips lines that are not
    JSON."""
    requests, streams = Requests(), dict[str, _MessageHasher]()
    for number, line in lines:
        if number > last:
            break
        record = _decode(line)
        kind = record.get("type")
        if kind == "api-request-shape" and isinstance(record.get("shape"), dict):
            if shape_hash(record["shape"]) == record.get("shapeHash"):
                requests.shapes[record["shapeHash"]] = record["shape"]
        elif kind == "api-request-blob":
            if (name := message_hash(record.get("message"))) and name == record.get("hash"):
                requests.blobs[name] = record["message"]
        elif kind == "api-request":
            _add_prompt(requests, record)
        elif kind in ("user", "assistant") and isinstance(record.get("message"), dict):
            key = str(record.get("agentId") or "") if record.get("isSidechain") else ""
            streams.setdefault(key, _MessageHasher(requests, key)).add_record(record)
    for stream in streams.values():
        stream.close()
    return requests


def _add_prompt(requests: Requests, record: dict[str, Any]) -> None:
    stream, name, tail, keep = (
        str(record.get("agentId") or ""),
        record.get("id"),
        record.get("tail"),
        record.get("keep", 0),
    )
    if (
        not isinstance(name, str)
        or not isinstance(tail, list)
        or not all(isinstance(digest, str) for digest in tail)
        or type(keep) is not int
    ):
        return
    prompts = requests.prompts.setdefault(stream, {})
    base = prompts.get(str(record.get("base"))) if keep > 0 else None
    # Skip bases of whose own tail nothing is kept, so that each step in `_Prompt.messages` yields
    # a message and a long chain of empty bases costs nothing.
    while base is not None and keep <= base.keep:
        base = base.base
    if len(prompts) < MAX_REQUESTS:
        prompts[name] = _Prompt(base, max(keep, 0), tuple(tail), str(record.get("shapeHash")))
    else:
        prompts[name] = _Prompt(None, 1, (), "")


class _MessageHasher:
    """Hashes the messages that the user and assistant records of one conversation make up."""

    def __init__(self, requests: Requests, key: str) -> None:
        self._requests, self._key = requests, key
        # per user record since the last message of the model: its canonical blocks, its blocks
        self._user_run: list[tuple[list[str], list[_UserBlock]]] = []
        self._contents: dict[str, list[Any]] = {}
        self._seen_uuids: set[str] = set()
        self._last_message_id = ""

    def add_record(self, record: dict[str, Any]) -> None:
        """Add the next record of the conversation.

        One message of the user may consist of several records, and nothing in the log says how
        many: so every run of records that ends here is hashed.
        """
        message, uuid = record["message"], str(record.get("uuid") or "")
        if uuid in self._seen_uuids:
            return
        self._seen_uuids.add(uuid)
        blocks = _blocks_of(message)
        if record["type"] == "assistant":
            name = str(message.get("id") or uuid)
            if name != self._last_message_id:
                self._user_run, self._last_message_id = [], name
            self._contents.setdefault(name, []).extend(_canonical_block(block) for block in blocks)
            if isinstance(record.get("requestRef"), str):
                names = self._requests.answers.setdefault(self._key, {}).setdefault(
                    record["requestRef"], []
                )
                if name not in names:
                    names.append(name)
            return
        is_meta, is_summary = record.get("isMeta") is True, record.get("isCompactSummary") is True
        self._user_run.append(
            (
                [_canonical_block(block) for block in blocks],
                [_UserBlock(block, is_meta, is_summary, uuid) for block in blocks],
            )
        )
        del self._user_run[:-MAX_RUN]
        for start in range(len(self._user_run)):
            records = self._user_run[start:]
            name = _hash_of_blocks([text for texts, _ in records for text in texts], "user")
            self._requests.user_messages.setdefault(name, []).append(
                [block for _, record_blocks in records for block in record_blocks]
            )

    def close(self) -> None:
        """Hash the messages of the model, whose blocks may be spread over many records."""
        for name, texts in self._contents.items():
            self._requests.model_messages.setdefault(
                _hash_of_blocks(texts, "assistant"), []
            ).append(name)


# ---- laying out ----------------------------------------------------------------------------------


def lay_out(conversation: Conversation, requests: Requests, stream: str) -> RequestSummary:
    """Put a conversation into the order of its requests, in place; it keeps the order of the log if
    any of them cannot be rebuilt."""
    answered = requests.answered(stream)
    if not answered:
        return RequestSummary()
    try:
        stretches, verified = _RequestLayout(conversation, requests).lay_out(answered)
    except (_IncompleteRequestError, RecursionError):
        return RequestSummary(requests=len(answered))
    conversation.replace_stretches(stretches)
    entries: dict[str, Any] = {}
    for prompt, _ in answered:
        tools = requests.shapes[prompt.shape].get("tools")
        entries.update(
            (tool["name"], tool)
            for tool in tools or ()
            if isinstance(tool, dict) and isinstance(tool.get("name"), str)
        )
    return RequestSummary(
        requests=len(answered), verified=verified, tools=offered_tools(list(entries.values()))
    )


class _IncompleteRequestError(Exception):
    """The log lacks a part of a request."""


_Key = tuple[str, int]
"""A message: its hash, and its number among the messages with the same hash."""


class _RequestLayout:
    """Builds stretches from requests: each message is placed once, as a new turn of the first
    request that has it, and is context in later requests."""

    def __init__(self, conversation: Conversation, requests: Requests) -> None:
        self._conversation, self._requests = conversation, requests
        self._drafts: dict[_Key, list[TurnDraft]] = {}
        self._keys: list[_Key] = []  # of the messages above the next one
        self._key_of = {
            name: (digest, index)
            for digest, names in requests.model_messages.items()
            for index, name in enumerate(names)
        }
        self._draft_of_system: dict[str, TurnDraft] = {}
        self._placed: set[int] = set()
        self._cleared_by: dict[_Key, list[str]] = {}
        self._sent_drafts: dict[int, TurnDraft] = {}
        self._cleared: list[str] = []
        self._stretches: list[Stretch] = []
        self._in_bases = 0

    def lay_out(self, answered: list[tuple[_Prompt, list[str]]]) -> tuple[list[Stretch], int]:
        """Build the stretches, and count the requests whose messages they reproduce exactly."""
        context: list[TurnDraft] = []
        verified = num_messages = 0
        for prompt, names in answered:
            hashes = prompt.messages()
            num_messages += len(hashes or ())
            if (
                hashes is None
                or num_messages > MAX_MESSAGES
                or prompt.shape not in self._requests.shapes
            ):
                raise _IncompleteRequestError
            # 1. Rebuild the messages of the request.
            self._cleared = []
            messages = [*self._system_drafts(prompt), *self._message_drafts(hashes)]
            # 2. Make them the context, in a new stretch if they do not continue the last request.
            self._go_to(messages, context)
            current = self._stretches[-1]
            verified += _are_same_drafts([*current.base, *current.drafts], messages)
            # 3. Add the answers, which are context for the next request.
            context = messages
            for name in names:
                answer = self._conversation.draft_of_message.get(name)
                if answer is not None and id(answer) not in self._placed:
                    self._place(answer)
                    context = [*context, answer]
                    self._keys.append(self._key_of[name])
        self._place_unsent()
        # Only now is every draft placed, so a draft may take the text in which it was sent.
        for draft in (d for stretch in self._stretches for d in stretch.drafts):
            if (sent_draft := self._sent_drafts.get(id(draft))) is not None:
                draft.blocks = sent_draft.blocks
        return self._stretches, verified

    def _place(self, draft: TurnDraft) -> None:
        self._stretches[-1].drafts.append(draft)
        self._placed.add(id(draft))

    def _go_to(self, messages: list[TurnDraft], context: list[TurnDraft]) -> None:
        """Make `messages` the context of the next answer: continue the stretch or open one."""
        new_drafts = messages[len(context) :]
        continues = (
            bool(self._stretches)
            and _are_same_drafts(messages[: len(context)], context)
            and all(id(d) not in self._placed for d in new_drafts)
        )
        if not continues or tuple(self._cleared) != self._stretches[-1].cleared:
            self._in_bases += len(messages)
            self._open([])
            for draft in messages:
                current = self._stretches[-1]
                if id(draft) not in self._placed:
                    self._place(draft)
                # An old message below a new one (a summary): the request's order needs a stretch
                # of its own, because a stretch has its context above its drafts.
                elif current.drafts:
                    self._open([*current.base, *current.drafts, draft])
                else:
                    current.base.append(draft)
            return
        for draft in new_drafts:
            self._place(draft)

    def _open(self, base: list[TurnDraft]) -> None:
        self._in_bases += len(base)
        if self._in_bases > MAX_IN_BASES:
            raise _IncompleteRequestError
        self._stretches.append(Stretch(base, tuple(self._cleared)))

    def _place_unsent(self) -> None:
        """Place the messages after the last answer, which were never sent; raises if a message of
        the model is in no request."""
        unsent: list[TurnDraft] = []
        for stretch in self._conversation.stretches:
            for draft in stretch.drafts:
                if draft.role == "assistant":
                    if id(draft) not in self._placed:
                        raise _IncompleteRequestError
                    unsent = []
                elif (
                    not draft.is_side_message
                    and draft.role != "system"
                    and id(draft) not in self._placed
                ):
                    unsent.append(draft)
        for draft in unsent:
            self._place(draft)

    # ---- messages --------------------------------------------------------------------------------

    def _system_drafts(self, prompt: _Prompt) -> list[TurnDraft]:
        blocks = self._requests.shapes[prompt.shape].get("system")
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        texts = [
            b["text"]
            for b in blocks or ()
            if isinstance(b, dict) and isinstance(b.get("text"), str)
        ]
        text = "\n\n".join(
            prompt_text
            for prompt_text in texts
            if not prompt_text.startswith("x-anthropic-billing-header")
        )
        if not text:
            return []
        if text not in self._draft_of_system:
            self._draft_of_system[text] = TurnDraft("system", HARNESS, [Text(text)])
        return [self._draft_of_system[text]]

    def _message_drafts(self, hashes: list[str]) -> Iterator[TurnDraft]:
        previous_keys, self._keys = self._keys, []
        used, num_copies = set[_Key](), Counter[str]()
        for position, digest in enumerate(hashes):
            key = previous_keys[position] if position < len(previous_keys) else (digest, 0)
            while key[0] != digest or key in used:  # the same text sent twice is two messages
                key = (digest, num_copies[digest])
                num_copies[digest] += 1
            used.add(key)
            self._keys.append(key)
            if key not in self._drafts:
                num_cleared = len(self._cleared)
                self._drafts[key] = list(self._drafts_of(*key))
                self._cleared_by[key] = self._cleared[num_cleared:]
                del self._cleared[num_cleared:]
            self._cleared += self._cleared_by[key]
            yield from self._drafts[key]

    def _drafts_of(self, digest: str, index: int) -> Iterator[TurnDraft]:
        requests = self._requests
        if (message_ids := requests.model_messages.get(digest)) is not None:
            yield self._draft_of_model(message_ids, index)
        elif (logged := requests.user_messages.get(digest)) is not None:
            yield from self._drafts_of_user(logged[min(index, len(logged) - 1)])
        elif (blob := requests.blobs.get(digest)) is not None:
            if blob["role"] == "assistant":
                yield self._draft_of_blob(_blocks_of(blob))
            elif blob["role"] == "system":
                texts = [
                    b["text"]
                    for b in _blocks_of(blob)
                    if isinstance(b, dict) and isinstance(b.get("text"), str)
                ]
                yield TurnDraft("user", HARNESS, [Text(text) for text in texts], tag="reminder")
            else:
                yield from self._drafts_of_user([_UserBlock(block) for block in _blocks_of(blob)])
        else:
            raise _IncompleteRequestError

    def _draft_of_model(self, message_ids: list[str], index: int) -> TurnDraft:
        draft = (
            self._conversation.draft_of_message.get(message_ids[index])
            if index < len(message_ids)
            else None
        )
        if draft is None:
            raise _IncompleteRequestError
        return draft

    def _draft_of_blob(self, blocks: list[Any]) -> TurnDraft:
        """Find the logged message that was sent in another form: the same texts and calls, perhaps
        without its thinking."""
        sent = [_to_block(block) for block in blocks]
        without_thinking = [block for block in sent if not isinstance(block, Thinking)]
        callers = (
            self._conversation.draft_of_call.get(block.id)
            for block in without_thinking
            if isinstance(block, ToolCall)
        )
        for draft in (next(callers, None), *self._conversation.draft_of_message.values()):
            if (
                draft is not None
                and [block for block in draft.blocks if not isinstance(block, Thinking)]
                == without_thinking
            ):
                return draft
        raise _IncompleteRequestError

    def _drafts_of_user(self, blocks: list[_UserBlock]) -> Iterator[TurnDraft]:
        """Yield a turn per result, and one turn per run of texts by the same author."""
        draft: TurnDraft | None = None
        for block, is_meta, is_summary, uuid in blocks:
            parsed = _to_block(block)
            if isinstance(parsed, ToolResult):
                draft = None
                yield self._draft_of_result(parsed)
                continue
            if isinstance(parsed, Text) and not parsed.text:
                continue
            text = parsed.text if isinstance(parsed, Text) else ""
            writer = authorship(text, is_meta=is_meta, is_summary=is_summary)
            if draft is not None and (draft.author, draft.tag) == (writer.author, writer.tag):
                draft.blocks.append(parsed)
                continue
            logged = self._conversation.draft_of_record.get(uuid)
            draft = TurnDraft(
                "user",
                writer.author,
                [parsed],
                tag=writer.tag,
                is_copied=logged is not None and logged.is_copied,
            )
            yield draft

    def _draft_of_result(self, result: ToolResult) -> TurnDraft:
        """Return the turn of a result; if the log's text for it differs from the one that was sent,
        the latter counts."""
        draft = self._conversation.draft_of_result.get(result.call_id)
        if draft is None:
            return TurnDraft("tool", "environment", [result])
        if self._sent_drafts.get(id(draft), draft).blocks == [result]:
            return draft
        if result.text == CLEARED_TEXT:
            self._cleared.append(result.call_id)
            return draft
        sent = TurnDraft("tool", draft.author, [result], is_copied=draft.is_copied)
        if id(draft) in self._placed:
            return sent
        self._sent_drafts[id(draft)] = sent
        return draft


def _are_same_drafts(left: list[TurnDraft], right: list[TurnDraft]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


# ---- JSON as it was hashed -----------------------------------------------------------------------


def _decode(line: bytes | None) -> dict[str, Any]:
    try:
        value = (
            json.loads(line.decode("utf-8", "surrogatepass"), parse_float=_parse_number)
            if line is not None
            else None
        )
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _parse_number(text: str) -> _LoggedNumber:
    number = _LoggedNumber(text)
    number.text = text
    return number


def _blocks_of(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def _canonical(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(
                f"{json.dumps(key, ensure_ascii=False)}:{_canonical(value[key])}"
                for key in sorted(value)
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return value.text if isinstance(value, _LoggedNumber) else json.dumps(value)


def _canonical_block(block: Any) -> str:
    if isinstance(block, dict) and "cache_control" in block:
        block = {key: inner for key, inner in block.items() if key != "cache_control"}
    try:
        return _canonical(block)
    except RecursionError:
        return ""


def _hash_of(blocks: list[Any], role: str) -> str:
    return _hash_of_blocks([_canonical_block(block) for block in blocks], role)


def _hash_of_blocks(texts: list[str], role: str) -> str:
    return _sha256(
        f'{{"content":[{",".join(texts)}],"role":{json.dumps(role, ensure_ascii=False)}}}'
    )


def _sha256(text: str) -> str:
    # a lone surrogate is hashed as JSON escapes it
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _to_block(value: Any) -> Block:
    """Convert a JSON block as `log_reader` does."""
    try:
        raw = msgspec.convert(value, RawBlock)
    except (msgspec.ValidationError, RecursionError, UnicodeEncodeError):
        raise _IncompleteRequestError from None
    if raw.type == "text":
        return Text(raw.text or "")
    if raw.type == "thinking":
        return Thinking(raw.thinking or "")
    if raw.type == "tool_use" and (call := tool_call(raw)) is not None:
        return call
    if raw.type == "tool_result" and raw.tool_use_id is not None:
        return tool_result(raw, raw.tool_use_id)
    return opaque_block(raw, value)
