"""How the tasks of packages are judged: by replayed calls, by replayed scripts with handles, or
without a replay, and then why.

    python scripts/fetch_packages.py packages
    python benchmarks/tasks.py packages --work WORK          # the tasks of docs/tasks.md
    python benchmarks/repo_replayable.py --tasks WORK/tasks

What the judge records of an original is kept in the folder of the tasks, so a run that is stopped
goes on. Results go to benchmarks/results/repo_replayable.json and into docs/tasks.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marked_part

from composer_replication.repositories.judged import JudgedRepository
from composer_replication.repositories.playing.judged_reward import JUDGE_CACHE
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.python.judging.call_replay import CallRecording
from composer_replication.repositories.python.judging.python_judge import record_replay
from composer_replication.repositories.repo_task import KINDS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "repo_replayable.json"
PAGE = ROOT / "docs" / "tasks.md"
BEGIN, END = "<!-- replayable -->", "<!-- /replayable -->"
WAYS = {"calls": "calls", "handles": "scripts with handles", "none": "not replayed"}


def measure(folder: Path, most: int | None) -> list[dict[str, Any]]:
    """The way of each task, the first of every repository if `most` says so."""
    rows: list[dict[str, Any]] = []
    taken = Counter[str]()
    with PlayableTasks(folder) as playable:
        for task in sorted(playable.tasks, key=lambda task: task.id):
            taken[task.repository] += 1
            if most is not None and taken[task.repository] > most:
                continue
            opened, begun = playable.repository(task), time.perf_counter()
            repository = JudgedRepository(
                checkout=opened.checkout,
                environment=opened.environment,
                cache=opened.folder / JUDGE_CACHE,
            )
            recording = record_replay(task, repository)
            replayed = "calls" if isinstance(recording, CallRecording) else "handles"
            row = {
                "id": task.id,
                "repository": task.repository,
                "kind": task.kind,
                "way": "none" if recording.reason else replayed,
                "reason": recording.reason,
            }
            rows.append(row)
            print(json.dumps({**row, "s": round(time.perf_counter() - begun, 1)}), flush=True)
    return rows


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/tasks.md."""
    lines = [f"| | tasks | {' | '.join(WAYS.values())} |", "|---|---|---|---|---|"]
    groups = [(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    names = sorted({row["repository"] for row in rows})
    groups += [(name, [row for row in rows if row["repository"] == name]) for name in names]
    for title, chosen in (*groups, ("**all**", list(rows))):
        ways = Counter(row["way"] for row in chosen)
        cells = [f"{ways[way]} ({ways[way] / len(chosen):.0%})" for way in WAYS if chosen]
        if chosen:
            lines.append(f"| {title} | {len(chosen)} | {' | '.join(cells)} |")
    reasons = Counter(row["reason"] for row in rows if row["reason"])
    listed = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return "\n".join([*lines, "", f"Reasons for no replay: {listed}."])


def main() -> int:
    """Record, count, write."""
    parser = argparse.ArgumentParser(description="How tasks are judged: replayed or not.")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--per-repository", type=int)
    options = parser.parse_args()
    rows = measure(options.tasks, options.per_repository)
    text = ",\n".join(json.dumps(row) for row in rows)
    RESULTS.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    marked_part.write(PAGE, BEGIN, END, render(rows))
    print(render(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
