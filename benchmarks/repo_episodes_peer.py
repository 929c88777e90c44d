"""The same episodes through verifiers' local runtime: what they cost there, and what its way to
judge lets through.

    python scripts/run_backend.py verifiers            # makes .venv-verifiers
    python benchmarks/repo_episodes_peer.py --tasks recompose/tasks --count 18 --repeats 3

Each task is played twice by the scripted player that knows the answer (read, edit, run the tests,
done, judge): in our environment, and in verifiers' `SubprocessRuntime`, the one of its runtimes
that needs neither a container engine nor an account. There, as Harbor's task sets do, tests are put
back after the player and a script writes the reward by pytest's exit code. Then three players do
something else instead of the task. CPU is that of all processes and needs root. What our judge
learns from the original, once per task, is counted apart. Sides take turns, --repeats times.
Results go to benchmarks/results/repo_episodes_peer.json and into docs/tasks.md.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marked_part
from repo_episodes import cpu_clock

from composer_replication.core.trace import ToolCall
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.playing.scripted_solver import solve_episode, solving
from composer_replication.repositories.python.python_files import is_test
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.sandbox.tree_sandbox_child import REPO

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "repo_episodes_peer.json"
PAGE = ROOT / "docs" / "tasks.md"
BEGIN, END = "<!-- peer -->", "<!-- /peer -->"
PEER = ROOT / ".venv-verifiers" / "bin" / "python"

NAMES = {
    "answer": "knows the answer",
    "nothing": "does nothing",
    "exit": "`os._exit(0)` at import",
    "start-up file": "a `conftest.py` that passes every test",
}
PLAYERS = tuple(NAMES)
EXIT = "import os\nos._exit(0)\n"
CONFTEST = (
    "import pytest\n\n\n@pytest.hookimpl(hookwrapper=True)\n"
    "def pytest_runtest_makereport(item, call):\n"
    "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n"
)

CHILD = '''
import asyncio, base64, json, sys, time, resource
from pathlib import Path
from verifiers.v1.runtimes.subprocess import SubprocessConfig, SubprocessRuntime

async def play(episode):
    begun = time.perf_counter()
    runtime = SubprocessRuntime(SubprocessConfig())
    await runtime.start()
    try:
        for path, content in episode["tree"].items():
            await runtime.write(path, base64.b64decode(content))
        env = {"PYTHONPATH": str(runtime.workdir / episode["root"]) + ":" + episode["metadata"],
               "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "TZ": "UTC"}
        for path, text in episode["writes"].items():
            await runtime.run(["cat", path], env)
            await runtime.write(path, text.encode())
        if episode["command"]:
            await runtime.run(["sh", "-c", episode["command"]], env)
        for path, content in episode["tests"].items():
            await runtime.write(path, base64.b64decode(content))
        script = f"""{episode['judge']} && echo 1 > reward.txt || echo 0 > reward.txt"""
        await runtime.run(["sh", "-c", script], env)
        reward = float((await runtime.read("reward.txt")).decode())
    finally:
        await runtime.stop()
    return {"reward": reward, "wall_s": time.perf_counter() - begun}

def cpu():
    used = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)

rows = []
for line in open(sys.argv[1], encoding="utf-8"):
    before = cpu()
    row = asyncio.run(play(json.loads(line)))
    rows.append({**row, "cpu_s": cpu() - before})
print(json.dumps(rows))
'''


def added(task: RepoTask, player: str, *, base: Path) -> dict[str, str]:
    """The files that a player writes."""
    if player == "answer":
        return {path: (base / path).read_bytes().decode("utf-8") for path in task.paths}
    if player == "exit":
        changed = task.changed_files(base)
        return {path: _at_import(text) for path, text in changed.items()}
    return {"conftest.py": CONFTEST} if player == "start-up file" else {}


def _at_import(text: str) -> str:
    """Code that ends the process where a module is imported, behind its future imports."""
    return f"{text}\n{EXIT}"


def calls(task: RepoTask, player: str, *, base: Path) -> Iterator[list[ToolCall]]:
    """The player's messages in our environment."""
    if player == "answer":
        yield from solving(task, base=base)
        return
    for path, text in added(task, player, base=base).items():
        if player == "exit":
            yield [ToolCall("", "Read", {"file_path": f"{REPO}/{path}"})]
        yield [ToolCall("", "Write", {"file_path": f"{REPO}/{path}", "content": text})]
    yield []


def play_here(playable: PlayableTasks, tasks: list[RepoTask], player: str) -> dict[str, Any]:
    """Play every task in our environment."""
    rewards, begun = 0.0, time.perf_counter()
    for task in tasks:
        base = playable.repository(task).checkout.folder
        env = RepoEnv(task, playable, max_turns=40, command_s=60)
        rewards += solve_episode(env, calls(task, player, base=base)).outcome or 0.0
    return {"earned": rewards / len(tasks), "wall_s": (time.perf_counter() - begun) / len(tasks)}


