"""A scripted player that knows the answer: reads the file, puts the original back, runs the tests.

    session = solve_episode(env, solving(task, base=folder))
    session.outcome         # 1.0: what a perfect player would earn

It shows that a task can be earned with the tools, and its episodes are demonstrations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from composer_replication.core.trace import (
    Block,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    Turn,
)
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.sandbox.tree_sandbox_child import REPO
from composer_replication.repositories.task_language import language_named
from composer_replication.rollouts.envs.env import Env

DONE = "The tests pass: the work is done."
_SHOWN_TESTS = 6


def solving(task: RepoTask, *, base: Path, most: int | None = None) -> Iterator[list[ToolCall]]:
    """The calls of each message that lead to the original; the last message has none.

    With `most` it searches a file for the definition and reads that many lines from there, or more
    if the change is further down; without, it reads the file.
    """
    changed = task.changed_files(base)
    for path in task.paths:
        place = f"{REPO}/{path}"
        original = (base / path).read_bytes().decode("utf-8")
        old, new = smallest_edit(changed[path], original)
        if most is None:
            yield [ToolCall("", "Read", {"file_path": place})]
        else:
            yield from _looking(task, place, changed[path], old, most=most)
        yield [ToolCall("", "Edit", {"file_path": place, "old_string": old, "new_string": new})]
    shown = [name for name in task.must_pass if name not in task.held_out]
    if most is not None:  # as the statement lists them
        shown = list(dict.fromkeys(name.partition("[")[0] for name in shown))
    command = language_named(task.language).some_tests(shown[:_SHOWN_TESTS])
    yield [ToolCall("", "Bash", {"command": command, "description": "Run the tests"})]
    yield []


def _looking(
    task: RepoTask, place: str, text: str, old: str, *, most: int
) -> Iterator[list[ToolCall]]:
    """Search for the definition, then read from there to behind the text that is replaced."""
    pattern = language_named(task.language).definition(task.symbol)
    search = {"pattern": pattern, "path": place, "output_mode": "content", "-n": True}
    yield [ToolCall("", "Grep", search)]
    plain = text.replace("\r\n", "\n")
    begin = plain.index(old)
    first = plain.count("\n", 0, begin) + 1
    found = [plain.count("\n", 0, hit.start()) + 1 for hit in re.finditer(pattern, plain)]
    offset = max((line for line in found if line <= first), default=max(1, first - 2))
    last = first + old.count("\n")
    arguments = {"file_path": place, "offset": offset, "limit": max(most, last - offset + 2)}
    yield [ToolCall("", "Read", arguments)]


def smallest_edit(text: str, target: str) -> tuple[str, str]:
    """Two texts of whole lines: replacing the first, which occurs once, makes the target.

    >>> smallest_edit("a\\nb\\nc\\n", "a\\nB\\nc\\n")
    ('b\\n', 'B\\n')
    >>> smallest_edit("b\\na\\nb\\n", "b\\na\\nc\\n")
    ('a\\nb\\n', 'a\\nc\\n')
    """
    old, new = (part.replace("\r\n", "\n").split("\n") for part in (text, target))
    joined = "\n".join(old)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    while True:
        ends = [len(lines) - tail for lines in (old, new)]
        before, after = ("\n".join(x[head:end]) for x, end in zip((old, new), ends, strict=True))
        if tail:
            before, after = f"{before}\n", f"{after}\n"
        if before.strip() and joined.count(before) == 1:
            return before, after
        if not head and not tail:
            return before, after
        head, tail = max(0, head - 1), max(0, tail - (head == 0))


def solve_episode(
    env: Env, messages: Iterable[list[ToolCall]], *, name: str = "scripted"
) -> Session:
    """Play scripted messages; the session with the reward."""
    opening = env.open()
    turns = list(opening.turns)
    number = 0
    try:
        for calls in messages:
            blocks: list[Block] = [] if calls else [Text(DONE)]
            for call in calls:
                blocks.append(ToolCall(f"c{number}", call.name, call.arguments))
                number += 1
            message = Turn(role="assistant", author=name, blocks=tuple(blocks))
            reply = env.reply(message)
            turns += [message, *reply.turns]
            if reply.done:
                break
        outcome = env.reward()
    finally:
        env.close()
    return Session(
        id=f"{name}:{env.task_id}",
        source=SourceRef(file=env.task_id, format="rollout"),
        turns=tuple(turns),
        segments=(Segment(start=0, end=len(turns)),),
        tools=opening.tools,
        tools_origin="log",
        origin="student",
        outcome=outcome,
    )
