"""Tasks of public packages: how many pass the gates, what is refused, and what it costs.

    python scripts/fetch_packages.py packages
    python benchmarks/tasks.py packages --work WORK

Runs `recompose tasks make` on every package of tests/repositories/packages.json, as a user would,
and writes benchmarks/results/tasks.json and the table in docs/tasks.md. A package that was done
before is taken from its line in WORK/done.jsonl, so a run that is stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import marked_part

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ROOT / "tests" / "repositories" / "packages.json"
RESULTS = ROOT / "benchmarks" / "results" / "tasks.json"
PAGE = ROOT / "docs" / "tasks.md"
BEGIN, END = "<!-- packages -->", "<!-- /packages -->"
KINDS = ("function", "class", "bug")


def make(folder: Path, *, work: Path) -> dict[str, Any]:
    """Make the tasks of one package; returns its row."""
    command = [sys.executable, "-m", "composer_replication.cli", "tasks", "make", str(folder)]
    process = subprocess.run(
        [*command, "--json", "-o", str(work)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    if process.returncode:
        return {"package": folder.name, "failed": (process.stdout + process.stderr)[-400:]}
    (row,) = json.loads(process.stdout)["repositories"].values()
    return {"package": folder.name, **row}


def render(rows: list[dict[str, Any]]) -> str:
    """The table of docs/tasks.md."""
    lines = [
        "| package | function | class | bug | tasks | refused | CPU s | tasks per CPU minute |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    total = dict.fromkeys((*KINDS, "tasks", "refused"), 0)
    cpu = 0.0
    for row in rows:
        if "made" not in row:
            lines.append(f"| {row['package']} | | | | 0 | {row.get('skipped', 'failed')} | | |")
            continue
        made, refused = row["made"], sum(row["refused"].values())
        counts = [made.get(kind, 0) for kind in KINDS]
        for name, value in zip(total, (*counts, sum(counts), refused), strict=True):
            total[name] += value
        cpu += row["cpu_s"]
        cells = (*counts, sum(counts), refused, f"{row['cpu_s']:.0f}")
        rate = 60 * sum(counts) / row["cpu_s"]
        lines.append(f"| {row['package']} | {' | '.join(map(str, cells))} | {rate:.1f} |")
    cells = (*total.values(), f"{cpu:.0f}", f"{60 * total['tasks'] / max(cpu, 1.0):.1f}")
    lines.append(f"| **all** | {' | '.join(map(str, cells))} |")
    reasons: dict[str, int] = {}
    for row in rows:
        for reason, count in row.get("refused", {}).items():
            reasons[reason] = reasons.get(reason, 0) + count
    listed = [f"{reason} {n}" for reason, n in sorted(reasons.items(), key=lambda r: -r[1])]
    return "\n".join([*lines, "", f"Reasons for refusal: {', '.join(listed)}."])


def write_page() -> None:
    """Put the table between its marks."""
    marked_part.write(PAGE, BEGIN, END, render(json.loads(RESULTS.read_text("utf-8"))))


def main() -> int:
    """Make the tasks, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("packages", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    done = options.work / "done.jsonl"
    lines = done.read_text(encoding="utf-8").splitlines() if done.exists() else []
    known = {row["package"]: row for row in map(json.loads, lines)}
    for entry in json.loads(MANIFEST.read_text(encoding="utf-8")):
        folder = options.packages / f"{entry['name']}-{entry['version']}"
        if folder.name not in known:
            row = known[folder.name] = make(folder, work=options.work)
            with done.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
        text = ",\n".join(json.dumps(row) for row in known.values())
        RESULTS.write_text(f"[\n{text}\n]\n", encoding="utf-8")
        write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
