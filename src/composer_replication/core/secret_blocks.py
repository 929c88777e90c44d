"""Private keys that stand in blocks of lines, by every tool's header and footer: PEM, OpenSSH, PGP,
SSH2, PuTTY, OpenVPN, minisign.

A block goes with its header and its footer. Where the footer is missing, a log was cut: then what
looks like the key's lines goes. A header that stands in code, with no key behind it, stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from composer_replication.core.secret_page import Page, Span

BLOCK_WORDS = (
    "private key",
    "static key",
    "putty-user-key-file",
    "private-lines:",
    "untrusted comment",
)
"""Every page with a block has one of them, in small letters."""
MAX_BLOCK = 20_000
MAX_FOOTER = 100
_BEGIN = re.compile(
    r"-{4,5}\s?BEGIN (?:[A-Za-z0-9]{1,12} ){0,5}PRIVATE KEY(?: BLOCK)?\s?-{4,5}|-----BEGIN OpenVPN"
    r" Static key V1-----",
    re.IGNORECASE,
)
_FOOTER = re.compile(r"-{4,5}\s?END [A-Za-z0-9 ]{3,60}-{4,5}", re.IGNORECASE)
_KEY_LETTERS = re.compile(r"[A-Za-z0-9+/]{16}")
_CODE = re.compile(r"[(){}<>;]|[\"'][ \t]*[\"']")
# Separators of the lines of a key: line ends, also written out, numbers of lines, marks of
# a diff, quotes of literals.
_BODY = re.compile(
    r"(?:[A-Za-z0-9+/=]{4,200}|(?:Proc-Type|DEK-Info|Comment|Version|Hash|Charset):"
    r" [^\n\\]{1,80}|\\{1,4}[nr]"
    r"|[\s\"'+,.|>\u2192]|\d{1,7}[:\t\u2192]){1,900}"
)
_PUTTY_END = re.compile(r"Private-MAC:\s{0,3}[0-9a-fA-F]{16,128}")
_SIGNER = re.compile(
    r"untrusted comment:[^\n\\]{0,80}secret key[^\n\\]{0,40}(?:\r?\n|\\n)["
    r" \t]{0,40}([A-Za-z0-9+/=]{40,400})",
    re.IGNORECASE,
)


def key_blocks(page: Page) -> Iterator[Span]:
    r"""The spans of private keys that are written as blocks.

    >>> begin, end = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
    >>> list(key_blocks(Page.of(f"{begin}\nMC4CAQAwBQYDK2VwBCIEIA\n{end}")))
    [Span(start=0, end=76, kind='private_key')]
    """
    if "private key" in page.low or "static key" in page.low:
        yield from _armoured(page)
    if "private-lines:" in page.low:
        yield from _putty(page)
    if "untrusted comment" in page.low:
        yield from (Span(*m.span(1), "private_key") for m in _SIGNER.finditer(page.text))


def _armoured(page: Page) -> Iterator[Span]:
    """Blocks between dashes; the look for the next header and footer goes on from where it was:
    linear, however many headers there are."""
    text, low = page.text, page.low
    header = _BEGIN.search(text)
    footer_at = -1
    while header is not None:
        following = _BEGIN.search(text, header.end())
        limit = min(following.start() if following else len(text), header.end() + MAX_BLOCK)
        if footer_at < header.end():
            footer_at = low.find("end ", header.end())
            while footer_at >= 0 and low[footer_at - 1 : footer_at] not in ("-", " "):
                footer_at = low.find("end ", footer_at + 1)
            footer_at = len(text) if footer_at < 0 else footer_at
        footer = (
            _FOOTER.search(
                text, max(header.end(), footer_at - 6), min(footer_at + MAX_FOOTER, len(text))
            )
            if footer_at < limit
            else None
        )
        if footer is not None and _is_key(text[header.end() : footer.start()]):
            yield Span(header.start(), footer.end(), "private_key")
        elif (
            footer is None and (body := _BODY.match(text, header.end(), limit)) and _is_key(body[0])
        ):
            yield Span(header.start(), header.end() + len(body[0].rstrip()), "private_key")
        header = following


def _is_key(body: str) -> bool:
    """Whether letters of a key stand between a header and a footer, and not the code that looks for
    them."""
    if _KEY_LETTERS.search(body):
        return True
    return sum(map(str.isalnum, body)) >= 6 and not _CODE.search(body) and "..." not in body


def _putty(page: Page) -> Iterator[Span]:
    """The private part of PuTTY's own format, which ends with a checksum."""
    text, low = page.text, page.low
    at = low.find("private-lines:")
    checksum = -1
    while at >= 0:
        if checksum < at:
            checksum = low.find("private-mac:", at)
            checksum = len(text) if checksum < 0 else checksum
        end = _PUTTY_END.match(text, checksum) if checksum - at < MAX_BLOCK else None
        body = _BODY.match(text, at + len("private-lines:"), at + MAX_BLOCK)
        if end is not None or (body is not None and _KEY_LETTERS.search(body[0])):
            yield Span(at, (end or body).end(), "private_key")  # type: ignore[union-attr]
        at = low.find("private-lines:", at + 1)
