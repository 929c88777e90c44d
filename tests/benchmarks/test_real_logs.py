"""What students trained on public sessions do at held-out mistakes, and the page about it."""

from __future__ import annotations

from pathlib import Path
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


@pytest.fixture
def real_logs(real_hints: ModuleType) -> ModuleType:
    """Needs the folder of benchmarks on the path, as real_hints does."""
    import real_logs  # pyright: ignore[reportMissingImports]

    return real_logs


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
    assert "### `focus` in float32: seeds 11, 12" in table
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


def students(**log_odds: float) -> dict[str, dict[str, dict[str, float]]]:
    """Students by name (focus_11 is of seed 11) with the same log-odds at two sites; right where
    they are positive."""
    odds = {name.replace("_1", "-1"): value for name, value in log_odds.items()}
    sites = ("a", "b")
    return {
        "log_odds": {name: dict.fromkeys(sites, value) for name, value in odds.items()},
        "right": {name: dict.fromkeys(sites, float(value > 0)) for name, value in odds.items()},
        "wrong": {name: dict.fromkeys(sites, float(value <= 0)) for name, value in odds.items()},
    }


def test_every_student_is_compared_with_the_start_and_its_own_placebo(
    real_logs: ModuleType,
) -> None:
    measured = students(
        before=-1.0, focus_11=0.5, focus_placebo_11=0.25, hint_11=1.0, placebo_11=-0.5
    )
    found = real_logs.compared(measured, {"a": "session 1", "b": "session 2"})
    means = {(d["what"], d["a"], d["b"]): d["mean"] for d in found["differences"]}
    assert means["log_odds", "focus-11", "focus_placebo-11"] == 0.25
    assert means["log_odds", "hint", "placebo"] == 1.5
    assert means["log_odds", "focus", "before"] == 1.5
    assert means["right", "hint-11", "placebo-11"] == 1.0
    assert means["wrong", "focus-11", "before"] == -1.0
    assert found["shares"]["right"]["focus-11"] == 1.0
    assert ("log_odds", "hint", "focus_placebo") not in means


def test_an_arm_with_hints_elsewhere_has_examples_of_its_own(
    real_logs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "recompose" / "runs" / "hint-11").mkdir(parents=True)
    (project / "recompose" / "hints.jsonl").write_text("{}\n", "utf-8")
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(real_logs, "recompose", lambda *words, **_: ran.append(words))
    assert real_logs.with_examples_of(project, "hint") == "recompose" and not ran
    for arm in ("user", "user_placebo"):
        assert real_logs.with_examples_of(project, arm) == "recompose_user"
    ((verb, *flags),) = ran  # built once
    assert verb == "build" and flags[:2] == ["--hints.position", "user"]
    assert (project / "recompose_user" / "hints.jsonl").exists()
    assert not (project / "recompose_user" / "runs").exists()
