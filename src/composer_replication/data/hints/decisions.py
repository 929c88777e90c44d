"""The part of a mistaken call that was wrong, and the right values that its hint names.

    decision_of(context, "Call Read on `a.py` first: a file can be edited ...")
    -> Decision(part="tool", wrong="Edit", right=("Read",))    # edit_not_read

The writers decide what is advised (writers.py); the decision is read off the advice that was
written, so that the two cannot differ. The right side comes only from what a hint may use: the
tools on offer and their schemas, the paths, programs and branches in view, the command line that
the hint itself names. Where the advice names nothing that could stand in place of what was wrong,
`right` is empty and the part alone is known. The hint channel can be narrowed to this part
(train.hint.focus), and the audit measures the log-odds of right against wrong in it
(evaluation/decision_lift.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from composer_replication.core.site import Decision
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.ran import HELP_WORDS, closest_names, named_commands
from composer_replication.data.hints.region import edit_argument
from composer_replication.data.hints.seen import LISTERS, PATH_KEYS, READERS
from composer_replication.data.hints.shell_writers import ALIKE_PROGRAM
from composer_replication.data.hints.templates import template_of
from composer_replication.data.hints.tool_names import SEARCH_TOOLS, tools_named, usable_tools
from composer_replication.data.hints.writers import (
    WRITERS,
    arguments_used,
    logged_schema,
)
from composer_replication.data.sites.shell import SHELL_TOOLS, parse
from composer_replication.data.sites.shell_places import WordPlace, places_of_word

_PARTIAL = ("limit", "offset")
_CALL = Decision(part="call")
_LINE = re.compile(r"Run `([^`]+)`")
_LISTED = re.compile(r"(?:that exist|seen so far|worked so far): (.*?)\.(?: Use one| Run `|$)")


def decision_of(context: SiteContext, text: str) -> Decision | None:
    """The part of the mistaken call that was wrong, and what a hint of this text puts in its place;
    None if the site names no call.

    A text of the user's, or of a model, is taken to advise what the built-in writer would.
    """
    if context.call is None:
        return None
    kind = context.site.kind
    if not template_of(text):
        text = (kind in WRITERS and WRITERS[kind](context)) or ""
    rule = _BY_KIND.get(kind) or _BY_ADVICE.get(template_of(text)) or _named_part
    return rule(context, text)


def _whole_call(context: SiteContext, advice: str) -> Decision:
    return _CALL


def _tool(context: SiteContext, right: Iterable[str]) -> Decision:
    """The tool itself was wrong."""
    assert context.call is not None
    wrong = context.call.name
    return Decision(
        part="tool", wrong=wrong, right=tuple(name for name in right if name and name != wrong)
    )


def _unknown_tool(context: SiteContext, advice: str) -> Decision:
    return _tool(context, (tool.name for tool in usable_tools(context)))


def _read_first(context: SiteContext, advice: str) -> Decision:
    return _tool(context, tools_named(context, READERS))


def _tool_or_program(
    context: SiteContext, names: Collection[str], *, programs: Sequence[str]
) -> Decision:
    """A tool of these names; if none is on offer, a shell, and in a shell one of the programs."""
    if offered := tools_named(context, names):
        return _tool(context, offered)
    if context.command is None:
        return _tool(context, tools_named(context, SHELL_TOOLS))
    place = _place(context)
    return _in_place_of(context, place and _program_of(context, place), right=programs)


def _list_folder(context: SiteContext, advice: str) -> Decision:
    return _tool_or_program(context, LISTERS, programs=("ls", "find"))


def _too_large(context: SiteContext, advice: str) -> Decision:
    """A search in the file; where nothing can search, a part of it."""
    assert context.call is not None
    search = _tool_or_program(context, SEARCH_TOOLS, programs=("grep",))
    schema = next((t for t in usable_tools(context) if t.name == context.call.name), None)
    properties = _properties(schema.parameters) if schema is not None else {}
    partial = tuple(name for name in _PARTIAL if name in properties)
    if search.right or not partial or set(_PARTIAL) & context.call.arguments.keys():
        return search
    return Decision(part="argument", right=partial)


def _arguments(context: SiteContext, advice: str) -> Decision:
    """The decision of a call with bad arguments: a name that is unknown or missing, or a value that
    is not allowed."""
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


def _old_text(context: SiteContext, advice: str) -> Decision:
    """The text that an edit is to replace; what would be right there is not known."""
    assert context.call is not None
    name = edit_argument(context.call, "old")
    return _CALL if name is None else Decision(part="value", argument=name)


def _new_text(context: SiteContext, advice: str) -> Decision:
    """The lines that an edit or a write puts into a file, without those that it keeps; what would
    be right there is not known."""
    assert context.call is not None
    arguments = context.call.arguments
    name = edit_argument(context.call, "new")
    if name is None:
        written = isinstance(arguments.get("content"), str)
        return Decision(part="value", argument="content") if written else _CALL
    new, old_name = arguments[name].splitlines(keepends=True), edit_argument(context.call, "old")
    old = arguments[old_name].splitlines(keepends=True) if old_name else []
    kept = _num_same(new, old)
    kept_below = _num_same(reversed(new[kept:]), reversed(old[kept:]))
    wrong = "".join(new[kept : len(new) - kept_below])
    if not wrong:
        return Decision(part="value", argument=name)  # it only deletes
    begin = len("".join(new[:kept]))
    occurrence = sum(arguments[name].startswith(wrong, i) for i in range(begin))
    return Decision(part="value", wrong=wrong, argument=name, occurrence=occurrence)


def _num_same(new: Iterable[str], old: Iterable[str]) -> int:
    """How many lines are the same, from the first one on."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(new, old, strict=False)))


