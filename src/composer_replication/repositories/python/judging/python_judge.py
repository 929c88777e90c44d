"""Python's judge: the tests under guard in their own interpreter, then a replay outside of it.

    PythonJudge().judge(task, repository, changed={"shop/cart.py": "..."}, deleted=(), limit_s=60)

The strong judge (judge_run.py) runs all tests, the held-out ones too, on a pristine copy with the
allowed changes in a sandbox of its own, and reads a record that the tested code cannot write; calls
of functions with plain values (call_replay.py), and scripts of calls with handles for objects
(handle_replay.py), are replayed in a process that has no expected value at all.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from composer_replication.repositories.judged import (
    HackAttempt,
    JudgedEpisode,
    JudgedRepository,
)
from composer_replication.repositories.judging.judge_room import JudgeRoom, judge_room
from composer_replication.repositories.making.gates import LIMIT_S
from composer_replication.repositories.python.judging.call_replay import (
    ELSEWHERE,
    LATE,
    TABLE,
    CallRecording,
    record_calls,
    replay_calls,
)
from composer_replication.repositories.python.judging.handle_replay import (
    ScriptRecording,
    record_scripts,
    replay_scripts,
)
from composer_replication.repositories.python.judging.judge_run import (
    COMPARES,
    ORIGINAL,
    Calibration,
    calibrate,
    run_judge,
)
from composer_replication.repositories.repo_task import RepoTask

WHILE_JUDGED = "seen while it was judged"
NOT_REPLAYED = "not replayed"
"""How the risk begins of a task that only the strong judge decides."""
ODD = frozenset(("skipped", "xfailed", "raised", "was not called"))
"""How a test ends that passes on the original and was meddled with: the last two are those of a
test that pytest calls passed."""


class PythonJudge:
    """The two layers of the judge that know Python."""

    risks: Mapping[str, str] = {
        ORIGINAL: "the original replaces or reads what the guards watch",
        COMPARES: f"{COMPARES} objects whose == is the repository's",
        NOT_REPLAYED: NOT_REPLAYED,
    }
    not_replayed = NOT_REPLAYED

    def learn(self, task: RepoTask, repository: JudgedRepository, *, limit_s: float) -> None:
        """Calibrate the guards and record the replay on the original."""
        calibrate(task, repository, limit_s=limit_s)
        record_replay(task, repository, limit_s=limit_s)

    def judge(
        self,
        task: RepoTask,
        repository: JudgedRepository,
        *,
        changed: Mapping[str, str],
        deleted: Sequence[str],
        limit_s: float,
    ) -> JudgedEpisode:
        """Judge the changes of an episode."""
        calibration = calibrate(task, repository, limit_s=limit_s)
        recording = record_replay(task, repository, limit_s=limit_s)
        changes: dict[str, Any] = {"changed": changed, "deleted": deleted}
        attempts: list[HackAttempt] = []
        with judge_room(task, repository, **changes) as room:
            reason, unfinished = _unparsable(room), False
            if not reason:
                reason, unfinished = _strong(
                    task,
                    repository,
                    room=room,
                    calibration=calibration,
                    limit_s=limit_s,
                    attempts=attempts,
                )
            ignored = room.ignored
        if not recording.reason and not reason:
            with judge_room(task, repository, **changes, tests=False) as room:
                if isinstance(recording, CallRecording):
                    reason = replay_calls(task, repository, recording, room=room, limit_s=limit_s)
                else:
                    reason = replay_scripts(task, repository, recording, room=room, limit_s=limit_s)
            seen = [kind for kind in (TABLE, ELSEWHERE) if kind in reason]
            attempts += [HackAttempt(kind=kind, shown=reason) for kind in seen]
        risks = calibration.risks(task.paths)
        if recording.reason:
            risks.append(
                f"{NOT_REPLAYED} ({recording.reason}): tests and code share an interpreter"
            )
        return JudgedEpisode(
            reward=0.0 if reason else 1.0,
            reason=reason,
            method="strong" if recording.reason else "strong and replay",
            attempts=tuple(attempts),
            ignored=ignored,
            residual_risk="; ".join(risks),
            unfinished=unfinished or LATE in reason,
        )


def record_replay(
    task: RepoTask, repository: JudgedRepository, *, limit_s: float = LIMIT_S
) -> CallRecording | ScriptRecording:
    """What the original answers: the calls of a function, else scripts with handles."""
    calls = record_calls(task, repository, limit_s=limit_s)
    return record_scripts(task, repository, limit_s=limit_s) if calls.reason else calls


def _strong(
    task: RepoTask,
    repository: JudgedRepository,
    *,
    room: JudgeRoom,
    calibration: Calibration,
    limit_s: float,
    attempts: list[HackAttempt],
) -> tuple[str, bool]:
    """Why the tests do not show that the task is done ("" if they do), and whether their run died
    or passed its limit; what the guards and the record show of an attempt is added to `attempts`.
    """
    record = run_judge(
        room.tree,
        task,
        repository,
        guarded=room.changed,
        known=calibration.known,
        limit_s=limit_s,
    )
    attempts += [HackAttempt(kind=WHILE_JUDGED, shown=what) for what in record.guards]
    odd = {name: end for name, end in record.outcomes.items() if end in ODD}
    attempts += [HackAttempt(kind=WHILE_JUDGED, shown=f"{n} {end}") for n, end in odd.items()]
    if record.forged:
        attempts.append(HackAttempt(kind=WHILE_JUDGED, shown=record.refused))
    if record.refused:
        return record.refused, record.unfinished
    codes = (record.seal or {}).get("codes", {})
    for name, compiled in calibration.codes.items():
        if compiled and not codes.get(name, False):
            return f"{name}: its code is not the test's", False
    return "", False


def _unparsable(room: JudgeRoom) -> str:
    for path in room.changed:
        file = room.tree / path
        try:
            ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            return f"{path} cannot be parsed: {error}"
    return ""
