"""The part of docs/benchmarks.md that sets the memory model beside measured peaks."""

from __future__ import annotations

from typing import Any

TEXT = """Memory of a whole optimiser step on a Qwen3 of half the 0.6B's widths and 4 layers, each setting in its own process. Nothing here ran on a GPU.

- **Predicted**: computed by
`memory/memory_model.py`, which `train --dry-run`, `doctor` and [memory.md](memory.md) use.
- **Measured**: the weights, copies and optimiser states between two steps, and the peak of PyTorch's
allocator in the third step (the count that CUDA keeps as max_memory_allocated).
- **Process**: the highest resident size (VmHWM) above that before the model was made. It
includes memory that PyTorch does not count; in bfloat16 that is the scratch space of this CPU's matrix products.
- **Error**: relative to the measured value."""


def memory_section(part: dict[str, Any], goals: dict[str, Any]) -> str:
    """Predicted and measured, and the error in per cent of what was measured."""
    from page import markdown, provenance  # page imports this module

    goal = goals["memory_model"]["error"]
    rows = []
    for line in part["lines"]:
        if "problem" in line:
            rows.append([line["case"], line["problem"], "", "", "", "", ""])
            continue
        error = line["predicted"] / line["measured"] - 1
        met = f"{goal:.0%}: " + ("met" if abs(error) <= goal else "**missed**")
        sizes = [f"{line[name] / 1e6:.0f}" for name in ("predicted", "measured")]
        process = f"{line['process'] / 1e6:.0f}"
        rows.append([line["case"], *sizes, f"{100 * error:+.1f} %", met, process, line["moment"]])
    heads = [
        "setting",
        "predicted, MB",
        "measured, MB",
        "error",
        "goal",
        "process, MB",
        "the widest moment",
    ]
    return "\n\n".join(["## The memory model", provenance(part), TEXT, markdown(heads, rows)])
