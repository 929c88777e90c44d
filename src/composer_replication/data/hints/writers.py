"""Template writers, one per kind of mistake.

A hint is what a careful colleague could have said *before* the call, given the kind of mistake and
the context in view. A writer returns None if the context has nothing useful: a guess would teach
guessing. `TEMPLATES` holds the fixed words, `KNOWS` the hindsight that each writer uses.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from composer_replication.core.trace import CLEARED_TEXT, ToolSpec
from composer_replication.data.hints.context import SiteContext, Writer
from composer_replication.data.hints.ran import (
    branches_were_listed,
    closest_names,
    commands_that_worked,
    earlier_run_folder,
    help_was_shown,
    named_commands,
    refs_seen,
    was_refused_before,
    was_run_before,
)
from composer_replication.data.hints.region import region_of
from composer_replication.data.hints.rules import rule_for_kind, rule_for_tool
from composer_replication.data.hints.seen import (
    LISTERS,
    known_paths_near,
    path_argument,
    track_places,
    was_looked_for,
    was_refused,
    was_used,
    wrong_path,
)
from composer_replication.data.hints.tool_names import (
    help_action,
    look_action,
    read_action,
    search_action,
    usable_tools,
)
from composer_replication.data.sites.arguments import find_misfit
from composer_replication.data.sites.call_verdict import is_error, judge
from composer_replication.data.sites.effects import resolve
from composer_replication.data.sites.repeats import canonical_arguments
from composer_replication.data.sites.shell import (
    SHELL_KEYWORDS,
    parse,
)
from composer_replication.data.sites.shell_rules import LOOKERS, PATH_EXPLORED, PATH_STATED
from composer_replication.data.sites.tool_errors import strip_tag

MAX_COMMANDS = 12
MIN_COMMANDS = 3
"""Fewer commands that worked say nothing about another, unless one has a similar name."""
ALIKE_PROGRAM = 0.6
"""Smallest likeness (difflib ratio) of a mistyped program, e.g. `gti` for `git`: its name is
short."""
MAX_FIELDS = 24
_SIZE = re.compile(r"\((\d[\d.,]* ?(?:tokens|[KMG]?B))\)")
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

TEMPLATES: dict[str, str] = {
    "available_tools": "Reminder: available tools: {tools}.",
    "well_formed_call": (
        "Write each tool call as one complete JSON object, in the form in which calls are written"
        " here."
    ),
    "tool_schema": "Reminder: the tool {tool} takes {fields}.",
    "tool_used_before": (
        "Reminder: calls of {tool} that worked in this session used the arguments {fields}."
    ),
    "argument_type": "In a call of {tool} the value of {name} is a plain {kind}.",
    "no_look_around": (
        "Write a pattern of {tool} without groups that look around or refer back: match more, and"
        " pick out of that."
    ),
    "pattern_syntax": (
        "In a pattern of {tool} put a backslash before each bracket, brace or dot that is meant as"
        " it stands."
    ),
    "known_paths": (
        "Paths seen so far that exist: {paths}. Use one of these if it is what is meant; else list"
        " the folder first."
    ),
    "list_folder": "{look} first: list the folder above this path, or search for its name.",
    "refused_path": (
        "{look} first: list the folder above this path, which was refused above already as missing,"
        " or search for its name."
    ),
    "make_folder": (
        "Run `mkdir -p` on the folder of {name} first: a file can only be written into a folder"
        " that exists."
    ),
    "reread": (
        "{read} {when}: copy the old text of the edit from its result exactly, blanks included."
    ),
    "stale": "{read} again before the edit: the file has changed since it was read above.",
    "copy_exactly": (
        "The text to replace in {name} was read above: copy it from that result exactly, blanks"
        " included."
    ),
    "not_applied": (
        "{read} first: an earlier edit of this file failed, so it still holds what stood there"
        " before it."
    ),
    "copy_in_parts": (
        "A character that does not show, or other blanks, may stand in this part of {name}: replace"
        " smaller parts, each copied exactly."
    ),
    "read_first": "{read} first: a file can be edited or overwritten once it has been read.",
    "read_again": (
        "{read} again first: what was read of this file above no longer counts for an edit."
    ),
    "edit_multi_match": (
        "The text you are about to replace stands in {name} more than once: include the lines"
        " around it, or replace all on purpose."
    ),
    "edit_multi_match_all": (
        "The text you are about to replace stands in {name} more than once: include the lines"
        " around it, or give replace_all the value true to replace all on purpose."
    ),
    "edit_no_change": (
        "{read} first and check whether the change is already there: the new text of an edit must"
        " differ from the old text."
    ),
    "too_large": (
        "{search} first, or read only a part of it{part}: the whole file is too large to read at"
        " once."
    ),
    "too_large_part": (
        "{search} first, or read far fewer lines{part}: this much of it is too large."
    ),
    "too_large_lines": (
        "{search} and print only what is needed, or cut it by characters: the file holds few lines,"
        " and long ones, so that fewer lines may not help."
    ),
    "is_directory": "{look} to list the files of {name}: it is a directory.",
    "repeated_call": (
        "Use the result that is in view: this call was made {ago} messages above with the same"
        " arguments, and nothing has changed since."
    ),
    "shell_syntax_open": (
        "Close every quote that the line opens; inside single quotes no single quote can stand."
    ),
    "shell_syntax_quote": (
        "Quote every argument that holds brackets, stars or question marks, so that the shell does"
        " not expand it."
    ),
    "shell_syntax_equals": (
        "Quote a word that begins with an equals sign: zsh takes it for the name of a program."
    ),
    "shell_syntax_substitution": (
        "Keep the command line simple: run assignments, substitutions and pipes as separate"
        " commands, and quote every special character."
    ),
    "shell_syntax_inline": (
        "Put code of more than one line into a here-document with a quoted delimiter or into a"
        " file; check its syntax before running it."
    ),
    "shell_syntax_program": (
        "Put the expression in single quotes, without backslashes before characters that need none,"
        " and check its syntax."
    ),
    "shell_syntax_expression": (
        "Check the syntax of the expression, and that no character in it has a backslash that it"
        " does not need."
    ),
    "shell_unknown_command": (
        "Use the commands that worked so far: {commands}. Run `command -v` before any other."
    ),
    "ran_in": (
        "Run `cd {folder}` first: the program that this line needs ran there before, in the same"
        " way, and the project has it there."
    ),
    "ran_task": (
        "Run `cd {folder}` first: this task ran there before, where the project defines it."
    ),
    "shell_keyword": (
        "A keyword of the shell comes first in its command, and assignments behind it."
    ),
    "shell_bad_option": "{help} first: use only options and subcommands that it lists.",
    "shell_help_shown": (
        "The help of this program stands above: use only options and subcommands that it lists."
    ),
    "shell_refused_above": (
        "An option or subcommand of this call was refused above already.{help} Use only those that"
        " the program's help lists."
    ),
    "shell_usage": "{help} first: it says how many arguments the program takes.",
    "shell_task": "List the tasks or scripts that the project defines before running one.",
    "shell_query": (
        "Check the schema of the interface before the query: use only fields and arguments that it"
        " has."
    ),
    "list_ref": (
        "Run `git ls-tree --name-only` on the branch or commit first: it lists the files to show."
    ),
    "known_refs": "Branches seen so far: {refs}.",
    "list_refs": "Run `git branch --all` first: it lists the branches by name.",
    "rules": "{rule}",
}


def _fill(template: str, **values: str) -> str:
    return TEMPLATES[template].format(**values)


def available_tools(context: SiteContext) -> str | None:
    """List the names of the tools on offer."""
    names = [t.name for t in usable_tools(context) if t.name != context.site.tool]
    return _fill("available_tools", tools=", ".join(names)) if names else None


def tool_schema(context: SiteContext) -> str | None:
    """List the parameters of the tool; without a schema in the log, the arguments of earlier calls
    that worked."""
    tool = context.site.tool
    spec = logged_schema(context)
    if spec is not None:
        fields = _fields(spec.parameters)
        return _fill("tool_schema", tool=tool, fields=fields) if fields else None
    used = arguments_used(context)
    if context.call is not None and set(used) >= context.call.arguments.keys() > set():
        return None  # the names are right: listing them would not help
    return _fill("tool_used_before", tool=tool, fields=", ".join(used)) if used else None


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
        return _fill("well_formed_call")
    if _LOOK_AROUND.search(error_text):
        return _fill("no_look_around", tool=tool)
    if _BAD_PATTERN.search(error_text):
        return _fill("pattern_syntax", tool=tool)
    wrong_type = _WRONG_TYPE.search(error_text)
    if wrong_type and not _WRONG_NAMES.search(error_text):
        return _fill("argument_type", tool=tool, name=wrong_type["name"], kind=wrong_type["kind"])
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
    return _fill("well_formed_call")


def known_paths(context: SiteContext) -> str | None:
    """List the known paths that are nearest to the wrong one by name; if there are none, advise to
    look.

    The hint does not name the folder of the shell: a restarted shell is in another folder, and no
    message says so.
    """
    paths, wrong = known_paths_near(context), wrong_path(context).removeprefix("./").rstrip("/")
    if paths:
        same = [path for path in paths if "/" in wrong and path.rstrip("/").endswith(f"/{wrong}")]
        return _fill("known_paths", paths=", ".join(same or paths))
    if (
        context.site.kind not in PATH_STATED
        or _is_search(context)
        or was_looked_for(context)
        or was_used(context)
    ):
        return None
    look = look_action(context)
    return (
        _fill("refused_path", look=look)
        if was_refused(context)
        else _fill("list_folder", look=look)
    )


def _is_search(context: SiteContext) -> bool:
    """Whether the mistaken call was itself a listing or a search, or its subject is not a path, so
    that the advice to list first would not help."""
    error_text = context.evidence.text if context.evidence else ""
    if (
        context.call is None
        or "..." in wrong_path(context)
        or "does not contain package" in error_text
        or _is_drive(context)
    ):
        return True
    if context.command is None:
        return context.call.name in LISTERS
    return bool(parse(context.command).names & (LOOKERS | {"fd"}))


def _is_drive(context: SiteContext) -> bool:
    """Whether the path names a drive as a Unix shell on Windows does (`/d/x`): it exists, but
    Windows programs cannot find it."""
    return bool(
        re.match(r"[A-Za-z]:[\\/]", context.session.cwd)
        and re.match(r"/[a-z]/", wrong_path(context))
    )


def shell_missing_path(context: SiteContext) -> str | None:
    """List known paths; if a redirection failed, the folder is missing, and the hint says that."""
    command = context.command
    if command is not None and any(context.subject in s.redirects for s in parse(command).simple):
        return _fill("make_folder", name=_name(context))
    return known_paths(context)


def _name(context: SiteContext) -> str:
    name = posixpath.basename(wrong_path(context).rstrip("/"))
    return f"`{name}`" if name else "the file"


def _read(context: SiteContext) -> str:
    return read_action(context, _name(context))


def _parameters(context: SiteContext) -> set[str]:
    """The parameters of the tool: those of its schema, and those of the call."""
    spec = next((t for t in context.session.tools if t.name == context.site.tool), None)
    known = spec.parameters.get("properties", {}) if spec is not None else {}
    return {*known, *(context.call.arguments if context.call is not None else ())}


def _was_read(context: SiteContext) -> bool:
    """Whether a file tool has read or edited the file in view."""
    return resolve(wrong_path(context), context.session.cwd) in track_places(context).read


def reread(context: SiteContext) -> str | None:
    """Advise to read the region again before editing or, if it is in view and unchanged, to copy it
    from there."""
    read = _read(context)
    if context.site.kind == "edit_stale" and _was_read(context):
        return _fill("stale", read=read)
    region = region_of(context)
    if context.site.kind == "edit_no_match" and region.edit_not_applied:
        return _fill("not_applied", read=read)
    if context.site.kind == "edit_no_match" and region.can_be_copied:
        if region.has_odd_character or region.edit_failed:
            return _fill("copy_in_parts", name=_name(context))
        return _fill("copy_exactly", name=_name(context))
    return _fill("reread", read=read, when="again" if region.was_shown else "first")


def read_first(context: SiteContext) -> str | None:
    """Remind that a file must be read before an edit; if it was read above, that this no longer
    counts."""
    return (
        _fill("read_again", read=_read(context))
        if _was_read(context)
        else _fill("read_first", read=_read(context))
    )


def edit_multi_match(context: SiteContext) -> str | None:
    """Advise to include more lines, or to replace all occurrences."""
    if "replace_all" in _parameters(context):
        return _fill("edit_multi_match_all", name=_name(context))
    return _fill("edit_multi_match", name=_name(context))


def edit_no_change(context: SiteContext) -> str | None:
    """Remind that the old and the new text must differ."""
    return _fill("edit_no_change", read=_read(context))


def too_large(context: SiteContext) -> str | None:
    """Advise to read a smaller part; if fewer lines gave the same size, the lines are too long."""
    is_partial = context.call is not None and bool(
        {"limit", "offset", "pages"} & context.call.arguments.keys()
    )
    search = search_action(context, _name(context))
    size = _SIZE.search(context.evidence.text) if context.evidence else None
    if is_partial and size and size[1] in _refused_sizes(context):
        return _fill("too_large_lines", search=search)
    part = ", with offset and limit" if {"offset", "limit"} <= _parameters(context) else ""
    if is_partial:
        return _fill("too_large_part", search=search, part=part)
    return _fill("too_large", search=search, part=part)


def _refused_sizes(context: SiteContext) -> Iterator[str]:
    """Yield the sizes for which other reads of the file were refused in view."""
    assert context.call is not None
    for call, result in context.answered_calls():
        same_file = path_argument(call) == wrong_path(context) and canonical_arguments(
            call
        ) != canonical_arguments(context.call)
        if same_file and is_error(call, result) and (size := _SIZE.search(result.text)):
            yield size[1]


def is_directory(context: SiteContext) -> str | None:
    """Advise to list the directory instead of reading it."""
    return _fill("is_directory", name=_name(context), look=look_action(context))


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
            return _fill("repeated_call", ago=str(ago))
    return None


def shell_syntax(context: SiteContext) -> str | None:
    """Give one sentence on quoting or syntax, chosen by the message of the shell or program."""
    if context.call is None or context.evidence is None:
        return None
    detail = judge(context.call, context.evidence).detail
    if "no matches found" in detail:
        return _fill("shell_syntax_quote")
    if re.search(
        r"EOF while looking for matching [`'\"]{2}|unmatched ['\"]|Unterminated quoted string",
        detail,
        re.IGNORECASE,
    ):
        return _fill("shell_syntax_open")
    if re.search(r": =\S* not found$", detail):
        return _fill("shell_syntax_equals")
    if (near := re.search(r"parse error near [`'](\w+)'", detail)) and near.group(
        1
    ) in SHELL_KEYWORDS:
        return _fill("shell_keyword")
    command = context.command or ""
    if re.match(r"(?:Syntax|Indentation|Tab)Error", detail):
        return None if re.search(r"<<-?\s*['\"\\]", command) else _fill("shell_syntax_inline")
    if re.match(r"(?:jq|g?awk|sed|[ef]?grep|rg|fd): ?|failed to parse jq", detail):
        return _fill("shell_syntax_expression") if "'" in command else _fill("shell_syntax_program")
    return _fill("shell_syntax_substitution")


def shell_unknown_command(context: SiteContext) -> str | None:
    """List the commands that have worked; the missing one is not named, because naming it would
    make it likelier."""
    if context.subject in SHELL_KEYWORDS:
        return _fill("shell_keyword")
    if (folder := earlier_run_folder(context, context.subject)) is not None:
        return _fill("ran_in", folder=folder)
    if context.evidence and re.search(r"No module named ", context.evidence.text):
        return None  # programs that work say nothing about Python modules
    worked = [c for c in commands_that_worked(context) if c != context.subject][:MAX_COMMANDS]
    is_telling = len(worked) >= MIN_COMMANDS or bool(
        closest_names(context.subject, worked, cutoff=ALIKE_PROGRAM)
    )
    return (
        _fill("shell_unknown_command", commands=", ".join(worked))
        if is_telling and context.subject
        else None
    )


def shell_bad_option(context: SiteContext) -> str | None:
    """Advise to read the help; the wrong option is not named, because naming it would make it
    likelier."""
    error_text = context.evidence.text if context.evidence else ""
    if re.search(r"\bgh: Field '", error_text):
        return _fill("shell_query")
    if re.search(
        r"[Mm]issing script|Script not found|No rule to make target|no tasks? .* found|^error"
        r" Command|\(Mix\) The task",
        error_text,
        re.MULTILINE,
    ):
        folder = earlier_run_folder(context, context.subject)
        if folder is None and was_run_before(context, context.subject):
            return None  # the project defines it, but in an unknown folder
        return _fill("ran_task", folder=folder) if folder else _fill("shell_task")
    if re.search(r"^accepts .*arg\(s\)", error_text, re.MULTILINE):
        return _fill("shell_usage", help=_help(context))
    command = context.command
    usage = re.search(r"^[Uu]sage: (\S+)", error_text, re.MULTILINE)
    if (
        command is not None
        and usage
        and usage[1] not in parse(command).names
        and not parse(command).mentions(usage[1])
    ):
        return None  # a program in between refused it, which the line does not name
    if command is not None and was_refused_before(context):
        line = help_action(context)
        return _fill("shell_refused_above", help=f" {line} first." if line else "")
    if command is not None and any(
        help_was_shown(context, simple) for simple in named_commands(parse(command), error_text)
    ):
        return _fill("shell_help_shown")
    return _fill("shell_bad_option", help=_help(context))


def _help(context: SiteContext) -> str:
    return help_action(context) or "Check this program's help"


def known_refs(context: SiteContext) -> str | None:
    """List the known branches nearest to the unknown one; known paths if it looks like a path; the
    advice to list for a file of a branch."""
    if context.evidence and re.search(
        r"path '[^'\n]+' (?:does not exist in|exists on disk, but not in)", context.evidence.text
    ):
        return _fill("list_ref")
    if "." in posixpath.basename(context.subject):
        return known_paths(context) if known_paths_near(context) else None
    near = closest_names(context.subject, [r for r in refs_seen(context) if r != context.subject])
    if near:
        return _fill("known_refs", refs=", ".join(near))
    paths = known_paths_near(context)
    if paths:
        return _fill("known_paths", paths=", ".join(paths))
    return (
        None if branches_were_listed(context) or not is_ref_wanted(context) else _fill("list_refs")
    )


def is_ref_wanted(context: SiteContext) -> bool:
    """Whether git looked for a branch or commit only; a `pathspec` may also be a file."""
    error_text = context.evidence.text if context.evidence else ""
    return bool(
        re.search(
            r"invalid reference|bad revision|not something we can merge|couldn't find remote"
            r" ref|src refspec",
            error_text,
        )
    )


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
    if writer in (tool_schema, bad_arguments) and _is_from(text, "tool_used_before"):
        return ("kind", "call", "calls_seen")
    if writer is bad_arguments:
        return (
            ("kind", "call", "schema")
            if _is_from(text, "tool_schema")
            else ("kind", "error_text", "call")
        )
    if writer is too_large and _is_from(text, "too_large_lines"):
        return ("kind", "error_text", "call")
    if (
        _is_from(text, "list_folder")
        or _is_from(text, "refused_path")
        or _is_from(text, "list_refs")
    ):
        return ("kind", "call" if context.command is None else "error_text")
    if writer is known_refs and _is_from(text, "list_ref"):
        return ("kind", "error_text")
    if writer is shell_missing_path and _is_from(text, "make_folder"):
        return ("kind", "error_text", "call")
    if _is_from(text, "ran_task"):
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


def template_of(text: str) -> str:
    """The name of the template that a hint was written from; "" if from none, as a user's own rule.

    >>> template_of("Run `cd /w/web` first: this task ran there before, where the project defines"
    ... " it.")
    'ran_task'
    """
    return next((name for name in TEMPLATES if name != "rules" and _is_from(text, name)), "")


def _is_from(text: str, template: str) -> bool:
    fixed = map(re.escape, re.split(r"\{\w+\}", TEMPLATES[template]))
    return re.fullmatch(".*".join(fixed), text, re.DOTALL) is not None


BUILT_IN: dict[str, Writer] = {writer.__name__: writer for writer in KNOWS}
"""Built-in writers by name, for `hints.writers`."""
