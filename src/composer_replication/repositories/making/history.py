"""Tasks from a repository's own history: a commit that changed the package and its tests.

    for commit in commits_with_tests(Path("shop"), most=50):
        ...             # SourceCommit(id="1a2b3c", subject="Round totals", ...)

The task starts from the commit's files with the package's files as they were before it: the new
tests are there and fail, or their file cannot be imported yet (commit_gates.py). Its statement is
the first line of the commit's message and the names of those tests. No `.git` is in the room, so
the answer is not in its history either.
"""

from __future__ import annotations

import difflib
import io
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from composer_replication.core.errors import DataError
from composer_replication.core.files import make_folder
from composer_replication.repositories.checkout import Checkout, git, read_checkout
from composer_replication.repositories.edits import Edit, removed_texts
from composer_replication.repositories.environment import TestEnvironment
from composer_replication.repositories.known_languages import DEFAULT_LANGUAGE
from composer_replication.repositories.making.attempts import (
    AttemptLog,
    TaskAttempt,
    base_folder,
    commit_attempt,
)
from composer_replication.repositories.making.commit_gates import judge_commit
from composer_replication.repositories.making.gates import hold_out
from composer_replication.repositories.making.statement import gives_away, history_statement
from composer_replication.repositories.making.survey import survey_tests
from composer_replication.repositories.repo_task import RepoTask, task_id
from composer_replication.repositories.task_language import language_named, language_of

MAX_SOURCES = 5
_MAX_FAILED_COMMITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCommit:
    """A commit that changed files of the package and of the tests."""

    id: str
    subject: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]


def commits_with_tests(
    folder: Path, *, most: int, language: str = DEFAULT_LANGUAGE
) -> list[SourceCommit]:
    """The newest commits of the main line that changed at most five files of the package, and its
    tests; [] if the folder is no repository of git. A merge is one commit, named by the first line
    below its subject, where GitHub puts the title; one without it says nothing and is left out."""
    if not (folder / ".git").exists():
        return []
    rules = language_named(language)
    form = "--format=%x00%H%x01%P%x01%s%x01%b%x01"
    log = git(folder, "log", "--first-parent", "-m", "-n500", "--name-status", form)
    commits: list[SourceCommit] = []
    for entry in log.decode("utf-8", errors="replace").split("\0")[1:]:
        identity, parents, subject, body, names = entry.split("\x01", 4)
        if " " in parents:
            subject = next((line for line in body.splitlines() if line.strip()), "")
        rows = [line for line in names.splitlines() if line]
        changed = [row.split("\t") for row in rows]
        code = [(status, paths[-1]) for status, *paths in changed if rules.is_code(paths[-1])]
        tests = tuple(path for status, path in code if rules.is_test(path) and status in "AM")
        others = [(status, path) for status, path in code if not rules.is_test(path)]
        sources = tuple(path for _, path in others)
        modified = all(status == "M" for status, _ in others)
        if subject and tests and sources and modified and len(sources) <= MAX_SOURCES:
            commits.append(SourceCommit(id=identity, subject=subject, sources=sources, tests=tests))
    return commits[:most]


def make_history_tasks(
    folder: Path,
    environment: TestEnvironment,
    *,
    name: str,
    target: Path,
    wanted: int,
    language: str = DEFAULT_LANGUAGE,
) -> Iterator[TaskAttempt]:
    """Yield each commit that was tried; those of an earlier run come first, at once."""
    log = AttemptLog(target)
    made = 0
    most = _MAX_FAILED_COMMITS * wanted
    for commit in commits_with_tests(folder, most=most, language=language):
        if made == wanted:
            return
        known = commit_attempt(name, commit.id)
        attempt = log.known.get(known)
        if attempt is None:
            task, reason, cpu_s = _try_commit(
                folder, environment, commit=commit, name=name, target=target, language=language
            )
            attempt = TaskAttempt(
                id=known, repository=name, kind="history", refused=reason, cpu_s=cpu_s
            )
            log.add(attempt, task)
        made += not attempt.refused
        yield attempt


def _try_commit(
    folder: Path,
    environment: TestEnvironment,
    *,
    commit: SourceCommit,
    name: str,
    target: Path,
    language: str,
) -> tuple[RepoTask | None, str, float]:
    place = target / f".{commit_attempt(name, commit.id)}.part"
    shutil.rmtree(place, ignore_errors=True)
    make_folder(place)
    try:
        _export(folder, commit.id, place)
        checkout = read_checkout(place, name=name, language=language)
        return _task(folder, environment, commit=commit, checkout=checkout, target=target)
    except DataError as error:
        return None, f"its tests do not run: {error.what}", 0.0
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _task(
    folder: Path,
    environment: TestEnvironment,
    *,
    commit: SourceCommit,
    checkout: Checkout,
    target: Path,
) -> tuple[RepoTask | None, str, float]:
    language = language_of(checkout)
    before = {
        path: git(folder, "show", f"{commit.id}^:{path}").decode("utf-8") for path in commit.sources
    }
    after = {path: (checkout.folder / path).read_bytes().decode("utf-8") for path in commit.sources}
    stubbed = {path: language.with_stubs(before[path], after[path]) for path in commit.sources}
    base = base_folder(checkout, folder=target)
    its_tests = replace(checkout, tests=commit.tests)
    with language.runner(environment, base, import_root=checkout.import_root) as runner:
        survey = survey_tests(runner, its_tests)
        judged = judge_commit(runner, survey, before=before, stubbed=stubbed)
        spent = round(runner.cpu_s, 3)
    if judged.refused:
        return None, judged.refused, spent
    edits = {path: line_edits(after[path], before[path]) for path in commit.sources}
    removed = {path: list(removed_texts(after[path], rows)) for path, rows in edits.items()}
    identity = task_id(repository=checkout.name, base=checkout.sha256, edits=edits)
    hidden = hold_out(judged.must_pass, seed=identity)
    shown = [test for test in judged.must_pass if test not in set(hidden)]
    statement = history_statement(
        commit.subject, paths=commit.sources, tests=shown, unimported=judged.unimported
    )
    if gives_away(statement, [text for texts in removed.values() for text in texts]):
        return None, "the commit's message gives the answer away", spent
    task = RepoTask(
        id=identity,
        repository=checkout.name,
        base=checkout.sha256,
        kind="history",
        symbol="",
        detail=commit.subject,
        edits=edits,
        removed=removed,
        statement=statement,
        must_pass=list(judged.must_pass),
        must_keep=list(judged.must_keep),
        held_out=hidden,
        difficulty=sum(len(text.splitlines()) for texts in removed.values() for text in texts),
        cpu_s=judged.cpu_s,
        commit=commit.id,
        language=checkout.language,
    )
    return task, "", spent


def line_edits(text: str, target: str) -> list[Edit]:
    """Edits of whole lines that turn one text into another.

    >>> line_edits("a\\nb\\n", "a\\nc\\n")
    [Edit(start=2, end=4, text='c\\n')]
    """
    old = [line for line in text.encode().splitlines(keepends=True)]
    new = target.encode().splitlines(keepends=True)
    starts = [0]
    for line in old:
        starts.append(starts[-1] + len(line))
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    return [
        Edit(starts[a], starts[b], b"".join(new[c:d]).decode())
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]


def _export(folder: Path, commit: str, place: Path) -> None:
    """The files of a commit, without its history."""
    archive = git(folder, "archive", "--format=tar", commit)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(place, filter="data")
