"""Secrets that only the name before them gives away: `API_KEY=...`, `"password": "..."`,
`<token>...</token>`, `--secret ...`.

core/secret_words.py decides which names promise a secret, core/secret_glue.py what may be between a
name and its value, and core/secret_values.py whether the value is a secret. A YAML block below a
name (`private_key: |`) is removed whole. Names are found with str.find and only then examined: one
pattern over all text would be ten times slower.
"""

from __future__ import annotations

import re

from composer_replication.core.secret_glue import BARE, ESCAPED, GLUE, INSIDE, MAX_BACKSLASHES, OPEN
from composer_replication.core.secret_letters import is_random
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_values import OPAQUE, PASSWORD, looks_secret, stands_out
from composer_replication.core.secret_words import WORDS, Word, is_name_of_secret, promise_of

MAX_NAME = 60
_LONG_REST = re.compile(r"[A-Za-z0-9._~+/%-]{0,4000}={0,2}")
_CUT = re.compile(r"[,;&|](?=\s|\Z|[\"']?[\w.-]{1,40}[\"']?\s?[=:])|\)[;,.)]|\]\(|%7[cC]|\u2502")
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|apikey|key)\s+(\S+)\Z")
# The lines below `private_key: |`; before their indentation may stand what numbers lines or marks
# them in a diff.
_BELOW = r"(?:\\{1,3}r|\r)?(?:\n|\\{1,3}n)(?:[ \t]{0,8}\d{1,7}[\t\u2192]|\+)?[ \t]{1,40}"
_BLOCK = re.compile(
    r"[\"']?[ \t]{0,2}:["
    rf" \t]{{0,4}}[|>][+-]?(?={_BELOW})(?P<block>(?:{_BELOW}[^\s\"'`\\]{{4,200}}){{1,100}})"
)
_NAME_BACKWARDS = re.compile(r"[A-Za-z0-9_.-]{0,60}")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}\Z")
_COMMAND_BEFORE = re.compile(
    r"(?i)(?:\b(?:set|setx|setenv|env|export|config|configure|arg|put|add|secret|secrets|global|-gx|-x|--global|password"
    r"|user|login)[ \t]{1,4}(?:[\w./:@-]{1,60}[ \t]{1,4})?)\Z"
)
_PASSWORD_NAME = re.compile(
    r"(?i)passw|passphrase|passcode|pwd|pswd|(?:^|[^a-z])pass\Z|[a-z]Pass\Z|mnemonic"
)
_WORDS_OF_PHRASE = re.compile(r"[a-z]{2,12}(?:[ -](?:[a-z]{1,12}|\d{1,4})){2,30}\Z")
_ANY_PHRASE = re.compile(r"[^\W_][\w'!?,.-]{0,20}(?: [\w'!?,.&-]{1,20}){2,12}\Z")
_SURE_NAME = re.compile(r"(?i)passphrase|psk|passin|passout|pgpass|mysql_pwd")
_SPEAKS = re.compile(
    r"(?i)\b(?:your|must|enter|please|password|passphrase|passwort|forgot|invalid|incorrect|required|confirm|characters|optional)\b"
)
_PHRASE_TO_THE_END = re.compile(
    r"[a-z]{2,12}(?: (?:[a-z]{1,12}|\d{1,4})){2,12}(?=[ \t]{0,4}\r?(?:\n|\Z))"
)
_LINE_OF_SETTINGS = re.compile(r"(?:\A|\n)(?:[ \t]{0,8}\d{1,6}[\t\u2192:][ \t]{0,8}|[+ -]{0,8})\Z")
# an f-string, code
_FILLED_IN = re.compile(r"\$[({]|\{\{|%\(|<%|\{[A-Za-z_'][^{}]{0,80}\}|[A-Za-z_]\w{3,40}\(|::")
_ASKS = re.compile(
    r"\b(?:your|the|is|must|enter|please|password|passphrase|forgot|invalid|incorrect|new|confirm|for|not|with|this)\b"
)
_SHOWS = re.compile(
    r"(?:\b(?:cat|head|tail|less|more|type|bat|Get-Content|gc|print|pass|show)["
    r" \t][^\n]{0,80}|[~/.][\w./-]{0,60})\Z"
)
_HEX_ONLY = re.compile(r"[0-9a-f]{16,}\Z")
_BELOW_IT = re.compile(
    r"-?[ \t\u2502|]{0,60}\r?\n[ \t\u2502|>+]{0,60}([A-Za-z0-9+/_-]{4,200}={0,2})(?=["
    r" \t\u2502|]{0,60}(?:\r?\n|\Z))"
)
# 'ssh2_auth_password', 'ssh2_auth_pubkey_file'
_NAMES_OF_A_LIST = re.compile(r"(?:[a-z]+[0-9]{0,4}[_:-])+[a-z]+[0-9]{0,3}\Z|[A-Z_]+\Z")
# `Ed448PrivateKey | X25519PrivateKey`
_TYPE = re.compile(r"[a-z0-9](?:Key|Token|Secret|Password|Credential|Auth)s?\Z")
_HUMAN = re.compile(r"(?=[^\s]{0,40}\d)(?=[^\s]{0,40}(?:[A-Z]|[a-z]{5}))[A-Za-z][\w.!+#@-]{7,40}\Z")
_ESCAPES = re.compile(r"\\+(?:u00)?")
_NOTHING_BEHIND = re.compile(
    r"[ \t]{0,4}(?:\r?\n|\Z|,[a-z_]{2,20}=|[ ][\w.-]{1,30}=|;(?:\s|\Z|\w))"
)
_END_OF_LINE = re.compile(r"[ \t]{0,4}\r?(?:\n|\Z)")
MAX_BEFORE, MAX_WORDS_BEFORE = 60, 2
_SLUG = re.compile(r"[a-z]+[0-9]*(?:[_-][a-z]+[0-9]*)+\Z")  # "autotune-config-v2"
_DATED = re.compile(r"\d{4}-\d\d|\d{1,5}\Z")
_FORM_FIELD = ('name="', "name='", 'name=\\"')
MIN_SALT, MIN_SALT_SYMBOLS = 32, 6
MAX_LINES = 16
"""A narrow screen breaks a value into so many lines at most."""


