"""Apply a Redactor to every stored part of a Session."""

from __future__ import annotations

from dataclasses import replace

from composer_replication.core.redact import Redactor
from composer_replication.core.trace import (
    Block,
    Opaque,
    Session,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.ingestion.counts import RawCounts


def redact_session(session: Session, redactor: Redactor) -> Session:
    """Replace the secrets in texts, arguments, results, events, tools, paths and names.

    The same secret gets the same placeholder everywhere, so that a call and its result still
    match. Names of models and tools are redacted like any other text of the log; ids are not.
    Example: redact_session(session, Redactor()).turns[3].results[0].text ->
    "key=[REDACTED:openai_key:1f0c...]"
    """
    names = _Names(redactor)
    return replace(
        session,
        turns=tuple(_turn(turn, redactor, names) for turn in session.turns),
        tools=tuple(
            replace(
                t,
                name=names[t.name],
                description=redactor.text(t.description),
                parameters=redactor.value(t.parameters),
            )
            for t in session.tools
        ),
        events=tuple(
            replace(e, text=redactor.text(e.text)) if e.text else e for e in session.events
        ),
        source=replace(
            session.source,
            file=redactor.text(session.source.file),
            versions=tuple(names[v] for v in session.source.versions),
        ),
        cwd=redactor.text(session.cwd),
        repository=redactor.text(session.repository),
    )


def redact_turn(turn: Turn, redactor: Redactor) -> Turn:
    """Replace the secrets in one message; returns the same object if there are none.

    Example: redact_turn(reply.turn, redactor).text -> "the key is [REDACTED:openai_key:1f0c...]"
    """
    return _turn(turn, redactor, _Names(redactor))


def redact_counts(raw: RawCounts, redactor: Redactor) -> None:
    """Redact, in place, the names under which records are counted (types, models, versions)."""
    names = _Names(redactor)
    raw.versions = {names[version] for version in raw.versions}
    for counts in (
        raw.record_types,
        raw.models,
        raw.attachments,
        raw.unknown_types,
        raw.unknown_attachments,
        raw.opaque_blocks,
    ):
        for name in [count for count in counts if names[count] != count]:
            counts[names[name]] = counts.get(names[name], 0) + counts.pop(name)


class _Names(dict[str, str]):
    """A cache from the name in the log to the redacted name: names repeat a lot."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def __missing__(self, name: str) -> str:
        clean = self[name] = self._redactor.text(name)
        return clean


def _turn(turn: Turn, redactor: Redactor, names: _Names) -> Turn:
    blocks = tuple(_block(block, redactor, names) for block in turn.blocks)
    author = names[turn.author] if turn.author is not None else None
    is_unchanged = author == turn.author and all(
        a is b for a, b in zip(blocks, turn.blocks, strict=True)
    )
    # The sampled ids would still spell the secret.
    return turn if is_unchanged else replace(turn, author=author, blocks=blocks, sampled=None)


def _block(block: Block, redactor: Redactor, names: _Names) -> Block:
    """Redact a block; returns the same object if it holds no secret."""
    if isinstance(block, ToolCall):
        arguments, name = redactor.value(block.arguments), names[block.name]
        return (
            block
            if arguments is block.arguments and name == block.name
            else replace(block, name=name, arguments=arguments)
        )
    if isinstance(block, Opaque) and names[block.type] != block.type:
        return Opaque(names[block.type], redactor.text(block.text))
    text = redactor.text(block.text)
    if text is block.text:
        return block
    if isinstance(block, Text):
        return Text(text)
    if isinstance(block, Thinking):
        return Thinking(text)
    if isinstance(block, ToolResult):
        return replace(block, text=text)
    return Opaque(block.type, text)
