"""Whether the context shows the text that an edit is to replace, and what has changed the file
since."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from composer_replication.core.trace import ToolCall
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.seen import READERS, path_argument, wrong_path
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.repeats import only_reads
from composer_replication.data.sites.shell import shell_command

MIN_LINE = 6
"""A shorter line of an edit (a brace, `return`) occurs anywhere and does not identify the
region."""
# Commands that may change a file without naming it: formatters, and git if it changes files.
_REWRITES = re.compile(
    r"fmt|format|fix\b|prettier|\bblack\b|\bpatch\b"
    r"|\bgit (?:-C \S+"
    r" )?(?:checkout|switch|pull|merge|rebase|stash|reset|restore|apply|cherry-pick|revert)"
)
_NUMBERED = re.compile(r"^(?:\S+:)?\s*\d+(?:→|\t|[:-])")


@dataclass(slots=True)
class Region:
    """The lines that an edit is to replace, in the context above it.

    `is_shown`: shown, and the file is unchanged since; `was_shown`: shown at all.
    `has_odd_character`: they contain an invisible character; `has_other_blanks`: their blanks
    differ from the edit's. `edit_failed`: an edit of them failed while they were shown;
    `edit_not_applied`: they are the new text of an edit that failed.
    """

    is_shown: bool = False
    was_shown: bool = False
    has_odd_character: bool = False
    has_other_blanks: bool = False
    edit_failed: bool = False
    edit_not_applied: bool = False

    @property
    def can_be_copied(self) -> bool:
        """Whether the next edit can copy what is shown, without another read."""
        return (
            self.is_shown
            and not self.edit_not_applied
            and (self.has_odd_character or self.has_other_blanks or not self.edit_failed)
        )


def region_of(context: SiteContext) -> Region:
    """Follow the calls before the site: what they show of the text to replace, and what changes the
    file."""
    old = _lines_of(_old_text(context.call))
    name, region = posixpath.basename(wrong_path(context)), Region()
    visible_lines: dict[str, set[str]] = {}
    for call, result in context.answered_calls():
        command = shell_command(call.name, call.arguments)
        failed, changed = is_error(call, result), False
        if posixpath.basename(path_argument(call)) == name or (
            command is not None and name in command and only_reads(call)
        ):
            if call.name in READERS or only_reads(call):
                for line in result.text.splitlines():
                    for key, as_read in _lines_of(_NUMBERED.sub("", line)).items():
                        visible_lines.setdefault(key, set()).update(as_read)
                region.was_shown |= bool(old.keys() & visible_lines.keys())
            elif not failed:
                changed = True
            else:
                new = _lines_of(_text_of(call, "new")).keys() - _lines_of(_old_text(call)).keys()
                region.edit_not_applied |= bool(old.keys() & new - visible_lines.keys())
                region.edit_failed |= judge(call, result).kind == "edit_no_match" and bool(
                    old.keys() & visible_lines.keys() & _lines_of(_old_text(call)).keys()
                )
        elif command is not None and not only_reads(call):
            changed = name in command or bool(_REWRITES.search(command))
        if changed:  # the lines shown so far may be stale
            visible_lines.clear()
            region.edit_failed = region.edit_not_applied = False
    shown_lines = old.keys() & visible_lines.keys()
    region.is_shown = bool(shown_lines)
    region.has_odd_character = any(
        _is_odd(line) for key in shown_lines for line in visible_lines[key]
    )
    region.has_other_blanks = any(not old[key] <= visible_lines[key] for key in shown_lines)
    return region


def edit_argument(call: ToolCall, which: Literal["old", "new"]) -> str | None:
    """The name of the argument that holds the old or the new text of an edit."""
    names = (f"{which}_string", f"{which}_str", f"{which}_text")
    return next((name for name in names if isinstance(call.arguments.get(name), str)), None)


def _old_text(call: ToolCall | None) -> str:
    return _text_of(call, "old") if call is not None else ""


def _text_of(call: ToolCall, which: Literal["old", "new"]) -> str:
    """The old or the new text of an edit."""
    name = edit_argument(call, which)
    return call.arguments[name] if name is not None else ""


def _lines_of(text: str) -> dict[str, set[str]]:
    """Map the printable characters of each line, without blanks, to the lines themselves: a copy
    that differs only in blanks or invisible characters is the same line."""
    lines: dict[str, set[str]] = {}
    for line in text.splitlines():
        visible = "".join(c for c in line if c.isprintable() and not c.isspace())
        if len(visible) >= MIN_LINE:
            lines.setdefault(visible, set()).add(line)
    return lines


def _is_odd(line: str) -> bool:
    """Whether a line contains an invisible character other than a blank, e.g. U+009B."""
    return any(unicodedata.category(c) in ("Cc", "Cf", "Co") and c != "\t" for c in line)