def assigned_at(page: Page, at: int, word: Word) -> Span | None:
    """The span of the value assigned to a name that holds a word of WORDS at `at`, if secret.

    >>> assigned_at(Page.of("DB_PASSWORD=tr0ub4dor&3x"), 3, WORDS[2])
    Span(start=12, end=24, kind='password')
    """
    end = at + len(word.word)
    if page.low[end : end + 1] not in word.next:
        return None
    match = word.rest.match(page.low, end)
    return None if match is None else _assigned(page, at, match.end(), word, match["more"])


def secret_under(name: str, value: str) -> str | None:
    """The kind of secret that `value` is as the value of `name` in a table, or None.

    >>> secret_under("db_password", "tr0ub4dor&3x"), secret_under("path", "tr0ub4dor&3x")
    ('password', None)
    """
    if (
        "\n" in value
        or '"' in value
        or not MIN_VALUE <= len(value) <= MAX_VALUE
        or not is_name_of_secret(name)
    ):
        return None
    prefix = f'{name}="'
    page = Page.of(f'{prefix}{value}"')
    for word in WORDS:
        at = page.low.rfind(word.word, 0, len(prefix))
        if (
            at >= 0
            and (span := assigned_at(page, at, word)) is not None
            and span.start == len(prefix)
        ):
            return span.kind
    return None


MIN_VALUE, MAX_VALUE, MAX_BARE = 4, 400, 200
MAX_EQUALS, MAX_COLONS = 6, 8


