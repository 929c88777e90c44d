"""Time, memory and error of the hint channel's loss alone, next to the libraries that people use
for it, in one run.

    python benchmarks/losses.py
        everything, about 12 minutes on one core; the naive loss needs 9 GiB
    python benchmarks/losses.py --positions 128 --repeats 1
        a small run
    python benchmarks/losses.py --only ours gemm --hidden 256
        some variants; the names are those of the first column
    python benchmarks/losses.py --sweep --json build/sweep.json
        51 loss positions among ever more positions; --sweep 64 128 is a small one

Forward and backward of a JSD (beta 0.5) between two sets of hidden states, with the gradient of the
student's hidden states and of the head, V = 151,936, float32, one thread. `dense` = every position
is in the loss; `sparse` = 5 % of them are, the rest is masked. Each measurement is a fresh process.
A time is the median of its CPU-seconds after the first repetition. Memory is the highest resident
size of the process (VmHWM, reset when the inputs exist) above the size before, so it counts
everything that a loss allocates, including gradients.

ours             losses/fused.py, eager torch
ours_frozen      the same with a head that is not trained
ours_compiled    the row mathematics by torch.compile
gemm             the floor: only the four matrix products, same chunks
naive            TRL's GKD loss on all logits (it takes logits, so masked positions are projected
                 too)
trl_sdpo         TRL's SDPO loss on all logits
trl_chunked      TRL's chunked kernel, of its DistillationTrainer
liger            Liger's fused linear JSD, eager, chunks of 64
liger_compiled   the same by torch.compile
*_gathered       the peer gets only the loss positions, which it does not select itself (sparse)

A peer that cannot be imported is reported as "not installed". Prints Markdown; --json FILE writes
the numbers. The second table is the error against float64 from bfloat16 hidden states and head, by
the true size of the divergence. The gradient is measured before it is rounded to bfloat16, which
happens in the end to every gradient of bfloat16 hidden states (and alone costs 2e-3). The sweep
shows what a loss costs besides its positions: 51 of N are in the loss, N from 512 to 4096; naive
runs only up to --naive-up-to positions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from composer_replication.losses.chunk_size import chunk_rows
from composer_replication.losses.divergence import jsd
from composer_replication.losses.fused import fused_divergence
from composer_replication.models.forward import Head

VOCAB = 151_936
SPARSE = 0.05
SWEEP, SWEEP_LOSS = (512, 1024, 2048, 4096), 51
DENSE_VARIANTS = (
    "ours",
    "ours_frozen",
    "ours_compiled",
    "gemm",
    "naive",
    "trl_sdpo",
    "trl_chunked",
    "liger",
    "liger_compiled",
)
SPARSE_VARIANTS = (
    "ours",
    "gemm",
    "naive",
    "trl_chunked",
    "trl_chunked_gathered",
    "liger_compiled_gathered",
)
Step = Callable[[Tensor, Tensor], Tensor]  # hidden (N, D), weight (V, D) -> scalar loss


def ours(teacher_ND: Tensor, rows: Tensor, variant: str) -> Step:
    """Ours. It gets only the positions of the loss, as in training."""
    backend = "compile" if variant == "ours_compiled" else "eager"

    def step(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        head = Head(weight_VD=weight_VD)
        picked = (hidden_ND, teacher_ND) if rows.all() else (hidden_ND[rows], teacher_ND[rows])
        values_N = fused_divergence(
            picked[0], head, picked[1], head, divergence="jsd", beta=0.5, raw=True, backend=backend
        )
        return values_N.sum() / len(values_N)

    return step


def gemm(teacher_ND: Tensor, rows: Tensor, variant: str) -> Step:
    """Four matrix products per chunk and nothing else: the minimum for a loss with both
    gradients."""

    def step(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        near_ND, far_ND, weight_VD = hidden_ND.detach()[rows], teacher_ND[rows], weight_VD.detach()
        chunk = chunk_rows("cpu", VOCAB, 8)
        logits_CV, other_CV = (
            torch.empty(min(chunk, len(near_ND)), VOCAB),
            torch.empty(min(chunk, len(near_ND)), VOCAB),
        )
        grad_VD, grad_ND = torch.empty_like(weight_VD), torch.empty_like(near_ND)
        for start in range(0, len(near_ND), chunk):
            part = slice(start, min(start + chunk, len(near_ND)))
            z_CV = logits_CV[: part.stop - start]
            torch.mm(near_ND[part], weight_VD.t(), out=z_CV)
            torch.mm(far_ND[part], weight_VD.t(), out=other_CV[: part.stop - start])
            torch.mm(z_CV, weight_VD, out=grad_ND[part])
            (
                torch.mm(z_CV.t(), near_ND[part], out=grad_VD)
                if start == 0
                else grad_VD.addmm_(z_CV.t(), near_ND[part])
            )
        return hidden_ND.sum() * 0.0

    return step


def naive(teacher_ND: Tensor, rows: Tensor, variant: str) -> Step:
    """TRL's GKD."""
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    labels_1N = torch.where(rows, 1, -100)[None]

    def step(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        teacher_NV = teacher_ND @ weight_VD.detach().t()
        return GKDTrainer.generalized_jsd_loss(
            (hidden_ND @ weight_VD.t())[None], teacher_NV[None], labels=labels_1N, beta=0.5
        )

    return step


def trl_sdpo(teacher_ND: Tensor, rows: Tensor, variant: str) -> Step:
    """TRL's SDPO on full logits."""
    from trl.experimental.sdpo.loss_utils import compute_full_logit_self_distillation_loss as loss

    def step(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        values_N = loss(
            hidden_ND @ weight_VD.t(), teacher_ND @ weight_VD.detach().t(), distillation_alpha=0.5
        )
        return values_N[rows].mean()

    return step


def trl_chunked(teacher_ND: Tensor, rows: Tensor, variant: str) -> Step:
    """The kernel of TRL's DistillationTrainer."""
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    def step(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        near_ND, far_ND, mask_N = hidden_ND, teacher_ND, rows
        if variant.endswith("gathered"):
            near_ND, far_ND, mask_N = hidden_ND[rows], teacher_ND[rows], rows[rows]
        return _chunked_divergence_loss(
            near_ND[None], far_ND[None], weight_VD, weight_VD.detach(), mask_N[None], 0.5
        )[0]

    return step


def liger(teacher_ND: Tensor, rows: Tensor, variant: str) -> Step:
    """Liger's fused linear JSD, its soft part alone."""
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0,
        weight_soft_loss=1.0,
        beta=0.5,
        compiled=variant.startswith("liger_compiled"),
        chunk_size=64,
    )
    labels_N = torch.where(rows, 3, -100)

    def step(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        if variant.endswith("gathered"):
            return loss(
                hidden_ND[rows], weight_VD, teacher_ND[rows], weight_VD.detach(), labels_N[rows]
            )
        return loss(hidden_ND, weight_VD, teacher_ND, weight_VD.detach(), labels_N)

    return step


MAKERS: dict[str, Callable[[Tensor, Tensor, str], Step]] = {
    "ours": ours,
    "ours_frozen": ours,
    "ours_compiled": ours,
    "gemm": gemm,
    "naive": naive,
    "trl_sdpo": trl_sdpo,
    "trl_chunked": trl_chunked,
    "trl_chunked_gathered": trl_chunked,
    "liger": liger,
    "liger_compiled": liger,
    "liger_compiled_gathered": liger,
}


# ---- one measurement, in a fresh process ----


def measure(
    variant: str, *, positions: int, hidden: int, share: float, repeats: int
) -> dict[str, Any]:
    """Time and memory of one variant; all variants get the same inputs."""
    from resident import HighWater  # beside this file

    torch.manual_seed(0)
    torch.set_num_threads(1)
    student_ND = torch.randn(positions, hidden)
    weight_VD = torch.randn(VOCAB, hidden) * (3.0 / hidden**0.5)
    teacher_ND = student_ND + 0.1 * torch.randn(positions, hidden)
    rows = torch.zeros(positions, dtype=torch.bool)
    rows[torch.randperm(positions)[: max(1, round(positions * share))]] = True
    try:
        step = MAKERS[variant](teacher_ND, rows, variant)
    except ImportError as error:
        return {"missing": error.name or str(error)}
    cpu_s: list[float] = []
    peak_mib, loss, norms = 0.0, 0.0, ()
    for _ in range(repeats + 1):
        near_ND = student_ND.clone().requires_grad_()
        weight = weight_VD.detach().requires_grad_(variant != "ours_frozen")
        with HighWater() as water:
            begun = time.process_time()
            value = step(near_ND, weight)
            value.backward()
            cpu_s.append(time.process_time() - begun)
        peak_mib = water.mib
        loss = value.item()
        norms = tuple(
            float(t.grad.norm()) if t.grad is not None else 0.0 for t in (near_ND, weight)
        )
        del value, near_ND, weight
    return {
        "cpu_s": statistics.median(cpu_s[1:] or cpu_s),
        "mib": peak_mib,
        "loss": loss,
        "grad_hidden": norms[0],
        "grad_head": norms[1],
    }


def in_child(
    variant: str, options: argparse.Namespace, *, hidden: int, share: float, positions: int = 0
) -> dict[str, Any]:
    """`measure` in a fresh process; `positions` 0 takes those of the options."""
    positions = positions or (options.positions if hidden <= 256 else options.wide_positions)
    sizes = [
        f"--positions={positions}",
        f"--repeats={options.repeats}",
        f"--hidden={hidden}",
        f"--share={share}",
    ]
    process = subprocess.run(
        [sys.executable, __file__, "--child", variant, *sizes],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
    )
    if process.returncode:
        raise SystemExit(f"{variant} failed (exit {process.returncode}):\n{process.stderr[-2000:]}")
    return json.loads(process.stdout.splitlines()[-1])


# ---- the sweep ----


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """`SWEEP_LOSS` loss positions among each number of positions: ours, the floor, and naive up to
    --naive-up-to positions."""
    lines: list[dict[str, Any]] = []
    for positions in options.sweep:
        for variant in ("ours", "gemm", *(["naive"] if positions <= options.naive_up_to else [])):
            row = in_child(
                variant, options, hidden=256, share=SWEEP_LOSS / positions, positions=positions
            )
            lines.append({"positions": positions, "variant": variant, **row})
            print(f"sweep {positions} {variant}: {row}", file=sys.stderr, flush=True)
    return {
        "vocab": VOCAB,
        "loss_positions": SWEEP_LOSS,
        "hidden": 256,
        "repeats": options.repeats,
        "lines": lines,
    }


# ---- the error ----


def errors(
    noise: float, *, positions: int = 16, hidden: int = 256
) -> tuple[float, dict[str, tuple[float, float]]]:
    """The true divergence, and the relative errors of each way: of the value and of the hidden
    gradient, from bfloat16 inputs.

    The hidden states are float32 tensors of bfloat16 numbers, so that the gradient is measured
    before it is rounded.
    """
    generator = torch.Generator().manual_seed(0)
    weight_VD = (torch.randn(VOCAB, hidden, generator=generator) * (3.0 / hidden**0.5)).bfloat16()
    student_ND = torch.randn(positions, hidden, generator=generator).bfloat16()
    teacher_ND = (
        student_ND.float() + noise * torch.randn(positions, hidden, generator=generator)
    ).bfloat16()

    def graded(fn: Callable[[Tensor], Tensor], dtype: torch.dtype) -> tuple[float, Tensor]:
        leaf_ND = student_ND.to(dtype).requires_grad_()
        value = fn(leaf_ND)
        value.backward()
        assert leaf_ND.grad is not None
        return value.item(), leaf_ND.grad.double()

    wide_VD = weight_VD.double()
    true, true_ND = graded(
        lambda h: jsd(
            h @ wide_VD.t(), teacher_ND.double() @ wide_VD.t(), beta=0.5, raw=True
        ).mean(),
        torch.float64,
    )
    head = Head(weight_VD=weight_VD)

    def fused(h: Tensor) -> Tensor:
        return fused_divergence(
            h, head, teacher_ND, head, divergence="jsd", beta=0.5, raw=True
        ).mean()

    ways: dict[str, Callable[[Tensor], Tensor]] = {"ours": fused}
    try:
        from trl.experimental.gkd.gkd_trainer import GKDTrainer
        from trl.trainer.distillation_trainer import _chunked_divergence_loss as chunked

        usual = GKDTrainer.generalized_jsd_loss
        mask_1N = torch.ones(1, positions, dtype=torch.bool)
        labels_1N, single_VD = mask_1N.long(), weight_VD.float()

        def low(h: Tensor, dtype: torch.dtype) -> Tensor:
            near_NV, far_NV = h.bfloat16() @ weight_VD.t(), teacher_ND @ weight_VD.t()
            return usual(
                near_NV.to(dtype)[None], far_NV.to(dtype)[None], labels=labels_1N, beta=0.5
            )

        ways["TRL GKD, bf16 logits"] = lambda h: low(h, torch.bfloat16)
        ways["TRL GKD, bf16 logits upcast"] = lambda h: low(h, torch.float32)
        ways["TRL GKD, fp32 logits"] = lambda h: usual(
            (h @ single_VD.t())[None],
            (teacher_ND.float() @ single_VD.t())[None],
            labels=labels_1N,
            beta=0.5,
        )
        ways["TRL chunked kernel, fp32"] = lambda h: chunked(
            h[None], teacher_ND.float()[None], single_VD, single_VD, mask_1N, 0.5
        )[0]
    except ImportError:
        pass
    try:
        from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

        loss = LigerFusedLinearJSDLoss(
            weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=False, chunk_size=64
        )
        ways["Liger, bf16"] = lambda h: loss(
            h.bfloat16(), weight_VD, teacher_ND, weight_VD, torch.ones(positions, dtype=torch.long)
        ).float()
    except ImportError:
        pass
    relative_errors: dict[str, tuple[float, float]] = {}
    for name, way in ways.items():
        value, grad_ND = graded(way, torch.float32)
        if true == 0.0:
            relative_errors[name] = (value, float(grad_ND.norm()))
        else:
            relative_errors[name] = (
                abs(value - true) / true,
                float((grad_ND - true_ND).norm() / true_ND.norm()),
            )
    return true, relative_errors


# ---- the command ----


def numerics_columns(noises: list[float]) -> dict[str, Any]:
    """`errors` for each noise, by the true divergence; at 0 the value and the gradient's norm."""
    return {f"{true:.3e}": ways for true, ways in map(errors, noises)}


def write_sweep(options: argparse.Namespace) -> int:
    """Measure the sweep, print it, and write it."""
    from page import GOALS, about, sweep_section  # beside this file

    options.sweep = sorted(options.sweep or SWEEP)
    if options.sweep[0] < SWEEP_LOSS:
        raise SystemExit(f"--sweep needs at least {SWEEP_LOSS} positions, all of them in the loss")
    part = {"about": about(sys.argv), **sweep(options)}
    print(sweep_section(part, GOALS))
    if options.json:
        options.json.write_text(json.dumps(part, indent=1) + "\n", encoding="utf-8")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the measurements one after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument(
        "--wide-positions",
        type=int,
        default=512,
        help="positions where the hidden size is above 256",
    )
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--no-numerics", action="store_true")
    parser.add_argument(
        "--sweep", type=int, nargs="*", help="only the sweep, over these numbers of positions"
    )
    parser.add_argument(
        "--naive-up-to",
        type=int,
        default=1024,
        help="positions up to which the sweep also measures naive",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        size = {
            "positions": options.positions,
            "hidden": options.hidden[0],
            "share": options.share,
            "repeats": options.repeats,
        }
        print(json.dumps(measure(options.child, **size)))
        return 0
    if options.sweep is not None:
        return write_sweep(options)
    written: dict[str, Any] = {
        "vocab": VOCAB,
        "share": SPARSE,
        "repeats": options.repeats,
        "positions": {},
        "tables": {},
    }
    for hidden in options.hidden:
        for kind, share, variants in (
            ("dense", 1.0, DENSE_VARIANTS),
            ("sparse", SPARSE, SPARSE_VARIANTS),
        ):
            if kind == "sparse" and hidden > 256:
                continue
            chosen = [v for v in variants if not options.only or v in options.only]
            results: dict[str, dict[str, Any]] = {}
            written["tables"][f"{kind} {hidden}"] = results
            written["positions"][f"{kind} {hidden}"] = (
                options.positions if hidden <= 256 else options.wide_positions
            )
            for variant in chosen:
                results[variant] = in_child(variant, options, hidden=hidden, share=share)
                print(f"{kind} {hidden} {variant}: {results[variant]}", file=sys.stderr, flush=True)
    if not options.no_numerics:
        written["numerics"] = numerics_columns([1.0, 0.3, 0.1, 0.03, 0.01, 0.0])
    from page import GOALS, about, losses_section  # beside this file

    written["about"] = about(sys.argv)
    print(losses_section(written, GOALS))
    if options.json:
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
