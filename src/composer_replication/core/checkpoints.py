"""Check the checkpoints of a run by their checksums, without torch.

    step, folder = whole_checkpoint(run)       # the newest one; DamagedError if a file has changed
    step, folder = whole_checkpoint(run, 40)   # the one after 40 steps
    seal(folder)                               # writes SHA256SUMS (`sha256sum -c SHA256SUMS`)

Checkpoints of earlier schemas have no checksums; they are read unchecked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DamagedError, DataError
from composer_replication.core.files import write_text
from composer_replication.core.rundir import RunDir, sha256_of

TRAINER, SUMS = "trainer.json", "SHA256SUMS"
SCHEMA, UNSEALED = 4, 3
OPTIMISER = "optimiser.safetensors"
NEEDED = (TRAINER, OPTIMISER, "*model.safetensors")
"""File patterns that every checkpoint must hold; the last one is the weights or the adapter."""


def seal(folder: Path) -> None:
    """Write the checksums of a folder's files; must be the last file that is written into it."""
    write_text(
        folder / SUMS,
        "".join(
            f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n"
            for path in _sealed(folder)
        ),
    )


def find_damage(folder: Path, *, needs: Sequence[str] = NEEDED) -> str:
    """Describe the damage of a checkpoint; "" if none is known.

    In a sealed folder, a file without a checksum counts as damage too. A checkpoint of an earlier
    schema has no checksums and is not verified: "". `needs` are patterns of files that must be
    present, whatever SHA256SUMS lists.
    Example: find_damage(run.checkpoint(40)) -> "config.json is missing"
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
        elif sha256_of(path) != sha256:
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


def has_no_known_damage(folder: Path) -> bool:
    """Whether every file of a checkpoint is intact; True too if its schema has no checksums."""
    return not find_damage(folder)


def whole_checkpoint(run: RunDir, step: int | None = None) -> tuple[int, Path]:
    """(steps, folder) of a run's newest checkpoint, or the one after `step` steps, verified
    if its schema has checksums.

    Raises DamagedError if a file has changed, DataError if there is no such checkpoint.
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
    """The error for a damaged checkpoint, with the newest intact one before it."""
    before = next(
        (
            path
            for at, path in reversed(run.checkpoints())
            if at < step and has_no_known_damage(path)
        ),
        None,
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
    """The trainer.json of a checkpoint; raises DamagedError if it is missing or not an object."""
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
    """The files that have a checksum: all but SHA256SUMS itself."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
