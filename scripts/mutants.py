"""Prove that the tests can fail: plant each known mistake in a copy of the tree and require a red
test.

    python scripts/mutants.py NAME ...                the mutants of tests/mutants/NAME.toml
    python scripts/mutants.py                         at most 60 of those that a change touches,
                                                      and a sample that moves daily (make mutants)
    python scripts/mutants.py --all                   all of them (make mutants-all)
    python scripts/mutants.py --show FILE [WITHIN]    the text in which a search is looked up

A mutant is a search and a replacement inside a named function, class or constant:

    why = "the site would be the turn after the error, which is not the mistake"
    tests = ["tests/data/sites/test_find_sites.py::test_the_site_is_the_message_with_the_call"]

    [[changes]]
    file = "src/composer_replication/data/sites/find_sites.py"
    within = "find_sites"
    search = "turn=ref.turn"
    replace = "turn=ref.turn + 1"

The search runs on the text that `ast.unparse` gives for that definition, so line breaks, quotes,
comments and the position in the file do not matter. It must match exactly once. Without `within` it
runs on the whole module; in a file that is not Python, on its text.

A mutant is touched if its own file, a file that it changes or a file of its tests differs from the
time when the mutant was last caught. tests/mutants/caught.json keeps a fingerprint of these files
and is written outside CI; commit it with the change.

The exit code is 1 if a mutant has lost its place, names no test, names a test that does not exist
or is red without the mutant, or leaves one of its tests green, in two runs. What only the second
run caught is printed as unstable: its test depends on chance, and wants mending.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

COPIED = (
    "src",
    "tests",
    "examples",
    "docs",
    "pyproject.toml",
    "README.md",
    "scripts",
    "Makefile",
    "capabilities.toml",
    "benchmarks",
)
CAUGHT = Path("tests") / "mutants" / "caught.json"
SAMPLE = 24
"""The number of untouched mutants that are judged each day, others the next day: every mutant comes
up within a month."""
MOST = 60
"""The number of touched mutants that are judged in one run, so that a change that moves many files
does not take CI hours; `make mutants-all` judges all."""
TIMEOUT_S = 600
WORKERS = min(os.cpu_count() or 1, 4)
"""The number of runs of tests side by side."""
GREEN, RED = 0, 1  # exit codes of pytest; every other one is a broken run


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class LostPlace(ValueError):
    """A search that does not match its definition exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One replacement: in `file`, within the definition of that dotted name ("" is the whole
    file)."""

    file: str
    within: str = ""
    search: str
    replace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One known mistake: its changes, and the tests that must notice it."""

    path: Path
    tests: tuple[str, ...]
    why: str
    changes: tuple[Change, ...]


def read_mutant(path: Path) -> Mutant:
    """A mutant from its TOML file."""
    value = tomllib.loads(path.read_text("utf-8"))
    changes = tuple(Change(**change) for change in value.get("changes", ()))
    return Mutant(
        path=path, tests=tuple(value.get("tests", ())), why=value.get("why", ""), changes=changes
    )


def definitions(
    tree: ast.AST, prefix: str = "", *, local: bool = False
) -> Iterator[tuple[str, list[ast.stmt], int]]:
    """(dotted name, the list of statements that holds it, its index there) of every function, class
    and constant."""
    # A local variable is not a definition.
    local = local or isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    for field in ("body", "orelse", "finalbody", "handlers"):
        statements: list[ast.stmt] = getattr(tree, field, [])
        # `body` of a lambda is an expression, not a list.
        for index, node in enumerate(statements if isinstance(statements, list) else ()):
            name = "" if local and not isinstance(node, _DEFINITIONS) else _name(node)
            if name:
                yield prefix + name, statements, index
            yield from definitions(node, f"{prefix}{name}." if name else prefix, local=local)


def _name(node: ast.AST) -> str:
    if isinstance(node, _DEFINITIONS):
        return node.name
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def find_definition(tree: ast.Module, within: str) -> tuple[list[ast.stmt], int]:
    """The list of statements that holds the definition of a dotted name, and its index there;
    raises LostPlace unless there is exactly one."""
    places = [
        (statements, index) for name, statements, index in definitions(tree) if name == within
    ]
    if len(places) != 1:
        raise LostPlace(f"{within} is defined {len(places)} times")
    return places[0]


