"""Make tasks of a repository: survey it, try changes, keep those that pass every gate.

    settings = TaskSettings(functions=12, classes=3, bugs=15)
    for attempt in make_repo_tasks(checkout, environment, folder=folder, settings=settings):
        ...                     # TaskAttempt: one for each change that was tried

Every attempt is written to attempts.jsonl before the next one, so a killed run goes on where it
was; the same repository, settings and seed give the same tasks. `tasks.jsonl` has the tasks of all
repositories, `base/NAME-HASH` the files that they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from composer_replication.repositories.checkout import Checkout
from composer_replication.repositories.edits import apply_edits
from composer_replication.repositories.environment import TestEnvironment, note_environment
from composer_replication.repositories.making.attempts import AttemptLog, TaskAttempt, base_folder
from composer_replication.repositories.making.candidates import Candidate, draw, find_candidates
from composer_replication.repositories.making.gates import hold_out, judge_change
from composer_replication.repositories.making.statement import (
    bug_statement,
    deletion_statement,
    gives_away,
)
from composer_replication.repositories.making.survey import TestSurvey, survey_tests
from composer_replication.repositories.making.vendored import (
    TwinIndex,
    holds_answer,
    index_packages,
)
from composer_replication.repositories.repo_task import (
    RepoTask,
    TaskKind,
    task_id,
)
from composer_replication.repositories.sandbox.test_runner import TestRunner
from composer_replication.repositories.task_language import language_of

PACKAGES = "packages.txt"
TRIES = 3
"""How many changes are tried for each task that is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """How many tasks of each kind are wanted from a repository, and the seed that draws them."""

    functions: int = 12
    classes: int = 3
    bugs: int = 15
    seed: int = 0

    def wanted(self) -> dict[TaskKind, int]:
        """The number for each kind that is cut from the current state."""
        return {"function": self.functions, "class": self.classes, "bug": self.bugs}


def make_repo_tasks(
    checkout: Checkout,
    environment: TestEnvironment,
    *,
    folder: Path,
    settings: TaskSettings,
) -> Iterator[TaskAttempt]:
    """Yield each attempt when it is decided; those of an earlier run come first, at once."""
    base = base_folder(checkout, folder=folder)
    log = AttemptLog(folder)
    language = language_of(checkout)
    with language.runner(environment, base, import_root=checkout.import_root) as runner:
        survey = survey_tests(runner, checkout)
        note_environment(environment)  # not before: one that runs no test replaces no other
        installed = language.installed_code(environment)
        index = index_packages(language, installed, cache=environment.metadata / PACKAGES)
        maker = _TaskMaker(checkout, base, survey=survey, runner=runner, index=index)
        found = find_candidates(checkout, survey, base=base)
        for kind, wanted in settings.wanted().items():
            made = 0
            drawn = draw(found, kind, seed=f"{checkout.sha256} {settings.seed}")
            for candidate in drawn[: TRIES * wanted]:
                if made == wanted:
                    break
                attempt = log.known.get(maker.id_of(candidate))
                if attempt is None:
                    attempt, task = maker.attempt(candidate)
                    log.add(attempt, task)
                made += not attempt.refused
                yield attempt


class _TaskMaker:
    """Turns the candidates of one repository into tasks."""

    def __init__(
        self,
        checkout: Checkout,
        base: Path,
        *,
        survey: TestSurvey,
        runner: TestRunner,
        index: frozenset[str],
    ) -> None:
        self._checkout, self._base = checkout, base
        self._survey, self._runner, self._index = survey, runner, index
        self._language = language_of(checkout)
        self._twins = TwinIndex(self._language, base, checkout.files)
        self._spent = 0.0  # the first attempt also bears the survey

    def id_of(self, candidate: Candidate) -> str:
        """The id of the task that a candidate would become."""
        edits = {candidate.path: list(candidate.edits)}
        return task_id(repository=self._checkout.name, base=self._checkout.sha256, edits=edits)

    def attempt(self, candidate: Candidate) -> tuple[TaskAttempt, RepoTask | None]:
        """Put a candidate through the gates."""
        name = self.id_of(candidate)
        task, refused = self._task(name, candidate)
        cpu_s, self._spent = self._runner.cpu_s - self._spent, self._runner.cpu_s
        attempt = TaskAttempt(
            id=name,
            repository=self._checkout.name,
            kind=candidate.kind,
            refused=refused,
            cpu_s=round(cpu_s, 3),
        )
        return attempt, task

    def _task(self, name: str, candidate: Candidate) -> tuple[RepoTask | None, str]:
        missing = candidate.missing
        if missing and holds_answer(self._index, self._language, candidate.removed):
            return None, "a package in the sandbox holds the answer"
        text = (self._base / candidate.path).read_bytes().decode("utf-8")
        changed = apply_edits(text, candidate.edits)
        if not self._language.parses(changed):
            return None, "does not parse"
        if missing and self._twins.has_twin(
            candidate.removed, path=candidate.path, changed=changed
        ):
            return None, "the repository holds the answer elsewhere"
        judged = judge_change(
            self._runner,
            self._survey,
            files={candidate.path: changed},
            tests=candidate.tests,
        )
        if judged.refused:
            return None, judged.refused
        hidden = hold_out(judged.must_pass, seed=name)
        shown = [test for test in judged.must_pass if test not in set(hidden)]
        if missing is None:
            statement = bug_statement(shown)
        else:
            statement = deletion_statement(missing, path=candidate.path, tests=shown)
            if gives_away(statement, candidate.removed):
                return None, "the docstring gives the answer away"
        task = RepoTask(
            id=name,
            repository=self._checkout.name,
            base=self._checkout.sha256,
            kind=candidate.kind,
            symbol=candidate.symbol,
            detail=candidate.detail,
            edits={candidate.path: list(candidate.edits)},
            removed={candidate.path: list(candidate.removed)},
            statement=statement,
            must_pass=list(judged.must_pass),
            must_keep=list(judged.must_keep),
            held_out=hidden,
            difficulty=candidate.lines(),
            cpu_s=judged.cpu_s,
            language=self._checkout.language,
        )
        return task, ""
