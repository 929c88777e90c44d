"""The chains of a page: every station's loss is explained or shown as not accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from composer_replication.core.jsonl import write_json, write_lines
from composer_replication.report.funnel import UNEXPLAINED, preference_chain, run_chains
from composer_replication.report.run_page import run_page
from composer_replication.report.run_report import FED_BY_ROLLOUTS, run_report
from tests.report.pages import Page, a_run, a_session, build, fill


def stages_of(chain: list[dict[str, Any]]) -> list[tuple[str, int, dict[str, int]]]:
    return [(s["what"], s["count"], {d["reason"]: d["count"] for d in s["drops"]}) for s in chain]


def replayed(work: Path, *, outcomes: dict[str, int] | None = None) -> None:
    """Ten turns that two teachers were asked about: three pairs, two agreements, one without
    consensus, four without an answer."""
    work.mkdir(exist_ok=True)
    write_lines(
        work / "answers.jsonl",
        [{"site_id": f"s1:{i}:-", "teacher": t} for i in range(10) for t in "ab"],
    )
    write_lines(work / "preferences.jsonl", [{"session_id": name} for name in ("s1", "s1", "s2")])
    write_lines(
        work / "anchors.jsonl",
        [{"reason": reason} for reason in ("agreed", "agreed", "no_consensus")],
    )
    if outcomes is not None:
        write_json(work / "replay.json", {"outcomes": outcomes})


def test_every_turn_that_was_asked_about_is_a_pair_or_has_a_reason(tmp_path: Path) -> None:
    assert preference_chain(tmp_path, skipped={}, held_out=frozenset(), pairs=0) == []
    replayed(
        tmp_path,
        outcomes={
            "pair": 3,
            "agreed": 2,
            "no_consensus": 1,
            "outvoted": 1,
            "after_error": 1,
            "erred": 2,
            "copied": 7,
        },
    )
    chain = preference_chain(
        tmp_path,
        skipped={"preference/too_long": 1, "hint/too_long": 5},
        held_out=frozenset({"s2"}),
        pairs=1,
    )
    assert stages_of(chain) == [
        ("turns asked about", 10, {}),
        ("pairs", 3, {"agreed": 2, "no_consensus": 1, "outvoted": 1, "after_error": 1, "erred": 2}),
        ("pairs in the examples", 1, {"held_out": 1, "too_long": 1}),
    ]
    replayed(tmp_path, outcomes={"erred": 3})
    assert (
        stages_of(preference_chain(tmp_path, skipped={}, held_out=frozenset(), pairs=None))[-1][2][
            UNEXPLAINED
        ]
        == 1
    )


def test_a_replay_that_did_not_count_says_so(tmp_path: Path) -> None:
    replayed(tmp_path)
    chain = preference_chain(tmp_path, skipped={}, held_out=frozenset(), pairs=None)
    assert stages_of(chain)[-1] == ("pairs", 3, {"agreed": 2, "no_consensus": 1, "no result": 4})


LIVE = {
    "rollouts/episodes": 48.0,
    "rollouts/flat": 0.625,
    "policy/tokens": 700,
    "sites/found": 40,
    "sites/used": 30,
    "sites/not_drawn": 9,
}


def test_rollouts_of_flat_groups_are_counted_and_mistakes_are_used_or_have_a_reason() -> None:
    chains = run_chains([{"step": 1, **LIVE}, {"step": 2, **LIVE, "rollouts/flat": 0.5}])
    assert stages_of(chains["policy"]) == [
        ("rollouts", 96, {}),
        ("in groups whose rewards differ", 42, {"flat": 54}),
        ("tokens of their messages trained on", 1400, {}),
    ]
    assert stages_of(chains["rollout_hints"])[-1] == (
        "trained on",
        60,
        {"not_drawn": 18, UNEXPLAINED: 2},
    )
    assert run_chains([{"step": 1, "policy/tokens": 5}]) == {}


def test_a_live_run_does_not_pretend_to_train_on_imported_hints(tmp_path: Path) -> None:
    fill(tmp_path, [a_session()])
    build(tmp_path, views=1, trained=3, skipped=[])
    run = a_run(tmp_path)
    settings = run.resolved()
    run.add_metrics({"step": 4, **LIVE})
    assert "trained on in this run" not in str(run_report(run.path)["work"]["chains"])
    settings["train"]["lm_ce"]["weight"] = 0.0
    write_json(run.resolved_json, settings)
    view = run_report(run.path)
    assert stages_of(view["work"]["chains"]["sites"])[-1] == (
        "trained on in this run",
        0,
        {"not drawn": 1},
    )
    shown = Page(run_page(view)).text_of["data"]
    assert FED_BY_ROLLOUTS in shown and "in groups whose rewards differ" in shown
    (tmp_path / "sites.jsonl").unlink()
    assert "in groups whose rewards differ" in Page(run_page(run_report(run.path))).text_of["data"]
