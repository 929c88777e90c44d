"""One run of the judge's launcher in a sandbox, and what the original's run taught it.

calibration = calibrate(task, repository)           # once a task, kept in a file
record = run_judge(room.tree, task, repository, guarded=room.changed, known=calibration.known)
record.refused          # "" if every test passed and the guards saw nothing new
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.errors import SandboxError
from composer_replication.core.files import make_folder, write_text
from composer_replication.core.jsonl import dumps
from composer_replication.repositories.judged import JudgedRepository, OriginalRefusedError
from composer_replication.repositories.judging.judge_room import judge_room
from composer_replication.repositories.python.judging.judge_record import (
    ENDED_EARLY,
    JudgeRecord,
    read_judge_record,
)
from composer_replication.repositories.repo_task import RepoTask
from composer_replication.repositories.sandbox.tree_sandbox import TreeSandbox, refused

LAUNCHER = Path(__file__).with_name("judge_launcher.py")
GUARD = Path(__file__).with_name("judge_guard.py")
DRAWS = Path(__file__).with_name("random_draws.py")
MAX_RECORD = 16 << 20
COMPARES, ORIGINAL = "its tests compare", "the original itself"
"""How the risks of a calibration begin."""
_NOTED = ("members", "operands", "events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the guards noted while the original was judged: `known` by guard, and which tests run
    code that was compiled before any of the repository's ran."""

    known: Mapping[str, Sequence[str]]
    codes: Mapping[str, bool]

    def risks(self, guarded: Sequence[str]) -> list[str]:
        """What the guards have to let pass on this task."""
        names = tuple(os.path.basename(path) for path in guarded)
        risks = [
            f"{COMPARES} {name}, whose == is code of the repository"
            for name in self.known["operands"]
        ]
        risks += [f"{ORIGINAL}: {what}" for what in self.known["events"] if names]
        risks += [f"{ORIGINAL} replaces {what}" for what in self.known["members"]]
        return risks


def run_judge(
    tree: Path,
    task: RepoTask,
    repository: JudgedRepository,
    *,
    guarded: Sequence[str],
    known: Mapping[str, Sequence[str]] | None,
    limit_s: float,
) -> JudgeRecord:
    """Run a task's tests on a tree; `known` is None for the original's own run."""
    tests = [*task.must_pass, *task.must_keep]
    request = {
        "tests": tests,
        "import_root": repository.checkout.import_root,
        "guarded": list(guarded),
        "known": known,
    }
    key = secrets.token_bytes(64)
    data, code, error = run_program(
        tree, repository, program=LAUNCHER, request=json.dumps(request), limit_s=limit_s, key=key
    )
    record = read_judge_record(data, key, tests=tests)
    record.forged = bool(record.broken) and (code == 0 or record.broken != ENDED_EARLY)
    record.unfinished = bool(record.broken) and (code is None or not record.forged)
    if record.broken and code is None:
        record.refused = f"the run passed its limit of {limit_s:.0f} s"
    elif record.broken and record.seal is None:
        record.refused = f"{record.broken} (exit code {code}) {error}".strip()
    return record


def run_program(
    tree: Path,
    repository: JudgedRepository,
    *,
    program: Path,
    request: str,
    limit_s: float,
    key: bytes = b"",
) -> tuple[bytes, int | None, str]:
    """Run a program of this folder beside a read-only tree: what it wrote to JUDGE_FD, its exit
    code (None if it passed its limit), the last line of stderr."""
    read_only = [(str(tree), "/repo")]
    read_only += [(str(path), f"/judge/{path.name}") for path in {program, GUARD, DRAWS}]
    read_only.append((str(repository.environment.metadata), "/metadata"))
    sandbox = TreeSandbox(python=repository.environment.program, read_only=tuple(read_only))
    reading, writing = os.pipe()
    key_reading, key_writing = os.pipe()
    os.write(key_writing, key)
    os.close(key_writing)
    process = sandbox.start(
        ["-s", f"/judge/{program.name}"],
        env={"JUDGE_FD": str(writing), "JUDGE_KEY_FD": str(key_reading)},
        pass_fds=(writing, key_reading),
    )
    os.close(writing)
    os.close(key_reading)
    received: list[bytes] = []

    def receive() -> None:
        with open(reading, "rb") as stream:
            received.append(stream.read(MAX_RECORD))

    reader = threading.Thread(target=receive)
    reader.start()
    code: int | None = None
    error = b""
    try:
        error = process.communicate(request.encode(), timeout=limit_s)[1]
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    reader.join()
    last = (error.decode(errors="replace").strip().splitlines() or [""])[-1]
    if refused(process):
        raise SandboxError(last, where="the sandbox", fix="no walls, nothing is judged")
    return received[0], code, last


def calibrate(task: RepoTask, repository: JudgedRepository, *, limit_s: float) -> Calibration:
    """What the original does under the guards; from a file the second time.

    Raises OriginalRefusedError where the original does not pass: such a task cannot be judged so.
    """
    digest = hashlib.sha256(LAUNCHER.read_bytes() + GUARD.read_bytes())
    digest.update(dumps([task.must_pass, task.must_keep]).encode())
    file = repository.cache / f"{task.id}-{digest.hexdigest()[:10]}.json"
    if file.exists():
        return Calibration(**json.loads(file.read_text(encoding="utf-8")))
    original = task.original_files(repository.checkout.folder)
    with judge_room(task, repository, changed=original, deleted=()) as room:
        record = run_judge(
            room.tree, task, repository, guarded=room.changed, known=None, limit_s=limit_s
        )
    if record.refused or record.seal is None:
        raise OriginalRefusedError(
            f"the original does not pass the judge: {record.refused}",
            where=task.id,
            fix="leave the task out: `recompose tasks list` has its line",
            unfinished=record.unfinished,
        )
    seal: dict[str, Any] = record.seal
    calibration = Calibration(
        known={name: seal[name] for name in _NOTED},
        codes={name: seal["codes"].get(name, False) for name in record.outcomes},
    )
    make_folder(repository.cache)
    write_text(file, dumps(asdict(calibration)))
    return calibration
