"""The tests of a task on the files of a player, and why their result can be trusted.

    report = run_tests(task, files, sandbox=sandbox)
    report.failures            # ("FAILED main.py: add(2, 3) == 5",), which the player is shown
    report.all_pass            # every test passes, hidden ones too, and only the targets changed

**Threat model.** A player can put any text into any file, as often as its budget allows, and read
the results of the visible tests: whether each passed, and the text of its error. Its code runs in
its own process behind the walls of `sandbox.py`; inside, it may read and write every byte of the
interpreter. So the player controls everything else in that process: a record of the answers, a
count of calls, a copy of the questions, a check of a module's names. Within one interpreter there
is neither secrecy nor integrity.

**Guarantees.** An episode earns its reward only if the files are right for whoever imports them:
the name of a value is bound to the wanted int, a function is right for arguments that nobody knew
when it was written, and everything else is unchanged. No hidden information reaches a player,
neither in a text nor as a difference between two texts.

**Measures.** (1) No judging code runs in the player's process. Expected values never enter it; they
are compared here. Its answers are read as untrusted text. (2) Questions go in one at a time, after
every module has run: the next is sent when the last is answered, visible ones first. So the text of
a visible failure was written before any hidden question was asked (`sandbox_worker.py`). (3) Hidden
questions are only asked about files in which nothing but target lines differs and each such line is
plain (`plain.py`): it was parsed here, and cannot reach the interpreter that it runs in. A process
with any other code could bind no name and still answer as if it had; no question tells the two
apart, so none is asked. Such code still runs for the visible tests, whose result says that it is
not judged. (4) A function is asked for fresh arguments, drawn from the hash of the written files: a
lookup table would have to hold the answers to questions that depend on the table. The draw is the
same for the same files, so a resumed run gives the same rewards.

**Costs and limits.** An import, an attribute, a second statement or name in a target line earns
nothing, though an honest player might write it; the test run says so. A player that knows the right
value or operator can write it, however it found out: that is the task. A function is asked for
seven points, all positive and below a million, so one that is wrong elsewhere passes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from composer_replication.workshop.plain import not_plain
from composer_replication.workshop.sandbox import SandboxRun
from composer_replication.workshop.tasks import Check, Task, fresh_checks


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """The result of the tests on one state of the files; `failures` are the lines of visible tests
    that a player is shown."""

    failures: tuple[str, ...]
    failed_paths: tuple[str, ...]
    all_pass: bool


class RunsTests(Protocol):
    """Evaluates the expressions of tests; `Sandbox` does for a model's edits."""

    def run(self, files: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> SandboxRun:
        """One answer per (path, expression), asked in this order."""
        ...


def run_tests(task: Task, files: Mapping[str, str], *, sandbox: RunsTests) -> TestReport:
    """Run the tests of a task on these files; only failures of visible tests are reported as
    text."""
    as_allowed = not task.changed_elsewhere(files)
    not_judged = (
        {
            t.path: why
            for t in task.targets
            if (why := not_plain(task.line_now(t, files), name=t.name))
        }
        if as_allowed
        else {}
    )
    judged = as_allowed and not not_judged
    hidden = _hidden_questions(task, files) if judged else ()
    checks: tuple[Check, ...] = (*task.visible, *hidden)
    answers = sandbox.run(files, [(check.path, check.expression) for check in checks]).answers
    passed = [answer.equals(check.expected) for check, answer in zip(checks, answers, strict=True)]
    failures: list[tuple[Check, str]] = []
    for check, answer, right in zip(task.visible, answers, passed, strict=False):
        if not right or check.path in not_judged:
            failures.append((check, answer.error if not right else not_judged[check.path]))
    return TestReport(
        failures=tuple(
            f"FAILED {check.text}" + (f" ({why})" if why else "") for check, why in failures
        ),
        failed_paths=tuple(check.path for check, _ in failures),
        all_pass=judged and all(passed),
    )


def _hidden_questions(task: Task, files: Mapping[str, str]) -> Sequence[Check]:
    """The hidden tests and fresh ones, in an order that the writer of the files cannot know, but
    that is always the same for these files."""
    text = json.dumps([task.id, sorted(files.items())])
    rng = random.Random(hashlib.sha256(text.encode()).digest())
    questions = [*task.hidden, *fresh_checks(task, rng)]
    rng.shuffle(questions)
    return questions
