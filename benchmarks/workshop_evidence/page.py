"""docs/evidence.md, written from benchmarks/results/evidence.json alone, and the check that no
number of it, or quoted from it, is stale.

    render(evidence) -> str                                     a pure function: the same JSON gives the same page
    problems(root) -> []                                        else one line per thing that is wrong
    value_at(evidence, "level1.after.success")                  -> 0.58

A number is quoted as <!-- evidence: level1.after.success -->0.58<!-- /evidence -->; its decimals
are those that were written. Keys: levelN.ROW.MEASURE (success, success_low, success_high,
valid_call_rate, A_made, ..., cpu_s, steps) and levelN.A-B.MEASURE (difference, low, high of
success; targeted.ratio, other.difference, A_made.difference, ...); about.tasks, ...
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer_replication.evaluation.stats import mean_over_groups

from .arms import ARMS, LEVELS, MIN_SEEDS, settings_sha256
from .sections import ending, level_section, opening
from .words import METRICS, cost_of, pair_of

PAGE, JSON_PAGE = Path("docs/evidence.md"), Path("benchmarks/results/evidence.json")
STUDENTS: Mapping[int, str] = {1: "workshop_student", 2: "workshop_student_2"}
TOLERANCE = 1e-9
QUOTED = re.compile(r"<!-- evidence: (\S+) -->(.*?)<!-- /evidence -->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])[+−-]?(?:[01]?\.\d{2,3})(?![\d.]*\w)")
"""What looks like a share or a difference that was measured: 0.58, .353, +0.270."""


def render(evidence: Mapping[str, Any]) -> str:
    """The whole page."""
    parts = [
        opening(evidence),
        gaps(evidence),
        *(level_section(level, evidence) for level in sorted(evidence["levels"])),
        ending(evidence),
    ]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def gaps(evidence: Mapping[str, Any]) -> str:
    """Which arms were not run, by level; "" where none is missing."""
    told: list[str] = []
    for level in LEVELS:
        there = evidence["levels"].get(str(level), {}).get("arms", {})
        wanted = [name for name, arm in ARMS.items() if level in arm.levels]
        missing = [name for name in wanted if name not in there]
        if missing:
            told.append(
                f"- level {level}: {'all of it' if missing == wanted else ', '.join(missing)}"
            )
    return (
        "\n".join(["**Not run yet**, so that nothing is said about them here:", "", *told])
        if told
        else ""
    )


def problems(root: Path) -> list[str]:
    """Everything that is stale or missing below a checkout."""
    path = root / JSON_PAGE
    if not path.exists():
        return [f"{JSON_PAGE} does not exist: run python benchmarks/evidence.py"]
    return list(_problems(root, json.loads(path.read_text("utf-8"))))


def _problems(root: Path, evidence: Mapping[str, Any]) -> Iterator[str]:
    page = root / PAGE
    if not page.exists() or page.read_text("utf-8") != render(evidence):
        yield f"{PAGE} is not what {JSON_PAGE} says: run python benchmarks/evidence.py --render"
    if evidence["about"]["settings_sha256"] != settings_sha256():
        yield (
            f"{JSON_PAGE} was made with other settings of the demo or the arms: run python"
            " benchmarks/evidence.py"
        )
    if evidence["about"]["steps_scale"] != 1:
        yield f"{JSON_PAGE} is a trial with {evidence['about']['steps_scale']} x the steps"
    if len(evidence["about"]["seeds"]) < MIN_SEEDS:
        yield f"{JSON_PAGE} has {len(evidence['about']['seeds'])} seeds, {MIN_SEEDS} are needed"
    for level in LEVELS:
        yield from _student(root, level, evidence)
    for level, found in sorted(evidence["levels"].items()):
        yield from outcomes(level, found)
    readme = root / "README.md"
    for path in (readme, *sorted((root / "docs").glob("*.md"))):
        if path.exists() and path != page:
            yield from quotes(path.relative_to(root).as_posix(), path.read_text("utf-8"), evidence)
    if readme.exists():
        yield from loose_numbers("README.md", readme.read_text("utf-8"))


def outcomes(level: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Rows and differences of success that are not what the episodes' outcomes say."""
    rows = {row["name"]: row for row in found["rows"]}
    for name, row in rows.items():
        for seed, bits in row["outcomes"].items():
            if abs(row["by_seed"][seed] - bits.count("1") / len(bits)) > TOLERANCE:
                told = (
                    f"success is {row['by_seed'][seed]}, its outcomes say {bits.count('1')} of"
                    f" {len(bits)}"
                )
                yield f"level {level}: {name}, seed {seed}: {told}"
    for pair in found["paired"]:
        if "metric" in pair:
            continue
        a, b = rows[pair["a"]]["outcomes"], rows[pair["b"]]["outcomes"]
        common = sorted(a.keys() & b.keys())
        total = sum(len(a[seed]) for seed in common)
        apart = sum(a[seed].count("1") - b[seed].count("1") for seed in common) / total
        over = mean_over_groups(
            [(a[seed].count("1") - b[seed].count("1")) / len(a[seed]) for seed in common]
        )
        if abs(pair["difference"] - apart) > TOLERANCE:
            yield (
                f"level {level}: {pair['a']} - {pair['b']} is {pair['difference']}, its outcomes"
                f" say {apart}"
            )
        elif (
            over.low is not None
            and over.high is not None
            and not pair["low"] - TOLERANCE <= max(-1.0, over.low) <= pair["high"]
        ):
            yield (
                f"level {level}: {pair['a']} - {pair['b']}: its interval leaves out that over"
                f" seeds, {over.low:.3f} to {over.high:.3f}"
            )


