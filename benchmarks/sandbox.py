"""Time of one test run in the sandbox, beside a bare fork on the same machine, and of an episode.

    python benchmarks/sandbox.py [RUNS]

A run is: send the request, start the isolated child, import two files, evaluate one expression,
send the answer back. "wall" is how long the caller waits; "CPU" is what the worker and its children
use. If the machine is busy, read the CPU column: the wall clock then measures the other processes.
The goal is 2 ms a run. The script prints and judges nothing.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from resident import ended_children_cpu_s

from composer_replication.workshop.demonstrators import oracle
from composer_replication.workshop.episodes import play
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import make_tasks
from composer_replication.workshop.workshop_env import WorkshopEnv

FILES = {
    "main.py": "from other import base\ndef add(a, b):\n    return a + b + base\n",
    "other.py": "base = 1\n",
}
NUM_TASKS = 100


def time_runs(count: int) -> tuple[list[float], float]:
    """Wall seconds of each run, and CPU-seconds per run of worker and children, without the start
    of the worker."""
    before = ended_children_cpu_s()
    with Sandbox() as sandbox:
        sandbox.start()
    start_s = ended_children_cpu_s() - before
    walls: list[float] = []
    with Sandbox() as sandbox:
        sandbox.start()
        for _ in range(count):
            begun = time.perf_counter()
            run = sandbox.run(FILES, [("main.py", "add(2, 3)")])
            walls.append(time.perf_counter() - begun)
            if not run.answers[0].equals(6):
                raise SystemExit(f"wrong answer: {run}")
    return walls, (ended_children_cpu_s() - before - 2 * start_s) / count


def time_forks(count: int) -> list[float]:
    """Wall seconds of forks of this process that do nothing, for comparison."""
    walls: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        walls.append(time.perf_counter() - begun)
    return walls


def in_ms(seconds: list[float]) -> str:
    """Median and best of some wall times."""
    return (
        f"wall median {statistics.median(seconds) * 1e3:.2f} ms, best {min(seconds) * 1e3:.2f} ms"
    )


def main(count: int) -> None:
    """Measure and print."""
    with Sandbox() as sandbox:
        sandbox.start()
        for name, mechanism in sandbox.mechanisms.items():
            print(f"{name:12} {mechanism}")
        for name, why in sandbox.missing.items():
            print(f"{name:12} not in force: {why}")
    walls, cpu_s = time_runs(count)
    print(f"one run      {in_ms(walls)}; CPU {cpu_s * 1e3:.2f} ms ({count} runs)")
    print(f"bare fork    {in_ms(time_forks(count))}")
    with Sandbox() as sandbox:
        sandbox.start()
        tasks = make_tasks(NUM_TASKS, seed=0)
        begun, begun_cpu = time.perf_counter(), time.process_time()
        num_solved = sum(
            play(WorkshopEnv(task, sandbox=sandbox), oracle).outcome or 0.0 for task in tasks
        )
        wall, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    print(
        f"one episode  wall {wall / NUM_TASKS * 1e3:.2f} ms, of which Python outside the sandbox"
        f" {cpu / NUM_TASKS * 1e3:.2f} ms CPU"
    )
    print(f"             {num_solved:.0f} of {NUM_TASKS} solved by the oracle")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
