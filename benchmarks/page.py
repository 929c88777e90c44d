"""Write docs/benchmarks.md from benchmarks/results/benchmarks.json alone; the JSON is gathered from
the files that the benchmarks wrote.

    python benchmarks/losses.py --json build/losses.json
    python benchmarks/losses.py --sweep --json build/sweep.json
    python benchmarks/step.py --json build/step.json
    python benchmarks/step.py --long --json build/long.json
    python benchmarks/page.py build/losses.json build/sweep.json build/step.json build/long.json
        put these parts into the committed JSON, then write the page
    python benchmarks/page.py            write the page again from the committed JSON
    python benchmarks/page.py --check    fail if the page does not match its JSON

The name of a file says which part it is (PARTS); a part that is not given stays as it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from context_page import context_section
from hint_reader_section import hint_reader_section
from memory_section import memory_section
from page_generation import generation_section
from page_size_section import page_size_section
from record_lines import record_lines

ROOT = Path(__file__).resolve().parent.parent
JSON_PAGE, PAGE = Path("benchmarks/results/benchmarks.json"), Path("docs/benchmarks.md")
Json = Mapping[str, Any]
PARTS: Mapping[str, str] = {
    "losses": "the hint channel's loss alone",
    "sweep": "the loss alone, few loss positions among ever more",
    "step": "a whole step of three channels",
    "long": "a session of 32,768 tokens",
    "context": "a step that keeps less in memory",
    "rollouts": "episodes of the workshop",
    "generation": "tokens of the sampler, compared with transformers' generate",
    "curate": "curation of pairs, compared with data-juicer",
    "redact": "redaction of secrets",
    "replay_cost": "what a replay bills",
    "hint_reader": "a reader's mistakes, compared with the rules'",
    "memory_model": "the memory model, compared with measured peaks",
    "page_size": "the pages in a browser",
    "gpu": "everything on a GPU (benchmarks/gpu.py)",
}
_PEERS = ("gemm", "naive", "trl_sdpo", "trl_chunked", "liger", "liger_compiled")
_GATHERED = ("trl_chunked_gathered", "liger_compiled_gathered")
LOSS_VARIANTS = {
    "dense 256": ("ours", "ours_frozen", "ours_compiled", *_PEERS),
    "dense 1024": ("ours", *_PEERS),
    "sparse 256": ("ours", "gemm", "naive", "trl_chunked", *_GATHERED),
}
STEP_VARIANTS, STEP_PAIRS = ("tree", "rows", "separate", "naive", "trl"), (2, 4, 8, 16)
GOALS: Mapping[str, Any] = {
    "losses": {
        "dense 256": {
            "naive": {"cpu_s": 0.40, "mib": 0.04},
            "trl_chunked": {"cpu_s": 0.35, "mib": 0.20},
            "liger_compiled": {"cpu_s": 0.80},
            "gemm": {"cpu_s": 1.8},
        },
        "dense 1024": {"gemm": {"cpu_s": 1.2}},
        "sparse 256": {"naive": {"cpu_s": 0.04, "mib": 0.04}},
    },
    "sweep": {"cpu_s": 1.1, "mib": 1.1},
    "step": {"trl": {"2": 0.50, "4": 0.42, "8": 0.28, "16": 0.25}, "naive": {"8": 0.12}},
    "growth": {"separate": 0.15, "trl": 0.15},
    "numerics": {"at_least": 1e-4, "error": 1e-3},
    "long": {"mib": 16384},
    "context": {"sft": {"mib": 0.8, "cpu_s": 1.1}, "session": {"mib": 0.6, "cpu_s": 0.25}},
    "rollouts": {"episodes_per_cpu_s": 1.5, "trained_per_cpu_s": 1.0},
    "generation": {"ratio": 0.8, "shared": 1.0},
    "curate": {"pairs_per_s": 10_000},
    "redact": {
        "mb_per_s": 20,
        "recall": 0.99,
        "altered": 0.01,
        "stranger": {"plain": 0.95, "wrapped": 0.8},
    },
    "memory_model": {"error": 0.10},
    "page_size": {"kb": 2000, "usable_ms": 1000},
    "sizes": {"dense 256": 1024, "sparse 256": 1024, "step": 1024},
}
"""The goals of the issues: the highest ratio of this project to a peer, or the lowest value of a
number; stored in the JSON beside the numbers."""


def about(command: Sequence[str]) -> dict[str, Any]:
    """How, where, when and with which versions numbers were made."""
    model = [
        x.partition(":")[2].strip()
        for x in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        if x.startswith("model name")
    ]
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "trl", "liger-kernel", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    # The page shows no folder of the machine.
    arguments = [
        f"build/{Path(word).name}" if Path(word).is_absolute() else word for word in command[1:]
    ]
    return {
        "command": shlex.join(["python", "benchmarks/" + Path(command[0]).name, *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": {
            "cpu": model[0] if model else platform.machine(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
        "versions": versions,
    }


# ---- the page ----


def render(measured: Json) -> str:
    """The whole page: the same JSON gives the same page."""
    sections = {
        "losses": losses_section,
        "sweep": sweep_section,
        "step": step_section,
        "long": long_section,
        "context": context_section,
        "rollouts": rollouts_section,
        "generation": generation_section,
        "curate": curate_section,
        "redact": redact_section,
        "replay_cost": replay_cost_section,
        "hint_reader": hint_reader_section,
        "memory_model": memory_section,
        "page_size": page_size_section,
        "gpu": gpu_section,
    }
    written = [
        sections[name](measured[name], measured["goals"]) for name in PARTS if name in measured
    ]
    parts = [
        OPENING,
        "\n".join(["## Not measured", "", *(f"- {line}" for line in not_measured(measured)), ""]),
        *written,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


OPENING = """
# Benchmarks

