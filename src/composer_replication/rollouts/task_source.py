"""The tasks of a run: those to train on, those that watch it and, if an environment has them, those
that no training sees. `rollouts.env` names where they come from.

    with open_world("workshop") as source:
        makers = source.train(7)           # an endless stream of tasks, a function of the seed
        makers = source.monitor(7, 48)     # 48 tasks that are never trained on
        source.metadata.families           # the mistakes that its environments count

A name stands for the function that core/config lists for it (`BUILT_IN_ENVS`). "envs/mine.py:make"
is a function of the user's, loaded in the same way. It has one of two forms:

    make(seed, split="train")   or split="monitor": a new environment (Env of rollouts/envs/env.py)
                                of a task, always the same task for the same arguments
    @task_source                a generator that yields one TaskSource: it can hold something open
    def tasks(): ...            for the whole run, a sandbox or a connection

Either runs in the trainer's own process and thread: what may fail or hang belongs into the
environment's methods, where it costs a rollout. Here it ends the run, with a name. Both may say
more about themselves (EnvMetadata): by `make.env_metadata`, or `TaskSource.metadata`.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from composer_replication.core.config.base import stage_seed
from composer_replication.core.config.rollout_settings import BUILT_IN_ENVS, RolloutSettings
from composer_replication.core.errors import ConfigError, DataError
from composer_replication.core.teacher import Teacher
from composer_replication.core.trace import Session, Turn
from composer_replication.data.sites.by_path import files_of, load_function, users_code
from composer_replication.rollouts.env_validation import FaultError, checked_metadata
from composer_replication.rollouts.envs.env import Env, EnvMetadata, MakeEnv
from composer_replication.rollouts.envs.method_env import MethodEnvs
from composer_replication.rollouts.task_history import TaskSuccesses

if TYPE_CHECKING:
    from composer_replication.rollouts.episode import Rollout
    from composer_replication.rollouts.sampling import Sampling
    from composer_replication.rollouts.sampling_stats import SamplingStats
    from composer_replication.tokens.renderer import Renderer

SETTING = "rollouts.env"
METHODS = ("open", "reply", "reward", "measures", "close")
"""The methods that a user's environment must have, beside task_id and max_turns."""
METADATA = "env_metadata"
"""The attribute by which a function or class of the user's says more about its environments."""
NOTHING_SAID = EnvMetadata()
Split = Literal["train", "monitor"]
MAX_DRAWS = 20
"""Draws per task of an evaluation until the user's function counts as having too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenTask:
    """A task that no training sees, for `evaluation/`; tables count success by `kind`. `split` is
    the split that it was made for: "train" is refused there."""

    id: str
    kind: str
    split: str
    make: MakeEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSessions:
    """The functions by which an environment resumes sessions recorded in it, for `recompose
    replay`.

    `is_from_here` reads what the session says; the others make its calls again up to a turn, and
    raise SessionError if the results are others. `teachers` are scripts that look into the state at
    a turn. `fails` = the message, said in place of that turn, is answered with an error. `gap` =
    how many messages further it leads than the session's own; None = it cannot be said.
    """

    is_from_here: Callable[[Session], bool]
    teachers: Callable[[Sequence[Session]], Sequence[Teacher]]
    fails: Callable[[Session, int, Turn], bool]
    gap: Callable[[Session, int, Turn], float | None]


class SampleRollouts(Protocol):
    """Plays one episode in each environment, as `sample_rollouts` does."""

    def __call__(
        self,
        model: Any,
        envs: Sequence[Env],
        *,
        renderer: Renderer,
        settings: Sampling,
        author: str,
        label: str = "",
        version: int = -1,
        stats: SamplingStats | None = None,
    ) -> list[Rollout]:
        """The rollouts of each environment's episode, in order; those of one episode share its
        name, and the first of them has its reward."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """Tasks by seed: `train(seed)` is an endless stream, `monitor(seed, count)` a list; each item
    makes a fresh environment.

    The rest is optional. `sources` are the user's files that decide what a task is; empty for a
    built-in environment. `unseen(seed, count, split)` are the tasks of an evaluation. `method_envs`
    is the environment as trainers that play by themselves want it, `recorded` what it can do with
    sessions that were recorded in it. `adaptive(seed, successes)` is the training stream for a
    student of whom it is known how often it solved each task. `replayable` = the same calls get the
    same answers, so an evaluation plays every episode a second time to check it. `sampler` plays
    the tasks, None = `sample_rollouts`.
    """

    name: str
    train: Callable[[int], Iterator[MakeEnv]]
    monitor: Callable[[int, int], list[MakeEnv]]
    sources: tuple[Path, ...] = ()
    metadata: EnvMetadata = NOTHING_SAID
    unseen: Callable[[int, int, str], list[UnseenTask]] | None = None
    adaptive: Callable[[int, TaskSuccesses], Iterator[MakeEnv]] | None = None
    method_envs: MethodEnvs | None = None
    recorded: RecordedSessions | None = None
    replayable: bool = True
    sampler: SampleRollouts | None = None

    def sha256(self) -> str:
        """A hash of the content of `sources`, "" if there are none."""
        digest = hashlib.sha256()
        for file in self.sources:
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest() if self.sources else ""


@dataclass(frozen=True, slots=True)
class TaskSourceOpener:
    """A function that `task_source` marked: called without arguments, it opens its tasks."""

    function: Callable[..., Iterator[TaskSource]]

    def __call__(
        self, settings: RolloutSettings | None = None
    ) -> AbstractContextManager[TaskSource]:
        """The tasks, open until the block ends."""
        wanted = inspect.signature(self.function).parameters
        arguments = (settings or RolloutSettings(),) if wanted else ()
        return contextmanager(self.function)(*arguments)


def task_source(function: Callable[..., Iterator[TaskSource]]) -> TaskSourceOpener:
    """Mark a generator that yields one TaskSource as what `rollouts.env` may name; one with a
    parameter gets the run's RolloutSettings."""
    return TaskSourceOpener(function)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """Checks the environments of a run as they are made; `ids` are the tasks of each split that
    were made so far. `in_user_code` names the user's function in whatever it raises."""

    path: str
    in_user_code: Callable[..., AbstractContextManager[None]]
    ids: dict[Split, set[str]] = field(default_factory=lambda: {"train": set(), "monitor": set()})

    def env(self, make: Callable[[], Any], *, split: Split, on: str) -> Env:
        """A new environment; raises ConfigError if it is none, DataError if its task is in both
        splits."""
        with self.in_user_code(on=on):
            env = make()
            name, missing = (
                getattr(env, "task_id", None),
                [m for m in METHODS if not callable(getattr(env, m, None))],
            )
        if missing or not isinstance(name, str) or not name or not hasattr(env, "max_turns"):
            lacks = ", ".join(
                [
                    *(f"{m}()" for m in missing),
                    *(a for a in ("task_id", "max_turns") if not getattr(env, a, None)),
                ]
            )
            problem = (
                f"{self.path} gave {type(env).__name__}, which is no environment: it lacks {lacks}"
            )
            raise ConfigError(
                problem, where=SETTING, fix="give it what the Env of rollouts/envs/env.py has"
            )
        if name in self.ids["monitor" if split == "train" else "train"]:
            problem = (
                "the task is both trained on and watched: what it says of unseen tasks would be"
                " that of training"
            )
            raise DataError(
                problem, where=name, fix=f'let {self.path} give other tasks with split="monitor"'
            )
        self.ids[split].add(name)
        return env

    def makers(self, draw: Callable[[], Iterable[MakeEnv]], *, split: Split) -> Iterator[MakeEnv]:
        """The tasks that `draw` gives, their environments checked."""
        with self.in_user_code(on=f"the tasks of the split {split!r}"):
            stream = iter(draw())
        for number in itertools.count():
            on = f"task {number}, split {split!r}"
            with self.in_user_code(on=on):
                make = next(stream, None)
            if make is None:
                return
            yield partial(self.env, make, split=split, on=on)

    def by_seed(self, make: Callable[..., Any], seed: int, *, split: Split) -> Iterator[MakeEnv]:
        """Tasks of `make(seed, split=...)` without an end, each of its own seed."""
        for number in itertools.count():
            task_seed = stage_seed(seed, f"{split}:{number}")
            on = f"seed {task_seed}, split {split!r}"
            yield partial(self.env, partial(make, task_seed, split=split), split=split, on=on)


