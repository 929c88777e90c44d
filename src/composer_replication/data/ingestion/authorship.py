"""Who wrote a user message: the human, or the agent program.

Half of the messages that a log calls "user" were typed by nobody: the output of slash commands,
reminders, notices of an interrupt, the summary after a compaction. The role does not tell them
apart; author and tag do.
"""

from __future__ import annotations

from typing import NamedTuple

from composer_replication.core.trace import HARNESS, HUMAN, INTERRUPT_PREFIX


class Authorship(NamedTuple):
    """The author and the tag of a text, e.g. Authorship("harness", "command")."""

    author: str
    tag: str


_BY_HUMAN = Authorship(HUMAN, "")
_PREFIXES: tuple[tuple[str, str], ...] = (
    (INTERRUPT_PREFIX, "interrupt"),
    ("<command-", "command"),
    ("<local-command-caveat>", "caveat"),
    ("<local-command-", "command"),
    ("<bash-", "bash"),
    ("<task-notification>", "task_notification"),
    ("<system-reminder>", "reminder"),
    ("<user-prompt-submit-hook>", "hook"),
    ("<session-start-hook>", "hook"),
    ("<teammate-message", "teammate"),
    ("Caveat: The messages below", "caveat"),
    ("This session is being continued from a previous conversation", "compact_summary"),
)


def authorship(text: str, *, is_meta: bool = False, is_summary: bool = False) -> Authorship:
    """Tell the author and the tag of a user text.

    >>> authorship("Fix the failing test"), authorship("<command-name>/clear</command-name>")
    (Authorship(author='human', tag=''), Authorship(author='harness', tag='command'))
    """
    if is_summary:
        return Authorship(HARNESS, "compact_summary")
    start = text[:80].lstrip()
    if start and start[0] in "[<CT":
        for prefix, tag in _PREFIXES:
            if start.startswith(prefix):
                return Authorship(HARNESS, tag)
    return Authorship(HARNESS, "meta") if is_meta else _BY_HUMAN
