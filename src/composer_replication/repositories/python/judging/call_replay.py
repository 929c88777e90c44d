"""Judge a function without a shared interpreter: only arguments cross.

    recording = record_calls(task, repository, limit_s=60)      # on the original, once a task
    if recording.calls:
        replay_calls(task, repository, recording, room=room, limit_s=60)    # "" if it agrees

The arguments that the tests use, and fresh ones derived from them, go to a process that has the
player's code and nothing else: no test, no expected value, no pytest. What comes back is compared
here with what the original did. That leaves nothing to look at and nothing to patch. It works for
functions of a module whose arguments and results are plain values (None, bool, int, float, str,
bytes, and lists, tuples, dicts, sets of them; the items of an iterator); calls that the original
does not answer the same way in two processes, or for which it draws random numbers, are left out.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.files import make_folder, write_text
from composer_replication.core.jsonl import dumps
from composer_replication.repositories.judged import JudgedRepository
from composer_replication.repositories.judging.judge_room import JudgeRoom, judge_room
from composer_replication.repositories.python.judging import (
    call_player,
    call_recorder,
    fresh_arguments,
    random_draws,
)
from composer_replication.repositories.python.judging.call_recorder import is_plain_value
from composer_replication.repositories.python.judging.fresh_arguments import fresh_calls
from composer_replication.repositories.python.judging.judge_run import run_program
from composer_replication.repositories.repo_task import RepoTask

FRESH = 60
FRESH_SHARE = 0.9
"""How many of the fresh calls must agree: an honest solution may differ at an odd value that no
test has; a table of the tests' answers agrees at almost none."""
TABLE_SHARE = 0.5
"""With fewer fresh calls right, while all of the tests' are, it knows the tests' answers alone."""
LEAST_CALLS = 3
MOST_RECORDED = 200
TABLE, OTHER = "knows the tests' answers alone", "not the same function"
ELSEWHERE = "answers otherwise outside of the tests"
LATE = "it passed its limit"
LONGEST_ANSWER = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecording:
    """What the original answers: by call, its outcome; the tests' calls and the fresh ones. Empty,
    with the reason, where a task cannot be replayed."""

    calls: Mapping[str, Sequence[str]]
    fresh: Mapping[str, Sequence[str]]
    reason: str = ""


def record_calls(task: RepoTask, repository: JudgedRepository, *, limit_s: float) -> CallRecording:
    """The recording of a task, from a file the second time."""
    digest = hashlib.sha256(dumps([task.must_pass, task.must_keep, task.symbol]).encode())
    for module in (call_player, call_recorder, fresh_arguments, random_draws):
        digest.update(Path(str(module.__file__)).read_bytes())
    file = repository.cache / f"{task.id}-calls-{digest.hexdigest()[:10]}.json"
    if file.exists():
        return CallRecording(**json.loads(file.read_text(encoding="utf-8")))
    recording = _record(task, repository, limit_s=limit_s)
    make_folder(repository.cache)
    write_text(file, dumps(asdict(recording)))
    return recording


def _record(task: RepoTask, repository: JudgedRepository, *, limit_s: float) -> CallRecording:
    if "." in task.symbol or not task.symbol or len(task.paths) != 1 or task.kind == "class":
        return CallRecording(calls={}, fresh={}, reason="not a function of a module")
    original = task.original_files(repository.checkout.folder)
    with judge_room(task, repository, changed=original, deleted=()) as room:
        request = {"tests": [*task.must_pass, *task.must_keep], **_place(task, repository)}
        program = Path(call_recorder.__file__)
        data, *_ = run_program(
            room.tree, repository, program=program, request=json.dumps(request), limit_s=limit_s
        )
        try:
            texts = json.loads(data)["calls"][:MOST_RECORDED]
        except ValueError:
            return CallRecording(calls={}, fresh={}, reason="its calls cannot be recorded")
        if not texts:
            return CallRecording(calls={}, fresh={}, reason="its arguments are no plain values")
    with judge_room(task, repository, changed=original, deleted=(), tests=False) as room:
        more = fresh_calls(texts, seed=task.id, most=FRESH)
        asked, other_way = [*texts, *more], [*more[::-1], *texts[::-1]]
        once, again = (
            _answers(room, task, repository, calls=calls, limit_s=limit_s, draws=True)
            for calls in (asked, other_way)
        )
    if once is None or again is None:
        return CallRecording(calls={}, fresh={}, reason="its calls take too long")
    steady = {text: end for text, end in once.items() if again.get(text) == end and _compared(end)}
    calls = {text: steady[text] for text in texts if text in steady}
    fresh = {text: steady[text] for text in more if steady.get(text, ["raises"])[0] != "raises"}
    if len(calls) < LEAST_CALLS and len(fresh) < LEAST_CALLS:
        return CallRecording(calls={}, fresh={}, reason="its results are no plain values")
    return CallRecording(calls=calls, fresh=fresh)


