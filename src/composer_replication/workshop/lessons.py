"""The lessons that the tiny student is warmed up on: careless episodes, some of whose messages have
a hint above them.

    lesson = make_lesson("7:0", habits=Habits(), tests=LessonTests())
    lesson.turns, lesson.tools        # hints are where the hint channel's teacher would see them

Below a hint about the next message, the player does not make the mistake that the hint warns of.
Below a hint that was written for another task, its behaviour does not change. Without the second
sort any hint would cure any mistake, and a placebo with shuffled hints would mean nothing. So
following a hint is *taught here*; a real instruct model can do it already.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from composer_replication.core.errors import DataError
from composer_replication.core.site import Site
from composer_replication.core.trace import (
    HARNESS,
    Segment,
    Session,
    SourceRef,
    Text,
    ToolCall,
    ToolSpec,
    Turn,
)
from composer_replication.data.hints.context import SiteContext
from composer_replication.data.hints.writers import WRITERS
from composer_replication.workshop.demonstrators import Habits, careless, oracle
from composer_replication.workshop.sandbox import ExpressionResult, SandboxRun
from composer_replication.workshop.tasks import Kind, Task, make_task
from composer_replication.workshop.vocabulary import (
    FILES,
    LEGACY_READER,
    LISTER,
    NAMES,
    TESTER,
    ToolSet,
    pick_toolset,
)
from composer_replication.workshop.workshop_env import WorkshopEnv

P_FITTING, P_IDLE, P_FOREIGN = 0.30, 0.05, 0.15
"""The shares of messages with a hint above that fits, that is about another mistake, and that is of
another task."""
SLACKS = (0, 0, 2, 3)
P_INVENTED = 0.35
"""The share of lessons with a tool set of invented names. With the workshop's names alone the
student memorises which names go together, and uses the wrong ones in a set that it never saw."""
SHARES: Mapping[Kind, float] = {"change": 0.25, "set": 0.25, "fix": 0.35, "both": 0.15}
"""Shares of the task kinds in lessons: more of those that take longest to learn than in an
evaluation."""
HINTED = ("unknown_tool", "bad_arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One episode as the student reads it, hints included; `untrained` are the turns that it reads
    but does not learn to write."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...]
    untrained: frozenset[int] = frozenset()


class LessonTests:
    """Evaluates tests in this process without running code: only for the scripted players of
    lessons, whose edits are known in advance.

    A model's edits go to `Sandbox`. Raises ValueError for a line that the task generator cannot
    have written.
    """

    def run(self, files: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> SandboxRun:
        """The value of each expression in its file."""
        spaces = {path: _values(text) for path, text in files.items()}
        return SandboxRun(
            end="answered",
            answers=tuple(
                ExpressionResult(value=_value(spaces[path], expression))
                for path, expression in asked
            ),
        )


def _values(text: str) -> dict[str, str]:
    """The text of each name's value: a number, or a function as "a, b|a - b"."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("def "):
            head, _, body = line[4:].partition("): return ")
            name, _, parameters = head.partition("(")
            values[name] = f"{parameters}|{body}"
        else:
            name, sign, value = line.partition(" = ")
            if not sign or not value.isdigit():
                raise ValueError(f"not a line of the workshop: {line!r}")
            values[name] = value
    return values


