"""The fused divergence and the three-channel step on one CUDA device, next to TRL's Triton kernel
and Liger; at most 8 minutes (`--minutes`).

    python benchmarks/gpu.py --json build/gpu.json
        everything (torch 2.11 or newer with Triton; peers if they are installed)
    python benchmarks/gpu.py --only divergence --positions 1024
        a part of it

divergence   JSD, forward and backward, bfloat16, V = 151,936, heads of the size of a 0.6B (1024)
             and a 4B (2560) model, 1k to 8k positions: ours eager and Triton, TRL's chunked kernel
             (Triton on CUDA), Liger, and the four matrix products that are the floor
step         three channels of a session of 8,192 tokens, 4 sites and 8 pairs on a Qwen3 of the 0.6B
             shape, random weights, bfloat16, gradient checkpointing: tree, rows, separate, and
             TRL's own losses (see benchmarks/step.py)
context      a session of 8k, 16k, 32k and 64k tokens (4 sites, 4 pairs) on a Qwen3 of the shape of
             0.6B with all weights, of 4B with adapters, and of 8B with adapters on 4 bits
             (bitsandbytes): checkpointed, in tiles, with layer inputs in host memory, and with
             peft's own LoRA layers; 0.6B beside TRL's plain fine-tuning
generation   tokens of the sampler and of transformers' `generate` on the same prompts, that model:
             8 prompts, 8 samples of one prompt, 8 episodes of 4 messages (see
             benchmarks/generation.py)
longest      the longest of 8k, 16k, 32k, 64k, 128k tokens (16 sites, 16 pairs) that fits, tree and
             TRL
memory       whole optimiser steps at the 0.6B shape beside what memory/memory_model.py predicts
             for CUDA (the weights are not in either number)

Times are medians of CUDA-event milliseconds after a warm-up; memory is the allocator's peak above
the memory held before. Without a CUDA device it says so and exits with 0. A case that failed, or
for which the time was too short, is a line with the reason.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# For the benchmarks beside this file, even if this one is imported.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import context as less_memory
import generation
import memory_model
import step as whole
from page import about, markdown
from transformers import Qwen3Config, Qwen3ForCausalLM

from composer_replication.losses.fused import Backend, fused_divergence
from composer_replication.models.activations import checkpoint_layers
from composer_replication.models.forward import Head
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer

VOCAB = 151_936
HEADS = {"0.6B": 1024, "4B": 2560}
PARTS = ("divergence", "step", "context", "generation", "longest", "memory")
GROWING = ("context", "longest")
"""Tables whose cases grow: a variant that failed is not run again."""
Run = Callable[[], Any]
# table, case, variant, and the function that makes the run
Case = tuple[str, str, str, Callable[[], Run]]


# ---- the divergence ----


def divergence_run(
    variant: str, *, positions: int, hidden: int, vocab: int, device: str, dtype: torch.dtype
) -> Run:
    """One forward and backward of a variant on fresh gradients; returns the loss."""
    torch.manual_seed(0)
    make = partial(torch.randn, device=device, dtype=dtype)
    weight_VD = (make(vocab, hidden) * (3.0 / hidden**0.5)).requires_grad_()
    near_ND = make(positions, hidden).requires_grad_()
    far_ND = near_ND.detach() + 0.1 * make(positions, hidden)
    if variant == "gemm":
        return partial(four_products, near_ND.detach(), far_ND, weight_VD.detach())
    loss = loss_of(variant, far_ND)

    def run() -> Tensor:
        near_ND.grad = weight_VD.grad = None
        value = loss(near_ND, weight_VD)
        value.backward()
        return value.detach()

    return run


def loss_of(variant: str, far_ND: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A JSD of beta 0.5, the mean over positions."""
    if variant in ("eager", "triton"):
        backend: Backend = "eager" if variant == "eager" else "triton"

        def ours(near_ND: Tensor, weight_VD: Tensor) -> Tensor:
            head = Head(weight_VD=weight_VD)
            return fused_divergence(
                near_ND, head, far_ND, head, divergence="jsd", beta=0.5, raw=True, backend=backend
            ).mean()

        return ours
    if variant == "trl_chunked":
        from trl.trainer.distillation_trainer import _chunked_divergence_loss

        mask_1N = torch.ones_like(far_ND[None, :, 0], dtype=torch.bool)
        return lambda h, w: _chunked_divergence_loss(
            h[None], far_ND[None], w, w.detach(), mask_1N, 0.5
        )[0]
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    liger = LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=variant == "liger_compiled"
    )
    labels_N = torch.full((len(far_ND),), 3, device=far_ND.device)
    return lambda h, w: liger(h, w, far_ND, w.detach(), labels_N)