def replay_calls(
    task: RepoTask,
    repository: JudgedRepository,
    recording: CallRecording,
    *,
    room: JudgeRoom,
    limit_s: float,
) -> str:
    """Where a player's function answers differently from the original; "" if it agrees. The room
    must be one without tests."""
    calls = sorted((*recording.calls, *recording.fresh))
    answers = _answers(room, task, repository, calls=calls, limit_s=limit_s)
    if answers is None:
        return f"replay: {LATE} of {limit_s:.0f} s"
    for text, expected in recording.calls.items():
        if not same_outcome(expected, answers.get(text, [])):
            return f"replay: {ELSEWHERE}, as to {_words(text)}"
    wrong = [t for t, end in recording.fresh.items() if not same_outcome(end, answers.get(t, []))]
    if len(wrong) > (1 - FRESH_SHARE) * len(recording.fresh):
        table = len(wrong) > (1 - TABLE_SHARE) * len(recording.fresh)
        return (
            f"replay: {TABLE if table else OTHER}: other answers than the original's to"
            f" {len(wrong)} of {len(recording.fresh)} fresh calls, as {_words(wrong[0])}"
        )
    return ""


def same_outcome(expected: Sequence[str], answer: Sequence[str]) -> bool:
    """Whether two outcomes are the same: the kind, the value, the arguments after the call.

    >>> same_outcome(["value", "0.3", "((), {})"], ["value", "0.30000000000000004", "((), {})"])
    True
    """
    if len(answer) != len(expected) or answer[0] != expected[0]:
        return False
    if expected[0] == "raises":
        return answer[1] == expected[1]
    pairs = zip(expected[1:], answer[1:], strict=True)
    return all(old == new or same_value(_value(old), _value(new)) for old, new in pairs)


def same_value(first: Any, second: Any) -> bool:
    """Equal plain values of the same types; floats may differ in their last digits."""
    if type(first) is not type(second) or not is_plain_value(first) or not is_plain_value(second):
        return False
    if isinstance(first, float):
        return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same_value, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same_value(first[k], second[k]) for k in first)
    return first == second


def _compared(outcome: Sequence[str]) -> bool:
    """Whether an outcome can be compared."""
    if outcome[0] == "raises":
        return True
    return outcome[0] != random_draws.DRAWN and all(is_literal(text) for text in outcome[1:])


def is_literal(text: str) -> bool:
    """Whether a text is the literal of a plain value."""
    return len(text) <= LONGEST_ANSWER and _value(text) is not _NO_VALUE


_NO_VALUE = object()


def _value(text: str) -> Any:
    """What a literal says; a value that equals nothing for everything else."""
    try:
        value = ast.literal_eval(text) if len(text) <= LONGEST_ANSWER else _NO_VALUE
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return _NO_VALUE
    return value if is_plain_value(value) else _NO_VALUE


def _answers(
    room: JudgeRoom,
    task: RepoTask,
    repository: JudgedRepository,
    *,
    calls: Sequence[str],
    limit_s: float,
    draws: bool = False,
) -> dict[str, list[str]] | None:
    """What the function in a room answers to each call, as far as it came; None if it passed its
    limit. `draws` notices draws of random numbers."""
    request = {"calls": list(calls), "draws": draws, **_place(task, repository)}
    program = Path(call_player.__file__)
    data, code, _ = run_program(
        room.tree, repository, program=program, request=json.dumps(request), limit_s=limit_s
    )
    if code is None:
        return None
    answers: dict[str, list[str]] = {}
    for text, line in zip(calls, data.splitlines(), strict=False):
        try:
            answers[text] = [str(part) for part in json.loads(line)]
        except (ValueError, TypeError, RecursionError):
            break
    return answers


def _place(task: RepoTask, repository: JudgedRepository) -> dict[str, str]:
    root = repository.checkout.import_root
    path = task.paths[0] if root == "." else task.paths[0].removeprefix(f"{root}/")
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return {"import_root": root, "module": module, "function": task.symbol}


def _words(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
