"""The writer of each kind of mistake, and the writers for calls as such and for users' rules.

A hint is what a careful colleague could have said *before* the call, given the kind of mistake and
the context in view. A writer returns None if the context has nothing useful: a guess would teach
guessing. `WRITERS` maps kinds to writers, `KNOWS` writers to the hindsight that each uses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from composer_replication.core.trace import CLEARED_TEXT, ToolSpec
from composer_replication.data.hints.blame_writers import broke_check
from composer_replication.data.hints.context import SiteContext, Writer
from composer_replication.data.hints.file_writers import (
    edit_multi_match,
    edit_no_change,
    is_directory,
    known_paths,
    read_first,
    reread,
    too_large,
)
from composer_replication.data.hints.persons_writers import (
    PERSON,
    persons_words,
    taken_back_later,
    taken_back_words,
)
from composer_replication.data.hints.rules import rule_for_kind, rule_for_tool
from composer_replication.data.hints.shell_writers import (
    known_refs,
    shell_bad_option,
    shell_missing_path,
    shell_syntax,
    shell_unknown_command,
)
from composer_replication.data.hints.templates import fill, is_from
from composer_replication.data.hints.tool_names import (
    usable_tools,
)
from composer_replication.data.sites.arguments import find_misfit
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.repeats import canonical_arguments
from composer_replication.data.sites.shell_rules import PATH_EXPLORED
from composer_replication.data.sites.tool_errors import strip_tag

MAX_FIELDS = 24
_NO_JSON = re.compile(
    r"not valid JSON|JSON (?:parse|decod)|(?:parse|decode)d? (?:\w+ )?as JSON|malformed"
    r" JSON|invalid JSON|Unexpected token",
    re.IGNORECASE,
)
_LOOK_AROUND = re.compile(r"look-?around|look-?ahead|look-?behind|backreference", re.IGNORECASE)
_BAD_PATTERN = re.compile(
    r"regex parse error|invalid regular expression|unclosed (?:group|character class)",
    re.IGNORECASE,
)
_WRONG_TYPE = re.compile(
    r"parameter [`'\"](?P<name>[\w.]+)[`'\"] type is expected as [`'\"](?P<kind>\w+)[`'\"] but"
    r" provided as [`'\"]\w+"
)
_WRONG_NAMES = re.compile(
    r"unexpected parameter|required parameter|unrecognized key|is missing|\bRequired\b|additional"
    r" propert",
    re.IGNORECASE,
)


def available_tools(context: SiteContext) -> str | None:
    """List the names of the tools on offer."""
    names = [t.name for t in usable_tools(context) if t.name != context.site.tool]
    return fill("available_tools", tools=", ".join(names)) if names else None


def tool_schema(context: SiteContext) -> str | None:
    """List the parameters of the tool; without a schema in the log, the arguments of earlier calls
    that worked."""
    tool = context.site.tool
    spec = logged_schema(context)
    if spec is not None:
        fields = _fields(spec.parameters)
        return fill("tool_schema", tool=tool, fields=fields) if fields else None
    used = arguments_used(context)
    if context.call is not None and set(used) >= context.call.arguments.keys() > set():
        return None  # the names are right: listing them would not help
    return fill("tool_used_before", tool=tool, fields=", ".join(used)) if used else None


def arguments_used(context: SiteContext) -> list[str]:
    """The names of the arguments that calls of the same tool had, if they worked."""
    used: dict[str, None] = {}
    for call, result in context.answered_calls():
        if call.name == context.site.tool and not is_error(call, result):
            used.update(dict.fromkeys(call.arguments))
    return list(used)


def logged_schema(context: SiteContext) -> ToolSpec | None:
    """The mistaken call's tool with its schema, if the log holds it."""
    if context.session.tools_origin != "log":
        return None
    return next((t for t in context.session.tools if t.name == context.site.tool), None)


