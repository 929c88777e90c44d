"""Rules from the user's own file (CLAUDE.md, AGENTS.md), and the search for one that names a tool
or a kind of mistake."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from composer_replication.core.errors import ConfigError

MAX_BYTES = 2**20
_BULLET = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")


def read_rules(path: str) -> tuple[str, ...]:
    """Read the rules of a file; () for the path "". Raises ConfigError if the file cannot be read
    or is larger than 1 MiB."""
    if not path:
        return ()
    where = "[hints.rules_file]"
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path!r}: {error.strerror}",
            where=where,
            fix="give the path of your CLAUDE.md or AGENTS.md",
        ) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path!r} has {len(data)} bytes; rules are at most {MAX_BYTES}", where=where
        )
    return split_rules(data.decode("utf-8", errors="replace"))


def split_rules(text: str) -> tuple[str, ...]:
    """Split a text into bullets and paragraphs, each on one line; headings and fenced blocks are
    not rules.

    >>> split_rules("# Tools\\n- Read before `Edit`,\\n  always.\\n- No sudo.")
    ('Read before `Edit`, always.', 'No sudo.')
    """
    rules: list[list[str]] = []
    in_rule, in_fence = False, False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_fence, in_rule = not in_fence, False
        elif in_fence or not line.strip() or line.lstrip().startswith("#"):
            in_rule = False
        elif _BULLET.match(line):
            rules.append([_BULLET.sub("", line).strip()])
            in_rule = True
        elif in_rule:
            rules[-1].append(line.strip())
        else:
            rules.append([line.strip()])
            in_rule = True
    return tuple(" ".join(lines) for lines in rules)


def rule_for_kind(rules: Sequence[str], kind: str) -> str | None:
    """The first rule that names a kind of mistake, as `edit_no_match` or "edit no match"."""
    pattern = re.compile(rf"(?<!\w){re.escape(kind).replace('_', '[_ ]')}(?!\w)", re.IGNORECASE)
    return next((rule for rule in rules if pattern.search(rule)), None)


def rule_for_tool(rules: Sequence[str], tool: str) -> str | None:
    """The first rule that names a tool: in backticks or quotes, beside the word "tool", or plainly
    if the name cannot be an ordinary word.

    >>> rule_for_tool(["Read the docs first.", "Prefer `Read` to cat."], "Read")
    'Prefer `Read` to cat.'
    """
    if not tool:
        return None
    name = re.escape(tool)
    plain = rf"|(?<![\w-]){name}(?![\w-])" if re.search(r"[a-z][A-Z]|_|\d", tool) else ""
    pattern = re.compile(
        rf"[`'\"]{name}[`'\"]|(?<![\w-]){name} (?:tool|call)\b|\btool {name}(?![\w-]){plain}"
    )
    return next((rule for rule in rules if pattern.search(rule)), None)
