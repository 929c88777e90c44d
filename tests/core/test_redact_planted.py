"""Twenty planted secrets of each of 47 kinds, plain and encoded, and thousands of clean strings:
recall, alterations, stable names."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

import pytest

from composer_replication.core.redact import Redactor, find_secrets
from tests.core.clean_texts import SHAPES, clean_texts
from tests.core.planting import KINDS, PLACES, Rng, drawn, pem, planted, still_there

MIN_RECALL, MAX_ALTERED = 0.99, 0.01
NAMED = {12: 0.97, 14: 0.98, 16: 0.99, 20: 0.99, 24: 0.99, 32: 0.99}
PASSWORDS = {8: 0.94, 10: 0.96, 12: 0.97, 16: 0.99}
"""Length of a plainly random value -> the least share of them that goes; docs/benchmarks.md tells
what is measured."""


def test_the_planted_secrets_are_twenty_of_each_kind_and_can_all_be_read() -> None:
    secrets = planted()
    assert Counter(item.kind for item in secrets) == dict.fromkeys(KINDS, 20)
    assert len(KINDS) == 47
    assert {item.place for item in secrets} == set(range(len(PLACES)))
    # still_there reads every encoding
    assert [item for item in secrets if not still_there(item, item.text)] == []
    assert [item.text for item in planted()] == [item.text for item in secrets]


@pytest.mark.parametrize("seed", [11, 12, 21, 22])
def test_planted_secrets_go_plain_and_encoded(seed: int) -> None:
    redactor = Redactor(environ={})
    secrets = planted(seed=seed)
    left = [
        (item.kind, item.place) for item in secrets if still_there(item, redactor.text(item.text))
    ]
    assert 1 - len(left) / len(secrets) >= MIN_RECALL, left


@pytest.mark.parametrize("length", NAMED)
@pytest.mark.parametrize("name", ["API_KEY", "client_secret"])
def test_plainly_random_values_go_after_the_name_of_a_secret(name: str, length: int) -> None:
    """Nothing is arranged in these letters: of those with 12 one in eight has no digit and four in
    ten have less than two."""
    left = [
        value
        for value, text in drawn(length=length, name=name)
        if value in Redactor(environ={}).text(text)
    ]
    assert len(left) <= 500 * (1 - NAMED[length]), left


@pytest.mark.parametrize("length", PASSWORDS)
def test_plainly_random_values_go_after_the_name_of_a_password(length: int) -> None:
    left = [
        value
        for value, text in drawn(length=length, name="DB_PASSWORD")
        if value in Redactor(environ={}).text(text)
    ]
    assert len(left) <= 500 * (1 - PASSWORDS[length]), left


def test_planted_secrets_go_from_json_values() -> None:
    redactor = Redactor(environ={})
    secrets = planted(seed=13, per_kind=3)
    values = redactor.value({"input": [{"command": item.text} for item in secrets]})
    left = [
        item.kind
        for item, value in zip(secrets, values["input"], strict=True)
        if still_there(item, value["command"])
    ]
    assert left == []


def test_clean_strings_stay_as_they_are() -> None:
    texts = clean_texts()
    altered = Counter(shape for shape, text in texts if Redactor(environ={}).text(text) is not text)
    assert altered.total() / len(texts) <= MAX_ALTERED, altered
    assert len(texts) == 100 * len(SHAPES) >= 3000


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def test_strings_of_real_sessions_stay_as_they_are(log_folders: tuple[Path, ...]) -> None:
    """The sessions were searched for secrets before publication, so a match in them is an e-mail
    address or a false alarm."""
    texts: set[str] = set()
    for path in (path for folder in log_folders for path in folder.rglob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                texts.update(_strings(json.loads(line)))
            except ValueError:
                continue
    num_by_kind = Counter(match.kind for text in texts for match in find_secrets(text))
    assert len(texts) > 1000
    assert (num_by_kind.total() - num_by_kind["email"]) / len(texts) <= MAX_ALTERED, num_by_kind
    assert num_by_kind.total() / len(texts) <= MAX_ALTERED, num_by_kind


ENCODINGS = {
    "json": lambda t: json.dumps(t),
    "json in json": lambda t: json.dumps(json.dumps(t)),
    "slashes escaped": lambda t: json.dumps(t).replace("/", "\\/"),
    "url": lambda t: quote(t, safe=""),
    "url in json": lambda t: json.dumps({"u": quote(t, safe="")}),
    "base64": lambda t: base64.b64encode(t.encode()).decode(),
    "base64, for urls": lambda t: base64.urlsafe_b64encode(t.encode()).decode().rstrip("="),
    "base64 in json in json": lambda t: json.dumps(
        json.dumps({"d": base64.b64encode(t.encode()).decode()})
    ),
    "json in base64": lambda t: base64.b64encode(json.dumps({"env": t}).encode()).decode(),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_secret_has_the_same_name_plain_and_encoded(name: str) -> None:
    key = "npm" + "_" + "q7Zx" * 9
    plain, encoded = (
        f"AUTH = {key} # of the registry",
        ENCODINGS[name](f"AUTH = {key} # of the registry"),
    )
    redactor = Redactor(key=b"store", environ={})
    mask = redactor.text(plain).split()[2]
    clean = redactor.text(encoded)
    assert mask in clean
    assert redactor.counts == {"npm_token": 2}
    assert key not in clean


def test_what_stands_around_an_encoded_secret_stays() -> None:
    value = "abc/def+ghi/jkl0mno1pqr2stu3vwx4yza5bcd6"  # in a URL every / and + takes three letters
    redactor = Redactor(key=b"store", environ={})
    clean = redactor.text(
        f"GET /cb?page=1&client_secret={quote(value, safe='')}&next=%2Fhome HTTP/1.1"
    )
    assert clean.startswith("GET /cb?page=1&client_secret=[REDACTED:assigned_secret:")
    assert clean.endswith("]&next=%2Fhome HTTP/1.1")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n", "\\\\n", "\n    ", "\n+"])
def test_a_private_key_goes_whatever_its_lines_end_with(newline: str) -> None:
    key = pem(Rng(3), "EC PRIVATE KEY")
    text = "before" + newline + key.replace("\n", newline) + newline + "after"
    clean = Redactor(environ={}).text(text)
    assert clean.startswith("before")
    assert clean.endswith("after")
    assert [line for line in key.split("\n") if line in clean] == []


def test_base64_in_lines_goes_whole_and_prose_in_base64_stays() -> None:
    secret = "export DB_PASSWORD='" + "tr0ub4dor&3x'" + "\n# " + "and a comment of some length" * 4
    encoded = base64.encodebytes(secret.encode()).decode()
    clean = Redactor(environ={}).text(f"cat x\n{encoded}$ ls\n")
    assert [line for line in encoded.split("\n") if line and line in clean] == []
    assert clean.startswith("cat x\n[REDACTED:password:")
    assert clean.endswith("]\n$ ls\n")
    prose = base64.b64encode(b"the quick brown fox jumps over the lazy dog").decode()
    assert Redactor(environ={}).text(prose) is prose


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_four_layers_of_encoding_are_taken_off(layers: int) -> None:
    """A tool prints base64 of what another tool printed: the value goes at each layer, and the text
    around it stays."""
    text = "password=hunter22xx"
    for number in range(layers):
        text = base64.b64encode((text if number else f"user=ada {text}").encode()).decode()
    assert [match.secret for match in find_secrets(f"out: {text} end")] == ["hunter22xx"]
    clean = Redactor(environ={}).text(f"out: {text} end")
    assert (
        clean.startswith("out: ")
        and clean.endswith(" end")
        and "[REDACTED:password:" in clean
        and text not in clean
    )


def test_names_cannot_be_worked_out_without_the_key() -> None:
    """A name is not a plain hash: two redactors with different keys, as two stores have, name a
    secret differently."""
    text = "DB_PASSWORD=tr0ub4dor&3x"
    names = {Redactor(environ={}).text(text) for _ in range(3)} | {
        Redactor(key=key, environ={}).text(text) for key in (b"a", b"b")
    }
    assert len(names) == 5


def test_of_two_finds_that_overlap_all_letters_go() -> None:
    token = "gh" + "p_" + "q7Zx" * 9
    (match,) = find_secrets(f"Authorization: Bearer {token}.and-more-of-it-99 x")
    assert (match.kind, match.secret) == ("github_token", f"{token}.and-more-of-it-99")


def test_finds_are_in_order_and_apart() -> None:
    for item in planted(seed=14, per_kind=4):
        matches = find_secrets(item.text)
        assert all(a.end <= b.start for a, b in pairwise(matches))
        assert all(0 <= f.start < f.end <= len(item.text) for f in matches)


def test_what_was_redacted_stays_as_it_is_when_it_is_redacted_again() -> None:
    """A store is redacted again if its list of words changes: the same secret keeps its name."""
    redactor = Redactor(environ={})
    once = [redactor.text(item.text) for item in planted(seed=17, per_kind=3)]
    assert [redactor.text(text) for text in once] == once
    assert "Initech" not in Redactor(words=["Initech"], environ={}).text(
        f"Initech {once[0]} Initech"
    )