def four_products(
    near_ND: Tensor, far_ND: Tensor, weight_VD: Tensor, *, chunk: int = 1024
) -> Tensor:
    """The floor: logits of both sides and both gradients, by chunks, nothing else."""
    grad_ND, grad_VD = torch.empty_like(near_ND), torch.zeros_like(weight_VD)
    for start in range(0, len(near_ND), chunk):
        near_CD, far_CD = near_ND[start : start + chunk], far_ND[start : start + chunk]
        near_CV = near_CD @ weight_VD.t()
        torch.mm(far_CD, weight_VD.t())
        grad_ND[start : start + chunk] = near_CV @ weight_VD
        grad_VD.addmm_(near_CV.t(), near_CD)
    return grad_ND[0, 0]


def divergence_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Every head, number of positions and variant."""
    for name, hidden in HEADS.items():
        for positions in options.positions:
            shape = {
                "positions": positions,
                "hidden": hidden,
                "vocab": VOCAB,
                "device": "cuda",
                "dtype": torch.bfloat16,
            }
            for variant in ("gemm", "triton", "eager", "trl_chunked", "liger", "liger_compiled"):
                if variant == "liger_compiled" and positions != options.positions[0]:
                    continue  # compiling for every shape would use up the time of the other cases
                yield (
                    "divergence",
                    f"{name}, {positions} positions",
                    variant,
                    partial(divergence_run, variant, **shape),
                )


# ---- the step ----


def qwen3(
    *,
    layers: int,
    hidden: int,
    vocab: int,
    heads: int,
    head_dim: int,
    device: str,
    dtype: torch.dtype,
    kv_heads: int = 0,
    feed_forward: int = 0,
    tied: bool = True,
    checkpoint: bool = True,
) -> Any:
    """A Qwen3 of a shape with random weights, checkpointing its activations."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=feed_forward or 3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads or heads // 2,
        head_dim=head_dim,
        max_position_embeddings=262_144,
        tie_word_embeddings=tied,
    )
    config.dtype = dtype
    with torch.device(device):  # 8B in float32 on the host would take minutes
        model: Any = Qwen3ForCausalLM._from_config(config, dtype=dtype)
    model = model.train()
    if checkpoint:
        checkpoint_layers(model)
    return model


def qwen3_06b() -> Any:
    return qwen3(
        layers=28,
        hidden=1024,
        vocab=VOCAB,
        heads=16,
        head_dim=128,
        device="cuda",
        dtype=torch.bfloat16,
    )


def step_run(variant: str, *, make: Callable[[], Any], length: int, sites: int, pairs: int) -> Run:
    """One step of benchmarks/step.py on the model's device; returns the three losses."""
    model = make()
    example, preference_pairs = whole.make_data(
        length, sites=sites, pairs=pairs, vocab=model.config.vocab_size
    )
    # TRL's inputs are created on the model's device; this project moves its inputs itself
    with torch.device(model.device) if variant.startswith("trl") else nullcontext():
        take_step = whole.VARIANTS[variant](model, example, preference_pairs)

    def run() -> list[float]:
        model.zero_grad(set_to_none=True)
        return take_step()

    return run


def step_cases(options: argparse.Namespace) -> Iterator[Case]:
    for variant in ("tree", "trl", "separate", "rows"):
        case = partial(step_run, variant, make=qwen3_06b, length=options.length, sites=4, pairs=8)
        yield "step", f"0.6B, T = {options.length}, 8 pairs", variant, case


# ---- a step that keeps less ----

SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8},
    "4B": {"layers": 36, "hidden": 2560, "heads": 32, "kv_heads": 8, "feed_forward": 9728},
    "8B": {"layers": 36, "hidden": 4096, "heads": 32, "kv_heads": 8, "tied": False},
}
KINDS = {"0.6B": "all", "4B": "adapters", "8B": "adapters on 4 bits"}


