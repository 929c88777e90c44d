"""Which turns above a mistaken message the hint, or the mistaken call itself, speaks of: without
them in view it cannot be understood.

    turns  4 Read a.py  5 its text  6 Edit a.py  7 done  ...  30 Edit a.py: the old text is not in the file
    refers_to(context) -> (4, 5, 6, 7)         the last read of the file, and the last change behind it

    the file that the call names     its last read, and its last change behind that
    the same mistake                 the last call of the tool on the same thing that failed, and what came of it
    a repeated call                  the call that was made before, and its answer
    what the hint lists              the last call that showed it: paths, branches, the arguments of calls that worked

The list of tools stands in every window, so a hint that names tools or their schemas refers to no
turn. Only what the model had in view counts: a result that had been cleared by then shows nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from composer_replication.core.trace import CLEARED_TEXT, ToolCall, ToolResult
from composer_replication.data.hints.context import SiteContext, json_scalars
from composer_replication.data.hints.seen import PATH_KEYS
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.effects import resolve
from composer_replication.data.sites.repeats import canonical_arguments
from composer_replication.data.sites.shell import parse, shell_command

READERS = frozenset(("Read", "NotebookRead", "read", "read_file", "view"))
CHANGERS = frozenset(
    ("Edit", "Write", "MultiEdit", "NotebookEdit", "edit", "write", "edit_file", "write_file")
)
SHELL_READERS = frozenset(("cat", "head", "tail", "sed", "nl", "less", "more", "bat"))
LISTED = frozenset(("paths_seen", "refs_seen"))
"""What a hint knows (core.site.Hint.knows) when it lists things that were in view; command names
are common knowledge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A call above the site with its answer as it stood in view, and the turns of both."""

    call: ToolCall
    result: ToolResult
    turns: tuple[int, int]
    failed: bool


def refers_to(
    context: SiteContext, *, knows: Collection[str] = (), names: Sequence[str] = ()
) -> tuple[int, ...]:
    """Turns of calls and results above the mistaken message that it, or its hint, refers to, in
    order.

    `knows` is what hindsight the hint used, `names` what it lists. Without a hint only what the
    call refers to is found.
    """
    if context.call is None:
        return ()
    above = _above(context)
    found: set[int] = set()
    for one in (
        *_file(context, above),
        *_earlier(context, above),
        *_listed(above, knows=knows, names=names),
    ):
        found.update(one.turns)
    if "calls_seen" in knows:
        found.update(
            turn
            for one in _last(above, lambda s: s.call.name == context.site.tool and not s.failed)
            for turn in one.turns
        )
    return tuple(sorted(found))


def listed_names(text: str, *, fixed: str) -> list[str]:
    """The words of a hint that are not the fixed words of its template, without the marks around
    them.

    >>> listed_names("Branches seen so far: main, fix/cart.", fixed="Branches seen so far: ")
    ['main', 'fix/cart']
    """
    known = set(_words(fixed))
    return list(dict.fromkeys(word for word in _words(text) if word not in known))


def _words(text: str) -> list[str]:
    return [bare for word in text.split() if (bare := word.strip(",;:`'\"()").rstrip("."))]


def _above(context: SiteContext) -> list[_Seen]:
    """Answered calls above the site as they stood in view, in the order of their results."""
    session, at = context.session, context.site.turn
    made: dict[str, tuple[int, ToolCall]] = {}
    found: list[_Seen] = []
    for index in session.context_indices(at):
        for block in session.turn_in_view(index, at=at).blocks:
            if isinstance(block, ToolCall):
                made[block.id] = (index, block)
            elif (
                isinstance(block, ToolResult)
                and block.call_id in made
                and block.text != CLEARED_TEXT
            ):
                turn, call = made[block.call_id]
                found.append(
                    _Seen(
                        call=call, result=block, turns=(turn, index), failed=is_error(call, block)
                    )
                )
    return found


def _last(above: Sequence[_Seen], is_it: Callable[[_Seen], bool]) -> list[_Seen]:
    return next(([one] for one in reversed(above) if is_it(one)), [])


def _path(call: ToolCall, cwd: str) -> str:
    value = next((call.arguments[k] for k in PATH_KEYS if k in call.arguments), "")
    return resolve(value, cwd) or value if isinstance(value, str) and value else ""


def _shows(one: _Seen, path: str, cwd: str) -> bool:
    """Whether a call read this file, by a tool or in a shell."""
    command = shell_command(one.call.name, one.call.arguments)
    if command is None:
        return one.call.name in READERS and _path(one.call, cwd) == path
    read = [s for s in parse(command).simple if s.name in SHELL_READERS]
    return any(resolve(word, cwd) == path for s in read for word in s.operands)


def _file(context: SiteContext, above: Sequence[_Seen]) -> list[_Seen]:
    """The last read of the file that the call names, and its last change behind that."""
    cwd = context.session.cwd
    assert context.call is not None
    path = (
        _path(context.call, cwd)
        if shell_command(context.call.name, context.call.arguments) is None
        else ""
    )
    if not path:
        return []
    fine = [one for one in above if not one.failed]
    read = _last(fine, lambda one: _shows(one, path, cwd))
    changed = _last(fine, lambda one: one.call.name in CHANGERS and _path(one.call, cwd) == path)
    return [*read, *(one for one in changed if not read or one.turns > read[0].turns)]


def _earlier(context: SiteContext, above: Sequence[_Seen]) -> list[_Seen]:
    """The same call where it was repeated; else the last call of the tool that failed on the same
    thing."""
    call, cwd = context.call, context.session.cwd
    assert call is not None
    if context.site.kind == "repeated_call":
        return _last(
            above,
            lambda one: (
                one.call.name == call.name
                and canonical_arguments(one.call) == canonical_arguments(call)
            ),
        )
    shell, subject, path = (
        shell_command(call.name, call.arguments) is not None,
        context.subject,
        _path(call, cwd),
    )

    def same(one: _Seen) -> bool:
        if not one.failed or one.call.name != call.name:
            return False
        if shell:
            return (
                bool(subject)
                and subject in one.result.text
                and judge(one.call, one.result).subject == subject
            )
        return (
            _path(one.call, cwd) == path
            if path
            else canonical_arguments(one.call) == canonical_arguments(call)
        )

    return _last(above, same)


def _listed(above: Sequence[_Seen], *, knows: Collection[str], names: Sequence[str]) -> list[_Seen]:
    """For each name that the hint lists the last call that showed it; a listing has a file's name
    apart from its folder."""
    found: list[_Seen] = []
    for name in names if LISTED & set(knows) else ():
        whole, last = re.escape(name), re.escape(posixpath.basename(name.rstrip("/")))
        for pattern in dict.fromkeys((whole, last)):
            exact = re.compile(rf"(?<![\w-]){pattern}(?![\w-])")
            if shown := _last(
                above, lambda one, exact=exact: not one.failed and _mentions(one, exact)
            ):
                found += shown
                break
    return found


def _mentions(one: _Seen, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(one.result.text)) or any(
        pattern.search(text) for text in json_scalars(one.call.arguments)
    )
