"""What a mistaken call got wrong, and what would have been right there: a table by kind of mistake.

    decision_of(context)
    -> Decision(part="tool", wrong="Edit", right=("Read",))    # edit_not_read: read the file first

The right side comes only from what a hint may use: the tools on offer and their schemas, the paths,
programs and branches in view. Where these do not say what would have been right, `right` is empty
and the part alone is known. The hint channel can be narrowed to this part (train.hint.focus), and
the audit measures the log-odds of right against wrong in it (evaluation/decision_lift.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from composer_replication.core.site import Decision
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.ran import closest_names, commands_that_worked, refs_seen
from composer_replication.data.hints.region import edit_argument, region_of
from composer_replication.data.hints.seen import (
    LISTERS,
    PATH_KEYS,
    READERS,
    known_paths_near,
)
from composer_replication.data.hints.tool_names import SEARCH_TOOLS, usable_tools
from composer_replication.data.hints.writers import ALIKE_PROGRAM, arguments_used, logged_schema
from composer_replication.data.sites.shell import shell_command
from composer_replication.data.sites.shell_rules import PATH_EXPLORED, PATH_STATED

_PARTIAL = ("limit", "offset")
_CALL = Decision(part="call")


def decision_of(context: SiteContext) -> Decision | None:
    """The part of the mistaken call that was wrong; None if the site names no call."""
    if context.call is None:
        return None
    rule = _ANY_CALL.get(context.site.kind)
    if rule is not None:
        return rule(context)
    if context.command is not None:
        return _in_command(context)
    return _TOOL_CALL.get(context.site.kind, _whole_call)(context)


def _whole_call(context: SiteContext) -> Decision:
    return _CALL


def _tool(context: SiteContext, right: Iterable[str]) -> Decision:
    """The tool itself was wrong."""
    assert context.call is not None
    wrong = context.call.name
    return Decision(
        part="tool", wrong=wrong, right=tuple(name for name in right if name and name != wrong)
    )


def _offered(context: SiteContext, wanted: Callable[[str], bool]) -> list[str]:
    return [tool.name for tool in usable_tools(context) if wanted(tool.name)]


def _unknown_tool(context: SiteContext) -> Decision:
    return _tool(context, _offered(context, lambda name: True))


def _read_first(context: SiteContext) -> Decision:
    return _tool(context, _offered(context, READERS.__contains__))


def _list_folder(context: SiteContext) -> Decision:
    """A tool that lists files; if none is on offer, a shell."""
    listers = _offered(context, LISTERS.__contains__)
    shells = _offered(context, lambda name: shell_command(name, {"command": "ls"}) is not None)
    return _tool(context, listers or shells)


def _path(context: SiteContext) -> Decision:
    """A known path in place of the wrong one; without one, a tool that lists the folder."""
    assert context.call is not None
    arguments = context.call.arguments
    key = next((key for key in PATH_KEYS if isinstance(arguments.get(key), str)), None)
    if key is None:
        return _CALL
    wrong = arguments[key]
    if paths := [path for path in known_paths_near(context) if path != wrong]:
        return Decision(part="value", argument=key, right=tuple(paths))
    listing = _list_folder(context) if context.call.name not in LISTERS else _CALL
    return listing if listing.right else Decision(part="value", argument=key)


def _too_large(context: SiteContext) -> Decision:
    """A part of the file, or a search in it."""
    assert context.call is not None
    schema = next((t for t in usable_tools(context) if t.name == context.call.name), None)
    properties = _properties(schema.parameters) if schema is not None else {}
    if not set(_PARTIAL) & context.call.arguments.keys() and (
        partial := tuple(name for name in _PARTIAL if name in properties)
    ):
        return Decision(part="argument", right=partial)
    return _tool(context, _offered(context, SEARCH_TOOLS.__contains__))


def _arguments(context: SiteContext) -> Decision:
    """The name of an argument, the missing one, or a value that is none of those allowed."""
    assert context.call is not None
    spec, arguments = logged_schema(context), context.call.arguments
    if spec is None:
        known = arguments_used(context)
        extra = [name for name in arguments if name not in known] if known else []
        unused = tuple(name for name in known if name not in arguments)
        return Decision(part="argument", wrong=extra[0], right=unused) if extra else _CALL
    properties = _properties(spec.parameters)
    required = spec.parameters.get("required")
    extra = [name for name in arguments if name not in properties] if properties else []
    missing = tuple(
        name
        for name in (required if isinstance(required, list) else ())
        if isinstance(name, str) and name not in arguments
    )
    if extra:
        unused = tuple(name for name in properties if name not in arguments)
        return Decision(part="argument", wrong=extra[0], right=missing or unused)
    if missing:
        return Decision(part="argument", right=missing)
    for name, value in arguments.items():
        choices = properties[name].get("enum") if isinstance(properties[name], Mapping) else None
        if isinstance(choices, list) and isinstance(value, str) and value not in choices:
            right = tuple(choice for choice in choices if isinstance(choice, str))
            return Decision(part="value", argument=name, right=right)
    return _CALL


def _properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = parameters.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _edit_text(which: Literal["old", "new"]) -> Callable[[SiteContext], Decision]:
    """The old or the new text of an edit; what would be right there is not known."""

    def rule(context: SiteContext) -> Decision:
        assert context.call is not None
        name = edit_argument(context.call, which)
        return _CALL if name is None else Decision(part="value", argument=name)

    return rule


def _other_text(context: SiteContext) -> Decision:
    """Reading again; where the text to replace is in view, the copy of it was wrong, not the tool.

    The hint advises the same (writers.reread).
    """
    if region_of(context).can_be_copied:
        return _edit_text("old")(context)
    return _read_first(context)


def _in_command(context: SiteContext) -> Decision:
    """The path, program, option or ref of a command line that the error names."""
    assert context.call is not None and context.command is not None
    command, subject, kind = context.command, context.subject, context.site.kind
    key = next((key for key, value in context.call.arguments.items() if value == command), None)
    if key is None:
        return _CALL
    if not subject or subject not in command:
        return Decision(part="value", argument=key)
    right: list[str] = []
    if kind in PATH_STATED or kind == PATH_EXPLORED:
        right = known_paths_near(context)
    elif kind == "shell_unknown_command":
        worked = commands_that_worked(context)
        right = closest_names(subject, worked, cutoff=ALIKE_PROGRAM)
    elif kind == "shell_unknown_ref":
        right = closest_names(subject, refs_seen(context)) or known_paths_near(context)
    return Decision(
        part="value",
        wrong=subject,
        argument=key,
        right=tuple(text for text in right if text != subject),
    )


_Rule = Callable[[SiteContext], Decision]
_ANY_CALL: dict[str, _Rule] = {
    "unknown_tool": _unknown_tool,
    "bad_arguments": _arguments,
    "structured_output_invalid": _arguments,
    "malformed_call": _whole_call,
    "repeated_call": _whole_call,
}
_TOOL_CALL: dict[str, _Rule] = {
    "edit_not_read": _read_first,
    "edit_stale": _read_first,
    "edit_no_match": _other_text,
    "edit_multi_match": _edit_text("old"),
    "edit_no_change": _edit_text("new"),
    "file_missing": _path,
    PATH_EXPLORED: _path,
    "is_directory": _list_folder,
    "too_large": _too_large,
}
