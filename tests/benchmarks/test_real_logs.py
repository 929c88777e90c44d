"""What students trained on public sessions do at held-out mistakes, and the page about it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from composer_replication.evaluation.decision_lift import decision_row
from composer_replication.tokens.example import DecisionTokens


@pytest.fixture
def sections(real_hints: ModuleType) -> ModuleType:
    """Needs the folder of benchmarks on the path, as real_hints does."""
    import real_logs_section  # pyright: ignore[reportMissingImports]

    return real_logs_section


def value(*differences: dict[str, Any], **more: Any) -> dict[str, Any]:
    about = {"steps": 16, "dtype": "float32", "max_tokens": 1024, "scored_tokens": 2048}
    return {"about": about, "differences": list(differences)} | more


def row(a: str, b: str, mean: float, what: str = "log_odds") -> dict[str, Any]:
    numbers = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}
    return {"what": what, "a": a, "b": b, "n": 44, "sessions": 26, **numbers}


def test_the_token_written_at_the_first_decision_is_right_wrong_or_neither(
    real_hints: ModuleType,
) -> None:
    decisions = [
        DecisionTokens(site_id="s", spans=((2, 3),), fork=None, right_ids=()),
        DecisionTokens(site_id="s", spans=((3, 4),), fork=3, right_ids=(7, 9)),
    ]
    bare = decision_row((1, 2, 3, 5), decisions, shift=0)
    said = [real_hints.choice(token, bare, decisions) for token in (7, 9, 5, 3)]
    assert said == ["right", "right", "wrong", "neither"]


def test_the_mean_over_the_seeds_is_told_and_not_each_seed(sections: ModuleType) -> None:
    of = [("focus-11", 0.3), ("focus-12", -0.3), ("focus", 0.02)]
    measured = value(*(row(a, a.replace("focus", "focus_placebo"), m) for a, m in of))
    (sentence,) = sections.logs_in_words([measured])
    assert "(2 seeds)" in sentence and "is not shown to decide differently" in sentence
    table = sections.logs_section([measured])
    assert "### In float32: seeds 11, 12" in table
    assert "| focus-12 | focus_placebo-12 | 44 | 26 | -0.30 [-0.40, -0.20] |" in table


def test_an_arm_is_told_with_its_own_seeds(sections: ModuleType) -> None:
    """Arms need not have the same seeds in a file."""
    rows = [("focus-11", 0.3), ("focus-12", 0.1), ("focus", 0.2), ("hint-12", 0.4), ("hint", 0.4)]
    placebo = {"focus": "focus_placebo", "hint": "placebo"}
    measured = value(
        *(row(a, a.replace(arm := a.partition("-")[0], placebo[arm]), mean) for a, mean in rows),
        row("focus", "before", 0.9),
        row("focus_placebo", "before", 0.7),
    )
    focus, hint = sections.logs_in_words([measured])
    assert "(2 seeds)" in focus and "(by seed +0.30, +0.10)" in focus
    assert "Since the start it moved by +0.90, and the placebo by +0.70." in focus
    assert "(seed 12)" in hint and "by seed" not in hint and "Since" not in hint
    # Student's t of one degree of freedom is 12.7
    assert "+0.20 [-1.07, +1.47]" in focus and "is not shown to decide differently" in focus


def test_repeating_is_a_column_of_files_that_measured_it(sections: ModuleType) -> None:
    old = value(row("hint-11", "placebo-11", 0.5))
    del old["differences"][0]["what"]
    new = value(
        row("hint-12", "placebo-12", 0.5),
        row("hint-12", "placebo-12", -0.25, what="wrong"),
        shares={"right": {"before": 0.1}, "wrong": {"before": 0.4}},
    )
    before, after = (sections.logs_section([v]) for v in (old, new))
    assert "| repeats the wrong token |" not in before
    assert "| repeats the wrong token |" in after and "-0.25 [-0.35, -0.15] |" in after
    assert "before 0.10 / 0.40" in after
    told = sections.logs_in_words([new])
    assert len(told) == 2 and "repeats fewer than its placebo" in told[1]