<!-- written by benchmarks/page.py from benchmarks/results/benchmarks.json: do not edit either -->

Each table compares this project with its peers, measured one after another by one command on one
machine.

- **Ratio**: this project divided by the peer. Below 1 is better. **Above 1, in bold, this project
  loses.**
- **Time**: CPU-seconds of one thread, each measured in its own process. It is the median of the
  repetitions after a first one, or a single run if the command says `--repeats 1` or `--long`.
- **Memory**: the highest resident size above the size before the measurement.
- **Goal**: the highest ratio that was asked for.
"""


def not_measured(measured: Json) -> Iterator[str]:
    """One line for each part, table or variant without a number."""
    for name, text in PARTS.items():
        if name not in measured:
            yield text
    tables = measured.get("losses", {}).get("tables", {})
    for table, variants in LOSS_VARIANTS.items() if "losses" in measured else ():
        missing = [v for v in variants if "cpu_s" not in tables.get(table, {}).get(v, {})]
        if missing:
            yield f"the loss alone, {table}: {', '.join(missing)}"
    if "losses" in measured and "numerics" not in measured["losses"]:
        yield "the error from bfloat16 hidden states"
    measured_variants = {
        (line["pairs"], line["variant"])
        for line in measured.get("step", {}).get("lines", ())
        if "cpu_s" in line
    }
    for pairs in STEP_PAIRS if "step" in measured else ():
        missing = [v for v in STEP_VARIANTS if (pairs, v) not in measured_variants]
        if missing:
            yield f"the whole step, {pairs} pairs: {', '.join(missing)}"


def provenance(part: Json) -> str:
    """The line below a heading: command, date, machine, versions."""
    run, machine = part["about"], part["about"]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    load = f"load {machine['load']} when it was written"
    return (
        f"`{run['command']}`, {run['date']}, {machine['cpu']}, {machine['cores']} cores ({load});"
        f" {versions}."
    )


def ratio_and_goal(ours: float | None, theirs: float, goal: float | None) -> tuple[str, str]:
    """Two cells: ours divided by theirs, and the goal with its verdict."""
    if ours is None or not theirs:
        return "", "" if goal is None else f"{goal:g}"
    ratio = ours / theirs
    shown = f"{ratio:.3f}" if ratio <= 1 else f"**{ratio:.3f}**"
    return shown, "" if goal is None else f"{goal:g}: " + ("met" if ratio <= goal else "**missed**")


def size_note(size: int, goal_size: int | None) -> str:
    """A sentence if the measurement has another size than its goals, else ""."""
    return (
        "" if goal_size in (None, size) else f" **The goals were set for {goal_size}, not {size}.**"
    )


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(
        ["| " + " | ".join(row) + " |" for row in (heads, ["---"] * len(heads), *rows)]
    )


def losses_section(part: Json, goals: Json) -> str:
    """Time and memory by the share of positions in the loss, then the errors."""
    parts = ["## The hint channel's loss alone", provenance(part)]
    for name, rows in part["tables"].items():
        kind, hidden = name.split()
        share = (
            "every position is in the loss"
            if kind == "dense"
            else f"{part['share']:.0%} of the positions are in the loss"
        )
        text = (
            f"JSD, forward and backward, V = {part['vocab']}, H = {hidden}, N ="
            f" {part['positions'][name]}, {share}."
        )
        text += size_note(part["positions"][name], goals["sizes"].get(name))
        base, cells = rows.get("ours", {}), []
        for variant, row in rows.items():
            if "missing" in row:
                cells.append([variant, "not installed", *[""] * 5])
                continue
            goal = goals["losses"].get(name, {}).get(variant, {})
            time = ratio_and_goal(base.get("cpu_s"), row["cpu_s"], goal.get("cpu_s"))
            memory = ratio_and_goal(base.get("mib"), row["mib"], goal.get("mib"))
            cells.append([variant, f"{row['cpu_s']:.2f}", *time, f"{row['mib']:.0f}", *memory])
        parts += [
            text,
            markdown(["", "CPU-s", "ours / it", "goal", "MiB", "ours / it", "goal"], cells),
        ]
    parts.append(
        "`gemm` is the lower bound: only the matrix products that any loss with both gradients must"
        " do. `ours_frozen` has a head that is not trained. `naive` is TRL's GKD loss on"
        " all logits. `*_gathered`: the peer gets only the loss positions, which it does not select"
        " itself."
    )
    return "\n\n".join(
        [*parts, numerics(part["numerics"], goals["numerics"])] if "numerics" in part else parts
    )


def sweep_section(part: Json, goals: Json) -> str:
    """Time and memory by the number of positions; the same number of them is in the loss."""
    by_size: dict[int, dict[str, Json]] = {}
    for line in part["lines"]:
        by_size.setdefault(line["positions"], {})[line["variant"]] = line
    sizes = sorted(size for size, row in by_size.items() if "cpu_s" in row.get("ours", {}))
    rows = []
    for size, row in sorted(by_size.items()):
        by_variant = {name: row.get(name, {}) for name in ("ours", "gemm", "naive")}
        cells = [
            f"{line[key]:{style}}" if key in line else ""
            for line in by_variant.values()
            for key, style in (("cpu_s", ".2f"), ("mib", ".0f"))
        ]
        shares = [
            ratio_and_goal(by_variant["ours"].get(key), by_variant["naive"].get(key, 0.0), None)[0]
            for key in ("cpu_s", "mib")
        ]
        if "missing" in by_variant["naive"]:
            cells[4] = "not installed"
        rows.append([str(size), *cells, *shares])
    text = (
        f"JSD, forward and backward, V = {part['vocab']}, H = {part['hidden']}:"
        f" {part['loss_positions']} of N positions are in the loss, whatever N is. The lower bound"
        " `gemm` gets only those; `naive` takes logits, so it projects all positions."
    )
    heads = [
        "N",
        *(f"{v}, {unit}" for v in ("ours", "gemm", "naive") for unit in ("CPU-s", "MiB")),
        "ours / naive",
        "memory",
    ]
    parts = ["## A loss among ever more positions", provenance(part), text, markdown(heads, rows)]
    if len(sizes) > 1:
        first, last = by_size[sizes[0]]["ours"], by_size[sizes[-1]]["ours"]
        cells = [
            [
                name,
                f"{last[key] / first[key]:.3f}",
                ratio_and_goal(last[key], first[key], goals["sweep"][key])[1],
            ]
            for name, key in (("time", "cpu_s"), ("memory", "mib"))
        ]
        parts.append(markdown([f"ours, N = {sizes[-1]} / N = {sizes[0]}", "ratio", "goal"], cells))
    return "\n\n".join(parts)


def numerics(columns: Json, goal: Json) -> str:
    """The relative errors of value and gradient, by the true divergence."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [
        [
            name,
            *(
                "{:.0e} / {:.0e}".format(*column[name]) if name in column else ""
                for column in columns.values()
            ),
        ]
        for name in names
    ]
    our_errors = [
        max(column["ours"])
        for true, column in columns.items()
        if float(true) >= 0.8 * goal["at_least"] and "ours" in column
    ]
    verdict = (
        ("met" if max(our_errors) <= goal["error"] else "**missed**")
        if our_errors
        else "not measured"
    )
    text = (
        "Accuracy: the relative error of the value / of the hidden states' gradient against"
        " float64, from bfloat16 hidden states and head, by the true divergence. The column of"
        " identical inputs has the value and the gradient's norm themselves. The gradient is"
        " measured before its last rounding: the gradient of a bfloat16 hidden state is a bfloat16"
        " number in the end, and that alone is an error of about 2e-3. Goal for ours down to a"
        " divergence of"
        f" {goal['at_least']:g}: {goal['error']:g} ({verdict})."
    )
    return text + "\n\n" + markdown(["true JSD", *columns], rows)


