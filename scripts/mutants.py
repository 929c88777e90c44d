"""Prove that the tests can fail: apply each known mistake to a copy of the tree and require a red test.

    python scripts/mutants.py NAME ...        tests/mutants/NAME.patch
    python scripts/mutants.py                 those that a change touches, and a sample that moves on every day (make mutants)
    python scripts/mutants.py --all           every one (make mutants-all)

A mutant is touched where its patch, a file that it patches or a file of its tests is another than when it was last caught:
tests/mutants/caught.json keeps a fingerprint of these. Outside of CI it is written; commit it with the change.

A patch begins with comment lines that say why it matters and which tests must go red:

    # why: the site would be the turn after the error, which is not the mistake
    # test: tests/data/sites/test_find.py::test_the_site_is_the_message_with_the_call
    diff --git a/src/... b/src/...

Exit code 1 where a patch does not apply, names no test, names a test that is red without the patch or does not
exist, or leaves one of its tests green.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

COPIED = ("src", "tests", "examples", "docs", "pyproject.toml", "README.md", "scripts", "Makefile", "capabilities.toml", "benchmarks")
CAUGHT = Path("tests") / "mutants" / "caught.json"
SAMPLE = 24
"""So many of the untouched are judged each day, others the next: within two or three weeks every one was."""
TIMEOUT_S = 600
GREEN, RED = 0, 1  # exit codes of pytest; every other one is a broken run


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One known mistake: its patch, and the tests that must notice it."""

    path: Path
    tests: tuple[str, ...]
    why: str


def read_mutant(path: Path) -> Mutant:
    """The header of a patch file."""
    tests: list[str] = []
    why = ""
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            break
        name, _, value = line.lstrip("# ").partition(":")
        if name == "test":
            tests += value.split()
        elif name == "why":
            why = value.strip()
    return Mutant(path=path, tests=tuple(tests), why=why)


def fingerprint(root: Path, mutant: Mutant) -> str:
    """A hash of the patch, of the files that it patches and of the files of its tests; what is missing counts as empty."""
    patched = re.findall(r"^\+\+\+ b/(\S+)", mutant.path.read_text("utf-8"), re.MULTILINE)
    names = [*patched, *(test.partition("::")[0] for test in mutant.tests)]
    parts = [mutant.path.read_bytes(), *((root / name).read_bytes() if (root / name).is_file() else b"" for name in dict.fromkeys(names))]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def chosen_of(root: Path, mutants: list[Mutant], *, day: int) -> list[Mutant]:
    """The touched ones, and the day's sample of the others."""
    known = read_caught(root)
    touched = [m for m in mutants if known.get(m.path.stem) != fingerprint(root, m)]
    rest = [m for m in mutants if m not in touched]
    first = day * SAMPLE % max(1, len(rest))
    return [*touched, *(rest + rest)[first : first + min(SAMPLE, len(rest))]]


def read_caught(root: Path) -> dict[str, str]:
    """The fingerprint with which each mutant was last caught."""
    path = root / CAUGHT
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write_caught(root: Path, caught: list[Mutant], mutants: list[Mutant]) -> None:
    """Note those that were caught, and forget those that are no more."""
    names = {m.path.stem for m in mutants}
    known = {name: value for name, value in read_caught(root).items() if name in names} | {
        m.path.stem: fingerprint(root, m) for m in caught
    }
    (root / CAUGHT).write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n", "utf-8")


def copy_tree(root: Path, into: Path) -> None:
    """What the tests need, without caches."""
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif source.exists():
            shutil.copy2(source, into / name)


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """Run some tests of a copied tree, with the copy's package in front of the installed one; (exit code, output)."""
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    env["COMPOSER_REPLICATION_MUTANT"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=line", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return -1, f"no end after {TIMEOUT_S} s"
    return done.returncode, done.stdout + done.stderr


def apply(tree: Path, patch: Path) -> str:
    """Apply a patch to a copied tree; returns what went wrong, or ""."""
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}  # the copy is no repository, wherever it lies
    done = subprocess.run(["git", "apply", "-p1", str(patch)], cwd=tree, env=env, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def judge(root: Path, mutant: Mutant) -> str:
    """What is wrong with a mutant, or "" where it is caught."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder)
        copy_tree(root, tree)
        if problem := apply(tree, mutant.path):
            return f"does not apply: {problem}"
        code, output = run_tests(tree, mutant.tests)
        if code == GREEN:
            return "SURVIVED: no test noticed"
        if code != RED:
            return f"the run broke (pytest exit {code}): {_last(output)}"
        red = [line.split(" ", 2)[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        green = [test for test in mutant.tests if not any(name == test or name.startswith((test + "[", test + "::")) for name in red)]
        return f"{', '.join(green)} stayed green" if green else ""


def baseline(root: Path, mutants: list[Mutant]) -> str:
    """What is wrong with the named tests on the tree as it is: they must exist and be green; "" where they are."""
    for mutant in mutants:
        if not mutant.tests or not mutant.why:
            return f"{mutant.path.name}: its header needs a '# why:' and a '# test:' line"
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy_tree(root, Path(folder))
        code, output = run_tests(Path(folder), tuple(dict.fromkeys(t for m in mutants for t in m.tests)))
    return "" if code == GREEN else f"pytest exit {code} without any patch: {_last(output)}"


def _last(output: str) -> str:
    return " | ".join(output.strip().splitlines()[-3:])


def main(words: list[str]) -> int:
    """Judge the named mutants, the touched and the day's sample, or all; returns the exit code."""
    root = Path(__file__).resolve().parent.parent
    names = [word for word in words if word != "--all"]
    every = [read_mutant(p) for p in sorted((root / "tests" / "mutants").glob("*.patch"))]
    unknown = set(names) - {m.path.stem for m in every}
    if unknown or not every:
        print(f"mutants: none named {', '.join(sorted(unknown)) or 'at all'}; there are: {', '.join(m.path.stem for m in every)}")
        return 1
    if names:
        mutants = [m for m in every if m.path.stem in names]
    else:
        mutants = every if "--all" in words else chosen_of(root, every, day=datetime.date.today().toordinal())
        print(f"mutants: {len(mutants)} of {len(every)}", flush=True)
    if problem := baseline(root, mutants):
        print(f"mutants: {problem}")
        return 1
    caught: list[Mutant] = []
    with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, 4)) as pool:
        for mutant, problem in zip(mutants, pool.map(lambda m: judge(root, m), mutants), strict=True):
            caught += [] if problem else [mutant]
            if problem or names:
                print(f"{'FAILED' if problem else 'caught':7} {mutant.path.stem}: {problem or mutant.why}", flush=True)
    if not os.environ.get("CI"):
        write_caught(root, caught, every)
    print(f"mutants: {len(caught)} caught, {len(mutants) - len(caught)} not")
    return 0 if len(caught) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