def mutated(text: str, change: Change) -> str:
    """The text of a file after one change; raises LostPlace."""
    if not change.file.endswith(".py"):
        return _replaced(text, change)
    tree = ast.parse(text)
    after = changed_source(tree, change)
    if not change.within:
        return after
    statements, index = find_definition(tree, change.within)
    statements[index : index + 1] = ast.parse(after).body
    return ast.unparse(tree)


def changed_source(tree: ast.Module, change: Change) -> str:
    """The source of the definition that a change is within, after it, or of the whole file; raises
    LostPlace. The tree stays as it was."""
    if not change.within:
        return _replaced(ast.unparse(tree), change)
    statements, index = find_definition(tree, change.within)
    return _replaced(ast.unparse(statements[index]), change)


def _replaced(text: str, change: Change) -> str:
    if (times := text.count(change.search)) != 1:
        place = f"{change.file} {change.within}".strip()
        raise LostPlace(
            f"{change.search!r} is {times} times in {place}; see: python scripts/mutants.py --show"
            f" {place}"
        )
    return text.replace(change.search, change.replace)


def plant(tree: Path, mutant: Mutant) -> str:
    """Make all changes of a mutant in a copied tree; returns the problem, or ""."""
    try:
        for change in mutant.changes:
            path = tree / change.file
            path.write_text(mutated(path.read_text("utf-8"), change), "utf-8")
    except (LostPlace, SyntaxError, OSError) as e:
        return str(e)
    return "" if mutant.changes else "no changes"


def fingerprint(root: Path, mutant: Mutant) -> str:
    """A hash of the mutant, of the files that it changes and of the files of its tests; a missing
    file counts as empty."""
    names = [
        *(change.file for change in mutant.changes),
        *(test.partition("::")[0] for test in mutant.tests),
    ]
    parts = [
        mutant.path.read_bytes(),
        *(
            (root / name).read_bytes() if (root / name).is_file() else b""
            for name in dict.fromkeys(names)
        ),
    ]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[
        :16
    ]


def chosen_of(root: Path, mutants: list[Mutant], *, day: int) -> list[Mutant]:
    """The touched mutants, and the day's sample of the others.

    If a change touches more than `MOST`, another part of them is chosen on every day.
    """
    known = read_caught(root)
    touched = [m for m in mutants if known.get(m.path.stem) != fingerprint(root, m)]
    untouched = [m for m in mutants if m not in touched]
    if len(touched) > MOST:
        print(f"mutants: {len(touched)} are touched, {MOST} of them run today", flush=True)
        touched = random.Random(day).sample(touched, MOST)
    first = day * SAMPLE % max(1, len(untouched))
    return [*touched, *(untouched + untouched)[first : first + min(SAMPLE, len(untouched))]]


def read_caught(root: Path) -> dict[str, str]:
    """The fingerprint with which each mutant was last caught."""
    path = root / CAUGHT
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write_caught(root: Path, caught: list[Mutant], mutants: list[Mutant]) -> None:
    """Record the caught mutants, and drop those that no longer exist."""
    names = {m.path.stem for m in mutants}
    known = {name: value for name, value in read_caught(root).items() if name in names} | {
        m.path.stem: fingerprint(root, m) for m in caught
    }
    (root / CAUGHT).write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n", "utf-8")


