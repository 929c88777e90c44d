"""Command lines inside the scripts of Codex's code mode: a call of `exec` with JavaScript."""

from __future__ import annotations

import json
import re

_COMMAND = re.compile(
    r"tools\.(?:exec_command|shell_command)\(\s*\{\s*[\"']?(?:cmd|command)[\"']?\s*:\s*"
    r'("(?:[^"\\\n]|\\.)*")'
)


def script_commands(script: str) -> str | None:
    """The command lines that a script runs, one after the other; None if it runs none that are
    written out.

    >>> script_commands('const r = await tools.exec_command({cmd:"ls a"}); text(r.output)')
    'ls a'
    """
    lines: list[str] = []
    for match in _COMMAND.finditer(script):
        try:
            lines.append(json.loads(match[1], strict=False))
        except ValueError:  # an escape that JSON does not have
            continue
    return "\n".join(lines) or None