def step_section(part: Json, goals: Json) -> str:
    """The tree and the layouts that share nothing, by the number of pairs; the growth per pair; and
    the losses, which must agree."""
    shape, lines = part["shape"], [line for line in part["lines"] if "cpu_s" in line]
    text = (
        f"A session of {shape['length']} tokens with {shape['sites']} sites (hint of"
        f" {shape['hint']} tokens, message of {shape['message']}) and K pairs on a Qwen3 of"
        f" {shape['layers']} layers, hidden size {shape['hidden']}, V = {shape['vocab']}, random"
        " weights, float32. Forward and backward of policy, hint and preference. The last column"
        " has their three losses and the gradient's norm; a row that is not equal to the tree's is"
        " marked." + size_note(shape["length"], goals["sizes"]["step"])
    )
    base = {line["pairs"]: line for line in lines if line["variant"] == "tree"}
    rows = []
    for line in part["lines"]:
        pairs, variant = line["pairs"], line["variant"]
        if "problem" in line:
            rows.append([str(pairs), variant, line["problem"], *[""] * 5])
            continue
        ours = base.get(pairs, {})
        ratio, goal = ratio_and_goal(
            ours.get("cpu_s"), line["cpu_s"], goals["step"].get(variant, {}).get(str(pairs))
        )
        memory = ratio_and_goal(ours.get("peak_mib"), line["peak_mib"], None)[0]
        losses = " ".join(f"{x:.5f}" for x in (*line["losses"], line["gradient_norm"]))
        losses += "" if not ours or same(line, ours) else " **differs**"
        rows.append(
            [
                str(pairs),
                variant,
                f"{line['cpu_s']:.2f}",
                ratio,
                goal,
                f"{line['peak_mib']:.0f}",
                memory,
                losses,
            ]
        )
    heads = ["K", "", "CPU-s", "tree / it", "goal", "MiB", "tree / it", "losses, gradient norm"]
    parts = ["## A whole step of three channels", provenance(part), text, markdown(heads, rows)]
    growth = growth_of(lines)
    if "tree" in growth:
        cells = [
            [v, f"{g:.3f}", *ratio_and_goal(growth["tree"], g, goals["growth"].get(v))]
            for v, g in growth.items()
        ]
        parts.append(markdown(["", "CPU-s per further pair", "tree / it", "goal"], cells))
    parts.append(
        "- `rows`: this project without sharing between rows.\n"
        "- `separate`: the three channels of this project as three trainers would compute them, one"
        " row or pair at a time.\n"
        "- `naive`: logits of every position in padded rows.\n"
        "- `trl`: TRL's own GRPOTrainer._compute_loss, SDPO's full-logit divergence and"
        " DPOTrainer._compute_loss, one after another, in the best layout that they allow (one row"
        " of the session, a teacher row per site, a pair at a time, nothing padded). Off CUDA, TRL"
        " projects every position of a row, as shipped. The trainers are objects that hold only the"
        " settings that their methods read. With `trl_chunked` (`--only`) the DistillationTrainer's"
        " divergence replaces SDPO's. TRL's JSD is multiplied by 1 / (beta (1 - beta)), which is"
        " this project's convention."
    )
    return "\n\n".join(parts)


