"""Secrets that only the name before them gives away: `API_KEY=...`, `"password": "..."`, `<token>...</token>`, `--secret ...`.

A name is secret if it ends in one of a few words. Between the name and its value may stand the assignment of any syntax: of shells,
JSON, YAML, XML, SQL, of a subscript, a call, a flag, a header, a URL, a connection string, a table. core/secret_values.py tells whether
the value is a secret. What stands below the name as a YAML block (`private_key: |`) goes with all its lines.
Names are found with str.find and only then looked at closer: one pattern over all text would be ten times slower.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from composer_replication.core.secret_letters import is_random
from composer_replication.core.secret_page import Page, Span
from composer_replication.core.secret_values import OPAQUE, PASSWORD, TOKEN, looks_secret

MAX_NAME = 60
# Words between a name and its value: "the password for the shop is ...". Nothing is tried twice here.
_SAID = r"(?:[ \t][a-z'\u00df-\u00ff]{1,14}+){1,7}+:\s"
_SAID_OF = r"(?:[ \t](?!(?:is|was|\u00e9|ist|est|es)[: ])[a-z'\u00df-\u00ff]{1,14}+){1,7}+[ \t](?:is|was|=|\u00e9|ist|est|es)[: ]"
_TAIL = (
    r"(?:[_-]?(?:key[_-]?base|base64|base|b64|hex|prod|production|dev|staging|stage|live|main|value|val|string|str|text|plain|plaintext|clear|raw"
    r"|[0-9]{1,3}))?(?P<more>(?:_[a-z0-9]{1,16}){1,3})?(?![a-z0-9_])"
    # Nothing but what may begin an assignment: most words are told from names here.
    r"(?=\\{0,7}[\"'`\])>(*:=|\t\n/?+!<-]|\\{1,7}n|[ \t]{1,24}(?:[:=|(\"'`\\?+<\u2502\u2192-]|is |was |set |\u00e9 "
    r"|[05789] |ascii-text |(?=\S{0,40}[\d!@#%^&*])\S{6}|\S{12}|-{1,2}[a-z])"
    rf"|{_SAID}|{_SAID_OF})"
)
_Q = r"\\{0,7}[\"'`]"
_LINE = r"(?:\\?\n[ \t+>|]{0,40})"
_VALUE_WORD = r"(?:value|val|default|defaultvalue|default_value|default-value|data|secretvalue|stringvalue|string_value|content|text)"
# What may stand between a name and its value, tried in this order; the text is in small letters there.
_GLUE = re.compile(
    # {"name": "DB_PASSWORD", "value": "..."}, - name: DB_PASSWORD / value: ..., <add key="Password" value="..."/>
    rf"(?P<pair>(?:{_Q})?\s{{0,4}}(?:,|\n|;|\)|(?<=[\"'`])\s)\s{{0,40}}(?:{_Q}|[-@.] ?)?{_VALUE_WORD}(?:{_Q})?\s{{0,4}}(?:=>|[:=])\s{{0,4}}"
    # gh secret set TOKEN --body "...", --name db-password --value ..., variable "db_password" { default = "..." }
    rf"|[ \t]{{1,4}}(?:[-/][\w-]{{1,20}}[ \t][\w./-]{{1,40}}[ \t]{{1,4}}){{0,3}}(?:-{{1,2}}(?:body|value|secret-string|data"
    rf"|plaintext|content|b|v)|/[dv])(?:[ \t]{{1,4}}|=)"
    rf"|{_Q}\s{{0,4}}\{{[^{{}}\"']{{0,200}}?default\s{{0,8}}=\s{{0,8}})"
    # <password>...</password>, <string name="token">...</string>, <key>token</key><string>..., <td>token</td><td>...
    rf"|(?P<xml>(?:(?:{_Q})?(?:\s{{1,4}}[\w:.-]{{1,20}}=[\"'][^\"'<>\n]{{0,120}}[\"']){{0,2}}\s{{0,2}})?>\s{{0,40}}(?:<!\[cdata\[|<value[^<>\n]{{0,40}}>\s{{0,8}})?"
    rf"|</(?:key|name|td|th|dt|b|code|strong)>:?\s{{0,40}}<(?:string|value|td|dd|code|data)[^<>\n]{{0,40}}>)"
    # "password", "..." / ('password', '...') / password("...") / auth=("name", "...")
    rf"|(?P<call>(?:{_Q}\s{{0,4}})?,\s{{0,40}}(?={_Q})|"
    rf"(?:[ \t]{{0,2}}=[ \t]{{0,2}})?\(\s{{0,4}}{_Q}[^\"'`\n]{{1,64}}{_Q}\s{{0,4}},\s{{0,4}}(?={_Q})|\(\s{{0,2}}(?={_Q}))"
    # name = value, "name": value, ["name"] = value, name: str = value, name := value
    rf"|(?P<assign>(?:{_Q})?[\])]?[ \t]{{0,24}}"
    rf"(?::[ \t]{{0,4}}&?'?[a-z_][\w.]{{0,24}}(?:[ \t][a-z_]\w{{0,20}})?(?:[\[<][^\]>\n=]{{0,30}}[\]>])?"
    rf"(?:[ \t]?\|[ \t]?[a-z]{{2,10}})?\??[ \t]{{1,3}}=(?![=>])|:=|\u2192|\*\*:|:\*\*|\?\??=|\+=|=>|={{1,3}}(?!>)|<-|->|:"
    rf"(?![:/])|!=)[ \t]{{0,24}}(?:{_LINE}(?={_Q}|string\())?)"
    r"|(?P<level>[ \t](?:[05789]|ascii-text|hexadecimal|clear)[ \t](?=\S))"  # a router's: password 7 0822455D0A16
    r"|(?P<table>[ \t]{0,24}(?:\||\u2502)[ \t]{0,24}|\t{1,4}|[ ]{3,40})"
    rf"|(?P<said>(?:{_Q})?[ \t](?:is|was|=|set to|\u00e9|ist|est|es|\u2014)[: ][ \t]?"
    rf"|{_SAID}\s{{0,6}}|{_SAID_OF}[ \t]?)"
    r"|(?P<file>(?:\.(?:txt|key|secret|pem))?[ \t]{0,4}\r?\n(?=[^\s]{16,200}[ \t]{0,4}(?:\r?\n|\Z)))"
    r"|(?P<space>(?:\\?\n)?[ \t]{1,8})"
)
# A value in quotes may stand behind a letter that marks a kind of literal, or in a call that only passes it on.
_OPEN = re.compile(
    r"(?:[brufn@$]{1,2}(?=[\\\"'])|(?:[\w.]{0,30}(?:secretstr|secret|string|str|bytes|some|from|text|new|sensitive|ok|of|literal|trim|encode|quote|arc|box)(?:::new|::from)?\(\s{0,2})|string\(\d{1,4}\)\s{0,2}"
    r"|\[\s{0,2}(?=[\\\"']))?(\\{0,7})([\"'`])",
    re.IGNORECASE,
)
_INSIDE = {q: re.compile(rf"([^{q}\n\\]{{1,300}}(?:\\[^{q}nrt\\\n][^{q}\n\\]{{0,200}}){{0,8}})\\{{0,7}}{q}") for q in "\"'`"}
_BARE = re.compile(r"[^\s\"'`<>\\|\u2502\x00-\x1f]{4,200}")
_LONG_REST = re.compile(r"[A-Za-z0-9._~+/%-]{0,4000}={0,2}")
_CUT = re.compile(r"[,;&|](?=\s|\Z|[\"']?[\w.-]{1,40}[\"']?\s?[=:])|\)[;,.)]|\]\(|%7[cC]|\u2502")
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|apikey|key)\s+(\S+)\Z")
# The lines below `private_key: |`; before their indentation may stand what numbers lines or marks them in a diff.
_BELOW = r"(?:\\{1,3}r|\r)?(?:\n|\\{1,3}n)(?:[ \t]{0,8}\d{1,7}[\t\u2192]|\+)?[ \t]{1,40}"
_BLOCK = re.compile(rf"[\"']?[ \t]{{0,2}}:[ \t]{{0,4}}[|>][+-]?(?={_BELOW})(?P<block>(?:{_BELOW}[^\s\"'`\\]{{4,200}}){{1,100}})")


_INSERT = re.compile(r"insert\s{1,4}into\s{1,4}\S{1,80}\s{0,4}\(([^()]{1,800})\)\s{0,4}values\s{0,8}", re.IGNORECASE)
_ROW = re.compile(r"\(((?:'(?:[^'\\\n]|\\.|''){0,400}'|[^'()\n]){1,60})\)[,;\s]{0,4}")
_FIELD = re.compile(r"\s{0,4}(?:'((?:[^'\\\n]|\\.|''){0,400})'|[^',]{0,200})\s{0,4}(?:,|\Z)")
MAX_ROWS = 200


class Word(NamedTuple):
    """A word that a secret's name ends in: how the word goes on, what the name promises, whether it has to begin a part of the name."""

    word: str
    rest: re.Pattern[str]
    promise: str
    apart: bool
    next: frozenset[str]
    """The letters that may follow it: a look at one letter is much faster than a pattern."""