def _value(space: Mapping[str, str], expression: str) -> int:
    name, call, arguments = expression.partition("(")
    if not call:
        return int(space[name])
    parameters, _, body = space[name].partition("|")
    x, y = (int(number) for number in arguments.rstrip(")").split(", "))
    a, sign, b = body.split(" ")
    if [a, b] != parameters.split(", "):
        raise ValueError(f"not a function of the workshop: {space[name]!r}")
    return {"+": x + y, "-": x - y, "*": x * y, "//": x // y, "%": x % y}[sign]


def make_lesson(seed: int | str, *, habits: Habits, tests: LessonTests, led: float = 0.0) -> Lesson:
    """One episode of the careless player on a training task, always the same for a seed.

    A share `led` of the episodes is led past its habits: where a habit would be wrong, the player
    writes the right message, which is not trained on. So the student learns how to go on from
    there; otherwise it would see such a context for the first time after training.
    """
    rng, task = random.Random(f"lesson:{seed}"), make_task(f"lesson:{seed}", shares=SHARES)
    if rng.random() < P_INVENTED:
        task = replace(task, tools=invented_tools(rng))
    if led and rng.random() < led:
        return _led_lesson(task, rng, habits=habits, tests=tests)
    return lesson_on(task, rng, habits=habits, tests=tests)


def _led_lesson(task: Task, rng: random.Random, *, habits: Habits, tests: LessonTests) -> Lesson:
    """An episode in which the only habit is to leave out the last test; the messages that a habit
    would have spoilt are not trained on."""
    env = WorkshopEnv(task, sandbox=tests)
    turns: list[Turn] = list(env.open().turns)
    untrained: set[int] = set()
    while not env.done:
        spoilt = careless(env, random.Random(0), habits=Habits(skip_test=0.0))
        turn = careless(env, rng, habits=replace(habits, reader=0.0, style=0.0, detour=0.0))
        if turn.calls and [(c.name, c.arguments) for c in turn.calls] != [
            (c.name, c.arguments) for c in spoilt.calls
        ]:
            untrained.add(len(turns))
        turns.append(turn)
        turns.extend(env.reply(turn).turns)
    return Lesson(turns=tuple(turns), tools=task.tools.specs(), untrained=frozenset(untrained))


def invented_tools(rng: random.Random) -> ToolSet:
    """A tool set whose names are words of the tasks' files, so that only the list of tools tells
    what they do."""
    reader, editor, searcher, text, old, new = rng.sample([*NAMES, *FILES], 6)
    order = [LISTER, searcher, reader, editor, TESTER]
    rng.shuffle(order)
    return ToolSet(
        reader=reader,
        editor=editor,
        searcher=searcher,
        text=text,
        old=old,
        new=new,
        order=tuple(order),
    )


def lesson_on(task: Task, rng: random.Random, *, habits: Habits, tests: LessonTests) -> Lesson:
    """One episode of the careless player on a given task, with hints above some messages."""
    env = WorkshopEnv(task, sandbox=tests, slack=rng.choice(SLACKS))
    turns: list[Turn] = list(env.open().turns)
    while not env.done:
        hint, avoid = _draw_hint(rng, env)
        if hint:
            turns.append(Turn(role="system", author=HARNESS, blocks=(Text(hint),), tag="hint"))
        turns.append(careless(env, rng, habits=habits, avoid=avoid))
        turns.extend(env.reply(turns[-1]).turns)
    return Lesson(turns=tuple(turns), tools=task.tools.specs())


def _draw_hint(rng: random.Random, env: WorkshopEnv) -> tuple[str, tuple[str, ...]]:
    """The hint above the next message ("" = none), and the kinds of mistakes that it prevents."""
    draw, preventable = rng.random(), _preventable_mistake(env)
    if draw < P_FITTING and preventable:
        return hint_text(preventable, env.task.tools), (preventable,)
    if draw < P_FITTING:
        return "", ()
    if draw < P_FITTING + P_IDLE:
        return hint_text(
            rng.choice([kind for kind in HINTED if kind != preventable]), env.task.tools
        ), ()
    if draw < P_FITTING + P_IDLE + P_FOREIGN:
        while True:
            kind, foreign_tools = rng.choice(HINTED), pick_toolset(rng, split="train")
            if foreign_tools.reader != env.task.tools.reader and (
                foreign_tools.old,
                foreign_tools.new,
            ) != (
                env.task.tools.old,
                env.task.tools.new,
            ):
                return hint_text(kind, foreign_tools), ()
    return "", ()


def _preventable_mistake(env: WorkshopEnv) -> str:
    """The kind of mistake that a hint could prevent in the next message; "" if there is none."""
    calls = oracle(env).calls
    name = calls[0].name if calls else ""
    return {env.task.tools.reader: "unknown_tool", env.task.tools.editor: "bad_arguments"}.get(
        name, ""
    )


@lru_cache(maxsize=4096)
def hint_text(kind: str, tools: ToolSet) -> str:
    """The hint that `data/hints` writes for a mistake of this kind in a session with these tools.

    >>> hint_text("bad_arguments", make_task(3).tools)[:27]
    'Reminder: the tool patch ta'
    """
    wrong = LEGACY_READER if tools.reader != LEGACY_READER else ""
    call = ToolCall("c0", wrong if kind == "unknown_tool" else tools.editor, {})
    turns = (Turn(role="assistant", author=None, blocks=(call,)),)
    session = Session(
        id="lesson",
        source=SourceRef(file="lesson"),
        turns=turns,
        segments=(Segment(start=0, end=1),),
        tools=tools.specs(),
        tools_origin="log",
    )
    site = Site(
        session_id="lesson",
        turn=0,
        kind=kind,
        detector="tool_error",
        evidence=(1,),
        call_id="c0",
        tool=call.name,
    )
    text = WRITERS[kind](
        SiteContext(session=session, site=site, call=call, calls={}, evidence=None)
    )
    if text is None:
        raise DataError(f"no hint for {kind} with the tools {', '.join(tools.arguments)}")
    return text
