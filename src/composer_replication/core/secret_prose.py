"""Secrets in sentences and chats: "log in as ada / tr0ub4dor3x", "use X as the password", the words of a wallet.

What follows a secret's name ("the password is X") is in core/secret_names.py. Here it stands before the name, or there is none.
"""

from __future__ import annotations

import re
from itertools import takewhile

from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_values import PASSWORD, is_placeholder, stands_out

PAIR_SIGNS = (" / ", "log in", "login", "anmeld")
"""A pair of a name and a password stands around the first, or behind the others."""
WALLET_WORDS = ("phrase", "mnemonic", "seed words", "seed:", "recovery words", "wallet")
MAX_BEFORE = 100
_CUE = re.compile(
    r"\b(?:log(?:ged)?[ -]?(?:in|on)|login|sign(?:ed)?[ -]?in|creds?|credentials?|account|user(?:name)?|admin|root|access"
    r"|zugang\w*|anmeld\w+|einloggen|benutzer\w*|identifiants?|connexion|acceso|usuario|credenciales|accesso|utente|acesso|usu\u00e1rio)\b"
)
_USER = r"[\w.@+-]{2,64}"
_SECRET = r"[\"'`]?([^\s\"'`<>|,;(){}]{8,64})"
_BEFORE_SLASH = re.compile(rf"(?:^|[\s\"'`(:]){_USER}[\"'`]?\Z")
_AFTER = re.compile(_SECRET)
_PAIR_BEHIND = re.compile(
    rf"[a-z]{{0,6}}(?: ?in)?(?: (?:details|credentials|data|as|with|using|mit|als|user|username|the)){{1,4}}:?[ ][\"'`]?{_USER}"
    rf"[\"'`]?(?:[:/,]| and | with | mit | und |,? (?:pw|pwd|pass) )[ ]?{_SECRET}"
)
_LINK_BEHIND = re.compile(r" (?:as|is|for|ist|als|comme|es|como) ")
_NAMED_BEHIND = re.compile(
    r"[\"'`]?(\S{8,80}?)[\"'`]?,? (?:as|is|for|=|ist|als|est|comme|es|como) (?:[a-z'\u00e0-\u00ff]{1,12} ){0,4}(?:[a-z]{1,12}[-_ ])?\Z"
)
# Twelve words and more, with or without their numbers; the words of wallets have three to eight letters.
_WALLET = re.compile(
    r"[^\n]{0,80}?[ :=\"'`(\n]((?:\d{1,2}[.):]?[ ]?)?[a-z]{3,8}"
    r"(?:[\s,]{1,3}(?:\d{1,2}[.):]?[ ]{0,2})?[a-z]{3,8}){11,23})(?![a-z])(?=[\s,.;:!?\"'`)]|\Z)"
)
_WORD = re.compile(r"[a-z]+")
_WORDS_OF_SENTENCES = (
    "the and for from with your are was has have had not its our their which would could should been were does did how his her she him "
    "but may using used them these those than who whose why let get got via per mnemonic phrase wallet seed words"
)
_NO_WALLET = frozenset(_WORDS_OF_SENTENCES.split())
MIN_WALLET = 12


def pair_at(page: Page, at: int) -> Span | None:
    """A password in a pair of name and password, at one of PAIR_SIGNS.

    >>> pair_at(Page.of("log in as ada / jasper19VELVET"), 13)
    Span(start=16, end=30, kind='password')
    """
    text = page.text
    if text.startswith(" / ", at):
        begin = max(text.rfind("\n", max(0, at - MAX_BEFORE), at) + 1, at - MAX_BEFORE)
        if not _BEFORE_SLASH.search(text, max(begin, at - 70), at) or not _CUE.search(page.low, begin, at):
            return None
        match = _AFTER.match(text, at + 3)
    else:
        match = _PAIR_BEHIND.match(text, at)
    return None if match is None else _judged(match)


def named_behind(page: Page, at: int) -> Span | None:
    """A value before the name of a secret at `at`: "use X as the password", "X is the token".

    >>> named_behind(Page.of("use jasper19VELVET as the password"), 26)
    Span(start=4, end=18, kind='password')
    """
    if not _LINK_BEHIND.search(page.low, max(0, at - 40), at):
        return None
    start = max(page.text.rfind("\n", max(0, at - MAX_BEFORE), at) + 1, at - MAX_BEFORE)
    words = page.text[start:at].split(" ")
    tail = ""
    for word in reversed(words[:-1][-6:]):  # the value is the first word before the link that is no word of a sentence
        tail = f"{word} {tail}"
        if any(map(str.isdigit, word)):
            match = _NAMED_BEHIND.match(text := tail + words[-1])
            return None if match is None else _judged(match, start=at - len(text))
    return None


def _judged(match: re.Match[str], *, start: int = 0) -> Span | None:
    value = match[1].rstrip(".,:;!?)*" if not match[1].endswith(("!", "?")) else ".,:;)*")
    if not stands_out(value, PASSWORD) or is_placeholder(value) or "://" in value or value.count("/") > 1 or "=" in value[:-2]:
        return None
    return Span(start + match.start(1), start + match.start(1) + len(value), "password")


def wallet_words(page: Page, at: int) -> Span | None:
    """The words of a wallet behind what announces them: twelve, fifteen, ... twenty-four words that make no sentence.

    >>> wallet_words(Page.of("phrase: zebra canvas hamster jewel garlic beach eager feather copper orbit kangaroo lemon"), 0)
    Span(start=8, end=89, kind='wallet_words')
    """
    match = _WALLET.match(page.text, at)
    if match is None:
        return None
    words = list(takewhile(lambda word: word[0] not in _NO_WALLET, _WORD.finditer(page.text, *match.span(1))))
    if len(words) < MIN_WALLET or len({word[0] for word in words}) * 2 < len(words):
        return None
    return Span(match.start(1), words[-1].end(), "wallet_words")