def _word(word: str, rest: str, promise: str, *, apart: bool = True) -> Word:
    return Word(word, re.compile(rest + _TAIL), promise, apart, _AFTER_WORD | set(filter(str.isalpha, rest.replace("\\s", ""))))


_AFTER_WORD = frozenset(" \t\n\r_-0123456789\\\"'`])>(*:=|,/?+!<.bhpdslmvtcr\u2502")
WORDS = (
    _word("secret", "s?", TOKEN, apart=False),
    _word("token", "", TOKEN, apart=False),
    _word("passw", "(?:or)?d(?:s|(?=[A-Z_]))?|passwrd", PASSWORD, apart=False),
    _word("passphrase", "", PASSWORD, apart=False),
    _word("passcode", "", PASSWORD, apart=False),
    _word("pass", "", PASSWORD),
    _word("pwd", "", PASSWORD),
    _word("pswd", "", PASSWORD),
    _word("psk", "", PASSWORD),
    _word("credential", "s?", TOKEN, apart=False),
    _word("cred", "s?", TOKEN),
    _word("key", "(?:[_-]?id)?", TOKEN, apart=False),
    _word("auth", "", TOKEN),
    _word("mnemonic", "", PASSWORD, apart=False),
    _word("seed_phrase", "", PASSWORD, apart=False),
    _word("seedphrase", "", PASSWORD, apart=False),
    _word("session_id", "", OPAQUE, apart=False),
    _word("phpsessid", "", OPAQUE, apart=False),
    _word("_session", "", OPAQUE, apart=False),
    _word("signature", "", OPAQUE, apart=False),
    _word("sig", "", OPAQUE),
    _word("salt", "", PASSWORD),
    _word("_pat", "", TOKEN, apart=False),
    _word("jwt", "", TOKEN),
    _word("hmac", "", OPAQUE),
    _word("webhook", "(?:[_-]?ur[il])?", OPAQUE),
    _word("cookie", "", OPAQUE),
    _word("appid", "", OPAQUE),
    _word("key-data", "", TOKEN, apart=False),
    _word("pw", "", PASSWORD),
    _word("sonar.login", "", TOKEN, apart=False),
    _word("securestring", r"(?:\s+-string)?", PASSWORD, apart=False),
    _word("accounts", "", OPAQUE),
    _word("passwort", "", PASSWORD, apart=False),
    _word("mot de passe", "", PASSWORD),
    _word("kennwort", "", PASSWORD, apart=False),
    _word("wachtwoord", "", PASSWORD, apart=False),
    _word("contrase\u00f1a", "", PASSWORD, apart=False),
    _word("senha", "", PASSWORD, apart=False),
    _word("\u043f\u0430\u0440\u043e\u043b\u044c", "", PASSWORD, apart=False),
    _word("\u5bc6\u7801", "", PASSWORD, apart=False),
)
_KEY_BEFORE = tuple(
    word + sep
    for word in (
        *(
            "api",
            "access",
            "private",
            "auth",
            "account",
            "encryption",
            "encrypt",
            "signing",
            "sign",
            "secret",
            "master",
            "service",
            "app",
            "application",
        ),
        *(
            "storage",
            "shared",
            "subscription",
            "deploy",
            "webhook",
            "hmac",
            "jwt",
            "client",
            "license",
            "write",
            "admin",
            "root",
            "security",
        ),
        *(
            "server",
            "project",
            "integration",
            "ssh",
            "rsa",
            "aes",
            "ingest",
            "preshared",
            "function",
            "host",
            "consumer",
            "crypto",
            "data",
            "session",
            "stripe",
            "openai",
        ),
    )
    for sep in ("", "_", "-", ".", " ")
)
_MAX_KEY_BEFORE = max(map(len, _KEY_BEFORE))
_PASS_BEFORE = (
    "db",
    "user",
    "root",
    "admin",
    "my",
    "smtp",
    "ftp",
    "ssh",
    "pg",
    "http",
    "proxy",
    "mail",
    "store",
    "key",
    "sql",
    "redis",
    "mongo",
    "vault",
    "bind",
    "api",
    "app",
    "web",
)
_NAME_BACKWARDS = re.compile(r"[A-Za-z0-9_.-]{0,60}")
_HARMLESS_NAME = re.compile(
    r"(?:^|[._-])(?:next|prev|previous|page|pages|continuation|pad|eos|bos|unk|cls|sep|mask|stop|start|end|special|cancel|cancellation|sync|num|max|min|total|count|n)"
    r"[_.-]?(?:page)?[_.-]?tokens?\Z|(?:^|[._-])(?:next|page|pad|eos|bos|unk|cancellation|continuation|sync)token\Z"
    r"|(?:public|pub|publishable|primary|foreign|cache|sort|partition|hash|idempotency|object|row|group|map|dict|state|lookup|item|unique|column|index|accept"
    r"|websocket|i18n|translation|translate|message|hot|short|react|query|registry|route|routing|known|host|dedupe|dedup|artifact|bucket|blob|s3|aws\.s3|file|natural"
    r"|surrogate|composite|document|record|node|tree|kv|etcd|redis|metric|event|job|task|queue|lock|flag|feature|config|setting|settings|ordering|order|range)[_.-]?keys?\Z"
)
_MORE_HARMLESS = re.compile(
    r"_(?:count|counts|type|types|name|names|path|file|url|uri|id|ids|len|length|size|limit|ttl|expiry|expires|field|hash|policy|regex|pattern|prefix|header|arn|version|env|var|dir|usage|budget|index|rotation|algorithm|alg|format|bits|bytes|min|max)(?:_|\Z)"
)
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}\Z")
_COMMAND_BEFORE = re.compile(
    r"(?i)(?:\b(?:set|setx|setenv|env|export|config|configure|arg|put|add|secret|secrets|global|-gx|-x|--global|password"
    r"|user|login)[ \t]{1,4}(?:[\w./:@-]{1,60}[ \t]{1,4})?)\Z"
)
_PASSWORD_NAME = re.compile(r"(?i)passw|passphrase|passcode|pwd|pswd|(?:^|[^a-z])pass\Z|[a-z]Pass\Z|mnemonic")
_WORDS_OF_PHRASE = re.compile(r"[a-z]{2,12}(?:[ -][a-z]{2,12}){2,30}\Z")
_FILLED_IN = re.compile(r"\$[({]|\{\{|%\(|<%")
_ASKS = re.compile(r"\b(?:your|the|is|must|enter|please|password|passphrase|forgot|invalid|incorrect|new|confirm|for|not|with|this)\b")
_SHOWS = re.compile(r"(?:\b(?:cat|head|tail|less|more|type|bat|Get-Content|gc|print|pass|show)[ \t][^\n]{0,80}|[~/.][\w./-]{0,60})\Z")
_MIXED_CASE = re.compile(r"[a-z][A-Z]|[A-Z][a-z]|[a-z]\d[A-Z]|[A-Z]\d[a-z]")
_SYMBOLS = re.compile(r"[!#%^&*+~$]")
_NUMBERED = re.compile(r"[A-Za-z]?[a-z]+[_-]?\d+\W?\Z")
_LONG_HEX = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{64}|[0-9a-f]{48})\Z")
_HEX_ONLY = re.compile(r"[0-9a-f]{16,}\Z")
_BELOW_IT = re.compile(r"-?[ \t\u2502|]{0,60}\r?\n[ \t\u2502|>+]{0,60}([A-Za-z0-9+/_-]{4,200}={0,2})(?=[ \t\u2502|]{0,60}(?:\r?\n|\Z))")
_DATED = re.compile(r"\d{4}-\d\d|\d{1,5}\Z")
MIN_SALT, MIN_SALT_SYMBOLS = 32, 6