def _assigned(page: Page, at: int, end: int, word: Word, more: str | None) -> Span | None:
    """The span of the value that is assigned to the name whose last word is at `at`, if secret."""
    glue = GLUE.match(page.low, end)
    if glue is None:
        return None
    text = page.text
    if text.endswith("[REDACTED:", 0, at):  # the kind in a mask is no name
        return None
    name = _name(text, at, end)
    promise = promise_of(page, at, end, name=name, word=word, more=more)
    if promise is None:
        return None
    if word.promise != OPAQUE and (block := _BLOCK.match(text, end)) is not None:
        return _block(text, block, name, promise)
    kind = (
        "password" if _PASSWORD_NAME.search(name) or word.promise == PASSWORD else "assigned_secret"
    )
    return _value(text, at - (len(name) - (end - at)), glue, kind, promise)


def _name(text: str, at: int, end: int) -> str:
    """The whole name around the secret's word at `at`."""
    before = _NAME_BACKWARDS.match(text[max(0, at - MAX_NAME) : at][::-1])
    start = at - (len(before[0]) if before else 0)
    # the end of a JSON "\n"
    if text[start - 1 : start] == "\\" and start < at and text[start] in "nrt":
        start += 1
    return text[start:end]


def _block(text: str, match: re.Match[str], name: str, promise: str) -> Span | None:
    """The span of a YAML block, if its first line looks secret."""
    start, end = match.span("block")
    start += len(match["block"]) - len(re.sub(rf"\A{_BELOW}", "", match["block"]))
    first = re.split(r"[\s\\]", text[start:end], maxsplit=1)[0]
    kind = "password" if _PASSWORD_NAME.search(name) else "assigned_secret"
    return (
        Span(start, end, kind)
        if len(first) >= 8 and looks_secret(promise, first, quoted=True)
        else None
    )


def _value(text: str, name_at: int, glue: re.Match[str], kind: str, promise: str) -> Span | None:
    """The span of the value behind a glue, if it looks secret."""
    glue_kind, start = glue.lastgroup or "", glue.end()
    name = text[name_at : glue.start()]
    before = text[max(0, name_at - 3) : name_at]
    if name == "PASS" and ":" in glue[0]:  # the verdict of a test
        return None
    if glue_kind == "xml" and not _in_markup(text, name_at, glue):
        return None
    opened = OPEN.match(text, start)
    if opened is not None:
        return _quoted(text, opened, name, glue_kind, kind, promise, glue[0].count(" "))
    flag = "--" in name or name.startswith("-") or (before.endswith("/") and glue[0] == ":")
    if not _may_be_bare(text, name_at, glue_kind):
        return None
    bare = BARE.match(text, start)
    if bare is None or (glue_kind == "file" and bare[0].count(":") > 2):  # a line of .pgpass
        return None
    if (
        glue_kind == "assign"
        and kind == "password"
        and (phrase := _phrase_to_the_end(text, name_at, start, name)) is not None
    ):
        return phrase
    in_command = glue_kind == "space" and (
        flag
        or (
            "\n" not in glue[0]
            and bool(_COMMAND_BEFORE.search(text, max(0, name_at - 90), name_at))
        )
    )
    value = bare[0]
    # a row of pairs, not a value
    if value.rstrip("=").count("=") > MAX_EQUALS or value.count(":") > MAX_COLONS:
        return None
    query = before.endswith(("?", "&", ";")) or before.endswith(("amp;", "3b", "26"))
    if (
        glue_kind == "xml"
        and promise != OPAQUE
        and " " in text[start : text.find("<", start)].strip()
    ):
        return None
    value = _trimmed(value.split("@")[0] if before == "://" else value)
    if len(value) == MAX_BARE and is_random(value):
        value += _LONG_REST.match(text, start + len(value))[0]  # type: ignore[index]
    exact = glue_kind == "assign" and glue[0] in ("=", ":=")
    literal = (
        glue_kind in ("xml", "form")
        or (flag and exact)
        or (exact and (query or bool(_ENV_NAME.match(name)) or "." in name.strip(".")))
    )
    stop = start + len(value)
    human = promise == PASSWORD and bool(_HUMAN.match(value))
    in_sentence = glue_kind in ("said", "file") or (glue_kind == "space" and not in_command)
    alone = glue_kind == "space" and human and _ends_line_of_settings(text, name_at, stop)
    if in_sentence and not alone and not stands_out(value, promise):
        return None
    # Behind a flag or in a column stands no code: a word with a number is a password there.
    human = human and (flag or glue_kind == "table" or _is_setting(text, stop, glue[0], glue_kind))
    return _bare(text, start, value, glue_kind, kind, promise, literal=literal or human)


