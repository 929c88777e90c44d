"""The pieces of benchmarks/gpu.py at toy sizes on a CPU, and TRL's losses of benchmarks/step.py
against the tree where TRL is installed."""

from __future__ import annotations

import time
from functools import partial

import pytest

pytest.importorskip("torch", reason="the [train] extra")
import torch

from benchmarks import gpu

TOY = {"positions": 6, "hidden": 8, "vocab": 32, "device": "cpu", "dtype": torch.float32}


def small_model() -> object:
    return gpu.qwen3(
        layers=2, hidden=64, vocab=64, heads=2, head_dim=32, device="cpu", dtype=torch.float32
    )


def toy_step(variant: str) -> list[float]:
    return gpu.step_run(variant, make=small_model, length=256, sites=1, pairs=2)()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this is what a machine without CUDA does")
def test_without_cuda_it_says_so_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 0
    assert "not run" in capsys.readouterr().out


def test_the_eager_divergence_is_that_of_the_whole_matrix() -> None:
    from composer_replication.losses.divergence import jsd

    torch.manual_seed(0)
    weight_VD = torch.randn(32, 8) * (3.0 / 8**0.5)
    near_ND = torch.randn(6, 8)
    far_ND = near_ND + 0.1 * torch.randn(6, 8)
    want = jsd(near_ND @ weight_VD.t(), far_ND @ weight_VD.t(), beta=0.5, raw=True).mean()
    assert float(gpu.divergence_run("eager", **TOY)()) == pytest.approx(float(want), rel=1e-5)


def test_the_floor_makes_the_products_by_chunks() -> None:
    near_ND, far_ND, weight_VD = torch.randn(6, 8), torch.randn(6, 8), torch.randn(32, 8)
    want = (near_ND @ weight_VD.t() @ weight_VD)[0, 0]
    assert float(gpu.four_products(near_ND, far_ND, weight_VD, chunk=4)) == pytest.approx(
        float(want), rel=1e-4
    )


@pytest.mark.train
def test_tree_and_separate_take_the_same_step() -> None:
    assert toy_step("separate") == pytest.approx(toy_step("tree"), rel=1e-4)


@pytest.mark.train
@pytest.mark.parametrize("variant", ["trl", "trl_chunked"])
def test_trl_computes_the_same_losses(variant: str) -> None:
    pytest.importorskip(
        "trl", reason="a peer of the benchmarks; not part of any extra that CI installs"
    )
    assert toy_step(variant) == pytest.approx(toy_step("tree"), rel=1e-4)


@pytest.mark.train
@pytest.mark.parametrize("shape", list(gpu.KINDS))
def test_a_step_of_each_kind_of_weights(shape: str) -> None:
    """At toy sizes; the shapes themselves need the memory of a card."""
    if gpu.KINDS[shape] == "adapters on 4 bits":
        pytest.importorskip("bitsandbytes", reason="a peer of the benchmarks: make peers")
    toy = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
    sizes = {**toy, "feed_forward": 64, "vocab": 64, "length": 600, "device": "cpu"}
    plain, less, sft = (
        gpu.context_run(variant, shape=shape, **sizes)()
        for variant in ("plain", "checkpoint_tile_offload", "sft checkpoint_tile")
    )
    assert less == pytest.approx(plain, rel=0.02, abs=1e-3)
    assert len(plain) == 3 and len(sft) == 1 and 3 < sft[0] < 6


def test_a_failure_and_the_end_of_the_minutes_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> gpu.Run:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    failed: set[tuple[str, str]] = set()
    ask = partial(gpu.measured, repeats=1, failed=failed)
    soon = time.monotonic() + 60
    assert "out of memory" in ask(("longest", "8k", "tree", broken), deadline=soon)["problem"]
    assert (
        "a shorter one failed" in ask(("longest", "16k", "tree", broken), deadline=soon)["problem"]
    )
    assert "failed" in ask(("context", "8k", "trl", broken), deadline=soon)["problem"]
    assert "shorter" in ask(("context", "16k", "trl", broken), deadline=soon)["problem"]
    assert "minutes" in ask(("longest", "8k", "trl", broken), deadline=0.0)["problem"]


def test_the_table_divides_ours_by_the_peer() -> None:
    lines = [
        {"table": "step", "case": "a", "variant": "tree", "ms": 10.0, "mib": 50.0},
        {"table": "step", "case": "a", "variant": "trl", "ms": 40.0, "mib": 25.0},
        {"table": "step", "case": "a", "variant": "rows", "problem": "failed"},
    ]
    assert "| step | a | trl | 40.0 | 0.250 | 25 | 2.000 |" in gpu.table_of(lines)
    assert "| step | a | rows | failed |" in gpu.table_of(lines)
