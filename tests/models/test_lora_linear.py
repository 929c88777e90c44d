"""A LoRA layer that keeps its input as it came gives peft's values and gradients, and keeps no copy
of its input in another precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from composer_replication.models import lora_linear
from composer_replication.models.forward import final_hidden
from composer_replication.models.lora_linear import LoraLinear, keep_inputs_once
from tests.models.tree_models import gap, make

IDS_BT = torch.arange(60).view(3, 20) * 7 % 40


def adapted(
    dtype: torch.dtype, *, lean: bool = True, frozen: bool = True, **lora: Any
) -> peft.PeftModel:
    """A tiny model with adapters that matter; peft's own layers unless `lean`."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", **lora)
    model = peft.get_peft_model(make("qwen3").to(dtype), config).train()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    if dtype == torch.float64:
        model.double()
    if lean:
        assert keep_inputs_once(model) == 14
    return model


def walked(model: Any, *, walk: Callable[[Any], Tensor] | None = None) -> list[Tensor]:
    """The final hidden states, and the gradients of the adapters and of the embedded tokens."""
    embeddings = model.get_input_embeddings()
    leaves: list[Tensor] = []

    def as_leaf(module: Any, inputs: Any, out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    hook = embeddings.register_forward_hook(as_leaf)
    torch.manual_seed(5)
    hidden_BTD = final_hidden(model, IDS_BT) if walk is None else walk(model)
    hook.remove()
    torch.manual_seed(6)  # whatever is drawn between a forward and its backward
    drawn = torch.get_rng_state()
    trained = [p for p in model.parameters() if p.requires_grad]
    grads = torch.autograd.grad(
        hidden_BTD, [*leaves, *trained], hidden_BTD.detach().cos(), allow_unused=True
    )
    assert torch.equal(torch.get_rng_state(), drawn)
    return [hidden_BTD.detach(), *(g for g in grads if g is not None)]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_in_bfloat16_it_is_peft_s_bit_for_bit(dropout: float) -> None:
    ours, theirs = (
        walked(adapted(torch.bfloat16, lean=lean, lora_dropout=dropout)) for lean in (True, False)
    )
    assert len(ours) == len(theirs) == 30
    assert torch.equal(ours[0], theirs[0])
    assert all(found.dtype == wanted.dtype for found, wanted in zip(ours, theirs, strict=True))
    assert gap(ours, theirs) <= 1e-6


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_in_float64(dropout: float) -> None:
    ours, theirs = (
        walked(adapted(torch.float64, lean=lean, lora_dropout=dropout)) for lean in (True, False)
    )
    assert gap(ours, theirs) <= 1e-12
    assert all(gradient.any() for gradient in ours)


def test_parts_of_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = walked(adapted(torch.float64))
    monkeypatch.setattr(lora_linear, "_TOKENS", 7)
    assert gap(walked(adapted(torch.float64)), wanted) <= 1e-12
    # each part has its own draw, and the backward draws it again
    model = adapted(torch.float64, lora_dropout=0.3)
    layer = model.get_decoder().layers[0].mlp.down_proj
    x_TD = torch.randn(20, 48, dtype=torch.float64, requires_grad=True)
    weight = layer.lora_A["default"].weight

    def out(moved: Tensor) -> Tensor:
        torch.manual_seed(1)
        return layer(x_TD + moved * direction).sum()

    direction = torch.randn_like(x_TD)
    far = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(out(far), far)
    with torch.no_grad():
        measured = out(torch.tensor(0.5)) - out(torch.tensor(-0.5))  # linear in its input
    assert float(slope) == pytest.approx(float(measured), rel=1e-9)
    assert torch.autograd.grad(out(far), weight)[0].any()


def saved(model: Any) -> list[tuple[torch.dtype, int]]:
    """Precision and numbers of each tensor that a forward keeps, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden_BTD = final_hidden(model, IDS_BT)
    assert hidden_BTD.requires_grad
    return [(t.dtype, t.numel()) for key, t in found.items() if key not in weights]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_no_copy_of_an_input_is_kept(dropout: float) -> None:
    ours, theirs = (
        saved(adapted(torch.bfloat16, lean=lean, lora_dropout=dropout)) for lean in (True, False)
    )
    inner = 3 * 20 * 48  # of the feed-forward: only down_proj reads it
    assert theirs.count((torch.float32, inner)) >= 2
    assert ours.count((torch.float32, inner)) == 0
    # per layer: the gate, its activation, the other half, and their product, which down_proj reads
    assert ours.count((torch.bfloat16, inner)) == 2 * 4
    ours_bytes, theirs_bytes = (sum(t.itemsize * n for t, n in kept) for kept in (ours, theirs))
    assert ours_bytes < 0.65 * theirs_bytes


def test_q_k_and_v_keep_their_input_once() -> None:
    model = adapted(torch.bfloat16)
    attention = model.get_decoder().layers[0].self_attn
    x_BTD = torch.randn(3, 20, 32).bfloat16().requires_grad_()
    kept: list[Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with hooks:
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(attention, name)(x_BTD)
    inputs = [tensor for tensor in kept if tensor.shape == x_BTD.shape]
    assert len(inputs) == 3 and all(tensor.data_ptr() == x_BTD.data_ptr() for tensor in inputs)


def test_whatever_is_not_one_plain_adapter_is_peft_s(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    forward = peft.tuners.lora.layer.Linear.forward
    monkeypatch.setattr(
        peft.tuners.lora.layer.Linear,
        "forward",
        lambda self, x, *args, **kwargs: calls.append("peft") or forward(self, x, *args, **kwargs),
    )

    def peft_calls(model: Any, run: Callable[[Any], Any] | None = None) -> int:
        calls.clear()
        (run or (lambda model: final_hidden(model, IDS_BT)))(model)
        return len(calls)

    def disabled(model: Any) -> None:
        with model.disable_adapter():
            final_hidden(model, IDS_BT)

    def autocast(model: Any) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            final_hidden(model, IDS_BT)

    assert peft_calls(adapted(torch.float32)) == 0
    assert peft_calls(adapted(torch.float32, use_dora=True)) == 14
    assert peft_calls(adapted(torch.float32), disabled) == 14
    assert peft_calls(adapted(torch.float32), autocast) == 14
    model = adapted(torch.float32)
    model.merge_adapter()
    assert peft_calls(model) == 14


def test_files_and_copies_are_peft_s(tmp_path: Path) -> None:
    ours, theirs = adapted(torch.float32), adapted(torch.float32, lean=False)
    for name, model in (("ours", ours), ("theirs", theirs)):
        model.save_pretrained(str(tmp_path / name))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        files = [(tmp_path / side / name).read_bytes() for side in ("ours", "theirs")]
        assert files[0] == files[1]
    assert load_file(str(tmp_path / "ours" / "adapter_model.safetensors"))
    twin = copy.deepcopy(ours)
    assert isinstance(twin.get_decoder().layers[0].self_attn.q_proj, LoraLinear)
    wanted = final_hidden(ours, IDS_BT).detach()
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if "lora_B" in name:
                parameter.mul_(2.0)
    assert torch.equal(final_hidden(ours, IDS_BT), wanted)
    assert not torch.equal(final_hidden(twin, IDS_BT), wanted)
    merged = ours.merge_and_unload()
    assert gap([final_hidden(merged, IDS_BT).detach()], [wanted]) <= 1e-5
