"""Judge methods, classes and functions of objects without a shared interpreter: by handles.

    recording = record_scripts(task, repository, limit_s=60)    # on the original, once a task
    if recording.scripts:
        replay_scripts(task, repository, recording, room=room, limit_s=60)  # "" if it agrees

What the tests do with the package is written down on the original as steps (handle_recorder.py),
and fresh scripts are derived from them. Only the steps go to a process that has the player's code
(handle_player.py): objects stay there, what can be seen of them comes back and is compared here.
Steps that the original does not answer the same way in two processes are left out, so are those
from its first draw of a random number on, and scripts that the state without an answer plays like
the original: they say nothing about the task.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from composer_replication.core.files import make_folder, write_text
from composer_replication.core.jsonl import dumps
from composer_replication.repositories.judged import JudgedRepository
from composer_replication.repositories.judging.judge_room import JudgeRoom, judge_room
from composer_replication.repositories.python.judging import (
    fresh_scripts,
    handle_player,
    handle_recorder,
    random_draws,
)
from composer_replication.repositories.python.judging.call_replay import (
    ELSEWHERE,
    FRESH_SHARE,
    LATE,
    OTHER,
    TABLE,
    is_literal,
    same_outcome,
)
from composer_replication.repositories.python.judging.judge_run import run_program
from composer_replication.repositories.repo_task import RepoTask

Rows = Sequence[Sequence[str] | None]
"""The outcomes of a script's steps; None for one that is not compared."""
MOST_SCRIPTS, TRIED, MOST_FRESH, LEAST_FRESH = 40, 100, 40, 3
SCRIPT_TABLE_SHARE = 0.7
"""As TABLE_SHARE of call_replay.py; a script that is derived by chance is often like the test's."""
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}|\.\.\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRecording:
    """What the original answers: by script, the outcomes of its steps; the tests' scripts and the
    fresh ones. Empty, with the reason, where a task cannot be replayed so."""

    scripts: Mapping[str, Rows]
    fresh: Mapping[str, Rows]
    reason: str = ""


def record_scripts(
    task: RepoTask, repository: JudgedRepository, *, limit_s: float
) -> ScriptRecording:
    """The recording of a task, from a file the second time."""
    digest = hashlib.sha256(dumps([task.must_pass, sorted(task.edits.items())]).encode())
    for module in (handle_recorder, handle_player, fresh_scripts, random_draws):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    file = repository.cache / f"{task.id}-scripts-{digest.hexdigest()[:10]}.json"
    if file.exists():
        return ScriptRecording(**json.loads(file.read_text(encoding="utf-8")))
    recording = _record(task, repository, limit_s=limit_s)
    make_folder(repository.cache)
    write_text(file, dumps(asdict(recording)))
    return recording


def _record(task: RepoTask, repository: JudgedRepository, *, limit_s: float) -> ScriptRecording:
    original = task.original_files(repository.checkout.folder)
    with judge_room(task, repository, changed=original, deleted=()) as room:
        files = list(repository.checkout.sources)
        request = {"tests": task.must_pass, "files": files, **_root(repository)}
        program = Path(handle_recorder.__file__)
        data, *_ = run_program(
            room.tree, repository, program=program, request=json.dumps(request), limit_s=limit_s
        )
    try:
        found: dict[str, str] = json.loads(data)["scripts"]
    except ValueError:
        return ScriptRecording(scripts={}, fresh={}, reason="its tests cannot be recorded")
    texts = list(dict.fromkeys(found[name] for name in task.must_pass if name in found))
    texts = texts[:MOST_SCRIPTS]
    if not texts:
        return ScriptRecording(scripts={}, fresh={}, reason="its arguments have no handles")
    more = fresh_scripts.fresh_scripts(texts, seed=task.id, most=TRIED)
    asked = [*texts, *more]
    with judge_room(task, repository, changed=original, deleted=(), tests=False) as room:
        once, again = (
            _answers(room, task, repository, scripts=asked, limit_s=limit_s, draws=True)
            for _ in range(2)
        )
    with judge_room(task, repository, changed={}, deleted=(), tests=False) as room:
        without = _answers(room, task, repository, scripts=asked, limit_s=limit_s)
    if once is None or again is None or without is None:
        return ScriptRecording(scripts={}, fresh={}, reason="its scripts take too long")
    kept: dict[str, Rows] = {}
    for text, first, second, other in zip(asked, once, again, without, strict=True):
        rows = _steady(first, second, until_raised=text in set(more))
        if _difference(rows, other) is not None:
            kept[text] = rows
    scripts = {text: kept[text] for text in texts if text in kept}
    fresh = {text: kept[text] for text in [t for t in more if t in kept][:MOST_FRESH]}
    if not scripts or len(fresh) < LEAST_FRESH:
        return ScriptRecording(scripts={}, fresh={}, reason="its results cannot be seen outside")
    return ScriptRecording(scripts=scripts, fresh=fresh)


