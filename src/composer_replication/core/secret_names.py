"""Secrets that only the name before them gives away: `API_KEY=...`, `"password": "..."`, `--token ...`.

A value goes if the name ends in one of a few words and the value looks random: letters and digits mixed, no word, no
path, no code. Names are found with str.find and only then looked at closer: one pattern over all text would be ten
times slower.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from composer_replication.core.secret_page import Page
from composer_replication.core.secret_rules import PLACEHOLDER, Span

MIN_CHARS, MIN_RANDOM_CHARS = 8, 16
MIN_PASSWORD_BITS, MIN_RANDOM_BITS = 2.5, 3.0
MASK = re.compile(r"\[REDACTED:[a-z_]+:[0-9a-f]{8}\]")
_TAIL = r"(?:[_-]?(?:key[_-]?base|base|prod|production|dev|staging|live|main|value|val|[0-9]{1,2}))?"
# The backslashes are those of JSON within JSON: \"password\": \"...\". The first branch: {"name": "DB_PASSWORD", "value": "..."}.
_GLUE = (
    r"(?P<glue>\\{0,7}[\"']?\s{0,4}(?:,|\n)\s{0,40}\\{0,7}[\"']?value\\{0,7}[\"']?\s{0,4}[:=]\s{0,4}\\{0,7}"
    r"|\\{0,7}[\"']?\s{0,4}(?::=|=>|[=:])\s{0,4}\\{0,7}|\\{0,7}[\"']\s{0,4},\s{0,4}\\{0,7}(?=[\"'])|\s(?=[^\s=:,.]))"
    r"(?:(?P<quote>[\"'`])(?P<inside>(?:(?!(?P=quote))[^\s\\]){8,200}(?=\\{0,7}(?P=quote)))|[\"'`]?(?P<value>[^\s\"'`,;()\[\]{}<>$\\|&\x00-\x1f]{8,200}))"
)
_WORDS_BEFORE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (word, re.compile(ending + _TAIL + _GLUE))
    for word, ending in (
        ("secret", ""),
        ("token", ""),
        ("pass", "(?:w(?:or)?d|phrase)"),
        ("pwd", ""),
        ("credential", "s?"),
        ("key", "(?:[_-]?id)?"),
    )
)
_KEY_BEFORE = tuple(
    word + sep
    for word in (
        *("api", "access", "private", "auth", "account", "encryption", "signing", "secret", "master", "service"),
        *("storage", "shared", "subscription", "deploy", "webhook", "hmac", "jwt", "client", "license"),
    )
    for sep in ("", "_", "-")
)
_MAX_KEY_BEFORE = max(map(len, _KEY_BEFORE))
_NAME = re.compile(r"[A-Za-z0-9_.-]{0,60}\Z")
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+\Z")
_PLAIN_WORDS = re.compile(r"[A-Za-z_-]+\d{0,2}\Z")
_CODE = re.compile(r"\$[\w({]|\{\{|\}\}|<%|[A-Za-z_]\w*\(|\)\Z|^[<{(\[]|\{[A-Za-z_.]*\}|=>")
_RANDOM = re.compile(r"(?=[A-Za-z0-9+/]*[a-z][A-Z0-9])(?=[A-Za-z0-9+/]*[A-Z][a-z0-9])(?=[A-Za-z0-9+/]*\d)[A-Za-z0-9+/]{40,}={0,2}\Z")
_PASSWORD = re.compile(r"(?i)passw|passphrase|pwd")


def entropy_bits(text: str) -> float:
    """Shannon entropy of a text's letters, in bits per letter.

    >>> entropy_bits("aaaa"), entropy_bits("abcd")
    (0.0, 2.0)
    """
    counts = Counter(text)
    return sum(n / len(text) * math.log2(len(text) / n) for n in counts.values())


def assigned_secrets(page: Page) -> Iterator[Span]:
    """Where values stand that are assigned to the name of a secret and look like one.

    >>> list(assigned_secrets(Page.of("DB_PASSWORD=tr0ub4dor&3x")))
    [Span(start=12, end=21, kind='password')]
    """
    text, low = page.text, page.low
    for word, pattern in _WORDS_BEFORE:
        at = low.find(word)
        while at >= 0:
            end = at + len(word)
            if (word != "key" or low[max(0, at - _MAX_KEY_BEFORE) : at].endswith(_KEY_BEFORE)) and (match := pattern.match(low, end)):
                span = _assigned(text, at, match)
                if span is not None:
                    yield span
            at = low.find(word, end)


def _assigned(text: str, at: int, match: re.Match[str]) -> Span | None:
    """Where the value of an assignment stands if it looks secret; positions are those of `text`."""
    if text.endswith("[REDACTED:", 0, at):  # the kind in a mask is no name
        return None
    quoted = match["inside"] is not None
    start, end = match.span("inside" if quoted else "value")
    value = text[start:end] if quoted else text[start:end].rstrip(".:")
    before = _NAME.search(text, max(0, at - 60), at)
    name = (before[0] if before else "") + text[at : match.start("glue")]
    is_quoted = quoted or text[start - 1 : start] in ("'", '"', "`")
    if match["glue"].isspace() and not is_quoted and not name.startswith("--"):
        return None
    if not is_quoted and text[end : end + 1] in tuple("([{<$"):
        return None
    if len(value) < MIN_CHARS or not looks_secret(name, value, quoted=is_quoted):
        return None
    return Span(start, start + len(value), kind_of_name(name))


def kind_of_name(name: str) -> str:
    """The kind of a secret that is assigned to a name, e.g. kind_of_name("DB_PASSWORD") -> "password"."""
    return "password" if _PASSWORD.search(name) else "assigned_secret"


def looks_secret(name: str, value: str, *, quoted: bool) -> bool:
    """Whether a value assigned to a secret's name is a secret itself and not code, a path or a placeholder.

    >>> looks_secret("api_key", "9fK2mQ8xL4vB7nR1tY6w", quoted=False), looks_secret("api_key", "settings.api_key2", quoted=False)
    (True, False)
    """
    if PLACEHOLDER.search(value) or MASK.search(value) or _ATTRIBUTE.match(value) or "://" in value or value[0] in ".~%@#":
        return False
    if "/" in value[:2] and not _RANDOM.match(value):  # a path
        return False
    if _CODE.search(value):
        return False
    digits, letters = sum(c.isdigit() for c in value), sum(c.isalpha() for c in value)
    if kind_of_name(name) == "password":
        if not letters or (not quoted and _PLAIN_WORDS.match(value)):
            return False
        return (quoted and not _PLAIN_WORDS.match(value)) or (digits >= 1 and entropy_bits(value) >= MIN_PASSWORD_BITS)
    return (
        len(value) >= MIN_RANDOM_CHARS
        and digits >= 2
        and letters >= 2
        and not _PLAIN_WORDS.match(value)
        and entropy_bits(value) >= MIN_RANDOM_BITS
    )
