"""Secrets in sentences and chats: "log in as ada / tr0ub4dor3x", "use X as the password", the words
of a wallet.

core/secret_names.py finds secrets after a name ("the password is X"). Here the secret precedes the
name, or there is no name.
"""

from __future__ import annotations

import re
from itertools import takewhile

from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_values import PASSWORD, is_placeholder, stands_out

PAIR_SIGNS = (" / ", "log in", "logs in with", "login", "anmeld")
"""A pair of a name and a password stands around the first, or behind the others."""
WALLET_WORDS = (
    *(
        "phrase",
        "mnemonic",
        "seed words",
        "seed:",
        "recovery words",
        "wallet",
        "these words",
        "12 words",
        "24 words",
        "bip39",
    ),
    "metamask",
    "ledger",
)
CODE_WORDS = (
    *(
        "two-factor",
        "2fa code",
        "recovery code",
        "backup code",
        "scratch code",
        "emergency code",
        "one-time code",
        "rescue code",
    ),
    *(
        "sicherungscode",
        "ersatzcode",
        "wiederherstellungscode",
        "codes de secours",
        "codes de r\u00e9cup",
        "c\u00f3digos de",
        "codici di",
    ),
)
"""Codes for a second factor stand below one of them."""
MAX_BEFORE, MAX_SENTENCE, MIN_BLANKS, MIN_CODES = 100, 240, 4, 4
_ROLE = re.compile(r"(?:[A-Za-z]\w{1,11}|<[\w-]{2,20}>|\[[\d:]{4,8}\] ?\S{2,20}):? ")
# Marks of code, which no sentence holds.
_NO_SENTENCE = re.compile(r"[{}<>=;\\$|\[\]\t]|\w\(|::|\.\w{1,12}\(|\A\s*[#/*]{1,3}")
_THOUGHT_UP = re.compile(
    r"(?<![\w./@:#&?%+~-])[\"'`*(\u00ab\u201c]{0,3}((?=[^\s]{10,40})(?<!\bon )(?<!\bauf )(?<!\bsur"
    r" )(?<!host )"
    r"(?:[A-Za-z][a-z\u00df-\u00ff]{5,24}\d{2,4}[!?*+#]?"
    r"|[A-Z][a-z]{2,12}[A-Z_+*#!^~-][A-Za-z_+*#!^~]{2,16}\d{1,4}[!?*+#]?))(?=[\"'`*)\u00bb\u201d]{0,3}(?:[,.:;!?]?(?:\s|\Z)))"
)
_VERSION = re.compile(
    r"(?i)(?:windows|server|postgres|python|ubuntu|debian|version|mysql|mariadb|oracle|sqlserver|client|django|angular|\w{0,8}sha|argon|bcrypt|scrypt"
    r"|pbkdf|chacha|poly|curve|secp|prime|brainpool|aes|camellia|utf|latin|base|example|section|appendix|chapter|figure|table|issue|release"
    r"|january|february|march|april|june|july|august|september|october|november|december|user|admin|test|host|node|worker|office|sharepoint"
    r"|exchange|visual|studio|outlook|letter|layer|option|variant)\w{0,12}?[-_]?\d"
)
_QUOTED_PHRASE = re.compile(
    r"(?:\b(?:use|try|is|it's|ist|lautet|est|c['\u2019]est|es|nimm|usa|\u00e8|:))[:"
    r" ]{1,2}[\"\u201c\u00ab\u201e`][ \u00a0]?"
    r"([A-Za-z\u00df-\u00ff]{1,14}(?: [a-z\u00df-\u00ff']{1,14}){3,9})["
    r" \u00a0]?[\"\u201d\u00bb\u201c`]"
)
_ABOUT = re.compile(
    r"(?i)\b(?:passw\w+|passphrase|your|must|please|enter|error|not|failed|invalid|required|denied)\b"
)
_CODE = re.compile(
    r"(?:\b(?:(?=[A-Za-z0-9-]{0,30}\d)[A-Za-z0-9]{4,6}(?:-[A-Za-z0-9]{4,6}){1,4}|\d{4} \d{4}"
    r"|(?=[a-zA-Z0-9]{0,11}\d)[a-z0-9A-Z]{8,12}|[0-9a-f]{16}|\d{6,8}))(?![\w-])"
)
_NUMBERED = r"(?:\d{1,2}[.):][ \t]{1,4})?"
_ROW_OF_CODES = (
    rf"[ \t>*|\[\]\u2022\u25a1-]{{0,10}}{_NUMBERED}{_CODE.pattern}"
    rf"(?:[ \t,|]{{1,12}}{_NUMBERED}{_CODE.pattern}){{0,5}}[ \t|]{{0,8}}\r?(?:\n|\Z)"
)
_CODES = re.compile(rf"[^\n]{{0,160}}\n(?:[^\n]{{0,120}}\n){{0,2}}?((?:{_ROW_OF_CODES}){{2,20}})")
_CUE = re.compile(
    r"\b(?:log(?:ged)?[ -]?(?:in|on)|login|sign(?:ed)?["
    r" -]?in|creds?|credentials?|account|user(?:name)?|admin|root|access"
    r"|zugang\w*|anmeld\w+|einloggen|benutzer\w*|identifiants?|connexion|acceso|usuario|credenciales|accesso|utente|acesso|usu\u00e1rio)\b"
)
_USER = r"[\w.@+-]{2,64}"
_SECRET = r"[\"'`]?([^\s\"'`<>|,;(){}]{8,64})"
_BEFORE_SLASH = re.compile(rf"(?:^|[\s\"'`(:]){_USER}[\"'`]?\Z")
_AFTER = re.compile(_SECRET)
_PAIR_BEHIND = re.compile(
    rf"logs in with [\"'`]{_SECRET}|"
    r"[a-z]{0,6}(?: ?in)?(?:"
    r" (?:details|credentials|data|as|with|using|mit|als|user|username|the)){1,4}:?["
    rf" ][\"'`]?{_USER}"
    rf"[\"'`]?(?:[:/,]| and | with | mit | und |,? (?:pw|pwd|pass) )[ ]?{_SECRET}"
)
_LINK_BEHIND = re.compile(r" (?:as|is|for|ist|als|comme|es|como) ")
_NAMED_BEHIND = re.compile(
    r"[\"'`]?(\S{8,80}?)[\"'`]?,? (?:as|is|for|=|ist|als|est|comme|es|como)"
    r" (?:[a-z'\u00e0-\u00ff]{1,12} ){0,4}(?:[a-z]{1,12}[-_ ])?\Z"
)
# Twelve words and more, with or without their numbers; the words of wallets have three to eight
# letters.
_WALLET = re.compile(
    r"[^\n]{0,80}?[ :=\"'`(\n]((?:\d{1,2}[.):]?[ ]{0,3})?[a-z]{3,8}"
    r"(?:[\s,]{1,6}(?:\d{1,2}[.):]?[ ]{0,2})?[a-z]{3,8}){11,23})(?![a-z])(?=[\s,.;:!?\"'`)]|\Z)"
)
_NUMBERED_WALLET = re.compile(
    r"[^\n]{0,120}\n(?:[^\n]{0,100}\n){0,2}?"
    r"([ \t|]{0,8}1[.):]?[ \t]{1,4}[a-z]{3,8}(?:[\s|,]{1,12}\d{1,2}[.):]?["
    r" \t]{1,4}[a-z]{3,8}){11,23})(?![a-z])"
)
_WORD = re.compile(r"[a-z]+")
_WORDS_OF_SENTENCES = (
    "the and for from with your are was has have had not its our their which would could should"
    " been were does did how his her she him but may using used them these those than who whose why"
    " let get got via per mnemonic phrase wallet seed words"
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
        if not _BEFORE_SLASH.search(text, max(begin, at - 70), at) or not _CUE.search(
            page.low, begin, at
        ):
            return None
        match = _AFTER.match(text, at + 3)
    else:
        match = _PAIR_BEHIND.match(text, at)
    return None if match is None else _judged(match, group=match.lastindex or 1)


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
    # the value is the first word before the link that is no word of a sentence
    for word in reversed(words[:-1][-6:]):
        tail = f"{word} {tail}"
        if any(map(str.isdigit, word)):
            match = _NAMED_BEHIND.match(text := tail + words[-1])
            return None if match is None else _judged(match, start=at - len(text))
    return None


def _judged(match: re.Match[str], *, start: int = 0, group: int = 1) -> Span | None:
    value = match[group].rstrip(".,:;!?)*" if not match[group].endswith(("!", "?")) else ".,:;)*")
    if (
        not stands_out(value, PASSWORD)
        or is_placeholder(value)
        or "://" in value
        or value.count("/") > 1
        or "=" in value[:-2]
    ):
        return None
    return Span(start + match.start(group), start + match.start(group) + len(value), "password")


def spoken(page: Page, at: int) -> tuple[list[Span], int]:
    """Passwords in the sentence around the word "password" at `at`, and where the sentence ends.

    A password looks like neither a word nor a version number, or is a quoted phrase.

    >>> spoken(Page.of("my typo: jasper77 must be velvet1978, that is the password of ada"), 54)
    ([Span(start=26, end=36, kind='password')], 65)
    """
    text = page.text
    begin = max(text.rfind("\n", max(0, at - MAX_SENTENCE), at) + 1, at - MAX_SENTENCE)
    end = text.find("\n", at, at + MAX_SENTENCE)
    end = min(len(text), at + MAX_SENTENCE) if end < 0 else end
    # the same speaker goes on
    if (role := _ROLE.match(text, begin)) is not None and text.startswith(role[0], end + 1):
        stop = text.find("\n", end + 1, end + MAX_SENTENCE)
        end = min(len(text), end + MAX_SENTENCE) if stop < 0 else stop
    if text.count(" ", begin, end) < MIN_BLANKS or _NO_SENTENCE.search(text, begin, end):
        return [], end
    passwords = [
        Span(*m.span(1), "password")
        for m in _THOUGHT_UP.finditer(text, begin, end)
        if not _VERSION.match(m[1])
    ]
    passwords += [
        Span(*m.span(1), "password")
        for m in _QUOTED_PHRASE.finditer(text, begin, end)
        if not _ABOUT.search(m[1])
    ]
    return passwords, end


def codes_below(page: Page, at: int) -> Span | None:
    """Recovery codes of a second factor, in rows below a line that announces them.

    >>> codes = "6074a-3ccb3 83d6a-ae720\\n7801c-7acfb 1e55a-bb46e"
    >>> codes_below(Page.of(f"two-factor codes\\n{codes}"), 0)
    Span(start=17, end=64, kind='recovery_codes')
    """
    match = _CODES.match(page.text, at)
    if match is None or len(_CODE.findall(match[1])) < MIN_CODES:
        return None
    return Span(match.start(1), match.start(1) + len(match[1].rstrip()), "recovery_codes")


def wallet_words(page: Page, at: int) -> Span | None:
    """The twelve to twenty-four words of a wallet after a phrase that announces them.

    >>> words = "zebra canvas hamster jewel garlic beach eager feather copper orbit kangaroo lemon"
    >>> wallet_words(Page.of(f"phrase: {words}"), 0)
    Span(start=8, end=89, kind='wallet_words')
    """
    match = _WALLET.match(page.text, at) or _NUMBERED_WALLET.match(page.text, at)
    if match is None:
        return None
    wallet = list(
        takewhile(lambda word: word[0] not in _NO_WALLET, _WORD.finditer(page.text, *match.span(1)))
    )
    if len(wallet) < MIN_WALLET or len({word[0] for word in wallet}) * 2 < len(wallet):
        return None
    return Span(match.start(1), wallet[-1].end(), "wallet_words")
