"""The held-out split: by repository or session, by hash, the same every time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from composer_replication.core.config.data_settings import HeldOutSettings
from composer_replication.core.trace import Parent, Session
from composer_replication.tokens.split import (
    is_held_out,
    possible_fractions,
    resolve_split_unit,
    split_unit,
)
from tests.tokens.students import long_turns, session_of

SESSIONS = [
    replace(session_of(long_turns(1), name=f"s{i}"), repository=f"acme/r{i % 200}")
    for i in range(1000)
]


def test_a_fraction_of_the_repositories_is_held_out_whole() -> None:
    by_repository = HeldOutSettings(by="repository", fraction=0.25)
    held = {s.repository for s in SESSIONS if is_held_out(s, settings=by_repository)}
    trained_on = {s.repository for s in SESSIONS if not is_held_out(s, settings=by_repository)}
    assert not held & trained_on and 30 < len(held) < 70
    assert held <= {
        s.repository
        for s in SESSIONS
        if is_held_out(s, settings=HeldOutSettings(by="repository", fraction=0.5))
    }


def test_by_session_splits_sessions() -> None:
    held = [
        s.id
        for s in SESSIONS
        if is_held_out(s, settings=HeldOutSettings(by="session", fraction=0.25))
    ]
    assert 200 < len(held) < 300
    assert not any(is_held_out(s, settings=HeldOutSettings(fraction=0.0)) for s in SESSIONS)


def test_a_subagent_stays_with_its_session_and_a_session_without_repository_with_its_folder() -> (
    None
):
    child = replace(SESSIONS[0], id="child", parent=Parent(session_id="s0", call_id=None))
    assert (
        split_unit(child, by="session") == "s0" and split_unit(child, by="repository") == "acme/r0"
    )
    homeless = replace(SESSIONS[0], repository="")
    assert split_unit(replace(homeless, cwd="/w"), by="repository") == "/w"
    assert split_unit(homeless, by="repository") == "s0"


def test_five_repositories_are_enough_to_be_split_whole() -> None:
    auto = HeldOutSettings(by="auto", fraction=0.25)
    for num_repositories, by in (
        (3, "session"),
        (4, "session"),
        (5, "repository"),
        (6, "repository"),
    ):
        sessions = [
            s for s in SESSIONS if int(s.repository.removeprefix("acme/r")) < num_repositories
        ]
        assert resolve_split_unit(auto, sessions).by == by


def test_the_fraction_that_is_named_holds_something_out_and_a_hundredth_less_nothing() -> None:
    def held(pair: Sequence[Session], fraction: float) -> int:
        return sum(
            is_held_out(
                session,
                settings=HeldOutSettings(by="session", fraction=max(0.0, round(fraction, 2))),
            )
            for session in pair
        )

    named = [
        (pair, fractions[0])
        for pair in itertools.pairwise(SESSIONS[:200])
        if (fractions := possible_fractions([member.id for member in pair]))
    ]
    assert len(named) > 100
    for pair, fraction in named:
        assert held(pair, fraction) == 1 and held(pair, fraction - 0.01) == 0
