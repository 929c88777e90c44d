"""Secrets out of text, before it reaches the disk or another company's server.

Each rule is anchored on letters that only such a secret has ("sk-ant-", "ghp_", "-----BEGIN"), so ordinary code, git
shas, uuids and lockfile hashes stay as they are. A value without such letters goes only if it is assigned to a name
like API_KEY or password and looks random. Removed text leaves `[REDACTED:kind:1f0c9a2e]`; the same secret gets the
same letters everywhere under one key, so an edit still matches what it edits.

Scan decoded strings, never raw JSON lines: in "\\nghp_..." the letter n hides where the token begins.

What it cannot know - a customer's name, a password in a sentence - goes in `words`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

JSON = Any
MIN_ENVIRON_CHARS = 8
MIN_TOKEN_CHARS = 10
_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential|auth)")
_NOT_SECRET_NAME = re.compile(r"(?i)(_file|_path|_dir|_sock|_agent|_pid|keyboard|_url|_home)$")


class Rule(NamedTuple):
    """A kind of secret: words one of which must stand in a text that has it, and its pattern.

    The pattern's group 1, where it has one, is the secret; otherwise all of the match.
    """

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(kind: str, needles: str, pattern: str, flags: int = 0) -> Rule:
    return Rule(kind, tuple(needles.split()), re.compile(pattern, flags))


_B = r"(?<![A-Za-z0-9_-])"  # a token does not begin inside a word
_E = r"(?![A-Za-z0-9_-])"
# A line of YAML, `password: letmein`: no digit or odd letter gives the value away, so only the whole line counts. What
# stands in braces is code, and so are names of types, words about passwords, dotted names and what YAML does not take as text.
_YAML_PASSWORD = (
    r"(?m)(?<![{(\[,;]\n)^[ \t]{0,40}(?:\d{1,7}[\t\u2192][ \t]{0,40})?(?:- )?(?i:password|passwd|secret):[ \t]{1,8}"
    r"(?![*!~/%@.|>?=-])(?!(?i:str|bytes|string|int|integer|number|bool|boolean|any|text|char|varchar|unknown|never|object|required|true|false|yes|no|on|off)"
    r"\b)(?!(?i:[\"']?\S{0,64}(?:passw|secret|hash|token|crypt|param|input|valid|option|string|field|null|none|cred|required)))"
    r"(?![A-Za-z_]\w{0,40}\.)(?![A-Z][A-Za-z]{0,60}!?[ \t\r]{0,8}$)"
    r"[\"']?([^\s\"'`,;()\[\]{}<>$\\|&#:]{4,64})[\"']?[ \t]{0,8}(?:#[^\n]{0,200})?\r?$(?!\s{0,80}(?:\d{1,7}[\t\u2192]\s{0,40})?[})\]])"
)
RULES: tuple[Rule, ...] = (
    _rule(
        "private_key",
        "-----BEGIN",
        r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:(?!-----BEGIN )[\s\S]){0,20000}?"
        r"(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    _rule("anthropic_key", "sk-", _B + r"sk-ant-(?:[a-z0-9]+-)?[A-Za-z0-9_-]{20,}"),
    _rule("openrouter_key", "sk-", _B + r"sk-or-(?:v\d+-)?[A-Za-z0-9]{32,}" + _E),
    _rule("openai_key", "sk-", _B + r"sk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,})" + _E),
    _rule("huggingface_token", "hf_ api_org_", _B + r"(?:hf|api_org)_[A-Za-z0-9]{30,}" + _E),
    _rule("github_token", "ghp_ gho_ ghu_ ghs_ ghr_ ub_pat_", _B + r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})" + _E),
    _rule("gitlab_token", "glpat- gldt- glrt- glcbt-", _B + r"gl(?:pat|dt|rt|cbt)-[A-Za-z0-9_.-]{20,}"),
    _rule("aws_key_id", "AKIA ASIA", r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _rule("google_key", "AIza", _B + r"AIza[A-Za-z0-9_-]{35}" + _E),
    _rule("google_oauth", "ya29. GOCSPX-", _B + r"(?:ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})"),
    _rule("slack_token", "xox xapp-", _B + r"(?:xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,})" + _E),
    _rule("slack_webhook", "hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows)/([A-Za-z0-9/_+-]{20,})"),
    _rule("stripe_key", "k_live_ k_test_ whsec_", _B + r"(?:(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9]{24,})" + _E),
    _rule("sendgrid_key", "SG.", _B + r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}" + _E),
    _rule("npm_token", "npm_", _B + r"npm_[A-Za-z0-9]{36}" + _E),
    _rule("pypi_token", "pypi-Ag", _B + r"pypi-Ag[A-Za-z0-9_-]{50,}"),
    _rule("groq_key", "gsk_", _B + r"gsk_[A-Za-z0-9]{32,}" + _E),
    _rule("xai_key", "xai-", _B + r"xai-[A-Za-z0-9]{40,}" + _E),
    _rule("docker_token", "dckr_pat_", _B + r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    _rule("digitalocean_token", "_v1_", _B + r"do[opr]_v1_[a-f0-9]{40,}" + _E),
    _rule("shopify_token", "shpat_ shpca_ shppa_ shpss_", _B + r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32,}" + _E),
    _rule("jwt", "eyJ", _B + r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}" + _E),
    _rule("basic_auth", "://", r"\b[a-z][a-z0-9+.-]*://[^\s:/@\"'`<>\[\]{}$]{0,64}:([^\s/@\"'`<>\[\]{}$]{3,128})@(?=[A-Za-z0-9\[])"),
    _rule("bearer_token", "earer", r"\b[Bb]earer\s+((?=[A-Za-z._~+/-]*\d)[A-Za-z0-9._~+/-]{20,}=*)"),
    # Base64 of a name and a password mixes small and large letters; "Basic authentication" does not.
    _rule(
        "basic_auth",
        "uthorization UTHORIZATION",
        r"(?i:\bauthorization[\"']?\s{0,4}[:=,]\s{0,4}[\"']?basic)\s{1,4}((?=[A-Za-z0-9+/]{0,200}[a-z0-9][A-Z])[A-Za-z0-9+/_-]{8,}={0,2})",
    ),
    _rule("password", "assword: asswd: ecret: ASSWORD: ASSWD: ECRET:", _YAML_PASSWORD),
)


def _gate(needles: Iterable[str]) -> re.Pattern[str]:
    """One pattern for all needles, those with the same first letter together: one look at each letter of a text."""
    by_letter: dict[str, list[str]] = {}
    for needle in dict.fromkeys(needles):
        by_letter.setdefault(needle[0], []).append(re.escape(needle[1:]))
    return re.compile("|".join(f"{re.escape(letter)}(?:{'|'.join(rest)})" for letter, rest in by_letter.items()))


_GATE = _gate(needle for rule in RULES for needle in rule.needles)

# name = value, name: value, "name": "value", --name value; the name ends in one of these words. They are found with
# str.find and only then looked at closer: one pattern over all text would be ten times slower.
_ASSIGN_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (
        word,
        re.compile(
            ending + r"(?P<glue>[\"']?\s{0,4}(?::=|=>|[=:])\s{0,4}|[\"']\s{0,4},\s{0,4}(?=[\"'])|\s(?=[^\s=:,.]))"
            r"(?P<quote>[\"'`]?)(?P<value>[^\s\"'`,;()\[\]{}<>$\\|&]{8,200})"
        ),
    )
    for word, ending in (
        ("secret", ""),
        ("token", ""),
        ("passw", "(?:or)?d"),
        ("passphrase", ""),
        ("pwd", ""),
        ("credential", "s?"),
        ("key", "(?:[_-]?id)?"),
    )
)
_KEY_BEFORE = tuple(
    word + sep
    for word in ("api", "access", "private", "auth", "account", "encryption", "signing", "secret", "master", "service")
    for sep in ("", "_", "-")
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{0,60}\Z")
_A_TO_Z = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_ATTRIBUTE = re.compile(r"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+\Z")
_WORDS = re.compile(r"[A-Za-z_-]+\d{0,2}\Z")
_PLACEHOLDER = re.compile(
    r"(?i)(example|placeholder|redacted|changeme|your[_-]|xxxx|\*\*\*|\.\.\.|dummy|fake|test[_-]|mock|sample|null|undefined|none\b|true|false)"
)
_MASK = re.compile(r"\[REDACTED:[a-z_]+:[0-9a-f]{8}\]")

_EMAIL = re.compile(
    r"(?<![A-Za-z0-9._%+/-])([A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.){1,5}"
    r"(?:[a-z]{2}|com|org|net|edu|gov|mil|info|biz|dev|app|cloud|tech|email|xyz|online|site|name|mobi|int|ai|io|local|internal))(?![A-Za-z0-9_(.-]*[(=\[])(?![A-Za-z0-9_-])"
)
_PUBLIC_MAIL = re.compile(
    r"(?i)^(?:git|noreply|no-reply|donotreply|[0-9+a-z-]*\[bot\]|actions|dependabot|security|support)@|@(?:[a-z0-9-]+\.)*example\.(?:com|org|net)$"
    r"|@users\.noreply\.github\.com$|@(?:[a-z0-9-]+\.)*(?:test|invalid|localhost)$"
)
_EMAIL_CHAR = re.compile(r"[A-Za-z0-9._%+-]")


def entropy_bits(text: str) -> float:
    """Shannon entropy of a text's letters, in bits per letter.

    >>> entropy_bits("aaaa"), entropy_bits("abcd")
    (0.0, 2.0)
    """
    counts = Counter(text)
    return sum(n / len(text) * math.log2(len(text) / n) for n in counts.values())


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of environment variables whose names say that they are secret, longest first.

    >>> secrets_of({"DEPLOY_TOKEN": "correct-horse", "HOME": "/home/dev", "API_KEY": "short"})
    ('correct-horse',)
    """
    values = {
        value.strip()
        for name, value in environ.items()
        if _SECRET_NAME.search(name) and not _NOT_SECRET_NAME.search(name) and len(value.strip()) >= MIN_ENVIRON_CHARS
    }
    return tuple(sorted((v for v in values if "/" not in v[:1] and not v.isdigit()), key=lambda v: (-len(v), v)))