def episode(playable: PlayableTasks, task: RepoTask, player: str) -> dict[str, Any]:
    """What the peer needs to play a task: the same tree, the same writes, the same tests."""
    repository = playable.repository(task)
    base, files = repository.checkout.folder, repository.checkout.files
    shown = playable.shown_files(task).files

    def content(path: str, *, original: bool) -> str:
        changed = path in shown and not original
        raw = shown[path].encode() if changed else (base / path).read_bytes()
        return base64.b64encode(raw).decode("ascii")

    python = repository.environment.program
    visible = [name for name in task.must_pass if name not in task.held_out][:6]
    ids = " ".join(f"'{n}'" for n in (*task.must_pass, *task.must_keep) if "'" not in n)
    # as in our sandbox, addresses are the same every time: ids of tests may depend on them
    run = f"setarch -R {python} -m pytest -q -p no:cacheprovider -o addopts="
    return {
        "tree": {path: content(path, original=False) for path in files},
        "root": repository.checkout.import_root,
        "metadata": str(repository.environment.metadata),
        "writes": added(task, player, base=base),
        "command": " ".join((run, *(f"'{n}'" for n in visible if "'" not in n)))
        if player == "answer"
        else "",
        "tests": {path: content(path, original=True) for path in files if is_test(path)},
        "judge": f"{run} {ids}",
    }


def play_there(playable: PlayableTasks, tasks: list[RepoTask], player: str) -> dict[str, Any]:
    """Play every task in verifiers' runtime."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as plan:
        for task in tasks:
            plan.write(json.dumps(episode(playable, task, player)) + "\n")
        plan.flush()
        done = subprocess.run(
            [PEER, "-c", CHILD, plan.name], check=True, capture_output=True, text=True
        )
    rows = json.loads(done.stdout.strip().splitlines()[-1])
    return {
        "earned": sum(row["reward"] for row in rows) / len(rows),
        "cpu_s": sum(row["cpu_s"] for row in rows) / len(rows),
        "wall_s": sum(row["wall_s"] for row in rows) / len(rows),
    }


def measure(
    folder: Path, count: int, *, repeats: int, clock: Callable[[], float]
) -> dict[str, Any]:
    """Both environments on the same tasks, by player."""
    rows: dict[str, list[dict[str, Any]]] = {player: [] for player in PLAYERS}
    with PlayableTasks(folder) as playable:
        step = max(1, len(playable.tasks) // count)
        tasks = list(playable.tasks[::step][:count])
        for task in {task.base: task for task in tasks}.values():
            playable.repository(task)  # copied once, for every episode of a run
        begun = clock()
        play_here(playable, tasks, "answer")
        first_s = (clock() - begun) / len(tasks)
        for player in PLAYERS * repeats:
            begun = clock()
            here = play_here(playable, tasks, player)
            here["cpu_s"] = (clock() - begun) / len(tasks)
            rows[player].append({"here": here, "verifiers": play_there(playable, tasks, player)})
            print(player, json.dumps(rows[player][-1]), flush=True)
    repositories = len({task.repository for task in tasks})
    return {"tasks": len(tasks), "repositories": repositories, "first_s": first_s, "rows": rows}


def render(results: dict[str, Any]) -> str:
    """The table of docs/tasks.md."""
    lines = [
        "| player | earned, ours | earned, verifiers | CPU s, ours | CPU s, verifiers"
        " | ratio: median (least - most) |",
        "|---|---|---|---|---|---|",
    ]
    for player, turns in results["rows"].items():
        here, there = ([turn[side] for turn in turns] for side in ("here", "verifiers"))
        ratios = [a["cpu_s"] / b["cpu_s"] for a, b in zip(here, there, strict=True)]
        cells = [f"{statistics.mean(t['earned'] for t in side):.0%}" for side in (here, there)]
        cells += [f"{statistics.median(t['cpu_s'] for t in s):.2f}" for s in (here, there)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
        lines.append(f"| {NAMES[player]} | {' | '.join(cells)} | {spread} |")
    first, later = results["first_s"], results["rows"]["answer"][0]["here"]["cpu_s"]
    lines += [
        "",
        f"{results['tasks']} tasks of {results['repositories']} packages,"
        f" {len(results['rows']['answer'])} times. The first episode of a task takes ours"
        f" {first - later:.1f} CPU s more, because the judge records what the original does.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="Play the same episodes in verifiers' runtime.")
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--count", type=int, default=18)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with cpu_clock() as clock:  # before the launcher of the rooms starts, which then is in it
        results = measure(options.tasks, options.count, repeats=options.repeats, clock=clock)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    marked_part.write(PAGE, BEGIN, END, render(results))
    print(render(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
