"""Secrets of many kinds, built letter by letter from a seed, and the places in which a session
holds them.

This file holds no secret: each is put together while the tests run. The same author wrote the kinds
and the rules, so the recall measured on them is an upper bound for kinds that nobody thought of.
Random parts are drawn uniformly: no digit or capital is added to suit a rule."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote

ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
B64 = ALNUM + "+/"
UPPER = string.ascii_uppercase + "234567"
Rng = random.Random


def some(rng: Rng, count: int, letters: str = ALNUM) -> str:
    return "".join(rng.choices(letters, k=count))


def password(rng: Rng) -> str:
    return some(rng, rng.randint(10, 18), ALNUM + "!#%^*-_+.")


def pem(rng: Rng, label: str, *, body_lines: int = 6) -> str:
    body = "\n".join(some(rng, 64, B64) for _ in range(body_lines))
    return f"-----BEGIN {label}-----\n{body}\n{some(rng, 22, B64)}==\n-----END {label}-----"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of secret is made, and the text around it without which nobody could recognise it
    ("" = none needed)."""

    make: Callable[[Rng], str]
    around: tuple[str, ...] = ("{}",)


SHELL = ALNUM + "!%^*_+."
"""Letters of passwords that stand in a command without quotes."""
NAMED = (
    "API_TOKEN={}",
    "export SERVICE_SECRET_KEY='{}'",
    '"apiKey": "{}"',
    "client_secret: {}",
    "--access-token {}",
)
KINDS: dict[str, Kind] = {
    "anthropic": Kind(lambda r: "sk-" + "ant-" + f"api03-{some(r, 40)}_{some(r, 50)}AA"),
    "openai project": Kind(lambda r: "sk-" + "proj-" + f"{some(r, 70)}-{some(r, 40)}"),
    "openrouter": Kind(lambda r: "sk-" + "or-v1-" + some(r, 64, HEX)),
    "hub": Kind(lambda r: "hf" + "_" + some(r, 34)),
    "git host": Kind(lambda r: "gh" + r.choice("posu") + "_" + some(r, 36)),
    "git host, fine-grained": Kind(lambda r: "github" + "_pat_" + some(r, 22) + "_" + some(r, 59)),
    "git host, own": Kind(lambda r: "gl" + "pat-" + some(r, 20, ALNUM + "_-")),
    "cloud key id": Kind(lambda r: "AK" + "IA" + some(r, 16, UPPER)),
    "cloud secret": Kind(
        lambda r: some(r, 40, B64),
        ("AWS_SECRET_ACCESS_KEY={}", "aws_secret_access_key = {}", '"SecretAccessKey": "{}"'),
    ),
    "maps key": Kind(lambda r: "AI" + "za" + some(r, 35, ALNUM + "_-")),
    "chat bot": Kind(
        lambda r: (
            "xo"
            + "xb-"
            + f"{r.randrange(10**11, 10**12)}-{r.randrange(10**12, 10**13)}-{some(r, 24)}"
        )
    ),
    "payment": Kind(lambda r: r.choice("sr") + "k_" + "live_" + some(r, 24)),
    "mail": Kind(lambda r: "S" + f"G.{some(r, 22, ALNUM + '_-')}.{some(r, 43, ALNUM + '_-')}"),
    "package registry": Kind(lambda r: "np" + "m_" + some(r, 36)),
    "package index": Kind(lambda r: "py" + "pi-Ag" + "EIcHlwaS5vcmc" + some(r, 120, ALNUM + "_-")),
    "signed token": Kind(
        lambda r: "e" + f"yJhbGciOiJIUzI1NiJ9.ey{'J'}{some(r, 60)}.{some(r, 43, ALNUM + '_-')}"
    ),
    "private key": Kind(
        lambda r: pem(r, r.choice(("RSA ", "EC ", "OPENSSH ", "")) + "PRIVATE KEY")
    ),
    "private key, armoured": Kind(lambda r: pem(r, "PGP PRIVATE KEY BLOCK")),
    "password in an address": Kind(
        password,
        (
            "postgres://app:{}@db.internal:5432/shop",
            "redis://:{}@cache:6379/0",
            "https://bot:{}@git.host/acme/shop.git",
        ),
    ),
    "bearer": Kind(
        lambda r: some(r, r.randint(24, 48)),
        (
            "Authorization: Bearer {}",
            '"Authorization": "Bearer {}"',
            "curl -H 'Authorization: Bearer {}' x",
        ),
    ),
    "password": Kind(
        password,
        (
            "DB_PASSWORD={}",
            '"password": "{}"',
            "  password: {}",
            "passwd = '{}'",
            '{{"name": "DB_PASSWORD", "value": "{}"}}',
        ),
    ),
    "storage key": Kind(
        lambda r: some(r, 86, B64) + "==",
        (
            "DefaultEndpointsProtocol=https;AccountName=shop;AccountKey={};EndpointSuffix=x",
            'AccountKey="{}"',
            *NAMED[:2],
        ),
    ),
    "named token": Kind(
        lambda r: some(r, r.choice((16, 20, 24, 32, 40))),
        (*NAMED, "api_key: {}", "secret={}", "x-api-key: {}"),
    ),
    "named token, short": Kind(
        lambda r: some(r, r.randint(12, 15)), (*NAMED, "api_key: {}", "secret={}")
    ),
    "named token, no digit": Kind(
        lambda r: some(r, r.choice((16, 24, 32)), string.ascii_letters), (*NAMED, "api_key: {}")
    ),
    "password, plain": Kind(
        lambda r: some(r, r.randint(8, 15)),
        (
            "DB_PASSWORD={}",
            '"password": "{}"',
            "PGPASSWORD={} psql",
            "  password: {}",
            "--password {}",
        ),
    ),
    "header": Kind(
        lambda r: some(r, r.choice((20, 32, 40))),
        (
            "Authorization: token {}",
            "Authorization: Bot {}",
            '"authorization": "ApiKey {}"',
            "curl -H 'Authorization: {}' x",
        ),
    ),
    "cookie": Kind(
        lambda r: some(r, r.choice((24, 32, 40))),
        (
            "Cookie: session={}",
            "Cookie: theme=dark; connect.sid={}; lang=en",
            "Set-Cookie: auth_token={}; Path=/; HttpOnly",
        ),
    ),
    "block of yaml": Kind(
        lambda r: "\n  ".join(some(r, 64, B64) for _ in range(r.randint(1, 4))),
        ("private_key: |\n  {}", "  client_secret: |-\n  {}\n  port: 1", "secret: >\n  {}\n"),
    ),
    "password in a command": Kind(
        lambda r: some(r, 1) + some(r, r.randint(9, 15), SHELL),
        (
            "mysql -u root -p{} shop",
            "sshpass -p {} ssh dev@db",
            "docker login -u dev -p {} hub.host",
            "mysqldump --host db -p'{}' shop",
        ),
    ),
    "password file": Kind(
        lambda r: some(r, r.randint(10, 16)), ("db.host:5432:shop:admin:{}", "*:5432:*:app:{}")
    ),
    "data platform": Kind(lambda r: "da" + "pi" + some(r, 32, HEX)),
    "telephony": Kind(lambda r: "S" + "K" + some(r, 32, HEX)),
    "error tracker": Kind(lambda r: "snt" + "rys_" + some(r, 64, B64 + "_")),
    "design": Kind(lambda r: "fi" + "gd_" + some(r, 40, ALNUM + "_-")),
    "tables": Kind(lambda r: "pa" + "t" + some(r, 14) + "." + some(r, 64, HEX)),
    "database host": Kind(lambda r: "psc" + "ale_pw_" + some(r, 43, ALNUM + "_-")),
    "secret manager": Kind(lambda r: "d" + "p.pt." + some(r, 43)),
    "tracing": Kind(lambda r: "ls" + f"v2_pt_{some(r, 32, HEX)}_{some(r, 10, HEX)}"),
    "web search": Kind(lambda r: "tv" + "ly-" + some(r, 32)),
    "app host": Kind(lambda r: "HR" + "KU-" + some(r, 60, ALNUM + "_-")),
    "till": Kind(
        lambda r: r.choice(
            ("sq" + "0atp-" + some(r, 22, ALNUM + "_-"), "EA" + "AA" + some(r, 60, ALNUM + "_-"))
        )
    ),
    "inference": Kind(lambda r: "f" + "w_" + some(r, 24)),
    "refresh token": Kind(lambda r: "1/" + "/0" + some(r, 60, ALNUM + "_-")),
    "map tiles": Kind(lambda r: "s" + f"k.ey{'J'}1I{some(r, 60)}.{some(r, 22, ALNUM + '_-')}"),
    "mailing list": Kind(lambda r: some(r, 32, HEX) + "-us" + str(r.randint(1, 21))),
    "edge host": Kind(lambda r: "f" + "m2_" + some(r, 100, B64)),
}


