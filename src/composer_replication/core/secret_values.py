"""Decide whether a value with a secret's name is a secret, or code, a path, a type, a placeholder.

    looks_secret(PASSWORD, "tr0ub4dor&3x", literal=True)     ->  True
    looks_secret(TOKEN, "settings.api_key2", literal=False)  ->  False

The evidence that a value needs depends on its name: a password may be a word with a digit, but a
key is random.
"""

from __future__ import annotations

import re

from composer_replication.core.secret_letters import entropy_bits, is_random

PASSWORD, TOKEN, OPAQUE = "password", "token", "opaque"
"""The kind of value that a name promises: a password, which a person may have made up; a token or
key; or a value that is secret only if it is random."""
MIN_PASSWORD, MIN_RANDOM, MIN_MIXED, MIN_OPAQUE = 4, 12, 16, 20
MIN_PASSWORD_BITS, MIN_BITS = 2.0, 3.0
MASK = re.compile(r"\[REDACTED:[a-z_]+:[0-9a-f]{8}\]")
_PLACEHOLDER = re.compile(
    r"(?i)example|placeholder|redacted|change[_-]?(?:me|it|this)|replace[_-]?(?:me|this|with)|xxxx|\*\*\*|\.\.\.|•••"
    r"|^<[a-z]|<[a-z][a-z_ -]{2,40}>|your[_-]|insert[_-]"
    r"|(?:^|[^a-z0-9])(?:your|dummy|fake|mock|sample|todo|tbd|test|testing|foo|bar|foobar|baz|undefined|null|nil|none|true|false|here|hidden|masked|removed|goes|some)(?:[^a-z0-9]|$)"
)
_WORDS_OF_DOCUMENTS = (
    "password passwd pass pwd passphrase secret token key user username userpass mypassword mypass"
    " mysecret secretpassword yourpassword login auth credentials string bytes required optional"
    " unknown default value values text input number integer boolean object function method type"
    " field param parameter request response session cookie header body form data database server"
    " client admin root postgres mysql redis mongo guest public private plain basic bearer oauth"
    " saml ldap kerberos x509 jwt hmac rsa prompt file env environment vault keychain keyring stdin"
    " external internal enabled disabled always never auto manual hashed encrypted sekrit repo"
    " latin1 latin-1 utf8 utf-8 utf-16 ascii iso-8859-1 cp1252"
)
_DOC_WORDS = frozenset(_WORDS_OF_DOCUMENTS.split())
_KNOWN_TO_ALL = (
    "letmein hunter2 qwerty qwertyuiop iloveyou sunshine princess dragon monkey football baseball"
    " superman batman trustno1 welcome1 passw0rd p@ssw0rd p@ssword pa55word abc123 admin123 root123"
    " toor changeit shadow master welcome 123456 12345678 123456789 1234567890 000000 111111"
    " starwars whatever freedom swordfish s3cret s3cr3t"
)
_COMMON = frozenset(_KNOWN_TO_ALL.split())
"""Well-known passwords, which neither a digit nor an odd character gives away."""
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w{0,60}(?:(?:\.|->|::|\?\.)[A-Za-z_]\w{0,60})+\Z")
_PLAIN_WORDS = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*[_-]?\d{0,2}\Z")
# The $ of Winter$Harbour8 begins no variable.
_CODE = re.compile(
    r"\$(?!(?<=[a-z0-9]\$)(?:[A-Z][a-z]|\d))[\w({]|\{\{|\}\}|<%|#\{|[A-Za-z_]\w{0,60}\(|\)\Z|^[<{(\[]|\{[A-Za-z_.]{0,40}\}|=>|==.|^\$|&&|\|\|"
)
_QUOTED_CODE = re.compile(
    r"\$\{|\$\(|\{\{|\}\}|<%|#\{|^\$[A-Za-z_]+\Z|\w\(\w{0,40}\)|^<[^>]{0,80}>\Z|^[{(\[]|\{[A-Za-z_.]{0,40}\}|%\(|^%[sdv]\Z|=>|\(\?|%s\|"
)
_VARIABLE = re.compile(r"\$\{|\$\(|\{\{|<%|#\{|%\(|^\$|^%[A-Za-z_]+%\Z|^@[A-Za-z]")
_RANDOM_BASE64 = re.compile(
    r"(?=[A-Za-z0-9+/]{0,99}[a-z][A-Z0-9])(?=[A-Za-z0-9+/]{0,99}[A-Z][a-z0-9])(?=[A-Za-z0-9+/]{0,99}\d)[A-Za-z0-9+/]{40,400}={0,2}\Z"
)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F_]{1,18}[uUlL]{0,3}\Z")
# Forms of code alone: an item of a list, a field of an object that holds settings.
_FIELD = re.compile(
    r"[A-Za-z_][\w.]{0,60}\[[^\]\s]{0,40}\]?\Z|(?:self|this|cls|os|process|config|settings|env|args|options|opts|params|req|request|ctx)\.[a-z_]"
)
_REGEX = re.compile(r"\\[sdwb.]|\|\[")
_UMLAUT = re.compile(r"=[CD][0-9A-F]=[89AB][0-9A-F]")
"""A letter of quoted-printable: it is judged decoded."""
_KNOWN_CONSTANTS = frozenset(("8a477f597d28d172789f06886806bc55",))
"""The signature of every CACHEDIR.TAG."""
_ALPHABET = re.compile(r"(?i)abcdefghijkl|0123456789ab")
_FILE = re.compile(
    r"\.(?:py|js|ts|tsx|jsx|json|ya?ml|toml|pem|key|crt|cer|txt|md|html?|css|scss|go|rs|java|rb|php|sh|env|p12|pfx|jks|svg|png|vue)\Z"
)
_PHRASE = re.compile(r"[a-z]{3,10}(?:-[a-z]{3,10}){3,8}\Z")
_SYMBOL = re.compile(r"[!@#%^&*?+=~$;:,|]")
_STRONG = re.compile(
    r"(?=[^a-z]{0,30}[a-z])(?=[^A-Z]{0,30}[A-Z])(?=[^!#%^*@&$]{1,30}[!#%^*@&$])[\w!#%^*@&$+-]{10,40}\Z"
)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\Z")
_HEX = re.compile(r"(?:[0-9a-f]{32,}|[0-9A-F]{32,})\Z")


