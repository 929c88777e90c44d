"""Add rows that were made later to those of benchmarks/results/evidence.json.

    merged(old, new)      old as it is, plus the arms of new that it lacks, with their differences,
                          and a level that it lacks as a whole

Both files must come from the same student, seeds and tasks, and their settings may differ in the
added arms only. A difference to an added row is kept only if the other row is the same in both
files to the last digit; `before` must be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer_replication.core.errors import DataError
from composer_replication.evaluation.rows import SUCCESS

from .arms import ARMS, BEFORE, settings_sha256

_SAME = ("evaluation_seed", "tasks", "seeds", "steps_scale")


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The old evidence plus the rows of the new one that it lacks; raises DataError if they cannot
    be compared."""
    for key in _SAME:
        if old["about"][key] != new["about"][key]:
            raise DataError(
                f"{key} is {new['about'][key]}, but {old['about'][key]} on the page",
                fix="run the arms with the page's options",
            )
    added = {
        name
        for level, numbers in new["levels"].items()
        for name in numbers["arms"]
        if name not in old["levels"].get(level, {"arms": {}})["arms"]
    }
    absent = {
        name
        for name in ARMS
        if not any(name in numbers["arms"] for numbers in old["levels"].values())
    }
    accepted = (
        settings_sha256(),
        settings_sha256(without={name for name in absent if ARMS[name].pairs}),
        settings_sha256(without=added & absent),
    )
    if (
        old["about"]["settings_sha256"] not in accepted
        or new["about"]["settings_sha256"] != settings_sha256()
    ):
        raise DataError(
            "the settings of the demo or of the arms are no longer those of the page",
            fix="run every arm again",
        )
    levels = dict(new["levels"]) | {
        level: _merged_level(numbers, new["levels"].get(level))
        for level, numbers in old["levels"].items()
    }
    levels = dict(sorted(levels.items()))
    note = {
        "command": new["about"]["command"],
        "date": new["about"]["date"],
        "rows": sorted(added, key=list(ARMS).index),
    }
    about = {
        **old["about"],
        "settings_sha256": settings_sha256(),
        "added": [*old["about"].get("added", ()), note],
    }
    return {"about": about, "levels": levels}


def _merged_level(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> dict[str, Any]:
    if new is None:
        return dict(old)
    if old["student_sha256"] != new["student_sha256"]:
        raise DataError("the rows are of another student", fix="run every arm again")
    old_rows, new_rows = ({row["name"]: row for row in numbers["rows"]} for numbers in (old, new))
    unchanged = {
        name for name in old_rows.keys() & new_rows.keys() if old_rows[name] == new_rows[name]
    }
    if BEFORE not in unchanged:
        raise DataError(
            "the student before training plays otherwise than on the page, so the rows cannot be"
            " compared",
            fix="run every arm again",
        )
    added = new_rows.keys() - old_rows.keys()
    order = [BEFORE, *ARMS]
    new_pairs = [
        p
        for p in new["paired"]
        if {p["a"], p["b"]} & added and {p["a"], p["b"]} <= added | unchanged
    ]
    return {
        **old,
        "rows": sorted(
            [*old["rows"], *(new_rows[name] for name in added)],
            key=lambda row: order.index(row["name"]),
        ),
        "paired": sorted(
            [*old["paired"], *new_pairs], key=lambda entry: entry.get("metric", SUCCESS) != SUCCESS
        ),
        "arms": {**old["arms"], **{name: new["arms"][name] for name in added}},
        "weights_sha256": {
            **old["weights_sha256"],
            **{name: new["weights_sha256"][name] for name in added},
        },
    }