def _student(root: Path, level: int, evidence: Mapping[str, Any]) -> Iterator[str]:
    about = root / "examples" / STUDENTS[level] / "warmup.json"
    if str(level) not in evidence["levels"]:
        return  # the page says that it was not run
    if not about.exists():
        yield f"{about.relative_to(root)} does not exist: nothing says which student ships"
    elif (
        json.loads(about.read_text("utf-8"))["weights_sha256"]
        != evidence["levels"][str(level)]["student_sha256"]
    ):
        yield (
            f"{JSON_PAGE} is of another student than {about.parent.relative_to(root)}: run python"
            " benchmarks/evidence.py"
        )


def quotes(name: str, text: str, evidence: Mapping[str, Any]) -> Iterator[str]:
    """Numbers between markers that are not what the JSON says, rounded as they were written."""
    if text.count("<!-- evidence:") != len(QUOTED.findall(text)):
        yield f"{name}: a marker of a quoted number is not closed"
    for key, shown in QUOTED.findall(text):
        value = value_at(evidence, key)
        if value is None:
            yield f"{name}: {JSON_PAGE} holds no {key}"
            continue
        number = shown.strip().replace("−", "-")
        decimals = len(number.partition(".")[2])
        wanted = f"{value:+.{decimals}f}" if number.startswith("+") else f"{value:.{decimals}f}"
        if number != wanted:
            yield (
                f"{name}: {key} is quoted as {number or 'nothing'}, but is"
                f" {wanted if decimals else value}"
            )


def loose_numbers(name: str, text: str) -> Iterator[str]:
    """Numbers that look like results and stand outside of markers, where nothing would notice that
    they are stale."""
    for number in NUMBER.findall(QUOTED.sub("", text)):
        yield (
            f"{name}: {number} looks like a result; quote it as <!-- evidence: KEY -->{number}<!--"
            " /evidence -->"
        )


def value_at(evidence: Mapping[str, Any], key: str) -> float | None:
    """The number of a key, None where there is none: see the top of this file.

    >>> value_at({"about": {"tasks": 192}}, "about.tasks")
    192.0
    """
    where, _, rest = key.partition(".")
    if where == "about":
        return _number(evidence["about"].get(rest))
    found = evidence["levels"].get(where.removeprefix("level"))
    who, _, measure = rest.partition(".")
    if found is None or not measure:
        return None
    if "-" in who:
        a, _, b = who.partition("-")
        metric, _, inner = measure.rpartition(".")
        pair = (
            pair_of(found["paired"], a, b, METRICS[metric])
            if metric in METRICS
            else pair_of(found["paired"], a, b)
            if not metric
            else None
        )
        return _number((pair or {}).get(inner))
    row = next((row for row in found["rows"] if row["name"] == who), {})
    cost = cost_of(found["arms"][who]) if who in found["arms"] else {}
    return _number({**cost, **row.get("families", {}), **row}.get(measure))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
