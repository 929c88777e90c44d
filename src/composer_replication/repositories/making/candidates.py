"""Changes that could become tasks, with the tests that run the changed lines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer_replication.repositories.checkout import Checkout
from composer_replication.repositories.edits import Edit, removed_texts
from composer_replication.repositories.making.survey import TestSurvey
from composer_replication.repositories.repo_task import TaskKind
from composer_replication.repositories.task_language import RemovedCode, language_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A change of one file, not yet tried; `missing` is what its statement may say of removed
    code, None for a bug."""

    kind: TaskKind
    path: str
    symbol: str
    detail: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    removed: tuple[str, ...]
    missing: RemovedCode | None = None

    def lines(self) -> int:
        """How many lines of code the change removes."""
        return sum(len(text.splitlines()) for text in self.removed)


def find_candidates(checkout: Checkout, survey: TestSurvey, *, base: Path) -> list[Candidate]:
    """Every change of the repository that a test could notice, in the order of the files."""
    return [
        candidate
        for path in checkout.sources
        for candidate in _of_file(checkout, path, survey=survey, base=base)
    ]


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
        key = (candidate.path, candidate.symbol)
        rank[key] = rank.get(key, -1) + 1
        rounds.append((rank[key], candidate))
    return [candidate for _, candidate in sorted(rounds, key=lambda row: row[0])]


def _of_file(
    checkout: Checkout, path: str, *, survey: TestSurvey, base: Path
) -> Iterator[Candidate]:
    try:
        text = (base / path).read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return
    for change in language_of(checkout).changes(text):
        if tests := survey.tests_of(path, change.lines):
            yield Candidate(
                kind=change.kind,
                path=path,
                symbol=change.symbol,
                detail=change.detail,
                edits=change.edits,
                tests=tuple(tests),
                removed=removed_texts(text, change.edits),
                missing=change.removed,
            )