def assigned_at(page: Page, at: int, word: Word) -> Span | None:
    """Where the value stands that is assigned to a name with one of WORDS at `at`, if it looks secret.

    >>> assigned_at(Page.of("DB_PASSWORD=tr0ub4dor&3x"), 3, WORDS[2])
    Span(start=12, end=24, kind='password')
    """
    end = at + len(word.word)
    if page.low[end : end + 1] not in word.next:
        return None
    match = word.rest.match(page.low, end)
    return None if match is None else _assigned(page, at, match.end(), word, match["more"])


def secret_under(name: str, value: str) -> str | None:
    """The kind of secret that a value is under a name, as in a table {name: value}, or None.

    >>> secret_under("db_password", "tr0ub4dor&3x"), secret_under("path", "tr0ub4dor&3x")
    ('password', None)
    """
    if "\n" in value or '"' in value or not MIN_VALUE <= len(value) <= MAX_VALUE:
        return None
    prefix = f'{name}="'
    page = Page.of(f'{prefix}{value}"')
    for word in WORDS:
        at = page.low.rfind(word.word, 0, len(prefix))
        if at >= 0 and (span := assigned_at(page, at, word)) is not None and span.start == len(prefix):
            return span.kind
    return None


MIN_VALUE, MAX_VALUE, MAX_BARE = 4, 400, 200
MAX_EQUALS, MAX_COLONS = 6, 8


