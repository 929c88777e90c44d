"""The session's own tools by what they do, so that a hint names the right action literally: "Call
Read on `app.py` first", with the name that the tool has in this session.

A model follows a name that it reads: naming the right tool raises it at the decision, a description
("the file-reading tool") does not.
"""

from __future__ import annotations

from collections.abc import Collection

from composer_replication.core.trace import ToolSpec
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.ran import help_line, list_tasks_line
from composer_replication.data.hints.seen import LISTERS, READERS
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.shell import SHELL_TOOLS, parse

SEARCH_TOOLS = frozenset(("Grep", "grep", "search", "search_files", "grep_search"))


def usable_tools(context: SiteContext) -> tuple[ToolSpec, ...]:
    """The tools on offer; of a list inferred from calls, only those of which a call has worked."""
    session = context.session
    if session.tools_origin != "reconstructed":
        return session.tools
    worked = {
        ref.call.name
        for ref in context.calls.values()
        if ref.result is not None and not is_error(ref.call, ref.result)
    }
    return tuple(t for t in session.tools if t.name in worked)


def read_action(context: SiteContext, name: str) -> str:
    """The words for reading a file with this session's tool, e.g. "Call Read on `app.py`"."""
    reader = _first(context, READERS)
    return f"Call {reader} on {name}" if reader else f"Read {name}"


def look_action(context: SiteContext) -> str:
    """The words for listing folders with this session's tools, e.g. "Call Glob"."""
    if lister := _first(context, LISTERS):
        return f"Call {lister}"
    shell = _first(context, SHELL_TOOLS)
    return f"Call {shell} with `ls` or `find`" if shell else "Look around"


def search_action(context: SiteContext, name: str) -> str:
    """The words for searching in a file with this session's tools, e.g. "Call Grep on `app.py`"."""
    searcher = _first(context, SEARCH_TOOLS)
    if searcher:
        return f"Call {searcher} on {name}"
    shell = _first(context, SHELL_TOOLS)
    return f"Call {shell} with `grep` on {name}" if shell else f"Search in {name}"


def help_action(context: SiteContext) -> str:
    """The words for reading the help of the program that refused the call, e.g. "Run `gh pr
    --help`"; "" if the line names no program with a help of its own."""
    line = help_line(context)
    return f"Run `{line}`" if line else ""


def list_tasks_action(context: SiteContext) -> str:
    """The words for listing the tasks among which the mistaken call looked for one, e.g. "Run `npm
    run`" or "Call Read on the makefile"; "" if the runner is not known."""
    line = list_tasks_line(context)
    if line:
        return f"Run `{line}`"
    is_make = context.command is not None and "make" in parse(context.command).names
    return read_action(context, "the makefile") if is_make else ""


def tools_named(context: SiteContext, names: Collection[str]) -> list[str]:
    """The tools on offer with one of these names, in a log without a list of tools those that have
    worked in view."""
    known = (
        [t.name for t in usable_tools(context)]
        if context.session.tools
        else (call.name for call, result in context.answered_calls() if not is_error(call, result))
    )
    return list(dict.fromkeys(name for name in known if name in names))


def _first(context: SiteContext, names: Collection[str]) -> str:
    return next(iter(tools_named(context, names)), "")
