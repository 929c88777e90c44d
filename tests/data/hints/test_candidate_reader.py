"""A reader model judges candidates: what it is shown, strict JSON, votes, and no secret."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.config.reader_settings import CandidateReaderSettings
from composer_replication.core.redact import Redactor
from composer_replication.core.site import ReaderVerdict
from composer_replication.core.teacher import request_to_json
from composer_replication.core.trace import Session
from composer_replication.data.hints.candidate_reader import (
    CandidateReading,
    candidate_requests,
    candidate_text,
    parse_vote,
    read_candidates,
)
from composer_replication.data.hints.reader_calls import BadReading
from composer_replication.data.hints.windows import estimate_tokens
from composer_replication.data.sites.corrections import READER_ALONE
from composer_replication.data.sites.find_sites import reader_candidates
from composer_replication.data.teachers.asking import Asker
from tests.core.planting import planted, still_there
from tests.data.hints.scripted_reader import Says, reader
from tests.data.sites.builder import calls, human, results, session
from tests.data.sites.test_corrections import worked

CORRECTED = worked("no, that is wrong: src/cache.py keeps its name")
UNMATCHED = worked("the shop page shows the old name")
MESSAGES = (1, 3, 5, 7)


def vote(message: int | None, *, wish: bool = False, confidence: float = 0.9) -> dict[str, Any]:
    return {"message": message, "wish": wish, "confidence": confidence}


def read(log: Session, respond: Says, **settings: Any) -> CandidateReading:
    chosen = CandidateReaderSettings(teacher="t", **settings)
    candidates = reader_candidates(log, settings=SitesSettings())
    redactor = Redactor(environ={}, key=b"k")
    requests = list(candidate_requests(log, candidates, settings=chosen, redactor=redactor))
    return asyncio.run(
        read_candidates(requests, teacher=reader(respond), asker=Asker(None), settings=chosen)
    )


def verdict(log: Session, *answers: Any) -> ReaderVerdict:
    """The verdict on the only candidate, of one vote an answer."""
    reading = read(log, lambda text, number: answers[number], votes=len(answers))
    (only,) = reading.verdicts
    assert (reading.num_asked, len(reading.answers)) == (len(answers), len(answers))
    return only


# ---- what it is shown ----------------------------------------------------------------------------


def test_it_sees_the_words_and_the_messages_but_not_what_the_rule_found() -> None:
    (site,) = reader_candidates(CORRECTED, settings=SitesSettings())
    shown = candidate_text(CORRECTED, site, max_tokens=4000)
    assert shown.messages == frozenset(MESSAGES)
    assert shown.text.startswith("Later events: #8\n\n#0 user\nrename it")
    assert "#8 user\nno, that is wrong: src/cache.py keeps its name" in shown.text
    assert site.rule not in shown.text and "candidate" not in shown.text


def test_a_long_log_is_cut_to_the_prompt_and_keeps_message_and_words() -> None:
    long = "x" * 40_000
    turns = [calls(f"{number} {long}") for number in range(40)]
    log = session(human("why?"), *turns, human("that is not correct"))
    (site,) = reader_candidates(log, settings=SitesSettings())
    shown = candidate_text(log, site, max_tokens=2000)
    assert estimate_tokens(shown.text) < 2000
    assert site.turn in shown.messages and "that is not correct" in shown.text
    assert 1 < len(shown.messages) < 40


def test_the_reading_that_is_repeated_is_shown_with_the_repeat() -> None:
    read_it = {"file_path": "/w/c.py"}
    text = "\n".join(f"{number:>6}→line {number}" for number in range(1, 9))
    other = {"file_path": "/w/d.py", "old_string": "one", "new_string": "two"}
    between = [part for n in range(12) for part in _list(f"l{n}", f"ls {n}")]
    between += [calls(("e", "Edit", other)), results(("e", "ok", False))]
    log = session(
        human("go"),
        calls(("r", "Read", read_it)),
        results(("r", text, False)),
        *between,
        calls(("again", "Read", read_it)),
        results(("again", text, False)),
    )
    (site,) = reader_candidates(log, settings=SitesSettings())
    assert site.kind == "wasted_call"
    assert {1, site.turn} <= candidate_text(log, site, max_tokens=4000).messages


def _list(call_id: str, command: str) -> tuple[Any, Any]:
    return calls((call_id, "Bash", {"command": command})), results((call_id, "one", False))


def test_the_requests_hold_no_secret() -> None:
    secrets = planted(per_kind=2)
    text = "\n".join(secret.text for secret in secrets)
    log = session(human(text), calls(text), human("that is not correct"))
    candidates = reader_candidates(log, settings=SitesSettings())
    settings = CandidateReaderSettings(teacher="t", prompt_tokens=100_000)
    redactor = Redactor(environ={}, key=b"k")
    (asked,) = candidate_requests(log, candidates, settings=settings, redactor=redactor)
    sent = json.dumps(request_to_json(asked.request), ensure_ascii=False)
    assert "[REDACTED:" in sent
    assert [secret.kind for secret in secrets if still_there(secret, sent)] == []


def test_copied_history_is_not_judged_again() -> None:
    log = worked("no, that is wrong: src/cache.py keeps its name")
    copied = session(*log.turns, copied=4)
    assert reader_candidates(copied, settings=SitesSettings()) == []


# ---- strict JSON ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Yes, message 1 is clearly mistaken.", "not JSON"),
        ("true", "not an object"),
        ([vote(1)], "not an object"),
        ({**vote(1), "why": "it renamed"}, "not an object"),
        ({"message": 1}, "not an object"),
        (vote(True), "another type"),
        ({**vote(1), "message": "1"}, "another type"),
        ({**vote(1), "wish": "no"}, "another type"),
        (vote(1, confidence=1.5), "confidence"),
        ('{"message": 1, "wish": false, "confidence": NaN}', "confidence"),
        ({**vote(1), "confidence": True}, "confidence"),
        (vote(0), "no message of the assistant"),
        (vote(8), "no message of the assistant"),
        (vote(99), "no message of the assistant"),
        (vote(1, wish=True), "at once"),
    ],
)
def test_an_answer_that_does_not_fit_is_no_vote(answer: Any, reason: str) -> None:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    with pytest.raises(BadReading, match=reason):
        parse_vote(text, messages=MESSAGES)
    found = verdict(CORRECTED, answer)
    assert (found.outcome, found.votes, found.readings, found.void) == ("undecided", 0, 0, 1)


def test_a_code_fence_around_the_json_is_taken_off() -> None:
    assert parse_vote(f"```json\n{json.dumps(vote(3))}\n```", messages=MESSAGES).message == 3


# ---- votes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "outcome", "votes", "named"),
    [
        ([vote(1)], "mistake", 1, 1),
        ([vote(3)], "elsewhere", 1, 3),
        ([vote(None)], "none", 1, None),
        ([vote(None, wish=True)], "wish", 1, None),
        ([vote(1, confidence=0.4)], "undecided", 0, None),
        ([vote(1), vote(3), vote(1)], "mistake", 2, 1),
        ([vote(1), vote(3), vote(None)], "elsewhere", 2, 3),
        ([vote(1), "oops", vote(1)], "mistake", 2, 1),
        ([vote(1), "oops", "oops"], "undecided", 0, None),
        ([vote(1), vote(None)], "undecided", 0, None),
        ([vote(1), vote(None, wish=True), vote(None, wish=True)], "wish", 2, None),
    ],
)
def test_an_outcome_needs_more_than_half_of_the_votes(
    answers: list[Any], outcome: str, votes: int, named: int | None
) -> None:
    found = verdict(CORRECTED, *answers)
    assert (found.outcome, found.votes, found.named) == (outcome, votes, named)
    assert (found.turn, found.rule, found.prior) == (1, "corrected_named", 0.6)


@pytest.mark.parametrize(
    ("answers", "outcome", "named"),
    [
        ([vote(5)], "mistake", 5),
        ([vote(1), vote(3), vote(3)], "mistake", 3),
        ([vote(1), vote(3), vote(None)], "undecided", None),
        ([vote(None), vote(None, wish=True), vote(3)], "none", None),
    ],
)
def test_of_words_without_a_rule_the_message_that_most_name_counts(
    answers: list[Any], outcome: str, named: int | None
) -> None:
    found = verdict(UNMATCHED, *answers)
    assert (found.rule, found.outcome, found.named) == (READER_ALONE, outcome, named)


def test_two_candidates_are_two_questions_with_verdicts_of_their_own() -> None:
    log = session(*CORRECTED.turns, calls("Done."), human("still not working"))
    respond = lambda text, number: vote(1) if "events: #8\n" in text else vote(None)  # noqa: E731
    outcomes = {v.evidence: v.outcome for v in read(log, respond).verdicts}
    assert outcomes == {(8,): "mistake", (10,): "none"}