def is_placeholder(value: str) -> bool:
    """Whether a value is a placeholder for a secret: "your-key", "xxxx", "password".

    >>> is_placeholder("your-api-key"), is_placeholder("tr0ub4dor")
    (True, False)
    """
    return bool(_PLACEHOLDER.search(value)) or value.lower().strip("_-. ") in _DOC_WORDS


def looks_secret(promise: str, value: str, *, quoted: bool = False, literal: bool = False) -> bool:
    """Whether a value is a secret; `quoted` = it is in quotes, `literal` = it cannot be code.

    Example of a literal: a value after NAME= in an environment file.

    >>> looks_secret(TOKEN, "9fK2mQ8xL4vB7nR1tY6w"), looks_secret(TOKEN, "settings.api_key2")
    (True, False)
    """
    if (
        len(value) < MIN_PASSWORD
        or MASK.search(value)
        or "[REDACTED:" in value
        or "://" in value
        or value.startswith("arn:")
        or is_placeholder(value)
    ):
        return False
    if (_VARIABLE if literal else _QUOTED_CODE if quoted else _CODE).search(value):
        return False
    if (
        _NUMBER.match(value)
        or _ALPHABET.search(value)
        or (not literal and not quoted and _FIELD.match(value))
        or value in _KNOWN_CONSTANTS
    ):
        return False
    if _REGEX.search(value) or (not quoted and _UMLAUT.search(value)):
        return False
    random = is_random(value)
    if not random and not literal and (_ATTRIBUTE.match(value) or value[0] in ".~%@#/"):
        return False
    # a path
    if _FILE.search(value) or (
        value.startswith(("/", "./", "../", "~/"))
        and not random
        and not _RANDOM_BASE64.match(value)
    ):
        return False
    if promise == PASSWORD:
        return _is_password(value, random, quoted=quoted, literal=literal)
    digits, letters = sum(map(str.isdigit, value)), sum(map(str.isalpha, value))
    if promise == OPAQUE:
        return (
            not _UUID.match(value)
            and len(value) >= MIN_OPAQUE
            and digits >= 2
            and letters >= 2
            and (random or bool(_HEX.match(value)))
            and entropy_bits(value) >= MIN_BITS
        )
    if (random and len(value) >= MIN_RANDOM) or (
        digits and (quoted or literal) and _STRONG.match(value)
    ):
        return True
    if (
        len(value) < (8 if literal else MIN_MIXED)
        or digits < 2
        or letters < 2
        or _PLAIN_WORDS.match(value)
    ):
        return False
    return entropy_bits(value) >= (MIN_PASSWORD_BITS if literal else MIN_BITS)


