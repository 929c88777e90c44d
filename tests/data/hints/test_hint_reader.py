"""A model reads a session: windows within the budget, strict JSON, votes, the leak rules, and no
secret in what is sent."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from examples.log_writer import Call

from composer_replication.core.config.reader_settings import ReaderSettings
from composer_replication.core.config.teacher_settings import TeacherSettings
from composer_replication.core.redact import Redactor
from composer_replication.core.site import Site
from composer_replication.core.teacher import request_to_json
from composer_replication.core.trace import Session
from composer_replication.data.hints.hint_reader import (
    NamedMistake,
    Reading,
    _count_votes,
    parse_reading,
    rank_by_agreement,
    read_session,
    reading_requests,
)
from composer_replication.data.hints.reader_calls import BadReading
from composer_replication.data.hints.reader_hints import score_named_mistakes, write_reader_hints
from composer_replication.data.hints.windows import TextWindow, estimate_tokens, windows_of
from composer_replication.data.teachers.asking import Asker
from composer_replication.data.teachers.openai_compatible import OpenAICompatible
from tests.core.planting import planted
from tests.data.hints.scripted_reader import Says, flags_every_error, mistake, reader
from tests.data.ingestion.reading import new_log, read_log

SETTINGS = ReaderSettings()


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """0 go · 1 reads src/setup.go (c1) · 2 it does not exist · 3 lists (c2) · 4 two names · 5 reads
    lib/begin.go (c3) · 6 text · 7 done."""
    log = new_log()
    log.human("Please add a flag to the setup.")
    log.act(
        "I read it.",
        Call("Read", {"file_path": "src/setup.go"}, "File does not exist.", is_error=True),
    )
    log.act("", Call("Bash", {"command": "ls lib"}, "begin.go\nend.go"))
    log.act("", Call("Read", {"file_path": "lib/begin.go"}, "package lib"))
    log.act("Done.")
    return read_log(tmp_path, log)


def read(session: Session, respond: Says, settings: ReaderSettings = SETTINGS) -> Reading:
    redactor = Redactor(environ={}, key=b"k")
    return asyncio.run(
        read_session(
            session,
            teacher=reader(respond),
            asker=Asker(None),
            settings=settings,
            redactor=redactor,
        )
    )


def written(session: Session, respond: Says, sites: tuple[Site, ...] = ()) -> Any:
    return write_reader_hints(session, read(session, respond), sites=sites, rules=(), max_words=60)


def rule_site(session: Session, **more: Any) -> Site:
    call_id = session.turns[1].calls[0].id
    base = {
        "session_id": session.id,
        "turn": 1,
        "kind": "file_missing",
        "detector": "tool_error",
        "evidence": (2,),
        "call_id": call_id,
    }
    return Site(**{**base, **more})


# ---- votes ---------------------------------------------------------------------------------------


def test_a_mistake_that_all_readings_name_is_flagged_with_its_call(session: Session) -> None:
    reading = read(session, lambda text, vote: {"mistakes": [mistake(1, "c1", 2)]})
    (flag,) = reading.flags
    assert (flag.turn, flag.call_id, flag.votes, flag.of, flag.evidence) == (
        1,
        session.turns[1].calls[0].id,
        3,
        3,
        2,
    )
    assert (reading.num_asked, reading.unsure, reading.void) == (3, 0, {})


@pytest.mark.parametrize(("votes_for", "is_kept"), [(0, False), (1, False), (2, True), (3, True)])
def test_too_few_votes_drop_it(session: Session, votes_for: int, is_kept: bool) -> None:
    reading = read(
        session, lambda text, vote: {"mistakes": [mistake(1, "c1", 2)] if vote < votes_for else []}
    )
    assert bool(reading.flags) is is_kept
    assert reading.unsure == (votes_for == 1)


def test_the_earliest_evidence_that_any_sure_reading_names_counts(session: Session) -> None:
    """What came of it first is what proves it; a reading that is not sure has no say."""
    reading = read(session, lambda text, vote: {"mistakes": [mistake(1, "c1", (4, 2, 6)[vote])]})
    assert reading.flags[0].evidence == 2
    unsure = read(
        session,
        lambda text, vote: {"mistakes": [mistake(1, "c1", (4, 2, 6)[vote], sure=vote != 1)]},
    )
    assert (unsure.flags[0].evidence, unsure.flags[0].votes) == (4, 2)


@pytest.mark.parametrize("first", [2, 3])
def test_where_windows_overlap_the_one_with_more_votes_counts(first: int) -> None:
    earlier, later = (TextWindow(start=start, end=start + 9, text="", tokens=1) for start in (0, 3))
    named = {
        votes: tuple(NamedMistake(4, "c", 5, True, f"CliResult by {votes}.") for _ in range(votes))
        for votes in (2, 3)
    }
    votes = {earlier: [(n,) for n in named[first]], later: [(n,) for n in named[5 - first]]}
    (flag,), unsure = _count_votes(votes, settings=SETTINGS)
    assert (flag.votes, flag.hints, unsure) == (3, ("CliResult by 3.",), 0)


def test_a_reading_that_is_not_sure_is_no_vote(session: Session) -> None:
    reading = read(session, lambda text, vote: {"mistakes": [mistake(1, "c1", 2, sure=vote == 0)]})
    assert (reading.flags, reading.unsure) == ((), 1)


def test_a_void_reading_does_not_lower_the_bar(session: Session) -> None:
    """One good vote and two void ones are one vote of three."""
    reading = read(
        session,
        lambda text, vote: (
            {"mistakes": [mistake(1, "c1", 2)]} if vote == 0 else "I think that message 1 is wrong."
        ),
    )
    assert (reading.flags, reading.unsure, reading.void) == ((), 1, {"not JSON": 2})


def test_the_hint_that_says_what_most_say_comes_first(session: Session) -> None:
    texts = (
        "List the folder before you read in it.",
        "Use tabs.",
        "List the folder first, before you read a file in it.",
    )
    reading = read(
        session, lambda text, vote: {"mistakes": [mistake(1, "c1", 2, hint=texts[vote])]}
    )
    assert reading.flags[0].hints[-1] == "Use tabs."
    assert rank_by_agreement(["a b", "a b"]) == ("a b",)


# ---- strict JSON ---------------------------------------------------------------------------------

WINDOW = TextWindow(start=0, end=7, text="", tokens=1)
VOID: dict[str, tuple[Any, str]] = {
    "prose": ("Message 1 is wrong.", "not JSON"),
    "half of it": ('{"mistakes": [{"message": 1', "not JSON"),
    "prose before it": ('Here it is: {"mistakes": []}', "not JSON"),
    "a list": ([], "the one field"),
    "another field": ({"mistakes": [], "note": "x"}, "the one field"),
    "brackets without end": ("[" * 100_000, "not JSON"),
    "a field too many": ({"mistakes": [{**mistake(1, "c1", 2), "why": "x"}]}, "other fields"),
    "a field too few": ({"mistakes": [{"message": 1}]}, "other fields"),
    "a number as text": ({"mistakes": [{**mistake(1, "c1", 2), "message": "1"}]}, "another type"),
    "true for a number": ({"mistakes": [{**mistake(1, "c1", 2), "message": True}]}, "another type"),
    "no hint": ({"mistakes": [{**mistake(1, "c1", 2), "hint": None}]}, "another type"),
    "a message of the human": ({"mistakes": [mistake(0, None, 2)]}, "no message of the assistant"),
    "a message that is not there": (
        {"mistakes": [mistake(99, None, 100)]},
        "no message of the assistant",
    ),
    "a message outside the window": (
        {"mistakes": [mistake(7, None, 8)]},
        "no message of the assistant",
    ),
    "earlier evidence": ({"mistakes": [mistake(3, "c2", 2)]}, "not later"),
    "evidence outside the window": ({"mistakes": [mistake(1, "c1", 7)]}, "not later"),
    "a call of another message": ({"mistakes": [mistake(1, "c2", 2)]}, "does not make"),
    "an empty hint": ({"mistakes": [mistake(1, "c1", 2, hint=" .. ")]}, "without words"),
    "a hint that steers the terminal": (
        {"mistakes": [mistake(1, "c1", 2, hint="look \x1b[31m there")]},
        "characters",
    ),
    "named twice": ({"mistakes": [mistake(1, "c1", 2), mistake(1, None, 2)]}, "twice"),
}


@pytest.mark.parametrize("name", VOID)
def test_a_reading_that_is_not_as_asked_for_is_void_and_named(session: Session, name: str) -> None:
    response, why = VOID[name]
    with pytest.raises(BadReading, match=why):
        parse_reading(
            response if isinstance(response, str) else json.dumps(response),
            session=session,
            window=WINDOW,
        )


def test_a_fence_is_taken_off_and_a_message_with_one_call_means_that_call(session: Session) -> None:
    text = "```json\n" + json.dumps({"mistakes": [mistake(1, None, 2)]}) + "\n```"
    (named,) = parse_reading(text, session=session, window=WINDOW)
    assert named.call_id == session.turns[1].calls[0].id


def test_copied_messages_are_left_to_the_session_they_come_from(session: Session) -> None:
    assert (
        parse_reading(
            json.dumps({"mistakes": [mistake(1, "c1", 2)]}),
            session=replace(session, copied=3),
            window=WINDOW,
        )
        == ()
    )


# ---- the leak rules ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        ("Read lib/begin.go instead.", "quotes_later_text"),
        ("That file does not exist. Look for it first.", "quotes_later_text"),
        ("Run `ls lib` before you read.", "copies_later_call"),
        ("word " * 61, "too_long"),
    ],
)
def test_a_hint_with_words_of_the_error_or_of_later_messages_is_refused(
    session: Session, hint: str, reason: str
) -> None:
    hint_set = written(session, lambda text, vote: {"mistakes": [mistake(1, "c1", 2, hint=hint)]})
    assert hint_set.hints == ()
    assert [refusal.reason for refusal in hint_set.refused] == [reason]


def test_a_hint_that_forbids_is_refused(session: Session) -> None:
    hint = "Do not guess: list the folder."
    hint_set = written(session, lambda text, vote: {"mistakes": [mistake(1, "c1", 2, hint=hint)]})
    assert hint_set.hints == ()
    assert [refusal.reason for refusal in hint_set.refused] == ["names_the_mistake"]


def test_a_hint_that_names_the_path_of_a_known_mistake_is_refused(session: Session) -> None:
    """Only where a rule found the mistake is it known which operand was wrong."""
    hint = "Read src/setup.go from another folder."
    flags = {"mistakes": [mistake(1, "c1", 2, hint=hint)]}
    hint_set = written(session, lambda text, vote: flags, sites=(rule_site(session),))
    assert [refusal.reason for refusal in hint_set.refused] == ["names_the_mistake"]
    assert len(written(session, lambda text, vote: flags).hints) == 1


def test_the_next_best_hint_is_taken_where_the_first_leaks(session: Session) -> None:
    leaks, good = (
        "Read lib/begin.go of the lib folder.",
        "List the folder before you read a file in it.",
    )
    hint_set = written(
        session,
        lambda text, vote: {"mistakes": [mistake(1, "c1", 2, hint=good if vote == 2 else leaks)]},
    )
    assert [hint.text for hint in hint_set.hints] == [good]
    assert hint_set.refused == ()
    assert hint_set.hints[0].knows == ("kind", "call", "later:reader")
    assert hint_set.hints[0].writer == "reader"


def test_a_site_of_the_rules_keeps_its_kind_and_one_that_no_rule_found_is_added(
    session: Session,
) -> None:
    site = rule_site(session)
    response = {"mistakes": [mistake(1, "c1", 2), mistake(5, "c3", 6)]}
    hint_set = written(session, lambda text, vote: response, (site,))
    assert hint_set.sites[0] is site
    assert (
        hint_set.sites[1].detector,
        hint_set.sites[1].turn,
        hint_set.sites[1].evidence,
        hint_set.sites[1].tool,
    ) == ("reader", 5, (6,), "Read")
    assert [hint.kind for hint in hint_set.hints] == ["file_missing", "other"]


def test_what_a_rule_calls_no_mistake_is_dropped(session: Session) -> None:
    site = rule_site(session, category="rejected")
    hint_set = written(session, lambda text, vote: {"mistakes": [mistake(1, "c1", 2)]}, (site,))
    assert (hint_set.sites, hint_set.hints, hint_set.contradicted) == ((), (), 1)


# ---- windows and secrets -------------------------------------------------------------------------


def long_session(tmp_path: Path, steps: int = 60) -> Session:
    log = new_log()
    log.human("go")
    for step in range(steps):
        log.act(
            f"step {step}",
            Call("Bash", {"command": f"run {step}"}, f"out {step} " * 150, is_error=step % 7 == 3),
        )
    log.act("", Call("Read", {"file_path": "huge"}, "\u4f60\u597d" * 60_000))
    return read_log(tmp_path, log)


def test_windows_fit_their_budget_overlap_and_leave_nothing_out(tmp_path: Path) -> None:
    session = long_session(tmp_path)
    windows = windows_of(session, max_tokens=4000, overlap_tokens=1000)
    assert len(windows) > 5
    assert all(estimate_tokens(w.text) <= w.tokens <= 4000 for w in windows)
    assert {i for w in windows for i in range(w.start, w.end)} == set(range(len(session.turns)))
    assert all(a.start < b.start < a.end < b.end for a, b in pairwise(windows))
    assert all(f"out {step} " in "".join(w.text for w in windows) for step in range(60))


def test_a_request_stays_under_the_token_budget(tmp_path: Path) -> None:
    settings = ReaderSettings(window_tokens=4000, overlap_tokens=1000)
    for _, request in reading_requests(
        long_session(tmp_path), settings=settings, redactor=Redactor(environ={})
    ):
        assert sum(estimate_tokens(turn.text) for turn in request.turns) <= settings.window_tokens


def test_every_error_of_a_session_read_in_windows_is_flagged_once(tmp_path: Path) -> None:
    session = long_session(tmp_path)
    reading = read(
        session, flags_every_error, ReaderSettings(window_tokens=4000, overlap_tokens=1000)
    )
    wrong = [
        c.id
        for t in session.turns
        for c in t.calls
        if any(r.is_error and r.call_id == c.id for x in session.turns for r in x.results)
    ]
    assert [flag.call_id for flag in reading.flags] == wrong
    assert len(wrong) == 9
    assert len({a.site_id for a in reading.answers}) == reading.num_asked == len(reading.answers)


def test_bytes_sent_to_the_reader_hold_no_planted_secret(tmp_path: Path) -> None:
    """Planted secrets in results, arguments and texts of a session that nobody redacted before."""
    secrets = planted()
    log = new_log()
    log.human("go")
    for secret in secrets:
        log.act("next", Call("Bash", {"command": "cat it"}, secret.text))
    log.act("", Call("Write", {"file_path": "a", "content": secrets[0].text}, secrets[1].text))
    session = read_log(tmp_path, log)
    assert any(secrets[0].text in result.text for turn in session.turns for result in turn.results)
    teacher = OpenAICompatible(
        "t",
        TeacherSettings(model="acme/m", base_url="http://localhost:1/v1", key_env=""),
        environ={},
    )
    redactor = Redactor(environ={}, key=b"k")
    asked = reading_requests(
        session,
        settings=ReaderSettings(votes=1, min_votes=1, window_tokens=60_000),
        redactor=redactor,
    )
    sent = [json.dumps(teacher.body_of(request), ensure_ascii=False) for _, request in asked]
    sent_text = "".join(sent)
    assert len(sent_text) > 20_000
    left = [
        secret.kind
        for secret in secrets
        if any(piece in sent_text for piece in _pieces(secret.secret))
    ]
    assert len(left) <= 0.01 * len(secrets), left
    assert sent_text.count("[REDACTED:") >= 0.99 * len(secrets)


def _pieces(secret: str) -> list[str]:
    body = [line for line in secret.split("\n") if line and not line.startswith("-----")]
    return [line[2:-2] for line in body if len(line) >= 8]


# ---- scores --------------------------------------------------------------------------------------


def test_scores_count_labelled_calls_only() -> None:
    labels = {
        ("f", "c1"): "mistake",
        ("f", "c2"): "benign",
        ("f", "c3"): "mistake",
        ("f", "c4"): "failed_check",
    }
    scores = score_named_mistakes([("f", "c1"), ("f", "c2"), ("g", "c1"), ("f", None)], labels)
    assert (scores.mistakes, scores.found, scores.right, scores.unlabelled) == (2, 2, 1, 2)
    assert (scores.precision, scores.recall) == (0.5, 0.5)
    assert (score_named_mistakes([], labels).precision, score_named_mistakes([], {}).recall) == (
        None,
        None,
    )


@pytest.mark.real
def test_the_stand_in_is_scored_on_real_labels(traces_dir: Path, repository_root: Path) -> None:
    """The reader here is a rule of four lines, no model: it names every call that was marked as an
    error."""
    from benchmarks.hint_reader import labels_of, named_by_reader, sessions_of

    labels = labels_of(repository_root / "tests" / "labels" / "sites.json")
    scores = score_named_mistakes(
        named_by_reader(
            sessions_of([traces_dir]),
            reader(flags_every_error),
            settings=ReaderSettings(votes=1, min_votes=1),
        ),
        labels,
    )
    assert scores.labels == 154
    assert scores.recall is not None
    assert scores.recall > 0.7
    assert scores.precision is not None
    # most errors of a log are no mistakes of the model: what a reader has to tell apart
    assert scores.precision < 0.6


def test_requests_of_one_session_differ_only_by_their_vote(session: Session) -> None:
    asked = [
        request
        for _, request in reading_requests(
            session, settings=SETTINGS, redactor=Redactor(environ={})
        )
    ]
    assert [request.sample for request in asked] == [0, 1, 2]
    assert len({json.dumps({**request_to_json(request), "sample": 0}) for request in asked}) == 1
    assert len({request.about for request in asked}) == 3


def test_a_flag_on_the_whole_message_does_not_bypass_what_the_rules_say_of_its_calls(
    tmp_path: Path,
) -> None:
    """Two calls in parallel, both rejected by the human: "call": null is dropped; where one call is
    a mistake the hint is for that one."""
    log = new_log()
    log.human("Please add a flag to the setup.")
    no = "The user doesn't want to proceed with this tool use."
    log.act(
        "", *(Call("Read", {"file_path": path}, no, is_error=True) for path in ("a.go", "b.go"))
    )
    log.act("Done.")
    session = read_log(tmp_path, log)
    (turn,) = [
        number for number, turn_read in enumerate(session.turns) if len(turn_read.calls) == 2
    ]
    evidence = max(ref.result_turn or 0 for ref in session.calls().values())
    first, second = (call.id for call in session.turns[turn].calls)

    def ruled(**categories: str) -> Any:
        sites = [
            rule_site(
                session, turn=turn, call_id=call, evidence=(evidence,), category=category, kind="x"
            )
            for call, category in zip((first, second), categories.values(), strict=False)
        ]
        hint = "Look at what stands in the folder before you read from it."
        return written(
            session,
            lambda text, vote: {"mistakes": [mistake(turn, None, evidence, hint=hint)]},
            tuple(sites),
        )

    cleared = ruled(a="rejected", b="rejected")
    assert (cleared.sites, cleared.hints, cleared.contradicted) == ((), (), 1)
    mixed = ruled(a="rejected", b="mistake")
    assert [site.call_id for site in mixed.sites] == [second] and mixed.contradicted == 0
    unknown = ruled(a="rejected")  # the rules say nothing of the other call
    assert [(site.call_id, site.detector) for site in unknown.sites] == [(None, "reader")]
