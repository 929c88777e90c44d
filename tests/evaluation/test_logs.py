"""Evaluation on one's own logs: which sites count, the row of known outcomes, and when a change is
claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.config.rollout_settings import EvaluateSettings
from composer_replication.core.errors import DataError
from composer_replication.core.trace import Parent, Sampled, Session
from composer_replication.evaluation.held_out_logs import fork_points_of
from composer_replication.evaluation.held_out_sites import (
    HeldOut,
    HeldSite,
    check_untrained,
    held_out_sites,
    restore_contexts,
    smallest_window,
)
from composer_replication.evaluation.logs_table import logs_table, logs_verdict, plan_of
from composer_replication.evaluation.power import detectable, smallest_difference
from composer_replication.rollouts.fork import Fork
from composer_replication.rollouts.static_check import Checked, Outcome
from composer_replication.tokens.split import is_held_out
from tests.rollouts.logged import assistant_turn, renderer, session, site

SETTINGS = EvaluateSettings(samples=400)
BY_REPOSITORY = HeldOutSettings(by="repository", fraction=0.5)
NAMES = {f"s{n}": f"acme/app{n // 3}" for n in range(30)}


def logs() -> list[Session]:
    return [session(name=name, repository=repository) for name, repository in NAMES.items()]


def held(settings: HeldOutSettings = BY_REPOSITORY, sessions: Sequence[Session] = ()) -> HeldOut:
    chosen_sessions = list(sessions) or logs()
    return held_out_sites(
        lambda: chosen_sessions, sites=[site(name=s.id) for s in chosen_sessions], settings=settings
    )


def test_no_site_of_a_session_or_repository_that_is_trained_on_is_counted() -> None:
    held_sites = held()
    training = [s for s in logs() if not is_held_out(s, settings=BY_REPOSITORY)]
    assert 0 < len(training) < 30 and len(held_sites.sites) == 30 - len(training)
    assert {h.repository for h in held_sites.sites}.isdisjoint(s.repository for s in training)
    assert {h.session.id for h in held_sites.sites}.isdisjoint(s.id for s in training)
    assert held_sites.left_out == {"training": len(training)} and held_sites.num_shared == 0
    assert (held_sites.clusters, held_sites.repositories) == (
        len(held_sites.sites),
        len(held_sites.sites) // 3,
    )


def test_subagents_of_training_sessions_and_sites_that_cannot_be_judged_are_left_out() -> None:
    first, training = (
        held().sites[0].session,
        next(s for s in logs() if not is_held_out(s, settings=BY_REPOSITORY)),
    )
    child = replace(first, id="child", parent=Parent(session_id=training.id, call_id=None))
    copied, complete = replace(first, id="copy", copied=8), replace(first, id="whole")
    all_sessions = [training, child, copied, complete, first]
    sites = [
        *(site(name=s.id) for s in all_sessions[:3]),
        replace(site(name="whole"), call_id=None),
        site(name=first.id),
    ]
    sites.append(replace(site(name=first.id), turn=3, call_id="c2", category="failed_check"))
    held_sites = held_out_sites(lambda: all_sessions, sites=sites, settings=BY_REPOSITORY)
    assert [h.site.id for h in held_sites.sites] == [site(name=first.id).id]
    assert held_sites.left_out == {
        "copied": 1,
        "shared_session": 1,
        "training": 1,
        "whole_message": 1,
    }


def test_paths_that_were_only_looked_for_are_counted_apart() -> None:
    first = held().sites[0].session
    looked = replace(
        site("file_missing", name=first.id), kind="path_explored", category="failed_check"
    )
    held_sites = held_out_sites(lambda: [first], sites=[looked], settings=BY_REPOSITORY)
    assert (held_sites.sites, held_sites.left_out) == ((), {"path_explored": 1})
    asked_for = replace(looked, category="mistake")
    assert (
        len(held_out_sites(lambda: [first], sites=[asked_for], settings=BY_REPOSITORY).sites) == 1
    )


def test_a_split_by_session_alone_is_told_and_supports_no_claim() -> None:
    held_sites = held(HeldOutSettings(by="session", fraction=0.5))
    assert held_sites.num_shared > 0
    table = logs_table(
        rows_of(held_sites, before="same", after="ok", placebo="same"),
        held=held_sites,
        settings=SETTINGS,
        seed=1,
    )
    assert table["verdict"]["claim"] == "nothing" and any(
        "session alone" in r for r in table["verdict"]["reasons"]
    )


def test_a_run_that_saw_a_held_out_session_is_refused() -> None:
    check_untrained(held(), {"elsewhere"}, where="runs/x")
    with pytest.raises(DataError, match="the run was trained on it"):
        check_untrained(held(), {held().sites[0].session.id}, where="runs/x")


def test_contexts_are_restored_and_those_that_do_not_fit_are_counted() -> None:
    few = held().sites[:2]
    restored = restore_contexts(
        replace(held(), sites=few), renderer=renderer(), max_tokens=4096, room=64
    )
    spots = fork_points_of(restored)
    assert [point.site for point in spots] == [h.site for h in few] and not restored.lost
    assert all(len(fork_point.turns) == 5 and fork_point.num_tokens > 0 for fork_point in spots)
    short = {"renderer": renderer(), "max_tokens": 128, "room": 64}
    lost = restore_contexts(replace(held(), sites=few), **short)
    assert lost.contexts == () and lost.num_lost == {"too_long": 2}
    wider = smallest_window(held(), lost, **short)
    assert wider is not None and wider[1] == 2 and wider[0] > 128
    again = restore_contexts(
        replace(held(), sites=few), renderer=renderer(), max_tokens=wider[0] // 2, room=64
    )
    assert not again.contexts


def fork(held_site: HeldSite, outcome: Outcome, number: int) -> Fork:
    turn = replace(assistant_turn("x"), sampled=Sampled((1, 2), (-0.1, -0.1)))
    return Fork(
        site=held_site.site,
        number=number,
        prefix_ids=(1,),
        turn=turn,
        checked=Checked(outcome=outcome, reason="checked"),
    )


def rows_of(held_sites: HeldOut, **outcomes: str) -> dict[str, list[Fork]]:
    """Rows in which all sites have the named outcomes in turn: before="same ok" -> half of the
    samples of each site."""
    outcomes_of_row: Mapping[str, list[Any]] = {
        name: text.split() for name, text in outcomes.items()
    }
    return {
        name: [
            fork(held_site, o, i)
            for held_site in held_sites.sites
            for i, o in enumerate(outcomes_of_row[name])
        ]
        for name in outcomes_of_row
    }


def test_the_rows_are_shares_of_samples_and_what_is_undecided_is_neither() -> None:
    held_sites = held()
    n = len(held_sites.sites)
    table = logs_table(
        rows_of(held_sites, before="same same undecided ok", after="ok ok undecided malformed"),
        held=held_sites,
        settings=SETTINGS,
        seed=1,
    )
    before, after = table["rows"]
    assert [before[k] for k in ("recurrence", "ok", "undecided", "malformed", "other")] == [
        0.5,
        0.25,
        0.25,
        0.0,
        0.0,
    ]
    assert [after[k] for k in ("recurrence", "ok", "undecided", "malformed")] == [
        0.0,
        0.5,
        0.25,
        0.25,
    ]
    assert (before["n"], before["sessions"], before["samples"]) == (n, n, 4 * n)
    # none was seen: rule of three
    assert after["recurrence_low"] == 0.0 and after["recurrence_high"] == pytest.approx(3 / n)
    pair = next(p for p in table["paired"] if p["metric"] == "recurrence")
    assert (pair["a"], pair["b"], pair["difference"], pair["n"]) == ("after", "before", -0.5, n)
    assert pair["low"] == pytest.approx(-0.5 - 3 / n) and pair["high"] == pytest.approx(
        -0.5 + 3 / n
    )
    assert before["kinds"] == {
        "unknown_tool": {
            "n": n,
            "recurrence": 0.5,
            "ok": 0.25,
            "other": 0.0,
            "malformed": 0.0,
            "undecided": 0.25,
        }
    }
    assert before["reasons"] == {"ok: checked": n, "same: checked": 2 * n, "undecided: checked": n}


@pytest.mark.parametrize(
    ("after", "placebo", "claim"),
    [
        ("ok", "same", "fewer"),
        ("ok", "ok", "nothing"),  # the placebo did as well
        ("undecided", "same", "nothing"),  # silence is no improvement
        ("malformed", "same", "nothing"),
        ("same", "same", "nothing"),
        ("ok", "", "nothing"),  # no placebo
    ],
)
def test_fewer_recurrences_are_claimed_only_against_the_placebo_and_if_right_calls_replace_them(
    after: str, placebo: str, claim: str
) -> None:
    held_sites = held()
    rows = rows_of(
        held_sites, before="same", after=after, **({"placebo": placebo} if placebo else {})
    )
    table = logs_table(rows, held=held_sites, settings=SETTINGS, seed=1)
    assert table["verdict"]["claim"] == claim
    assert ("Null result" in table["verdict"]["sentence"]) == (claim == "nothing")
    worse = logs_table(
        rows_of(held_sites, before="ok", after="same", placebo="ok"),
        held=held_sites,
        settings=SETTINGS,
        seed=1,
    )
    assert worse["verdict"]["claim"] == "more"


def test_sites_of_one_session_count_as_one_for_the_interval() -> None:
    """Two sessions of many sites, which disagree: the interval is that of two, not of twenty."""
    a, b = held().sites[:2]
    many = [
        replace(held_site, site=replace(held_site.site, call_id=f"c{n}"))
        for held_site in (a, b)
        for n in range(10)
    ]
    held_sites = replace(held(), sites=tuple(many))
    rows = {
        "before": [fork(held_site, "same", 0) for held_site in many],
        "after": [
            fork(held_site, "same" if held_site.cluster == a.cluster else "ok", 0)
            for held_site in many
        ],
    }
    pair = next(
        p
        for p in logs_table(rows, held=held_sites, settings=SETTINGS, seed=1)["paired"]
        if p["metric"] == "recurrence"
    )
    assert (pair["n"], pair["sessions"], pair["difference"]) == (20, 2, -0.5)
    assert pair["low"] == -1.0 and pair["high"] == 1.0
    never = {name: [fork(held_site, "ok", 0) for held_site in many] for name in rows}
    row = logs_table(never, held=held_sites, settings=SETTINGS, seed=1)["rows"][0]
    # none seen in two sessions: 3 / 2, and not 3 / 20
    assert (row["recurrence"], row["recurrence_high"]) == (0.0, 1.0)
    alone = replace(held(), sites=tuple(many[:10]))
    lonely = logs_table(
        {name: forks[:10] for name, forks in rows.items()}, held=alone, settings=SETTINGS, seed=1
    )
    assert (
        lonely["rows"][0]["recurrence_low"] is None
        and "fewer than two sessions" in lonely["verdict"]["reasons"][0]
    )


def test_rows_of_other_sites_are_refused() -> None:
    held_sites = held()
    rows = rows_of(held_sites, before="same", after="ok")
    for broken, message in (
        ({"after": rows["after"]}, "no messages of 'before'"),
        ({**rows, "before": rows["before"][1:]}, "did not write at the same sites"),
        (
            {name: [*forks, fork(stranger(), "ok", 0)] for name, forks in rows.items()},
            "is not held out",
        ),
    ):
        with pytest.raises(DataError, match=message):
            logs_table(broken, held=held_sites, settings=SETTINGS, seed=1)


def stranger() -> HeldSite:
    """A site of a session that is trained on."""
    log = next(s for s in logs() if not is_held_out(s, settings=BY_REPOSITORY))
    return HeldSite(
        session=log, site=site(name=log.id), cluster=log.id, repository=log.repository, shared=True
    )


def test_the_plan_says_how_small_a_change_could_be_seen() -> None:
    plan = plan_of(held())
    n = len(held().sites)
    assert (plan["sites"], plan["sessions"], plan["kinds"]) == (n, n, {"unknown_tool": n})
    assert (
        plan["smallest_one_way"] < plan["smallest_difference"] == plan["smallest_by_session"]
        and "Connor 1987" in plan["assumes"]
    )
    assert plan_of(replace(held(), sites=()))["smallest_difference"] is None
    assert logs_verdict([])["claim"] == "nothing"


def test_the_smallest_difference_is_found_with_a_power_of_four_in_five() -> None:
    """Simulated: paired shares that differ by it, a two-sided test at 5 %; and Connor's formula
    itself at a worked value."""
    import random

    n, psi = 200, 0.5
    delta = smallest_difference(n, clusters=n, discordant=psi)
    assert delta is not None and n * delta**2 == pytest.approx(
        (1.9724 * psi**0.5 + 0.841621 * (psi - delta**2) ** 0.5) ** 2, rel=2e-3
    )
    rng, significant = random.Random(0), 0
    for _ in range(600):
        draws = rng.choices(
            (1, -1, 0), weights=((psi + delta) / 2, (psi - delta) / 2, 1 - psi), k=n
        )
        mean = sum(draws) / n
        spread = (sum((d - mean) ** 2 for d in draws) / (n - 1) / n) ** 0.5
        significant += mean > 1.972 * spread
    assert 0.75 < significant / 600 < 0.85
    assert detectable(-0.2, 0.2, clusters=n) == pytest.approx(
        0.2 * (1 + 0.841621 / 1.9724), rel=1e-3
    )