def inserted_secrets(text: str, at: int) -> list[Span]:
    """Secrets in the rows of an INSERT, each judged by the name of its column.

    >>> inserted_secrets("INSERT INTO users (name, password) VALUES ('ada', 'tr0ub4dor&3x');", 0)
    [Span(start=51, end=63, kind='password')]
    """
    head = _INSERT.match(text, at)
    if head is None:
        return []
    columns = [column.strip("`\" []\n\t'") for column in head[1].split(",")]
    spans, position = list[Span](), head.end()
    for _ in range(MAX_ROWS):
        row = _ROW.match(text, position)
        if row is None:
            break
        for column, field in zip(columns, _FIELD.finditer(row[1]), strict=False):
            if field[1] and (kind := secret_under(column, field[1])) is not None:
                spans.append(Span(row.start(1) + field.start(1), row.start(1) + field.end(1), kind))
        position = row.end()
    return spans


def _assigned(page: Page, at: int, end: int, word: Word, more: str | None) -> Span | None:
    """Where the value stands that is assigned to the name whose last word is at `at`, if it looks secret."""
    glue = _GLUE.match(page.low, end)
    if glue is None:
        return None
    text = page.text
    if text.endswith("[REDACTED:", 0, at):  # the kind in a mask is no name
        return None
    name = _name(text, at, end)
    promise = _promise(page, at, end, name, word, more)
    if promise is None:
        return None
    if word.promise != OPAQUE and (block := _BLOCK.match(text, end)) is not None:
        return _block(text, block, name, promise)
    kind = "password" if _PASSWORD_NAME.search(name) else "assigned_secret"
    return _value(text, at - (len(name) - (end - at)), glue, kind, promise)