def replay_scripts(
    task: RepoTask,
    repository: JudgedRepository,
    recording: ScriptRecording,
    *,
    room: JudgeRoom,
    limit_s: float,
) -> str:
    """Where a player's code answers differently from the original; "" if it agrees. The room must
    be one without tests."""
    asked = sorted((*recording.scripts, *recording.fresh))
    answered = _answers(room, task, repository, scripts=asked, limit_s=limit_s)
    if answered is None:
        return f"replay: {LATE} of {limit_s:.0f} s"
    answers = dict(zip(asked, answered, strict=True))
    for text, rows in recording.scripts.items():
        if (place := _difference(rows, answers[text])) is not None:
            seen = place < len(answers[text]) and is_literal((rows[place] or ["", ""])[1])
            return f"replay: {ELSEWHERE if seen else OTHER}, as to {_step(text, place)}"
    wrong = {
        text: place
        for text, rows in recording.fresh.items()
        if (place := _difference(rows, answers[text])) is not None
    }
    if len(wrong) > (1 - FRESH_SHARE) * len(recording.fresh):
        table = len(wrong) > (1 - SCRIPT_TABLE_SHARE) * len(recording.fresh)
        first = next(iter(wrong))
        return (
            f"replay: {TABLE if table else OTHER}: other answers than the original's to"
            f" {len(wrong)} of {len(recording.fresh)} fresh scripts,"
            f" as {_step(first, wrong[first])}"
        )
    return ""


def _steady(once: Rows, again: Rows, *, until_raised: bool) -> Rows:
    """The outcomes that were the same twice, hold no address and followed no draw; none after one
    that raised, where nobody says that it may."""
    rows: list[Sequence[str] | None] = []
    if len(once) != len(again):
        return rows
    for first, second in zip(once, again, strict=True):
        if until_raised and first is not None and first[0] == "raises":
            break
        seen = " ".join(first or (random_draws.DRAWN,))
        steady = first == second and seen != random_draws.DRAWN and not _ADDRESS.search(seen)
        rows.append(first if steady else None)
    return rows


def _difference(rows: Rows, answer: Rows) -> int | None:
    """The first step whose outcome is another; None if there is none."""
    for place, row in enumerate(rows):
        if row is None:
            continue
        other = answer[place] if place < len(answer) else None
        if not other or not same_outcome(row, other):
            return place
    return None


def _answers(
    room: JudgeRoom,
    task: RepoTask,
    repository: JudgedRepository,
    *,
    scripts: Sequence[str],
    limit_s: float,
    draws: bool = False,
) -> list[Rows] | None:
    """What the package in a room answers to each script, nothing to one that ended the process;
    None if it passed its limit. `draws` notices draws of random numbers."""
    request = {
        "draws": draws,
        "scripts": list(scripts),
        "modules": [_module(path, repository) for path in task.paths],
        "attributes": _attributes(task, repository),
        **_root(repository),
    }
    program = Path(handle_player.__file__)
    data, code, _ = run_program(
        room.tree, repository, program=program, request=json.dumps(request), limit_s=limit_s
    )
    if code is None:
        return None
    answers: list[Rows] = [[] for _ in scripts]
    for place, line in enumerate(data.split(b"\n")[: len(scripts)]):
        try:
            answers[place] = [[str(part) for part in row] for row in json.loads(line)]
        except (ValueError, TypeError, RecursionError):
            continue
    return answers


def _attributes(task: RepoTask, repository: JudgedRepository) -> list[str]:
    """The attributes that the task's tests name: others are nobody's business."""
    names: set[str] = set()
    for path in {name.partition("::")[0] for name in task.must_pass}:
        try:
            tree = ast.parse((repository.checkout.folder / path).read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return sorted(name for name in names if not name.startswith("_"))


def _root(repository: JudgedRepository) -> dict[str, str]:
    return {"import_root": repository.checkout.import_root}


def _module(path: str, repository: JudgedRepository) -> str:
    root = repository.checkout.import_root
    path = path if root == "." else path.removeprefix(f"{root}/")
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _step(script: str, place: int) -> str:
    steps = ast.literal_eval(script)
    step = steps[place][1:] if place < len(steps) else ("the objects at the end",)
    text = " ".join(str(part) for part in step)
    return text if len(text) <= 80 else f"{text[:77]}..."