def _named_part(context: SiteContext, advice: str) -> Decision:
    """The path, program, option or ref that the error names; what would be right is not known."""
    return _named(context, ())


def _listed_names(context: SiteContext, advice: str) -> Decision:
    return _named(context, _listed(advice))


def _alike_program(context: SiteContext, advice: str) -> Decision:
    return _named(context, closest_names(context.subject, _listed(advice), cutoff=ALIKE_PROGRAM))


def _listed(advice: str) -> list[str]:
    """The names that a hint lists: paths, branches or programs."""
    found = _LISTED.search(advice)
    return found[1].split(", ") if found else []


def _named(context: SiteContext, right: Sequence[str]) -> Decision:
    assert context.call is not None
    if context.command is not None:
        return _in_place_of(context, _place(context), right=right)
    arguments = context.call.arguments
    key = next((key for key in PATH_KEYS if isinstance(arguments.get(key), str)), None)
    if key is None:
        return _CALL
    wrong = arguments[key]
    return Decision(
        part="value", argument=key, right=tuple(path for path in right if path != wrong)
    )


def _run_first(context: SiteContext, advice: str) -> Decision:
    """The command line that the hint names, from the first word on in which the call differs from
    it; of the help of a program only its last word, in place of the option that was refused."""
    line = _LINE.search(advice)
    if line is None or context.command is None:
        return _named_part(context, advice)
    wanted, simple, place = line[1].split(), parse(context.command).simple, _place(context)
    if place is not None and place.word and wanted[-1] in HELP_WORDS:
        word = (simple[place.command].program, *simple[place.command].words)[place.word]
        full_word = _word_at(context, word, command=place.command, word=place.word)
        return _in_place_of(context, full_word or place, right=wanted[-1:])
    at = 0 if wanted[0] == "cd" else place and place.command
    if at is None:
        of_program = (
            i for i, s in enumerate(simple) if wanted[0] in (s.program, s.name, *s.wrappers)
        )
        at = next(of_program, 0)
    if simple and wanted[0] in simple[at].wrappers:
        wanted = wanted[1:]
    words = [simple[at].program, *simple[at].words] if simple else []
    pairs = enumerate(zip(words, wanted, strict=False))
    i = next((i for i, (word, other) in pairs if word != other), None)
    if i is None:
        return _in_place_of(context, None)
    word = (*simple[at].wrappers, words[0])[0] if i == 0 else words[i]
    place = _word_at(context, word, command=at, word=i)
    return _in_place_of(context, place, right=(" ".join(wanted[i:]),))


def _place(context: SiteContext) -> WordPlace | None:
    """The span of the command line that the error names: in the command that the error names, if it
    names one; a program where a program stands."""
    assert context.command is not None
    places = places_of_word(context.command, context.subject)
    if not places and len(context.subject) == 1:  # one of several letters: `sort -nY`
        bundle = re.search(rf"(?<!\S)-\w*{re.escape(context.subject)}\w*", context.command)
        places = places_of_word(context.command, bundle[0]) if bundle else []
    if context.site.kind == "shell_unknown_command":
        places = [place for place in places if place.word == 0] or places
    command = parse(context.command)
    named = named_commands(command, context.evidence.text if context.evidence else "")
    best = [place for place in places if command.simple[place.command] in named] or places
    return best[0] if best else None


def _program_of(context: SiteContext, place: WordPlace) -> WordPlace | None:
    assert context.command is not None
    program = parse(context.command).simple[place.command].program
    return _word_at(context, program, command=place.command, word=0)


def _word_at(context: SiteContext, text: str, *, command: int, word: int) -> WordPlace | None:
    assert context.command is not None
    places = places_of_word(context.command, text)
    return next((p for p in places if (p.command, p.word) == (command, word)), None)


def _in_place_of(
    context: SiteContext, place: WordPlace | None, *, right: Iterable[str] = ()
) -> Decision:
    """One word of the command line was wrong; the whole line, with nothing known to be right, if
    the word is not found in it."""
    assert context.call is not None and context.command is not None
    line = context.command
    key = next((key for key, value in context.call.arguments.items() if value == line), None)
    if key is None:
        return _CALL
    if place is None:
        return Decision(part="value", argument=key)
    wrong = place.text
    return Decision(
        part="value",
        wrong=wrong,
        argument=key,
        occurrence=sum(line.startswith(wrong, i) for i in range(place.start)),
        right=tuple(text for text in right if text != wrong),
    )


_Rule = Callable[[SiteContext, str], Decision]
_BY_KIND: dict[str, _Rule] = {
    "unknown_tool": _unknown_tool,
    "bad_arguments": _arguments,
    "structured_output_invalid": _arguments,
    "malformed_call": _whole_call,
    "repeated_call": _whole_call,
    "edit_not_read": _read_first,
    "edit_stale": _read_first,
    "edit_no_change": _read_first,
    "edit_multi_match": _old_text,
    "is_directory": _list_folder,
    "too_large": _too_large,
    "broke_check": _new_text,
    "taken_back": _new_text,
}
"""The kinds whose hints always advise the same."""
_BY_ADVICE: dict[str, _Rule] = {
    "reread": _read_first,
    "not_applied": _read_first,
    "copy_exactly": _old_text,
    "copy_in_parts": _old_text,
    "known_paths": _listed_names,
    "list_folder": _list_folder,
    "refused_path": _list_folder,
    "known_refs": _listed_names,
    "shell_unknown_command": _alike_program,
    "make_folder": _run_first,
    "ran_in": _run_first,
    "ran_task": _run_first,
    "list_ref": _run_first,
    "list_refs": _run_first,
    "shell_bad_option": _run_first,
    "shell_refused_above": _run_first,
    "shell_usage": _run_first,
}
"""The template of a hint (writers.TEMPLATES) -> what it puts in place of what was wrong."""
