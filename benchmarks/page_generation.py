"""The section of benchmarks/generation.py on docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADS = ("model", "case", "prompt", "ours", "generate", "ours / it", "goal", "with its cache kept")
TEXT = (
    "Sampled tokens per CPU-second. Ours is all of `sample_rollouts`: environments, templates,"
    " log-probs in float32, and sessions. The peer is transformers' `generate`, which keeps no"
    " log-probs, on the same prompts and weights in one run. **Here more is better.**\n\n"
    "- `batch N`: N different prompts\n"
    "- `lengths`: 8 prompts of different lengths\n"
    "- `tasks`: 8 tasks with one system prompt\n"
    "- `group N`: N samples of one prompt\n"
    "- `turns`: 8 episodes of 4 messages with tool results between them. `generate` reads its whole"
    " context again for each. In the last column (ours / that) it gets its cache instead, which it"
    " accepts only while all rows are equally long."
)
_SHARED = ("group", "tasks", "turns")


def generation_section(part: Mapping[str, Any], goals: Mapping[str, Any]) -> str:
    """Tokens per CPU-second beside `generate`."""
    from page import markdown, provenance  # it imports this module

    rows = markdown(HEADS, generation_rows(part, goals["generation"]))
    return "\n\n".join(["## Speed of generation", provenance(part), TEXT, rows])


def generation_rows(part: Mapping[str, Any], goals: Mapping[str, float]) -> list[list[str]]:
    """A row for every model and case.

    >>> rates = {"ours": 90.0, "generate": 100.0}
    >>> line = {"model": "m", "case": "batch 1", "prompt": [9, 9], "tokens_per_cpu_s": rates}
    >>> generation_rows({"lines": [line]}, {"ratio": 0.8, "shared": 1.0})
    [['m', 'batch 1', '9', '90.0', '100.0', '**0.90**', '0.8: met', '']]
    """
    rows = []
    for line in part["lines"]:
        rates = line["tokens_per_cpu_s"]
        ratio = rates["ours"] / rates["generate"]
        goal = goals["shared" if line["case"].startswith(_SHARED) else "ratio"]
        shortest, longest = line["prompt"]
        kept = rates.get("cache kept")
        rows.append(
            [
                line["model"],
                line["case"],
                str(longest) if shortest == longest else f"{shortest} - {longest}",
                f"{rates['ours']:.1f}",
                f"{rates['generate']:.1f}",
                _ratio(ratio),
                f"{goal:g}: {'met' if ratio >= goal else '**missed**'}",
                _ratio(rates["ours"] / kept) if kept else "",
            ]
        )
    return rows


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"**{value:.2f}**"
