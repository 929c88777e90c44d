"""Scripted players: the oracle, a careless one with three families of mistakes, and three teachers
of whom one disagrees.

turn = oracle(env)                                    # the next message, without a mistake
turn = careless(env, rng, habits=LEVELS[1].habits)    # ... with the mistakes of a level
turn = teacher_turn(env, family="birch")              # what a scripted teacher would do here

All of them read the environment's state, which no model can: they make corpora and labels, never
measurements.

The families of mistakes: (A) a tool or argument name from other sessions, which an error names at
once; (B) a listing before the search, which no error reveals; (C) leaving out the last test run,
which only the reward shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from composer_replication.core.errors import ConfigError
from composer_replication.core.site import Answer
from composer_replication.core.trace import Text, ToolCall, Turn
from composer_replication.workshop.tasks import TargetLine
from composer_replication.workshop.vocabulary import (
    LEGACY_READER,
    LEGACY_STYLE,
    LISTER,
    TESTER,
    bucket,
)
from composer_replication.workshop.workshop_env import (
    BY_CONSTRUCTION,
    EXPLORATION_FINDS_IT,
    WorkshopEnv,
)

DONE_TEXT = "Done."
ORACLE, CARELESS = "scripted-oracle", "scripted-careless"
FAMILIES = ("birch", "cedar", "maple")
DISSENTER = FAMILIES[2]
P_DISSENT_TENTHS = 2
"""In how many tenths of the tasks the dissenting family lists the files while the other two
search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """The probability of each mistake: `reader` and `style` (A), `detour` (B), `skip_test` (C), and
    `repeat` (A again, after its error)."""

    reader: float = 1.0
    style: float = 1.0
    repeat: float = 0.08
    detour: float = 1.0
    skip_test: float = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level: the habits of its careless player, and the note that is shown with its results."""

    habits: Habits
    text: str


LEVELS: Mapping[int, Level] = {
    1: Level(habits=Habits(reader=0.995, style=0.995, detour=0.995), text=BY_CONSTRUCTION),
    2: Level(habits=Habits(reader=0.8, style=0.8, detour=0.8), text=EXPLORATION_FINDS_IT),
}


def text_turn(text: str, *, author: str) -> Turn:
    """A message without a call: the player's last."""
    return Turn(role="assistant", author=author, blocks=(Text(text),))


def call_turn(env: WorkshopEnv, name: str, *, author: str, **arguments: str) -> Turn:
    """A message with one call, whose id is numbered within the episode."""
    return Turn(
        role="assistant",
        author=author,
        blocks=(ToolCall(f"call_{env.tally.calls}", name, arguments),),
    )


def oracle(env: WorkshopEnv, *, author: str = ORACLE) -> Turn:
    """The next message of a player that knows where everything is and wastes no call; its success
    is 100 %."""
    tools, target = env.task.tools, _open_target(env)
    if target is None:
        return (
            text_turn(DONE_TEXT, author=author)
            if env.tested
            else call_turn(env, TESTER, author=author)
        )
    if target.path not in env.known:
        if env.task.kind == "fix":
            return call_turn(env, TESTER, author=author)
        return call_turn(env, tools.searcher, author=author, **{tools.text: target.name})
    if target.path not in env.read:
        return call_turn(env, tools.reader, author=author, path=target.path)
    current = _line_of(env, target)
    if current is None:
        return text_turn(DONE_TEXT, author=author)  # the line is gone: nothing can be saved
    return call_turn(
        env,
        tools.editor,
        author=author,
        **{"path": target.path, tools.old: current, tools.new: target.after},
    )


