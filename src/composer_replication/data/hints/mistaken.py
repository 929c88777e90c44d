"""The words that a hint must not contain: the operand that only the mistaken call used, and
prohibitions.

Naming the wrong path, flag or tool makes it many times likelier, inside a prohibition too ("do not
call X" raises X). A hint names the right action, and nothing else.
"""

from __future__ import annotations

import re

from composer_replication.data.hints.context import SiteContext, json_scalars
from composer_replication.data.hints.seen import wrong_path
from composer_replication.data.sites.arguments import find_misfit
from composer_replication.data.sites.call_verdict import is_error
from composer_replication.data.sites.shell_rules import PATH_EXPLORED

_PATH_KINDS = frozenset(("file_missing", "shell_missing_path", PATH_EXPLORED))
_SUBJECT_KINDS = frozenset(
    (*_PATH_KINDS, "shell_bad_option", "shell_unknown_command", "shell_unknown_ref")
)
_PROHIBITION = re.compile(
    r"\b(?:do not|don't|never|avoid|must not|mustn't|should not|shouldn't|cannot|can't|instead of"
    r"|rather than|no longer use|stop using)\b|[,;:] not\b",
    re.IGNORECASE,
)


def prohibition(text: str) -> str:
    """The words of a hint that forbid something; "" if there are none.

    >>> prohibition("Call Read first, not Edit."), prohibition("The file has not been read yet.")
    (', not', '')
    """
    found = _PROHIBITION.search(text)
    return found.group() if found else ""


def named_operand(text: str, context: SiteContext) -> str:
    """The operand of the mistake that a hint names: the unknown tool, the path that does not exist,
    the refused option, command, branch or argument; "" if it names none.

    An operand that an earlier call used with success is no sign of the mistake.
    """
    operands = _operands(context)
    if not any(_holds(text, operand) for operand in operands):
        return ""
    used = [
        words
        for call, result in context.answered_calls()
        if not is_error(call, result)
        for words in (call.name, *json_scalars(call.arguments))
    ]
    return next(
        (o for o in operands if _holds(text, o) and not any(_holds(words, o) for words in used)),
        "",
    )


def _operands(context: SiteContext) -> list[str]:
    site, call = context.site, context.call
    found: list[str] = []
    if site.kind == "unknown_tool":
        found.append(site.tool)
    if site.kind in _SUBJECT_KINDS:
        found.append(context.subject)
    if site.kind in _PATH_KINDS:
        found.append(wrong_path(context))
    if site.kind == "bad_arguments" and call is not None:
        spec = next((t for t in context.session.tools if t.name == call.name), None)
        if spec is not None and context.session.tools_origin == "log":
            known = spec.parameters.get("properties", {})
            if find_misfit(call.arguments, spec.parameters).problem:
                found += [name for name in call.arguments if name not in known]
    return [operand for operand in dict.fromkeys(found) if len(operand) > 1]


def _holds(text: str, operand: str) -> bool:
    """Whether a text holds an operand as a word, or a path, of its own."""
    return operand in text and bool(re.search(rf"(?<![\w./-]){re.escape(operand)}(?![\w/-])", text))
