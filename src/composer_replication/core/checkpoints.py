"""Which checkpoint of a run can be read: its files are those that were written, by their checksums.
Torch is not needed for it.

    step, folder = whole_checkpoint(run)           # the newest; raises DamagedError, which says what is damaged and which one is whole
    step, folder = whole_checkpoint(run, 40)       # the one after 40 steps
    seal(folder)                                   # when all is written: SHA256SUMS, which `sha256sum -c SHA256SUMS` reads too

Checkpoints of earlier schemas have no checksums; they are read as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DamagedError, DataError
from composer_replication.core.files import write_text
from composer_replication.core.rundir import RunDir

TRAINER, SUMS = "trainer.json", "SHA256SUMS"
SCHEMA, UNSEALED = 4, 3
OPTIMISER = "optimiser.safetensors"
NEEDED = (TRAINER, OPTIMISER, "*model.safetensors")
"""What every checkpoint holds, with weights or an adapter."""


def seal(folder: Path) -> None:
    """Write the checksum of every file of a folder beside them; the last thing that is written into
    it."""
    write_text(
        folder / SUMS,
        "".join(
            f"{_sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in _sealed(folder)
        ),
    )


def find_damage(folder: Path, *, needs: Sequence[str] = NEEDED) -> str:
    """What is wrong with the files of a sealed folder, "" where nothing is; a file that no checksum
    stands for counts as damage, too.

    `needs` are the files that there must be, whatever the checksums name.

    Example: damage(run.checkpoint(40)) -> "config.json is missing; model.safetensors is not what
    was written"
    """
    sums = folder / SUMS
    if not sums.is_file():
        try:
            return (
                ""
                if read_trainer(folder).get("schema", SCHEMA) in range(SCHEMA)
                else f"{SUMS} is missing"
            )
        except DamagedError as error:
            return error.what
    problems: list[str] = []
    text = sums.read_text("utf-8", errors="replace")
    listed = {
        name: sha256 for sha256, _, name in (line.partition("  ") for line in text.splitlines())
    }
    if not text.endswith("\n") or "" in listed:
        return f"{SUMS} is cut off"
    for name, sha256 in listed.items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif _sha256(path) != sha256:
            problems.append(
                f"{name} is empty"
                if not path.stat().st_size
                else f"{name} is not what was written (its checksum differs)"
            )
    unlisted = [path.relative_to(folder).as_posix() for path in _sealed(folder)]
    problems += [
        f"{SUMS} does not name {name}: it is cut off, or the file came later"
        for name in unlisted
        if name not in listed
    ]
    absent = [name for name in needs if not any(fnmatchcase(file, name) for file in listed)]
    problems += [f"{SUMS} does not name any {name}: it is cut off" for name in absent]
    return "; ".join(problems)


def is_whole(folder: Path) -> bool:
    """Whether every file of a checkpoint is the one that was written."""
    return not find_damage(folder)


def whole_checkpoint(run: RunDir, step: int | None = None) -> tuple[int, Path]:
    """(steps, folder) of a run's newest checkpoint, or of the one after `step` steps, every file of
    it checked.

    Raises DamagedError where a file is not what was written, DataError where there is no such
    checkpoint.
    """
    checkpoints = run.checkpoints()
    chosen = [pair for pair in checkpoints if step is None or pair[0] == step]
    if not chosen:
        have = (
            f"there are {', '.join(path.name for _, path in checkpoints)}"
            if checkpoints
            else "train to the first one (train.checkpoint_every)"
        )
        raise DataError(
            "the run kept no checkpoint" + ("" if step is None else f" after step {step}"),
            where=str(run.path),
            fix=have,
        )
    at, folder = chosen[-1]
    if problem := find_damage(folder):
        raise damaged_error(run, at, problem)
    return at, folder


def damaged_error(run: RunDir, step: int, problem: str) -> DamagedError:
    """The error for a checkpoint of which something is damaged, with the newest one before it that
    is whole."""
    before = next(
        (path for at, path in reversed(run.checkpoints()) if at < step and is_whole(path)), None
    )
    fix = (
        f"go on from the one before, which is whole: {before}"
        if before
        else "no earlier checkpoint is whole: start a new run"
    )
    return DamagedError(
        f"the checkpoint after step {step} is damaged: {problem}",
        where=str(run.checkpoint(step)),
        fix=fix,
        before=before,
    )


def read_trainer(folder: Path) -> dict[str, Any]:
    """What trainer.json of a checkpoint holds; raises DamagedError where it is not there or not
    JSON."""
    path = folder / TRAINER
    try:
        state = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DamagedError(
            "no trainer state: trainer.json is missing",
            where=str(folder),
            fix="go on from another checkpoint",
        ) from error
    except ValueError as error:
        message = (
            "trainer.json is empty"
            if not path.stat().st_size
            else f"trainer.json is not JSON: {error}"
        )
        raise DamagedError(message, where=str(path), fix="go on from another checkpoint") from error
    if not isinstance(state, dict):
        raise DamagedError(
            "trainer.json is no JSON object", where=str(path), fix="go on from another checkpoint"
        )
    return state


def _sealed(folder: Path) -> list[Path]:
    """The files that a checksum stands for: all but that of the checksums."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
