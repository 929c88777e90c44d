"""Which message a site names, and how detectors are put together."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_replication.core.codec import record_to_json
from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.errors import ConfigError
from composer_replication.core.site import Site
from composer_replication.core.trace import Event, Segment, Session, SourceRef, Turn
from composer_replication.data.sites.find_sites import DETECTORS, find_sites
from composer_replication.data.sites.summary import summarise
from tests.data.sites.builder import (
    MODEL,
    bash,
    calls,
    failed,
    find,
    human,
    one_call,
    only,
    random_segments,
    results,
    session,
)

MISSING = "<tool_use_error>File does not exist.</tool_use_error>"


def test_the_site_is_the_message_that_holds_the_call_not_the_turn_after_the_error() -> None:
    site = only(one_call("Read", {"file_path": "x.py"}, MISSING))
    assert (site.turn, site.evidence, site.call_id, site.tool) == (1, (2,), "c1", "Read")
    assert (site.kind, site.category, site.flagged, site.author) == (
        "file_missing",
        "mistake",
        True,
        MODEL,
    )
    assert site.detail == "File does not exist."


def test_a_result_is_joined_by_call_id_where_calls_run_in_parallel_and_answers_come_late() -> None:
    log = session(
        human("look"),
        calls(("a", "Read", {"file_path": "ok.py"}), ("b", "Read", {"file_path": "bad.py"})),
        results(("a", "print(1)")),
        calls("waiting", ("c", "Grep", {"pattern": "x"})),
        results(("c", "No matches")),
        failed("b", MISSING),
        calls("sorry"),
    )
    site = only(log)
    assert (site.turn, site.call_id, site.evidence) == (1, "b", (5,))


def test_each_of_two_failing_calls_of_one_message_is_a_site_of_its_own_in_call_order() -> None:
    log = session(
        human("look"),
        calls(("a", "Read", {"file_path": "1"}), ("b", "Edit", {"file_path": "2"})),
        results(("b", "File has not been read yet. Read it first", True), ("a", MISSING, True)),
    )
    assert [(s.call_id, s.kind) for s in find(log)] == [
        ("a", "file_missing"),
        ("b", "edit_not_read"),
    ]


def test_turns_copied_from_another_session_give_no_site() -> None:
    log = one_call("Read", {"file_path": "x.py"}, MISSING, copied=2)
    assert find(log) == []
    assert len(find(one_call("Read", {"file_path": "x.py"}, MISSING, copied=1))) == 1


def test_a_call_without_a_result_is_no_site() -> None:
    assert find(session(human("go"), calls(("c1", "Read", {"file_path": "x"})))) == []


def test_an_unset_flag_is_an_error_only_where_the_agent_itself_says_so() -> None:
    assert only(one_call("Read", {"file_path": "x"}, MISSING, error=None)).flagged is False
    assert (
        find(one_call("Read", {"file_path": "x"}, "     1\tFile does not exist.", error=None)) == []
    )
    assert find(one_call("Read", {"file_path": "x"}, MISSING, error=False)) == []
    assert (
        only(
            one_call(
                "Bash",
                {"command": "cat nowhere"},
                "Exit code 1\ncat: nowhere: No such file or directory",
                error=None,
            )
        ).category
        == "mistake"
    )


@pytest.mark.parametrize(
    ("message", "call", "result_text", "category"),
    [
        (
            "Let me check if there's a config for that.",
            ("c", "Grep", {"path": "bun.toml"}),
            MISSING,
            "path_explored",
        ),
        (
            "Now I see whether src/a.py exists.",
            ("c", "Read", {"file_path": "src/a.py"}),
            MISSING,
            "path_explored",
        ),
        (
            "It exists, I think. Now let me read the config.",
            ("c", "Read", {"file_path": "src/a.py"}),
            MISSING,
            "file_missing",
        ),
        (
            "I wonder if there is a bug. Reading the parser now.",
            ("c", "Read", {"file_path": "src/a.py"}),
            MISSING,
            "file_missing",
        ),
        (
            "Let me see if it exists.",
            ("c", "Edit", {"file_path": "src/a.py"}),
            MISSING,
            "file_missing",
        ),
        (
            "",
            bash("c", "cat a.md", description="Check if notes exist"),
            "Exit code 1\ncat: a.md: No such file or directory",
            "path_explored",
        ),
        (
            "",
            bash("c", "cat a.md", description="Read the notes"),
            "Exit code 1\ncat: a.md: No such file or directory",
            "shell_missing_path",
        ),
    ],
)
def test_a_path_is_explored_where_the_message_asks_whether_it_is_there(
    message: str, call: Any, result_text: str, category: str
) -> None:
    site = only(session(human("x"), calls(message, call), failed("c", result_text)))
    assert (site.kind, site.category) == (
        category,
        "failed_check" if category == "path_explored" else "mistake",
    )


def test_explored_paths_are_trained_on_only_where_that_is_asked_for() -> None:
    log = one_call(
        "Bash", {"command": "ls nowhere"}, "Exit code 1\nls: nowhere: No such file or directory"
    )
    assert summarise(find(log)).apart == {"failed_check/path_explored": 1}
    assert summarise(find(log, explored_paths="mistake")).kinds == {"path_explored": 1}


def test_a_program_that_is_installed_but_not_on_the_path_is_no_mistake() -> None:
    missed = (
        calls(bash("a", "go build ./x")),
        failed("a", "Exit code 127\n/bin/bash: line 1: go: command not found"),
    )
    by_path = (calls(bash("b", "/usr/local/go/bin/go build ./x")), results(("b", "ok", None)))
    assert [(s.category, s.kind) for s in find(session(human("x"), *missed, *by_path))] == [
        ("environment", "not_on_path")
    ]
    assert [(s.category, s.kind) for s in find(session(human("x"), *missed))] == [
        ("mistake", "shell_unknown_command")
    ]
    # it had been shown where it lies
    assert [s.category for s in find(session(human("x"), *by_path, *missed))] == ["mistake"]


def test_a_result_before_its_call_is_damage_of_the_log_and_costs_no_other_site() -> None:
    # This was once an error, so one odd session stopped the search in every other session.
    odd = (failed("c1", MISSING), calls(("c1", "Read", {"file_path": "x"})))
    assert find(session(human("x"), *odd)) == []
    log = session(
        human("x"), *odd, calls(("c2", "Read", {"file_path": "y"})), failed("c2", MISSING)
    )
    assert [s.call_id for s in find(log)] == ["c2"]


# user code by import path -------------------------------------------------------------------------


def shouting(log: Session) -> Iterator[Site]:
    for index, turn in log.assistant_turns():
        if turn.text.isupper():
            yield Site(
                session_id=log.id,
                turn=index,
                kind="shouting",
                detector="mine",
                evidence=(index + 1,),
            )


def second_opinion(log: Session) -> Iterator[Site]:
    yield Site(
        session_id=log.id,
        turn=1,
        call_id="c1",
        kind="mine",
        detector="mine",
        evidence=(2,),
        category="mistake",
    )


def not_sites(log: Session) -> list[Any]:
    return ["turn 1"]


def breaking(log: Session) -> Iterator[Site]:
    yield from second_opinion(log)
    raise KeyError("missing")


def contradicting(log: Session) -> Iterator[Site]:
    yield Site(session_id=log.id, turn=1, kind="mine", detector="mine", evidence=(0,))


def nothing_returned(log: Session) -> None:
    return None


def elsewhere(log: Session) -> list[Site]:
    return [Site(session_id=log.id, turn=99, kind="mine", detector="mine", evidence=(100,))]


def at_a_human(log: Session) -> list[Site]:
    return [Site(session_id=log.id, turn=0, kind="mine", detector="mine", evidence=(1,))]


def at_no_call(log: Session) -> list[Site]:
    return [
        Site(session_id=log.id, turn=1, call_id="c9", kind="mine", detector="mine", evidence=(2,))
    ]


def of_another_session(log: Session) -> list[Site]:
    return [Site(session_id="other", turn=1, kind="mine", detector="mine", evidence=(2,))]


def with_evidence_elsewhere(log: Session) -> list[Site]:
    return [Site(session_id=log.id, turn=1, kind="mine", detector="mine", evidence=(99,))]


def breaking_kind(text: str, *, tool: str = "") -> str:
    return text[9999]


def kind_by_length(text: str, *, tool: str = "") -> str | None:
    return f"{tool}_{len(text)}" if len(text) < 30 else None


def a_number(text: str, *, tool: str = "") -> int:
    return 3


HERE = __name__


def test_a_detector_of_the_user_adds_its_sites() -> None:
    log = session(human("x"), calls("WHY"), human("calm"))
    assert [s.kind for s in find(log, detectors=("tool_error", f"{HERE}:shouting"))] == ["shouting"]


def test_one_site_a_call_and_a_mistake_wins_over_what_stands_apart() -> None:
    log = one_call("Bash", {"command": "go test"}, "Exit code 1\nFAIL")
    assert only(log).category == "failed_check"
    assert only(log, detectors=("failed_check", f"{HERE}:second_opinion")).kind == "mine"
    wrong = one_call("Read", {"file_path": "x"}, MISSING)
    # the earlier detector keeps it
    assert only(wrong, detectors=("tool_error", f"{HERE}:second_opinion")).kind == "file_missing"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("tool_eror", "neither a built-in name nor an import path.*did you mean 'tool_error'"),
        ("no_such_package_x:f", "cannot import"),
        (f"{HERE}:nothing", "no function 'nothing'"),
        (f"{HERE}:HERE", "no function 'HERE'"),
        (f"{HERE}:not_sites", "yields str, not Site"),
    ],
)
def test_a_detector_that_cannot_be_used_is_named(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find(session(human("x"), calls("y")), detectors=(path,))
    assert "sites.detectors" in str(caught.value)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("breaking", "raised KeyError: 'missing' on session s1"),
        ("contradicting", "raised SiteError: evidence at turn 0 is not later"),
        ("nothing_returned", "returned NoneType, not sites"),
        ("elsewhere", "yields turn 99, but there are 4 turns"),
        ("at_a_human", "yields turn 0, which is no message of the model"),
        ("at_no_call", "yields call 'c9', which does not stand in turn 1"),
        ("of_another_session", "yields a site of session 'other'"),
        ("with_evidence_elsewhere", "yields evidence at turn 99"),
    ],
)
def test_what_a_detector_of_the_user_does_wrong_is_laid_at_its_door(
    function: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        find(
            one_call("Read", {"file_path": "x"}, "ok", error=False),
            detectors=(f"{HERE}:{function}",),
        )
    assert f"{HERE}:{function}" in str(caught.value)
    assert "s1" in str(caught.value)


def test_an_error_in_the_users_function_keeps_its_cause_and_names_file_and_line() -> None:
    with pytest.raises(ConfigError) as caught:
        find(one_call("Read", {"file_path": "x"}, MISSING), error_kind=f"{HERE}:breaking_kind")
    assert isinstance(caught.value.__cause__, IndexError)
    line = breaking_kind.__code__.co_firstlineno + 1
    assert f"test_find_sites.py:{line} [sites.error_kind]" in caught.value.where


def test_a_module_of_the_users_that_breaks_on_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks_on_import_x.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match="importing 'breaks_on_import_x' raised ZeroDivisionError"
    ):
        find(session(human("x")), detectors=("breaks_on_import_x:f",))


def test_a_kind_function_renames_and_cannot_turn_a_rejection_into_a_mistake() -> None:
    log = one_call("Edit", {"file_path": "x"}, "The user doesn't want to p", error=True)
    site = only(
        one_call("Edit", {"file_path": "x"}, "The user doesn't want to proceed with this."),
        error_kind=f"{HERE}:kind_by_length",
    )
    assert (site.kind, site.category) == ("user_rejected", "rejected")
    renamed = only(
        one_call("Read", {"file_path": "x"}, "File does not exist."),
        error_kind=f"{HERE}:kind_by_length",
    )
    assert (renamed.kind, renamed.category) == ("Read_20", "mistake")
    with pytest.raises(ConfigError, match="not a name"):
        find(log, error_kind=f"{HERE}:a_number")


def test_the_default_detectors_are_the_built_in_ones() -> None:
    assert set(SitesSettings().detectors) == set(DETECTORS)


# recovery -----------------------------------------------------------------------------------------


def test_recovery_is_off_by_default_and_warns_when_asked_for() -> None:
    log = session(
        human("x"),
        calls(("c1", "Read", {"file_path": "x"})),
        failed("c1", MISSING),
        human("hm"),
        calls("let me list"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert only(log).turn == 1
    with pytest.warns(UserWarning, match="recovery"):
        site = only(log, site="recovery")
    counts = summarise([site])
    assert (counts.num_mistakes, counts.num_recoveries) == (1, 1)
    assert (site.turn, site.category, site.evidence, site.call_id, site.kind) == (
        4,
        "recovery",
        (2,),
        None,
        "file_missing",
    )


def test_recovery_leaves_other_categories_alone_and_needs_the_error_in_view() -> None:
    turns = (
        human("x"),
        calls(("c1", "Read", {"file_path": "x"})),
        failed("c1", MISSING),
        human("again"),
        calls("ok"),
    )
    rewound = Session(
        id="s1",
        source=SourceRef(file="a"),
        turns=turns,
        segments=(Segment(start=0, end=3), Segment(start=3, end=5, context=((0, 1),))),
    )
    with pytest.warns(UserWarning):
        assert find(rewound, site="recovery") == []
    rejected = one_call(
        "Edit", {"file_path": "x"}, "The user doesn't want to proceed with this tool use."
    )
    with pytest.warns(UserWarning):
        assert only(rejected, site="recovery").category == "rejected"


def slow_recovery(log: Session, error: int) -> int | None:
    return next(
        (i for i, _ in log.assistant_turns() if i > error and error in log.context_indices(i)), None
    )


@given(
    st.lists(st.sampled_from("eaho"), min_size=1, max_size=14), st.randoms(use_true_random=False)
)
def test_the_recovery_is_the_first_message_that_has_the_error_in_view(
    pieces: list[str], random: Any
) -> None:
    turns: list[Turn] = [human("go")]
    for i, piece in enumerate(pieces):
        if piece == "e":
            turns += [calls((f"c{i}", "Read", {"file_path": "x"})), failed(f"c{i}", MISSING)]
        else:
            turns.append(calls("hm") if piece == "a" else human("h"))
    log = session(
        *turns, segments=random_segments(len(turns), random), copied=random.choice([0, 0, 2])
    )
    expected = {(slow_recovery(log, s.evidence[0]), s.evidence) for s in find(log)}
    with pytest.warns(UserWarning):
        got = find(log, site="recovery")
    assert {s.turn for s in got} == {turn for turn, _ in expected if turn is not None}
    assert {(s.turn, s.evidence) for s in got} <= expected


# hooks, summary, properties -----------------------------------------------------------------------


def test_a_hook_that_blocks_after_an_edit_stands_with_the_failed_checks() -> None:
    log = session(
        human("x"),
        calls(("c1", "Edit", {"file_path": "a.ts"})),
        results(("c1", "The file a.ts has been updated.")),
        calls("on"),
        events=(
            Event(kind="hook_blocked", turn=3, call_id="c1", text="tsc: 2 errors"),
            Event(kind="hook_blocked", turn=3, text="no call"),
        ),
    )
    site = only(log)
    assert (site.turn, site.category, site.kind, site.detail, site.flagged) == (
        1,
        "failed_check",
        "hook_blocked",
        "tsc: 2 errors",
        False,
    )


def test_a_hook_on_a_copied_call_or_before_any_answer_is_no_site() -> None:
    event = (Event(kind="hook_blocked", turn=2, call_id="c1", text="no"),)
    assert (
        find(one_call("Edit", {"file_path": "a"}, "ok", error=None, events=event, copied=2)) == []
    )
    assert find(session(human("x"), calls(("c1", "Edit", {"file_path": "a"})), events=event)) == []


def test_the_summary_counts_mistakes_by_kind_tool_author_and_repository() -> None:
    log = session(
        human("x"),
        calls(("a", "Read", {"file_path": "x"}), bash("b", "pytest"), author="m1"),
        results(("a", MISSING, True), ("b", "Exit code 1\n1 failed", True)),
        calls(("c", "Read", {"file_path": "y"}), author="m2"),
        failed("c", MISSING),
        repository="acme/site",
    )
    counts = summarise(find(log))
    assert (counts.num_sites, counts.num_mistakes, counts.num_flagged, counts.num_sessions) == (
        3,
        2,
        3,
        1,
    )
    assert counts.num_recoveries == 0
    assert counts.kinds == {"file_missing": 2}
    assert counts.apart == {"failed_check/test_failed": 1}
    assert counts.tools == {"Read": 2}
    assert counts.authors == {"m1": 1, "m2": 1}
    assert counts.repositories == {"acme/site": 2}
    assert counts.to_json()["detectors"] == {"tool_error": 2, "failed_check": 1}


PIECES = (
    "File does not exist.",
    "Exit code 1\nFAIL",
    "ok",
    "The user doesn't want to proceed with this tool use.",
    "Exit code 127\nbash: gti: command not found",
)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.randoms(use_true_random=False)), min_size=1, max_size=6
    )
)
def test_whatever_the_order_of_answers_every_site_holds_its_call_and_comes_before_its_evidence(
    steps: list[Any],
) -> None:
    turns: list[Turn] = [human("go")]
    open_results: list[tuple[str, str, bool | None]] = []
    for number, (width, random) in enumerate(steps):
        requested = [
            bash(f"c{number}.{i}", random.choice(["gti status", "go test ./..."]))
            for i in range(width)
        ]
        turns.append(calls(*requested))
        open_results += [
            (m[0], random.choice(PIECES), random.choice([True, None])) for m in requested
        ]
        random.shuffle(open_results)
        given_now = random.randint(1, len(open_results))
        turns.append(results(*open_results[:given_now]))
        del open_results[:given_now]
    log = session(*turns)
    sites = find_sites(log, settings=SitesSettings())
    assert len({(s.turn, s.call_id) for s in sites}) == len(sites)
    for site in sites:
        assert site.call_id in {c.id for c in log.turns[site.turn].calls}
        assert all(
            e > site.turn and site.call_id in {r.call_id for r in log.turns[e].results}
            for e in site.evidence
        )
        assert record_to_json(site)["id"] == site.id
