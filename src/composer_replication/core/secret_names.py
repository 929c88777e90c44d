"""Secrets that only the name before them gives away: `API_KEY=...`, `"password": "..."`, `--token ...`.

A value goes if the name ends in one of a few words and the value looks random: letters and digits mixed, or letters that
make no words, no path, no code. What stands below the name as a YAML block (`private_key: |`) goes with all its lines.
Names are found with str.find and only then looked at closer: one pattern over all text would be ten times slower.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from composer_replication.core.secret_letters import entropy_bits, is_random
from composer_replication.core.secret_page import Page
from composer_replication.core.secret_rules import PLACEHOLDER, Span

MIN_CHARS, MIN_RANDOM_CHARS, MIN_MIXED_CHARS = 8, 12, 16
MIN_PASSWORD_BITS, MIN_RANDOM_BITS = 2.5, 3.0
MASK = re.compile(r"\[REDACTED:[a-z_]+:[0-9a-f]{8}\]")
_TAIL = r"(?:[_-]?(?:key[_-]?base|base|prod|production|dev|staging|live|main|value|val|[0-9]{1,2}))?"
# The backslashes are those of JSON within JSON: \"password\": \"...\". The first branch: {"name": "DB_PASSWORD", "value": "..."}.
_GLUE = (
    r"(?P<glue>\\{0,7}[\"']?\s{0,4}(?:,|\n)\s{0,40}\\{0,7}[\"']?value\\{0,7}[\"']?\s{0,4}[:=]\s{0,4}\\{0,7}"
    r"|\\{0,7}[\"']?\s{0,4}(?::=|=>|[=:])\s{0,4}\\{0,7}|\\{0,7}[\"']\s{0,4},\s{0,4}\\{0,7}(?=[\"'])|\s(?=[^\s=:,.]))"
    r"(?:(?P<quote>[\"'`])(?P<inside>(?:(?!(?P=quote))[^\s\\]){8,200}(?=\\{0,7}(?P=quote)))|[\"'`]?(?P<value>[^\s\"'`,;()\[\]{}<>$\\|&\x00-\x1f]{8,200}))"
)
# The lines below `private_key: |`; before their indentation may stand what numbers lines or marks them in a diff.
_BELOW = r"(?:\\{1,3}r|\r)?(?:\n|\\{1,3}n)(?:[ \t]{0,8}\d{1,7}[\t\u2192]|\+)?[ \t]{1,40}"
_BLOCK = (
    rf"(?P<below>[\"']?[ \t]{{0,2}}:[ \t]{{0,4}}[|>][+-]?{_BELOW})(?P<block>[^\s\"'`\\]{{8,200}}(?:{_BELOW}[^\s\"'`\\]{{8,200}}){{0,100}})"
)
_WORDS_BEFORE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (word, re.compile(f"{ending}{_TAIL}(?=[\\\\\"'\\s,:=])(?:{_GLUE}|{_BLOCK})"))
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
    if match["block"] is not None:
        return _block(text, at, match)
    quoted = match["inside"] is not None
    start, end = match.span("inside" if quoted else "value")
    value = text[start:end] if quoted else text[start:end].rstrip(".:")
    name = _name(text, at, match.start("glue"))
    is_quoted = quoted or text[start - 1 : start] in ("'", '"', "`")
    if match["glue"].isspace() and not is_quoted and "--" not in name:
        return None
    if not is_quoted and text[end : end + 1] in tuple("([{<$"):
        return None
    if len(value) < MIN_CHARS or not looks_secret(name, value, quoted=is_quoted):
        return None
    return Span(start, start + len(value), kind_of_name(name))


def _block(text: str, at: int, match: re.Match[str]) -> Span | None:
    """All lines of a YAML block if the first of them looks secret."""
    start, end = match.span("block")
    name, first = _name(text, at, match.start("below")), re.split(r"[\s\\]", text[start:end], maxsplit=1)[0]
    return Span(start, end, kind_of_name(name)) if looks_secret(name, first, quoted=True) else None


def _name(text: str, at: int, end: int) -> str:
    """The whole name of which a secret's word stands at `at`."""
    before = _NAME.search(text, max(0, at - 60), at)
    return (before[0] if before else "") + text[at:end]


def kind_of_name(name: str) -> str:
    """The kind of a secret that is assigned to a name, e.g. kind_of_name("DB_PASSWORD") -> "password"."""
    return "password" if _PASSWORD.search(name) else "assigned_secret"


def looks_secret(name: str, value: str, *, quoted: bool) -> bool:
    """Whether a value assigned to a secret's name is a secret itself and not code, a path or a placeholder.

    >>> looks_secret("api_key", "9fK2mQ8xL4vB7nR1tY6w", quoted=False), looks_secret("api_key", "settings.api_key2", quoted=False)
    (True, False)
    """
    if PLACEHOLDER.search(value) or MASK.search(value) or "://" in value:
        return False
    random = is_random(value)
    if not random and (_ATTRIBUTE.match(value) or value[0] in ".~%@#"):
        return False
    if "/" in value[:2] and not _RANDOM.match(value):  # a path
        return False
    if _CODE.search(value):
        return False
    digits, letters = sum(c.isdigit() for c in value), sum(c.isalpha() for c in value)
    if kind_of_name(name) == "password":
        if random:
            return True
        if not letters or (not quoted and _PLAIN_WORDS.match(value)):
            return False
        return (quoted and not _PLAIN_WORDS.match(value)) or (digits >= 1 and entropy_bits(value) >= MIN_PASSWORD_BITS)
    if random and len(value) >= MIN_RANDOM_CHARS:
        return True
    return (
        len(value) >= MIN_MIXED_CHARS
        and digits >= 2
        and letters >= 2
        and not _PLAIN_WORDS.match(value)
        and entropy_bits(value) >= MIN_RANDOM_BITS
    )
