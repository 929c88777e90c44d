"""The claims of an evaluation beside success: mistakes, families, additivity of the channels.

    claims(read_evaluation(path))[0]
    -> Claim(text="The hinted mistakes fell to 0.41 x [0.28, 0.58] (after / before).", holds=True)

Every claim rests on an interval. A sentence with `holds=False` says that a question is undecided,
or that a measure became worse (`against`); the page shows it as prominently as a claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_replication.report.evaluation_section import AFTER, METRIC, NEEDED, difference, signed

TARGETED, OTHER = "targeted_mistakes_per_episode", "other_mistakes_per_episode"
SINGLE = ("policy", "hint", "preference")
"""Rows of runs that trained a single channel."""
MARGIN = 0.1
"""Other mistakes "did not rise" if a rise by more than this per episode is excluded: no interval
can exclude every rise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence: its interval supports it (`holds`), shows a change for the worse (`against`),
    or leaves it undecided (neither)."""

    text: str
    holds: bool
    against: bool = False


def claims(evaluation: Mapping[str, Any]) -> list[Claim]:
    """Every sentence for which the file holds the numbers, in the order of the page."""
    paired = evaluation["paired"]
    hinted = [AFTER, *(row["name"] for row in evaluation["rows"] if row["name"] == "hint")]
    candidates = [_targeted_claim(paired, name, control) for name in hinted for control in NEEDED]
    candidates += [_others_claim(paired, AFTER, control) for control in NEEDED]
    candidates += [
        _family_claim(paired, measure, title)
        for measure, title in evaluation.get("family_titles", {}).items()
    ]
    return [
        *(claim for claim in candidates if claim is not None),
        *_additivity_claims(evaluation["rows"], paired),
    ]


def _targeted_claim(paired: Sequence[Mapping[str, Any]], a: str, b: str) -> Claim | None:
    pair = next(
        (
            p
            for p in paired
            if (p["a"], p["b"], p.get("metric")) == (a, b, TARGETED) and p.get("ratio") is not None
        ),
        None,
    )
    if pair is None:
        return None
    ratio, low, high = pair["ratio"], pair.get("ratio_low"), pair.get("ratio_high")
    if low is None or high is None:
        return Claim(
            text=(
                f"Whether the hinted mistakes fell is not decided: {a} / {b} = {ratio:.2f} x,"
                " without an interval."
            ),
            holds=False,
        )
    interval = f"{ratio:.2f} x [{low:.2f}, {high:.2f}]"
    if high < 1:
        return Claim(text=f"The hinted mistakes fell to {interval} ({a} / {b}).", holds=True)
    if low > 1:
        return Claim(
            text=f"The hinted mistakes rose to {interval} ({a} / {b}).", holds=False, against=True
        )
    return Claim(
        text=f"Whether the hinted mistakes fell is not decided: {a} / {b} = {interval} includes 1.",
        holds=False,
    )


def _others_claim(paired: Sequence[Mapping[str, Any]], a: str, b: str) -> Claim | None:
    pair = difference(paired, a, b, metric=OTHER)
    if pair is None:
        return None
    comparison = f"{a} - {b} = {_interval_text(pair)} per episode"
    if pair["high"] < 0:
        return Claim(text=f"Other mistakes fell: {comparison}.", holds=True)
    if pair["low"] > 0:
        return Claim(text=f"Other mistakes rose: {comparison}.", holds=False, against=True)
    if pair["high"] <= MARGIN:
        return Claim(
            text=f"Other mistakes did not rise by more than {MARGIN}: {comparison}.", holds=True
        )
    return Claim(text=f"Whether other mistakes rose is not decided: {comparison}.", holds=False)


def _family_claim(paired: Sequence[Mapping[str, Any]], measure: str, title: str) -> Claim | None:
    pairs = {control: difference(paired, AFTER, control, metric=measure) for control in NEEDED}
    known_pairs = {control: pair for control, pair in pairs.items() if pair is not None}
    if not known_pairs:
        return None
    comparisons = "; ".join(
        f"{AFTER} - {control} = {_interval_text(pair)}" for control, pair in known_pairs.items()
    )
    if len(known_pairs) == len(NEEDED) and all(pair["high"] < 0 for pair in known_pairs.values()):
        return Claim(text=f"{title} became rarer: {comparisons}.", holds=True)
    if all(pair["low"] > 0 for pair in known_pairs.values()):
        return Claim(
            text=f"{title} became more frequent: {comparisons}.", holds=False, against=True
        )
    return Claim(text=f"{title}: no change is claimed: {comparisons}.", holds=False)


def _additivity_claims(
    rows: Sequence[Mapping[str, Any]], paired: Sequence[Mapping[str, Any]]
) -> Iterator[Claim]:
    """Whether all channels together beat each single channel; names those not trained alone."""
    names = {row["name"]: row for row in rows}
    single = [name for name in SINGLE if name in names]
    differences = {
        name: pair
        for name in single
        if (pair := difference(paired, AFTER, name, metric=METRIC)) is not None
    }
    if not differences:
        return
    comparisons = "; ".join(
        f"{AFTER} - {name} = {_interval_text(pair)}" for name, pair in differences.items()
    )
    missing = [name for name in SINGLE if name not in differences]
    behind = [name for name, pair in differences.items() if pair["low"] <= 0]
    if behind:
        sentence = (
            "The channels do not add up: all together are not shown to do better than"
            f" {' or '.join(behind)} alone ({comparisons})."
        )
        yield Claim(
            text=sentence,
            holds=False,
            against=any(pair["high"] < 0 for pair in differences.values()),
        )
    elif missing:
        yield Claim(
            text=(
                "Whether the channels add up is not decided: not trained alone:"
                f" {', '.join(missing)} ({comparisons})."
            ),
            holds=False,
        )
    else:
        yield Claim(
            text=f"The channels add up: all together do better than each alone ({comparisons}).",
            holds=True,
        )


def _interval_text(pair: Mapping[str, float]) -> str:
    return f"{signed(pair['difference'])} [{signed(pair['low'])}, {signed(pair['high'])}]"
