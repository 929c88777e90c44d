"""What the actors of `train.backend = "monarch"` do: train, sample, hold environments. Nothing here
imports Monarch; monarch_actors.py makes actors of it, and tests call it as it is.

    trainer      one rank of the reference loop: setup, step, checkpoints and files are its own
    generator    a student that only samples, with the weights it was given last
    host         environments by number, for generators in other processes

Every rollout is a function of the settings, the step, the task and the weights, as in the reference
loop: the same task played again, by another generator, gives the same ids on the same machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from composer_replication.core.config.root import Config
from composer_replication.core.errors import ComposerError, DataError
from composer_replication.core.rundir import open_run
from composer_replication.core.trace import Turn
from composer_replication.models.load_student import Student
from composer_replication.rollouts.call_pool import CallPool, PooledCall
from composer_replication.rollouts.envs.env import Env, MakeEnv, Opening, Reply, runs_in
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.groups import Groups
from composer_replication.rollouts.sampler import sample_rollouts
from composer_replication.rollouts.task_source import TaskSource, open_world
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.tokens.renderer import Renderer
from composer_replication.training.draws.forked import AUTHOR
from composer_replication.training.inputs import prepare_data
from composer_replication.training.loop import probe_end, take_step
from composer_replication.training.on_policy.live import RolloutSource, live_seed, message_sampling
from composer_replication.training.setup import TrainSetup, open_training

Ask = Callable[..., Any]
"""Asks an environment host: ask("make", step, index), ask("call", number, "reply", turn)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What every actor of a run builds its part from; it travels to their processes.

    `make_student` gives the student at the start of the run, the same one every time.
    """

    config: Config
    make_student: Callable[[], Student]
    make_renderer: Callable[[Student], Renderer]
    open_tasks: Callable[[], AbstractContextManager[TaskSource]]

    @classmethod
    def of(cls, config: Config, *, make_student: Callable[[], Student]) -> Self:
        """The parts of a run with these settings."""
        return cls(
            config=config,
            make_student=make_student,
            make_renderer=partial(_renderer, family=config.student.template),
            open_tasks=partial(open_world, config.rollouts.env, settings=config.rollouts),
        )


def _renderer(student: Student, *, family: str) -> Renderer:
    return Renderer.for_tokenizer(student.tokenizer, family=family)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLaunch:
    """What a trainer needs beside the parts: the run's folder, imported data, and how it starts."""

    run: Path
    examples: tuple[TrainingExample, ...] = ()
    pairs: tuple[PreferencePair, ...] = ()
    kept_kinds: frozenset[str] | None = None
    reference: Path | None = None
    resume: bool = False
    resume_step: int | None = None
    accept_changes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReport:
    """What a trainer tells the controller after a call: its lines and events, how many steps it
    has taken, and the error of this package that ended it."""

    steps: int
    metrics: Mapping[str, Any]
    lines: tuple[Mapping[str, Any], ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    error: ComposerError | None = None


Note = tuple[str, Mapping[str, Any]]
"""An event that the controller has for the run's log: its kind and its facts."""


class TrainerWorker:
    """One rank of the reference loop, step by step."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._setup: TrainSetup | None = None
        self._steps, self._metrics = 0, {}
        self._lines: list[Mapping[str, Any]] = []
        self._events: list[Mapping[str, Any]] = []

    def begin(self, parts: RunParts, launch: TrainerLaunch) -> TrainerReport:
        """Build the loop's setup in this process, and load the checkpoint to resume from."""
        return self._guarded(partial(self._open, parts, launch))

    def step(self, step: int, sampled: Groups, notes: Sequence[Note] = ()) -> TrainerReport:
        """One step of the loop on these rollouts, with its checkpoint."""
        return self._guarded(partial(self._take, step, sampled, notes))

    def weights(self) -> dict[str, Tensor]:
        """A copy of the trainable weights of now, by name, in host memory."""
        model = self._opened.trainer.models.student.model
        return {
            name: p.detach().to("cpu", copy=True)
            for name, p in model.named_parameters()
            if p.requires_grad
        }

    def end(self, notes: Sequence[Note] = ()) -> TrainerReport:
        """Close the run as done; without a setup it was closed before."""
        return self._guarded(partial(self._close, notes))

    @property
    def _opened(self) -> TrainSetup:
        if self._setup is None:
            raise DataError("the trainer was not begun, or has ended")
        return self._setup

    def _open(self, parts: RunParts, launch: TrainerLaunch) -> None:
        config, student = parts.config, parts.make_student()
        tasks = self._stack.enter_context(parts.open_tasks())
        live = RolloutSource(
            config=config,
            renderer=parts.make_renderer(student),
            task_source=tasks,
            kept_kinds=launch.kept_kinds,
        )
        data = prepare_data(
            config, examples=launch.examples, pairs=launch.pairs, live=live, forked=None
        )
        self._setup = self._stack.enter_context(
            open_training(
                config,
                student=student,
                data=data,
                run=open_run(launch.run),
                live=live,
                forked=None,
                reference_folder=launch.reference,
                resume=launch.resume,
                resume_step=launch.resume_step,
                accept_changes=launch.accept_changes,
                on_step=self._lines.append,
                on_event=self._events.append,
                on_progress=None,
            )
        )
        self._steps, self._metrics = self._setup.first_step, self._setup.last_metrics
        probe_end(self._setup, steps=self._steps)

    def _take(self, step: int, sampled: Groups, notes: Sequence[Note]) -> None:
        self._write(notes)
        self._metrics, _ = take_step(self._opened, step=step, sampled=sampled)
        self._steps = step + 1

    def _close(self, notes: Sequence[Note]) -> None:
        if self._setup is not None:
            self._write(notes)
            self._setup = None
            self._stack.close()

    def _write(self, notes: Sequence[Note]) -> None:
        for kind, facts in notes:
            self._opened.run_logger.event(kind, **facts)

    def _guarded(self, call: Callable[[], None]) -> TrainerReport:
        """Call, and tell what came of it; an error closes the run in its way, and one of this
        package is report, not raised."""
        error = None
        try:
            call()
        except BaseException as raised:
            self._fail(raised)
            if not isinstance(raised, ComposerError):
                raise
            error = raised
        lines, self._lines[:] = tuple(self._lines), []
        events, self._events[:] = tuple(self._events), []
        return TrainerReport(
            steps=self._steps, metrics=self._metrics, lines=lines, events=events, error=error
        )

    def _fail(self, error: BaseException) -> None:
        """Close the run as ended by this error."""
        stack, self._stack, self._setup = self._stack, ExitStack(), None
        try:
            stack.__exit__(type(error), error, error.__traceback__)
        except BaseException as again:  # the error itself comes back out of the run's block
            if again is not error:
                raise


class GeneratorWorker:
    """A student that samples; `version` is how many steps its weights have taken, -1 = none were
    given yet."""

    def __init__(self, parts: RunParts, *, device: str = "cpu") -> None:
        self.config, self.version = parts.config, -1
        student = parts.make_student()
        self.renderer = parts.make_renderer(student)
        self.model = student.model.to(device).eval().requires_grad_(False)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], version: int) -> int:
        """Take newer weights; raises DataError for older ones, or for those of another student."""
        if version <= self.version:
            raise DataError(f"weights of version {version} after those of version {self.version}")
        parameters = dict(self.model.named_parameters())
        if strange := sorted(weights.keys() - parameters.keys()):
            raise DataError(f"weights of another student: {strange[0]}")
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)
        self.version = version
        return version

    def play(self, share: Share, ask: Ask) -> list[Rollout]:
        """The rollouts of a share of a step, in their order; `ask` reaches the environments."""
        if share.version != self.version:
            problem = f"version {share.version} was asked for, the weights are {self.version}"
            raise DataError(f"{problem} steps old")
        envs = [
            RemoteEnv(ask, step=share.step, index=index)
            for index in share.indices
            for _ in range(self.config.rollouts.group_size)
        ]
        return sample_rollouts(
            self.model,
            envs,
            renderer=self.renderer,
            settings=self._sampling(len(envs)),
            author=AUTHOR,
            label=share.label,
            version=self.version,
        )

    def _sampling(self, num_envs: int) -> Any:
        """The run's sampling; the host bounds each answer, and answers one after the other."""
        sampling = message_sampling(self.config)
        limits = sampling.limits
        patient = replace(limits, tool_timeout_s=limits.tool_timeout_s * (num_envs + 1))
        return replace(sampling, limits=patient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a step's rollouts that one generator plays: whole groups, by the numbers of their
    tasks."""

    step: int
    version: int
    label: str
    indices: tuple[int, ...]


class RemoteEnv:
    """An environment (Env) that lives in a host; each method asks it."""

    runs_in = "any_thread"

    def __init__(self, ask: Ask, *, step: int, index: int) -> None:
        self._ask = ask
        self._number, self.task_id, self.max_turns = ask("make", step, index)

    def open(self) -> Opening:
        """The first messages and the tools."""
        return self._ask("call", self._number, "open")

    def reply(self, turn: Turn) -> Reply:
        """The answer to one message of the student."""
        return self._ask("call", self._number, "reply", turn)

    def reward(self) -> float:
        """The reward of the episode."""
        return self._ask("call", self._number, "reward")

    def measures(self) -> Mapping[str, float]:
        """What the environment counted."""
        return self._ask("call", self._number, "measures")

    def close(self) -> None:
        """Free what the episode holds."""
        self._ask("call", self._number, "close")


@dataclass(slots=True, kw_only=True)
class _TasksOfStep:
    """The tasks of a step that were drawn so far."""

    step: int
    stream: Iterator[MakeEnv]
    makers: list[MakeEnv] = field(default_factory=list)

    def __getitem__(self, index: int) -> MakeEnv:
        missing = index + 1 - len(self.makers)
        self.makers += itertools.islice(self.stream, max(0, missing))
        if index >= len(self.makers):
            raise DataError(f"step {self.step}: there is no task {index}")
        return self.makers[index]


class EnvironmentHost:
    """The environments of a run, by number; one answers at a time, within its time-out."""

    def __init__(self, parts: RunParts) -> None:
        self.config, self._stack = parts.config, ExitStack()
        self._source = self._stack.enter_context(parts.open_tasks())
        self._pool = self._stack.enter_context(CallPool(num_threads=1))
        self._tasks: _TasksOfStep | None = None
        self._envs: dict[int, Env] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def make(self, step: int, index: int) -> tuple[int, str, int]:
        """A new environment of a step's task: (number, task_id, max_turns)."""
        if self._tasks is None or self._tasks.step != step:
            stream = self._source.train(live_seed(self.config, f"tasks:{step}"))
            self._tasks = _TasksOfStep(step=step, stream=stream)
        env, number = self._tasks[index](), next(self._numbers)
        self._envs[number] = env
        return number, env.task_id, env.max_turns

    def call(self, number: int, method: str, *arguments: Any) -> Any:
        """What a method of an environment gives; raises RuntimeError if it failed or was late."""
        env = self._envs.get(number)
        if env is None:
            raise RuntimeError("the environment is gone: its host was started again")
        if method == "close":
            del self._envs[number]
        (outcome,) = self._pool.run(
            [
                PooledCall(
                    partial(getattr(env, method), *arguments),
                    runs_in=runs_in(env),
                    timeout_s=self.config.rollouts.tool_timeout_s,
                )
            ]
        )
        if outcome.failure is not None:
            raise RuntimeError(outcome.failure.reason)
        return outcome.value