def in_4_bits(model: Any) -> Any:
    """The model with its linear layers but the head in 4 bits, as from_pretrained stores them."""
    import bitsandbytes

    for name, layer in list(model.model.named_modules()):
        if isinstance(layer, nn.Linear):
            packed = bitsandbytes.nn.Linear4bit(
                layer.in_features,
                layer.out_features,
                bias=False,
                compute_dtype=layer.weight.dtype,
                quant_type="nf4",
                device="meta",
            )
            packed.weight = bitsandbytes.nn.Params4bit(
                layer.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True
            )
            device = layer.weight.device
            layer.weight = None
            model.model.set_submodule(name, packed.to(device))
    model.is_loaded_in_4bit = True
    return model


def context_run(variant: str, *, shape: str, length: int, device: str = "cuda", **toy: Any) -> Run:
    """A step of a session (or of plain fine-tuning) of benchmarks/context.py; `toy` replaces parts
    of the shape."""
    sizes = {"vocab": VOCAB, "head_dim": 128, **SHAPES[shape], **toy}
    model = qwen3(**sizes, device=device, dtype=torch.bfloat16, checkpoint=False)
    kind, (task, _, less) = KINDS[shape], variant.rpartition(" ")
    if kind == "adapters on 4 bits":
        model = in_4_bits(model)
    if kind != "all":
        model = less_memory.with_adapters(model, peft_layers=less in ("peft_layers", "trl"))
    example, pairs = whole.make_data(length, sites=4, pairs=4, vocab=sizes["vocab"])
    with torch.device(device) if less == "trl" else nullcontext():
        take_step = less_memory.step_of(less, task or "session", model, example, pairs)

    def run() -> list[float]:
        model.zero_grad(set_to_none=True)
        return take_step()

    return run


def context_cases(options: argparse.Namespace) -> Iterator[Case]:
    """From short to long, and of each length from what keeps most to what keeps least."""
    for length in (8192, 16384, 32768, 65536):
        for shape, kind in KINDS.items():
            variants = ["checkpoint", "checkpoint_tile", "checkpoint_tile_offload"]
            if kind != "all":
                variants.append("peft_layers")
            else:
                variants += ["sft checkpoint_tile", "sft trl"]
            for variant in variants:
                make = partial(context_run, variant, shape=shape, length=length)
                yield "context", f"{shape}, {kind}, T = {length}", f"{variant} ({shape})", make


def generation_run(variant: str, case: str, *, make: Callable[[], Any], size: int) -> Run:
    """The messages of a case of benchmarks/generation.py; returns how many tokens were sampled."""
    renderer = Renderer.for_tokenizer(load_tokenizer(generation.STUDENT))
    student = generation.endless(make(), renderer)
    envs = partial(generation.listeners, case, size=size)
    rollouts = generation.play(student, envs(), tokens=64, seed=0)
    contexts = [generation.contexts_of(rollout) for rollout in rollouts]

    def run() -> int:
        if variant == "ours":
            generation.play(student, envs(), tokens=64, seed=1)
        else:
            with torch.no_grad():
                generation.answer_all(student, contexts, tokens=64)
        return 64 * sum(map(len, contexts))

    return run


def generation_cases(options: argparse.Namespace) -> Iterator[Case]:
    for case in ("batch 8", "group 8", "turns"):
        for variant in ("ours", "generate"):
            run = partial(generation_run, variant, case, make=qwen3_06b, size=512)
            yield "generation", f"0.6B, {case}", variant, run


def longest_cases(options: argparse.Namespace) -> Iterator[Case]:
    """From short to long; a variant that failed is not run again (see `measured`)."""
    for length in (8192, 16384, 32768, 65536, 131072):
        for variant in ("tree", "trl"):
            yield (
                "longest",
                f"0.6B, T = {length}, 16 pairs",
                variant,
                partial(step_run, variant, make=qwen3_06b, length=length, sites=16, pairs=16),
            )


def memory_run(case: memory_model.Case, **widths: int) -> Run:
    """A whole step of benchmarks/memory_model.py."""
    _, step = memory_model.make_step(case, **widths)
    return lambda: step(1)


