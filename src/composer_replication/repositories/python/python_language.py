"""PYTHON: Python with pytest or unittest, by the interface of `repositories/task_language.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from composer_replication.repositories.checkout import Checkout, FileRoles
from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.python import python_files, task_changes
from composer_replication.repositories.python.hidden_tests import hide_tests
from composer_replication.repositories.python.judging.python_judge import PythonJudge
from composer_replication.repositories.python.monitor.python_monitor import PythonMonitor
from composer_replication.repositories.python.name_stubs import with_stubs
from composer_replication.repositories.python.pytest_runner import PytestRunner, python_path
from composer_replication.repositories.python.python_environment import make_environment
from composer_replication.repositories.sandbox.tree_sandbox import (
    ProcessLimits,
    TreeSandbox,
    interpreter,
)
from composer_replication.repositories.task_language import (
    CodeMonitor,
    HiddenTests,
    Language,
    LanguageJudge,
    SourceChange,
)

_STANDARD_LEFT_OUT = ("test/", "site-packages/")
"""Below the standard library: its tests, and packages that an environment hides."""


class PythonLanguage:
    """Each part is a module beside this one."""

    name = "python"
    title = "Python"
    unguarded = ""
    judge: LanguageJudge | None = PythonJudge()
    monitor: CodeMonitor | None = PythonMonitor()
    kept_out: Sequence[str] = python_files.KEPT_OUT
    run_tests = "python -m pytest"
    advice = (
        "run pytest in a fresh clone; --python names an interpreter that has what the tests need,"
        " and a module that a build writes has to be tracked: git add -f FILE"
    )
    commands: Mapping[str, str] = {
        "python": "python",
        "python3": "python",
        "pytest": "python -m pytest",
    }

    # ---- files
    def is_left_out(self, name: str, *, folder: bool) -> bool:
        """Whether a folder or file is a cache, a build, or an environment."""
        return python_files.is_left_out(name, folder=folder)

    def is_code(self, path: str) -> bool:
        """Whether a file is a module."""
        return python_files.is_code(path)

    def is_test(self, path: str) -> bool:
        """Whether a file belongs to the tests, by its name or its folder's."""
        return python_files.is_test(path)

    def layout(self, files: Sequence[str]) -> FileRoles:
        """The modules, what pytest is given, and what PYTHONPATH gets."""
        return python_files.layout(files)

    # ---- changes
    def changes(self, text: str) -> Iterator[SourceChange]:
        """Removed functions, methods and classes, and small mistakes."""
        return task_changes.module_changes(text)

    def parses(self, text: str) -> bool:
        """Whether a text is a module."""
        return task_changes.parses(text)

    def with_stubs(self, before: str, after: str) -> str:
        """A module's earlier text with a stub of each name that the later one adds."""
        return with_stubs(before, after)

    def code_lines(self, text: str) -> list[str]:
        """The lines of code without indentation and comments."""
        return task_changes.code_lines(text)

    # ---- tests and what they need
    def make_environment(
        self, checkout: Checkout, *, folder: Path, program: str = ""
    ) -> TestEnvironment:
        """An interpreter with pytest, coverage and the repository's dependencies."""
        return make_environment(checkout, folder=folder, program=program)

    def installed_code(self, environment: TestEnvironment) -> Iterator[Path]:
        """The modules of the interpreter's packages and of the standard library."""
        for folder in interpreter(environment.program).packages:
            for path in sorted(Path(folder).rglob("*.py")):
                if not path.relative_to(folder).as_posix().startswith(_STANDARD_LEFT_OUT):
                    yield path

    def check_not_installed(self, checkout: Checkout, environment: TestEnvironment) -> None:
        """Raise DataError if the interpreter has the repository's package, or a link to it."""
        python_files.check_not_installed(checkout, environment)

    def runner(self, environment: TestEnvironment, tree: Path, *, import_root: str) -> PytestRunner:
        """pytest, imported once, in a fork for each run."""
        return PytestRunner(
            tree=tree,
            python=environment.program,
            import_root=import_root,
            metadata=environment.metadata,
        )

    def hide_tests(
        self, read: Callable[[str], str], tests: Sequence[str], *, others: Sequence[str]
    ) -> HiddenTests:
        """Cut the functions of tests out of their files."""
        return hide_tests(read, tests, others=others)

    # ---- the judge's room
    def new_file_refused(self, path: str, *, paths: Sequence[str], files: Collection[str]) -> str:
        """Why a new file is no new module of the task's package."""
        return python_files.new_file_refused(path, paths=paths, files=files)

    # ---- a player
    def sandbox(self, environment: TestEnvironment, limits: ProcessLimits) -> TreeSandbox:
        """Walls with the interpreter, and the made `dist-info` at /metadata."""
        return TreeSandbox(
            python=environment.program,
            limits=limits,
            read_only=((str(environment.metadata), "/metadata"),),
        )

    def variables(self, import_root: str) -> Mapping[str, str]:
        """PYTHONPATH."""
        return python_path(import_root)

    def some_tests(self, tests: Sequence[str]) -> str:
        """pytest with these ids; the repository's own options may be those of a plugin."""
        quoted = " ".join(f"'{name}'" for name in tests if "'" not in name)
        return f"{self.run_tests} -q -p no:cacheprovider -o addopts= {quoted}"

    def definition(self, symbol: str) -> str:
        """Where a function or class is written: `Cart.total` is found by `total`."""
        return rf"(def|class) {symbol.rpartition('.')[2]}\b"


PYTHON: Language = PythonLanguage()