def same(line: Json, ours: Json) -> bool:
    """Whether losses and gradient norm equal those of the tree, to a relative 2e-4."""
    pairs = zip(
        (*line["losses"], line["gradient_norm"]),
        (*ours["losses"], ours["gradient_norm"]),
        strict=True,
    )
    return all(abs(x - y) <= 2e-4 * max(abs(y), 1e-3) for x, y in pairs)


def growth_of(lines: Sequence[Json]) -> dict[str, float]:
    """CPU-seconds per further pair of each variant that was measured at two numbers of pairs, from
    the fewest to the most."""
    growth = {}
    for variant in dict.fromkeys(line["variant"] for line in lines):
        points = sorted(
            (line["pairs"], line["cpu_s"])
            for line in lines
            if line["variant"] == variant and "cpu_s" in line
        )
        if len(points) > 1 and points[-1][0] > points[0][0]:
            growth[variant] = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
    return growth


def long_section(part: Json, goals: Json) -> str:
    """The long session: memory and time of the tree."""
    shape, rows = part["shape"], []
    for line in part["lines"]:
        if "problem" in line:
            rows.append([line["variant"], str(line["pairs"]), line["problem"], "", ""])
        else:
            verdict = "met" if line["peak_mib"] <= goals["long"]["mib"] else "**missed**"
            goal = f"{goals['long']['mib']}: {verdict}"
            rows.append(
                [
                    line["variant"],
                    str(line["pairs"]),
                    f"{line['cpu_s']:.1f}",
                    f"{line['peak_mib']:.0f}",
                    goal,
                ]
            )
    text = (
        f"{shape['length']} tokens, {shape['sites']} sites, {shape['layers']} layers, hidden size"
        f" {shape['hidden']}, V = {shape['vocab']}."
    )
    return "\n\n".join(
        [
            "## A long session",
            provenance(part),
            text,
            markdown(["", "K", "CPU-s", "MiB", "goal"], rows),
        ]
    )


