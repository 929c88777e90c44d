"""A tiny student with random weights, scripted players, and run folders that hold only the judge's
inputs."""

from __future__ import annotations

import random
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from composer_replication.core.config.rollout_settings import EvaluateSettings, RolloutSettings
from composer_replication.core.config.root import Config
from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.core.jsonl import write_json
from composer_replication.core.rundir import RunDir, create_run
from composer_replication.core.trace import Text, Turn
from composer_replication.evaluation.success import (
    LABEL,
    EpisodeResult,
    episode_result,
    evaluation_tasks,
)
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.pretrained_folder import save_student, weights_sha256
from composer_replication.rollouts.task_source import TaskSource, UnseenTask
from composer_replication.tokens.tiny_tokenizer import train_tiny_tokenizer
from composer_replication.workshop.demonstrators import Habits, careless, oracle
from composer_replication.workshop.episodes import play
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, make_tasks
from composer_replication.workshop.workshop_env import WorkshopEnv
from composer_replication.workshop.workshop_tasks import METADATA

SETTINGS = EvaluateSettings(tasks=10, samples=200)
LIMITS = RolloutSettings(max_new_tokens=6, max_context_tokens=1024, batch_episodes=5)
WORDS = (
    "Set depth to 7 in main.py. Done. tool_call name arguments path Read Edit Test List Search Run"
    " the tests"
)


@cache
def tokenizer() -> Any:
    """Small and always the same."""
    source = Path(__file__).read_text("utf-8")
    return train_tiny_tokenizer([WORDS, source], vocab_size=2048)


def student(*, seed: int = 7) -> Student:
    """The start of every run here; the tiny student's weights follow from the seed."""
    return load_student(Config().student, tokenizer=tokenizer(), seed=seed)


def a_run(
    work: Path,
    name: str,
    *,
    shift: float = 0.05,
    steps: int = 2,
    placebo: tuple[str, ...] = (),
    seed: int = 7,
) -> RunDir:
    """A run folder with one checkpoint: the start's weights, moved a little."""
    config = Config(
        seed=seed, train=TrainSettings.model_validate({"placebo": placebo}), rollouts=LIMITS
    )
    run = create_run(
        work / "runs",
        resolved=config.model_dump(mode="json"),
        command="recompose train",
        seed=seed,
        name=name,
    )
    trained = student(seed=seed)
    start = weights_sha256(trained.model)
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.add_(
                shift * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
            )
    save_student(trained, run.checkpoint(steps))
    write_json(
        run.checkpoint(steps) / "trainer.json", {"schema": 1, "step": steps, "start_sha256": start}
    )
    return run


def unseen_task(task: Task, sandbox: Sandbox, *, make: Any = WorkshopEnv) -> UnseenTask:
    """A task of the workshop as the judge gets it."""
    return UnseenTask(
        id=task.id, kind=task.kind, split=task.split, make=partial(make, task, sandbox=sandbox)
    )


def source_in(sandbox: Sandbox, *, make: Any = WorkshopEnv) -> TaskSource:
    """The workshop's unseen tasks in one sandbox for all tests; `make` makes their environments."""

    def unseen(seed: int, count: int, split: Any) -> list[UnseenTask]:
        tasks = make_tasks(count, seed=seed, split=split)
        return [unseen_task(task, sandbox, make=make) for task in tasks]

    return TaskSource(
        name="workshop",
        train=lambda seed: iter(()),
        monitor=lambda seed, count: [],
        unseen=unseen,
        metadata=METADATA,
    )


def played_by(
    player: Any, sandbox: Sandbox, *, tasks: int = 40, seed: int = 1, split: str = "heldout"
) -> list[EpisodeResult]:
    """The episodes of a scripted player on the tasks of a seed."""
    settings = EvaluateSettings.model_validate({"tasks": tasks, "split": split})
    source, episodes = source_in(sandbox), list[EpisodeResult]()
    for task in evaluation_tasks(settings, seed=seed, source=source):
        env: Any = task.make()
        session = play(env, player, session_id=f"{LABEL}{task.id}:0")
        episodes.append(episode_result(task, session, measures=env.measures(), ended="done"))
    return episodes


def solver(env: WorkshopEnv) -> Turn:
    """Makes no mistake."""
    return oracle(env)


def clumsy(**habits: float) -> Any:
    """Makes the mistakes of the given habits, always or never, and no others."""
    rng, chosen = (
        random.Random(0),
        Habits(
            **{**dict.fromkeys(("reader", "style", "repeat", "detour", "skip_test"), 0.0), **habits}
        ),
    )
    return lambda env: careless(env, rng, habits=chosen)


def silent(env: WorkshopEnv) -> Turn:
    """Claims at once that the task is done."""
    return Turn(role="assistant", author="silent", blocks=(Text("Done."),))
