"""The names that promise a secret: the words that they end in, in several languages, and
exceptions.

    WORDS[0].word                        # "secret"; secret_search.py finds all of them in one pass
    promise_of(page, at, end, name=...)  # PASSWORD, TOKEN, OPAQUE or None (e.g. "next_page_token")

The promise of a name decides how much evidence its value needs (core/secret_values.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from composer_replication.core.secret_glue import NEXT_LETTERS, TAIL
from composer_replication.core.secret_page import Page
from composer_replication.core.secret_values import OPAQUE, PASSWORD, TOKEN

_ASCII_ONLY = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")


class Word(NamedTuple):
    """A word that a secret's name ends in: how the word goes on, what the name promises, whether it
    has to begin a part of the name."""

    word: str
    rest: re.Pattern[str]
    promise: str
    apart: bool
    next: frozenset[str]
    """The letters that may follow it: a look at one letter is much faster than a pattern."""


def _word(word: str, rest: str = "", promise: str = TOKEN, *, apart: bool = True) -> Word:
    """A word; `rest` is a pattern of what may still belong to it."""
    return Word(
        word,
        re.compile(f"(?:{rest}){TAIL}"),
        promise,
        apart,
        NEXT_LETTERS | set(filter(str.isalpha, rest.replace("\\s", ""))),
    )


_ENGLISH = (
    _word("secret", "(?:s|[_ -]?id)?", apart=False),
    _word("token", apart=False),
    _word("passw", "(?:(?:or)?ds?|rd)", PASSWORD, apart=False),
    _word("passphrase", "", PASSWORD, apart=False),
    _word("passcode", "", PASSWORD, apart=False),
    _word("pass", "", PASSWORD),
    _word("pwd", "", PASSWORD),
    _word("pswd", "", PASSWORD),
    _word("psk", "", PASSWORD),
    _word("psksecret", "", PASSWORD),
    _word("pw", "", PASSWORD),
    _word("credential", "s?", apart=False),
    _word("cred", "s?"),
    _word("key", "(?:[_-]?id)?", apart=False),
    _word("key-data", apart=False),
    _word("auth"),
    _word("_pat", apart=False)._replace(next=NEXT_LETTERS - {"h"}),  # a name that ends in _path
    _word("jwt"),
    _word("salt", "", PASSWORD),
    _word("mnemonic", "", PASSWORD, apart=False),
    _word("seed_phrase", "", PASSWORD, apart=False),
    _word("pass phrase", "", PASSWORD, apart=False),
    _word("seedphrase", "", PASSWORD, apart=False),
    _word("sonar.login", apart=False),
    _word("securestring", r"(?:\s+-string)?", PASSWORD, apart=False),
)
# Secret only if the value is random: most things of these names are not.
_OPAQUE = (
    _word("session_id", "", OPAQUE, apart=False),
    _word("phpsessid", "", OPAQUE, apart=False),
    _word("_session", "", OPAQUE, apart=False),
    _word("signature", "", OPAQUE, apart=False),
    _word("sig", "", OPAQUE),
    _word("hmac", "", OPAQUE),
    _word("webhook", "(?:[_-]?ur[il])?", OPAQUE),
    _word("cookie", "", OPAQUE),
    _word("appid", "", OPAQUE),
    _word("accounts", "", OPAQUE),
    _word("device_code", "", OPAQUE, apart=False),
    _word("auth_code", "", OPAQUE, apart=False),
    _word("authorization_code", "", OPAQUE, apart=False),
    _word("authorization code", "", OPAQUE, apart=False),
    _word("code_verifier", "", OPAQUE, apart=False),
)
# "password" in other languages; a word with a letter that is in no Latin-1 text costs such a text
# nothing.
_PASSWORDS_ELSEWHERE = (
    *(
        "passwort",
        "kennwort",
        "wachtwoord",
        "mot de passe",
        "mdp",
        "contrase\u00f1a",
        "contrasena",
        "clave",
        "code secret",
        "codice segreto",
        "senha",
        "parola",
    ),
    *(
        "l\u00f6senord",
        "adgangskode",
        "passord",
        "heslo",
        "has\u0142o",
        "jelsz\u00f3",
        "\u015fifre",
        "kata sandi",
    ),
    *(
        "m\u1eadt kh\u1ea9u",
        "\u03ba\u03c9\u03b4\u03b9\u03ba\u03cc\u03c2",
        "\u03c3\u03c5\u03bd\u03b8\u03b7\u03bc\u03b1\u03c4\u03b9\u03ba\u03cc",
    ),
    *(
        "\u043f\u0430\u0440\u043e\u043b\u044c",
        "\u043f\u0430\u0440\u043e\u043b\u0430",
        "\u5bc6\u7801",
        "\u5bc6\u78bc",
        "\u53e3\u4ee4",
    ),
    *(
        "\u30d1\u30b9\u30ef\u30fc\u30c9",
        "\u6697\u8a3c\u756a\u53f7",
        "\ube44\ubc00\ubc88\ud638",
        "\uc554\ud638",
    ),
    *(
        "\u0643\u0644\u0645\u0629 \u0627\u0644\u0645\u0631\u0648\u0631",
        "\u05e1\u05d9\u05e1\u05de\u05d4",
        "\u0e23\u0e2b\u0e31\u0e2a\u0e1c\u0e48\u0e32\u0e19",
    ),
)
_KEYS_ELSEWHERE = (
    "schl\u00fcssel",
    "cl\u00e9 api",
    "cl\u00e9 d'api",
    "chave",
    "\u043a\u043b\u044e\u0447",
    "\u0442\u043e\u043a\u0435\u043d",
    "\u5bc6\u94a5",
    "\u30c8\u30fc\u30af\u30f3",
)
WORDS = (
    *_ENGLISH,
    *_OPAQUE,
    *(_word(word, "", PASSWORD, apart=set(word) <= _ASCII_ONLY) for word in _PASSWORDS_ELSEWHERE),
    *(_word(word) for word in _KEYS_ELSEWHERE),
)

_ANY_WORD = re.compile("|".join(re.escape(word.word) for word in WORDS))


def is_name_of_secret(name: str) -> bool:
    """Whether a name holds one of WORDS at all: most names are told from those of secrets here.

    >>> is_name_of_secret("db_password"), is_name_of_secret("path")
    (True, False)
    """
    return _ANY_WORD.search(name.lower()) is not None


# Words before "key" in the name of a secret key: api_key, "private key".
_KINDS_OF_KEY = (
    "api access private auth account encryption encrypt signing sign secret master service app"
    " application storage shared subscription deploy webhook hmac jwt client license write admin"
    " root security server project integration ssh rsa aes ingest preshared function host consumer"
    " crypto data session stripe openai unseal recovery backup bot setup"
)
_KEY_BEFORE = tuple(
    word + sep for word in _KINDS_OF_KEY.split() for sep in ("", "_", "-", ".", " ")
)
_MAX_KEY_BEFORE = max(map(len, _KEY_BEFORE))
# Words before "pass" and "pwd" without a mark between: dbpass, userpwd.
_BEFORE_PASS = (
    "db user root admin my smtp ftp ssh pg http proxy mail store key sql redis mongo vault bind api"
    " app web ldap mysql rabbit"
)
_SHARED = ("shared-", "shared_", "shared ")
_PASS_BEFORE = tuple(_BEFORE_PASS.split())
_BEGINS_NAME = r"(?:^|[._-])"
_PARTS_OF_A_PAGE = (
    "next|prev|previous|page|pages|continuation|pad|eos|bos|unk|cls|sep|mask|stop|start|end|special|cancel|cancellation|sync|num|max|min"
    "|total|count|n"
)
_HARMLESS_KEYS = (
    "public|pub|publishable|primary|foreign|cache|sort|partition|hash|idempotency|object|row|group|map|dict|state|lookup|item|unique"
    "|column|index|accept|websocket|i18n|translation|translate|message|hot|short|react|query|registry|route|routing|known|host|dedupe|dedup"
    r"|artifact|bucket|blob|s3|aws\.s3|file|natural|surrogate|composite|document|record|node|tree|kv|etcd|redis|metric|event|job|task|queue"
    "|lock|flag|feature|config|setting|settings|ordering|order|range|dispatch"
)
_HARMLESS_NAME = re.compile(
    # next_page_token, max_tokens
    rf"{_BEGINS_NAME}(?:{_PARTS_OF_A_PAGE})[_.-]?(?:page)?[_.-]?tokens?\Z"
    # nextToken
    rf"|{_BEGINS_NAME}(?:next|page|pad|eos|bos|unk|cancellation|continuation|sync)token\Z"
    rf"|(?:{_HARMLESS_KEYS})[_.-]?keys?\Z"  # cache_key, primaryKey
    r"|public[_-]?key[_-]?token\Z"  # the name of an assembly of .NET
)
_ABOUT_A_SECRET = (
    "count|counts|type|types|name|names|path|file|url|uri|id|ids|len|length|size|limit|ttl|expiry|expires|field|hash|policy|regex|pattern"
    "|prefix|header|arn|version|env|var|dir|usage|budget|index|rotation|algorithm|alg|format|bits|bytes|min|max"
)
_MORE_HARMLESS = re.compile(rf"_(?:{_ABOUT_A_SECRET})(?:_|\Z)")  # API_KEY_NAME, TOKEN_TTL
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}\Z")


def promise_of(
    page: Page, at: int, end: int, *, name: str, word: Word, more: str | None
) -> str | None:
    """The promise of a name about its value, or None if it is no secret's name; `more` is what
    follows the word: API_KEY_PROD.

    >>> page = Page.of("next_token=x")
    >>> promise_of(page, 5, 10, name="next_token", word=WORDS[1], more=None) is None
    True
    """
    text, low_name = page.text, name.lower()
    if more and (not _ENV_NAME.match(name) or _MORE_HARMLESS.search(more)):
        return None
    if _HARMLESS_NAME.search(low_name):
        return None
    before = text[at - 1 : at]
    apart = (
        not before.isalnum() or (text[at].isupper() and not before.isupper()) or (before.isdigit())
    )
    if (
        word.apart
        and not apart
        and not (
            word.word in ("pass", "pw", "pwd")
            and page.low.endswith(_PASS_BEFORE, max(0, at - 8), at)
        )
    ):
        return None
    # In a log it names the session, in a cookie it opens it.
    if word.word.startswith("session") and page.low[end : end + 1] not in ("=", "\t"):
        return None
    if word.word == "key":
        # thought up, as a password is
        if page.low.endswith(_SHARED, max(0, at - 8), at) and not more:
            return PASSWORD
        if page.low.endswith(_KEY_BEFORE, max(0, at - _MAX_KEY_BEFORE), at):
            return OPAQUE if more else TOKEN
        if before in ("?", "&"):  # the name in a URL
            return OPAQUE
        return (
            OPAQUE
            if (apart and len(name) > end - at and before in ("_", "-", "."))
            or (apart and before.isalnum())
            else None
        )
    return OPAQUE if more else word.promise