def rollouts_section(part: Json, goals: Json) -> str:
    """Episodes per second by the size of the batch, and beside TRL's trainer."""
    rows = [
        [str(row["batch"]), f"{row['episodes_per_cpu_s']:.1f}", f"{row['trained_per_cpu_s']:.0f}"]
        for row in part["rows"]
    ]
    parts = (
        ["## Episodes of the workshop", provenance(part)]
        if "about" in part
        else ["## Episodes of the workshop"]
    )
    parts.append(markdown(["batch", "episodes per CPU-s", "trained tokens per CPU-s"], rows))
    return "\n\n".join(
        [*parts, *beside_trl(part["beside"], goals["rollouts"])] if "beside" in part else parts
    )


def beside_trl(results: Json, goals: Json) -> list[str]:
    """The whole step beside TRL's GRPOTrainer. Unlike elsewhere, a ratio above 1 is good and the
    goals are lower bounds."""
    shape, sides = results["shape"], [results[name] for name in ("ours", "trl")]
    text = (
        f"{shape['steps']} Dr.GRPO steps of {shape['groups']} groups of {shape['size']} episodes"
        ", compared with TRL's GRPOTrainer with transformers' `generate`: the same tasks, fixed"
        " tools, student, limits and temperature. *Play* is sampling, tools, rendering and rewards."
        " Trained tokens are those that the student wrote, divided by the CPU-seconds of the whole"
        " step. **Here more is better**: the ratio is this project divided by TRL, the goal the"
        " least"
        " that was asked for."
    )
    if problems := [side["problem"] for side in sides if "problem" in side]:
        return [text, f"Not measured: {'; '.join(problems)}."]
    ours, theirs = sides
    rows = []
    for label, name in (
        ("episodes per CPU-s of play", "episodes_per_cpu_s"),
        ("trained tokens per CPU-s", "trained_per_cpu_s"),
    ):
        ratio = ours[name] / theirs[name]
        verdict = "met" if ratio >= goals[name] else "**missed**"
        rows.append(
            [
                label,
                f"{ours[name]:.1f}",
                f"{theirs[name]:.1f}",
                f"{ratio:.2f}",
                f"{goals[name]:g}: {verdict}",
            ]
        )
    for label, name in (
        ("tokens an episode", "tokens"),
        ("messages an episode", "messages"),
        ("success", "success"),
    ):
        rows.append([label, f"{ours[name]:.2f}", f"{theirs[name]:.2f}", "", ""])
    return [text, markdown(["", "ours", "TRL", "ours / TRL", "goal"], rows)]


def at_least(value: float, goal: float) -> str:
    """A cell: a lower bound with its verdict."""
    return f"at least {goal:g}: " + ("met" if value >= goal else "**missed**")


