"""Remove secrets from text before it reaches the disk or another company's server.

Each rule is anchored on characters that only such a secret has ("sk-ant-", "ghp_", "-----BEGIN"),
so ordinary code, git hashes, UUIDs and lockfile hashes are kept. A value without such characters is
removed only if it is assigned to a name like API_KEY or password and looks random. Encoded text
(JSON within JSON, URLs, base64) is also searched decoded. A removed secret leaves
`[REDACTED:kind:1f0c9a2e]`. The same secret gets the same eight hex digits everywhere under one key,
so that an edit still matches the text that it edits; without the key they cannot be reversed.

Scan decoded strings, never raw JSON lines: that is faster, and a log's escapes hide nothing.

Secrets that no rule can know (a customer's name, a password in a sentence, a random token without a
name) belong in `words`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from composer_replication.core.secret_encodings import decoded
from composer_replication.core.secret_names import secret_under
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_search import secrets_on
from composer_replication.core.secret_values import MASK
from composer_replication.core.trace import JSON

MIN_ENVIRON_CHARS = 8
MIN_CHARS = 8
MAX_DEPTH = 4
"""Layers of encoding that are decoded, e.g. 2 for base64 of JSON."""
_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")
_NOT_SECRET_NAME = re.compile(r"(?i)(_file|_path|_dir|_sock|_agent|_pid|keyboard|_url|_home)$")
_BACKWARDS = re.compile(r"[A-Za-z0-9._%+-]{0,64}(?![A-Za-z0-9._%+/-])")
_DOMAIN = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,5}"
    r"(?:[a-z]{2}|com|org|net|edu|gov|mil|info|biz|dev|app|cloud|tech|email|xyz|online|site|name|mobi|int|ai|io|local|internal)(?![A-Za-z0-9_(.-]{0,64}[(=\[])(?![A-Za-z0-9_-])"
)
MAX_LOCAL_CHARS = 66
_PUBLIC_MAIL = re.compile(
    r"(?i)^(?:git|noreply|no-reply|donotreply|[0-9+a-z-]*\[bot\]|actions|dependabot|security|support)@|@(?:[a-z0-9-]+\.)*example\.(?:com|org|net)$"
    r"|@users\.noreply\.github\.com$|@(?:[a-z0-9-]+\.)*(?:test|invalid|localhost)$"
)


class FoundSecret(NamedTuple):
    """A secret in a text: its span, its kind, and its decoded value."""

    start: int
    end: int
    kind: str
    secret: str


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of environment variables whose names suggest secrets, longest first.

    >>> secrets_of({"DEPLOY_TOKEN": "correct-horse", "HOME": "/home/dev", "API_KEY": "short"})
    ('correct-horse',)
    """
    values = {
        value.strip()
        for name, value in environ.items()
        if _SECRET_NAME.search(name)
        and not _NOT_SECRET_NAME.search(name)
        and len(value.strip()) >= MIN_ENVIRON_CHARS
    }
    return tuple(
        sorted(
            (v for v in values if "/" not in v[:1] and not v.isdigit()), key=lambda v: (-len(v), v)
        )
    )


def find_secrets(text: str, *, depth: int = 0) -> list[FoundSecret]:
    """The secrets of a text in order, without overlaps; `depth` counts the decoded layers so far.

    >>> find_secrets("cGFzc3dvcmQ9aHVudGVyMjJ4eA==")
    [FoundSecret(start=0, end=28, kind='password', secret='hunter22xx')]
    """
    if len(text) < MIN_CHARS:
        return []
    page = Page.of(text)
    hits = [_named(text, span) for span in secrets_on(page)]
    if depth < MAX_DEPTH and (view := decoded(page)) is not None:
        for inner in find_secrets(view.text, depth=depth + 1):
            if inner.kind != "email" or not view.is_whole(inner.start, inner.end):
                hits.append(
                    FoundSecret(*view.source(inner.start, inner.end), inner.kind, inner.secret)
                )
    hits = _merged(text, hits)
    if "@" in text:
        hits = _with_emails(text, hits)
    return hits


def _named(text: str, span: Span) -> FoundSecret:
    return FoundSecret(span.start, span.end, span.kind, text[span.start : span.end])


def _merged(text: str, hits: list[FoundSecret]) -> list[FoundSecret]:
    """Merge overlapping secrets into one, of the kind that was found first."""
    if len(hits) < 2:
        return hits
    merged: list[tuple[int, FoundSecret]] = []
    for rank, secret_span in sorted(enumerate(hits), key=lambda item: (item[1].start, item[0])):
        if not merged or secret_span.start >= merged[-1][1].end:
            merged.append((rank, secret_span))
            continue
        previous_rank, previous = merged[-1]
        first = secret_span if rank < previous_rank else previous
        start, end = previous.start, max(secret_span.end, previous.end)
        secret = first.secret if (start, end) == (first.start, first.end) else text[start:end]
        merged[-1] = min(rank, previous_rank), FoundSecret(start, end, first.kind, secret)
    return [secret_span for _, secret_span in merged]