def _is_password(value: str, random: bool, *, quoted: bool, literal: bool) -> bool:
    low = value.lower()
    if random or low in _COMMON:
        return True
    digits, letters = sum(map(str.isdigit, value)), sum(map(str.isalpha, value))
    if literal and letters and len(set(value)) >= MIN_PASSWORD:
        return True
    if not letters:
        return digits == len(value) >= 6 and (quoted or literal) and len(set(value)) > 1
    if _PHRASE.match(value):
        return not any(word in _DOC_WORDS for word in re.split("[-_]", low))
    if _PLAIN_WORDS.match(value):
        return digits >= 1 and len(value) >= 6 and quoted and "_" not in value
    if len(value) < 6 or entropy_bits(value) < MIN_PASSWORD_BITS:
        return False
    if _STRONG.match(value):
        return True
    return digits >= 1 or (quoted and bool(_SYMBOL.search(value)) and not value[0].isspace())


_MIXED_CASE = re.compile(r"[a-z][A-Z]|[A-Z][a-z]|[a-z]\d[A-Z]|[A-Z]\d[a-z]")
_SYMBOLS = re.compile(r"[!#%^&*+~$]")
_NUMBERED = re.compile(r"[A-Za-z]?[a-z]+[_-]?\d+\W?\Z")
# "DINOv2-with-registers", "MulBackward0_apply_functional"
_NAMED_THING = re.compile(r"[-_.][a-z]{4,}(?:[-_.]|\Z)")
_DIGITS_WITHIN = re.compile(r"(?!base|sha|utf)[a-z]{3,}\d{2,}[A-Za-z]{3,}\Z")
_LONG_HEX = re.compile(r"(?:[0-9a-f]{32}|[0-9a-f]{64}|[0-9a-f]{48}|[0-9a-f]{66})\Z")
MIN_STANDING_OUT = 8


def stands_out(value: str, promise: str) -> bool:
    """Whether a value cannot be a word of a sentence: mixed case with digits, or long hex.

    >>> [stands_out(value, PASSWORD) for value in ("Dl4wMZenkODiZKG", "PostgreSQL14", "velvet")]
    [True, True, False]
    """
    if _ALPHABET.search(value) or (_NAMED_THING.search(value) and not _SYMBOLS.search(value)):
        return False
    if promise != OPAQUE and len(value) >= MIN_STANDING_OUT and any(map(str.isdigit, value)):
        if _MIXED_CASE.search(value) or _SYMBOLS.search(value):
            return is_random(value) or (promise == PASSWORD and not _NUMBERED.match(value))
        if promise == PASSWORD and _DIGITS_WITHIN.match(value):
            return True
    return bool(_LONG_HEX.match(value))
