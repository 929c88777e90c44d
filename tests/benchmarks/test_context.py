"""benchmarks/context.py at a toy size: its variants are one step, and its ratios are to the plain
one."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

pytest.importorskip("torch", reason="the [train] extra")

from benchmarks import context
from benchmarks.context_page import context_section
from benchmarks.page import GOALS, about

SHAPE = {"layers": 2, "hidden": 64, "vocab": 64}


@pytest.mark.train
@pytest.mark.parametrize("task", list(context.TASKS))
@pytest.mark.parametrize("weights", list(context.WEIGHTS))
@pytest.mark.parametrize("variant", ["checkpoint", "checkpoint_tile", "peft_layers", "trl"])
def test_every_variant_takes_the_plain_step(variant: str, weights: str, task: str) -> None:
    if variant == "trl":
        pytest.importorskip(
            "trl", reason="a peer of the benchmarks; not part of any extra that CI installs"
        )
        if (weights, task) == ("lora", "session"):
            pytest.skip("not measured: see lines_of")
    example, pairs = context.whole.make_data(700, sites=1, pairs=2, vocab=64)
    gradients = []
    for name in ("plain", variant):
        model = context.whole.make_model(**SHAPE).train()
        if weights == "lora":
            model = context.with_adapters(model, peft_layers=name in ("peft_layers", "trl"))
        step = context.step_of(name, task, model, example, pairs)
        sizes: list[int] = []
        model.get_decoder().layers[0].mlp.gate_proj.register_forward_pre_hook(
            lambda module, inputs, sizes=sizes: sizes.append(inputs[0].shape[1])
        )
        losses = step()
        trained = [p for p in model.parameters() if p.requires_grad]
        gradients.append((losses, [float(p.grad.norm()) for p in trained]))
        assert (max(sizes) > context.TILE) == (name not in ("checkpoint_tile", "peft_layers"))
    (plain, plain_norms), (losses, norms) = gradients
    within = 1e-3 if weights == "all" else 0.05  # of bfloat16
    assert losses == pytest.approx(plain, rel=within, abs=1e-4)
    assert norms == pytest.approx(plain_norms, rel=within, abs=1e-3 * max(plain_norms))


def test_what_lies_between_steps_is_counted() -> None:
    lines = {line["kind"]: line for line in context.between_steps(argparse.Namespace(**SHAPE))}
    assert set(lines) == set(context.BETWEEN_STEPS)
    weights = lines["all weights"]["weights_mib"]
    assert lines["all weights"]["states_mib"] == pytest.approx(2 * weights, rel=0.01)
    half = lines["adapters on bfloat16"]
    assert half["weights_mib"] < weights and half["states_mib"] < 0.5 * weights * 2
    assert lines["adapters on 4 bits"].get("problem") or (
        lines["adapters on 4 bits"]["weights_mib"] < half["weights_mib"]
    )


def line(variant: str, **numbers: Any) -> dict[str, Any]:
    return {"task": "sft", "weights": "all", "length": 4096, "variant": variant, **numbers}


def section(lines: list[dict[str, Any]]) -> list[str]:
    part = {
        "about": about(["benchmarks/context.py"]),
        "shape": {**SHAPE, "sites": 4},
        "lines": lines,
        "between_steps": [
            {"kind": "all weights", "weights_mib": 2.0, "states_mib": 4.0},
            {"kind": "adapters on 4 bits", "problem": "not installed: bitsandbytes"},
        ],
    }
    return context_section(part, GOALS).splitlines()


def test_each_number_is_divided_by_the_plain_step_s_and_ours_by_trl_s() -> None:
    numbers = [
        line("plain", peak_mib=200.0, cpu_s=4.0, gradient_norm=2.0),
        line("checkpoint_tile", peak_mib=50.0, cpu_s=6.0, gradient_norm=2.002),
        line("trl", peak_mib=100.0, cpu_s=5.0, gradient_norm=2.0),
    ]
    page = section(numbers)
    assert "Plain fine-tuning, 4096 tokens, all weights, float32:" in page
    assert "| plain | 200 | 1.00 | 4.0 | 1.00 | 0e+00 |  |  |" in page
    assert "| checkpoint_tile | 50 | 0.25 | 6.0 | 1.50 | 1e-03 |  |  |" in page
    ratios = "MiB 0.500 (0.8: met) | CPU-s **1.200** (1.1: **missed**) |"
    assert f"| trl | 100 | 0.50 | 5.0 | 1.25 | 0e+00 | {ratios}" in page
    assert "| all weights | 2.0 | 4.0 |" in page
    assert "| adapters on 4 bits | not installed: bitsandbytes |  |" in page
    absent = section([line("trl", problem="not installed: trl"), numbers[1]])
    assert "| trl | not installed: trl |  |  |  |  |  |  |" in absent
    assert "| checkpoint_tile | 50 |  | 6.0 |  |  |  |  |" in absent