def _name(text: str, at: int, end: int) -> str:
    """The whole name of which a secret's word stands at `at`."""
    before = _NAME_BACKWARDS.match(text[max(0, at - MAX_NAME) : at][::-1])
    start = at - (len(before[0]) if before else 0)
    if text[start - 1 : start] == "\\" and start < at and text[start] in "nrt":  # the end of a JSON "\n"
        start += 1
    return text[start:end]


def _promise(page: Page, at: int, end: int, name: str, word: Word, more: str | None) -> str | None:
    """What a name promises of its value, or None where it is no secret's name."""
    text, low_name = page.text, name.lower()
    if more and (not _ENV_NAME.match(name) or _MORE_HARMLESS.search(more)):
        return None
    if _HARMLESS_NAME.search(low_name):
        return None
    before = text[at - 1 : at]
    apart = not before.isalnum() or (text[at].isupper() and not before.isupper()) or (before.isdigit())
    if word.apart and not apart and not (word.word in ("pass", "pw", "pwd") and page.low.endswith(_PASS_BEFORE, max(0, at - 8), at)):
        return None
    if word.word.startswith("session") and page.low[end : end + 1] not in (
        "=",
        "\t",
    ):  # in a log it names the session, in a cookie it opens it
        return None
    if word.word == "key":
        if page.low.endswith(_KEY_BEFORE, max(0, at - _MAX_KEY_BEFORE), at):
            return OPAQUE if more else TOKEN
        if before in ("?", "&"):  # the name in a URL
            return OPAQUE
        return OPAQUE if (apart and len(name) > end - at and before in ("_", "-", ".")) or (apart and before.isalnum()) else None
    return OPAQUE if more else word.promise


