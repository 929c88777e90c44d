"""The fixed words of the built-in hints, and which of them a hint was written from."""

from __future__ import annotations

import re

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
        "{read} first: what stands of this file above does not count as a read for this edit."
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
    "shell_task": "{list} first: run only tasks or scripts that the project defines.",
    "shell_query": (
        "Check the schema of the interface before the query: use only fields and arguments that it"
        " has."
    ),
    "list_ref": (
        "Run `git ls-tree --name-only` on the branch or commit first: it lists the files to show."
    ),
    "known_refs": "Branches seen so far: {refs}.",
    "list_refs": "Run `git branch --all` first: it lists the branches by name.",
    "broke_check": "Look through the new lines before you write them: they hold {fault}.",
    "taken_back": (
        "Leave {name} as it is in the lines that this step is about to change: this was taken back."
    ),
    "taken_back_words": (
        "What this step is about to change was taken back. The user, on that: {words}"
    ),
    "persons_words": "The user, on the step that comes now: {words}",
    "rules": "{rule}",
}


def fill(template: str, **values: str) -> str:
    return TEMPLATES[template].format(**values)


def template_of(text: str) -> str:
    """The name of the template that a hint was written from; "" if from none, as a user's own rule.

    >>> template_of("Run `cd /w/web` first: this task ran there before, where the project defines"
    ... " it.")
    'ran_task'
    """
    return next((name for name in TEMPLATES if name != "rules" and is_from(text, name)), "")


def is_from(text: str, template: str) -> bool:
    fixed = map(re.escape, re.split(r"\{\w+\}", TEMPLATES[template]))
    return re.fullmatch(".*".join(fixed), text, re.DOTALL) is not None
