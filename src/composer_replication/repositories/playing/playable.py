"""What a player of a task finds: the changed state of its repository, without the held-out tests.

    with PlayableTasks(Path("recompose/tasks")) as playable:
        task = playable.tasks[0]
        with playable.open_tree(task) as tree:
            tree.run("python -m pytest -q")
        judged_reward(task, playable.repository(task), changed={...})

A repository's state is copied once for all episodes (episode_tree.py). There is no `.git`, no cache
and no installed copy of the package in it: it is what `recompose tasks make` copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from composer_replication.core.errors import DataError
from composer_replication.repositories.checkout import Checkout, read_checkout
from composer_replication.repositories.environment import TestEnvironment, read_environment
from composer_replication.repositories.making.attempts import BASE, ENVIRONMENTS, TASKS
from composer_replication.repositories.repo_task import RepoTask, read_tasks
from composer_replication.repositories.sandbox.episode_tree import (
    EpisodeTree,
    PreparedTree,
    prepared_tree,
)
from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits
from composer_replication.repositories.task_language import HiddenTests, language_of

LIMITS = ProcessLimits(cpu_s=120, memory_mb=2048, processes=256, file_mb=64, tree_mb=256)
"""What a player's commands may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayableRepository:
    """One state of a repository: its files, the interpreter of its tests, the copy that episodes
    share, and the folder of its tasks."""

    checkout: Checkout
    environment: TestEnvironment
    prepared: PreparedTree
    folder: Path


class PlayableTasks:
    """The tasks of a folder, open until the block ends; `open_tree` may be called from any
    thread."""

    def __init__(self, folder: Path) -> None:
        if not (folder / TASKS).exists():
            raise DataError("no tasks", where=str(folder), fix="recompose tasks make REPO...")
        self.folder = folder
        self.tasks: tuple[RepoTask, ...] = tuple(
            {task.id: task for task in read_tasks(folder / TASKS)}.values()
        )
        self._stack, self._lock = ExitStack(), Lock()
        self._repositories: dict[str, PlayableRepository] = {}
        self._shown: dict[str, HiddenTests] = {}

    def __enter__(self) -> PlayableTasks:
        return self

    def __exit__(self, *_: object) -> None:
        self._repositories.clear()
        self._stack.close()

    def repository(self, task: RepoTask) -> PlayableRepository:
        """The state of the repository that a task was cut from; copied at its first task."""
        key = f"{task.repository}-{task.base[:8]}"
        with self._lock:
            if key not in self._repositories:
                base = self.folder / BASE / key
                self._repositories[key] = PlayableRepository(
                    checkout=read_checkout(base, name=task.repository, language=task.language),
                    environment=read_environment(self.folder / ENVIRONMENTS / task.repository),
                    prepared=self._stack.enter_context(prepared_tree(base)),
                    folder=self.folder,
                )
            return self._repositories[key]

    def shown_files(self, task: RepoTask) -> HiddenTests:
        """What differs from the original in a player's tree: the task's change, and the test files
        without the held-out tests."""
        if task.id not in self._shown:
            checkout = self.repository(task).checkout
            changed = task.changed_files(checkout.folder)

            def text_of(path: str) -> str:
                if path in changed:
                    return changed[path]
                return (checkout.folder / path).read_bytes().decode("utf-8")

            language = language_of(checkout)
            others = [p for p in checkout.files if language.is_code(p) and language.is_test(p)]
            hidden = language.hide_tests(text_of, task.held_out, others=others)
            files = {**changed, **hidden.files}
            self._shown[task.id] = HiddenTests(files=files, visible=hidden.visible)
        return self._shown[task.id]

    def open_tree(
        self,
        task: RepoTask,
        *,
        limits: ProcessLimits = LIMITS,
        read_only: Sequence[tuple[str, str]] = (),
        loopback: bool = False,
    ) -> EpisodeTree:
        """A fresh tree of a task, with more folders of the host, and 127.0.0.1, if a program needs
        them; raises SandboxError where there are no walls."""
        repository = self.repository(task)
        language = language_of(repository.checkout)
        sandbox = language.sandbox(repository.environment, limits)
        return EpisodeTree(
            replace(sandbox, read_only=(*sandbox.read_only, *read_only)),
            repository.prepared,
            files=self.shown_files(task).files,
            env=language.variables(repository.checkout.import_root),
            loopback=loopback,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeReward:
    """1.0, or 0.0 with the reason; `attempts` are what the player tried instead of the task."""

    reward: float
    reason: str = ""
    attempts: tuple[str, ...] = ()
