"""Changes that could become tasks, with the tests that run the changed lines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer_replication.repositories.checkout import Checkout
from composer_replication.repositories.making.survey import TestSurvey
from composer_replication.repositories.python_changes import (
    Edit,
    PythonSource,
    Symbol,
    deletion,
    mutations,
)
from composer_replication.repositories.repo_task import TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A change of one file, not yet tried."""

    kind: TaskKind
    path: str
    symbol: Symbol
    detail: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    removed: tuple[str, ...]

    def lines(self) -> int:
        """How many lines of code the change removes."""
        return sum(len(text.splitlines()) for text in self.removed)


def find_candidates(checkout: Checkout, survey: TestSurvey, *, base: Path) -> list[Candidate]:
    """Every change of the repository that a test could notice, in the order of the files."""
    found: list[Candidate] = []
    for path in checkout.sources:
        try:
            source = PythonSource((base / path).read_bytes().decode("utf-8"))
        except (SyntaxError, ValueError):
            continue  # a template, or Python of another version: nothing to cut there
        for symbol in source.symbols():
            found += _of_symbol(source, symbol, path=path, survey=survey)
    return found


def draw(candidates: list[Candidate], kind: TaskKind, *, seed: str) -> list[Candidate]:
    """The candidates of a kind in a seeded order; mistakes of one function never follow each other
    while another function has some left."""
    chosen = [candidate for candidate in candidates if candidate.kind == kind]
    random.Random(f"{seed} {kind}").shuffle(chosen)
    if kind != "bug":
        return chosen
    rank: dict[tuple[str, str], int] = {}
    rounds: list[tuple[int, Candidate]] = []
    for candidate in chosen:
        key = (candidate.path, candidate.symbol.name)
        rank[key] = rank.get(key, -1) + 1
        rounds.append((rank[key], candidate))
    return [candidate for _, candidate in sorted(rounds, key=lambda row: row[0])]


def _of_symbol(
    source: PythonSource, symbol: Symbol, *, path: str, survey: TestSurvey
) -> Iterator[Candidate]:
    tests = survey.tests_of(path, symbol.body_lines())
    is_class = type(symbol.node).__name__ == "ClassDef"
    edits = deletion(source, symbol) if tests else None
    if edits:
        yield Candidate(
            kind="class" if is_class else "function",
            path=path,
            symbol=symbol,
            detail="",
            edits=tuple(edits),
            tests=tuple(tests),
            removed=_removed(source, edits),
        )
    if is_class:
        return
    for detail, line, change in mutations(source, symbol.node):
        if noticed := survey.tests_of(path, (line,)):
            yield Candidate(
                kind="bug",
                path=path,
                symbol=symbol,
                detail=detail,
                edits=tuple(change),
                tests=tuple(noticed),
                removed=_removed(source, change),
            )


def _removed(source: PythonSource, edits: list[Edit]) -> tuple[str, ...]:
    return tuple(source.data[edit.start : edit.end].decode() for edit in edits)
