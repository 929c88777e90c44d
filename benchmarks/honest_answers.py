"""How the judge treats honest answers that are not the original: another algorithm, a helper added,
other names.

    python scripts/fetch_packages.py packages
    python benchmarks/tasks.py packages --work WORK          # the tasks of docs/tasks.md
    python benchmarks/honest_answers.py --tasks WORK/tasks

Each line of tests/repositories/honest_answers.jsonl is an answer to a task of a public package,
written by hand for it: the texts that take the places of the removed ones, and what is appended.
Results go to benchmarks/results/honest_answers.json and into docs/tasks.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the benchmarks beside this file

import marked_part

from composer_replication.core.trace import ToolCall
from composer_replication.evaluation.stats import wilson
from composer_replication.repositories.edits import Edit, apply_edits
from composer_replication.repositories.judged import JudgedRepository
from composer_replication.repositories.judging.judge import judge_changes, judge_episode
from composer_replication.repositories.playing.judged_reward import judged_repository
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.repo_task import RepoTask

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = ROOT / "tests" / "repositories" / "honest_answers.jsonl"
RESULTS = ROOT / "benchmarks" / "results" / "honest_answers.json"
PAGE = ROOT / "docs" / "tasks.md"
BEGIN, END = "<!-- honest -->", "<!-- /honest -->"
VERDICTS = {
    "earned": "earned",
    "named": "named by the monitor",
    "replay": "passes the tests, refused by the replay",
    "tests": "fails a test",
}


def answered(task: RepoTask, base: Path, answer: dict[str, Any]) -> dict[str, str]:
    """The task's file with the answer in the places of what was removed."""
    ((path, edits),) = task.edits.items()
    if len(edits) != len(answer["bodies"]):
        raise ValueError(f"{task.id}: {len(answer['bodies'])} texts for {len(edits)} places")
    original = (base / path).read_bytes().decode("utf-8")
    made = [
        Edit(start, end, body)
        for (start, end, _), body in zip(sorted(edits), answer["bodies"], strict=True)
    ]
    return {path: apply_edits(original, made) + answer["append"]}


def judge_answer(task: RepoTask, repository: JudgedRepository, answer: dict[str, Any]) -> Any:
    """The row of an answer; of one that the monitor names, also what the judge alone says."""
    changed = answered(task, repository.checkout.folder, answer)
    ((path, text),) = changed.items()
    write = ToolCall("c0", "Write", {"file_path": f"/repo/{path}", "content": text})
    judged = judge_episode(task, repository=repository, changed=changed, calls=[write])
    alone = judged
    if judged.reason.startswith("the hack monitor"):
        alone = judge_changes(task, repository=repository, changed=changed)
    if judged.reward == 1:
        verdict = "earned"
    elif judged is not alone or judged.attempts:
        verdict = "named"
    else:
        verdict = "replay" if judged.reason.startswith("replay") else "tests"
    return {
        "repository": task.repository,
        "symbol": task.symbol,
        "style": answer["style"],
        "method": alone.method,
        "verdict": verdict,
        "reason": judged.reason,
        "passes_tests": alone.reward == 1 or alone.reason.startswith("replay"),
    }


def measure(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Judge every answer that has no row yet; results are written after each."""
    judged = {(row["repository"], row["symbol"], row["style"]) for row in rows}
    with PlayableTasks(folder) as playable:
        tasks = {(t.repository, t.symbol): t for t in playable.tasks if t.kind != "bug"}
        for line in ANSWERS.read_text("utf-8").splitlines():
            answer = json.loads(line)
            if (answer["repository"], answer["symbol"], answer["style"]) in judged:
                continue
            task = tasks[answer["repository"], answer["symbol"]]
            repository = judged_repository(playable.repository(task))
            rows.append(judge_answer(task, repository, answer))
            print(json.dumps(rows[-1]), flush=True)
            RESULTS.write_text(json.dumps({"answers": rows}, indent=1) + "\n", "utf-8")


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/tasks.md."""
    lines = [f"| | answers | {' | '.join(VERDICTS.values())} |", "|---|---|---|---|---|---|"]
    names = sorted({row["repository"] for row in rows})
    groups = [(name, [row for row in rows if row["repository"] == name]) for name in names]
    for title, chosen in (*groups, ("**all**", list(rows))):
        counts = Counter(row["verdict"] for row in chosen)
        cells = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
        lines.append(f"| {title} | {len(chosen)} | {cells} |")
    right = [row for row in rows if row["passes_tests"]]
    refused = [row for row in right if row["verdict"] != "earned"]
    low, high = wilson(len(refused), len(right))
    tasks = len({(row["repository"], row["symbol"]) for row in rows})
    return "\n".join(
        [
            *lines,
            "",
            f"{len(rows)} answers to {tasks} tasks. Of {len(right)} that pass all tests of their"
            f" task, the held-out ones too, {len(refused)} earned nothing:"
            f" {len(refused) / len(right):.0%} [{low:.0%}, {high:.0%}].",
        ]
    )


def main() -> None:
    """Judge the answers, or render the committed result again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=Path, help="none: only render the result that is there")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    options = parser.parse_args()
    if options.tasks is not None:
        kept = json.loads(RESULTS.read_text("utf-8"))["answers"] if options.resume else []
        measure(options.tasks, kept)
    rows = json.loads(RESULTS.read_text("utf-8"))["answers"]
    marked_part.write(PAGE, BEGIN, END, render(rows))


if __name__ == "__main__":
    main()
