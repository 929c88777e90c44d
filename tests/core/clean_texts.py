"""Strings that look odd but hold no secret: hashes, ids, paths, numbers, lock files, minified code,
pictures, code about passwords."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

HEX = "0123456789abcdef"
ALNUM = string.ascii_letters + string.digits
WORDS = tuple(
    [
        "user",
        "order",
        "cart",
        "invoice",
        "payment",
        "session",
        "token",
        "secret",
        "password",
        "key",
        "auth",
        "login",
        "config",
        "parser",
        "buffer",
        "stream",
        "index",
        "cache",
        "retry",
        "worker",
        "queue",
        "schema",
        "migration",
        "handler",
        "request",
        "response",
        "header",
        "cookie",
        "signature",
        "digest",
        "cipher",
        "vault",
        "credential",
        "account",
        "profile",
        "test",
        "fixture",
        "mock",
    ]
)
Rng = random.Random


def _hex(rng: Rng, count: int) -> str:
    return "".join(rng.choices(HEX, k=count))


def _uuid(rng: Rng) -> str:
    return "-".join(_hex(rng, n) for n in (8, 4, 4, 4, 12))


def _word(rng: Rng) -> str:
    return rng.choice(WORDS)


def _snake(rng: Rng) -> str:
    return "_".join(rng.sample(WORDS, rng.randint(2, 4)))


def _camel(rng: Rng) -> str:
    first, *rest = rng.sample(WORDS, rng.randint(2, 4))
    return first + "".join(w.capitalize() for w in rest)


def _path(rng: Rng) -> str:
    return "/".join(
        (
            "",
            "home",
            "dev",
            *rng.sample(WORDS, rng.randint(2, 5)),
            f"{_snake(rng)}.{rng.choice(('py', 'ts', 'go', 'json', 'lock'))}",
        )
    )


def _b64(rng: Rng, count: int) -> str:
    return base64.b64encode(rng.randbytes(count)).decode()


SHAPES: dict[str, Callable[[Rng], str]] = {
    "commit": lambda r: f"commit {_hex(r, 40)}\nindex {_hex(r, 7)}..{_hex(r, 7)} 100644",
    "log line": lambda r: f"{_hex(r, 10)} {_word(r)}: fix {_snake(r)} (#{r.randrange(9999)})",
    "uuid": lambda r: f'"{_camel(r)}Id": "{_uuid(r)}"',
    "npm lock": lambda r: json.dumps(
        {
            "resolved": f"https://registry.example/{_word(r)}-2.1.tgz",
            "integrity": f"sha512-{_b64(r, 64)}",
        }
    ),
    "poetry lock": lambda r: (
        f'{{file = "{_word(r)}-1.0-py3-none-any.whl", hash = "sha256:{_hex(r, 64)}"}},'
    ),
    "go sum": lambda r: f"github.com/acme/{_word(r)} v1.{r.randrange(30)}.0 h1:{_b64(r, 32)}\n",
    "cargo lock": lambda r: f'[[package]]\nname = "{_word(r)}"\nchecksum = "{_hex(r, 64)}"',
    "picture": lambda r: f"data:image/png;base64,{_b64(r, 300)}",
    "certificate": lambda r: (
        f"-----BEGIN CERTIFICATE-----\n{_b64(r, 48)}\n{_b64(r, 48)}\n-----END CERTIFICATE-----"
    ),
    "public key": lambda r: f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{_b64(r, 32)[:43]} dev",
    "fingerprint": lambda r: f"256 SHA256:{_b64(r, 32)[:43]} dev (ED25519)",
    "path": _path,
    "grep hit": lambda r: (
        f"{_path(r)}:{r.randrange(999)}:    {_snake(r)} = {_camel(r)}({_snake(r)}={_word(r)})"
    ),
    "test name": lambda r: (
        f"tests/{_word(r)}/test_{_snake(r)}.py::Test{_camel(r).capitalize()}::test_{_snake(r)}[{r.randrange(99)}-{_word(r)}]"
        " PASSED"
    ),
    "traceback": lambda r: (
        f'  File "{_path(r)}", line {r.randrange(999)}, in {_snake(r)}\nValueError: bad {_word(r)}'
        f" at 0x{_hex(r, 12)}"
    ),
    "numbers": lambda r: " ".join(f"{r.uniform(-1e6, 1e6):.6f}" for _ in range(8)),
    "minified": lambda r: (
        f'!function(e,t){{var a=t.{_camel(r)}||{{}};e.{_camel(r)}="{_word(r)}";'
        f"return t.{_word(r)}Key={r.choice('xyz')}.{_camel(r)}}}(this,{_camel(r)});"
    ),
    "assignment of code": lambda r: (
        f"{_word(r)}_{r.choice(('token', 'secret', 'password', 'api_key'))} ="
        f" {_word(r)}.{_snake(r)}({_word(r)})"
    ),
    "name after a name": lambda r: (
        f"{r.choice(('apiKey', 'secretKey', 'authToken', 'password', 'clientSecret'))}: "
        f"{r.choice(('', chr(34)))}{_camel(r)}{_camel(r).capitalize()}{r.choice(('', '2'))}"
    ),
    "from the environment": lambda r: (
        f"{r.choice(('API_KEY', 'DB_PASSWORD', 'TOKEN'))}=${{{_snake(r).upper()}}} {_word(r)}"
    ),
    "typed field": lambda r: (
        f"    {r.choice(('password', 'token', 'api_key'))}:"
        f" {r.choice(('str', 'string', 'str | None = None', 'SecretStr'))}"
    ),
    "placeholder": lambda r: (
        f"{r.choice(('api_key', 'TOKEN', 'password'))}=<your-{_word(r)}-{r.randrange(99)}-here>"
    ),
    "settings about tokens": lambda r: (
        f"max_tokens={r.randrange(1000, 9999)} tokenizer_path={_path(r)} token_count:"
        f" {r.randrange(10**8)}"
    ),
    "sentence": lambda r: (
        f"The {_word(r)} {_word(r)} is read from the {_word(r)}; the password of the {_word(r)}"
        f" must be set, see {_snake(r)}."
    ),
    "json": lambda r: json.dumps(
        {_camel(r): {"id": _uuid(r), "etag": _hex(r, 32), "n": r.random(), "path": _path(r)}}
    ),
    "json in json": lambda r: json.dumps(
        {
            "body": json.dumps(
                {"etag": _hex(r, 40), _camel(r): _path(r), "next": _path(r), "k": [_uuid(r)]}
            )
        }
    ),
    "url": lambda r: (
        f"https://shop.example/{_word(r)}/{_uuid(r)}?page={r.randrange(99)}"
        f"&q={_word(r)}%20{_word(r)}%2F{_word(r)}&sha={_hex(r, 40)}"
    ),
    "container": lambda r: (
        f"sha256:{_hex(r, 64)} acme/{_word(r)}:{r.randrange(9)}.{r.randrange(9)} {_hex(r, 12)}"
    ),
    "call id": lambda r: (
        f"toolu_01{''.join(r.choices(ALNUM, k=22))} msg_01{''.join(r.choices(ALNUM, k=22))}"
        f" req_{_hex(r, 24)}"
    ),
    "css": lambda r: (
        f".{_word(r)}-{_word(r)}{{color:#{_hex(r, 6)};"
        f"background:url(/static/{_word(r)}.{_hex(r, 20)}.svg)}}"
    ),
    "base64 of prose": (
        lambda r: base64.b64encode(
            f"{_word(r)} {_word(r)} for the {_word(r)} and no more of it".encode()
        ).decode()
    ),
    "decorators": lambda r: (
        f"@{_word(r)}.route('/{_word(r)}')\nx = A @ {_word(r)}.T  # {_word(r)}@{_word(r)}"
    ),
    "versions": lambda r: f"npm i @types/{_word(r)}@20.{r.randrange(99)}.5 {_word(r)}@18.2.0",
}


def clean_texts(*, seed: int = 5, per_shape: int = 100) -> list[tuple[str, str]]:
    """Return (shape, text) pairs, `per_shape` of each shape; a seed always gives the same texts."""
    rng = Rng(seed)
    return [(shape, make(rng)) for shape, make in SHAPES.items() for _ in range(per_shape)]
