"""The gates of a commit: each of its tests fails by itself on the package as it was.

    judged = judge_commit(runner, survey, before=before, stubbed=stubbed)

A test file that imports a name of the commit cannot be collected before it: all of its tests are
missing, also those of older code. Such a file is run once more on the package as it was with stubs
of the new names (`Language.with_stubs`). What fails there must pass, what passes there must keep
passing: so no task is earned by a stub that does no more than let the file be imported. A file
that cannot be collected with stubs either makes no task, because nobody knows what its tests say.

1. The commit passes its tests three times: survey.py.
2. A test that does not pass on the package as it was, or with stubs, must pass. Most of them may
   fail: a commit is a change that people made, whatever it changed.
3. Doing nothing earns 0, and so do the stubs.
4. The commit earns 1 when only these tests run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from composer_replication.repositories.making.gates import (
    DIED,
    NONE_FAILS,
    JudgedChange,
    affordable,
    judge_ends,
)
from composer_replication.repositories.making.survey import LIMIT_S, TestSurvey
from composer_replication.repositories.sandbox.test_runner import TestRunner

NO_STUBS = "its test file cannot be imported, even with stubs of the new names"


def judge_commit(
    runner: TestRunner,
    survey: TestSurvey,
    *,
    before: Mapping[str, str],
    stubbed: Mapping[str, str],
) -> JudgedChange:
    """Put a commit through gates 2 to 4. `before` are its files as they were, `stubbed` the same
    with stubs of the names that it adds."""
    tests = survey.steady
    run = runner.run(tests=tests, files=before, limit_s=LIMIT_S)
    if not run.ended:
        return JudgedChange(refused=DIED)
    outcomes, unsolved = dict(run.outcomes), [before]
    unimported = _files(tests) - _files(outcomes)
    if unimported:
        asked = [name for name in tests if _file(name) in unimported]
        run = runner.run(tests=asked, files=stubbed, limit_s=LIMIT_S)
        if not run.ended:
            return JudgedChange(refused=DIED)
        if unimported - _files(run.outcomes):
            return JudgedChange(refused=NO_STUBS)
        outcomes.update(run.outcomes)
        unsolved.append(stubbed)
    passing = {name for name in tests if outcomes.get(name) == "passed"}
    failing = affordable([name for name in tests if name not in passing], survey.durations)
    if not failing:
        return JudgedChange(refused=NONE_FAILS)
    keep = affordable(sorted(passing), survey.durations)
    judged = judge_ends(runner, unsolved, must_pass=failing, must_keep=keep)
    return judged if judged.refused else replace(judged, unimported=tuple(sorted(unimported)))


def _file(test: str) -> str:
    return test.partition("::")[0]


def _files(tests: Iterable[str]) -> set[str]:
    return {_file(name) for name in tests}