def _block(text: str, match: re.Match[str], name: str, promise: str) -> Span | None:
    """All lines of a YAML block if the first of them looks secret."""
    start, end = match.span("block")
    start += len(match["block"]) - len(re.sub(rf"\A{_BELOW}", "", match["block"]))
    first = re.split(r"[\s\\]", text[start:end], maxsplit=1)[0]
    kind = "password" if _PASSWORD_NAME.search(name) else "assigned_secret"
    return Span(start, end, kind) if len(first) >= 8 and looks_secret(promise, first, quoted=True) else None


def _value(text: str, name_at: int, glue: re.Match[str], kind: str, promise: str) -> Span | None:
    """Where the value behind a glue stands if it looks secret."""
    how, start = glue.lastgroup or "", glue.end()
    name = text[name_at : glue.start()]
    before = text[max(0, name_at - 3) : name_at]
    if name == "PASS" and ":" in glue[0]:  # the verdict of a test
        return None
    if how == "xml" and not _in_markup(text, name_at, glue):
        return None
    opened = _OPEN.match(text, start)
    if opened is not None:
        return _quoted(text, opened, name, how, kind, promise)
    flag = "--" in name or name.startswith("-")
    if how == "call":
        return None
    if how == "file" and not _SHOWS.search(text, max(0, name_at - 90), name_at):
        return None
    bare = _BARE.match(text, start)
    if bare is None:
        return None
    in_command = how == "space" and (flag or ("\n" not in glue[0] and bool(_COMMAND_BEFORE.search(text, max(0, name_at - 90), name_at))))
    value = bare[0]
    if value.rstrip("=").count("=") > MAX_EQUALS or value.count(":") > MAX_COLONS:  # no value, but a row of pairs
        return None
    query = before.endswith(("?", "&", ";")) or before.endswith(("amp;", "3b", "26"))
    if how == "xml" and promise != OPAQUE and " " in text[start : text.find("<", start)].strip():
        return None
    value = _trimmed(value)
    if len(value) == MAX_BARE and is_random(value):
        value += _LONG_REST.match(text, start + len(value))[0]  # type: ignore[index]
    exact = how == "assign" and glue[0] in ("=", ":=")
    literal = how == "xml" or (flag and how == "assign") or (exact and (query or bool(_ENV_NAME.match(name)) or "." in name.strip(".")))
    if (how in ("said", "file") or (how == "space" and not in_command)) and not _stands_out(value, promise):
        return None
    end = start + len(value)
    if how in ("assign", "table", "space", "pair") and (joined := _goes_on(text, start, end)) is not None:
        value, end = joined
    if not looks_secret(promise, value, literal=literal or how == "level"):
        return None
    return Span(start, end, kind)


