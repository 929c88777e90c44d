"""Apply a Redactor to everything of a Session that is stored."""

from __future__ import annotations

from dataclasses import replace

from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Block, Opaque, Session, Text, Thinking, ToolCall, ToolResult, Turn


def redact_session(session: Session, redactor: Redactor) -> Session:
    """The session with secrets replaced in texts, arguments, results, events, tools, paths and outcome notes.

    The same secret gets the same name everywhere, so a call and its result still match. Ids and model names stay.
    Example: redact_session(session, Redactor()).turns[3].results[0].text -> "key=[REDACTED:openai_key:1f0c...]"
    """
    return replace(
        session,
        turns=tuple(_turn(turn, redactor) for turn in session.turns),
        tools=tuple(replace(t, description=redactor.text(t.description), parameters=redactor.value(t.parameters)) for t in session.tools),
        events=tuple(replace(e, text=redactor.text(e.text)) if e.text else e for e in session.events),
        source=replace(session.source, file=redactor.text(session.source.file)),
        cwd=redactor.text(session.cwd),
        repository=redactor.text(session.repository),
    )


def _turn(turn: Turn, redactor: Redactor) -> Turn:
    blocks = tuple(_block(block, redactor) for block in turn.blocks)
    return turn if all(a is b for a, b in zip(blocks, turn.blocks, strict=True)) else replace(turn, blocks=blocks)


def _block(block: Block, redactor: Redactor) -> Block:
    """The block itself where nothing had to go."""
    if isinstance(block, ToolCall):
        arguments = redactor.value(block.arguments)
        return block if arguments is block.arguments else replace(block, arguments=arguments)
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