def curate_section(part: Json, goals: Json) -> str:
    """Pairs per CPU-second of the embedded engine and of data-juicer on the same pairs, and whether
    they kept the same ones."""
    goal, rows = goals["curate"]["pairs_per_s"], []
    for name, row in part["recipes"].items():
        ours, theirs = row["judge_pairs_per_s"], row.get("data_juicer_pairs_per_s")
        verdict = at_least(ours, goal) if name == "default" else ""
        if theirs is None:
            rows.append([name, str(row["kept"]), str(ours), verdict, "not installed", "", ""])
        else:
            same = "the same" if row["same_kept_set"] else "**others**"
            rows.append(
                [
                    name,
                    str(row["kept"]),
                    str(ours),
                    verdict,
                    str(theirs),
                    f"{ours / theirs:.0f}",
                    same,
                ]
            )
    text = (
        f"{part['pairs']} synthetic pairs as long as those of real sessions ({part['chars_a_side']}"
        " characters per message), about one in ten with a fault. Every operator of a recipe runs"
        " on pairs in memory; best of three. data-juicer runs only its counting filters and exact"
        " deduplication, as a program whose start counts. Whatever it has no operator for is not in"
        " its time. Both are measured in one run, in CPU-seconds: **here more is better**."
        f" If each pair is read from its row first: {part['rows_pairs_per_s']} pairs per CPU-s."
        f" If answers are judged one by one while replay runs: {part['answers_per_s']}."
    )
    heads = ["recipe", "kept", "pairs per CPU-s", "goal", "data-juicer", "ours / it", "kept pairs"]
    return "\n\n".join(["## Curation of pairs", provenance(part), text, markdown(heads, rows)])


def redact_section(part: Json, goals: Json) -> str:
    """Speed beside a plain loop and a peer, recall on planted secrets, and the share of clean
    strings that were altered."""
    goal, altered = goals["redact"], part["altered_with_email"]
    rows = [
        ["MB per CPU-s", f"{part['mb_per_s']:.1f}", at_least(part["mb_per_s"], goal["mb_per_s"])],
        [
            (
                f"development data: recall on {part['planted']} secrets of our own, of"
                f" {part['kinds']} kinds"
            ),
            f"{part['recall']:.4f}",
            at_least(part["recall"], goal["recall"]),
        ],
        [
            "share of clean strings altered",
            f"{altered:.5f}",
            f"at most {goal['altered']:g}: "
            + ("met" if altered <= goal["altered"] else "**missed**"),
        ],
        [
            "MB per CPU-s of a plain loop over the same patterns",
            f"{part['plain_loop_mb_per_s']:.2f}",
            "",
        ],
    ]
    for name, parts in part.get("stranger", {}).items():
        claimed = name == part.get("claimed")
        for kind, share in parts.items():
            low, high = share["interval"]
            label = "an unread list" if claimed else f"development data: the list `{name}`"
            wanted = goal["stranger"][kind]
            rows.append(
                [
                    f"recall on {label} of a stranger, {share['texts']} {kind} texts",
                    f"{share['recall']:.3f} [{low:.3f}, {high:.3f}]",
                    at_least(share["recall"], wanted) if claimed else "",
                ]
            )
    for name, shares in part.get("by_length", {}).items():
        shown_shares = ", ".join(f"{length}: {share:.4f}" for length, share in shares.items())
        rows.append(
            [
                (
                    f"development data: recall on 4000 plainly random values after {name}, by their"
                    " letters"
                ),
                shown_shares,
                "",
            ]
        )
    if "detect_secrets_mb_per_s" in part:
        rows.append(
            [
                "MB per CPU-s of detect-secrets, default plugins",
                f"{part['detect_secrets_mb_per_s']:.3f}",
                "",
            ]
        )
    text = (
        f"{part['num_texts']} synthetic tool outputs, {part['mb']} MB, best of several rounds. The"
        " plain loop and the peer run on a part of them, in the same run: ours is"
        f" {part['ratio']:.0f} times as fast as the loop. The same person wrote the planted secrets"
        " and the rules."
    )
    return "\n\n".join(["## Redaction", provenance(part), text, markdown(["", "", "goal"], rows)])


