"""docs/evidence.md says what its JSON holds and no more, and a number that is stale is found
wherever it is quoted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.workshop_evidence.arms import ARMS, LEVELS, settings_sha256, steps_of
from benchmarks.workshop_evidence.code import code_files, code_sha256, stale
from benchmarks.workshop_evidence.numbers import questions
from benchmarks.workshop_evidence.page import (
    JSON_PAGE,
    STUDENTS,
    loose_numbers,
    problems,
    quote_problems,
    render,
    value_at,
)

Evidence = dict[str, Any]
SUCCESS = {
    "before": 0.125,
    "more_sft": 0.13,
    "placebo": 0.14,
    "policy": 0.25,
    "hint": 0.35,
    "preference": 0.05,
    "after": 0.6,
}
TARGETED = "targeted_mistakes_per_episode"


def row(name: str, success: float) -> dict[str, Any]:
    families = {"A_made": 0.5, "B_made": 0.5, "C_made": 0.5, "A_n": 9, "B_n": 9, "C_n": 9}
    bits = ("1" * round(200 * success)).ljust(200, "0")
    by_seed, outcomes = ({seed: value for seed in ("11", "12", "13")} for value in (success, bits))
    shown = {
        "success": success,
        "success_low": success - 0.03,
        "success_high": success + 0.03,
        "valid_call_rate": 0.9,
    }
    return {
        "name": name,
        "n": 576,
        **shown,
        "families": families,
        "by_seed": by_seed,
        "outcomes": outcomes,
    }


def difference(a: str, b: str, value: float, *, reach: float = 0.04) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "difference": value,
        "low": value - reach,
        "high": value + reach,
        "n": 576,
    }


def level(sha256: str, number: int) -> Evidence:
    names = [name for name, arm in ARMS.items() if number in arm.levels]
    success = {"before": 0.125, **{name: SUCCESS.get(name, 0.3) for name in names}}
    tokens = {"policy": 100, "lm_ce": 0, "hint": 50, "preference": 20}
    run = {
        "code": 0,
        "steps": 24,
        "kept": 24,
        "state": "done",
        "rule": "",
        "cpu_s": 40.0,
        "kl": 0.05,
        "tokens": tokens,
    }
    arms = {
        name: {"text": ARMS[name].text, "runs": {seed: dict(run) for seed in ("11", "12", "13")}}
        for name in names
    }
    paired = [difference(a, b, success[a] - success[b]) for a, b in questions(list(success))]
    hinted = {
        **difference("hint", "before", -0.5),
        "metric": TARGETED,
        "ratio": 0.2,
        "ratio_low": 0.15,
        "ratio_high": 0.25,
    }
    rows = [row(*item) for item in success.items()]
    return {
        "rows": rows,
        "paired": [*paired, hinted],
        "arms": arms,
        "text": "By construction: planted.",
        "student_sha256": sha256,
    }


@pytest.fixture
def evidence() -> Evidence:
    about = {
        "command": "python benchmarks/evidence.py",
        "date": "2026-01-01",
        "minutes": 60.0,
        "machine": {"machine": "x86_64", "system": "Linux", "cores": 2},
        "versions": {"python": "3.11", "torch": "2", "transformers": "5"},
        "evaluation_seed": 31415,
        "tasks": 192,
        "seeds": [11, 12, 13],
        "steps_scale": 1.0,
        "settings_sha256": settings_sha256(),
        "code": {},
    }
    return {
        "about": about,
        "levels": {str(number): level(f"{number:064d}", number) for number in LEVELS},
    }


@pytest.fixture
def checkout(tmp_path: Path, evidence: Evidence) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / JSON_PAGE).parent.mkdir(parents=True)
    for number in LEVELS:
        folder = tmp_path / "examples" / STUDENTS[number]
        folder.mkdir(parents=True)
        (folder / "warmup.json").write_text(
            json.dumps({"weights_sha256": f"{number:064d}"}), "utf-8"
        )
    (tmp_path / "README.md").write_text(
        "Success <!-- evidence: level1.after.success -->0.60<!-- /evidence -->\n", "utf-8"
    )
    write(tmp_path, evidence)
    return tmp_path


def write(root: Path, evidence: Evidence) -> None:
    (root / JSON_PAGE).write_text(json.dumps(evidence), "utf-8")
    (root / "docs" / "evidence.md").write_text(render(evidence), "utf-8")


def test_a_page_of_this_student_and_these_settings_has_no_problem(checkout: Path) -> None:
    assert problems(checkout) == []


def student(evidence: Evidence) -> None:
    evidence["levels"]["2"]["student_sha256"] = "0" * 64


def settings(evidence: Evidence) -> None:
    evidence["about"]["settings_sha256"] = "0" * 64


def trial(evidence: Evidence) -> None:
    evidence["about"]["steps_scale"] = 0.05


def fewer_seeds(evidence: Evidence) -> None:
    evidence["about"]["seeds"] = [11]


def arm_left_out(evidence: Evidence) -> None:
    del evidence["levels"]["1"]["arms"]["hint_live"]


def level_left_out(evidence: Evidence) -> None:
    del evidence["levels"]["2"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (student, "of another student than examples/workshop_student_2"),
        (settings, "other settings"),
        (trial, "a trial"),
        (fewer_seeds, "1 seeds"),
    ],
)
def test_evidence_of_something_else_is_stale(
    checkout: Path, evidence: Evidence, change: Callable[[Evidence], None], problem: str
) -> None:
    change(evidence)
    write(checkout, evidence)
    assert any(problem in line for line in problems(checkout)), problems(checkout)


@pytest.mark.parametrize(
    ("change", "text"),
    [(arm_left_out, "- level 1: hint_live"), (level_left_out, "- level 2: all of it")],
)
def test_the_page_says_which_arms_were_not_run(
    evidence: Evidence, change: Callable[[Evidence], None], text: str
) -> None:
    assert "Not run yet" not in render(evidence)
    change(evidence)
    assert "**Not run yet**" in render(evidence) and text in render(evidence)


def test_a_page_that_was_edited_by_hand_is_found(checkout: Path) -> None:
    page = checkout / "docs" / "evidence.md"
    page.write_text(page.read_text("utf-8").replace("0.600", "0.700"), "utf-8")
    assert [line for line in problems(checkout) if "is not what" in line]


def test_a_missing_page_is_a_problem(checkout: Path) -> None:
    (checkout / JSON_PAGE).unlink()
    assert "does not exist" in problems(checkout)[0]


def test_a_quoted_number_that_moved_is_found(checkout: Path, evidence: Evidence) -> None:
    next(r for r in evidence["levels"]["1"]["rows"] if r["name"] == "after")["success"] = 0.57
    write(checkout, evidence)
    assert [line for line in problems(checkout) if "quoted as 0.60, but is 0.57" in line]
    (checkout / "README.md").write_text("It reached 0.57 of them.", "utf-8")
    assert [line for line in problems(checkout) if "0.57 looks like a result" in line]


@pytest.mark.parametrize(
    ("quote", "problem"),
    [
        ("level1.after.success -->0.6", ""),
        ("level1.after-before.difference -->+0.475", ""),
        ("level1.after-before.difference -->0.5", ""),
        ("level1.hint-before.targeted.ratio -->0.20", ""),
        ("level1.hint.cpu_s -->40", ""),
        ("about.tasks -->192", ""),
        ("level1.after.success -->0.61", "but is 0.60"),
        ("level1.hint-before.difference -->-0.225", "but is 0.225"),
        ("level1.before-after.difference -->+0.475", "holds no"),
        ("level1.nobody.success -->0.60", "holds no"),
        ("level1.after.nothing -->0.60", "holds no"),
        ("level3.after.success -->0.60", "holds no"),
        ("level1.after.success -->", "quoted as nothing"),
    ],
)
def test_a_quote_is_compared_as_it_is_rounded(evidence: Evidence, quote: str, problem: str) -> None:
    stale = list(
        quote_problems("x.md", f"so <!-- evidence: {quote}<!-- /evidence --> it is", evidence)
    )
    assert [problem in line for line in stale] == ([True] if problem else [])


def test_numbers_that_are_not_what_the_outcomes_say_are_found(
    checkout: Path, evidence: Evidence
) -> None:
    rows = {r["name"]: r for r in evidence["levels"]["1"]["rows"]}
    rows["after"]["outcomes"]["12"] = "1" * 200
    write(checkout, evidence)
    stale = problems(checkout)
    assert any(
        "after, seed 12: success is 0.6, its outcomes say 200 of 200" in line for line in stale
    )
    assert any("level 1: after - before is 0.475, its outcomes say" in line for line in stale)


def test_an_interval_that_leaves_the_seeds_out_is_found(checkout: Path, evidence: Evidence) -> None:
    """Seeds that disagree: the interval over them is wide, whatever resampling tasks within them
    says."""
    (after,) = (r for r in evidence["levels"]["1"]["rows"] if r["name"] == "after")
    for seed, successes in (("11", 80), ("12", 120), ("13", 160)):
        after["outcomes"][seed], after["by_seed"][seed] = (
            ("1" * successes).ljust(200, "0"),
            successes / 200,
        )
    write(checkout, evidence)
    assert any(
        "after - before: its interval leaves out that over seeds" in line
        for line in problems(checkout)
    )


def test_arms_that_other_code_trained_are_named(
    tmp_path: Path, evidence: Evidence, repository_root: Path
) -> None:
    sha256 = code_sha256(repository_root)
    for numbers in evidence["levels"].values():
        for arm in numbers["arms"].values():
            for run in arm["runs"].values():
                run["code_sha256"] = sha256
    evidence["about"]["code"] = code_files(repository_root)
    assert list(stale(repository_root, evidence)) == []
    evidence["levels"]["1"]["arms"]["hint"]["runs"]["12"]["code_sha256"] = "0" * 64
    evidence["about"]["code"]["training/step.py"] = "0" * 12
    (line,) = stale(repository_root, evidence)
    assert (
        line == "level 1: trained by other code than this: hint; changed since they were played:"
        " training/step.py"
    )


def test_the_hash_of_code_is_of_what_it_does(tmp_path: Path) -> None:
    file = tmp_path / "src" / "composer_replication" / "losses" / "hint.py"
    file.parent.mkdir(parents=True)
    hashes = []
    for text in ('"""Says."""\nX = 1  # why\n', '"""Says it better."""\n\nX = 1\n', "X = 2\n"):
        file.write_text(text, "utf-8")
        hashes.append(code_sha256(tmp_path))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_marker_that_is_not_closed_is_found(evidence: Evidence) -> None:
    assert "not closed" in next(
        quote_problems("x.md", "<!-- evidence: level1.after.success -->0.1", evidence)
    )


def test_settings_and_versions_are_no_results() -> None:
    assert (
        list(
            loose_numbers(
                "x.md",
                "--train.hint.weight 0.3, Qwen2.5, torch 2.13.0, Python 3.11, python3.12, 1.2.10",
            )
        )
        == []
    )
    assert len(list(loose_numbers("x.md", "from .353 to 0.60 (+0.247)"))) == 3


def page_of(evidence: Evidence, a: str, b: str, value: float) -> str:
    changed = copy.deepcopy(evidence)
    for pair in changed["levels"]["1"]["paired"]:
        if (pair["a"], pair["b"]) == (a, b) and "metric" not in pair:
            pair.update(difference(a, b, value))
    return render(changed).split("## Level 2")[0]


def test_a_claim_stands_only_where_its_interval_supports_it(evidence: Evidence) -> None:
    page = render(evidence).split("## Level 2")[0]
    assert "The channels add up: all together do better than each alone" in page
    assert "Success on held-out tasks rose" in page and "Each channel adds to the other two" in page
    assert "`hint` does better than `hint_placebo`" in page
    assert "The channels do not add up" in page_of(evidence, "after", "hint", 0.03)
    assert "A third channel is not shown to help beside hint_policy" in page_of(
        evidence, "after", "hint_policy", 0.03
    )
    assert "`hint` is not shown to differ from `hint_placebo`" in page_of(
        evidence, "hint", "hint_placebo", 0.03
    )
    assert "`hint` does worse than `hint_live`" in page_of(evidence, "hint", "hint_live", -0.3)
    nothing = page_of(evidence, "after", "placebo", 0.03)
    assert "Nothing is claimed" in nothing and "Success on held-out tasks rose" not in nothing


def test_what_has_to_be_said_stands_beside_the_numbers(evidence: Evidence) -> None:
    evidence["levels"]["1"]["arms"]["hint_live"]["runs"]["12"].update(
        code=3, rule="kl", steps=15, kept=6
    )
    page = render(evidence)
    assert (
        page.count("By construction") >= 2
        and "taught to the workshop's students in their warm-up" in page
    )
    assert page.index("## Level 1") < page.index("## Level 2, the counter-example")
    assert "seed 12: kl after 15 steps, back to step 6" in page and "31415" in page
    assert "fall to at most 0.3 x of `before`. It is 0.20 x [0.15, 0.25]: reached." in page


def test_a_number_by_its_key(evidence: Evidence) -> None:
    assert value_at(evidence, "level2.after-policy.low") == pytest.approx(0.6 - 0.25 - 0.04)
    assert value_at(evidence, "level1.after.A_made") == 0.5


def test_a_control_has_the_steps_of_what_it_controls() -> None:
    for name, arm in ARMS.items():
        assert not arm.like or (steps_of(name) == steps_of(arm.like) and not ARMS[arm.like].like), (
            name
        )
        assert not arm.like or set(arm.levels) <= set(ARMS[arm.like].levels), name
        assert "--train.steps" not in arm.flags


def test_the_page_that_ships_is_not_stale(repository_root: Path) -> None:
    assert problems(repository_root) == []
