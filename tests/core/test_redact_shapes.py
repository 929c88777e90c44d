"""Redaction by shape: each template of tests/core/shapes.txt loses its secret, and what only looks
like one stays."""

from __future__ import annotations

import pytest

from composer_replication.core.redact import Redactor, find_secrets
from tests.core.shapes import Shape, shapes

SHAPES = shapes()
OTHER_SEEDS, MIN_SHARE = (1, 2, 3), 0.97


def left(shape: Shape) -> list[str]:
    """The secrets of a shape that can still be read."""
    clean = Redactor(environ={}).text(shape.text)
    return [secret for secret in shape.secrets if len(secret) > 3 and secret in clean]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_secret_of_every_shape_goes(shape: Shape) -> None:
    assert shape.secrets and all(secret in shape.text for secret in shape.secrets)
    assert left(shape) == []


@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_other_values_go_as_well(seed: int) -> None:
    missed = [shape.name for shape in shapes(seed=seed) if left(shape)]
    assert len(missed) <= (1 - MIN_SHARE) * len(SHAPES), missed


CLEAN = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# This file is a cache directory tag",
    "#define FW_CFG_DMA_SIGNATURE    0x51454d5520434647ULL /* QEMU CFG */",
    "uint64_t __security_cookie = 0x00002B992DDFA232ULL;",
    (
        "# To train a model on `num_labels` classes, you can pass `num_labels=num_labels` to"
        " `.from_pretrained(...)`"
    ),
    "signature = f\"def {name}({', '.join(arguments)}) -> {kind}: ...\"",
    'dispatch_key = "c10::computeDispatchKey(dtype, layout, device)"',
    "BasicAuth(username=auth[0], password=auth[1])",
    '"--container-registry-password": container_registry_password,',
    "python test/test_opinfo.py -k test_comprehensive_masked_scatter_cuda_float16",
    'salt = "bundled-autotune-best-configs-v1"',
    'password = password.encode("latin1")',
    "'openssl_x509_check_private_key',\n 'openssl_x509_checkpurpose',",
    "PrivateKey: TypeAlias = RSAPrivateKey | X25519PrivateKey",
    "github.com/login/token v2.8.5 h1:JsEcRdCZ/VcQLy7GSZE6WmJAgelJSBCQ6WAbEmxt+Wk=",
    (
        "acme/login  v1.1  sha256:a3b7f14d9186d093fadbd177beacdbea806b4784de3fd3056fd3f704dc0aeb1a "
        " 1138630cfb43"
    ),
    'console.print("[#1BB152 on #DA812D]#1BB152 on #DA812D!")',
    "$ git log --format=%H -1 token.py\n1f0c9a2e5b7d4c3a9e8f7061524334455667788a",
    "$ sha256sum secret.py\n1f0c9a2e5b7d4c3a9e8f7061524334455667788a1f0c9a2e5b7d4c3a9e8f7061",
    "name,token,count\nthe,4411,17\nof,812,3",
    "| option | password |\n|---|---|\n| min_length | required |",
    "repurposes the register token from DINOv2-with-registers as a secondary class token",
    'all(char in "0123456789abcdefABCDEF" for char in token[3:5])',
    (
        "the wallet seed of this test must not change because every other value here depends upon"
        " that number and nothing else"
    ),
    "sh -c 'exit 3'; exit_code=139; error_code=RESOURCE_NOT_FOUND_IN_REGION",
    ">>> token_hex(16)  #doctest:+SKIP\n'f9bf78b9a18ce6d46a0cd2b0b86df9da'",
    "createToken('NUMERICIDENTIFIER', '0|[1-9]\\\\d*')",
    (
        "$ base64 keyboard.png\n"
        "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAYAAABzenr0AAAABHNCSVQICAgIfAhkiAAAAUdJREFU"
    ),
    "Extra arguments on the command line to pass to the fortran90 compiler",
    "the password of ada works on backup01 and on every other machine here",
    "the dialog that asks for a password looks better since windows2019 came out",
    "Password: <b>required</b>",
    "\n".join(
        ("Save these two-factor settings", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05")
    ),
    'SecretId="arn:aws:secretsmanager:us-east-1:123456789012:secret:prod/db-AbCdEf"',
)


@pytest.mark.parametrize("text", CLEAN)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert [match for match in find_secrets(text) if match.kind != "email"] == []


@pytest.mark.parametrize("tail", ["x7Kq" * 10, "x7Kq-" * 10, "x7_q" * 22])
def test_the_first_row_that_fits_names_the_kind(tail: str) -> None:
    """The table's row for "sk-ant-" comes before that for "sk-", whichever needle is met first."""
    assert [match.kind for match in find_secrets(f"key: {'sk-' + 'ant-api03-'}{tail} end")] == [
        "anthropic_key"
    ]


def test_a_header_of_names_costs_no_look_at_its_rows_without_a_secrets_column() -> None:
    rows = "\n".join(f"user{n},tr0ub4dor&{n}x" for n in range(50))
    assert find_secrets(f"user,path\n{rows}") == []
    assert len(find_secrets(f"user,password\n{rows}")) == 50
