"""Episodes on tasks of repositories: what opening a tree costs, and what an episode does.

    python benchmarks/repo_episodes.py                          # opening alone
    python benchmarks/repo_episodes.py --tasks recompose/tasks --count 40
    python benchmarks/repo_episodes.py --tasks recompose/tasks --student smollm2

The tree that is opened has 410 files of together 9.4 MB. Beside it stand two ways to copy it to
the same kind of place. Episodes are those of a scripted player that knows the answer: read, edit,
run the tests, done, judged; one of a player that does nothing beside each; with --student, of one
that samples each message, one episode after the other. CPU is that of a control
group of processes, which needs root; without it only wall times are shown. Results go to
benchmarks/results/repo_episodes.json and into docs/tasks.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import marked_part

from composer_replication.core.config.student_settings import StudentSettings
from composer_replication.core.trace import ToolCall, Turn
from composer_replication.models.load_student import load_student
from composer_replication.repositories.judging.judge_room import JUDGE_CACHE
from composer_replication.repositories.playing.playable import PlayableTasks
from composer_replication.repositories.playing.repo_env import RepoEnv
from composer_replication.repositories.playing.scripted_solver import solve_episode, solving
from composer_replication.repositories.sandbox.episode_tree import EpisodeTree, prepared_tree
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.sampling import EpisodeLimits, Sampling
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "repo_episodes.json"
PAGE = ROOT / "docs" / "tasks.md"
BEGIN, END = "<!-- episodes -->", "<!-- /episodes -->"
FILES, MEGABYTES = 410, 9.4
TURNS = 8
"""So many messages a sampled episode may have."""
GROUP = Path("/sys/fs/cgroup/cpuacct")
PARTS = ("sandbox", "tools", "tests", "judge")


@contextlib.contextmanager
def cpu_clock() -> Iterator[Callable[[], float]]:
    """CPU seconds of this process and all that it starts from here on; NaN where that cannot be
    measured."""
    group = GROUP / f"episodes-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    except OSError:
        yield lambda: float("nan")
        return
    try:
        yield lambda: int((group / "cpuacct.usage").read_text(encoding="ascii")) / 1e9
    finally:
        for process in (group / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(OSError):
                (GROUP / "cgroup.procs").write_text(process, encoding="ascii")
        with contextlib.suppress(OSError):
            group.rmdir()


def make_tree(folder: Path) -> Path:
    """A tree of the size of a small repository, the same every time."""
    generator = random.Random(0)
    for number in range(FILES):
        file = folder / f"package{number % 20}" / f"part{number % 3}" / f"module{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        size = int(MEGABYTES * 2**20 / FILES)
        file.write_text(generator.randbytes(size // 2).hex(), encoding="ascii")
    return folder


def time_opening(count: int) -> dict[str, dict[str, float]]:
    """Milliseconds to open a tree that a player may change, by way."""
    sandbox = TreeSandbox()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory(dir=memory) as place,
        prepared_tree(make_tree(Path(scratch) / "tree")) as prepared,
    ):
        target = Path(place) / "copy"
        ways: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
            "overlay, in the sandbox": (
                lambda: EpisodeTree(sandbox, prepared),
                lambda tree: tree.close(),
            ),
            "copy, in the sandbox": (
                lambda: EpisodeTree(sandbox, prepared, overlay=False),
                lambda tree: tree.close(),
            ),
            "`cp -a`, no sandbox": (
                lambda: subprocess.run(["cp", "-a", prepared.folder, target], check=True),
                lambda _: shutil.rmtree(target),
            ),
            "`shutil.copytree`, no sandbox": (
                lambda: shutil.copytree(prepared.folder, target),
                lambda _: shutil.rmtree(target),
            ),
        }
        rows: dict[str, dict[str, float]] = {}
        for name, (make, drop) in ways.items():
            drop(make())
            walls: list[float] = []
            for _ in range(count):
                begun = time.perf_counter()
                made = make()
                walls.append(1000 * (time.perf_counter() - begun))
                drop(made)
            rows[name] = {"median": statistics.median(walls), "least": min(walls)}
            print(f"{name:32} {rows[name]['median']:7.1f} ms, least {rows[name]['least']:.1f}")
    return rows


class Parts:
    """Seconds of CPU and of the wall clock by part of an episode."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.cpu = dict.fromkeys(PARTS, 0.0)
        self.wall = dict.fromkeys(PARTS, 0.0)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what the block costs."""
        cpu, wall = self._clock(), time.perf_counter()
        yield
        self.cpu[name] += self._clock() - cpu
        self.wall[name] += time.perf_counter() - wall


def play_solved(env: RepoEnv, messages: Iterator[list[ToolCall]], parts: Parts) -> float:
    """Play an episode, with its costs by part; the reward."""
    with parts.part("sandbox"):
        env.open()
    for number, calls in enumerate(messages):
        named = tuple(ToolCall(f"c{number}", call.name, call.arguments) for call in calls)
        part = "sandbox" if not calls else "tests" if calls[0].name == "Bash" else "tools"
        with parts.part(part):
            env.reply(Turn(role="assistant", author="scripted", blocks=named))
    with parts.part("judge"):
        reward = env.reward()
    with parts.part("sandbox"):
        env.close()
    return reward


def play_sampled(folder: Path, count: int, *, student: Path, template: str) -> dict[str, Any]:
    """The wall time of a student's episodes by part, and what they came to."""
    tokenizer = load_tokenizer(str(student))
    model = load_student(StudentSettings(model=str(student)), tokenizer=tokenizer, seed=0).model
    settings = Sampling(
        max_new_tokens=160,
        max_context_tokens=4096,
        batch_episodes=1,
        limits=EpisodeLimits(max_turns=TURNS),
    )
    stats = SamplingStats()
    with PlayableTasks(folder) as playable:
        step = max(1, len(playable.tasks) // count)
        tasks = playable.tasks[::step][:count]
        for task in {task.base: task for task in tasks}.values():
            playable.repository(task)
        envs = [RepoEnv(task, playable, max_turns=TURNS, command_s=60) for task in tasks]
        rollouts = sample_rollouts(
            model,
            envs,
            renderer=Renderer.for_tokenizer(tokenizer, family=template),
            settings=settings,
            author=student.name,
            stats=stats,
        )
    total = stats.seconds["total"]
    seconds = {"sampling": sum(stats.seconds[part] for part in ("model", "choose", "render"))}
    for name in ("open", "tools", "judge"):
        seconds[name] = sum(env.spent_s[name] for env in envs)
    return {
        "student": student.name,
        "episodes": len(rollouts),
        "solved": sum(rollout.reward or 0.0 for rollout in rollouts) / len(rollouts),
        "judged": sum(env.spent_s["judge"] > 0 for env in envs),
        "turns": stats.num_turns / len(rollouts),
        "sampled_tokens": stats.num_sampled / len(rollouts),
        "read_tokens": stats.num_fed / len(rollouts),
        "wall_s": total / len(rollouts),
        "shares": {name: spent / total for name, spent in seconds.items()},
    }


def play_tasks(folder: Path, count: int, *, clock: Callable[[], float]) -> dict[str, Any]:
    """Solve some tasks of a folder, spread over it, and do nothing on the same.

    They are solved twice: the first time the judge records what the original does, once for a task
    (what it kept of earlier runs is removed); most episodes of a training run are of the others.
    """
    shutil.rmtree(folder / JUDGE_CACHE, ignore_errors=True)
    with PlayableTasks(folder) as playable:
        step = max(1, len(playable.tasks) // count)
        tasks = playable.tasks[::step][:count]
        for task in {task.base: task for task in tasks}.values():
            playable.repository(task)  # copied once, for every episode of a run
        recording, parts, solved, idle = Parts(clock), Parts(clock), 0.0, 0.0
        unsolved: list[str] = []
        still_visible = 0
        for task in tasks:
            base = playable.repository(task).checkout.folder
            for costs in (recording, parts):
                env = RepoEnv(task, playable, max_turns=40, command_s=60)
                reward = play_solved(env, solving(task, base=base), costs)
            solved += reward
            unsolved += [] if reward else [f"{task.id}: {env.earned.reason}"]
            still_visible += len(playable.shown_files(task).visible)
        for task in tasks:
            env = RepoEnv(task, playable, max_turns=40, command_s=60)
            idle += solve_episode(env, [[]]).outcome or 0.0
    cpu, first_cpu = sum(parts.cpu.values()), sum(recording.cpu.values())
    shares = parts.cpu if cpu == cpu else parts.wall
    total = sum(shares.values())
    return {
        "episodes": len(tasks),
        "repositories": len({task.repository for task in tasks}),
        "solved": solved / len(tasks),
        "idle": idle / len(tasks),
        "unsolved": unsolved,
        "held_out_in_sight": still_visible,
        "cpu_s": cpu / len(tasks),
        "first_cpu_s": first_cpu / len(tasks),
        "wall_s": sum(parts.wall.values()) / len(tasks),
        "per_cpu_minute": 60 * len(tasks) / cpu,
        "shares": {name: seconds / total for name, seconds in shares.items()},
    }


def render(results: dict[str, Any]) -> str:
    """The tables of docs/tasks.md."""
    lines = ["| opening a tree of 410 files, 9.4 MB | median ms | least ms |", "|---|---|---|"]
    for name, row in results["opening"].items():
        lines.append(f"| {name} | {row['median']:.0f} | {row['least']:.0f} |")
    if played := results.get("episodes"):
        shares = ", ".join(f"{name} {share:.0%}" for name, share in played["shares"].items())
        lines += [
            "",
            f"{played['episodes']} tasks of {played['repositories']} packages: a player that knows"
            f" the answer earned {played['solved']:.0%}, one that does nothing"
            f" {played['idle']:.0%}. An episode (read, edit, tests, done, judge) took"
            f" {played['cpu_s']:.2f} CPU s ({played['per_cpu_minute']:.0f} per CPU-minute):"
            f" {shares}. The first episode of a task took {played['first_cpu_s']:.2f} CPU s,"
            " because the judge records what the original does.",
        ]
    if sampled := results.get("sampled"):
        shares = ", ".join(f"{name} {share:.1%}" for name, share in sampled["shares"].items())
        lines += [
            "",
            f"{sampled['student']} also played {sampled['episodes']} of these tasks on one core,"
            f" one episode after the other. Per episode: {sampled['turns']:.1f} messages,"
            f" {sampled['read_tokens']:.0f} tokens read, {sampled['sampled_tokens']:.0f} sampled."
            f" {sampled['judged']} episodes finished and were judged; {sampled['solved']:.0%}"
            f" earned. An episode took {sampled['wall_s']:.0f} s: {shares}.",
        ]
    return "\n".join(lines)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--openings", type=int, default=30)
    parser.add_argument("--student", type=Path)
    parser.add_argument("--template", default="chatml-tools")
    parser.add_argument("--sampled", type=int, default=12)
    options = parser.parse_args()
    with cpu_clock() as clock:  # before the launcher of the rooms starts, which then is in it
        results: dict[str, Any] = {"opening": time_opening(options.openings)}
        if options.tasks is not None:
            played = play_tasks(options.tasks, options.count, clock=clock)
            results["episodes"] = played
            print(json.dumps(played, indent=1))
    if options.tasks is not None and options.student is not None:
        results["sampled"] = play_sampled(
            options.tasks, options.sampled, student=options.student, template=options.template
        )
        print(json.dumps(results["sampled"], indent=1))
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    results = kept | results
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    marked_part.write(PAGE, BEGIN, END, render(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
