"""Redaction removes every kind of secret, keeps ordinary code, and gives a secret a stable name."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable
from re._parser import parse  # type: ignore[import-not-found]
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.core.redact import Redactor, secrets_of
from composer_replication.core.secret_letters import entropy_bits
from composer_replication.core.secret_tokens import TOKEN_RULES, Rule

RNG = random.Random(5)
ALNUM = string.ascii_letters + string.digits


def some(count: int, letters: str = ALNUM) -> str:
    """Return random letters with at least one digit and one capital among them."""
    return "".join(RNG.choice(letters) for _ in range(count - 3)) + "a7Z"


def some_hex(count: int) -> str:
    return "".join(RNG.choice("0123456789abcdef") for _ in range(count))


SECRETS: dict[str, tuple[str, ...]] = {
    "anthropic_key": (f"sk-ant-api03-{some(40)}-{some(50)}AA", f"sk-ant-oat01-{some(60)}"),
    "openai_key": (
        f"sk-{some(48)}",
        f"sk-proj-{some(60)}_{some(20)}-{some(10)}",
        f"sk-svcacct-{some(50)}",
    ),
    "openrouter_key": (f"sk-or-v1-{some_hex(64)}",),
    "huggingface_token": (f"hf_{some(34)}",),
    "github_token": (
        f"ghp_{some(36)}",
        f"gho_{some(36)}",
        f"ghs_{some(40)}",
        f"github_pat_{some(22)}_{some(59)}",
    ),
    "gitlab_token": (f"glpat-{some(20)}",),
    "aws_key_id": ("AKIAIOSFODNN7QXMPLEA", "ASIAQ3EGRNKDA2QWERTY"),
    "google_key": (f"AIzaSy{some(33)}",),
    "google_oauth": (f"ya29.{some(60)}", f"GOCSPX-{some(28)}", f"1//0{some(60)}"),
    "slack_token": (
        f"xoxb-{RNG.randrange(10**11, 10**12)}-{RNG.randrange(10**11, 10**12)}-{some(24)}",
        f"xapp-1-A{some(10)}-{some(40)}",
    ),
    "stripe_key": (f"sk_live_{some(24)}", f"rk_test_{some(24)}", f"whsec_{some(32)}"),
    "sendgrid_key": (f"SG.{some(22)}.{some(43)}",),
    "npm_token": (f"npm_{some(36)}",),
    "pypi_token": (f"pypi-AgEIcHlwaS5vcmc{some(80)}",),
    "groq_key": (f"gsk_{some(52)}",),
    "xai_key": (f"xai-{some(80)}",),
    "docker_token": (f"dckr_pat_{some(27)}",),
    "digitalocean_token": (f"dop_v1_{some_hex(64)}",),
    "shopify_token": (f"shpat_{some_hex(32)}",),
    "age_key": (f"AGE-SECRET-KEY-1{some(58).upper()}",),
    "langfuse_key": (
        f"sk-lf-{some_hex(8)}-{some_hex(4)}-{some_hex(4)}-{some_hex(4)}-{some_hex(12)}",
    ),
    "perplexity_key": (f"pplx-{some(48)}",),
    "nvidia_key": (f"nvapi-{some(64)}",),
    "replicate_token": (f"r8_{some(37)}",),
    "vault_token": (f"hvs.{some(90)}",),
    "linear_key": (f"lin_api_{some(40)}",),
    "notion_token": (f"ntn_{some(46)}",),
    "supabase_token": (f"sbp_{some_hex(40)}",),
    "grafana_token": (f"glsa_{some(32)}_{some_hex(8)}",),
    "newrelic_key": (f"NRAK-{some(27).upper()}",),
    "atlassian_token": (f"ATATT3{some(180)}",),
    "postman_key": (f"PMAK-{some_hex(24)}-{some_hex(34)}",),
    "mailgun_key": (f"key-{some_hex(32)}",),
    "azure_client_secret": (f"{some(3)}8Q~{some(34)}",),
    "jwt": (f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx{some(20)}.{some(43)}",),
    "databricks_token": (f"dapi{some_hex(32)}", f"dapi{some_hex(32)}-2"),
    "twilio_key": (f"SK{some_hex(32)}",),
    "sentry_token": (f"sntrys_{some(60)}", f"sntryu_{some_hex(64)}"),
    "figma_token": (f"figd_{some(40)}",),
    "airtable_token": (f"pat{some(14)}.{some_hex(64)}",),
    "planetscale_token": (f"pscale_pw_{some(43)}", f"pscale_tkn_{some(43)}"),
    "doppler_token": (f"dp.pt.{some(43)}", f"dp.st.prod.{some(43)}"),
    "langsmith_key": (
        f"lsv2_pt_{some_hex(32)}_{some_hex(10)}",
        f"lsv2_sk_{some_hex(32)}_{some_hex(10)}",
    ),
    "tavily_key": (f"tvly-{some(32)}", f"tvly-dev-{some(32)}"),
    "heroku_key": (f"HRKU-{some(60)}",),
    "square_token": (f"sq0atp-{some(22)}", f"sq0csp-{some(43)}", f"EAAA{some(60)}"),
    "fireworks_key": (f"fw_{some(24)}",),
    "mapbox_token": (f"sk.eyJ1I{some(60)}.{some(22)}",),
    "mailchimp_key": (f"{some_hex(32)}-us12",),
    "fly_token": (f"fm2_{some(100)}",),
    "email": ("ada.lovelace@analytical.co.uk", "dev+test@inkwell.dev"),
}
PLACES = (
    "{}",
    "key is {}.",
    "export X={}\n",
    '"{}"',
    "\\n{}\\n",
    "a\n{}\nb",
    "curl -H 'X: {}'",
    "url?key={}&x=1",
    "({})",
    "`{}`",
    "k:{},",
)


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("place", PLACES)
def test_every_kind_goes_wherever_it_stands(kind: str, place: str) -> None:
    for secret in SECRETS[kind]:
        text = place.replace("\\n", "\n").format(secret)
        redactor = Redactor(environ={})
        clean = redactor.text(text)
        assert secret not in clean
        assert secret[8:-8] not in clean or kind == "email"
        assert sum(redactor.counts.values()) == 1, redactor.counts


CONTEXTUAL = (
    (
        "private_key",
        (
            "x = '''-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKCAQEA\n-----END RSA PRIVATE"
            " KEY-----'''"
        ),
        "MIIEow",
    ),
    (
        "private_key",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n(cut)",
        "b3BlbnNzaC1rZXk",
    ),
    (
        "private_key",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nlQdGBF\n-----END PGP PRIVATE KEY BLOCK-----",
        "lQdGBF",
    ),
    ("basic_auth", "git clone https://ada:s3cretpw@git.host/x.git", "s3cretpw"),
    ("basic_auth", "postgres://app:Tr0ub4dor&3@db:5432/app", "Tr0ub4dor&3"),
    (
        "bearer_token",
        "Authorization: Bearer abcdEFGH1234567890ijklMNOP",
        "abcdEFGH1234567890ijklMNOP",
    ),
    ("basic_auth", "Authorization: Basic YWRhOmxvdmVsYWNl", "YWRhOmxvdmVsYWNl"),
    ("basic_auth", '{"authorization": "Basic YWRhOmxvdmVsYQ=="}', "YWRhOmxvdmVsYQ=="),
    ("password", "db:\n  user: app\n  password: letmein\n  port: 3", "letmein"),
    (
        "password",
        "     3\u2192  passwd: 'correct-horse'  # staging\n     4\u2192  port: 3",
        "correct-horse",
    ),
    ("password", "secret: velvet", "velvet"),
    ("password", "machine git.host login ada password s3cretpw", "s3cretpw"),
    ("basic_auth", "curl -s -u ada:s3cretpw https://git.host", "s3cretpw"),
    ("telegram_token", "bot123456789:AA" + "q7" * 16 + "x", ":AA" + "q7" * 16 + "x"),
    (
        "discord_webhook",
        "https://chat.host/api/webhooks/123456789012345678/" + "q7" * 34,
        "q7" * 34,
    ),
    (
        "slack_webhook",
        "https://hooks.slack.com/services/T0001/B0002/abcdefghijklmnop",
        "B0002/abcdefghijklmnop",
    ),
    ("password", "PASSWORD=hunter22x", "hunter22x"),
    (
        "password",
        "INSERT INTO users (name, password) VALUES ('ada', 'tr0ub4dor&3x');",
        "tr0ub4dor&3x",
    ),
    ("password", 'db_password: "correct-h0rse!"', "correct-h0rse!"),
    ("password", "'passwd' => 'Zx81spectrum9'", "Zx81spectrum9"),
    ("password", "--password Qw3rtyUiop9", "Qw3rtyUiop9"),
    ("bearer_token", "Authorization: token vKqTzRbWnXpLdGhMsYcJ", "vKqTzRbWnXpLdGhMsYcJ"),
    ("bearer_token", "-H 'Authorization: 9fK2mQ8xL4vB7nR1tY6w'", "9fK2mQ8xL4vB7nR1tY6w"),
    (
        "cookie",
        "Cookie: theme=dark; session=9fK2mQ8xL4vB7nR1tY6w; a=b",
        "9fK2mQ8xL4vB7nR1tY6w; a=b",
    ),
    ("cookie", '{"cookie": "sid=vKqTzRbWnXpLdGhMsYcJ"}', "vKqTzRbWnXpLdGhMsYcJ"),
    (
        "assigned_secret",
        "private_key: |\n  vKqTzRbWnXpLdGhM\n  zRbWnXpLdGhMsYcJ\nport: 3",
        "vKqTzRbWnXpLdGhM\n  zRbWnXpLdGhMsYcJ",
    ),
    ("password", "password: >-\n  tr0ub4dor\nport: 3", "tr0ub4dor"),
    ("password", "mysql -h db -u root -phunter22 shop", "hunter22"),
    ("password", "sshpass -p letmein ssh dev@db", "letmein"),
    ("password", "docker login -u dev -p letmein hub.host", "letmein"),
    ("password", "db.host:5432:shop:admin:letmein", "letmein"),
    ("password", "password = vKqTzRbW", "vKqTzRbW"),
    ("assigned_secret", "m--access-token vKqTzRbWnXpLdGhM", "vKqTzRbWnXpLdGhM"),
    ("assigned_secret", "api_key: vKqTzRbWnXpL", "vKqTzRbWnXpL"),
    ("assigned_secret", "SECRET_KEY = 'f8a0c1d29be64e7f9a35'", "f8a0c1d29be64e7f9a35"),
    ("assigned_secret", "api_key: 9fK2mQ8xL4vB7nR1tY6w", "9fK2mQ8xL4vB7nR1tY6w"),
    ("assigned_secret", '{"client_secret": "9fK2mQ8xL4vB7nR1tY6w"}', "9fK2mQ8xL4vB7nR1tY6w"),
    (
        "assigned_secret",
        "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI4K7MDENGbPxRfiCYzzzzKEY",
        "wJalrXUtnFEMI4K7MDENGbPxRfiCYzzzzKEY",
    ),
    ("assigned_secret", "MY_TOKEN=9fK2mQ8xL4vB7nR1tY6w", "9fK2mQ8xL4vB7nR1tY6w"),
    ("assigned_secret", "İ token: 9fK2mQ8xL4vB7nR1tY6w", "9fK2mQ8xL4vB7nR1tY6w"),
)


def _drawn_from(parts: Any, rng: random.Random) -> str:
    text = ""
    for operation, value in parts:
        name = str(operation)
        if name == "LITERAL":
            text += chr(value)
        elif name == "IN":
            letters = [
                chr(c) for kind, char_range in value for c in _of_class(str(kind), char_range)
            ]
            text += rng.choice([c for c in letters if c.isalnum()] or letters)
        elif name == "SUBPATTERN":
            text += _drawn_from(value[-1], rng)
        elif name == "BRANCH":
            text += _drawn_from(rng.choice(value[1]), rng)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, repeated = value
            text += "".join(
                _drawn_from(repeated, rng)
                for _ in range(rng.randint(int(least), min(int(most), int(least) + 4)))
            )
    return text


def _of_class(kind: str, char_range: Any) -> Iterable[int]:
    if kind == "RANGE":
        return range(char_range[0], char_range[1] + 1)
    return (char_range,) if kind == "LITERAL" else map(ord, string.digits)


@pytest.mark.parametrize("rule", TOKEN_RULES, ids=lambda rule: f"{rule.kind}-{rule.needles[0]}")
def test_every_row_of_the_table_takes_what_it_describes(rule: Rule) -> None:
    """The texts are drawn from the row's own pattern: this checks that redaction finds the row (by
    its needle, in a run), not that the row is right."""
    tried = gone = 0
    for seed in range(40):
        token = _drawn_from(parse(rule.pattern.pattern), random.Random(seed))
        if not rule.pattern.fullmatch(token) or (rule.odd and not any(map(str.isdigit, token))):
            continue
        tried += 1
        gone += token not in Redactor(environ={}).text(f"x {token} y")
    assert gone > 0.8 * tried or rule.kind in BEHIND_OTHERS, (tried, gone)


BEHIND_OTHERS = {"aws_secret", "jwt", "private_key"}
"""Rows whose pattern looks around, so that nothing can be drawn from it alone: CONTEXTUAL and tests
of their own have them."""


@pytest.mark.parametrize(("kind", "text", "secret"), CONTEXTUAL)
def test_secrets_that_only_their_place_gives_away(kind: str, text: str, secret: str) -> None:
    redactor = Redactor(environ={})
    clean = redactor.text(text)
    assert [line for line in secret.split("\n") if line.strip() in clean] == []
    assert redactor.counts == {kind: 1}
    before, _, after = clean.partition(f"[REDACTED:{kind}:")
    assert text.startswith(before)
    assert text.endswith(after[9:])


def test_the_secret_beside_a_key_id_goes_without_a_name() -> None:
    redactor = Redactor(environ={})
    assert "wJalr" not in redactor.text(
        "AKIA" + "IOSFODNN7QXMPLEA," + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzKEYq7A\n"
    )
    assert redactor.counts == {"aws_key_id": 1, "aws_secret": 1}


CLEAN = (
    "commit 5f3a9c0e7b1d4a6f8e2c9b0d1a3f5e7c9b1d3f5a",
    "id = 'b3f1c2d4-5e6f-4a7b-8c9d-0e1f2a3b4c5d'",
    (
        '"integrity":'
        ' "sha512-9fK2mQ8xL4vB7nR1tY6wZ3sD5gH0jK2lP4oI6uY8tR1eW3qA5sD7fG9hJ0kL2zX4cV6bN8mQ=="'
    ),
    (
        "resolved"
        " https://registry.example/lodash/-/lodash-4.17.21.tgz#679591c564c3bffaae8454cf0b3df370c3d6911c"
    ),
    'checksum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"',
    "max_tokens=4096, tokenizer='Qwen/Qwen2.5-0.5B-Instruct', num_tokens: 12345678",
    "token = tokens[0]\ntoken = self.next_token()\ntoken: str = field(default='')",
    "password = get_password()\npassword: str | None = None\nif password == other_password:",
    (
        "secret = os.environ['SECRET_KEY']\napi_key ="
        " settings.api_key2\nAPI_KEY=${API_KEY}\nTOKEN=$TOKEN"
    ),
    "api_key='your-api-key-here-12345'  # placeholder",
    "def test_password_reset(self): ...",
    "key = 'Ab3Cd5Ef7Gh9Ij1Kl3Mn5'",
    "for key, value in items: keys[key] = 'abcdefgh12345678ijklm'",
    "git@github.com:acme/shop.git and noreply@anthropic.com and user@example.com",
    "@property\n@app.route('/x')\nx = A @ B.T\ny = x@w.transpose(0, 1)",
    "npm i @types/node@20.11.5 react@18.2.0",
    "sk-learn, task-queue, risk-free, sk-toolu_1, hf_hub_download(), ghp, AKIA",
    "https://host:8080/path@2x.png and http://localhost:3000/@user",
    "ssh://git@host.internal/x.git",
    "Bearer token in the header; bearer <token>; Bearer ${TOKEN}",
    (
        "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIEAgAAuTANBgkqhkiG9w0BAQUFADBaMQ\n-----END"
        " CERTIFICATE-----"
    ),
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl",
    "class User:\n    name: str\n    password: str\n    secret: bytes\n",
    (
        "interface Login {\n  user: string\n  password: string\n}\ntype A = {\n  password: Hashed\n"
        "  secret: hashed\n}"
    ),
    "const a = {\n  user: b,\n  password: hashed\n}\nf({\n  password: digest\n})",
    (
        "password: required\nsecret: null\npassword: ${DB}\npassword: self.pw\npassword: |\n "
        " x\nsecret: *anchor\npassword: String!\n"
    ),
    (
        "Authorization: Basic authentication, Authorization: Basic Authentication, Authorization:"
        " Basic <token>"
    ),
    "password: [REDACTED:password:744f9998]",
    "[REDACTED:email:0a1b2c3d] api_key=[REDACTED:openai_key:0a1b2c3d] token: REDACTED",
    (
        "Authorization: token authentication, Authorization: Bearer authentication-tokens,"
        " Authorization: AWS4-HMAC-SHA256 x"
    ),
    (
        "cookie: str, Set-Cookie: session=<id>, document.cookie = session, Cookie: theme=dark;"
        " language=english-of-england"
    ),
    (
        "mysql -u root -p shop; docker run -p 3306:3306 mysql -p3306:3306; docker login -u dev"
        " --password-stdin; ssh login -p 2222"
    ),
    "ports: 127.0.0.1:5432:5432 and db:5432:shop",
    "secret: |\n  the words of a sentence\nprivate_key: |\n  getUserTokenById",
    (
        "apiKey: getUserTokenByIdAndName, token = parseHTTPResponseHeader,"
        " secret_key='in_proj_qkvz_of_layer', auth_token: RefreshTokenHandler"
    ),
    (
        "password = newPasswordField, password: PasswordHasher, pwd=currentWorkingDirectory,"
        " password=abcdefghijklmnop"
    ),
    (
        "fw_update, fm2_a, tvly-x, dp.pt.x, 1//0, dapi, patches/path.of.a.long.file.name, SKIP,"
        " figd_, HRKU-, EAAA, x-us12"
    ),
    "el_1a2b3c eyJ is a prefix; SG. stands for Singapore",
)


@pytest.mark.parametrize("text", CLEAN)
def test_ordinary_code_stays_as_it_is(text: str) -> None:
    redactor = Redactor(environ={})
    assert redactor.text(text) is text
    assert redactor.counts == {}


def test_the_same_secret_has_the_same_name_under_one_key_only() -> None:
    secret = SECRETS["github_token"][0]
    redacted_once, again, another_store = (
        Redactor(key=b"a", environ={}),
        Redactor(key=b"a", environ={}),
        Redactor(key=b"b", environ={}),
    )
    first = redacted_once.text(f"a {secret} b {secret}")
    names = first.split()[1::2]
    assert names[0] == names[1] == again.text(secret) != another_store.text(secret)
    assert redacted_once.counts == {"github_token": 2}
    assert redacted_once.text(first) == first  # redacting twice changes nothing
    assert redacted_once.counts == {"github_token": 2}


def test_words_of_the_user_in_any_case_longest_first() -> None:
    redactor = Redactor(words=("Initech", "Initech Ltd", " "), environ={})
    clean = redactor.text("INITECH ltd pays, initech does not")
    assert clean.count("[REDACTED:word:") == 2
    assert "ltd" not in clean.lower()


def test_values_of_secret_looking_variables_go() -> None:
    environ = {
        "DEPLOY_TOKEN": "plain words here",
        "API_KEY_FILE": "/etc/key",
        "PATH": "/usr/bin:/usr/local",
        "PIN_KEY": "12345678",
        "X_SECRET": "short",
    }
    assert secrets_of(environ) == ("plain words here",)
    redactor = Redactor(environ=environ, key=b"a")
    assert (
        redactor.text("say plain words here, /usr/bin:/usr/local")
        == "say [REDACTED:environment:"
        + redactor.text("plain words here")[-9:]
        + ", /usr/bin:/usr/local"
    )


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DEPLOY_SECRET", "velvet-anchor-lamp")
    assert "velvet" not in Redactor().text("it is velvet-anchor-lamp")


def test_json_values_are_walked_keys_too_and_kept_if_clean() -> None:
    secret = SECRETS["npm_token"][0]
    redactor = Redactor(environ={})
    clean = {"a": [1, None, True, "x"], "b": {"c": "d"}}
    assert redactor.value(clean) is clean
    dirty = redactor.value({"env": {secret: 1}, "list": ["ok", [secret]], "n": 3})
    assert secret not in repr(dirty)
    assert dirty["n"] == 3
    assert redactor.counts == {"npm_token": 2}


def test_a_value_is_judged_by_the_key_it_stands_under() -> None:
    redactor = Redactor(environ={})
    value = redactor.value(
        {
            "password": "hunter-22x",
            "api_key": "9fK2mQ8xL4vB7nR1tY6w",
            "path": "9fK2mQ8xL4vB7nR1tY6w",
        }
    )
    assert value["path"] == "9fK2mQ8xL4vB7nR1tY6w"
    assert value["password"].startswith("[REDACTED:password:")
    assert value["api_key"].startswith("[REDACTED:assigned_secret:")


def test_an_edit_still_matches_the_file_it_edits() -> None:
    redactor = Redactor(environ={})
    line = f"KEY = '{SECRETS['openai_key'][0]}'"
    file = redactor.text(f"import os\n{line}\nrun(KEY)\n")
    assert redactor.value({"old_string": line})["old_string"] in file


@given(st.text(max_size=300))
def test_any_text_passes_and_a_second_pass_changes_nothing(text: str) -> None:
    redactor = Redactor(environ={})
    once = redactor.text(text)
    assert redactor.text(once) == once


@given(
    st.text(alphabet=st.characters(exclude_characters="@"), max_size=40),
    st.text(max_size=40),
    st.sampled_from(["github_token", "npm_token", "google_key"]),
)
def test_a_planted_secret_goes_between_any_words(before: str, after: str, kind: str) -> None:
    secret = SECRETS[kind][0]
    assert secret not in Redactor(environ={}).text(f"{before} {secret} {after}")


def test_entropy() -> None:
    assert entropy_bits("") == entropy_bits("aaaa") == 0
    assert entropy_bits("abcd") == pytest.approx(2.0)
