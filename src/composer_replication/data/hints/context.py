"""The input of a hint writer: the site, the context that the model saw before it, and the
evidence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from composer_replication.core.site import Site
from composer_replication.core.trace import (
    CallRef,
    Session,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.data.sites.call_verdict import judge
from composer_replication.data.sites.shell import shell_command


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteContext:
    """One site, with access to the context as the model saw it and to the result that followed.

    `calls` are the calls of the whole session by id; `rules` are the user's, one text each. The
    `evidence` is hindsight: a hint may use its kind, but not its text.
    """

    session: Session
    site: Site
    call: ToolCall | None
    calls: Mapping[str, CallRef]
    evidence: ToolResult | None
    rules: tuple[str, ...] = ()

    @property
    def before(self) -> tuple[Turn, ...]:
        """The context of the mistaken message as the model saw it, with results cleared by then.

        Not cached: a long session with many sites would be in memory once per site.
        """
        return self.session.context(self.site.turn)

    @property
    def target(self) -> Turn:
        """The mistaken message."""
        return self.session.turns[self.site.turn]

    @property
    def command(self) -> str | None:
        """The command line of the mistaken call; None if it is not a call of a shell."""
        return shell_command(self.call.name, self.call.arguments) if self.call else None

    @property
    def subject(self) -> str:
        """The path, command, option or ref that the error names; "" if it names none."""
        if self.call is None or self.evidence is None:
            return ""
        return judge(self.call, self.evidence).subject

    def answered_calls(self) -> Iterator[tuple[ToolCall, ToolResult]]:
        """Yield the calls before the site with their results, as the model saw them, in the order
        of the results."""
        calls_by_id: dict[str, ToolCall] = {}
        for turn in self.before:
            for block in turn.blocks:
                if isinstance(block, ToolCall):
                    calls_by_id[block.id] = block
                elif isinstance(block, ToolResult) and block.call_id in calls_by_id:
                    yield calls_by_id[block.call_id], block


Writer = Callable[[SiteContext], str | None]


def site_context(
    session: Session,
    site: Site,
    *,
    rules: tuple[str, ...] = (),
    calls: Mapping[str, CallRef] | None = None,
) -> SiteContext:
    """Build the context of one site; pass `calls` if session.calls() is computed already."""
    calls = session.calls() if calls is None else calls
    ref = calls.get(site.call_id) if site.call_id else None
    return SiteContext(
        session=session,
        site=site,
        call=ref.call if ref else None,
        calls=calls,
        evidence=ref.result if ref else None,
        rules=rules,
    )


def turn_text(turn: Turn) -> str:
    """Join all text of a message: text, thinking, calls with their arguments, results; one newline
    between blocks."""
    parts: list[str] = []
    for block in turn.blocks:
        if isinstance(block, Text | Thinking | ToolResult):
            parts.append(block.text)
        elif isinstance(block, ToolCall):
            parts.append(block.name)
            parts.extend(json_scalars(block.arguments))
        else:
            parts.append(block.text)
    return "\n".join(parts)


def json_scalars(value: object) -> Iterator[str]:
    """Yield every key and every scalar of a JSON tree as text.

    >>> list(json_scalars({"a": ["b", 1]}))
    ['a', 'b', '1']
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from json_scalars(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from json_scalars(item)
    else:
        yield json.dumps(value)
