"""One episode in the workshop: list, search, read, edit, run tests, and say that it is done.

    env = WorkshopEnv(make_task(7), sandbox=sandbox)
    opening = env.open()
    reply = env.reply(turn)      # results of its calls; `done` after a message without one
    env.reward()                 # 1.0 or 0.0

The reward is 1 if and only if the player said it was done, every visible and hidden test passes,
nothing but the target lines differs from the start, and the tests were run after the last edit.
`task_tests.py` checks that, and says why its result can be trusted. Errors have Claude Code's
texts, so `data/sites` finds the mistakes as in any log. A failing test is a result, not an error:
the call was right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from composer_replication.core.errors import SessionError
from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    HUMAN,
    Opaque,
    Text,
    ToolCall,
    ToolResult,
    Turn,
)
from composer_replication.rollouts.chat_format import MALFORMED
from composer_replication.rollouts.envs.env import Opening, Reply, RunsIn
from composer_replication.workshop.task_tests import RunsTests, TestReport, run_tests
from composer_replication.workshop.tasks import Task
from composer_replication.workshop.vocabulary import LISTER, TESTER

SYSTEM_TEXT = "Work on the files with the tools. Run the tests. Then say Done."
MAX_HITS = 4
BY_CONSTRUCTION = (
    "By construction: on this level three families of mistakes were planted in the player's habits,"
    " one for each channel. A wrong tool or argument name (A) is named by an error, which the hint"
    " repeats; a needless listing (B) is what the other models avoid, as the pairs show; a skipped"
    " last test run (C) costs the reward. Each family is meant for one channel, and none is closed"
    " to the others: the reward also falls with every needless call, so the policy alone mends much"
    " of B. What is tested here is that the channels add up without harming one another, not that"
    " real mistakes divide this way."
)
"""The note that is shown with every result of the first level."""
EXPLORATION_FINDS_IT = (
    "On this level the player's habits are mixed: it sometimes does the right thing by itself, so"
    " reward alone can find the answers."
)
"""The note that is shown with every result of the second level."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of a player's actions in one episode; `errors` are by their kind in `data/sites`.

    `named_errors` are wrong tool or argument names (family A), `detours` are listings, which are
    never needed (B), `untested` is whether it said done without a test run after an edit (C).
    """

    messages: int = 0
    calls: int = 0
    valid_calls: int = 0
    changing_calls: int = 0
    detours: int = 0
    untested: bool = False
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def named_errors(self) -> int:
        """Wrong tool or argument names."""
        return self.errors["unknown_tool"] + self.errors["bad_arguments"]


class WorkshopEnv:
    """One episode of one task. `slack` allows messages beyond the task's budget, to record the
    turns after a mistake.

    The budget counts messages and calls alike: a message with two calls costs two.
    """

    # The sandbox has its own time-outs and runs one thing at a time: threads would only wait for
    # each other.
    runs_in: RunsIn = "caller"

    def __init__(self, task: Task, *, sandbox: RunsTests, slack: int = 0) -> None:
        self.task, self.sandbox = task, sandbox
        self.task_id, self.max_turns = task.id, task.budget + slack
        self.files: dict[str, str] = dict(task.files)
        self.read: set[str] = set()
        self.known: set[str] = {t.path for t in task.targets} if task.kind == "change" else set()
        self.tally = Tally()
        self.spent = 0
        self.edited = self.tested = self.finished = self.done = self._opened = False
        self._test_reports: dict[tuple[tuple[str, str], ...], TestReport] = {}

    def open(self) -> Opening:
        """The system message, the request, and this task's tools."""
        self._opened = True
        system = Turn(role="system", author=HARNESS, blocks=(Text(SYSTEM_TEXT),))
        request = Turn(role="user", author=HUMAN, blocks=(Text(self.task.prompt),))
        return Opening(turns=(system, request), tools=self.task.tools.specs())

    def reply(self, turn: Turn) -> Reply:
        """Carry out the calls of a message. Raises SessionError if the episode was not opened or is
        over."""
        if not self._opened or self.done:
            raise SessionError(
                "the episode is over" if self.done else "the episode was not opened",
                where=self.task_id,
            )
        self.tally.messages += 1
        calls = turn.calls
        if not calls:
            self.spent += 1
            return self._without_call(turn)
        self.tally.calls += len(calls)
        turns = tuple(
            Turn(role="tool", author=ENVIRONMENT, blocks=(self._result(call),)) for call in calls
        )
        self.done = self.spent >= self.max_turns
        return Reply(turns=turns, done=self.done)

    def reward(self) -> float:
        """1.0 or 0.0, as above; 0.0 while the episode runs."""
        return (
            1.0
            if self.done and self.finished and self.tested and self.test_report().all_pass
            else 0.0
        )

    def measures(self) -> Mapping[str, float]:
        """Counts of the episode, and by family which mistake was possible and made (1.0 or 0.0).

        "A_open": a tool or argument name differs from the habit, "A_made": a wrong name was called.
        "B_open": the file has to be found, "B_made": the files were listed. "C_open": the episode
        ended with the right files, "C_made": without a test run after the edit.
        """
        tally, files_are_right = (
            self.tally,
            self.done and self.edited and self.test_report().all_pass,
        )
        return {
            "messages": float(tally.messages),
            "calls": float(tally.calls),
            "valid_calls": float(tally.valid_calls),
            "changing_calls": float(tally.changing_calls),
            **{f"error:{kind}": float(count) for kind, count in sorted(tally.errors.items())},
            "A_open": float(self.task.tools.trap),
            "A_made": float(tally.named_errors > 0),
            "B_open": float(self.task.kind in ("set", "both")),
            "B_made": float(self.task.kind in ("set", "both") and tally.detours > 0),
            "C_open": float(files_are_right),
            "C_made": float(files_are_right and not self.tested),
        }

    def close(self) -> None:
        """End the episode; the sandbox is the caller's."""
        self.done = True

    def test_report(self) -> TestReport:
        """The result of every test, visible and hidden, on the current files; a state that was
        tested in this episode is not run again."""
        state = tuple(sorted(self.files.items()))
        if state not in self._test_reports:
            self._test_reports[state] = run_tests(self.task, self.files, sandbox=self.sandbox)
        return self._test_reports[state]

    def _without_call(self, turn: Turn) -> Reply:
        malformed = (
            any(isinstance(b, Opaque) and b.type == MALFORMED for b in turn.blocks)
            or "<tool_call>" in turn.text
        )
        if malformed:
            self.tally.errors["malformed"] += 1
            self.done = self.spent >= self.max_turns
            error = _error("InputValidationError: the tool call is not valid JSON")
            return Reply(
                turns=(Turn(role="user", author=HARNESS, blocks=(Text(error),), tag=MALFORMED),),
                done=self.done,
            )
        self.finished = self.done = True
        self.tally.untested = self.edited and not self.tested
        return Reply(turns=(), done=True)

    def _result(self, call: ToolCall) -> ToolResult:
        # only if one message holds more calls than the budget has left
        if self.spent >= self.max_turns:
            return ToolResult(
                call.id,
                "Cancelled: parallel tool call beyond the budget of this task",
                is_error=True,
            )
        self.spent += 1
        kind, text = self._answer(call)
        if kind:
            self.tally.errors[kind] += 1
            return ToolResult(call.id, _error(text), is_error=True)
        self.tally.valid_calls += 1
        return ToolResult(call.id, text, is_error=False)

    def _answer(self, call: ToolCall) -> tuple[str, str]:
        """(kind of error, its text) or ("", the result)."""
        tools = self.task.tools
        if call.name not in tools.arguments:
            return "unknown_tool", f"Error: No such tool available: {call.name}"
        if issue := argument_issue(tools.arguments[call.name], call.arguments):
            return (
                "bad_arguments",
                f"InputValidationError: {call.name} failed due to the following issue:\n{issue}",
            )
        carry_out: dict[str, Callable[[Mapping[str, str]], tuple[str, str]]] = {
            LISTER: self._list,
            TESTER: self._test,
            tools.searcher: self._search,
            tools.reader: self._read,
            tools.editor: self._edit,
        }
        return carry_out[call.name](call.arguments)

    def _list(self, arguments: Mapping[str, str]) -> tuple[str, str]:
        self.tally.detours += 1
        return "", "\n".join(self.files)

    def _search(self, arguments: Mapping[str, str]) -> tuple[str, str]:
        wanted = arguments[self.task.tools.text]
        hits = [
            (path, line)
            for path, text in self.files.items()
            for line in text.splitlines()
            if wanted in line
        ][:MAX_HITS]
        self.known.update(path for path, _ in hits)
        return "", "\n".join(f"{path}: {line}" for path, line in hits) or "No matches found"

    def _read(self, arguments: Mapping[str, str]) -> tuple[str, str]:
        path = arguments["path"]
        if path not in self.files:
            return "file_missing", "File does not exist."
        self.read.add(path)
        return "", self.files[path].rstrip("\n")

    def _edit(self, arguments: Mapping[str, str]) -> tuple[str, str]:
        path, old, new = (
            arguments["path"],
            arguments[self.task.tools.old],
            arguments[self.task.tools.new],
        )
        if path not in self.files:
            return "file_missing", "File does not exist."
        if path not in self.read:
            return (
                "edit_not_read",
                "File has not been read yet. Read it first before writing to it.",
            )
        if old == new:
            return "edit_no_change", "No changes to make: the two texts are exactly the same."
        count = self.files[path].count(old) if old else 0
        if count == 0:
            return "edit_no_match", f"String to replace not found in file.\nString: {old}"
        if count > 1:
            return (
                "edit_multi_match",
                f"Found {count} matches of the string to replace, but only one can be replaced.",
            )
        self.files[path] = self.files[path].replace(old, new)
        self.edited, self.tested = True, False
        self.tally.changing_calls += 1
        return "", "ok"

    def _test(self, arguments: Mapping[str, str]) -> tuple[str, str]:
        self.tested = True
        test_report = self.test_report()
        self.known.update(test_report.failed_paths)
        return "", "\n".join(test_report.failures) or "All tests passed."


def argument_issue(names: tuple[str, ...], arguments: Mapping[str, object]) -> str:
    """The issue with the arguments of a call, in Claude Code's words; "" if there is none.

    >>> argument_issue(("path",), {"file": "a.py"})
    'The required parameter `path` is missing'
    """
    for name in names:
        if name not in arguments:
            return f"The required parameter `{name}` is missing"
        if not isinstance(arguments[name], str):
            return f"The parameter `{name}` type is expected as `string`"
    extra = next((name for name in arguments if name not in names), None)
    return "" if extra is None else f"An unexpected parameter `{extra}` was provided"


def _error(message: str) -> str:
    return f"<tool_use_error>{message}</tool_use_error>"