def _metadata(path: str, metadata: object) -> EnvMetadata:
    try:
        return checked_metadata(metadata)
    except FaultError as error:
        raise ConfigError(
            f"{path}: {error}", where=SETTING, fix="see EnvMetadata in rollouts/envs/env.py"
        ) from error


def _of_function(path: str, make: Callable[..., Any], checked: _Checked) -> TaskSource:
    def unseen(seed: int, count: int, split: str) -> list[UnseenTask]:
        del split  # a function has two: tasks to train on, and the others
        tasks: dict[str, UnseenTask] = {}
        draws = checked.by_seed(make, seed, split="monitor")
        for maker in itertools.islice(draws, MAX_DRAWS * count):
            env = maker()
            with checked.in_user_code(on="close()"):
                env.close()
            task = UnseenTask(id=env.task_id, kind="task", split="monitor", make=maker)
            tasks.setdefault(task.id, task)
            if len(tasks) == count:
                return list(tasks.values())
        raise DataError(
            f'{len(tasks)} different tasks in {MAX_DRAWS * count} draws of split "monitor", and'
            f" {count} are asked for",
            where=path,
            fix=f"set evaluate.tasks = {len(tasks)}, or let it give more tasks",
        )

    return TaskSource(
        name=path,
        train=partial(checked.by_seed, make, split="train"),
        monitor=lambda seed, count: list(
            itertools.islice(checked.by_seed(make, seed, split="monitor"), count)
        ),
        unseen=unseen,
        metadata=_metadata(path, getattr(make, METADATA, NOTHING_SAID)),
    )


