"""Find the turns above a mistaken message to which the hint, or the mistaken call, refers: a window
without them cannot be understood.

    turns  4 Read a.py  5 its text  6 Edit a.py  7 done  ...  30 Edit a.py: old text not found
    refers_to(context) -> (4, 5, 6, 7)     the last read of the file, and the last change after it

    the mistaken call names a file    its last read, and its last change after that
    the mistake is not the first      the last call of the tool that failed on the same thing
    the call is a repeat              the first call and its result
    the hint lists things             the last call that showed each: paths, branches, arguments

Each call counts with its result. Every window contains the list of tools, so a hint that names
tools or their schemas refers to no turn. A result that had been cleared from the context shows
nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from composer_replication.core.trace import CLEARED_TEXT, ToolCall, ToolResult
from composer_replication.data.hints.context import SiteContext, json_scalars
from composer_replication.data.hints.seen import READERS, path_argument
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.effects import resolve
from composer_replication.data.sites.repeats import same_call
from composer_replication.data.sites.shell import parse, shell_command

CHANGERS = frozenset(
    ("Edit", "Write", "MultiEdit", "NotebookEdit", "edit", "write", "edit_file", "write_file")
)
SHELL_READERS = frozenset(("cat", "head", "tail", "sed", "nl", "less", "more", "bat"))
LISTED = frozenset(("paths_seen", "refs_seen"))
"""The values of Hint.knows of hints that list things in view; command names are common
knowledge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnsweredCall:
    """A call above the site with its result as the model saw it, and the turns of both."""

    call: ToolCall
    result: ToolResult
    turns: tuple[int, int]
    failed: bool


def refers_to(
    context: SiteContext, *, knows: Collection[str] = (), names: Sequence[str] = ()
) -> tuple[int, ...]:
    """List the turns above the mistaken message to which it, or its hint, refers.

    `knows` is the hint's Hint.knows, `names` are the things that it lists. Without them, only the
    turns to which the call refers are found.
    """
    if context.call is None:
        return ()
    answered = _answered_above(context)
    turns: set[int] = set()
    for answered_call in (
        *_file_calls(context, answered),
        *_earlier_calls(context, answered),
        *_listing_calls(answered, knows=knows, names=names),
    ):
        turns.update(answered_call.turns)
    if "calls_seen" in knows:
        turns.update(
            turn
            for answered_call in _last(
                answered, lambda c: c.call.name == context.site.tool and not c.failed
            )
            for turn in answered_call.turns
        )
    return tuple(sorted(turns))


def listed_names(text: str, *, fixed: str) -> list[str]:
    """List the words of a hint that are not fixed words of its template, without punctuation.

    >>> listed_names("Branches seen so far: main, fix/cart.", fixed="Branches seen so far: ")
    ['main', 'fix/cart']
    """
    fixed_words = set(_words(fixed))
    return list(dict.fromkeys(word for word in _words(text) if word not in fixed_words))


def _words(text: str) -> list[str]:
    return [bare for word in text.split() if (bare := word.strip(",;:`'\"()").rstrip("."))]


def _answered_above(context: SiteContext) -> list[_AnsweredCall]:
    """List the answered calls above the site as the model saw them, in the order of the results."""
    session, at = context.session, context.site.turn
    calls: dict[str, tuple[int, ToolCall]] = {}
    answered: list[_AnsweredCall] = []
    for index in session.context_indices(at):
        for block in session.turn_in_view(index, at=at).blocks:
            if isinstance(block, ToolCall):
                calls[block.id] = (index, block)
            elif (
                isinstance(block, ToolResult)
                and block.call_id in calls
                and block.text != CLEARED_TEXT
            ):
                turn, call = calls[block.call_id]
                answered.append(
                    _AnsweredCall(
                        call=call, result=block, turns=(turn, index), failed=is_error(call, block)
                    )
                )
    return answered


def _last(
    answered: Sequence[_AnsweredCall], is_it: Callable[[_AnsweredCall], bool]
) -> list[_AnsweredCall]:
    return next(
        ([answered_call] for answered_call in reversed(answered) if is_it(answered_call)), []
    )


def _path(call: ToolCall, cwd: str) -> str:
    path = path_argument(call)
    return resolve(path, cwd) or path if path else ""


def _reads_file(answered_call: _AnsweredCall, path: str, cwd: str) -> bool:
    """Whether a call read this file, with a file tool or in a shell."""
    command = shell_command(answered_call.call.name, answered_call.call.arguments)
    if command is None:
        return answered_call.call.name in READERS and _path(answered_call.call, cwd) == path
    readers = [s for s in parse(command).simple if s.name in SHELL_READERS]
    return any(resolve(word, cwd) == path for s in readers for word in s.operands)


def _file_calls(context: SiteContext, answered: Sequence[_AnsweredCall]) -> list[_AnsweredCall]:
    """The last read of the file that the call names, and its last change after that."""
    cwd = context.session.cwd
    assert context.call is not None
    path = _path(context.call, cwd) if context.command is None else ""
    if not path:
        return []
    succeeded = [c for c in answered if not c.failed]
    read = _last(succeeded, lambda c: _reads_file(c, path, cwd))
    changed = _last(succeeded, lambda c: c.call.name in CHANGERS and _path(c.call, cwd) == path)
    return [*read, *(c for c in changed if not read or c.turns > read[0].turns)]


def _earlier_calls(context: SiteContext, answered: Sequence[_AnsweredCall]) -> list[_AnsweredCall]:
    """For a repeated call, the call that it repeats; else the last call of the tool that failed on
    the same thing."""
    call, cwd = context.call, context.session.cwd
    assert call is not None
    if context.site.kind == "repeated_call":
        return _last(answered, lambda earlier: same_call(earlier.call, call))
    is_shell, subject = context.command is not None, context.subject
    path = _path(call, cwd)

    def is_same_failure(earlier: _AnsweredCall) -> bool:
        if not earlier.failed or earlier.call.name != call.name:
            return False
        if is_shell:
            return (
                bool(subject)
                and subject in earlier.result.text
                and judge(earlier.call, earlier.result).subject == subject
            )
        return _path(earlier.call, cwd) == path if path else same_call(earlier.call, call)

    return _last(answered, is_same_failure)


def _listing_calls(
    answered: Sequence[_AnsweredCall], *, knows: Collection[str], names: Sequence[str]
) -> list[_AnsweredCall]:
    """For each name that the hint lists, the last call that showed it, in full or by its last part:
    a listing prints a file's name without its folder."""
    listings: list[_AnsweredCall] = []
    for name in names if LISTED & set(knows) else ():
        full_name, base_name = re.escape(name), re.escape(posixpath.basename(name.rstrip("/")))
        for pattern in dict.fromkeys((full_name, base_name)):
            exact = re.compile(rf"(?<![\w-]){pattern}(?![\w-])")
            if shown := _last(
                answered, lambda c, exact=exact: not c.failed and _mentions(c, exact)
            ):
                listings += shown
                break
    return listings


def _mentions(answered_call: _AnsweredCall, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(answered_call.result.text)) or any(
        pattern.search(text) for text in json_scalars(answered_call.call.arguments)
    )