def _emails(text: str) -> Iterator[Span]:
    """E-mail addresses that are not public ones; only the text around an @ is searched."""
    at, last = text.find("@"), 0
    while at >= 0:
        domain = (
            _DOMAIN.match(text, at + 1)
            if text[at - 1 : at].isalnum() or text[at - 1 : at] in ("_", ".", "%", "+", "-")
            else None
        )
        if domain is not None:
            before = _BACKWARDS.match(text[max(last, at - MAX_LOCAL_CHARS) : at][::-1])
            start = at - (before.end() if before is not None else 0)
            if (
                start < at
                and text[start].isalnum()
                and not _PUBLIC_MAIL.search(text[start : domain.end()])
            ):
                yield Span(start, domain.end(), "email")
                last = domain.end()
        at = text.find("@", max(at + 1, last))


def _with_emails(text: str, hits: list[FoundSecret]) -> list[FoundSecret]:
    """Add e-mail addresses; one that overlaps or touches a secret belongs to that secret."""
    mails = [_named(text, span) for span in _emails(text)]
    if not mails:
        return hits
    if hits:
        mails = [m for m in mails if not any(m.start <= f.end and f.start <= m.end for f in hits)]
    return sorted([*hits, *mails])


class Redactor:
    """Replaces secrets by stable names and counts them by kind.

    `words` are your own literals, in any case. Values of `environ` (None = this process's
    environment) whose names look secret are removed too. The names depend on `key`: one key per
    store (core/pseudonyms.py) keeps them stable and prevents short secrets from being guessed.
    None = a random key of this redactor.

    >>> redactor = Redactor(words=("Initech",), environ={}, key=b"one store")
    >>> redactor.text("Initech pays"), redactor.counts
    ('[REDACTED:word:b1199b37] pays', {'word': 1})
    """

    def __init__(
        self,
        *,
        words: Iterable[str] = (),
        key: bytes | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._counts: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self._literals = tuple(_literals(words, os.environ if environ is None else environ))

    @property
    def counts(self) -> dict[str, int]:
        """The number of secrets of each kind that were replaced so far."""
        return dict(self._counts)

    def text(self, text: str) -> str:
        """The text without secrets; the same object if there were none."""
        if "[REDACTED:" not in text:
            return self._clean(text)
        # A store is redacted again when `words` change. Masks are copied unchanged, so that a
        # secret that was removed before keeps its name.
        pieces, last = [], 0
        for mask in MASK.finditer(text):
            pieces += [self._clean(text[last : mask.start()]), mask[0]]
            last = mask.end()
        clean = "".join([*pieces, self._clean(text[last:])])
        return text if clean == text else clean

    def _clean(self, text: str) -> str:
        if not text:
            return text
        clean = text
        for kind, pattern in self._literals:
            clean = pattern.sub(lambda match, kind=kind: self._mask(kind, match[0]), clean)
        return self._replaced(clean, find_secrets(clean))

    def value(self, value: JSON) -> JSON:
        """Redact every string of a JSON value, keys too; the same object if nothing was removed.

        A string under a secret-looking key ("password": ...) is judged like an assignment to it.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            items = [
                (self.text(k) if isinstance(k, str) else k, self._under(k, v))
                for k, v in value.items()
            ]
            same = all(
                k is old and v is value[old] for (k, v), old in zip(items, value, strict=True)
            )
            return value if same else dict(items)
        if isinstance(value, (list, tuple)):
            new = [self.value(v) for v in value]
            return value if all(a is b for a, b in zip(new, value, strict=True)) else new
        return value

    def _under(self, key: object, value: JSON) -> JSON:
        if (
            isinstance(value, str)
            and isinstance(key, str)
            and (kind := secret_under(key, value)) is not None
        ):
            return self._mask(kind, value)
        return self.value(value)

    def _mask(self, kind: str, secret: str) -> str:
        self._counts[kind] += 1
        name = self._names.get(secret)
        if name is None:
            digest = hmac.new(
                self._key, secret.encode("utf-8", "surrogatepass"), hashlib.sha256
            ).hexdigest()[:8]
            name = self._names[secret] = digest
        return f"[REDACTED:{kind}:{name}]"

    def _replaced(self, text: str, hits: list[FoundSecret]) -> str:
        if not hits:
            return text
        pieces, last = [], 0
        for start, end, kind, secret in hits:
            pieces += [text[last:start], self._mask(kind, secret)]
            last = end
        return "".join([*pieces, text[last:]])


def _literals(
    words: Iterable[str], environ: Mapping[str, str]
) -> Iterator[tuple[str, re.Pattern[str]]]:
    ordered = sorted({w for w in words if w.strip()}, key=lambda w: (-len(w), w))
    if ordered:
        yield "word", re.compile("|".join(map(re.escape, ordered)), re.IGNORECASE)
    if values := secrets_of(environ):
        yield "environment", re.compile("|".join(map(re.escape, values)))
