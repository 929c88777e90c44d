"""Codecs: what comes back, how many bytes it takes, and that nothing is lost over the rounds."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("zstandard")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from composer_replication.core.errors import DataError  # noqa: E402
from composer_replication.training.diloco.codecs import (  # noqa: E402
    CODECS,
    decode_delta,
    encode_delta,
    pack,
    unpack,
)

pytestmark = pytest.mark.train
ERROR = {"none": 0.0, "bf16": 0.01, "int8": 0.01, "int4": 0.2}
"""The largest error of one send, relative to the norm."""


def vector(seed: int, size: int, *, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("codec", ERROR)
@given(seed=st.integers(0, 99), size=st.integers(1, 700), power=st.integers(-9, 3))
@settings(max_examples=40, deadline=None)
def test_dense_codecs_come_back(codec: str, seed: int, size: int, power: int) -> None:
    delta = vector(seed, size, scale=10.0**power)
    back = decode_delta(encode_delta(delta, torch.zeros(size), codec=codec), torch.zeros(size))
    assert back.shape == delta.shape and back.dtype == torch.float32
    assert float((back - delta).norm()) <= ERROR[codec] * float(delta.norm())


@pytest.mark.parametrize("codec", CODECS)
@given(seed=st.integers(0, 99), size=st.integers(1, 9000))
@settings(max_examples=15, deadline=None)
def test_what_was_sent_and_what_is_kept_add_up(codec: str, seed: int, size: int) -> None:
    """Error feedback telescopes: sum(sent) + residual == sum(deltas), to rounding."""
    base, residual = vector(seed, size), torch.zeros(size)
    total, sent_total = torch.zeros(size), torch.zeros(size)
    for turn in range(4):
        delta = vector(seed + 100 * turn, size, scale=1e-3)
        owed = delta + residual
        sent = decode_delta(encode_delta(owed, base, codec=codec), base)
        residual = owed - sent
        total, sent_total = total + delta, sent_total + sent
    torch.testing.assert_close(sent_total + residual, total, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("codec", "fewer"), [("bf16", 1.9), ("int8", 3.5), ("int4", 7.0), ("topk", 50.0)]
)
def test_a_codec_sends_so_many_times_fewer_bytes(codec: str, fewer: float) -> None:
    size = 1 << 18
    delta, base = vector(0, size), vector(1, size)
    plain = len(encode_delta(delta, base, codec="none"))
    assert plain <= 1.02 * 4 * size
    assert plain / len(encode_delta(delta, base, codec=codec)) >= fewer


def test_the_visible_codec_sends_what_changes_in_bfloat16() -> None:
    """At a learning rate of RL few weights change visibly: 17 times fewer bytes and more."""
    size = 1 << 18
    base, delta = vector(1, size, scale=0.02), vector(0, size, scale=1e-6)
    blob = encode_delta(delta, base, codec="visible")
    sent = decode_delta(blob, base)
    seen = base.bfloat16() != (base - delta).bfloat16()
    assert torch.equal(sent, torch.where(seen, delta, 0.0)) and 0 < int(seen.sum()) < size // 20
    assert 4 * size / len(blob) >= 17


def test_the_visible_codec_is_dense_if_that_is_smaller() -> None:
    delta, base = vector(0, 4096), vector(1, 4096)
    blob = encode_delta(delta, base, codec="visible")
    assert torch.equal(decode_delta(blob, base), delta) and len(blob) < 1.02 * 4 * 4096


def test_places_far_apart_come_back() -> None:
    """A gap of more than two bytes."""
    base, delta = torch.ones(200_000), torch.zeros(200_000)
    delta[3], delta[150_000] = 0.5, 0.25
    assert torch.equal(decode_delta(encode_delta(delta, base, codec="visible"), base), delta)


def test_other_bytes_are_a_data_error() -> None:
    base = torch.zeros(64)
    blob = encode_delta(torch.ones(64), base, codec="int8")
    for broken in (b"", blob[:9], blob[:-5], b"\xff" * 40, blob[:8] + b"{" * (len(blob) - 8)):
        with pytest.raises(DataError):
            decode_delta(broken, base)
    with pytest.raises(DataError, match=r"128 numbers, not 64|not fit"):
        decode_delta(encode_delta(torch.ones(128), torch.zeros(128), codec="none"), base)
    with pytest.raises(DataError, match="unknown codec"):
        decode_delta(pack({"delta": base}, {"codec": "magic"}), base)


def test_a_blob_is_a_safetensors_file() -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    blob = pack({"a": torch.arange(5).float()}, {"codec": "none"})
    assert torch.equal(safetensors.load(blob)["a"], torch.arange(5).float())
    assert unpack(blob)[1] == {"codec": "none"}
