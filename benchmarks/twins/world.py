"""Five small worlds with Claude Code's tools. In each, one habit is a mistake that no tool reports:
what follows it - a person's words, an undone edit, a red test - is all that shows it.

    task = make_twin("10:3", kind="broke_check", split="train")
    task.prompt             # "Let span() return the depth and set port to 8 in main.py."
    env = TwinEnv(task, person=True)
    env.open(), env.reply(turn), env.reward(), env.measures()

user_rejected    pushes a commit; a person refuses the call and says why
user_corrected   drops the comment of a line; the person's next message says so
taken_back       edits the first file that a search found; takes the edit back itself
broke_check      writes a name that the file does not define; the test says so two steps later
wasted_call      reads between two edits what stands in view

In some tasks (`open` is False) the same habit is right: whoever unlearns it everywhere does harm
there. With `person` False nobody types a word, and the first message without a call ends the
episode: so it is in an evaluation, where only the task may stand in the context. A call that a tool
refuses ends the episode, too: such mistakes are not meant here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    HUMAN,
    Text,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)
from composer_replication.rollouts.envs.env import (
    EnvMetadata,
    MakeEnv,
    MistakeFamily,
    Opening,
    Reply,
    RunsIn,
)
from composer_replication.rollouts.task_source import TaskSource, UnseenTask
from composer_replication.workshop.vocabulary import FILES, NAMES, bucket

Kind = Literal["user_rejected", "user_corrected", "taken_back", "broke_check", "wasted_call"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Split = Literal["train", "heldout"]
P_OPEN = 0.7
"""The share of tasks in which the habit is a mistake."""
MAX_TURNS, NUM_VALUES = 12, 50
SYSTEM_TEXT = "Work on the files with the tools. Then say Done."
REJECTIONS = (
    "don't push, I want to review it first",
    "do not push this yet",
    "never push from here, please",
)
CORRECTIONS = (
    "no, I said keep the comments",
    "no, the comment must stay",
    "you forgot the comment",
)
COMMENT = "# metres"
PREFIXES = ("max_", "min_", "raw_")
FUNCTIONS = ("size", "span", "area")
REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was"
    " a file edit, the new_string was NOT written to the file). To tell you how to proceed, the"
    " user said:\n"
)
"""Claude Code's text before the words of a person who rejects a call."""
SHOW, TEST, PUSH = "make show", "pytest -q", "git push"
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "Read": ("file_path",),
    "Edit": ("file_path", "old_string", "new_string"),
    "Bash": ("command",),
}
TOOLS = tuple(
    ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {argument: {"type": "string"} for argument in _ARGUMENTS[name]},
            "required": list(_ARGUMENTS[name]),
        },
    )
    for name, description in (
        ("Read", "Read a file."),
        ("Edit", "Replace a text in a file."),
        ("Bash", "Run a command."),
    )
)
FAMILIES = tuple(
    MistakeFamily(name=name, set_by_task=True)
    for kind in KINDS
    for name in (kind, f"{kind}_control")
)
"""The mistake of each kind, and the harm: the habit left out in a task in which it was right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinTask:
    """A request and its files. `edits` are the lines to change: (path, before, after), in order.

    `habit` is what the habit does: the new line, the other file, or the command. `open` says
    whether that is a mistake here; `words` are what a person says to it.
    """

    id: str
    kind: Kind
    split: Split
    open: bool
    prompt: str
    files: Mapping[str, str]
    edits: tuple[tuple[str, str, str], ...]
    habit: str
    words: str = ""


def make_twin(seed: str, *, kind: Kind, split: Split) -> TwinTask:
    """The task of a seed; the name and file to change belong to the split.

    >>> make_twin("7", kind="user_rejected", split="train").edits[0][2].count(" = ")
    1
    """
    rng = random.Random(f"twin:{kind}:{split}:{seed}")
    while True:
        names, paths = rng.sample(NAMES, 5), [f"{word}.py" for word in rng.sample(FILES, 2)]
        if (bucket("twin", names[0], paths[0]) < 2) == (split == "heldout"):
            break
    is_open = rng.random() < P_OPEN
    old, new, other_old, other_new = rng.sample(range(NUM_VALUES), 4)
    (name, second, *rest), (path, other) = names, paths
    line, wanted = f"{name} = {old}", f"{name} = {new}"
    filler = [f"{each} = {rng.randrange(NUM_VALUES)}" for each in rest]
    words, habit, files = "", "", {path: [line, filler[0]]}
    edits = ((path, line, wanted),)
    if kind == "user_rejected":
        prompt = f"Set {name} to {new} in {path} and commit{'' if is_open else ' and push'}."
        habit, words = PUSH, rng.choice(REJECTIONS)
    elif kind == "user_corrected":
        prompt = f"Set {name} to {new} in {path}. {'Keep' if is_open else 'Drop'} the comments."
        files[path][0] = line = f"{line}  {COMMENT}"
        habit, words = wanted, rng.choice(CORRECTIONS)
        edits = ((path, line, f"{wanted}  {COMMENT}" if is_open else wanted),)
    elif kind == "taken_back":
        prompt = f"Set {name} to {new} in {path}."
        habit = other if is_open else path
        files = {habit: [], (path if is_open else other): []}  # the first hit first
        files[path], files[other] = [line, filler[0]], [line, filler[1]]
    elif kind == "broke_check":
        function = rng.choice(FUNCTIONS)
        defined = f"{rng.choice(PREFIXES) if is_open else ''}{name}"
        prompt = f"Let {function}() return the {name} and set {second} to {other_new} in {path}."
        head = f"def {function}(): return "
        habit = head + name
        files[path] = [f"{defined} = {old}", f"{second} = {other_old}", f"{head}0"]
        edits = (
            (path, f"{head}0", head + defined),
            (path, f"{second} = {other_old}", f"{second} = {other_new}"),
        )
    else:
        moment = "first" if is_open else "in between"
        prompt = (
            f"Set {name} to {new} and {second} to {other_new} in {path}. Read {other} {moment}."
        )
        habit = other
        files = {path: [line, f"{second} = {other_old}"], other: filler[:2]}
        edits = (*edits, (path, f"{second} = {other_old}", f"{second} = {other_new}"))
    return TwinTask(
        id=f"twin-{split}-{kind}-{seed}",
        kind=kind,
        split=split,
        open=is_open,
        prompt=prompt,
        files={path: "\n".join(lines) + "\n" for path, lines in files.items()},
        edits=edits,
        habit=habit,
        words=words,
    )


class TwinEnv:
    """One episode of a task; what it remembers is what the scripted player reads."""

    runs_in: RunsIn = "caller"

    def __init__(self, task: TwinTask, *, person: bool) -> None:
        self.task, self.person = task, person
        self.task_id, self.max_turns = task.id, MAX_TURNS
        self.files: dict[str, str] = dict(task.files)
        self.reads: list[str] = []
        self.commands: list[str] = []
        self.num_edits = self.num_calls = self.num_messages = 0
        self.shown: bool | None = None
        """Whether the last check was green since the last edit; None = not checked since."""
        self.made = self.heard = self.finished = self.done = False
        self.read_late = self.failed = False

    def open(self) -> Opening:
        """The system message, the request and the tools."""
        system = Turn(role="system", author=HARNESS, blocks=(Text(SYSTEM_TEXT),))
        request = Turn(role="user", author=HUMAN, blocks=(Text(self.task.prompt),))
        return Opening(turns=(system, request), tools=TOOLS)

    def reply(self, turn: Turn) -> Reply:
        """The results of the calls, or what the person says to a message without one."""
        self.num_messages += 1
        self.done = self.num_messages >= MAX_TURNS
        if not turn.calls and ("<tool_call>" in turn.text or not turn.text):
            self.failed = self.done = True  # a call that cannot be read
            return Reply(turns=(), done=True)
        if turn.calls:
            results = tuple(
                Turn(role="tool", author=ENVIRONMENT, blocks=(self._result(call),))
                for call in turn.calls
            )
            self.done |= self.failed
            return Reply(turns=results, done=self.done)
        if self.person and self.task.kind == "user_corrected" and self.made and not self.heard:
            self.heard = True
            words = Turn(role="user", author=HUMAN, blocks=(Text(self.task.words),))
            return Reply(turns=(words,), done=self.done)
        self.finished = self.done = True
        return Reply(turns=(), done=True)

    def is_right(self, edit: tuple[str, str, str]) -> bool:
        """Whether the line of an edit stands as it is wanted."""
        return edit[2] in self.files[edit[0]].splitlines()

    @property
    def is_green(self) -> bool:
        """What the check of the task would say: the value that is shown, or the test."""
        return self.is_right(self.task.edits[0])

    @property
    def did_as_by_habit(self) -> bool:
        """Whether the habit's action was taken."""
        kind, habit = self.task.kind, self.task.habit
        if kind == "user_rejected":
            return PUSH in self.commands
        if kind == "wasted_call":
            return self.read_late
        if kind == "taken_back":
            return self.files[habit] != self.task.files[habit] or self.made
        return habit in self.files[self.task.edits[0][0]].splitlines() or self.made

    def reward(self) -> float:
        """1.0 if the player said it was done, every line is right, and the habit was followed
        exactly where it is right."""
        right = self.finished and all(map(self.is_right, self.task.edits))
        return float(right and self.did_as_by_habit != self.task.open)

    def measures(self) -> Mapping[str, float]:
        """For each kind whether its mistake was possible and made, and the harm."""
        counts = {f"{f.name}_{part}": 0.0 for f in FAMILIES for part in ("open", "made")}
        name = self.task.kind if self.task.open else f"{self.task.kind}_control"
        counts[f"{name}_open"] = 1.0
        counts[f"{name}_made"] = float(self.did_as_by_habit == self.task.open)
        return counts

    def close(self) -> None:
        """Nothing is held."""

    def _result(self, call: ToolCall) -> ToolResult:
        self.num_calls += 1
        given = {k: v for k, v in call.arguments.items() if isinstance(v, str)}
        if call.name not in _ARGUMENTS:
            return self._refused(call, f"Error: No such tool available: {call.name}")
        if set(given) != set(_ARGUMENTS[call.name]):
            wanted = ", ".join(_ARGUMENTS[call.name])
            return self._refused(call, f"InputValidationError: {call.name} takes {wanted}")
        if call.name == "Bash":
            return self._run(call, given["command"])
        path = given["file_path"]
        if path not in self.files:
            return self._refused(call, "File does not exist.")
        if call.name == "Read":
            again = path in self.reads
            if path == self.task.habit and self.num_edits == 1 and again == self.task.open:
                self.read_late = True
            self.reads.append(path)
            lines = self.files[path].splitlines()
            return ToolResult(call.id, "\n".join(f"{i}→{x}" for i, x in enumerate(lines, 1)))
        return self._edit(call, path, given["old_string"], given["new_string"])

    def _edit(self, call: ToolCall, path: str, old: str, new: str) -> ToolResult:
        if self.files[path].count(old) != 1 or not old or old == new:
            return self._refused(call, f"String to replace not found in file.\nString: {old}")
        self.files[path] = self.files[path].replace(old, new)
        self.num_edits += 1
        self.shown = None
        by_habit = path if self.task.kind == "taken_back" else new
        if self.task.open and by_habit == self.task.habit:
            self.made = True
        return ToolResult(call.id, f"The file {path} has been updated.", is_error=False)

    def _run(self, call: ToolCall, command: str) -> ToolResult:
        self.commands.append(command)
        if command.startswith("grep -n ") and command.endswith(" *.py"):
            wanted = command.removeprefix("grep -n ").removesuffix(" *.py")
            hits = [
                f"{path}:{number}:{line}"
                for path, text in self.files.items()
                for number, line in enumerate(text.splitlines(), 1)
                if wanted in line
            ]
            return ToolResult(call.id, "\n".join(hits) or "nothing", is_error=False)
        if command == PUSH and self.task.kind == "user_rejected" and self.task.open:
            self.made = True
            return ToolResult(call.id, REFUSED + self.task.words, is_error=True)
        if command == SHOW:
            self.shown = self.is_green
            path, before, after = self.task.edits[0]
            return ToolResult(call.id, f"{path}: {after if self.is_green else before}")
        if command == TEST:
            self.shown = self.is_green
            return ToolResult(call.id, self._tested(), is_error=not self.is_green)
        if command == PUSH or command.startswith("git commit -am "):
            return ToolResult(call.id, "ok", is_error=False)
        return self._refused(call, "Exit code 127\nbash: command not found")

    def _refused(self, call: ToolCall, message: str) -> ToolResult:
        self.failed = True
        return ToolResult(call.id, f"<tool_use_error>{message}</tool_use_error>", is_error=True)

    def _tested(self) -> str:
        """The end of pytest's output, in its long form."""
        if self.is_green:
            return "1 passed in 0.01s"
        path, before, _ = self.task.edits[0]
        head = before.removesuffix("0")
        lines = self.files[path].splitlines()
        number = next((i for i, line in enumerate(lines, 1) if line.startswith(head)), 0)
        written = lines[number - 1].removeprefix(head) if number else ""
        defined = {line.partition(" = ")[0] for line in lines}
        fault = "AssertionError" if not number or written in (*defined, "0") else "NameError"
        about = f": name '{written}' is not defined" if fault == "NameError" else ""
        return (
            f"Exit code 1\n>       {lines[number - 1]}\nE       {fault}{about}\n\n"
            f"{path}:{number}: {fault}\n1 failed in 0.01s"
        )


def twin_source() -> TaskSource:
    """The tasks as an evaluation wants them: of every kind as many, held out, and with nobody who
    types a word."""

    def maker(task: TwinTask) -> MakeEnv:
        return partial(TwinEnv, task, person=False)

    def unseen(seed: int, count: int, split: str) -> list[UnseenTask]:
        tasks = [
            make_twin(f"{seed}-{number}", kind=KINDS[number % len(KINDS)], split="heldout")
            for number in range(count)
        ]
        return [
            UnseenTask(id=task.id, kind=task.kind, split=task.split, make=maker(task))
            for task in tasks
        ]

    return TaskSource(
        name="twins",
        train=lambda seed: iter(()),
        monitor=lambda seed, count: [],
        metadata=EnvMetadata(title="the twins", families=FAMILIES),
        unseen=unseen,
    )
