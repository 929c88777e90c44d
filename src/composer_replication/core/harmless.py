"""Make untrusted text safe to print: control and direction characters are shown, not obeyed."""

from __future__ import annotations

_BIDI = {
    0x202A,
    0x202B,
    0x202C,
    0x202D,
    0x202E,
    0x2066,
    0x2067,
    0x2068,
    0x2069,
    0x200E,
    0x200F,
    0x061C,
    0x2028,
    0x2029,
}
_HARMLESS: dict[int, str] = (
    {c: chr(0x2400 + c) for c in range(0x20) if c not in (0x09, 0x0A)}
    | {0x7F: "\u2421"}
    | {c: f"\\x{c:02x}" for c in range(0x80, 0xA0)}
    | {c: f"\\u{c:04x}" for c in _BIDI}
    | {c: "\ufffd" for c in range(0xD800, 0xE000)}
)


def harmless(text: str) -> str:
    """Make control characters, escape codes and direction overrides of a text visible.

    >>> harmless("a\\x1b[31mb")
    'a␛[31mb'
    """
    return text.replace("\r\n", "\n").translate(_HARMLESS)


def one_line(text: str) -> str:
    """`harmless` on one line: a line break in a name could forge a line of the program's output.

    >>> one_line("a\\n settings  b  (trusted)")
    'a␊ settings  b  (trusted)'
    """
    return harmless(text).replace("\n", "\u240a")
