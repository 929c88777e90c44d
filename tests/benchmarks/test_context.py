"""benchmarks/context.py at a toy size: its variants are one step, and its ratios are to the plain
one."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="the [train] extra")

from benchmarks import context


def line(variant: str, **numbers: float) -> dict[str, Any]:
    return {"variant": variant, **numbers}


@pytest.mark.train
@pytest.mark.parametrize("variant", ["checkpoint", "checkpoint_tile", "trl"])
def test_every_variant_takes_the_plain_step(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if variant == "trl":
        pytest.importorskip(
            "trl", reason="a peer of the benchmarks; not part of any extra that CI installs"
        )
    example, pairs = context.whole.make_data(700, sites=1, pairs=2, vocab=64)
    gradients = []
    for name in ("plain", variant):
        model = context.whole.make_model(layers=2, hidden=64, vocab=64).train()
        step = context.VARIANTS[name](model, example, pairs)  # the reference is a copy by now
        sizes: list[int] = []
        model.model.layers[0].mlp.gate_proj.register_forward_pre_hook(
            lambda module, inputs, sizes=sizes: sizes.append(inputs[0].shape[1])
        )
        losses = step()
        gradients.append((losses, [float(p.grad.norm()) for p in model.parameters()]))
        assert (max(sizes) > context.TILE) == (name != "checkpoint_tile")
    (plain, plain_norms), (losses, norms) = gradients
    assert losses == pytest.approx(plain, rel=1e-4)
    assert norms == pytest.approx(plain_norms, rel=1e-3)


def test_each_number_is_divided_by_the_plain_step_s() -> None:
    lines = [
        line("plain", peak_mib=200.0, cpu_s=4.0, gradient_norm=2.0),
        line("checkpoint", peak_mib=50.0, cpu_s=5.0, gradient_norm=2.002),
        {"variant": "trl", "problem": "not installed: trl"},
    ]
    rows = context.table(lines).splitlines()[2:]
    assert rows[0] == "| plain | 200 | 1.00 | 4.0 | 1.00 | 0e+00 |"
    assert rows[1] == "| checkpoint | 50 | 0.25 | 5.0 | 1.25 | 1e-03 |"
    assert rows[2].startswith("| trl | not installed: trl |")
    (alone,) = context.table(lines[1:2]).splitlines()[2:]
    assert alone == "| checkpoint | 50 |  | 5.0 |  |  |"
