"""Read Claude Code logs into Sessions: one file in memory at a time, no message twice, and every
omission counted.

logs = find_logs(["~/.claude/projects"])
for result in ingest(logs, settings=IngestSettings(), redactor=Redactor()):
    result.report.to_json(); result.sessions
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Literal

from composer_replication.core.config.data_settings import IngestSettings
from composer_replication.core.errors import SessionError
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import HUMAN, Event, Parent, Session, SourceRef, Turn
from composer_replication.data.ingestion.conversation import Conversation, FinishedConversation
from composer_replication.data.ingestion.counts import FileReport, RawCounts, Status, session_counts
from composer_replication.data.ingestion.file_results import (
    FileResult,
    Links,
    base_name,
    claim_name,
    is_wanted,
    mark_of,
    new_redactions,
    safe_name,
)
from composer_replication.data.ingestion.find_logs import LogFile
from composer_replication.data.ingestion.lines import LineReader
from composer_replication.data.ingestion.log_reader import (
    SUBAGENT_TOOLS,
    FileReader,
    KnownIds,
    Stream,
)
from composer_replication.data.ingestion.logged_tools import tools_from_calls
from composer_replication.data.ingestion.other_agents import ingest_other_agent
from composer_replication.data.ingestion.redaction import redact_counts, redact_session
from composer_replication.data.ingestion.repository import enclosing_roots, repository_of
from composer_replication.data.ingestion.requests import lay_out, read_requests

FORMAT = "claude_code"


@dataclass(frozen=True, slots=True)
class _ParsedSession:
    session: Session
    from_progress: bool
    copied_inside: int


def ingest(
    logs: Sequence[LogFile],
    *,
    settings: IngestSettings | None = None,
    redactor: Redactor | None = None,
    hashed: bool = True,
    known: KnownIds | None = None,
    beside: Sequence[LogFile] = (),
) -> Iterator[FileResult]:
    """Read logs one after the other; lazily yield the report and the sessions of each.

    `logs` come from `find_logs`, whose order matters: whole files before their partial copies,
    subagents last. Sessions are redacted before they are yielded, unless `redactor` is None. An
    error in one file does not stop the others. `known` holds the ids of messages that were read
    before, so that a later run leaves them out. `beside` are the logs of the same reading whose
    results are known already (`unchanged.py`).
    Example: next(ingest(find_logs(["a.jsonl"]))).report.to_json()["tool_use"] -> 66
    """
    settings = settings or IngestSettings()
    known = KnownIds() if known is None else known
    agents = {log.agent for log in logs if log.agent is not None}
    known.agents |= agents
    links = Links(
        parents=frozenset(session for session, _ in agents),
        roots=enclosing_roots(log.cwd for log in (*logs, *beside)),
    )
    for log in logs:
        yield ingest_file(log, known, links, settings=settings, redactor=redactor, hashed=hashed)


def ingest_file(
    log: LogFile,
    known: KnownIds,
    links: Links,
    *,
    settings: IngestSettings,
    redactor: Redactor | None,
    hashed: bool,
) -> FileResult:
    """Read one log; `known` and `links` hold what was read before it, and are updated."""
    if log.format and not log.why:
        return ingest_other_agent(log, links, settings=settings, redactor=redactor, hashed=hashed)
    reader = FileReader(log, known, max_line_bytes=settings.max_line_bytes, hashed=hashed)
    name = redactor.text(log.name) if redactor is not None else log.name
    if log.why:
        return FileResult(
            report=FileReport(
                file=name, status="unreadable", why=log.why, counts=session_counts(())
            )
        )
    try:
        reader.read()
        parsed = [] if _is_copy(reader) else sessions_of(reader, links, name)
    except OSError as error:
        why = f"cannot be read: {error.strerror or type(error).__name__}"
        return FileResult(
            report=FileReport(
                file=name,
                status="unreadable",
                why=why,
                num_bytes=log.num_bytes,
                counts=session_counts(()),
            )
        )
    except SessionError as error:
        return FileResult(
            report=FileReport(
                file=name,
                status="refused",
                why=str(error),
                num_bytes=log.num_bytes,
                counts=session_counts(()),
            )
        )
    known.update(reader.new_marks)
    marks = {*reader.new_marks, *reader.known_marks}
    marks.update(mark_of(f"session {name}") for name in reader.raw.session_ids)
    marks.update(mark_of(f"session {base_name(m.session.id)}") for m in parsed)
    folders = tuple({m.session.cwd: None for m in parsed})
    counts_before = dict(redactor.counts) if redactor is not None else {}
    if redactor is not None:
        redact_counts(reader.raw, redactor)
        parsed = [replace(m, session=redact_session(m.session, redactor)) for m in parsed]
    stored = [m for m in parsed if is_wanted(m.session, settings.authors)]
    reader.raw.copied_inside = sum(m.copied_inside for m in stored)
    return FileResult(
        report=_build_report(
            name,
            log=log,
            reader=reader,
            parsed=parsed,
            stored=stored,
            redactions=new_redactions(redactor, counts_before),
        ),
        sessions=tuple(m.session for m in stored),
        marks=tuple(sorted(marks)),
        folders=folders,
    )


def _is_copy(reader: FileReader) -> bool:
    return bool(reader.known_marks) and not reader.new_marks


def _build_report(
    name: str,
    *,
    log: LogFile,
    reader: FileReader,
    parsed: list[_ParsedSession],
    stored: list[_ParsedSession],
    redactions: dict[str, int],
) -> FileReport:
    status, why = _status(reader, parsed)
    raw = reader.raw
    if status == "foreign":
        raw = RawCounts(damaged_lines=raw.damaged_lines, damage=raw.damage[:1])
    own_sessions = [m.session for m in stored if not m.from_progress]
    progress_sessions = [m.session for m in stored if m.from_progress]
    return FileReport(
        file=name,
        status=status,
        why=why,
        num_bytes=log.num_bytes,
        sha256=reader.lines.sha256,
        raw=raw,
        counts=session_counts(own_sessions),
        progress_counts={"sessions": len(progress_sessions), **session_counts(progress_sessions)}
        if progress_sessions
        else {},
        progress_names=tuple(session.id for session in progress_sessions),
        session_names=tuple(m.session.id for m in stored),
        num_subagents=sum(m.session.parent is not None for m in stored),
        num_copied_turns=sum(m.session.copied for m in stored),
        num_filtered=len(parsed) - len(stored),
        num_requests=sum(m.session.requests for m in stored),
        num_verified=sum(m.session.requests_verified for m in stored),
        redactions=redactions,
    )


def _status(reader: FileReader, parsed: list[_ParsedSession]) -> tuple[Status, str]:
    raw = reader.raw
    if _is_copy(reader):
        return "duplicate", "every message of it stands in a file read before"
    if reader.is_claude_code or parsed:
        return "read", ""
    if raw.records:
        return "foreign", "JSON lines, but not of Claude Code, nor of another agent known here"
    if not raw.damaged_lines:
        return "empty", "no line in it"
    if reader.lines.binary:
        return "foreign", "a binary file"
    oversize = any(why.startswith("longer than") for _, why in raw.damage)
    if oversize or raw.damaged_lines == 1:
        return "damaged", raw.damage[0][1]
    return "foreign", "not JSON lines"


# ---- sessions ------------------------------------------------------------------------------------


def sessions_of(reader: FileReader, links: Links, file: str) -> list[_ParsedSession]:
    """Build the sessions of a file: the main one, then its subagents, each linked to the call that
    started it."""
    parsed: list[_ParsedSession] = []
    main, main_name = reader.main, ""
    if reader.has_requests:
        _apply_requests(reader)
    raw_name = _most_common(reader.raw.session_ids)
    finished = main.conversation.finish()
    calls_by_prompt = _calls_by_prompt(main.conversation)
    # A subagent works for its session, whatever folder it runs in: both get one repository.
    repository = links.repositories.get(raw_name, "") if not finished.turns else ""
    repository = repository or repository_of(main.cwd, named=reader.repository, roots=links.roots)
    if finished.turns:
        main_name = claim_name(safe_name(raw_name, reader.lines.sha256), links)
        parsed.append(
            _parsed_session(
                main,
                finished=finished,
                reader=reader,
                name=main_name,
                parent=None,
                file=file,
                repository=repository,
            )
        )
        if raw_name in links.parents:
            links.repositories.setdefault(raw_name, repository)
            _remember_calls(
                links, raw_name=raw_name, name=main_name, reader=reader, by_prompt=calls_by_prompt
            )
    for side in reader.sides.values():
        finished_side = side.conversation.finish()
        if not finished_side.turns:
            continue
        parent, author = _find_parent(
            side, reader=reader, links=links, main_name=main_name, by_prompt=calls_by_prompt
        )
        name = claim_name(
            f"{parent.session_id}.agent-{safe_name(side.agent_id, side.prompt)}", links
        )
        turns = tuple(_as_task(turn, author) for turn in finished_side.turns)
        side_repository = repository or repository_of(side.cwd, roots=links.roots)
        parsed.append(
            _parsed_session(
                side,
                finished=finished_side._replace(turns=turns),
                reader=reader,
                name=name,
                parent=parent,
                file=file,
                repository=side_repository,
            )
        )
    return parsed


def _apply_requests(reader: FileReader) -> None:
    """Put the conversations of a file into the order of their requests and take the tools from
    there, as far as the log holds them."""
    requests = read_requests(
        LineReader(reader.log.path, reader.lines.max_line_bytes, hashed=False),
        last=reader.num_lines,
    )
    for key, stream in (("", reader.main), *reader.sides.items()):
        stream.request_summary = lay_out(stream.conversation, requests, key)
        stream.tools = stream.request_summary.tools or stream.tools


def _parsed_session(
    stream: Stream,
    *,
    finished: FinishedConversation,
    reader: FileReader,
    name: str,
    parent: Parent | None,
    file: str,
    repository: str,
) -> _ParsedSession:
    tools = stream.tools
    origin: Literal["log", "reconstructed", "none"] = "log"
    if not tools:
        tools = tools_from_calls(stream.conversation.calls, refused=stream.conversation.refused)
        origin = "reconstructed" if tools else "none"
    session = Session(
        id=name,
        source=SourceRef(
            file=file,
            sha256=reader.lines.sha256,
            format=FORMAT,
            versions=tuple(sorted(reader.raw.versions)),
        ),
        turns=finished.turns,
        segments=finished.segments,
        tools=tools,
        tools_origin=origin,
        events=_drop_repeated_events(finished.events, finished.turns),
        parent=parent,
        copied=finished.copied,
        cwd=stream.cwd or reader.main.cwd,
        repository=repository,
        started=stream.started,
        ended=stream.ended,
        requests=stream.request_summary.requests,
        requests_verified=stream.request_summary.verified,
    )
    return _ParsedSession(session, stream.from_progress, finished.copied_inside)


def _drop_repeated_events(events: tuple[Event, ...], turns: tuple[Turn, ...]) -> tuple[Event, ...]:
    """Drop "queued" events whose text the log also holds as a message of the human."""
    if all(e.kind != "queued" for e in events):
        return events
    human_texts = {turn.text for turn in turns if turn.author == HUMAN}
    return tuple(e for e in events if e.kind != "queued" or e.text not in human_texts)


def _as_task(turn: Turn, author: str | None) -> Turn:
    """Attribute a subagent's task to the model that called it, not to the human."""
    return (
        replace(turn, author=author, tag="task")
        if turn.role == "user" and turn.author == HUMAN
        else turn
    )


