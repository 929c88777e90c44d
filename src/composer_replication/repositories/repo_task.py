"""A task in a user's own repository, and its line in tasks.jsonl.

    tasks = read_tasks(Path("recompose/tasks/tasks.jsonl"))
    changed = tasks[0].changed_files(Path("recompose/tasks/base/shop-1a2b3c4d"))

The line holds the answer (`removed`): it never goes into the room where a task is played.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from composer_replication.core.errors import DataError
from composer_replication.core.jsonl import dumps, read_lines
from composer_replication.repositories.edits import Edit, apply_edits
from composer_replication.repositories.known_languages import DEFAULT_LANGUAGE, check_language

TaskKind = Literal["function", "class", "bug", "history"]
KINDS: tuple[TaskKind, ...] = ("function", "class", "bug", "history")


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoTask:
    """A repository in a changed state, and the tests that say when it is mended.

    `base` is the hash of the repository's files before the change, `edits` the change by file.
    `must_pass` fail in the changed state, `must_keep` pass in both (of a test file that cannot be
    imported there: with stubs of the names that it asks for); `held_out` are those of
    `must_pass` that neither the statement nor the tree shows. `difficulty` is the number of lines
    that were removed. `cpu_s` is what its tests cost, run without the judge. `judge_s` (seconds of
    a judgement) and `residual_risk` (what it cannot exclude) are known once original_check.py has
    judged the original; until then 0 and "". `language` is one of known_languages.py.
    """

    id: str
    repository: str
    base: str
    kind: TaskKind
    symbol: str
    detail: str
    edits: dict[str, list[Edit]]
    removed: dict[str, list[str]]
    statement: str
    must_pass: list[str]
    must_keep: list[str]
    held_out: list[str]
    difficulty: int
    cpu_s: float
    commit: str = ""
    judge_s: float = 0.0
    residual_risk: str = ""
    language: str = DEFAULT_LANGUAGE

    @property
    def paths(self) -> list[str]:
        """The files that were changed, and that the task may change."""
        return sorted(self.edits)

    def original_files(self, base: Path) -> dict[str, str]:
        """The text of each of its files in the base state: the answer."""
        return {path: _text(base / path) for path in self.paths}

    def changed_files(self, base: Path) -> dict[str, str]:
        """The text of each changed file, made from the files of the base state."""
        return {path: apply_edits(_text(base / path), edits) for path, edits in self.edits.items()}


def task_id(*, repository: str, base: str, edits: dict[str, list[Edit]]) -> str:
    """A task's name, which depends on the repository's state and on the change alone."""
    digest = hashlib.sha256(dumps([base, sorted(edits.items())]).encode()).hexdigest()
    return f"{repository}-{digest[:10]}"


def task_line(task: RepoTask) -> dict[str, Any]:
    """A task as it is written."""
    return asdict(task)


def read_tasks(path: Path) -> list[RepoTask]:
    """The tasks of a file; DataError names the line of one that cannot be read."""
    return [_task(value, where=f"{path}:{number}") for number, value in read_lines(path)]


def _task(value: Any, *, where: str) -> RepoTask:
    names = {field.name for field in fields(RepoTask)}
    try:
        edits = {p: [Edit(*edit) for edit in rows] for p, rows in value["edits"].items()}
        task = RepoTask(**{**{n: value[n] for n in names if n in value}, "edits": edits})
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"no task of a repository: {error}", where=where, fix="make it again: recompose tasks"
        ) from error
    check_language(task.language, where=where)
    return task


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8")
