"""Secrets that their own letters give away: one rule per kind, all found in one look at a text.

A rule has needles - letters that only such a secret has, "ghp_" or "-----BEGIN" - and a pattern that is tried where a
needle stands, nowhere else. Tokens are looked for in long runs of letters only, by the rarest letter of each needle (the
`_` of "ghp_"), so that most letters of a text are passed over at the speed of C.

    list(known_secrets(Page.of("export X=" + token)))  ->  [Span(start=9, end=49, kind="github_token")]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from composer_replication.core.secret_letters import is_random
from composer_replication.core.secret_page import Page

PLACEHOLDER = re.compile(
    r"(?i)(example|placeholder|redacted|changeme|your[_-]|xxxx|\*\*\*|\.\.\.|dummy|fake|test[_-]|mock|sample|null|undefined|none\b|true|false)"
)
MAX_PLACEHOLDER = 20
MAX_INDENT = 160


class Span(NamedTuple):
    """Where a secret stands in a text, and its kind."""

    start: int
    end: int
    kind: str


class Rule(NamedTuple):
    """A kind of secret: the needles, one of which every text with such a secret holds, and the pattern that is tried there.

    The pattern's group 1, where it has one, is the secret; otherwise all of the match. It is tried where the needle
    begins or `back` letters before it, or with `by_line` where the needle's line begins. With `odd` the secret has to hold a
    digit or look random: a word that may stand there is no secret.
    """

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]
    by_line: bool = False
    back: int = 0
    odd: bool = False


def _rule(kind: str, needles: str, pattern: str, *, back: int = 0) -> Rule:
    """A rule for a token; its needles stand apart by blanks."""
    return Rule(kind, tuple(needles.split()), re.compile(pattern), back=back)


def _loose(kind: str, needle: str, pattern: str, *, by_line: bool = False, odd: bool = False) -> Rule:
    """A rule for what is no single run of letters; its needle is in small letters and is met in either case."""
    return Rule(kind, (needle,), re.compile(pattern), by_line, odd=odd)


# A token does not begin inside a word. A letter that ends an escape - the n of a JSON "\n", %3D, an ANSI colour - is no word.
_AFTER_ESCAPE = r"(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=%[0-9A-F]{2})|(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm)"
_B = rf"(?:(?<![A-Za-z0-9_-])|{_AFTER_ESCAPE})"
_E = r"(?![A-Za-z0-9_-])"
# A line of YAML, `password: letmein`: no digit or odd letter gives the value away, so only the whole line counts. What
# stands in braces is code, and so are names of types, words about passwords, dotted names and what YAML does not take as text.
_YAML_PASSWORD = (
    r"(?<![{(\[,;]\n)[ \t]{0,40}(?:\d{1,7}[\t\u2192][ \t]{0,40})?(?:- )?(?i:password|passwd|secret):[ \t]{1,8}"
    r"(?![*!~/%@.|>?=-])(?!(?i:str|bytes|string|int|integer|number|bool|boolean|any|text|char|varchar|unknown|never|object|required|true|false|yes|no|on|off)"
    r"\b)(?!(?i:[\"']?\S{0,64}(?:passw|secret|hash|token|crypt|param|input|valid|option|string|field|null|none|cred|required)))"
    r"(?![A-Za-z_]\w{0,40}\.)(?![A-Z][A-Za-z]{0,60}!?[ \t\r]{0,8}$)"
    r"[\"']?([^\s\"'`,;()\[\]{}<>$\\|&#:]{4,64})[\"']?[ \t]{0,8}(?:#[^\n]{0,200})?\r?$(?!\s{0,80}(?:\d{1,7}[\t\u2192]\s{0,40})?[})\]])"
)
# Base64 of a name and a password mixes small and large letters; "Basic authentication" does not.
_BASIC_HEADER = (
    r"(?i:authorization\\{0,3}[\"']?\s{0,4}[:=,]\s{0,4}\\{0,3}[\"']?basic)\s{1,4}"
    r"((?=[A-Za-z0-9+/]{0,200}[a-z0-9][A-Z])[A-Za-z0-9+/_-]{8,}={0,2})"
)
# Any scheme but those whose first word is no secret, or none: "Authorization: token ...", "Authorization: Bot ...".
_AUTH_HEADER = (
    r"(?i:authorization)\\{0,3}[\"']?\s{0,4}[:=,]\s{0,4}\\{0,3}[\"']?(?:[A-Za-z][A-Za-z-]{1,24}\s{1,4})?(?!(?i:AWS4-|hmac-|digest))"
    r"([A-Za-z0-9._~+/-]{12,}={0,2})(?![A-Za-z0-9_(=])"
)
# From the first cookie that names a session or a login to the end of the cookies.
_COOKIES = (
    r"(?i:cookie)\\{0,3}[\"']?\s{0,2}:\s{0,4}\\{0,3}[\"']?(?:[^\s;=\"']{1,60}=[^\s;\"']{0,300};\s{0,2}){0,20}?"
    r"[\w.-]{0,40}(?i:sess|sid|auth|token|jwt|login|remember)[\w.-]{0,40}=([^\s;\"'\\]{12,4000}(?:;\s{0,2}[^\s;=\"'\\]{1,60}=[^\s;\"'\\]{1,4000}){0,20})"
)
_WORD_OF_SHELL = r"[^\s\"'$`\\<>(){}\[\];|&]"
TOKEN_RULES: tuple[Rule, ...] = (
    _rule("age_key", "AGE-SECRET-KEY-", r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    _rule("anthropic_key", "sk-", _B + r"sk-ant-(?:[a-z0-9]+-)?[A-Za-z0-9_-]{20,}"),
    _rule("openrouter_key", "sk-", _B + r"sk-or-(?:v\d+-)?[A-Za-z0-9]{32,}" + _E),
    _rule("langfuse_key", "sk-", _B + r"sk-lf-[a-f0-9-]{36}" + _E),
    _rule("openai_key", "sk-", _B + r"sk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,})" + _E),
    _rule("huggingface_token", "hf_ api_org_", _B + r"(?:hf|api_org)_[A-Za-z0-9]{30,}" + _E),
    _rule("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", _B + r"gh[pousr]_[A-Za-z0-9]{36,}" + _E),
    _rule("github_token", "github_pat_", _B + r"github_pat_[A-Za-z0-9_]{40,}" + _E),
    _rule("gitlab_token", "glpat- gldt- glrt- glcbt-", _B + r"gl(?:pat|dt|rt|cbt)-[A-Za-z0-9_.-]{20,}"),
    _rule("aws_key_id", "AKIA ASIA", rf"(?:(?<![A-Za-z0-9])|{_AFTER_ESCAPE})(?:AKIA|ASIA)[A-Z2-7]{{16}}(?![A-Za-z0-9])"),
    _rule("aws_secret", "AKIA ASIA", r"(?:AKIA|ASIA)[A-Z2-7]{16}[\s,:;|\"'\\]{1,12}([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"),
    _rule("google_key", "AIza", _B + r"AIza[A-Za-z0-9_-]{35}" + _E),
    _rule("google_oauth", "ya29. GOCSPX-", _B + r"(?:ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})"),
    _rule(
        "slack_token",
        "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-",
        _B + r"(?:xox[abeoprs]-[A-Za-z0-9-]{15,}|xapp-\d-[A-Za-z0-9-]{13,})" + _E,
    ),
    _rule("slack_webhook", "hooks.slack.com", r"hooks\.slack\.com\\?/(?:services|workflows)\\?/([A-Za-z0-9/_+\\-]{20,})"),
    _rule("stripe_key", "sk_live_ sk_test_ rk_live_ rk_test_", _B + r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}" + _E),
    _rule("stripe_key", "whsec_", _B + r"whsec_[A-Za-z0-9]{24,}" + _E),
    _rule("sendgrid_key", "SG.", _B + r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}" + _E),
    _rule("npm_token", "npm_", _B + r"npm_[A-Za-z0-9]{36}" + _E),
    _rule("pypi_token", "pypi-Ag", _B + r"pypi-Ag[A-Za-z0-9_-]{50,}"),
    _rule("groq_key", "gsk_", _B + r"gsk_[A-Za-z0-9]{32,}" + _E),
    _rule("xai_key", "xai-", _B + r"xai-[A-Za-z0-9]{40,}" + _E),
    _rule("perplexity_key", "pplx-", _B + r"pplx-[A-Za-z0-9]{40,}" + _E),
    _rule("nvidia_key", "nvapi-", _B + r"nvapi-[A-Za-z0-9_-]{40,}"),
    _rule("replicate_token", "r8_", _B + r"r8_[A-Za-z0-9]{37}" + _E),
    _rule("docker_token", "dckr_pat_", _B + r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    _rule("digitalocean_token", "doo_v1_ dop_v1_ dor_v1_", _B + r"do[opr]_v1_[a-f0-9]{40,}" + _E),
    _rule("vault_token", "hvs.", _B + r"hvs\.[A-Za-z0-9_-]{24,}"),
    _rule("linear_key", "lin_api_", _B + r"lin_api_[A-Za-z0-9]{32,}" + _E),
    _rule("notion_token", "ntn_", _B + r"ntn_[A-Za-z0-9]{40,}" + _E),
    _rule("supabase_token", "sbp_", _B + r"sbp_[a-f0-9]{40}" + _E),
    _rule("grafana_token", "glsa_", _B + r"glsa_[A-Za-z0-9]{32}_[a-f0-9]{8}" + _E),
    _rule("newrelic_key", "NRAK-", _B + r"NRAK-[A-Z0-9]{27}" + _E),
    _rule("atlassian_token", "ATATT3", _B + r"ATATT3[A-Za-z0-9_=-]{60,}"),
    _rule("postman_key", "PMAK-", _B + r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}" + _E),
    _rule("mailgun_key", "key-", _B + r"key-[a-f0-9]{32}" + _E),
    _rule("discord_webhook", "/api/webhooks/", r"/api/webhooks/\d{15,}/([A-Za-z0-9_-]{40,})"),
    _rule("azure_client_secret", "Q~", r"[A-Za-z0-9_.~]{3}\dQ~[A-Za-z0-9_.~-]{31,34}" + _E, back=4),
    _rule("shopify_token", "shpat_ shpca_ shppa_ shpss_", _B + r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32,}" + _E),
    _rule("jwt", "eyJ", _B + r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}" + _E),
    _rule("twilio_key", "SK", _B + r"SK[a-f0-9]{32}" + _E),
    _rule("sentry_token", "sntrys_ sntryu_", _B + r"sntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    _rule("figma_token", "figd_", _B + r"figd_[A-Za-z0-9_-]{36,}"),
    _rule("planetscale_token", "pscale_", _B + r"pscale_(?:pw|tkn|oauth)_[A-Za-z0-9_.=-]{32,}"),
    _rule("langsmith_key", "lsv2_", _B + r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}" + _E),
    _rule("tavily_key", "tvly-", _B + r"tvly-(?:(?:dev|prod)-)?[A-Za-z0-9_-]{24,}"),
    _rule("heroku_key", "HRKU-", _B + r"HRKU-[A-Za-z0-9_-]{36,}"),
    _rule("square_token", "sq0atp- sq0csp-", _B + r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22,}"),
    _rule("square_token", "EAAA", _B + r"EAAA[A-Za-z0-9_-]{60}" + _E),
    _rule("fireworks_key", "fw_", _B + r"fw_[A-Za-z0-9]{22,}" + _E),
    _rule("mapbox_token", "eyJ", _B + r"sk\.eyJ[A-Za-z0-9_-]{30,}\.[A-Za-z0-9_-]{20,}", back=3),
    _rule("mailchimp_key", "-us", _B + r"[a-f0-9]{32}-us\d{1,2}" + _E, back=32),
    _rule("fly_token", "fm1_ fm2_ fo1_", _B + r"f(?:m1|m2|o1)_[A-Za-z0-9+/=_-]{40,}"),
    # The first bytes of every RSA key in PKCS #8, for a key that has lost its header.
    _rule(
        "private_key",
        "IBADANBgkqhkiG9w0BAQEFAASC",
        r"[A-Za-z0-9+/]{6}IBADANBgkqhkiG9w0BAQEFAASC(?:[A-Za-z0-9+/=]|\\n|\r?\n(?=[A-Za-z0-9+/=]{16})){100,}",
        back=6,
    ),
)
# Tokens whose needles have only letters that are in every path: found with str.find, in the long runs first.
PLAIN_RULES: tuple[Rule, ...] = (
    _rule("databricks_token", "dapi", _B + r"dapi[a-f0-9]{32}(?:-\d)?" + _E),
    _rule("doppler_token", "dp.", _B + r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}" + _E),
    _rule("google_oauth", "1//0", rf"(?:(?<![A-Za-z0-9/_-])|{_AFTER_ESCAPE})1//0[A-Za-z0-9_-]{{40,}}"),
)
LOOSE_RULES: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    (
        "-----begin",
        (
            _loose(
                "private_key",
                "-----begin",
                r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----(?:(?!-----BEGIN )[\s\S]){0,20000}?"
                r"(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|\Z)",
            ),
        ),
    ),
    (":aa", (_loose("telegram_token", ":aa", r"(?<=\d{8}):AA[A-Za-z0-9_-]{33}" + _E),)),
    (
        "://",
        (_loose("basic_auth", "://", r"(?<=[a-z0-9])://[^\s:/@\"'`<>\[\]{}$]{0,64}:([^\s/@\"'`<>\[\]{}$]{3,128})@(?=[A-Za-z0-9\[])"),),
    ),
    ("bearer", (_loose("bearer_token", "bearer", r"[Bb]earer(?:\s+|%20|\+)([A-Za-z0-9._~+/-]{20,}=*)", odd=True),)),
    (
        "authorization",
        (_loose("basic_auth", "authorization", _BASIC_HEADER), _loose("bearer_token", "authorization", _AUTH_HEADER, odd=True)),
    ),
    ("cookie", (_loose("cookie", "cookie", _COOKIES, odd=True),)),
    # host:port:database:user:password, a line of .pgpass
    (":5432:", (_loose("password", ":5432:", r":5432:[\w.*-]{1,64}:[\w.*@-]{1,64}:(?:(?=\S*[^\d\s])(\S{4,128}))"),)),
    (
        " -p",
        (
            _loose(
                "password",
                "mysql",
                rf"mysql\w{{0,12}}\s(?:[^\n|;&]{{0,200}}?\s)?-p(?![\d:]+(?:[\s\"';]|\Z))[\"']?({_WORD_OF_SHELL}{{4,128}})",
            ),
            _loose(
                "password",
                " login ",
                rf" login (?:[^\n|;&]{{0,160}}?\s)?-p[ =]?(?!\d{{1,5}}(?:[\s\"']|\Z))[\"']?((?!-){_WORD_OF_SHELL}{{4,128}})",
            ),
        ),
    ),
    (
        "curl ",
        (_loose("basic_auth", "curl ", r"curl [^\n]{0,200}?(?:-u|--user)[ =]?[\"']?[\w.@-]{1,64}:((?=[^\s\"'$]*\d)[^\s\"'$]{6,128})"),),
    ),
    (
        "pass",
        (
            _loose("password", "password:", r"(?m)" + _YAML_PASSWORD, by_line=True),
            _loose("password", "passwd:", r"(?m)" + _YAML_PASSWORD, by_line=True),
            _loose("password", "sshpass", rf"sshpass\s{{1,4}}-p\s{{0,4}}[\"']?((?!-){_WORD_OF_SHELL}{{4,128}})"),
            _loose("password", " login ", r" login \S{1,64}\s+password\s+(\S{6,128})"),  # a line of .netrc
        ),
    ),
    ("secret", (_loose("password", "secret:", r"(?m)" + _YAML_PASSWORD, by_line=True),)),
)
"""Word -> the rules that are tried only where it stands in a text, in either case."""
# Its needle would be "pat", of which every path has one: it is looked for in the few runs that are long enough.
_LONG_RULE, MIN_LONG_RUN = Rule("airtable_token", ("pat",), re.compile(_B + r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}" + _E)), 82
_RARE_FIRST = "Q^XKZ~@?Yzq<VJ;|+&>#B%Gj!OMWHN*LFPRUxA9E87DI_65T04C=S3bvyw2-:k1f.gpuhm/dlcaonsirte "
"""Letters by how rarely source code and its logs hold them, the rarest first; measured on public sessions."""


class _Look(NamedTuple):
    """What a hit of the look for needles means: how far before the hit its needle begins, and the rules to try."""

    offset: int
    rules: tuple[Rule, ...]


def _look(rules: Iterable[Rule]) -> tuple[re.Pattern[str], tuple[_Look, ...]]:
    """One pattern for all needles, and what each of its groups means.

    Every branch begins with one plain letter - `_` or `-`, or else the needle's rarest - for then the regex engine skips to
    these; the letter before it is compared next, for many needles at once.
    """
    by_needle: dict[str, list[Rule]] = {}
    for rule in rules:
        for needle in rule.needles:
            by_needle.setdefault(needle, []).append(rule)
    by_letter: dict[str, list[str]] = {}
    looks: list[_Look] = []
    order: dict[str, list[tuple[str, int, tuple[Rule, ...]]]] = {}
    for needle, own in by_needle.items():
        at = max(map(needle.rfind, "_-"))
        if at < 0:
            at = min(range(len(needle)), key=lambda i: _RARE_FIRST.index(needle[i]))
        order.setdefault(needle[max(0, at - 1) : at + 1], []).append((needle, at, tuple(own)))
    for end, entries in sorted(order.items(), key=lambda item: item[0][::-1]):  # the groups of a letter in one row
        parts = []
        for needle, at, own in entries:
            looks.append(_Look(at, own))
            before, after = re.escape(needle[: at + 1]), re.escape(needle[at + 1 :])
            parts.append(f"(?<=({before}))" + (f"(?={after})" if after else ""))
        by_letter.setdefault(end[-1], []).append(f"(?<={re.escape(end)})(?:{'|'.join(parts)})")
    return re.compile("|".join(f"{re.escape(c)}(?:{'|'.join(parts)})" for c, parts in by_letter.items())), tuple(looks)


_NEEDLE, _LOOKS = _look(TOKEN_RULES)


def known_secrets(page: Page) -> Iterator[Span]:
    """Where secrets of the rules stand; spans of two rules may overlap.

    >>> list(known_secrets(Page.of("postgres://app:h0rse@db/x")))
    [Span(start=15, end=20, kind='basic_auth')]
    """
    done: dict[Rule, int] = {}
    text, low = page.text, page.low
    runs = "\n".join([text[start:end] for start, end in page.runs])
    for start, end in page.runs if _NEEDLE.search(runs) else ():
        for hit in _NEEDLE.finditer(text, start, end):
            look = _LOOKS[(hit.lastindex or 1) - 1]
            for rule in look.rules:
                yield from _tried(rule, text, hit.start() - look.offset, done)
    for start, end in page.runs:
        if end - start >= MIN_LONG_RUN:
            yield from _found_by_needle(_LONG_RULE, page, (text, start, end), done)
    for rule in PLAIN_RULES:
        if rule.needles[0] in runs:
            yield from _found_by_needle(rule, page, (text, 0, len(text)), done)
    for word, rules in LOOSE_RULES:
        if word in low:
            for rule in rules:
                yield from _found_by_needle(rule, page, (low, 0, len(low)), done)


def _found_by_needle(rule: Rule, page: Page, where: tuple[str, int, int], done: dict[Rule, int]) -> Iterator[Span]:
    """The secrets of a rule wherever its needle stands in a part of the text, or of the text in small letters."""
    needle, (text, at, end) = rule.needles[0], where
    while (at := text.find(needle, at, end)) >= 0:
        yield from _tried(rule, page.text, at, done)
        at += len(needle)


def _tried(rule: Rule, text: str, needle: int, done: dict[Rule, int]) -> Iterator[Span]:
    """The secret of a rule at a needle, if it is one; `done` is where the last match of each rule ends."""
    start = needle - rule.back
    if rule.by_line:
        start = text.rfind("\n", max(0, needle - MAX_INDENT), needle) + 1
        if not start and needle > MAX_INDENT:  # no line of which this could be the beginning
            return
    if start < done.get(rule, 0):  # inside the rule's last match, or before the text
        return
    match = rule.pattern.match(text, start)
    if match is None:
        return
    done[rule] = match.end()
    group = 1 if rule.pattern.groups else 0
    if rule.odd and not _is_odd(match[group]):
        return
    if not group or len(match[1]) >= MAX_PLACEHOLDER or not PLACEHOLDER.search(match[1]):
        yield Span(*match.span(group), rule.kind)


def _is_odd(secret: str) -> bool:
    return any(map(str.isdigit, secret)) or is_random(secret)
