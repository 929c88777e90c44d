"""Rows that an earlier machine measured and whose checkpoints are gone: kept, and compared with a
new arm by their outcomes, one bit a task.

    check_kept(value, about=about, starts={"11": start_sha256}, file=path)
    joined(value, new_rows, seed=evaluation_seed)    -> {"rows": [...], "paired": [...]}

A row is kept only where the student it began from, the settings and the tasks are the same; else
DataError says what differs. Its mistakes and calls are not known task by task any more, so a
difference to a new arm is of success alone. Differences between kept rows are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.core.trace import Session, SourceRef
from composer_replication.evaluation.rows import paired_differences
from composer_replication.evaluation.success import EpisodeResult

from .arms import BEFORE
from .numbers import block_of, questions

Json = Mapping[str, Any]
SAME = ("settings", "tasks", "evaluation_seed", "level")
"""Fields of "about" that a kept row and a new one must share."""


def check_kept(
    value: Json, *, about: Json, starts: Mapping[str, str], played: Mapping[str, str], file: Path
) -> None:
    """Raise DataError unless the rows of an earlier JSON are of the student, settings and tasks of
    this run.

    `starts` holds, by seed, the hash of the weights that the new arms began from; `played` the
    outcomes of the starts that were played again here, which must come out equal, task by task.
    """
    differing = [name for name in SAME if value["about"][name] != about[name]]
    if value["about"]["warmup"]["weights_sha256"] != about["warmup"]["weights_sha256"]:
        differing.append("the warmed-up student")
    known = value["weights_sha256"][BEFORE]
    differing += [f"the start of seed {s}" for s in starts if known.get(s) != starts[s]]
    (before,) = (row["outcomes"] for row in value["rows"] if row["name"] == BEFORE)
    differing += [
        f"the outcomes of the start of seed {s}" for s in played if before.get(s) != played[s]
    ]
    if differing:
        raise DataError(
            f"its rows are not of the students of this run: {', '.join(differing)}",
            where=str(file),
            fix="train and play every arm again, without --keep",
        )


def success_difference(
    a: str, ours: Mapping[str, str], b: str, theirs: Mapping[str, str], *, seed: int
) -> Json | None:
    """The paired difference in success of two rows by their outcomes, over the seeds of both; None
    if they share none."""
    seeds = sorted(ours.keys() & theirs.keys(), key=int)
    if not seeds:
        return None
    entries = paired_differences(
        a,
        [episode for s in seeds for episode in _episodes(s, ours[s])],
        b,
        [episode for s in seeds for episode in _episodes(s, theirs[s])],
        targeted=(),
        seed=seed,
        families=(),
        block=block_of,
    )
    return next((entry for entry in entries if "metric" not in entry), None)


def joined(value: Json, added: Sequence[Json], *, seed: int) -> dict[str, Any]:
    """The rows and differences of an earlier JSON, and with them those of the rows `added`, which
    take the place of kept rows of their names."""
    new = {row["name"] for row in added}
    rows = [*(row for row in value["rows"] if row["name"] not in new), *added]
    outcomes = {row["name"]: row["outcomes"] for row in rows}
    entries = [entry for entry in value["paired"] if not {entry["a"], entry["b"]} & new]
    for a, b in questions(list(outcomes)):
        if {a, b} & new:
            entry = success_difference(a, outcomes[a], b, outcomes[b], seed=seed)
            entries += [entry] if entry is not None else []
    return {"rows": rows, "paired": sorted(entries, key=lambda entry: "metric" in entry)}


def _episodes(seed: str, bits: str) -> list[EpisodeResult]:
    """Episodes of which success is known, and nothing else."""
    return [
        EpisodeResult(
            task_id=f"{int(seed):09d}/{number:06d}",
            kind="",
            reward=float(bit),
            ended="done",
            measures={},
            entropy=None,
            tokens=0,
            session=_NOTHING,
        )
        for number, bit in enumerate(bits)
    ]


_NOTHING = Session(id="kept", source=SourceRef(file=""), turns=(), segments=())