def bad_arguments(context: SiteContext) -> str | None:
    """Address the reason of the refusal: the form of the call, a pattern, a type, or the names;
    None if the arguments fit the schema."""
    error_text = strip_tag(context.evidence.text) if context.evidence else ""
    call, tool = context.call, context.site.tool
    if _NO_JSON.search(error_text):
        return fill("well_formed_call")
    if _LOOK_AROUND.search(error_text):
        return fill("no_look_around", tool=tool)
    if _BAD_PATTERN.search(error_text):
        return fill("pattern_syntax", tool=tool)
    wrong_type = _WRONG_TYPE.search(error_text)
    if wrong_type and not _WRONG_NAMES.search(error_text):
        return fill("argument_type", tool=tool, name=wrong_type["name"], kind=wrong_type["kind"])
    spec = logged_schema(context)
    if (
        spec is None
        and error_text
        and not _WRONG_NAMES.search(error_text)
        and not re.search(r"due to the following issues?:\s*$", error_text)
    ):
        return None  # a value was refused, not a name
    if spec is not None and call is not None:
        misfit = find_misfit(call.arguments, spec.parameters)
        if (
            not misfit.problem
            and not misfit.unread
            and spec.parameters.get("properties", {}).keys() >= call.arguments.keys()
        ):
            return None
    return tool_schema(context)


def _fields(parameters: Mapping[str, Any]) -> str:
    """Format a schema in short form, e.g. "file_path: string (required), limit: integer"."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return ""
    required = parameters.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parts: list[str] = []
    for name in sorted(properties, key=lambda n: n not in needed)[:MAX_FIELDS]:
        schema = properties[name]
        kind = schema.get("type", "any") if isinstance(schema, Mapping) else "any"
        choices = schema.get("enum") if isinstance(schema, Mapping) else None
        kind = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
        kind = (
            "one of " + "|".join(map(str, choices))
            if isinstance(choices, list) and len(choices) <= 8
            else kind
        )
        parts.append(f"{name}: {kind}" + (" (required)" if name in needed else ""))
    return ", ".join(parts)


def well_formed_call(context: SiteContext) -> str | None:
    """Say how calls are written, in the same words for every unreadable call."""
    return fill("well_formed_call")


def repeated_call(context: SiteContext) -> str | None:
    """Say that the same call is above with its result; None if either is no longer in view."""
    if context.call is None:
        return None
    name, arguments = context.call.name, canonical_arguments(context.call)
    earlier_ids = {
        call.id
        for call, result in context.answered_calls()
        if call.name == name
        and canonical_arguments(call) == arguments
        and result.text != CLEARED_TEXT
        and not is_error(call, result)
    }
    for ago, turn in enumerate(reversed(context.before), 1):
        if any(call.id in earlier_ids for call in turn.calls):
            return fill("repeated_call", ago=str(ago))
    return None


def rules(context: SiteContext) -> str | None:
    """The first of the user's own rules that names the kind of mistake, else the tool."""
    return kind_rule(context) or tool_rule(context)


def kind_rule(context: SiteContext) -> str | None:
    """The first of the user's own rules that names the kind of mistake."""
    return rule_for_kind(context.rules, context.site.kind)


def tool_rule(context: SiteContext) -> str | None:
    """The first of the user's own rules that names the tool."""
    return rule_for_tool(context.rules, context.site.tool)