def replay_cost_section(part: Json, goals: Json) -> str:
    """The input tokens that one teacher bills for each session: for every step or the chosen ones,
    at full price or with a cache."""

    def cells(row: Json) -> list[str]:
        full, chosen = row["full"], row["chosen"]
        millions = (
            row["reported"],
            full["sent"],
            full["in_order"],
            chosen["sent"],
            chosen["in_order"],
        )
        shown = [f"{tokens / 1e6:.3f}" for tokens in millions]
        ratio = f"{full['sent'] / chosen['in_order']:.1f}" if chosen["in_order"] else ""
        return [
            row["session"],
            str(row["steps"]),
            str(row["sites"]),
            *shown[:3],
            str(chosen["calls"]),
            *shown[3:],
            ratio,
        ]

    rows = part["rows"]
    total: dict[str, Any] = {
        name: sum(row[name] for row in rows) for name in ("steps", "sites", "reported")
    }
    total |= {
        name: {key: sum(row[name][key] for row in rows) for key in rows[0][name]}
        for name in ("full", "chosen")
    }
    each = [
        total[a][b] / 1e6 * part["usd"] / len(rows)
        for a in ("full", "chosen")
        for b in ("sent", "in_order")
    ]
    naive, ordered, uncached, best = (f"{usd:.3f}" for usd in each)
    text = (
        "Millions of input tokens that one teacher bills:\n\n"
        "- **Full**: every step is asked about, with the whole context.\n"
        "- **Chosen**: the mistakes that the rules find and some sampled steps, with the trimmed"
        " prompt of `recompose replay`.\n"
        "- **In order**: the steps of a session one after the other. The prefix that a prompt"
        f" shares with the one before it costs {part['cached']:g} of the price.\n"
        "- **Reported**: what the log's own provider counted for the same steps, with a system"
        " prompt and tools that the logs do not contain.\n\n"
        "This is a cost model from bytes"
        f" ({part['estimate']:g} per token; {part['bytes_a_token'] or 0:.2f} on these logs)."
        " Nothing was sent, and answers are not counted. Cost of a session and teacher at"
        f" ${part['usd']:g} per million:"
        f" naive full ${naive}, full in order ${ordered}, chosen ${uncached}, chosen in order"
        f" ${best}."
    )
    heads = [
        "session",
        "steps",
        "sites",
        "reported",
        "full, naive",
        "full, in order",
        "calls",
        "chosen",
        "chosen, in order",
        "naive / last",
    ]
    return "\n\n".join(
        [
            "## What a replay bills",
            provenance(part),
            text,
            markdown(heads, [cells(row) for row in (*rows, {"session": "all", **total})]),
        ]
    )


def gpu_section(part: Json, goals: Json) -> str:
    """The measurements of benchmarks/gpu.py."""
    cells = [
        (
            [row["table"], row["case"], row["variant"], row["problem"], ""]
            if "problem" in row
            else [
                row["table"],
                row["case"],
                row["variant"],
                f"{row['ms']:.1f}" if "ms" in row else "",
                f"{row['mib']:.0f}" if "mib" in row else "",
            ]
        )
        for row in part["lines"]
    ]
    heads = ["table", "case", "variant", "ms", "MiB"]
    return "\n\n".join([f"## GPU: {part['device']}", provenance(part), markdown(heads, cells)])


# ---- the command ----


def problems(root: Path) -> list[str]:
    """What is stale in a checkout; [] if the page matches its JSON."""
    source, page = root / JSON_PAGE, root / PAGE
    if not source.exists():
        return [f"{JSON_PAGE} does not exist: run the benchmarks, then python benchmarks/page.py"]
    measured, stale_parts = json.loads(source.read_text("utf-8")), []
    if measured["goals"] != GOALS:
        stale_parts.append(
            f"{JSON_PAGE} holds other goals than benchmarks/page.py: run python benchmarks/page.py"
        )
    if not page.exists() or page.read_text("utf-8") != render(measured):
        stale_parts.append(f"{PAGE} is not what {JSON_PAGE} says: run python benchmarks/page.py")
    return stale_parts


def gather(files: Sequence[Path], root: Path) -> dict[str, Any]:
    """The JSON of the page, with the parts in these files replaced."""
    source = root / JSON_PAGE
    measured: dict[str, Any] = json.loads(source.read_text("utf-8")) if source.exists() else {}
    for path in files:
        if path.stem not in PARTS:
            raise SystemExit(f"{path}: the name must be one of {', '.join(PARTS)}")
        measured[path.stem] = json.loads(path.read_text("utf-8"))
    return {"goals": GOALS, **{name: measured[name] for name in PARTS if name in measured}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather and write, or check; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.check:
        stale_parts = problems(options.root)
        print(
            "\n".join(f"benchmarks: {line}" for line in stale_parts)
            or f"benchmarks: {PAGE} is what its JSON says"
        )
        return 1 if stale_parts else 0
    measured = gather(options.files, options.root)
    (options.root / JSON_PAGE).write_text(record_lines(measured, depth=3) + "\n", "utf-8")
    (options.root / PAGE).write_text(render(measured), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