def _may_be_bare(text: str, name_at: int, glue_kind: str) -> bool:
    """Whether a value after this glue may be unquoted."""
    if glue_kind == "file":
        return bool(_SHOWS.search(text, max(0, name_at - 90), name_at))
    return glue_kind not in ("call", "fallback") and (
        glue_kind != "form" or text.endswith(_FORM_FIELD, 0, name_at)
    )


def _bare(
    text: str, start: int, value: str, glue_kind: str, kind: str, promise: str, *, literal: bool
) -> Span | None:
    """The span of an unquoted value, with the lines that continue it, if it looks secret."""
    if glue_kind == "table" and _TYPE.search(value):
        return None
    end = start + len(value)
    if (
        glue_kind in ("assign", "table", "space", "pair")
        and (joined := goes_on(text, start, end)) is not None
    ):
        value, end = joined
    is_level = glue_kind == "level"  # a router's: whatever its name is, somebody thought it up
    return (
        Span(start, end, kind)
        if looks_secret(PASSWORD if is_level else promise, value, literal=literal or is_level)
        else None
    )


def _is_setting(text: str, end: int, glue: str, glue_kind: str) -> bool:
    """Whether the line or the pair ends after the value; a call or an expression would go on."""
    return (
        glue_kind in ("assign", "space")
        and glue.strip() in ("=", ":", "")
        and bool(_NOTHING_BEHIND.match(text, end))
    )


def _ends_line_of_settings(text: str, name_at: int, end: int) -> bool:
    """Whether a short line holds only a name and a value: `password Velvet1978`."""
    begin = text.rfind("\n", max(0, name_at - MAX_BEFORE), name_at) + 1
    return text.count(" ", begin, name_at) <= MAX_WORDS_BEFORE and bool(
        _END_OF_LINE.match(text, end)
    )


def _phrase_to_the_end(text: str, name_at: int, start: int, name: str) -> Span | None:
    """An unquoted pass phrase up to the line's end: `gpg_passphrase = four small words here`."""
    if not (_SURE_NAME.search(name) or text[start - 2 : start] in ("= ", "d=")):
        return None
    phrase = _PHRASE_TO_THE_END.match(text, start)
    if (
        phrase is None
        or _ASKS.search(phrase[0])
        or not _LINE_OF_SETTINGS.search(text, max(0, name_at - 16), name_at)
    ):
        return None
    return Span(start, phrase.end(), "password")


def goes_on(text: str, start: int, end: int) -> tuple[str, int] | None:
    """(value, end) of a value joined with the lines below that only continue it; None without any.

    Narrow columns and screens wrap values.
    """
    value, stop = text[start:end], end
    for _ in range(MAX_LINES):
        below = _BELOW_IT.match(text, stop)
        if below is None or not _is_rest(below[1], value):
            break
        value, stop = (
            (value.rstrip("-") + below[1] if below[0].startswith("-") else value + below[1]),
            below.end(1),
        )
    return (value, stop) if stop > end else None


def _is_rest(continuation: str, value: str) -> bool:
    if not any(map(str.isdigit, continuation)) or _DATED.match(continuation):
        return False
    return (
        len(continuation) <= 200
        and (any(map(str.isalpha, continuation)) or len(continuation) > 5)
        and (
            is_random(continuation)
            or is_random(value + continuation)
            or bool(_HEX_ONLY.match(value + continuation))
        )
    )


