"""Print the statements of some tasks beside what was removed and what their tests ask: to be read.

    python scripts/read_statements.py recompose/tasks --count 30 --seed 0

The tasks are drawn by the seed, from each repository in turn. A reader asks of each statement: does
it give the answer away, and does it ask for something that no test checks?
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.repo_task import RepoTask

MOST_LINES = 40
"""Lines shown of a test function."""


def drawn(tasks: Sequence[RepoTask], *, count: int, seed: int) -> list[RepoTask]:
    """Some tasks: one of each repository, then a second of each, and so on."""
    by_name: dict[str, list[RepoTask]] = {}
    for task in sorted(tasks, key=lambda task: task.id):
        by_name.setdefault(task.repository, []).append(task)
    shuffled = [random.Random(f"{seed} {name}").sample(t, len(t)) for name, t in by_name.items()]
    rounds = (row[i] for i in range(len(tasks)) for row in shuffled if i < len(row))
    return [task for task, _ in zip(rounds, range(count), strict=False)]


def test_code(base: Path, name: str) -> str:
    """The beginning of a test function."""
    path, _, rest = name.partition("::")
    wanted = rest.partition("[")[0].split("::")[-1]
    text = (base / path).read_bytes().decode("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == wanted:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = text.splitlines()[first - 1 : node.end_lineno]
            return "\n".join(lines[:MOST_LINES])
    return "(not a function of this file)"


def shown(task: RepoTask, base: Path) -> Iterator[str]:
    """What a reader needs."""
    yield f"##### {task.id} ({task.kind} {task.symbol}, {task.detail})"
    yield task.statement
    for path, texts in task.removed.items():
        yield f"--- removed from {path}"
        yield from texts
    names = {False: set[str](), True: set[str]()}
    for test in task.must_pass:
        names[test in task.held_out].add(test.partition("[")[0])
    for hidden, title in ((False, "tests"), (True, "tests held out")):
        yield f"--- {title}: {len(names[hidden])}"
        yield from (test_code(base, name) for name in sorted(names[hidden])[:3])


def main() -> int:
    """Draw and print."""
    parser = argparse.ArgumentParser(description="Print statements to be read.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with PlayableTasks(options.folder) as playable:
        for task in drawn(playable.tasks, count=options.count, seed=options.seed):
            base = playable.repository(task).checkout.folder
            print("\n".join(shown(task, base)), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