def careless(
    env: WorkshopEnv,
    rng: random.Random,
    *,
    habits: Habits,
    avoid: Collection[str] = (),
    author: str = CARELESS,
) -> Turn:
    """The oracle's next message, spoilt by habit. `avoid` are the kinds of mistakes that a hint has
    just warned of.

    Kinds are those of `data/sites`: "unknown_tool" and "bad_arguments". The player mostly learns
    from an error: see `Habits.repeat`.
    """
    turn, tools, errors = oracle(env, author=author), env.task.tools, env.tally.errors
    if not turn.calls:
        return turn
    oracle_call = turn.calls[0]
    if (
        oracle_call.name == TESTER
        and env.edited
        and _open_target(env) is None
        and rng.random() < habits.skip_test
    ):
        return text_turn(DONE_TEXT, author=author)
    if (
        oracle_call.name == tools.searcher
        and not env.tally.detours
        and env.tally.messages == 0
        and rng.random() < habits.detour
    ):
        return call_turn(env, LISTER, author=author)
    habit_reader_is_wrong = (
        oracle_call.name == tools.reader != LEGACY_READER and "unknown_tool" not in avoid
    )
    if habit_reader_is_wrong and rng.random() < (
        habits.repeat if errors["unknown_tool"] else habits.reader
    ):
        return call_turn(env, LEGACY_READER, author=author, **oracle_call.arguments)
    habit_style_is_wrong = (
        oracle_call.name == tools.editor
        and (tools.old, tools.new) != LEGACY_STYLE
        and "bad_arguments" not in avoid
    )
    if habit_style_is_wrong and rng.random() < (
        habits.repeat if errors["bad_arguments"] else habits.style
    ):
        return call_turn(
            env,
            tools.editor,
            author=author,
            **dict(zip(("path", *LEGACY_STYLE), oracle_call.arguments.values(), strict=True)),
        )
    return turn


def teacher_turn(env: WorkshopEnv, *, family: str) -> Turn:
    """The message of one of three scripted teachers at this point; raises ConfigError for another
    family.

    All three search at once, except that the dissenter lists the files in some tasks (B). All three
    have habit A, so they cannot cure it. Before the end each does something else - birch tests,
    cedar says it is done, maple reads again - so they never agree on (C).
    """
    if family not in FAMILIES:
        raise ConfigError(
            f"no scripted teacher {family!r}", fix=f"use one of {', '.join(FAMILIES)}"
        )
    author = f"scripted-{family}"
    teacher_habits = Habits(skip_test=0.0, detour=0.0, repeat=0.0)
    turn, tools = (
        careless(env, random.Random(0), habits=teacher_habits, author=author),
        env.task.tools,
    )
    if not turn.calls:
        return turn
    name = turn.calls[0].name
    if name == TESTER and env.edited:
        last_turns: Mapping[str, Callable[[], Turn]] = {
            "birch": lambda: turn,
            "cedar": lambda: text_turn(DONE_TEXT, author=author),
            "maple": lambda: call_turn(
                env, tools.reader, author=author, path=env.task.targets[-1].path
            ),
        }
        return last_turns[family]()
    if (
        name == tools.searcher
        and family == DISSENTER
        and bucket("dissent", env.task_id) < P_DISSENT_TENTHS
    ):
        return call_turn(env, LISTER, author=author)
    return turn


def teacher_answers(env: WorkshopEnv, *, site_id: str) -> tuple[Answer, ...]:
    """The answers of all three families at one turn of an episode; they cost nothing."""
    return tuple(
        Answer(
            site_id=site_id,
            teacher=f"scripted-{family}",
            family=family,
            turn=teacher_turn(env, family=family),
        )
        for family in FAMILIES
    )


def _open_target(env: WorkshopEnv) -> TargetLine | None:
    """The first target whose line is still wrong."""
    return next(
        (t for t in env.task.targets if t.after not in env.files[t.path].splitlines()), None
    )


def _line_of(env: WorkshopEnv, target: TargetLine) -> str | None:
    starts = (f"{target.name} =", f"def {target.name}(")
    return next(
        (line for line in env.files[target.path].splitlines() if line.startswith(starts)), None
    )
