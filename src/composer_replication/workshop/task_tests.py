"""What a task's tests say about the files of a player, and what is believed of it.

    verdict = run_tests(task, files, sandbox=sandbox)
    verdict.failures            # ("FAILED main.py: add(2, 3) == 5",), what the player is shown
    verdict.all_pass        # every test passes, hidden ones too, and only the targets changed

**What a player can do.** Put any text into any file, as often as its budget allows, and read what
the visible tests answer: whether each passed, and the text of its error. Its code runs in a process
of its own behind the walls of `sandbox.py`; in there it may read and write every byte of the
interpreter. So whatever else runs in that process is the player's: a record of what was answered, a
count of calls, a copy of the questions, a check of a module's names. In one interpreter neither
secrecy nor integrity can be had.

**What must hold.** An episode earns only where the files are right for whoever imports them: the
name of a value stands for the wanted int, a function is right for arguments that nobody knew when
it was written, all else is as it was. And nothing that is hidden reaches a player, neither in a
text nor as a difference between two texts.

**How it holds.** (1) Nothing that judges is in the player's process. Expected values never enter
it; they are compared here. Its answers are read as a stranger's text. (2) Questions go in one at a
time, once every module has been run: the next is sent when the last is answered, visible ones
first. So the words of a visible failure were spoken before any hidden question was
(`sandbox_worker.py`). (3) Hidden questions are asked only of files in which nothing but target
lines differs and each such line is plain (`plain.py`): it was parsed here, and cannot reach the
interpreter that it runs in. A process full of other code could bind no name and answer as if it
had; no question tells the two apart, so none is asked. Such code still runs, for the visible tests,
and is told that it is not judged. (4) A function is asked for fresh arguments, drawn from the text
that was written: a table would have to hold the answers to questions that depend on the table. The
draw repeats for the same text, so a run that is resumed gives the same rewards.

**What this costs.** An import, an attribute, a second statement or name in a target line earn
nothing, though an honest player might write them; the test run says so. **What cannot be had.** Who
knows the right value or operator can write it, however it was come by: that is what was asked for.
A function is asked for seven points, all positive and below a million: one that is wrong elsewhere
passes.
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
    """What the tests said about one state of the files; `failures` are lines of visible tests, as a
    player is shown them."""

    failures: tuple[str, ...]
    failed_paths: tuple[str, ...]
    all_pass: bool


class RunsTests(Protocol):
    """What evaluates the expressions of the tests; `Sandbox` for a model's edits."""

    def run(self, files: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> SandboxRun:
        """One answer per (path, expression), asked in this order."""
        ...


def run_tests(task: Task, files: Mapping[str, str], *, sandbox: RunsTests) -> TestReport:
    """Run the tests of a task on these files; only failures of the visible ones are put into
    words."""
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
    """The hidden tests and fresh ones in an order that no one knows who wrote the files, but always
    the same for these files."""
    text = json.dumps([task.id, sorted(files.items())])
    rng = random.Random(hashlib.sha256(text.encode()).digest())
    questions = [*task.hidden, *fresh_checks(task, rng)]
    rng.shuffle(questions)
    return questions
