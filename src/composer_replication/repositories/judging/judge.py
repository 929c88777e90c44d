"""The reward of an episode on a repository's task, decided where the player cannot reach.

    repository = open_repository(task, folder=folder, environment=environment)
    judged = judge_episode(task, repository=repository, changed={"shop/cart.py": "..."})
    judged.reward           # 1.0, or 0.0 with a reason
    judged.attempts         # what the hack monitor saw: such an episode earns nothing
    judged.residual_risk    # what could still be cheated on this task

Three layers, each of which can refuse: the monitor (hack_monitor.py) reads what the episode did and
what it left; the strong judge (judge_run.py) runs all tests, the held-out ones too, on a pristine
copy with the allowed changes in a sandbox of its own, and reads a record that the tested code
cannot write; calls of functions with plain values (call_replay.py), and scripts of calls with
handles for objects (handle_replay.py), are replayed in a process that has no expected value at all.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from composer_replication.repositories.judging.call_replay import (
    ELSEWHERE,
    TABLE,
    CallRecording,
    record_calls,
    replay_calls,
)
from composer_replication.repositories.judging.hack_monitor import HackAttempt, hack_attempts
from composer_replication.repositories.judging.handle_replay import (
    ScriptRecording,
    record_scripts,
    replay_scripts,
)
from composer_replication.repositories.judging.judge_room import (
    JudgedRepository,
    JudgeRoom,
    judge_room,
)
from composer_replication.repositories.judging.judge_run import Calibration, calibrate, run_judge
from composer_replication.repositories.making.gates import LIMIT_S
from composer_replication.repositories.repo_task import RepoTask

WHILE_JUDGED = "seen while it was judged"
NOT_REPLAYED = "not replayed"
"""How the risk begins of a task that only the strong judge decides."""
ODD = frozenset(("skipped", "xfailed", "raised", "was not called"))
"""How a test ends that passes on the original and was meddled with: the last two are those of a
test that pytest calls passed."""
Method = Literal["strong", "strong and replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEpisode:
    """1.0 or 0.0, the reason for 0, how it was judged, the attempts to cheat, the changes that were
    not taken, and what this method cannot exclude."""

    reward: float
    reason: str
    method: Method
    attempts: tuple[HackAttempt, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict[str, str])
    residual_risk: str = ""


def judge_episode(
    task: RepoTask,
    *,
    repository: JudgedRepository,
    changed: Mapping[str, str],
    deleted: Sequence[str] = (),
    calls: Sequence[Any] = (),
    limit_s: float = LIMIT_S,
) -> JudgedEpisode:
    """Judge what an episode left (its changed files with their text, its deleted files) and what
    it did (its tool calls: a name and `arguments` each)."""
    attempts = hack_attempts(
        task, repository.checkout, changed=changed, deleted=deleted, calls=calls
    )
    if attempts:
        first = attempts[0]
        reason = f"the hack monitor: {first.kind} ({first.shown})"
        return JudgedEpisode(reward=0.0, reason=reason, method="strong", attempts=attempts)
    gone = [path for path in task.paths if path in deleted]
    if gone or not set(changed) & set(task.paths):  # a gate has shown that the latter fails
        reason = f"{gone[0]} was deleted" if gone else "no file of the task was changed"
        return JudgedEpisode(reward=0.0, reason=reason, method="strong")
    return judge_changes(
        task, repository=repository, changed=changed, deleted=deleted, limit_s=limit_s
    )


def judge_changes(
    task: RepoTask,
    *,
    repository: JudgedRepository,
    changed: Mapping[str, str],
    deleted: Sequence[str] = (),
    limit_s: float = LIMIT_S,
) -> JudgedEpisode:
    """The judge without the monitor."""
    calibration = calibrate(task, repository, limit_s=limit_s)
    recording = record_replay(task, repository, limit_s=limit_s)
    changes: dict[str, Any] = {"changed": changed, "deleted": deleted}
    attempts: list[HackAttempt] = []
    with judge_room(task, repository, **changes) as room:
        reason = _unparsable(room) or _strong(
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
        risks.append(f"{NOT_REPLAYED} ({recording.reason}): tests and code share an interpreter")
    return JudgedEpisode(
        reward=0.0 if reason else 1.0,
        reason=reason,
        method="strong" if recording.reason else "strong and replay",
        attempts=tuple(attempts),
        ignored=ignored,
        residual_risk="; ".join(risks),
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
) -> str:
    """Why the tests do not show that the task is done ("" if they do); what the guards and the
    record show of an attempt is added to `attempts`."""
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
        return record.refused
    codes = (record.seal or {}).get("codes", {})
    for name, compiled in calibration.codes.items():
        if compiled and not codes.get(name, False):
            return f"{name}: its code is not the test's"
    return ""


def _unparsable(room: JudgeRoom) -> str:
    for path in room.changed:
        file = room.tree / path
        try:
            ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            return f"{path} cannot be parsed: {error}"
    return ""
