"""Reads evaluation.json: rows, paired differences, and the verdict that they support.

    {"rows": [{"name": "after", "n": 200, "success": 0.58, "success_low": 0.51, ...}],
     "paired": [{"a": "after", "b": "before", "difference": 0.27, "low": 0.19, "high": 0.35}],
     "paired_measures": [{..., "metric": "C_made"}],
     "family_titles": {"C_made": "C: the last test left out"},
     "notes": ["..."]}

`own_tasks` says whether the run was trained in the environment that was played. If not, the tasks
are those of the built-in workshop, a toy: every page and terminal puts the user's own logs first.

Rows and the first differences are needed. The rest is optional: differences in measures other than
success, the titles of the families of mistakes that the environment counts, and notes, which are
shown verbatim.

A claim needs the paired intervals of after - before and of after - placebo to exclude zero on the
same side.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError

AFTER, NEEDED = "after", ("before", "placebo")
NOTHING = "Nothing is claimed"
METRIC = "success"
SHOWN_APART = ("rows", "paired", "paired_measures", "family_titles", "notes", "own_tasks")


def read_evaluation(path: Path) -> dict[str, Any] | None:
    """The values of evaluation.json with the verdict; None if no evaluation was run.

    Raises DataError if the file has another format.
    """
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"not JSON: {error}", where=str(path), fix="run the evaluation again"
        ) from error
    rows, success, measures = (
        value.get(name, ()) if isinstance(value, dict) else ()
        for name in ("rows", "paired", "paired_measures")
    )
    is_listed = isinstance(success, list) and isinstance(measures, (list, tuple))
    paired = [*success, *measures] if is_listed else []
    if (
        not is_listed
        or not _is_rows(rows, ("name",))
        or not _is_rows(paired, ("a", "b", "difference", "low", "high"))
    ):
        fix = (
            'it holds {"rows": [{"name", ...}], "paired": [{"a", "b", "difference", "low",'
            ' "high"}]}: run the evaluation again'
        )
        raise DataError("not an evaluation", where=str(path), fix=fix)
    for pair in paired:
        numbers = [pair[key] for key in ("low", "difference", "high")]
        if not all(map(_is_number, numbers)) or numbers != sorted(numbers):
            problem = f"{pair['a']} - {pair['b']} is not an interval around a difference: {numbers}"
            raise DataError(problem, where=str(path), fix="run the evaluation again")
    other_values = {
        key: inner for key, inner in value.items() if key not in (*SHOWN_APART, "weights_sha256")
    }
    notes = [str(note) for note in value.get("notes", ())]
    return {
        "rows": rows,
        "paired": paired,
        "notes": notes,
        "own_tasks": bool(value.get("own_tasks", True)),
        "family_titles": _family_titles(value.get("family_titles"), rows, paired),
        "about": dict(flat(other_values)),
        "verdict": verdict(paired),
    }


def _family_titles(titles: Any, rows: Any, paired: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Family measure -> title.

    A file of an older version has no titles: its families are the measures that end with "_made".
    """
    if isinstance(titles, Mapping):
        return {str(measure): str(title) for measure, title in titles.items()}
    counted = [row["families"] for row in rows if isinstance(row.get("families"), Mapping)]
    names = {
        str(name)
        for name in (*(p.get("metric", "") for p in paired), *(n for f in counted for n in f))
    }
    return {name: name for name in sorted(names) if name.endswith("_made")}


def verdict(paired: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The claim that the paired intervals support: "better", "worse" or "nothing", with reasons.

    >>> rows = [
    ...     {"a": "after", "b": control, "difference": 0.2, "low": 0.1, "high": 0.3}
    ...     for control in ("before", "placebo")
    ... ]
    >>> verdict(rows)["claim"], verdict(rows[:1])["claim"]
    ('better', 'nothing')
    """
    sides: list[int] = []
    reasons: list[str] = []
    for control in NEEDED:
        pair = difference(paired, AFTER, control)
        if pair is None:
            sides.append(0)
            reasons.append(f"there is no paired difference {AFTER} - {control}")
            continue
        comparison = (
            f"{AFTER} - {control} = {signed(pair['difference'])}, interval {signed(pair['low'])} to"
            f" {signed(pair['high'])}"
        )
        side = 1 if pair["low"] > 0 else -1 if pair["high"] < 0 else 0
        sides.append(side)
        reasons.append(f"{comparison}: {'excludes' if side else 'includes'} zero")
    claim = {(1, 1): "better", (-1, -1): "worse"}.get((sides[0], sides[1]), "nothing")
    sentences = {
        "better": (
            "Success on held-out tasks rose, by more than with the signals nulled (placebo): both"
            " paired intervals exclude zero."
        ),
        "worse": (
            "Success on held-out tasks fell, by more than with the signals nulled (placebo): both"
            " paired intervals exclude zero."
        ),
        "nothing": (
            f"{NOTHING}: a claim needs the paired intervals of after - before and of after -"
            " placebo to exclude zero on the same side."
        ),
    }
    return {"claim": claim, "sentence": sentences[claim], "reasons": reasons}


def difference(
    paired: Sequence[Mapping[str, Any]], a: str, b: str, *, metric: str = METRIC
) -> dict[str, float] | None:
    """The paired difference a - b of a measure, also if the file holds b - a; None if neither."""
    for pair in paired:
        if pair.get("metric", METRIC) != metric:
            continue
        if (pair["a"], pair["b"]) == (a, b):
            return {key: float(pair[key]) for key in ("difference", "low", "high")}
        if (pair["a"], pair["b"]) == (b, a):
            return {
                "difference": -float(pair["difference"]),
                "low": -float(pair["high"]),
                "high": -float(pair["low"]),
            }
    return None


def signed(value: float) -> str:
    """A difference with its sign and three decimals, e.g. +0.270.

    A value that would round to zero is written with an exponent, so that its sign is kept.
    """
    return f"{value:+.3f}" if value == 0 or abs(value) >= 0.0005 else f"{value:+.1e}"


def flat(value: Mapping[str, Any], *, prefix: str = "") -> list[tuple[str, Any]]:
    """Nested values by dotted name, without lists.

    >>> flat({"a": {"b": 1}, "c": "x", "d": [1]})
    [('a.b', 1), ('c', 'x')]
    """
    values: list[tuple[str, Any]] = []
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            values += flat(inner, prefix=f"{prefix}{key}.")
        elif not isinstance(inner, list):
            values.append((f"{prefix}{key}", inner))
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_rows(value: Any, keys: Sequence[str]) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, dict) and all(key in row for key in keys) for row in value
    )
