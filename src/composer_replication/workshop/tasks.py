"""Tasks of the workshop, made from a seed: a few small files, one or two things to change in them,
and tests.

task = make_task(7, split="train")
task.prompt                     # "Set depth to 7."
task.files                      # {"main.py": "depth = 3\\nport = 8\\n", ...}
task.budget                     # 5: search, read, edit, test, and the message that it is done

Kinds: "change" (the prompt names the file and the old value), "set" (the file has to be found),
"fix" (a function computes the wrong thing; a test shows it) and "both" (two values to set in two
files: the longest).

Splits are disjoint by the lines to change *and* by tool set: "train", "monitor" (other tasks,
training's tool sets: for monitoring a run), "heldout" (other tasks, other tool sets), and "words"
(files and names that occur in no other split).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from composer_replication.core.errors import ConfigError
from composer_replication.workshop.vocabulary import (
    FILES,
    NAMES,
    NEW_FILES,
    NEW_NAMES,
    NEW_PARAMETERS,
    PARAMETERS,
    Split,
    ToolSet,
    bucket,
    pick_toolset,
)

Kind = Literal["change", "set", "fix", "both"]
KINDS: tuple[Kind, ...] = get_args(Kind)
KIND_SHARES: Mapping[Kind, float] = {"change": 0.36, "set": 0.36, "fix": 0.18, "both": 0.10}
BUDGETS: Mapping[Kind, int] = {"change": 4, "set": 5, "fix": 5, "both": 8}
"""The messages that a faultless player needs, and not one more: each wasted call costs the
reward."""

NUM_FILES, LINES_PER_FILE, NUM_VALUES, NUM_HIDDEN_POINTS = 3, 2, 50, 2
FRESH_BELOW = (100, 1_000_000)
OPERATORS: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "div": "//", "mod": "%"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLine:
    """One line to change, e.g. TargetLine(path="main.py", name="depth", before="depth = 3",
    after="depth = 7")."""

    path: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One test: an expression in a file and the value it must have, e.g. Check(path="main.py",
    expression="depth", expected=7)."""

    path: str
    expression: str
    expected: int

    @property
    def text(self) -> str:
        """The test in one line, "main.py: depth == 7"."""
        return f"{self.path}: {self.expression} == {self.expected}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request, the files and tools it is about, and its tests. `hidden` checks are never shown to
    a player."""

    id: str
    kind: Kind
    split: Split
    prompt: str
    files: Mapping[str, str]
    targets: tuple[TargetLine, ...]
    visible: tuple[Check, ...]
    hidden: tuple[Check, ...]
    tools: ToolSet
    budget: int

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """The key of each target, which decides the split; a value to change has the same key in
        tasks of kind "change", "set" and "both"."""
        return tuple(_key(target) for target in self.targets)

    def changed_elsewhere(self, files: Mapping[str, str]) -> bool:
        """Whether anything but the target lines differs from the start: other lines, other files,
        files added or gone."""
        if set(files) != set(self.files):
            return True
        for path, text in files.items():
            before, after = self.files[path].split("\n"), text.split("\n")
            changeable = {t.before for t in self.targets if t.path == path}
            if len(before) != len(after):
                return True
            if any(
                old != new and (old not in changeable or len(new.splitlines()) > 1)
                for old, new in zip(before, after, strict=True)
            ):
                # another kind of line break (\r, form feed, U+2028) would make one line two
                return True
        return False

    def line_now(self, target: TargetLine, files: Mapping[str, str]) -> str:
        """The line at a target's place, in files in which nothing else was changed."""
        number = self.files[target.path].split("\n").index(target.before)
        return files[target.path].split("\n")[number]


def make_task(
    seed: int | str,
    *,
    split: Split = "train",
    kind: Kind | None = None,
    shares: Mapping[Kind, float] = KIND_SHARES,
) -> Task:
    """The task of a seed, always the same one; two seeds may give equal tasks, which then have
    equal ids.

    Raises ConfigError for an unknown split or kind.
    """
    if split not in get_args(Split) or (kind is not None and kind not in KINDS):
        raise ConfigError(
            f"no tasks of kind {kind!r} in split {split!r}",
            fix=f"splits: {get_args(Split)}; kinds: {KINDS}",
        )
    rng = random.Random(f"workshop:{split}:{seed}")
    chosen = kind or rng.choices(list(shares), weights=list(shares.values()))[0]
    while True:
        files, targets, prompt = (
            _write_fix(rng, split=split)
            if chosen == "fix"
            else _write_values(rng, kind=chosen, split=split)
        )
        if all(_belongs(target, split) for target in targets):
            break
    tools = pick_toolset(rng, split=split)
    visible, hidden = _checks(rng, chosen, files, targets)
    identity = [
        chosen,
        split,
        prompt,
        files,
        [[t.path, t.after] for t in targets],
        [c.text for c in (*visible, *hidden)],
        tools.key,
        tools.order,
    ]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    return Task(
        id=f"workshop-{split}-{chosen}-{digest}",
        kind=chosen,
        split=split,
        prompt=prompt,
        files=files,
        targets=targets,
        visible=visible,
        hidden=hidden,
        tools=tools,
        budget=BUDGETS[chosen],
    )


def make_tasks(
    count: int, *, seed: int, split: Split = "train", shares: Mapping[Kind, float] = KIND_SHARES
) -> list[Task]:
    """`count` different tasks of one seed.

    >>> len({task.id for task in make_tasks(20, seed=1)})
    20
    """
    names = (f"{seed}:{number}" for number in itertools.count())
    tasks = distinct_tasks(names, split=split, shares=shares)
    return [task for _, task in itertools.islice(tasks, count)]