def _stands_out(value: str, promise: str) -> bool:
    """Whether a value cannot be a word of a sentence: letters of both cases and digits mixed, long hex."""
    if promise != OPAQUE and len(value) >= 8 and any(map(str.isdigit, value)) and (_MIXED_CASE.search(value) or _SYMBOLS.search(value)):
        return is_random(value) or (promise == PASSWORD and not _NUMBERED.match(value))
    return bool(_LONG_HEX.match(value))


def _goes_on(text: str, start: int, end: int) -> tuple[str, int] | None:
    """A value that a narrow column or screen broke, with the lines below that hold nothing but its rest; and where it ends."""
    value, stop = text[start:end], end
    while (below := _BELOW_IT.match(text, stop)) is not None and _is_rest(below[1], value):
        value, stop = value.rstrip("-") + below[1] if below[0].startswith("-") else value + below[1], below.end(1)
    return (value, stop) if stop > end else None


def _is_rest(rest: str, value: str) -> bool:
    if not any(map(str.isdigit, rest)) or _DATED.match(rest):
        return False
    return (
        len(rest) <= 200
        and (any(map(str.isalpha, rest)) or len(rest) > 5)
        and (is_random(rest) or is_random(value + rest) or bool(_HEX_ONLY.match(value + rest)))
    )


def _in_markup(text: str, name_at: int, glue: re.Match[str]) -> bool:
    """Whether a name that ">" follows is that of an element or the value of an attribute."""
    if not glue[0].startswith(">"):
        return True
    before = text[max(0, name_at - 12) : name_at]
    return before.endswith("<") or bool(re.search(r"<[\w-]{1,10}:\Z", before))


def _quoted(text: str, opened: re.Match[str], name: str, how: str, kind: str, promise: str) -> Span | None:
    """Where a value in quotes stands if it looks secret."""
    inside = _INSIDE[opened[2]].match(text, opened.end())
    if inside is None:
        return None
    value, start = inside[1], opened.end()
    if " " in value or "\t" in value:
        scheme = _SCHEME.match(value)
        if scheme is None:
            return Span(start, start + len(value), kind) if _is_phrase(value, kind, promise) else None
        start, value = start + scheme.start(1), scheme[1]
    literal = how == "assign" and bool(_ENV_NAME.match(name)) and text[opened.start() - 1] == "="
    return _judged(start, value, promise, kind, quoted=True, literal=literal)


def _is_phrase(value: str, kind: str, promise: str) -> bool:
    """Whether a value with blanks in it is a pass phrase, a wallet's words, or one of the salts of a blog."""
    if kind == "password" and _WORDS_OF_PHRASE.match(value):
        return not _ASKS.search(value)
    if _FILLED_IN.search(value):
        return False
    symbols = sum(not c.isalnum() and c != " " for c in value)
    return len(value) >= MIN_SALT and symbols >= MIN_SALT_SYMBOLS and value.count(" ") <= len(value) // 12 and promise != PASSWORD


def _trimmed(value: str) -> str:
    """A value without what follows it: the next pair of a list, a bracket that was opened before it."""
    cut = _CUT.search(value)
    if cut is not None:
        value = value[: cut.start()]
    while value and value[-1] in ".,:;)]}|*" and not (value[-1] in ")]}" and {")": "(", "]": "[", "}": "{"}[value[-1]] in value):
        value = value[:-1]
    return value


def _judged(start: int, value: str, promise: str, kind: str, *, quoted: bool, literal: bool) -> Span | None:
    if not looks_secret(promise, value, quoted=quoted, literal=literal):
        return None
    return Span(start, start + len(value), kind)
