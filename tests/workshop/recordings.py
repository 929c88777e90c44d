"""A student that plays as a scripted player would, recorded in the workshop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session, Turn
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.rollouts.sampler import Sampling
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.demonstrators import LEVELS, careless
from composer_replication.workshop.episodes import play
from composer_replication.workshop.record_episodes import Recording, record_logs
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, make_task
from composer_replication.workshop.workshop_env import WorkshopEnv
from tests.rollouts.small_world import Parrot, message_ids
from tests.tokens.students import renderer

STUDENT = "tiny-student"
SLACK = 3


def played_messages(
    tasks: list[Task], sandbox: Sandbox, *, level: int = 1
) -> Iterator[list[Turn | str]]:
    """The careless player's messages in an episode of each task, with the slack of a recording."""
    rng = random.Random(5)
    for task in tasks:
        session = play(
            WorkshopEnv(task, sandbox=sandbox, slack=SLACK),
            lambda env: careless(env, rng, habits=LEVELS[level].habits),
        )
        yield [turn for turn in session.turns if turn.role == "assistant"]


def tasks_of(seed: int, count: int) -> list[Task]:
    return [make_task(f"{seed}-{number}") for number in range(count)]


def record(
    folder: Path,
    sandbox: Sandbox,
    *,
    seed: int,
    messages: list[list[Turn | str]],
    render: Renderer | None = None,
) -> Recording:
    """Record a model that writes exactly these messages, one list an episode."""
    render = render or renderer("qwen3", "qwen3")
    model = Parrot(
        len(render.tokenizer), [message_ids(render, m) for episode in messages for m in episode]
    )
    settings = Sampling(max_context_tokens=4096, batch_episodes=1)
    return record_logs(
        model,
        renderer=render,
        settings=settings,
        seed=seed,
        num_sessions=len(messages),
        folder=folder,
        sandbox=sandbox,
        slack=SLACK,
        author=STUDENT,
    )


def ingested(*paths: Path) -> list[Session]:
    """The sessions of logs, as `recompose ingest` reads them."""
    return [
        session
        for result in ingest(find_logs(paths), redactor=Redactor())
        for session in result.sessions
    ]