def drawn(*, length: int, name: str, seed: int = 17, count: int = 500) -> list[tuple[str, str]]:
    """(value, text): plain random letters and digits after a name, without and with quotes,
    recognisable by that name only."""
    rng = Rng(seed + length)
    values = [some(rng, length) for _ in range(count)]
    return [
        (value, f"{name}={value}\n" if number % 2 else f'"{name}": "{value}",')
        for number, value in enumerate(values)
    ]


def plain(text: str) -> str:
    return text


def in_json(text: str) -> str:
    return json.dumps({"stdout": text, "code": 0})


def json_in_json(text: str) -> str:
    return json.dumps({"body": json.dumps({"stdout": text})})


def in_base64(text: str) -> str:
    return "data: " + base64.b64encode(f"# settings of the shop\n{text}\n".encode()).decode()


def wrapped_base64(text: str) -> str:
    return base64.encodebytes(f"# settings of the shop, made by hand\n{text}\n".encode()).decode()


PLACES: tuple[Callable[[str], str], ...] = (
    plain,
    lambda t: f"$ cat .env\n{t}\nPORT=8080\n",
    lambda t: "\n".join(f"{n:6d}\u2192{line}" for n, line in enumerate(t.split("\n"), 1)),
    lambda t: "\n".join(f"+{line}" for line in t.split("\n")),
    lambda t: f"\x1b[32m{t}\x1b[0m",
    lambda t: f"I will use `{t}` here.",
    in_json,
    json_in_json,
    lambda t: f"callback?state=1&payload={quote(t, safe='')}&x=1",
    in_base64,
    wrapped_base64,
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A text that holds one secret."""

    kind: str
    secret: str
    text: str
    place: int


def planted(*, seed: int = 11, per_kind: int = 20) -> list[Planted]:
    """Return `per_kind` secrets of each kind, in changing places; a seed always gives the same
    secrets."""
    rng = Rng(seed)
    secrets: list[Planted] = []
    for name, kind in KINDS.items():
        for number in range(per_kind):
            secret = kind.make(rng)
            around = kind.around[number % len(kind.around)].format(secret)
            place = number % len(PLACES)
            secrets.append(Planted(name, secret, PLACES[place](around), place))
    return secrets


def still_there(planted_secret: Planted, clean: str, *, window: int = 12) -> str:
    """Return a piece of the secret that is readable in `clean`, plainly or decoded; "" if none is
    left."""
    body = "".join(
        line.strip() for line in planted_secret.secret.split("\n") if not line.startswith("-----")
    )
    pieces = {body[i : i + window] for i in range(max(1, len(body) - window + 1))}
    readings = [clean, clean.replace("\n+", "").replace("\n", ""), *_decoded(clean)]
    return next((piece for reading in readings for piece in pieces if piece in reading), "")


def _decoded(text: str) -> list[str]:
    """Return what anybody could read out of a text: URL encoding and JSON escapes undone, base64
    decoded."""
    readings = [unquote(text)]
    unescaped = text
    for _ in range(2):
        unescaped = (
            unescaped.replace('\\"', '"')
            .replace("\\n", "\n")
            .replace("\\/", "/")
            .replace("\\\\", "\\")
        )
        readings.append(unescaped.replace("\n", ""))
    letters = "".join(c if c in B64 + "=" else " " for c in text.replace("\n", ""))
    for word in letters.split():
        if len(word) >= 24:
            cut = word.replace("=", "")
            cut = cut[:-1] if len(cut) % 4 == 1 else cut
            readings.append(base64.b64decode(cut + "=" * (-len(cut) % 4)).decode("latin-1"))
    return readings