def memory_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Settings of the memory model, with its prediction in MiB above the weights in the name."""
    shape = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16}
    widths = {**shape, "num_key_value_heads": 8}
    for name in (
        "bfloat16, LoRA",
        "bfloat16, LoRA, checkpoint",
        "bfloat16, LoRA, checkpoint, tile",
        "bfloat16, LoRA, checkpoint, tile, offload",
        "bfloat16, all weights, checkpoint",
        "session, bfloat16, LoRA, checkpoint",
    ):
        known = memory_model.CASES[name]
        case = replace(known, layers=28, vocab=VOCAB, length=options.length)
        need = memory_model.need_of(case, device="cuda", **widths)
        above = (need.total - need.held["weights"]) / 2**20
        text = f"{name}, T = {options.length}, predicted {above:.0f} MiB"
        yield "memory", text, "tree", partial(memory_run, case, **widths)


# ---- measuring ----


def milliseconds(run: Run, *, repeats: int) -> tuple[float, float, Any]:
    """Median CUDA milliseconds after a warm-up, peak MiB above the memory held before, and the last
    result."""
    held_bytes, times, result = torch.cuda.memory_allocated(), [], run()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begun.record()
        result = run()
        ended.record()
        torch.cuda.synchronize()
        times.append(begun.elapsed_time(ended))
    return (
        statistics.median(times),
        (torch.cuda.max_memory_allocated() - held_bytes) / 2**20,
        result,
    )


def measured(
    case: Case, *, repeats: int, deadline: float, failed: set[tuple[str, str]]
) -> dict[str, Any]:
    """A line of the result: its numbers, or why there are none."""
    table, name, variant, make = case
    line: dict[str, Any] = {"table": table, "case": name, "variant": variant}
    if table in GROWING and (table, variant) in failed:
        return {**line, "problem": "not run: a shorter one failed"}
    if time.monotonic() > deadline:
        return {**line, "problem": "not run: the minutes were over"}
    try:
        ms, mib, result = milliseconds(make(), repeats=1 if table in GROWING else repeats)
    except ImportError as error:
        return {**line, "problem": f"not installed: {error.name}"}
    except (RuntimeError, ValueError) as error:  # out of memory among them
        failed.add((table, variant))
        return {
            **line,
            "problem": (
                f"failed: {type(error).__name__}:"
                f" {str(error).splitlines()[0][:120] if str(error) else ''}"
            ),
        }
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return {
        **line,
        "ms": ms,
        "mib": mib,
        "result": [float(x) for x in (result if isinstance(result, list) else [result])],
    }


def table_of(lines: list[dict[str, Any]]) -> str:
    """Markdown: a row per measurement, with ours (triton, tree, ours) divided by it."""
    ours = {
        (x["table"], x["case"]): x
        for x in lines
        if x["variant"] in ("triton", "tree", "ours") and "ms" in x
    }
    rows = []
    for x in lines:
        if "problem" in x:
            rows.append([x["table"], x["case"], x["variant"], x["problem"], "", "", ""])
            continue
        base = ours.get((x["table"], x["case"]))
        ratios = [f"{base[key] / x[key]:.3f}" if base and x[key] else "" for key in ("ms", "mib")]
        rows.append(
            [
                x["table"],
                x["case"],
                x["variant"],
                f"{x['ms']:.1f}",
                ratios[0],
                f"{x['mib']:.0f}",
                ratios[1],
            ]
        )
    return markdown(["table", "case", "", "ms", "ours / it", "MiB", "ours / it"], rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure until the time is up; print Markdown, and write the JSON after every line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--positions", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=7.0, help="no measurement begins after so many"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("not run: this machine has no CUDA device")
        return 0
    deadline, lines, failed = time.monotonic() + 60 * options.minutes, [], set()
    makers = {
        "divergence": divergence_cases,
        "step": step_cases,
        "context": context_cases,
        "generation": generation_cases,
        "longest": longest_cases,
        "memory": memory_cases,
    }
    header = {"about": about(sys.argv), "device": torch.cuda.get_device_name()}
    for case in (case for part in options.only for case in makers[part](options)):
        lines.append(measured(case, repeats=options.repeats, deadline=deadline, failed=failed))
        print(lines[-1], file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(
                json.dumps({**header, "lines": lines}, indent=1) + "\n", encoding="utf-8"
            )
    print(table_of(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