def copy_tree(root: Path, into: Path) -> None:
    """Copy the files that the tests need, without caches."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(
                source, into / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        elif source.exists():
            shutil.copy2(source, into / name)


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Run tests of a copied tree, with its package in front of the installed one; (exit code,
    output)."""
    env = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    env["COMPOSER_REPLICATION_MUTANT"] = "1"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--no-header",
        "--tb=line",
        *tests,
    ]
    try:
        process = subprocess.run(
            command,
            cwd=tree,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {TIMEOUT_S} s"
    return process.returncode, process.stdout + process.stderr


def judge_twice(root: Path, mutant: Mutant) -> tuple[str, str]:
    """The problem of a mutant, or "" if it is caught in one run of two; and the first run's."""
    first = judge(root, mutant)
    return (judge(root, mutant) if first else ""), first


def judge(root: Path, mutant: Mutant) -> str:
    """The problem of a mutant in one run of its tests, or "" if it is caught."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(root, tree)
        if problem := plant(tree, mutant):
            return f"lost its place: {problem}"
        code, output = run_tests(tree, mutant.tests)
        if code == GREEN:
            return "SURVIVED: no test noticed"
        if code != RED:
            return f"the run broke (pytest exit {code}): {_last(output)}"
        red = red_tests(output)
        green = [
            test
            for test in mutant.tests
            if not any(name == test or name.startswith((test + "[", test + "::")) for name in red)
        ]
        return f"{', '.join(green)} stayed green" if green else ""


def red_tests(output: str) -> list[str]:
    """The names of the failed tests in pytest's summary."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [line.split(" ", 1)[1].split(" - ")[0] for line in lines]  # an id may hold spaces


def baseline(root: Path, mutants: list[Mutant]) -> str:
    """The problem of the named tests on the unchanged tree, or "": they must exist and be green, if
    not beside all the others then without them, as they run with a mutant."""
    for mutant in mutants:
        if not mutant.tests or not mutant.why:
            return f"{mutant.path.name} needs `why` and `tests`"
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy_tree(root, Path(folder))
        shares = shares_of(dict.fromkeys(t for m in mutants for t in m.tests), WORKERS)
        with ThreadPoolExecutor(WORKERS) as pool:
            runs = list(pool.map(lambda share: run_tests(Path(folder), share), shares))
        red = [name for code, output in runs if code == RED for name in red_tests(output)]
        if red and all(code in (GREEN, RED) for code, _ in runs):
            print(f"unstable, failed beside others: {', '.join(red)}", flush=True)
            runs = [run_tests(Path(folder), tuple(red))]
    problems = [
        f"pytest exit {code} without any mutant: {_last(output)}"
        for code, output in runs
        if code != GREEN
    ]
    return "; ".join(problems)


def shares_of(tests: Iterable[str], count: int) -> list[tuple[str, ...]]:
    """The tests in so many shares that run side by side, or fewer; those of one file stay together,
    in their order.

    >>> shares_of(["a.py::x", "b.py::y", "a.py::z"], 2)
    [('a.py::x', 'a.py::z'), ('b.py::y',)]
    """
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    every = list(files.values())
    shares = [[test for of_one in every[i::count] for test in of_one] for i in range(count)]
    return [tuple(share) for share in shares if share]


def _last(output: str) -> str:
    return " | ".join(output.strip().splitlines()[-3:])


def main(arguments: list[str]) -> int:
    """Judge the named mutants, the touched and the day's sample, or all; returns the exit code."""
    root = Path(__file__).resolve().parent.parent
    if arguments[:1] == ["--show"]:
        tree = ast.parse((root / arguments[1]).read_text("utf-8"))
        statements, index = find_definition(tree, arguments[2]) if arguments[2:] else ([tree], 0)
        print(ast.unparse(statements[index]))
        return 0
    names = [word for word in arguments if word != "--all"]
    every = [read_mutant(p) for p in sorted((root / "tests" / "mutants").glob("*.toml"))]
    unknown = set(names) - {m.path.stem for m in every}
    if unknown or not every:
        print(
            f"mutants: none named {', '.join(sorted(unknown)) or 'at all'}; there are:"
            f" {', '.join(m.path.stem for m in every)}"
        )
        return 1
    if names:
        mutants = [m for m in every if m.path.stem in names]
    else:
        mutants = (
            every
            if "--all" in arguments
            else chosen_of(root, every, day=datetime.date.today().toordinal())
        )
        print(f"mutants: {len(mutants)} of {len(every)}", flush=True)
    if problem := baseline(root, mutants):
        print(f"mutants: {problem}")
        return 1
    caught: list[Mutant] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for mutant, (problem, first) in zip(
            mutants, pool.map(lambda m: judge_twice(root, m), mutants), strict=True
        ):
            caught += [] if problem else [mutant]
            if first and not problem:
                print(f"unstable {mutant.path.stem}: the first of two runs: {first}", flush=True)
            if problem or names:
                print(
                    f"{'FAILED' if problem else 'caught':7} {mutant.path.stem}:"
                    f" {problem or mutant.why}",
                    flush=True,
                )
    if not os.environ.get("CI"):
        write_caught(root, caught, every)
    print(f"mutants: {len(caught)} caught, {len(mutants) - len(caught)} not")
    return 0 if len(caught) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
