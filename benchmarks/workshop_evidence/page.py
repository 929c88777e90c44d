"""Write docs/evidence.md from benchmarks/results/evidence.json alone, and check that no number on
it, or quoted from it, is stale.

    render(evidence) -> str           a pure function: the same JSON gives the same page
    problems(root) -> []              or one line per problem
    value_at(evidence, "level1.after.success")    -> 0.58

A number is quoted as <!-- evidence: level1.after.success -->0.58<!-- /evidence --> and compared at
the number of decimals that is written there. Keys: levelN.ROW.MEASURE (success, success_low,
success_high, valid_call_rate, A_made, ..., cpu_s, steps) and levelN.A-B.MEASURE (difference, low,
high of success; targeted.ratio, other.difference, A_made.difference, ...); about.tasks, ...
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
"""Numbers that look like a measured share or difference: 0.58, .353, +0.270."""


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
    """The arms that were not run, by level; "" if none is missing."""
    lines: list[str] = []
    for level in LEVELS:
        trained = evidence["levels"].get(str(level), {}).get("arms", {})
        wanted = [name for name, arm in ARMS.items() if level in arm.levels]
        missing = [name for name in wanted if name not in trained]
        if missing:
            lines.append(
                f"- level {level}: {'all of it' if missing == wanted else ', '.join(missing)}"
            )
    return (
        "\n".join(["**Not run yet**, so this page says nothing about them:", "", *lines])
        if lines
        else ""
    )


def problems(root: Path) -> list[str]:
    """Everything that is stale or missing in a checkout."""
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
        yield from _student_problems(root, level, evidence)
    for level, numbers in sorted(evidence["levels"].items()):
        yield from outcome_problems(level, numbers)
    readme = root / "README.md"
    for path in (readme, *sorted((root / "docs").glob("*.md"))):
        if path.exists() and path != page:
            yield from quote_problems(
                path.relative_to(root).as_posix(), path.read_text("utf-8"), evidence
            )
    if readme.exists():
        yield from loose_numbers("README.md", readme.read_text("utf-8"))


def outcome_problems(level: str, numbers: Mapping[str, Any]) -> Iterator[str]:
    """Rows, and differences of success, that contradict the outcomes of the episodes."""
    rows = {row["name"]: row for row in numbers["rows"]}
    for name, row in rows.items():
        for seed, bits in row["outcomes"].items():
            if abs(row["by_seed"][seed] - bits.count("1") / len(bits)) > TOLERANCE:
                problem = (
                    f"success is {row['by_seed'][seed]}, its outcomes say {bits.count('1')} of"
                    f" {len(bits)}"
                )
                yield f"level {level}: {name}, seed {seed}: {problem}"
    for pair in numbers["paired"]:
        if "metric" in pair:
            continue
        a, b = rows[pair["a"]]["outcomes"], rows[pair["b"]]["outcomes"]
        common = sorted(a.keys() & b.keys())
        total = sum(len(a[seed]) for seed in common)
        difference = sum(a[seed].count("1") - b[seed].count("1") for seed in common) / total
        over_seeds = mean_over_groups(
            [(a[seed].count("1") - b[seed].count("1")) / len(a[seed]) for seed in common]
        )
        if abs(pair["difference"] - difference) > TOLERANCE:
            yield (
                f"level {level}: {pair['a']} - {pair['b']} is {pair['difference']}, its outcomes"
                f" say {difference}"
            )
        elif (
            over_seeds.low is not None
            and over_seeds.high is not None
            and not pair["low"] - TOLERANCE <= max(-1.0, over_seeds.low) <= pair["high"]
        ):
            yield (
                f"level {level}: {pair['a']} - {pair['b']}: its interval leaves out that over"
                f" seeds, {over_seeds.low:.3f} to {over_seeds.high:.3f}"
            )


def _student_problems(root: Path, level: int, evidence: Mapping[str, Any]) -> Iterator[str]:
    warmup_json = root / "examples" / STUDENTS[level] / "warmup.json"
    if str(level) not in evidence["levels"]:
        return  # the page says that it was not run
    if not warmup_json.exists():
        yield f"{warmup_json.relative_to(root)} does not exist: nothing says which student ships"
    elif (
        json.loads(warmup_json.read_text("utf-8"))["weights_sha256"]
        != evidence["levels"][str(level)]["student_sha256"]
    ):
        yield (
            f"{JSON_PAGE} is of another student than {warmup_json.parent.relative_to(root)}: run"
            " python benchmarks/evidence.py"
        )


def quote_problems(name: str, text: str, evidence: Mapping[str, Any]) -> Iterator[str]:
    """Quoted numbers that differ from the JSON, rounded to the decimals that are written."""
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
    """Numbers that look like results but are not between markers, so that no check would notice if
    they were stale."""
    for number in NUMBER.findall(QUOTED.sub("", text)):
        yield (
            f"{name}: {number} looks like a result; quote it as <!-- evidence: KEY -->{number}<!--"
            " /evidence -->"
        )


def value_at(evidence: Mapping[str, Any], key: str) -> float | None:
    """The number of a key (see the top of this file), or None.

    >>> value_at({"about": {"tasks": 192}}, "about.tasks")
    192.0
    """
    scope, _, path = key.partition(".")
    if scope == "about":
        return _number(evidence["about"].get(path))
    numbers = evidence["levels"].get(scope.removeprefix("level"))
    subject, _, measure = path.partition(".")
    if numbers is None or not measure:
        return None
    if "-" in subject:
        a, _, b = subject.partition("-")
        metric, _, inner = measure.rpartition(".")
        pair = (
            pair_of(numbers["paired"], a, b, METRICS[metric])
            if metric in METRICS
            else pair_of(numbers["paired"], a, b)
            if not metric
            else None
        )
        return _number((pair or {}).get(inner))
    row = next((row for row in numbers["rows"] if row["name"] == subject), {})
    cost = cost_of(numbers["arms"][subject]) if subject in numbers["arms"] else {}
    return _number({**cost, **row.get("families", {}), **row}.get(measure))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
