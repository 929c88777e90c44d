"""The students that are judged: a run's newest checkpoint, and the student that it started from.

    after = player_of(open_run(path), name="after")
    before = start_of(after)
    results = play_all([before, after], settings=config.evaluate, limits=config.rollouts, seed=seed)
    results[0].name, results[0].weights_sha256, results[0].episodes[0].reward

Everything is read from the run's files: the judge does not import the trainer. A run that is not a
valid placebo is refused: it nulls no signal, began from another student, was trained for another
number of steps, or has the same weights as the run with which it is compared.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from composer_replication.core.checkpoints import read_trainer, whole_checkpoint
from composer_replication.core.config.rollout_settings import (
    DEFAULT_ENV,
    EvaluateSettings,
    RolloutSettings,
)
from composer_replication.core.config.root import Config
from composer_replication.core.errors import DataError
from composer_replication.core.rundir import RunDir
from composer_replication.evaluation.success import EpisodeResult, play_tasks
from composer_replication.evaluation.table import AFTER, BEFORE, PLACEBO
from composer_replication.models.load_student import Student, load_student
from composer_replication.models.pretrained_folder import load_weights, weights_sha256
from composer_replication.rollouts.task_history import TaskHistory
from composer_replication.rollouts.task_source import open_world
from composer_replication.tokens.hf import load_tokenizer
from composer_replication.tokens.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """One student by its files: a checkpoint, or the run's start if `steps` is 0.

    `config` holds the settings of the run.
    """

    name: str
    config: Config
    checkpoint: Path
    steps: int
    start_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerEpisodes:
    """The episodes of one student, and the hash of its weights."""

    name: str
    weights_sha256: str
    episodes: tuple[EpisodeResult, ...]


class _ShownRow(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def weights_sha256(self) -> str: ...


Row = TypeVar("Row", bound=_ShownRow)


def player_of(run: RunDir, *, name: str, step: int | None = None) -> Player:
    """The student of a run's newest checkpoint, or of the one after `step` steps.

    Raises DataError if the run kept no such checkpoint, DamagedError if a checksum does not match.
    """
    steps, folder = whole_checkpoint(run, step)
    start_sha256 = str(read_trainer(folder).get("start_sha256", ""))
    if not start_sha256:
        raise DataError(
            "the checkpoint does not name the student that it started from",
            where=str(folder),
            fix="train again",
        )
    return Player(
        name=name,
        config=Config.model_validate(run.resolved()),
        checkpoint=folder,
        steps=steps,
        start_sha256=start_sha256,
    )


def start_of(player: Player) -> Player:
    """The student with which a run began."""
    return replace(player, name=BEFORE, steps=0)


def check_players(after: Player, others: Sequence[Player]) -> list[str]:
    """Notes for the table on runs that differ; raises DataError for incomparable rows."""
    notes: list[str] = []
    names = [BEFORE, AFTER, *(player.name for player in others)]
    for player in others:
        where = f"{player.name} = {player.checkpoint.parent.parent}"
        if names.count(player.name) > 1:
            raise DataError(
                f"two rows are named {player.name!r}",
                where=where,
                fix="give each run a different name",
            )
        if player.start_sha256 != after.start_sha256:
            raise DataError(
                "that run started from another student",
                where=where,
                fix="train it from the same student and seed",
            )
        nulled = player.config.train.placebo
        # A run that is named a placebo but nulls nothing would be a false control.
        if PLACEBO in player.name:
            if not nulled:
                raise DataError(
                    "this placebo nulls no signal", where=where, fix="train it with train.placebo"
                )
            if player.steps != after.steps:
                problem = f"a placebo of {player.steps} steps, the run has {after.steps}"
                raise DataError(problem, where=where, fix="train both for the same number of steps")
        elif player.steps != after.steps:
            notes.append(
                f"{player.name} was trained for {player.steps} steps, {AFTER} for {after.steps}."
            )
        if nulled:
            notes.append(f"{player.name}: signals nulled: {', '.join(nulled)}.")
    if after.config.train.placebo:
        notes.append(
            f"{AFTER} is itself a placebo: signals nulled: {', '.join(after.config.train.placebo)}."
        )
    return notes


def check_never_trained(players: Sequence[Player], task_ids: Collection[str]) -> None:
    """Raise DataError if a task of the evaluation was played while one of the runs trained.

    Runs whose tasks are drawn by success keep what they played in curriculum.jsonl.
    """
    for player in players:
        run = RunDir(player.checkpoint.parent.parent)
        if trained := sorted(TaskHistory(run.curriculum_jsonl).task_ids & set(task_ids)):
            raise DataError(
                f"{player.name} was trained on {trained[0]}, one of the {len(trained)} such tasks"
                " of this evaluation",
                where=str(run.curriculum_jsonl),
                fix="hold out the same repositories in every run: rollouts.repo.held_out",
            )


def play_all(
    players: Sequence[Player],
    *,
    settings: EvaluateSettings,
    limits: RolloutSettings,
    seed: int,
    env: str = DEFAULT_ENV,
    world: RolloutSettings | None = None,
    on_played: Callable[[PlayerEpisodes], None] = lambda shown: None,
) -> list[PlayerEpisodes]:
    """Let every player play the same tasks of `env`, `settings.workers` players at a time.

    `world` are the settings with which the tasks are opened, `limits` bound the episodes. The
    episodes do not depend on the number of workers. Raises DataError if a start student has
    changed since its run began, or if two players have the same weights.
    """
    play = partial(play_one, settings=settings, limits=limits, seed=seed, env=env, world=world)
    return play_distinct(play, players, workers=settings.workers, on_played=on_played)


def play_distinct(
    play: Callable[[Player], Row],
    players: Sequence[Player],
    *,
    workers: int,
    on_played: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """The results of `play` for every player, in order; raises DataError for equal weights."""
    results: list[Row] = []
    for result in _map_players(play, players, workers=min(workers, len(players))):
        twin = next(
            (earlier for earlier in results if earlier.weights_sha256 == result.weights_sha256),
            None,
        )
        if twin is not None:
            problem = f"{result.name!r} and {twin.name!r} are the same student, weight by weight"
            raise DataError(
                problem,
                fix="give another run: comparing a student with itself shows nothing",
            )
        results.append(result)
        on_played(result)
    return results


def load_player(player: Player) -> tuple[Student, Renderer]:
    """One student from its files; raises DataError if its start has changed since the run began."""
    settings = player.config.student
    tokenizer = load_tokenizer(str(player.checkpoint))
    student = load_student(settings, tokenizer=tokenizer, seed=player.config.seed)
    # Before the checkpoint is loaded: an adapter holds no trace of the start that it is added to.
    if weights_sha256(student.model) != player.start_sha256:
        problem = "the run started from other weights than those that are loaded now"
        raise DataError(
            problem, where=settings.model, fix="put the start weights back, or train again"
        )
    if player.steps:
        load_weights(student, player.checkpoint)
    return student, Renderer.for_tokenizer(tokenizer, family=settings.template)


def play_one(
    player: Player,
    *,
    settings: EvaluateSettings,
    limits: RolloutSettings,
    seed: int,
    env: str = DEFAULT_ENV,
    world: RolloutSettings | None = None,
) -> PlayerEpisodes:
    """Load one student from its files and play it; no result is cached between calls."""
    student, renderer = load_player(player)
    with open_world(env, settings=world) as source:
        episodes = play_tasks(
            student.model,
            renderer=renderer,
            settings=settings,
            limits=limits,
            seed=seed,
            source=source,
            author=player.name,
        )
    return PlayerEpisodes(
        name=player.name, weights_sha256=weights_sha256(student.model), episodes=tuple(episodes)
    )


def _map_players(
    play: Callable[[Player], Row], players: Sequence[Player], *, workers: int
) -> Iterator[Row]:
    if workers == 1:
        yield from map(play, players)
        return
    # Spawn, not fork: a fork of a process that has used PyTorch's threads may hang.
    # Ctrl-C kills the workers at once: otherwise each of them would print a traceback.
    at_ctrl_c = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_DFL)}
    with ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), **at_ctrl_c
    ) as pool:
        yield from pool.map(play, players)
