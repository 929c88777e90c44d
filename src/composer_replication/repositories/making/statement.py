"""The words of a task: what is missing and which tests must pass, without the answer."""

from __future__ import annotations

from collections.abc import Sequence

from composer_replication.repositories.task_language import RemovedCode

_SHOWN = 6
_TELLING = 20
"""Characters from which on a line of code is specific enough to be an answer."""


def deletion_statement(missing: RemovedCode, *, path: str, tests: Sequence[str]) -> str:
    """The statement of a removed function or class: its signature, the first paragraph of its
    docstring, its tests."""
    text = f"`{missing.signature}` in {path} is not written yet: {missing.instead}. Write it."
    if missing.summary:
        text += f" Its docstring says: {missing.summary}"
    return f"{text}\nThese tests fail now and must pass:\n{list_tests(tests)}\n{_rest([path])}"


def bug_statement(tests: Sequence[str]) -> str:
    """The statement of a small mistake: only what fails, not where the cause is."""
    return (
        f"Some tests of this repository fail since a recent change:\n{list_tests(tests)}\n"
        "Find the cause in the package, not in the tests, and mend it. All other tests must go on"
        " passing."
    )


def history_statement(
    subject: str, *, paths: Sequence[str], tests: Sequence[str], unimported: Sequence[str] = ()
) -> str:
    """The statement of a commit: the first line of its message and the tests that it made pass.
    `unimported` are test files that import what is not there yet."""
    text = f"{subject.strip().rstrip('.')}.\n"
    if unimported:
        text += f"{', '.join(unimported)} cannot be imported yet, so none of its tests runs now.\n"
    return f"{text}These tests fail now and must pass:\n{list_tests(tests)}\n{_rest(paths)}"


def list_tests(tests: Sequence[str]) -> str:
    """Tests, one line each, cases of one function together; the rest of a long list is counted.

    >>> print(list_tests(["a.py::t[1]", "a.py::t[2]", "a.py::u"]))
    - a.py::t (2 cases)
    - a.py::u
    """
    cases: dict[str, int] = {}
    for name in tests:
        function = name.partition("[")[0]
        cases[function] = cases.get(function, 0) + 1
    rows = [f"- {name}" + (f" ({n} cases)" if n > 1 else "") for name, n in cases.items()]
    more = [f"- and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return "\n".join([*rows[:_SHOWN], *more])


def _rest(paths: Sequence[str]) -> str:
    where = ", ".join(paths)
    return f"All other tests must go on passing. Change only {where}."


def gives_away(statement: str, removed: Sequence[str]) -> str:
    """A line of the answer that the statement contains; "" if there is none.

    Short lines are no secret: `return None` says nothing.
    """
    flat = " ".join(statement.split())
    for text in removed:
        for line in text.splitlines():
            plain = " ".join(line.split())
            if len(plain) >= _TELLING and plain in flat:
                return plain
    return ""
