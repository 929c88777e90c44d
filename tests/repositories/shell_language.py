"""A second language, to see that repositories/task_language.py is all that tasks need of one:
functions in shell scripts; a test is a script that ends with 0.

It has no judge and no monitor, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from composer_replication.core.files import make_folder
from composer_replication.repositories.checkout import Checkout, FileRoles
from composer_replication.repositories.edits import Edit
from composer_replication.repositories.environment import TestEnvironment, environment_in
from composer_replication.repositories.sandbox.episode_tree import EpisodeTree, prepared_tree
from composer_replication.repositories.sandbox.test_runner import TestRun
from composer_replication.repositories.sandbox.tree_sandbox import ProcessLimits, TreeSandbox
from composer_replication.repositories.task_language import (
    CodeMonitor,
    HiddenTests,
    LanguageJudge,
    RemovedCode,
    SourceChange,
)

UNGUARDED = "a test is an exit code, which the tested code can set"
MONEY = """# Add up prices.
total() {
    sum=0
    for price in "$@"; do
        sum=$((sum + price))
    done
    echo "$sum"
}

# The lowest price.
cheapest() {
    lowest=$1
    for price in "$@"; do
        if [ "$price" -lt "$lowest" ]; then lowest=$price; fi
    done
    echo "$lowest"
}
"""
FILES = {
    "lib/money.sh": MONEY,
    "tests/test_none.sh": '. lib/money.sh\n[ "$(total)" = 0 ]\n',
    "tests/test_one.sh": '. lib/money.sh\n[ "$(total 4)" = 4 ]\n',
    "tests/test_two.sh": '. lib/money.sh\n[ "$(total 4 5)" = 9 ]\n',
    "tests/test_three.sh": '. lib/money.sh\n[ "$(total 1 2 3)" = 6 ]\n',
    "tests/test_cheapest.sh": '. lib/money.sh\n[ "$(cheapest 3 1 2)" = 1 ]\n',
    "tests/test_echo.sh": '[ "$(echo a)" = a ]\n',
    "tests/test_true.sh": "true\n",
}
_FUNCTION = re.compile(r"(?:# (?P<says>.*)\n)?(?P<name>\w+)\(\) \{\n(?P<body>(?:.*\n)*?)\}\n")


def make_money(folder: Path, *, money: str = MONEY) -> Path:
    """Write a small repository of shell scripts."""
    for path, text in {**FILES, "lib/money.sh": money}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


class ShellRunner:
    """Each test is a process in a fresh tree."""

    def __init__(self, tree: Path) -> None:
        self.cpu_s = 0.0
        self._tree, self._stack = tree, ExitStack()
        self._prepared = self._stack.enter_context(prepared_tree(tree))

    def __enter__(self) -> ShellRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(
        self,
        *,
        tests: Sequence[str] = (),
        paths: Sequence[str] = (),
        files: Mapping[str, str] | None = None,
        limit_s: float = 60.0,
        cover: bool = False,
    ) -> TestRun:
        """Run tests by their ids, or all below some folders."""
        found = [
            path.relative_to(self._tree).as_posix()
            for path in sorted(self._tree.rglob("tests/test_*.sh"))
        ]
        names = list(tests) or [f"{p}::main" for p in found if p.startswith(tuple(paths))]
        outcomes: dict[str, str] = {}
        for name in names:
            with EpisodeTree(TreeSandbox(), self._prepared, files=files or {}) as tree:
                ended = tree.run(f"sh {name.partition('::')[0]}", limit_s=limit_s)
            outcomes[name] = "failed" if ended.code or ended.late else "passed"
        self.cpu_s += 0.01 * len(names)
        return TestRun(
            outcomes=outcomes,
            durations=dict.fromkeys(outcomes, 0.01),
            collected=len(outcomes),
            errors=0,
            ended=True,
            cpu_s=0.01,
            wall_s=0.01,
            lines=self._lines(names) if cover else {},
        )

    def _lines(self, names: list[str]) -> dict[str, dict[int, list[str]]]:
        """Nothing counts lines here: every test may run each of them."""
        return {
            path.relative_to(self._tree).as_posix(): {
                line: names for line in range(1, len(path.read_text("utf-8").splitlines()) + 1)
            }
            for path in self._tree.rglob("lib/*.sh")
        }


class ShellLanguage:
    """Functions in `lib/*.sh`, tests in `tests/test_*.sh`."""

    name = "shell"
    title = "shell"
    unguarded = UNGUARDED
    judge: LanguageJudge | None = None
    monitor: CodeMonitor | None = None
    kept_out: Sequence[str] = (".*",)
    run_tests = "for test in tests/test_*.sh; do sh $test || echo $test; done"
    advice = "run each test with sh"
    commands: Mapping[str, str] = {"sh": "sh"}

    def is_left_out(self, name: str, *, folder: bool) -> bool:
        return False

    def is_code(self, path: str) -> bool:
        return path.endswith(".sh")

    def is_test(self, path: str) -> bool:
        return path.startswith("tests/")

    def layout(self, files: Sequence[str]) -> FileRoles:
        sources = tuple(p for p in files if self.is_code(p) and not self.is_test(p))
        tests = ("tests",) if any(map(self.is_test, files)) else ()
        return FileRoles(sources=sources, tests=tests, import_root=".")

    def changes(self, text: str) -> Iterator[SourceChange]:
        for found in _FUNCTION.finditer(text):
            start, end = found.span("body")
            first, last = (text.count("\n", 0, place) + 1 for place in (start, end))
            lines = range(first, last)
            instead = RemovedCode(
                signature=f"{found['name']}()",
                instead="its body returns 1",
                summary=found["says"] or "",
            )
            yield SourceChange(
                kind="function",
                symbol=found["name"],
                detail="",
                edits=(Edit(start, end, "    return 1\n"),),
                lines=lines,
                removed=instead,
            )
            if (plus := text.find(" + ", start, end)) > 0:
                yield SourceChange(
                    kind="bug",
                    symbol=found["name"],
                    detail="arithmetic",
                    edits=(Edit(plus, plus + 3, " - "),),
                    lines=lines,
                )

    def parses(self, text: str) -> bool:
        return text.count("{") == text.count("}")

    def with_stubs(self, before: str, after: str) -> str:
        return before

    def code_lines(self, text: str) -> list[str]:
        return [plain for line in text.splitlines() if (plain := line.split("#")[0].strip())]

    def make_environment(
        self, checkout: Checkout, *, folder: Path, program: str = ""
    ) -> TestEnvironment:
        make_folder(folder / "metadata")
        return environment_in(folder, program or "/bin/sh")

    def installed_code(self, environment: TestEnvironment) -> Iterator[Path]:
        yield from ()

    def check_not_installed(self, checkout: Checkout, environment: TestEnvironment) -> None:
        return None

    def runner(self, environment: TestEnvironment, tree: Path, *, import_root: str) -> ShellRunner:
        return ShellRunner(tree)

    def hide_tests(
        self, read: Callable[[str], str], tests: Sequence[str], *, others: Sequence[str]
    ) -> HiddenTests:
        return HiddenTests(files={name.partition("::")[0]: "" for name in tests}, visible=())

    def new_file_refused(self, path: str, *, paths: Sequence[str], files: Collection[str]) -> str:
        return "no new file"

    def sandbox(self, environment: TestEnvironment, limits: ProcessLimits) -> TreeSandbox:
        return TreeSandbox(limits=limits)

    def variables(self, import_root: str) -> Mapping[str, str]:
        return {}

    def some_tests(self, tests: Sequence[str]) -> str:
        return " && ".join(f"sh {name.partition('::')[0]}" for name in tests)

    def definition(self, symbol: str) -> str:
        return rf"{symbol}\(\)"


SHELL = ShellLanguage()