class Redactor:
    """Replaces secrets by stable names and counts them by kind.

    `words` are literals of your own (any case). Values of `environ` (None = this process's environment) whose names look
    secret go too. `key` makes the names differ from one project to the next, and keeps short secrets from being guessed
    by their names.

    >>> redactor = Redactor(words=("Initech",), environ={})
    >>> redactor.text("Initech pays"), redactor.counts
    ('[REDACTED:word:04848069] pays', {'word': 1})
    """

    def __init__(self, *, words: Iterable[str] = (), key: bytes = b"", environ: Mapping[str, str] | None = None) -> None:
        self._key = key
        self._counts: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self._literals = list(self._literal_rules(words, os.environ if environ is None else environ))
        self._passes: tuple[Callable[[str], str], ...] = (self._provider_rules, self._assignments, self._emails)

    @property
    def counts(self) -> dict[str, int]:
        """How many secrets of each kind were replaced so far."""
        return dict(self._counts)

    def text(self, text: str) -> str:
        """The text without secrets; the same object if there were none."""
        if not text:
            return text
        clean = text
        for kind, needles, pattern in self._literals:
            if not needles or any(needle in clean for needle in needles):
                clean = self._sub(kind, pattern, clean)
        for run in self._passes:
            clean = run(clean)
        return text if clean == text else clean

    def value(self, value: JSON) -> JSON:
        """A JSON value with every string in it redacted, keys too; the same object if nothing had to go.

        A string that stands under a secret-looking key ("password": ...) is judged as an assignment to it.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            items = [(self.text(k) if isinstance(k, str) else k, self._under(k, v)) for k, v in value.items()]
            same = all(k is old and v is value[old] for (k, v), old in zip(items, value, strict=True))
            return value if same else dict(items)
        if isinstance(value, (list, tuple)):
            new = [self.value(v) for v in value]
            return value if all(a is b for a, b in zip(new, value, strict=True)) else new
        return value

    def _under(self, key: object, value: JSON) -> JSON:
        if isinstance(value, str) and isinstance(key, str) and 8 <= len(value) <= 200:
            prefix = f'{key}="'
            joined = self._assignments(prefix + value)
            if joined.startswith(prefix + "[REDACTED:"):
                return joined[len(prefix) :]
        return self.value(value)

    # ---- rules -------------------------------------------------------------------------------------------------

    @staticmethod
    def _literal_rules(words: Iterable[str], environ: Mapping[str, str]) -> Iterator[Rule]:
        own = sorted({w for w in words if w.strip()}, key=lambda w: (-len(w), w))
        if own:
            yield Rule("word", (), re.compile("|".join(map(re.escape, own)), re.IGNORECASE))
        if values := secrets_of(environ):
            yield Rule("environment", values, re.compile("|".join(map(re.escape, values))))

    def _mask(self, kind: str, secret: str) -> str:
        self._counts[kind] += 1
        name = self._names.get(secret)
        if name is None:
            digest = hmac.new(self._key, secret.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:8]
            name = self._names[secret] = digest
        return f"[REDACTED:{kind}:{name}]"

    def _sub(self, kind: str, pattern: re.Pattern[str], text: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            if not pattern.groups:
                return self._mask(kind, match[0])
            a, b = match.span(1)
            a, b = a - match.start(), b - match.start()
            if _PLACEHOLDER.search(match[1]) and len(match[1]) < 20:
                return match[0]
            return match[0][:a] + self._mask(kind, match[1]) + match[0][b:]

        return pattern.sub(replaced, text)

    def _provider_rules(self, text: str) -> str:
        if len(text) < MIN_TOKEN_CHARS or not (met := set(_GATE.findall(text))):
            return text
        for kind, needles, pattern in RULES:
            if not met.isdisjoint(needles):
                text = self._sub(kind, pattern, text)
        return text

    def _assignments(self, text: str) -> str:
        low = text.lower()
        if len(low) != len(text):  # a letter whose small form is longer: positions would shift
            low = text.translate(_A_TO_Z)
        found: dict[int, tuple[int, str]] = {}
        for word, pattern in _ASSIGN_WORDS:
            at = low.find(word)
            while at >= 0:
                end = at + len(word)
                if (word != "key" or low[max(0, at - 11) : at].endswith(_KEY_BEFORE)) and (match := pattern.match(low, end)):
                    self._assigned(text, at, match, found)
                at = low.find(word, end)
        if not found:
            return text
        pieces, last = [], 0
        for start in sorted(found):
            end, kind = found[start]
            if start >= last:
                pieces += [text[last:start], self._mask(kind, text[start:end])]
                last = end
        return "".join([*pieces, text[last:]])

    @staticmethod
    def _assigned(text: str, at: int, match: re.Match[str], found: dict[int, tuple[int, str]]) -> None:
        """Note where the value of an assignment stands if it looks secret; positions are those of `text`."""
        if text.endswith("[REDACTED:", 0, at):  # the kind in a mask is no name
            return
        start, end = match.span("value")
        value = text[start:end].rstrip(".:")
        before = _NAME.search(text, max(0, at - 60), at)
        name = (before[0] if before else "") + text[at : match.start("glue")]
        quoted = bool(match["quote"])
        if match["glue"].isspace() and not quoted and not name.startswith("--"):
            return
        if not quoted and text[end : end + 1] in tuple("([{<$"):
            return
        if len(value) >= 8 and _looks_secret(name, value, quoted=quoted):
            found[start] = (start + len(value), _assign_kind(name))

    def _emails(self, text: str) -> str:
        if "@" not in text:
            return text

        def replaced(match: re.Match[str]) -> str:
            return match[0] if _PUBLIC_MAIL.search(match[1]) else self._mask("email", match[1])

        return _EMAIL.sub(replaced, text)


def _assign_kind(name: str) -> str:
    return "password" if re.search(r"(?i)passw|passphrase|pwd", name) else "assigned_secret"


def _looks_secret(name: str, value: str, *, quoted: bool) -> bool:
    """Whether a value assigned to a secret's name is a secret itself and not code, a path or a placeholder."""
    if _PLACEHOLDER.search(value) or _MASK.search(value) or _ATTRIBUTE.match(value) or "://" in value or value[0] in "/.~%@#":
        return False
    digits, letters = sum(c.isdigit() for c in value), sum(c.isalpha() for c in value)
    if _assign_kind(name) == "password":
        if not letters or (not quoted and _WORDS.match(value)):
            return False
        return (quoted and not _WORDS.match(value)) or (digits >= 1 and entropy_bits(value) >= 2.5)
    return (
        len(value) >= 16
        and digits >= 2
        and letters >= 2
        and not _WORDS.match(value)
        and "/" not in value[:2]
        and entropy_bits(value) >= 3.0
    )
