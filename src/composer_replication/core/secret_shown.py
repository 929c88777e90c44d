r"""Secrets that a command printed: alone on the line below it, without a name.

    $ terraform output -raw db_password
    9fK2mQ8x+L4v

Two signs: a command that prints secrets (`op read`, `openssl rand`), or a secret's name on a line
that begins with a prompt (`wg genkey`). The printed value must stand out, and commands that print
hashes are excluded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from composer_replication.core.secret_letters import is_random
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_values import PASSWORD, TOKEN, is_placeholder, stands_out

PRINTERS = (
    *(
        "output -raw",
        "openssl rand",
        "pwgen",
        "apg -",
        "/dev/urandom",
        "randombytes(",
        "base64 -d",
        "base64 --decode",
    ),
    *("jsonpath=", "whoami -t"),
    *(
        "op read ",
        "op item get",
        "bw get ",
        "chamber read",
        "kv get ",
        "vault read ",
        "get-parameter",
        "versions access",
    ),
)
"""Lower-case parts of commands that print a secret without naming one."""
MAX_COMMAND, MAX_LINES = 300, 8
_ALONE = re.compile(
    r"[ \t]{0,8}[\u2502\u23bf\u2514>]?[ \t]{0,8}[\"'`]?([^\s\"'`]{8,400}+)[\"'`]?["
    r" \t]{0,8}(?=\r?\n|\Z)"
)
LINE_ALONE_BELOW = re.compile(rf"[^\n]{{0,{MAX_COMMAND}}}+\n(?:[ \t]{{0,8}}\r?\n)?{_ALONE.pattern}")
_ANNOUNCED = re.compile(
    r"passw(?:ord|d|ort)\b[^\n]{0,160}:[ \t]{0,8}\r?\n(?:[ \t]{0,8}\r?\n)?", re.IGNORECASE
)
"""A program's first words: it made a password, here it is."""
"""The rest of a line, and below it a line that holds one value and nothing else."""
_PROMPT = re.compile(
    r"[ \t]{0,8}(?:\u25cf |\u23fa )?(?:[$%\u276f\u279c]|>>>|>|PS [^>\n]{0,80}>|In"
    r" \[\d{1,4}\]:|irb\S{0,30}>|Bash\("
    r"|[\w.-]{1,40}[$#] |[\w.-]{1,40}@[\w.-]{1,60}[^$#%\n]{0,60}[$#%])"
)
_PRINTS_HASHES = re.compile(
    r"\bgit\b|sha\d|md5|docker|rev-parse|hash|digest|uuid|checksum|\bwc\b|etag|\bgrep\b|\bls\b|\bfind\b(?!-)|doctest",
    re.IGNORECASE,
)
_HEX = re.compile(r"[0-9a-fA-F]{32,}\Z")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_BASE64 = re.compile(r"(?=[^\s]{0,90}[A-Z])(?=[^\s]{0,90}[a-z])[A-Za-z0-9+/_-]{20,400}={0,2}\Z")
_NO_VALUE = re.compile(
    r"[/~.]{1,2}[\w./-]{1,}\Z|https?:|[\w./-]+\.(?:py|js|ts|go|rs|json|ya?ml|md|txt|sh|com|io|org)\b|[A-Za-z_]+\(|arn:|<|\{|sha256:"
)


def printed_by(page: Page, at: int) -> list[Span]:
    """The secrets that a command with one of PRINTERS at `at` printed below it.

    >>> output = "H+I2TjOe/1DM//o3wlBmH7XJVBJLQIqM25bPFDKFvRo="
    >>> printed_by(Page.of(f"$ openssl rand -base64 32\\n{output}"), 2)
    [Span(start=26, end=70, kind='shown_secret')]
    """
    end = page.text.find("\n", at, at + MAX_COMMAND)
    if end < 0 or not _ALONE.match(page.text, end + 1) or _line_is_about_hashes(page.text, at, end):
        return []
    return list(_lines_below(page.text, end + 1, MAX_LINES))


def printed_below(page: Page, at: int) -> Span | None:
    """The secret that a command printed below it; it names a secret at `at`, after a prompt.

    >>> printed_below(Page.of("$ echo $DB_PASSWORD\\n9fK2mQ8x+L4v"), 11)
    Span(start=20, end=32, kind='shown_secret')
    """
    text = page.text
    end = text.find("\n", at)
    line = text.rfind("\n", max(0, at - MAX_COMMAND), at) + 1
    announced = _ANNOUNCED.match(text, at)
    if (announced is None and not _PROMPT.match(text, line, at)) or _line_is_about_hashes(
        text, at, end
    ):
        return None
    return next(_lines_below(text, (announced.end() if announced else end + 1), 1), None)


def _line_is_about_hashes(text: str, at: int, end: int) -> bool:
    line = text.rfind("\n", max(0, at - MAX_COMMAND), at) + 1
    return bool(_PRINTS_HASHES.search(text, line, end))


def _lines_below(text: str, start: int, count: int) -> Iterator[Span]:
    """Yield the lines from `start` on that hold a single value, up to the first that does not."""
    for _ in range(count):
        line = _ALONE.match(text, start)
        if line is None or not _is_value(line[1]):
            return
        yield Span(*line.span(1), "shown_secret")
        start = text.find("\n", line.end()) + 1
        if not start:
            return


def _is_value(value: str) -> bool:
    if (
        _NO_VALUE.match(value)
        or value.startswith("iVBORw0KGgo")
        or is_placeholder(value)
        or "[REDACTED:" in value
    ):
        return False
    if _HEX.match(value) or _UUID.match(value):
        return True
    return (
        stands_out(value, PASSWORD)
        or stands_out(value, TOKEN)
        or (bool(_BASE64.match(value)) and is_random(value))
    )