WRITERS: dict[str, Writer] = {
    "unknown_tool": available_tools,
    "malformed_call": well_formed_call,
    "bad_arguments": bad_arguments,
    "structured_output_invalid": tool_schema,
    "file_missing": known_paths,
    "shell_missing_path": shell_missing_path,
    PATH_EXPLORED: shell_missing_path,
    "is_directory": is_directory,
    "edit_no_match": reread,
    "edit_stale": reread,
    "edit_not_read": read_first,
    "edit_multi_match": edit_multi_match,
    "edit_no_change": edit_no_change,
    "too_large": too_large,
    "repeated_call": repeated_call,
    "shell_syntax": shell_syntax,
    "shell_unknown_command": shell_unknown_command,
    "shell_bad_option": shell_bad_option,
    "shell_unknown_ref": known_refs,
    "broke_check": broke_check,
    "user_rejected": persons_words,
    "user_interrupted": persons_words,
    "user_corrected": persons_words,
    "taken_back": taken_back_words,
    "wasted_call": repeated_call,
}
"""Kind of mistake -> its writer. A kind that is not here gets a hint only from the user's rules."""
KNOWS: dict[Writer, tuple[str, ...]] = {
    available_tools: ("kind", "tools"),
    well_formed_call: ("kind",),
    tool_schema: ("kind", "call", "schema"),
    bad_arguments: ("kind", "error_text", "call", "schema"),
    known_paths: ("kind", "call", "paths_seen"),
    shell_missing_path: ("kind", "error_text", "call", "paths_seen"),
    known_refs: ("kind", "error_text", "refs_seen", "paths_seen"),
    reread: ("kind", "call"),
    read_first: ("kind", "call"),
    edit_multi_match: ("kind", "call"),
    edit_no_change: ("kind", "call"),
    too_large: ("kind", "call"),
    is_directory: ("kind", "call"),
    repeated_call: ("kind", "call"),
    persons_words: ("kind", PERSON),
    taken_back_words: ("kind", PERSON),
    taken_back_later: ("kind", PERSON),
    broke_check: ("kind", "error_text"),
    shell_syntax: ("kind", "error_text"),
    shell_unknown_command: ("kind", "error_text", "commands_seen"),
    shell_bad_option: ("kind", "error_text"),
    rules: ("kind", "call", "rules"),
    kind_rule: ("kind", "rules"),
    tool_rule: ("call", "rules"),
}
"""The hindsight that each writer uses: "kind" = that a mistake of this kind follows; "call" = the
content of the mistaken call (its tool, its file); "error_text" = the subject of the error; the
other values name things that were in view."""


def used_hindsight(writer: Writer, context: SiteContext, *, text: str) -> tuple[str, ...]:
    """Return the hindsight that one hint used: `KNOWS` without the parts that this text did not
    need; ("custom",) for a user's writer.

    A writer takes the file's name from the call, but for a shell from the error, because a command
    line names many things.
    """
    hindsight = KNOWS.get(writer, ("custom",))
    if writer is available_tools and context.session.tools_origin == "reconstructed":
        return ("kind", "tools:reconstructed")
    if writer in (tool_schema, bad_arguments) and is_from(text, "tool_used_before"):
        return ("kind", "call", "calls_seen")
    if writer is bad_arguments:
        return (
            ("kind", "call", "schema")
            if is_from(text, "tool_schema")
            else ("kind", "error_text", "call")
        )
    if writer is taken_back_later and is_from(text, "taken_back"):
        return ("kind", "call")
    if writer is too_large and is_from(text, "too_large_lines"):
        return ("kind", "error_text", "call")
    if is_from(text, "list_folder") or is_from(text, "refused_path") or is_from(text, "list_refs"):
        return ("kind", "call" if context.command is None else "error_text")
    if writer is known_refs and is_from(text, "list_ref"):
        return ("kind", "error_text")
    if writer is shell_missing_path and is_from(text, "make_folder"):
        return ("kind", "error_text", "call")
    if is_from(text, "ran_task"):
        return ("kind", "error_text", "commands_seen")
    if writer is rules:
        return KNOWS[kind_rule if rule_for_kind(context.rules, context.site.kind) else tool_rule]
    names_a_file = writer in (
        known_paths,
        reread,
        read_first,
        edit_multi_match,
        edit_no_change,
        too_large,
        is_directory,
    )
    if names_a_file and context.command is not None:
        return tuple("error_text" if k == "call" else k for k in hindsight)
    return hindsight


BUILT_IN: dict[str, Writer] = {writer.__name__: writer for writer in KNOWS}
"""Built-in writers by name, for `hints.writers`."""
