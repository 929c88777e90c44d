"""The scripted player of the twins, with its habit, and the lessons that it gives the student.

    right(env)                      # the next message of a faultless player, which repairs, too
    by_habit(env)                   # the mistaken message, if its moment is now; else None
    twin_lesson("7:0")              # an episode as a student reads it, hints above some messages

Below a hint that fits, the player does not make the mistake; below another one its behaviour does
not change. So following a hint is taught, as in the workshop's own lessons.
"""

from __future__ import annotations

import random

from composer_replication.core.trace import HARNESS, Text, ToolCall, Turn
from composer_replication.data.hints.persons_writers import third_person
from composer_replication.data.hints.templates import fill
from composer_replication.workshop.lessons import Lesson
from composer_replication.workshop.vocabulary import FILES

from .world import (
    CORRECTIONS,
    KINDS,
    PUSH,
    REJECTIONS,
    SHOW,
    TEST,
    TOOLS,
    Kind,
    TwinEnv,
    make_twin,
)

AUTHOR, DONE_TEXT = "scripted-twin", "Done."
P_HABIT = 0.8
"""How often the habit is followed where it is a mistake."""
P_FITTING, P_OTHER = 0.35, 0.15
"""The shares of the moments of a habit with a hint that fits, and of all messages with another."""
FAULTS = (
    "a name that is not defined or not imported there",
    "a call with too many or too few arguments",
    "code that does not parse",
)


def right(env: TwinEnv) -> Turn:
    """The next message of a player that knows what is wanted, and repairs what went wrong once it
    is told."""
    task, kind = env.task, env.task.kind
    path, before, after = task.edits[0]
    if kind == "taken_back":
        return _right_search(env)
    if kind == "wasted_call" and task.open and task.habit not in env.reads:
        return _call(env, "Read", file_path=task.habit)
    if path not in env.reads:
        return _call(env, "Read", file_path=path)
    if env.num_edits == 0:
        return _edit(env, path, before, after)
    if kind == "wasted_call" and not task.open and task.habit not in env.reads:
        return _call(env, "Read", file_path=task.habit)
    for each in task.edits[1:]:
        if not env.is_right(each):
            return _edit(env, *each)
    if kind == "broke_check" and env.shown is None:
        return _call(env, "Bash", command=TEST)
    if not env.is_right(task.edits[0]) and (env.heard or env.shown is False):
        return _edit(env, path, task.habit, after)
    if kind == "user_rejected":
        commit = f"git commit -am {after.partition(' = ')[0]}"
        if commit not in env.commands:
            return _call(env, "Bash", command=commit)
        if not task.open and PUSH not in env.commands:
            return _call(env, "Bash", command=PUSH)
    return _done()


def by_habit(env: TwinEnv) -> Turn | None:
    """The mistaken message, if this is the moment for it."""
    task, kind = env.task, env.task.kind
    path, before, _ = task.edits[0]
    if not task.open:
        return None
    if kind == "user_rejected":
        ready = bool(env.commands) and PUSH not in env.commands
        return _call(env, "Bash", command=PUSH) if ready else None
    if kind == "wasted_call":
        ready = env.num_edits == 1 and env.reads.count(task.habit) == 1
        return _call(env, "Read", file_path=task.habit) if ready else None
    if kind == "taken_back":
        ready = env.num_edits == 0 and bool(env.commands)
        return _edit(env, task.habit, *_other_lines(env)) if ready else None
    ready = env.num_edits == 0 and path in env.reads
    return _edit(env, path, before, task.habit) if ready else None


def twin_lesson(seed: str) -> Lesson:
    """An episode of the player on a training task, always the same for a seed."""
    rng = random.Random(f"twin-lesson:{seed}")
    task = make_twin(f"lesson:{seed}", kind=rng.choice(KINDS), split="train")
    env = TwinEnv(task, person=True)
    turns = list(env.open().turns)
    while not env.done:
        mistaken, hint, warned = by_habit(env), "", False
        if mistaken is not None and rng.random() < P_FITTING:
            hint, warned = hint_of(task.kind, rng, path=task.habit), True
        elif rng.random() < P_OTHER:
            hint = _other_hint(env, rng)
        if hint:
            turns.append(Turn(role="system", author=HARNESS, blocks=(Text(hint),), tag="hint"))
        spoilt = mistaken is not None and not warned and rng.random() < P_HABIT
        turns.append(mistaken if spoilt and mistaken is not None else right(env))
        turns.extend(env.reply(turns[-1]).turns)
    return Lesson(turns=tuple(turns), tools=TOOLS)


def hint_of(kind: Kind, rng: random.Random, *, path: str) -> str:
    """A hint as `data/hints` writes it for a mistake of this kind.

    >>> hint_of("taken_back", random.Random(0), path="main.py")[:24]
    'Leave main.py as it is i'
    """
    if kind == "taken_back":
        return fill("taken_back", name=path)
    if kind == "broke_check":
        return fill("broke_check", fault=FAULTS[0])
    if kind == "wasted_call":
        return fill("repeated_call", ago=str(rng.choice((4, 5, 6))))
    words = rng.choice(REJECTIONS if kind == "user_rejected" else CORRECTIONS)
    return fill("persons_words", words=third_person(words))


def _other_hint(env: TwinEnv, rng: random.Random) -> str:
    """A hint that says nothing about the next message of this task."""
    kind = rng.choice(KINDS)
    if kind != env.task.kind:
        return hint_of(kind, rng, path=f"{rng.choice(FILES)}.py")
    if kind == "taken_back":
        foreign = [name for word in FILES if (name := f"{word}.py") not in env.files]
        return fill("taken_back", name=rng.choice(foreign))
    return fill("broke_check", fault=rng.choice(FAULTS[1:]))


def _right_search(env: TwinEnv) -> Turn:
    """The next message where the file has to be found: search, edit, look, take back."""
    task = env.task
    path, before, after = task.edits[0]
    if not env.commands:
        return _call(env, "Bash", command=f"grep -n {before.partition(' = ')[0]} *.py")
    spoilt = task.open and env.files[task.habit] != task.files[task.habit]
    if spoilt and env.shown is None:
        return _call(env, "Bash", command=SHOW)
    if spoilt:
        old, new = _other_lines(env)
        return _edit(env, task.habit, new, old)
    if not env.is_right(task.edits[0]):
        return _edit(env, path, before, after)
    return _done() if env.shown else _call(env, "Bash", command=SHOW)


def _other_lines(env: TwinEnv) -> tuple[str, str]:
    """The line of the same name in the other file, as it was, and with the wanted value."""
    name, _, value = env.task.edits[0][2].partition(" = ")
    lines = env.task.files[env.task.habit].splitlines()
    return next(line for line in lines if line.startswith(f"{name} = ")), f"{name} = {value}"


def _edit(env: TwinEnv, path: str, old: str, new: str) -> Turn:
    return _call(env, "Edit", file_path=path, old_string=old, new_string=new)


def _call(env: TwinEnv, name: str, **arguments: str) -> Turn:
    call = ToolCall(f"call_{env.num_calls}", name, arguments)
    return Turn(role="assistant", author=AUTHOR, blocks=(call,))


def _done() -> Turn:
    return Turn(role="assistant", author=AUTHOR, blocks=(Text(DONE_TEXT),))
