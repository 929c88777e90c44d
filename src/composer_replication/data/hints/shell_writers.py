"""Template writers for mistakes on a command line: syntax, programs, options, branches."""

from __future__ import annotations

import posixpath
import re

from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.file_writers import file_name, known_paths
from composer_replication.data.hints.ran import (
    branches_shown,
    branches_were_listed,
    closest_names,
    commands_that_worked,
    earlier_run_folder,
    help_was_shown,
    named_commands,
    was_refused_before,
    was_run_before,
)
from composer_replication.data.hints.seen import (
    known_paths_near,
)
from composer_replication.data.hints.templates import fill
from composer_replication.data.hints.tool_names import (
    help_action,
    list_tasks_action,
)
from composer_replication.data.sites.call_verdict import judge
from composer_replication.data.sites.shell import (
    SHELL_KEYWORDS,
    parse,
)

MAX_COMMANDS = 12
MIN_COMMANDS = 3
"""Fewer commands that worked say nothing about another, unless one has a similar name."""
ALIKE_PROGRAM = 0.6
"""Smallest likeness (difflib ratio) of a mistyped program, e.g. `gti` for `git`: its name is
short."""


def shell_missing_path(context: SiteContext) -> str | None:
    """List known paths; if a redirection failed, the folder is missing, and the hint says that."""
    command = context.command
    if command is not None and any(context.subject in s.redirects for s in parse(command).simple):
        return fill("make_folder", name=file_name(context))
    return known_paths(context)


def shell_syntax(context: SiteContext) -> str | None:
    """Give one sentence on quoting or syntax, chosen by the message of the shell or program."""
    if context.call is None or context.evidence is None:
        return None
    detail = judge(context.call, context.evidence).detail
    if "no matches found" in detail:
        return fill("shell_syntax_quote")
    if re.search(
        r"EOF while looking for matching [`'\"]{2}|unmatched ['\"]|Unterminated quoted string",
        detail,
        re.IGNORECASE,
    ):
        return fill("shell_syntax_open")
    if re.search(r": =\S* not found$", detail):
        return fill("shell_syntax_equals")
    if (near := re.search(r"parse error near [`'](\w+)'", detail)) and near.group(
        1
    ) in SHELL_KEYWORDS:
        return fill("shell_keyword")
    command = context.command or ""
    if re.match(r"(?:Syntax|Indentation|Tab)Error", detail):
        return None if re.search(r"<<-?\s*['\"\\]", command) else fill("shell_syntax_inline")
    if re.match(r"(?:jq|g?awk|sed|[ef]?grep|rg|fd): ?|failed to parse jq", detail):
        return fill("shell_syntax_expression") if "'" in command else fill("shell_syntax_program")
    return fill("shell_syntax_substitution")


def shell_unknown_command(context: SiteContext) -> str | None:
    """List the commands that have worked; the missing one is not named, because naming it would
    make it likelier."""
    if context.subject in SHELL_KEYWORDS:
        return fill("shell_keyword")
    if (folder := earlier_run_folder(context, context.subject)) is not None:
        return fill("ran_in", folder=folder)
    if context.evidence and re.search(r"No module named ", context.evidence.text):
        return None  # programs that work say nothing about Python modules
    worked = [c for c in commands_that_worked(context) if c != context.subject][:MAX_COMMANDS]
    is_telling = len(worked) >= MIN_COMMANDS or bool(
        closest_names(context.subject, worked, cutoff=ALIKE_PROGRAM)
    )
    return (
        fill("shell_unknown_command", commands=", ".join(worked))
        if is_telling and context.subject
        else None
    )


def shell_bad_option(context: SiteContext) -> str | None:
    """Advise to read the help; the wrong option is not named, because naming it would make it
    likelier."""
    error_text = context.evidence.text if context.evidence else ""
    if re.search(r"\bgh: Field '", error_text):
        return fill("shell_query")
    if re.search(
        r"[Mm]issing script|Script not found|No rule to make target|no tasks? .* found"
        r"|^(?:error|.*ERR_PNPM_\w+ +) ?Command|find a script named|\(Mix\) The task",
        error_text,
        re.MULTILINE,
    ):
        folder = earlier_run_folder(context, context.subject)
        if folder is None and was_run_before(context, context.subject):
            return None  # the project defines it, but in an unknown folder
        return _run_task(context, folder)
    if re.search(r"^accepts .*arg\(s\)", error_text, re.MULTILINE):
        return fill("shell_usage", help=_help(context))
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
        return fill("shell_refused_above", help=f" {line} first." if line else "")
    if command is not None and any(
        help_was_shown(context, simple) for simple in named_commands(parse(command), error_text)
    ):
        return fill("shell_help_shown")
    return fill("shell_bad_option", help=_help(context))


def _run_task(context: SiteContext, folder: str | None) -> str:
    """Advise the folder in which the task ran; else to list the tasks."""
    if folder:
        return fill("ran_task", folder=folder)
    return fill("shell_task", list=list_tasks_action(context) or "List the tasks or scripts")


def _help(context: SiteContext) -> str:
    return help_action(context) or "Check this program's help"


def known_refs(context: SiteContext) -> str | None:
    """List the known branches nearest to the unknown one; known paths if it looks like a path; the
    advice to list for a file of a branch."""
    if context.evidence and re.search(
        r"path '[^'\n]+' (?:does not exist in|exists on disk, but not in)", context.evidence.text
    ):
        return fill("list_ref")
    if "." in posixpath.basename(context.subject):
        return known_paths(context) if known_paths_near(context) else None
    near = closest_names(
        context.subject, [r for r in branches_shown(context) if r != context.subject]
    )
    if near:
        return fill("known_refs", refs=", ".join(near))
    paths = known_paths_near(context)
    if paths:
        return fill("known_paths", paths=", ".join(paths))
    return (
        None if branches_were_listed(context) or not is_ref_wanted(context) else fill("list_refs")
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
