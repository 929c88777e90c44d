"""The lines of the files that a session edits, and which edit wrote each of them.

A session does not hold files: their lines are put together from what calls read, wrote and showed.
An unknown line is None. What a command may have rewritten is forgotten, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from composer_replication.core.trace import CallRef, Session, ToolCall
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.shell import shell_command

EDIT_TOOLS = frozenset(("Edit", "MultiEdit", "edit", "edit_file", "str_replace"))
WRITE_TOOLS = frozenset(("Write", "write", "write_file"))
_NUMBERED = re.compile(r"^ *(\d+)(?:→|\t)(.*)$", re.MULTILINE)
_UNKNOWN = "\0"
_REWRITES = re.compile(
    r"\bsed\b[^|;&]* -i|\bpatch\b|\b(?:mv|rm|cp)\b|\bgit (?:-C \S+ )?(?:checkout|switch|pull|merge"
    r"|rebase|stash|reset|restore|apply|cherry-pick|revert)"
)
"""Commands after which lines have moved; a formatter leaves most of them where they were."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One change of an edit: the old text and the new one; `old` is None for a whole file."""

    old: str | None
    new: str
    everywhere: bool = False


@dataclass(slots=True)
class FileState:
    """The known lines of one file, and beside each the id of the call that wrote it."""

    lines: list[str | None] = field(default_factory=list)
    owners: list[str | None] = field(default_factory=list)

    def show(self, number: int, text: str) -> None:
        """Take over a line that a result shows; its owner stays if its text does."""
        missing = number - len(self.lines)
        self.lines.extend([None] * missing)
        self.owners.extend([None] * missing)
        if self.lines[number - 1] != text:
            self.owners[number - 1] = None
        self.lines[number - 1] = text

    def apply(self, change: Replacement, call_id: str) -> set[str] | None:
        """Make a change; returns the owners of the lines that it replaced, None if the old text is
        not among the known lines."""
        if change.old is None:
            replaced = {owner for owner in self.owners if owner}
            self.lines = list(change.new.split("\n"))
            self.owners = [call_id] * len(self.lines)
            return replaced
        text = "\n".join(_UNKNOWN if line is None else line for line in self.lines)
        at = text.find(change.old)
        if not change.old or at < 0 or (change.everywhere and text.count(change.old) > 1):
            return None
        first, num_old = text.count("\n", 0, at), change.old.count("\n") + 1
        last = first + num_old
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at + len(change.old))
        block = text[start:at] + change.new + text[at + len(change.old) : end if end >= 0 else None]
        new_lines = block.split("\n")
        old_lines, old_owners = self.lines[first:last], self.owners[first:last]
        kept = {line: owner for line, owner in zip(old_lines, old_owners, strict=True)}
        self.lines[first:last] = new_lines
        self.owners[first:last] = [
            kept[line] if line in kept and line.strip() else call_id for line in new_lines
        ]
        return {
            owner
            for line, owner in zip(old_lines, old_owners, strict=True)
            if owner and line not in new_lines
        }


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """An edit that was carried out: its call, its file, its changes, and the owners of the lines
    that it replaced."""

    ref: CallRef
    path: str
    changes: tuple[Replacement, ...]
    replaced: frozenset[str]


class EditedFiles:
    """The files of a session, call by call; `states` holds them as they are after the last call."""

    def __init__(self) -> None:
        self.states: dict[str, FileState] = {}
        self.edited: set[str] = set()

    def follow(self, ref: CallRef) -> AppliedEdit | None:
        """Take over what an answered call shows or changes; returns the edit if it was one."""
        assert ref.result is not None
        call, path = ref.call, path_in_call(ref.call)
        if is_error(call, ref.result):
            return None
        command = shell_command(call.name, call.arguments)
        if command is not None and _REWRITES.search(command):
            self.states.clear()
        changes = replacements_of(call)
        if not path or (not changes and call.name not in ("Read", "read")):
            return None
        state = self.states.setdefault(path, FileState())
        replaced: set[str] = set()
        for change in changes:
            owners = state.apply(change, call.id)
            if owners is None:
                state = self.states[path] = FileState()
            replaced |= owners or set()
        for number, text in _shown_lines(ref.result.text):
            state.show(number, text)
        if not changes:
            return None
        self.edited.add(path)
        if any(change.old is not None for change in changes):
            self._claim(state, changes, call.id)
        return AppliedEdit(ref, path, changes, frozenset(replaced))

    @staticmethod
    def _claim(state: FileState, changes: tuple[Replacement, ...], call_id: str) -> None:
        """Own the new lines that only the edit's result showed, where they stand once."""
        for change in changes:
            old = set((change.old or "").split("\n"))
            for line in change.new.split("\n"):
                if line.strip() and line not in old and state.lines.count(line) == 1:
                    at = state.lines.index(line)
                    state.owners[at] = state.owners[at] or call_id


def calls_in_order(session: Session) -> Iterator[CallRef]:
    """The answered calls of a session in the order of their results; calls of one message in the
    order in which they stand there."""
    answered = [
        ref
        for ref in session.calls().values()
        if ref.result is not None and ref.result_turn is not None and ref.result_turn > ref.turn
    ]
    yield from sorted(answered, key=lambda ref: (ref.result_turn or 0, ref.turn))


def path_in_call(call: ToolCall) -> str:
    """The file that a call names, or ""."""
    path = call.arguments.get("file_path") or call.arguments.get("path")
    return path if isinstance(path, str) else ""


def replacements_of(call: ToolCall) -> tuple[Replacement, ...]:
    """The changes that a call asks for; () if it is no edit.

    >>> arguments = {"file_path": "a", "old_string": "x", "new_string": "y"}
    >>> replacements_of(ToolCall("c", "Edit", arguments))
    (Replacement(old='x', new='y', everywhere=False),)
    """
    if call.name in WRITE_TOOLS:
        content = call.arguments.get("content")
        return (Replacement(None, content),) if isinstance(content, str) else ()
    if call.name not in EDIT_TOOLS:
        return ()
    parts = call.arguments.get("edits") if call.name == "MultiEdit" else [call.arguments]
    changes: list[Replacement] = []
    for part in parts if isinstance(parts, list) else []:
        if not isinstance(part, Mapping):
            return ()
        fields: Mapping[str, Any] = part
        old, new = fields.get("old_string"), fields.get("new_string")
        if not isinstance(old, str) or not isinstance(new, str):
            return ()
        changes.append(Replacement(old, new, fields.get("replace_all") is True))
    return tuple(changes)


def _shown_lines(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a result; only runs that count up by one are lines of a file."""
    expected: int | None = None
    for match in _NUMBERED.finditer(text):
        number = int(match[1])
        if number < 1 or number > 100_000 or (expected is not None and number != expected):
            return
        expected = number + 1
        yield number, match[2]