def distinct_tasks(
    names: Iterable[str], *, split: Split = "train", shares: Mapping[Kind, float] = KIND_SHARES
) -> Iterator[tuple[str, Task]]:
    """(name, task) for each name, used as a seed, whose task differs from those before it."""
    task_ids: set[str] = set()
    for name in names:
        task = make_task(name, split=split, shares=shares)
        if task.id not in task_ids:
            task_ids.add(task.id)
            yield name, task


def fresh_checks(task: Task, rng: random.Random) -> tuple[Check, ...]:
    """New points of a task's function: small and large ones, each with the larger argument first
    and with the smaller first; () if the task has no function."""
    checks: list[Check] = []
    for target in task.targets if task.kind == "fix" else ():
        for below in FRESH_BELOW:
            for larger_first in (True, False):
                point = (0, 0)
                while not _operators_differ(point):
                    small, large = sorted(rng.sample(range(2, below), 2))
                    point = (large, small) if larger_first else (small, large)
                value = _compute(target.name, *point)
                checks.append(
                    Check(
                        path=target.path,
                        expression=f"{target.name}({point[0]}, {point[1]})",
                        expected=value,
                    )
                )
    return tuple(checks)


def _key(target: TargetLine) -> tuple[str, ...]:
    is_value = target.before.startswith(f"{target.name} =")
    return (target.name, target.path) if is_value else (target.name, target.path, target.before)


def _belongs(target: TargetLine, split: Split) -> bool:
    number = bucket("task", *_key(target))
    return {"heldout": number < 2, "monitor": number == 2, "train": number > 2, "words": True}[
        split
    ]


def _workspace(rng: random.Random, *, split: Split) -> dict[str, list[str]]:
    """Files with values that nothing depends on, in random order: path -> lines."""
    words, names = (NEW_FILES, NEW_NAMES) if split == "words" else (FILES, NAMES)
    picked = iter(rng.sample(names, NUM_FILES * LINES_PER_FILE))
    return {
        f"{word}.py": [
            f"{next(picked)} = {rng.randrange(NUM_VALUES)}" for _ in range(LINES_PER_FILE)
        ]
        for word in rng.sample(words, NUM_FILES)
    }


def _texts(files: Mapping[str, list[str]]) -> dict[str, str]:
    return {path: "\n".join(lines) + "\n" for path, lines in files.items()}


def _write_values(
    rng: random.Random, *, kind: Kind, split: Split
) -> tuple[dict[str, str], tuple[TargetLine, ...], str]:
    files = _workspace(rng, split=split)
    targets: list[TargetLine] = []
    for path in rng.sample(list(files), 2 if kind == "both" else 1):
        before = rng.choice(files[path])
        name, _, value = before.partition(" = ")
        new_value = rng.choice([n for n in range(NUM_VALUES) if n != int(value)])
        targets.append(
            TargetLine(path=path, name=name, before=before, after=f"{name} = {new_value}")
        )
    new_values = [(t.name, t.after.rpartition(" ")[2]) for t in targets]
    if kind == "change":
        target = targets[0]
        prompt = (
            f"Change {target.name} from {target.before.rpartition(' ')[2]} to {new_values[0][1]} in"
            f" {target.path}."
        )
    else:
        prompt = f"Set {' and '.join(f'{name} to {value}' for name, value in new_values)}."
    return _texts(files), tuple(targets), prompt


def _write_fix(
    rng: random.Random, *, split: Split
) -> tuple[dict[str, str], tuple[TargetLine, ...], str]:
    files = _workspace(rng, split=split)
    path, name = rng.choice(list(files)), rng.choice(list(OPERATORS))
    a, b = rng.choice(NEW_PARAMETERS if split == "words" else PARAMETERS)
    wrong = rng.choice([sign for sign in OPERATORS.values() if sign != OPERATORS[name]])
    line = f"def {name}({a}, {b}): return {a} {{}} {b}"
    target = TargetLine(
        path=path, name=name, before=line.format(wrong), after=line.format(OPERATORS[name])
    )
    files[path][rng.randrange(LINES_PER_FILE)] = target.before
    return (
        _texts(files),
        (target,),
        rng.choice(["A test fails. Fix the code.", "Fix the failing test."]),
    )


def _compute(name: str, x: int, y: int) -> int:
    return {"add": x + y, "sub": x - y, "mul": x * y, "div": x // y, "mod": x % y}[name]


def _operators_differ(point: tuple[int, int]) -> bool:
    """Whether every operator gives another value at this point, so that none passes by accident."""
    return 0 not in point and len({_compute(name, *point) for name in OPERATORS}) == len(OPERATORS)


def _checks(
    rng: random.Random, kind: Kind, files: Mapping[str, str], targets: tuple[TargetLine, ...]
) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
    """The tests that are shown and those that are not: more points of a function, and every other
    value as it was."""
    if kind == "fix":
        target = targets[0]
        points: list[tuple[int, int]] = []
        while len(points) < 1 + NUM_HIDDEN_POINTS:
            point = (rng.randrange(2, 10), rng.randrange(2, 10))
            if _operators_differ(point) and point not in points:
                points.append(point)
        checks = [
            Check(
                path=target.path,
                expression=f"{target.name}({x}, {y})",
                expected=_compute(target.name, x, y),
            )
            for x, y in points
        ]
        visible, hidden = checks[:1], checks[1:]
    else:
        visible = [
            Check(path=t.path, expression=t.name, expected=int(t.after.rpartition(" ")[2]))
            for t in targets
        ]
        hidden = []
    befores = {t.before for t in targets}
    for path, text in files.items():
        for line in text.splitlines():
            name, is_value, value = line.partition(" = ")
            if is_value and line not in befores:
                hidden.append(Check(path=path, expression=name, expected=int(value)))
    return tuple(visible), tuple(hidden)