def _in_markup(text: str, name_at: int, glue: re.Match[str]) -> bool:
    """Whether a name before ">" is an element's name; True if the glue does not begin with ">"."""
    if not glue[0].startswith(">"):
        return True
    before = text[max(0, name_at - 12) : name_at]
    return before.endswith("<") or bool(re.search(r"<[\w-]{1,10}:\Z", before))


def _quoted(
    text: str,
    opened: re.Match[str],
    name: str,
    glue_kind: str,
    kind: str,
    promise: str,
    glue_words: int,
) -> Span | None:
    """The span of a quoted value, if it looks secret."""
    inside = INSIDE[opened[2]].match(text, opened.end())
    # the quote that ended it belongs to the value
    if inside is None or inside.end() - inside.end(1) - 1 > len(opened[1]):
        inside = _within(opened).match(text, opened.end()) or inside
    if inside is None:
        return None
    value, start = inside[1], opened.end()
    if glue_kind == "said" and not stands_out(value, promise) and glue_words > 2:
        return None
    if name.lower().endswith("salt") and _SLUG.match(value):
        return None
    if (glue_kind == "call" and _NAMES_OF_A_LIST.match(value)) or (
        name.lower() == "pass" and glue_kind == "space" and not stands_out(value, promise)
    ):
        return None
    if " " in value or "\t" in value:
        scheme = _SCHEME.match(value)
        if scheme is None:
            sure = (
                name.startswith("-")
                or bool(_SURE_NAME.search(name))
                or (glue_kind == "assign" and bool(_ENV_NAME.match(name)))
            )
            return (
                Span(start, start + len(value), kind)
                if _is_phrase(value, kind, promise, sure=sure)
                else None
            )
        start, value = start + scheme.start(1), scheme[1]
    literal = (
        glue_kind == "assign"
        and bool(_ENV_NAME.match(name) or _SURE_NAME.search(name))
        and text[opened.start() - 1] == "="
    )
    return _judged(start, value, promise, kind, quoted=True, literal=literal)


def _within(opened: re.Match[str]) -> re.Pattern[str]:
    """The pattern of a value with inner quotes: these have more backslashes than the outer ones."""
    return ESCAPED[opened[2], min(len(opened[1]), MAX_BACKSLASHES)]


def _is_phrase(value: str, kind: str, promise: str, *, sure: bool) -> bool:
    """Whether a value with spaces is a pass phrase, a wallet's words, or a random salt.

    `sure` = the name shows that it is no text of a user interface.
    """
    if kind == "password" and sure and _ANY_PHRASE.match(value):
        return not _SPEAKS.search(value)
    if kind == "password" and _WORDS_OF_PHRASE.match(value):
        return not _ASKS.search(value)
    if _FILLED_IN.search(value):
        return False
    symbols = sum(not c.isalnum() and c != " " for c in value)
    return (
        len(value) >= MIN_SALT
        and symbols >= MIN_SALT_SYMBOLS
        and value.count(" ") <= len(value) // 12
        and promise != PASSWORD
    )


def _trimmed(value: str) -> str:
    """Cut off what follows a value: the next pair, or a bracket that was opened before it."""
    cut = _CUT.search(value)
    if cut is not None:
        value = value[: cut.start()]
    while (
        value
        and value[-1] in ".,:;)]}|*"
        and not (value[-1] in ")]}" and {")": "(", "]": "[", "}": "{"}[value[-1]] in value)
    ):
        value = value[:-1]
    return value


def _judged(
    start: int, value: str, promise: str, kind: str, *, quoted: bool, literal: bool
) -> Span | None:
    content = value.replace('""', "").replace("''", "")
    content = _ESCAPES.sub("", content) if quoted and "\\\\" in content else content
    if not looks_secret(promise, content, quoted=quoted, literal=literal):
        return None
    return Span(start, start + len(value), kind)
