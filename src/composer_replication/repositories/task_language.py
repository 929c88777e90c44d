"""What making, judging and playing tasks ask of a programming language.

    language = language_named("python")
    language.is_test("tests/test_cart.py")      # True
    for change in language.changes(text):
        change.kind, change.symbol, change.edits        # "function", "Cart.total", (Edit(...),)

`python/` is the implementation of Python. Nothing outside of it knows how a module is parsed, how
its tests are run, or how a repository of Python is cheated; what is still named there has its
reason beside it. docs/tasks.md says what another language has to bring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from composer_replication.core.errors import DataError
from composer_replication.repositories.checkout import Checkout, FileRules
from composer_replication.repositories.edits import Edit
from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.judged import JudgedEpisode, JudgedRepository
from composer_replication.repositories.known_languages import load_language
from composer_replication.repositories.repo_task import RepoTask, TaskKind
from composer_replication.repositories.sandbox.test_runner import TestRunner
from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits, TreeSandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedCode:
    """What a statement may say of removed code: its signature, what stands in its place ("its body
    raises NotImplementedError"), the first paragraph of its documentation."""

    signature: str
    instead: str
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChange:
    """One change of a file that could make a task; a test that runs one of `lines` may notice it.
    `removed` is None for a bug."""

    kind: TaskKind
    symbol: str
    detail: str
    edits: tuple[Edit, ...]
    lines: Sequence[int]
    removed: RemovedCode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTests:
    """The files without the held-out tests, and those tests that are still in sight."""

    files: dict[str, str]
    visible: tuple[str, ...]


class LanguageJudge(Protocol):
    """A judge that is stronger than the outcomes of tests that run beside the player's code."""

    risks: Mapping[str, str]
    """Words of a residual risk, and the kind under which tasks with it are counted."""
    not_replayed: str
    """How the residual risk of a task begins whose results are not replayed outside of the player's
    interpreter."""

    def learn(self, task: RepoTask, repository: JudgedRepository, *, limit_s: float) -> None:
        """Learn what it needs from the original, once a task; raises DataError if the original
        cannot be judged."""
        ...

    def judge(
        self,
        task: RepoTask,
        repository: JudgedRepository,
        *,
        changed: Mapping[str, str],
        deleted: Sequence[str],
        limit_s: float,
    ) -> JudgedEpisode:
        """Judge the changes of an episode."""
        ...


class CodeMonitor(Protocol):
    """What the hack monitor reads in the language's own files; it reads calls by itself."""

    soft: frozenset[str]
    """Kinds of constructs that are none in a package which has them already: files, threads."""

    def constructs(self, text: str) -> set[tuple[str, str]]:
        """What code reaches past its task: a kind and words each ("frames", "sys._getframe")."""
        ...

    def weakened(self, before: str, after: str) -> bool:
        """Whether a changed test file checks less than before."""
        ...

    def of_file(
        self, path: str, text: str, *, before: str, checkout: Checkout
    ) -> Iterator[tuple[str, str]]:
        """What a changed or new file tries by its place and form; `before` is "" for a new one."""
        ...


class Language(FileRules, Protocol):
    """A programming language: its files, changes of its code, its tests, its judge and monitor.

    `unguarded` says what a language without a judge or a monitor of its own cannot exclude; it
    stands on each of its tasks as residual risk. Without it such a language is refused.
    """

    judge: LanguageJudge | None
    monitor: CodeMonitor | None
    unguarded: str
    kept_out: Sequence[str]
    """Patterns of names that never get into the judge's room: caches, builds, links."""
    run_tests: str
    """The command that runs a repository's tests, as a player is told: "python -m pytest"."""
    advice: str
    """What to do if the tests of a repository do not run."""
    commands: Mapping[str, str]
    """What an agent program finds on its PATH: {"pytest": "python -m pytest"}; the first word of a
    command is one that the tree's own shell finds."""

    # ---- changes
    def changes(self, text: str) -> Iterator[SourceChange]:
        """The changes of a file that could make tasks, always in the same order; none of a file
        that cannot be read."""
        ...

    def parses(self, text: str) -> bool:
        """Whether a text is valid in the language."""
        ...

    def with_stubs(self, before: str, after: str) -> str:
        """The earlier text of a file with a stub of each name that `after` adds, so that a test
        file which imports it can be collected; the text as it is if a language needs none."""
        ...

    def code_lines(self, text: str) -> Iterable[str]:
        """The lines of a text without indentation, comments and empty ones, to find copies."""
        ...

    # ---- tests and what they need
    def make_environment(
        self, checkout: Checkout, *, folder: Path, program: str = ""
    ) -> TestEnvironment:
        """Set up what the tests need, or take the named program as it is; does nothing a second
        time. It is noted for later once it has run the tests."""
        ...

    def installed_code(self, environment: TestEnvironment) -> Iterator[Path]:
        """The files of the language that the sandbox shows beside the repository."""
        ...

    def check_not_installed(self, checkout: Checkout, environment: TestEnvironment) -> None:
        """Raise DataError if the environment has the repository's own package."""
        ...

    def runner(self, environment: TestEnvironment, tree: Path, *, import_root: str) -> TestRunner:
        """A runner of the tests of a tree."""
        ...

    def hide_tests(
        self, read: Callable[[str], str], tests: Sequence[str], *, others: Sequence[str]
    ) -> HiddenTests:
        """Cut some tests out of their files; `read` gives a file's text. A test that is not written
        in its file is looked for in `others`."""
        ...

    # ---- the judge's room
    def new_file_refused(self, path: str, *, paths: Sequence[str], files: Collection[str]) -> str:
        """Why a player's new file is not judged with the changes of a task's `paths`; "" if it
        is. It must stand in for nothing else."""
        ...

    # ---- a player
    def sandbox(self, environment: TestEnvironment, limits: ProcessLimits) -> TreeSandbox:
        """The walls for a player's tree, with what the tests need."""
        ...

    def variables(self, import_root: str) -> Mapping[str, str]:
        """The variables of the environment by which a tree's code is found."""
        ...

    def some_tests(self, tests: Sequence[str]) -> str:
        """The command that runs some tests by their ids."""
        ...

    def definition(self, symbol: str) -> str:
        """A regular expression for the line on which a symbol is defined."""
        ...


def language_named(name: str, *, where: str = "") -> Language:
    """The language of this name; raises DataError if there is none, or if nothing guards its tasks
    and it does not say so.

    >>> language_named("python").title
    'Python'
    """
    language: Language = load_language(name, where=where)
    missing = {"judge": language.judge, "monitor": language.monitor}
    lacking = [what for what, part in missing.items() if part is None]
    if lacking and not language.unguarded:
        raise DataError(
            f"the language {name!r} has no {' and no '.join(lacking)}, and does not say so",
            where=where or "its implementation",
            fix="state what can then be cheated in its `unguarded`: it is written on each task",
        )
    return language


def is_replayed(task: RepoTask) -> bool:
    """Whether a task's results are known to be replayed outside of the player's interpreter."""
    judge = language_named(task.language).judge
    known = judge is not None and bool(task.residual_risk)
    return known and judge is not None and judge.not_replayed not in task.residual_risk


def language_of(checkout: Checkout) -> Language:
    """The language of a repository."""
    return language_named(checkout.language, where=str(checkout.folder))
