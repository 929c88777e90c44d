"""The section of benchmarks/context.py on docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
TASKS = {"sft": "plain fine-tuning", "session": "a session of three channels"}
WEIGHTS = {"all": "all weights, float32", "lora": "adapters on bfloat16"}


def context_section(part: Json, goals: Json) -> str:
    """A table for each task and kind of weights, what TRL is compared with, and what lies in memory
    between steps."""
    from page import provenance  # it imports this module

    shape = part["shape"]
    text = (
        f"A Qwen3 of {shape['layers']} layers, hidden size {shape['hidden']}, V = {shape['vocab']},"
        f" random weights. Plain fine-tuning: cross-entropy on one row. The session:"
        f" {shape['sites']} sites and 4 pairs, policy, hint and preference. Forward and backward."
        " The column `gradient` is the relative difference of its norm from the plain step's."
        " `trl` is TRL's own losses with transformers' gradient checkpointing; the ratios in its"
        " row are those of `checkpoint_tile` to it. `peft_layers` is `checkpoint_tile` with peft's"
        " own LoRA layers."
    )
    parts = ["## A step that keeps less in memory", provenance(part), text]
    groups = dict.fromkeys(
        (line["task"], line["weights"], line["length"]) for line in part["lines"]
    )
    for task, weights, length in groups:
        lines = [
            line
            for line in part["lines"]
            if (line["task"], line["weights"], line["length"]) == (task, weights, length)
        ]
        parts.append(f"{TASKS[task]}, {length} tokens, {WEIGHTS[weights]}:".capitalize())
        parts.append(_table(lines, goals["context"].get(task, {})))
    parts.append("Between two steps, without gradients (counted by tensors):")
    parts.append(_between_steps(part["between_steps"]))
    return "\n\n".join(parts)


def _table(lines: Sequence[Json], goals: Json) -> str:
    """The variants of a step: next to the plain one, and ours next to TRL's."""
    from page import markdown, ratio_and_goal

    measured = {line["variant"]: line for line in lines if "problem" not in line}
    plain, ours = measured.get("plain"), measured.get("checkpoint_tile", {})
    rows = []
    for line in lines:
        if "problem" in line:
            rows.append([line["variant"], line["problem"], *[""] * 7])
            continue
        row = [line["variant"]]
        for name, form in (("peak_mib", "{:.0f}"), ("cpu_s", "{:.1f}")):
            row += [form.format(line[name]), f"{line[name] / plain[name]:.2f}" if plain else ""]
        norm = line["gradient_norm"]
        row.append(f"{abs(norm / plain['gradient_norm'] - 1):.0e}" if plain else "")
        if line["variant"] == "trl":
            memory, memory_goal = ratio_and_goal(
                ours.get("peak_mib"), line["peak_mib"], goals.get("mib")
            )
            time, time_goal = ratio_and_goal(ours.get("cpu_s"), line["cpu_s"], goals.get("cpu_s"))
            row += [f"MiB {memory} ({memory_goal})" if memory_goal else f"MiB {memory}"]
            row += [f"CPU-s {time} ({time_goal})" if time_goal else f"CPU-s {time}"]
        rows.append([*row, *[""] * (8 - len(row))])
    heads = ["", "MiB", "/ plain", "CPU-s", "/ plain", "gradient", "ours / it", "ours / it"]
    return markdown(heads, [row[: len(heads)] for row in rows])


def _between_steps(lines: Sequence[Json]) -> str:
    from page import markdown

    rows = []
    for line in lines:
        numbers = (line.get("weights_mib"), line.get("states_mib"))
        cells = ["" if number is None else f"{number:.1f}" for number in numbers]
        rows.append([line["kind"], line.get("problem") or cells[0], cells[1]])
    return markdown(["", "weights, MiB", "optimiser, MiB"], rows)