def _of_opener(
    path: str,
    opener: TaskSourceOpener,
    checked: _Checked,
    *,
    stack: ExitStack,
    settings: RolloutSettings | None,
) -> TaskSource:
    with checked.in_user_code(on="opening it"):
        source = stack.enter_context(opener(settings))
    if not isinstance(source, TaskSource):
        raise ConfigError(
            f"{path} yielded {type(source).__name__}, not a TaskSource",
            where=SETTING,
            fix="see rollouts/task_source.py",
        )
    adaptive = source.adaptive
    return replace(
        source,
        adaptive=None
        if adaptive is None
        else lambda seed, successes: checked.makers(
            partial(adaptive, seed, successes), split="train"
        ),
        train=lambda seed: checked.makers(partial(source.train, seed), split="train"),
        monitor=lambda seed, count: list(
            checked.makers(partial(source.monitor, seed, count), split="monitor")
        ),
        metadata=_metadata(path, source.metadata),
    )


@contextmanager
def _opened(name: str, settings: RolloutSettings | None) -> Iterator[TaskSource]:
    """The tasks of a built-in name or of a user's function, loaded in the same way."""
    path = BUILT_IN_ENVS.get(name, name)
    named = load_function(path, setting=SETTING, built_in=BUILT_IN_ENVS)
    function = named.function if isinstance(named, TaskSourceOpener) else named
    # an error of our own environment is no error of the user's function
    users = path == name
    in_user_code = partial(users_code, path, function, setting=SETTING) if users else _unguarded
    checked = _Checked(path=path, in_user_code=in_user_code)
    with ExitStack() as stack:
        source = (
            _of_opener(path, named, checked, stack=stack, settings=settings)
            if isinstance(named, TaskSourceOpener)
            else _of_function(path, named, checked)
        )
        yield replace(source, name=name, sources=files_of(path, function) if users else ())


def _unguarded(*, on: str) -> AbstractContextManager[None]:
    return nullcontext()


def open_world(
    name: str, *, settings: RolloutSettings | None = None
) -> AbstractContextManager[TaskSource]:
    """The tasks of a run, open until the run ends; raises ConfigError for a name that is not in the
    table, or a useless function. `settings` are for sources that ask for them."""
    if name in BUILT_IN_ENVS or ":" in name:
        return _opened(name, settings)
    raise ConfigError(
        f"no environment {name!r}",
        where=SETTING,
        fix=f"one of: {', '.join(BUILT_IN_ENVS)}, or path/to/file.py:function",
    )


def nth_task(source: TaskSource, *, seed: int, number: int, split: str) -> Env:
    """A new environment of a source's task: the `number`-th of a seed's stream."""
    if split == "train":
        return next(itertools.islice(source.train(seed), number, None))()
    if split == "monitor":
        return source.monitor(seed, number + 1)[number]()
    raise ConfigError(f"no split {split!r}", where="reset", fix="use train or monitor")


def try_world(name: str) -> tuple[Path, ...]:
    """Make one task of the user's environment, so that an error in it shows before a weight is
    loaded; returns `TaskSource.sources`."""
    with open_world(name) as source:
        env = next(source.train(0))()
        with users_code(name, env.close, setting=SETTING, on="close()"):
            env.close()
        return source.sources


def built_in_recordings(stack: ExitStack) -> tuple[RecordedSessions, ...]:
    """The replay functions of the built-in environments, open until `stack` ends."""
    sources = [stack.enter_context(open_world(name)) for name in BUILT_IN_ENVS]
    return tuple(source.recorded for source in sources if source.recorded is not None)
