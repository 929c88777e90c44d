"""The closing lines of the demo: short, of harm as well as of gain, and no claim that an interval
does not support."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.cli.demo_text import summary

ROWS = [{"name": name, "success": 0.5} for name in ("before", "more_sft", "placebo", "after")]
UP, DOWN, OPEN = (0.4, 0.3, 0.5), (-0.4, -0.5, -0.3), (0.02, -0.1, 0.2)
FELL, ROSE, SAME = (0.09, 0.03, 0.15), (1.5, 1.2, 1.9), (0.9, 0.7, 1.1)


def table(*, success: Any, ratio: Any, others: Any) -> dict[str, Any]:
    """An evaluation; each argument is (number, low, high) for "before", or a pair of them for
    "before" and "placebo"."""
    paired: list[dict[str, Any]] = []
    for i, baseline in enumerate(("before", "placebo")):
        success_interval, ratio_interval, others_interval = (
            v[i] if isinstance(v[0], tuple) else v for v in (success, ratio, others)
        )
        ends = {"a": "after", "b": baseline}
        paired.append(
            {**ends, **dict(zip(("difference", "low", "high"), success_interval, strict=True))}
        )
        share = dict(zip(("ratio", "ratio_low", "ratio_high"), ratio_interval, strict=True))
        paired.append(
            {
                **ends,
                "metric": "targeted_mistakes_per_episode",
                "difference": 0.0,
                "low": -1.0,
                "high": 1.0,
                **share,
            }
        )
        differences = dict(zip(("difference", "low", "high"), others_interval, strict=True))
        paired.append({**ends, "metric": "other_mistakes_per_episode", **differences})
    return {"n": 192, "rows": ROWS, "paired": paired}


BETTER, NOTHING = "Better than before and than the placebo", "Nothing is claimed about success"
CASES = [
    (
        UP,
        FELL,
        (0.115, 0.042, 0.193),
        f"{BETTER}; hinted mistakes x0.09 (fell); other mistakes +0.115 per episode (rose).",
    ),
    (
        UP,
        FELL,
        DOWN,
        f"{BETTER}; hinted mistakes x0.09 (fell); other mistakes -0.400 per episode (fell).",
    ),
    (OPEN, SAME, OPEN, f"{NOTHING}; hinted mistakes not decided; other mistakes not decided."),
    (
        (UP, OPEN),
        ROSE,
        OPEN,
        f"{NOTHING}; hinted mistakes x1.50 (rose); other mistakes not decided.",
    ),
    (
        DOWN,
        (0.5, None, None),
        (UP, OPEN),
        "Worse than before and than the placebo; hinted mistakes not decided; "
        "other mistakes +0.400 per episode (rose).",
    ),
    (
        UP,
        (FELL, SAME),
        (DOWN, OPEN),
        f"{BETTER}; hinted mistakes x0.09 (fell; vs placebo not decided); "
        "other mistakes -0.400 per episode (fell; vs placebo not decided).",
    ),
]


@pytest.mark.parametrize(("success", "ratio", "others", "expected"), CASES)
def test_the_second_line_claims_what_its_intervals_support(
    success: Any, ratio: Any, others: Any, expected: str
) -> None:
    lines = summary(table(success=success, ratio=ratio, others=others))
    assert lines[1] == expected
    assert (
        lines[0]
        == "Success on 192 unseen tasks: before 0.50, more_sft 0.50, placebo 0.50, after 0.50."
    )
    assert (
        len(lines) == 3 and "were planted" in lines[2] and all(len(line) <= 160 for line in lines)
    )


def test_without_paired_measures_nothing_is_decided() -> None:
    claim = summary({"n": 8, "rows": ROWS, "paired": []})[1]
    assert claim == f"{NOTHING}; hinted mistakes not decided; other mistakes not decided."
