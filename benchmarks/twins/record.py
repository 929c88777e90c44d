"""Sessions of the twins as Claude Code logs, of the student or of the scripted player.

record_twins(model, renderer=renderer, seed=11, num_each=48, folder=Path("logs"))
write_scripted(Path("logs"), seed=11, num_each=4)      # every mistake that is possible is made
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from composer_replication.core.trace import Segment, Session, SourceRef, Turn
from composer_replication.data.ingestion.claude_code_writer import write_claude_code
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.record_episodes import write_episode
from composer_replication.workshop.recorded_task import to_log_session

from .players import by_habit, right
from .world import KINDS, TOOLS, TwinEnv, TwinTask, make_twin

AUTHOR = "twin-student"


def twin_tasks(seed: int, num_each: int) -> Iterator[TwinTask]:
    """Training tasks of every kind, as many of each."""
    for number in range(num_each):
        for kind in KINDS:
            yield make_twin(f"{seed}-{number}", kind=kind, split="train")


def record_twins(
    model: Any, *, renderer: Renderer, seed: int, num_each: int, folder: Path
) -> dict[str, int]:
    """Play training tasks with the student and write each episode as a log; returns how many were
    written, and how many were left out by reason. Those with a call that a tool refused are left
    out: what is trained on is what no tool reports."""
    tasks = list(twin_tasks(seed, num_each))
    settings = Sampling(max_new_tokens=64, max_context_tokens=1024, batch_episodes=64, seed=seed)
    envs = [TwinEnv(task, person=True) for task in tasks]
    rollouts = sample_rollouts(
        model,
        envs,
        renderer=renderer,
        settings=settings,
        author=AUTHOR,
        label=f"twins-{seed}:",
    )
    counts: Counter[str] = Counter()
    for task, env, rollout in zip(tasks, envs, rollouts, strict=True):
        if env.failed:
            counts["refused_call"] += 1
            continue
        session = log_session(rollout.session, task)
        written = write_episode(rollout, session, folder=folder, renderer=renderer)
        counts["logs" if isinstance(written, Path) else written] += 1
    return dict(counts)


def log_session(session: Session, task: TwinTask) -> Session:
    """The session of an episode as a log can hold it, in a folder of its own."""
    named = to_log_session(session, seed=task.id, split="train")
    return dataclasses.replace(named, cwd=f"/twins/{task.id}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A log of the scripted player, its task, and the turn at which it followed its habit although
    that was a mistake, with what would have been right there; None = the habit was right."""

    path: Path
    task: TwinTask
    mistake: int | None
    right: Turn | None


def write_scripted(folder: Path, *, seed: int, num_each: int) -> list[Scripted]:
    """Logs of the scripted player, which follows its habit wherever it can."""
    logs: list[Scripted] = []
    for task in twin_tasks(seed, num_each):
        env, mistake, wanted = TwinEnv(task, person=True), None, None
        turns = list(env.open().turns)
        while not env.done:
            mistaken = by_habit(env)
            if mistaken is not None:
                mistake, wanted = len(turns), right(env)
            turns.append(mistaken or right(env))
            turns.extend(env.reply(turns[-1]).turns)
        session = Session(
            id=task.id,
            source=SourceRef(file=task.id, format="workshop"),
            turns=tuple(turns),
            segments=(Segment(start=0, end=len(turns)),),
            tools=TOOLS,
            tools_origin="log",
        )
        path = write_claude_code(log_session(session, task), folder)
        logs.append(Scripted(path=path, task=task, mistake=mistake, right=wanted))
    return logs