def _calls_by_prompt(conversation: Conversation) -> dict[str, list[tuple[str, str | None]]]:
    """Map each task's prompt to the (call id, author) of the calls that sent it, in order."""
    calls: dict[str, list[tuple[str, str | None]]] = {}
    for call in conversation.calls:
        if call.name in SUBAGENT_TOOLS or "subagent_type" in call.arguments:
            prompt = call.arguments.get("prompt")
            if isinstance(prompt, str):
                calls.setdefault(prompt, []).append(
                    (call.id, conversation.draft_of_call[call.id].author)
                )
    return calls


def _remember_calls(
    links: Links,
    *,
    raw_name: str,
    name: str,
    reader: FileReader,
    by_prompt: dict[str, list[tuple[str, str | None]]],
) -> None:
    """Remember which call started each subagent, for subagents that have their own file."""
    for agent, call_id in reader.agent_calls.items():
        links.calls[raw_name, agent] = (
            Parent(session_id=name, call_id=call_id),
            _author_of(reader.main.conversation, call_id),
        )
    for prompt, calls in by_prompt.items():
        links.calls[raw_name, _prompt_key(prompt)] = (
            Parent(session_id=name, call_id=calls[0][0]),
            calls[0][1],
        )


def _author_of(conversation: Conversation, call_id: str) -> str | None:
    caller = conversation.draft_of_call.get(call_id)
    return caller.author if caller is not None else None


def _prompt_key(prompt: str) -> str:
    return "prompt " + sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()


def _find_parent(
    side: Stream,
    *,
    reader: FileReader,
    links: Links,
    main_name: str,
    by_prompt: dict[str, list[tuple[str, str | None]]],
) -> tuple[Parent, str | None]:
    """Find the call that started a subagent and the model that made it: as recorded, else by the
    text of its task."""
    raw_name = _most_common(reader.raw.session_ids)
    for key in (side.agent_id, _prompt_key(side.prompt)):
        if not main_name and (raw_name, key) in links.calls:
            return links.calls[raw_name, key]
    call_id = side.call_id or reader.agent_calls.get(side.agent_id)
    author: str | None = None
    if call_id is None and by_prompt.get(side.prompt):
        call_id, author = by_prompt[side.prompt].pop(0)
    elif call_id is not None:
        author = _author_of(reader.main.conversation, call_id)
    return (
        Parent(session_id=main_name or safe_name(raw_name, reader.lines.sha256), call_id=call_id),
        author,
    )


def _most_common(ids: dict[str, int]) -> str:
    """The id that most records carry; on a tie the last one met, because in older versions a
    resumed session begins with records of the old id."""
    return max(reversed(ids), key=lambda name: ids[name], default="")
