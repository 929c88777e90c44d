"""What the tiny student is warmed up on: careless episodes, some of whose messages stand below a
hint.

    lesson = make_lesson("7:0", habits=Habits(), tests=Reckoner())
    lesson.turns, lesson.tools        # hints stand where the hint channel's teacher would see them

Below a hint that speaks of the next message, exactly the mistake that it warns of is not made.
Below a hint that was written for another task behaviour does not change. Without the second sort
any hint would cure any mistake, and a placebo with shuffled hints would mean nothing. So following
a hint is *taught here*; a real instruct model brings it along.
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
from composer_replication.workshop.sandbox import Answered, SandboxRun
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
"""How often a message stands below a hint that fits it, one that has nothing to say about it, and
one of another task."""
SLACKS = (0, 0, 2, 3)
P_INVENTED = 0.35
"""How many lessons have a tool set of invented names. With the workshop's own alone the student
learns by heart which names go together, and uses the wrong ones in a set that it never met."""
SHARES: Mapping[Kind, float] = {"change": 0.25, "set": 0.25, "fix": 0.35, "both": 0.15}
"""Kinds of tasks in lessons: more of those that take longest to learn than an evaluation holds."""
HINTED = ("unknown_tool", "bad_arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One episode as the student reads it, hints included; `untrained` are the turns that it reads
    and does not learn to write."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...]
    untrained: frozenset[int] = frozenset()


class Reckoner:
    """Runs what our own task generator wrote, in this process: for scripted players only, whose
    edits are known in advance.

    A model's edits go to `Sandbox`. Raises ValueError for a line of any other form.
    """

    def run(self, files: Mapping[str, str], asked: Sequence[tuple[str, str]]) -> SandboxRun:
        """The value of each expression in its file."""
        spaces = {path: _values(text) for path, text in files.items()}
        return SandboxRun(
            end="answered",
            answers=tuple(
                Answered(value=_value(spaces[path], expression)) for path, expression in asked
            ),
        )


def _values(text: str) -> dict[str, str]:
    """Names and what they stand for: a number, or "a - b" with its parameters."""
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


def make_lesson(seed: int | str, *, habits: Habits, tests: Reckoner, led: float = 0.0) -> Lesson:
    """One episode of the careless player on a training task, always the same for a seed.

    A share `led` of them is led past its habits: where a habit would be wrong the right message
    stands, and is not trained. So the student knows how to go on from there, which it would else
    meet for the first time when it has been trained.
    """
    rng, task = random.Random(f"lesson:{seed}"), make_task(f"lesson:{seed}", shares=SHARES)
    if rng.random() < P_INVENTED:
        task = replace(task, tools=invented_tools(rng))
    if led and rng.random() < led:
        return _led_lesson(task, rng, habits=habits, tests=tests)
    return lesson_on(task, rng, habits=habits, tests=tests)


def _led_lesson(task: Task, rng: random.Random, *, habits: Habits, tests: Reckoner) -> Lesson:
    """An episode in which only the last test is ever left out, by habit; the messages that habit
    would have spoilt are not trained."""
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
    """A tool set whose names are words of the tasks' files, so that nothing but the list of tools
    tells what they do."""
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


def lesson_on(task: Task, rng: random.Random, *, habits: Habits, tests: Reckoner) -> Lesson:
    """The same on a given task."""
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
    """The hint above the next message ("" = none), and the kinds of mistakes that it keeps the
    player from."""
    draw, about = rng.random(), _about(env)
    if draw < P_FITTING and about:
        return hint_text(about, env.task.tools), (about,)
    if draw < P_FITTING:
        return "", ()
    if draw < P_FITTING + P_IDLE:
        return hint_text(rng.choice([kind for kind in HINTED if kind != about]), env.task.tools), ()
    if draw < P_FITTING + P_IDLE + P_FOREIGN:
        while True:
            kind, other = rng.choice(HINTED), pick_toolset(rng, split="train")
            if other.reader != env.task.tools.reader and (other.old, other.new) != (
                env.task.tools.old,
                env.task.tools.new,
            ):
                return hint_text(kind, other), ()
    return "", ()


def _about(env: WorkshopEnv) -> str:
    """Which kind of mistake a hint could keep the next message from, "" where it could not."""
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
    source, whole = SourceRef(file="lesson"), (Segment(start=0, end=1),)
    session = Session(
        id="lesson",
        source=source,
        turns=turns,
        segments=whole,
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
