"""What the person's next message corrects."""

from __future__ import annotations

import pytest

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.trace import HARNESS, Session, Text, Turn
from composer_replication.data.hints.write import write_hints
from tests.data.sites.builder import bash, calls, find, human, only, results, session

EDIT = {"old_string": "x", "new_string": "y"}


def worked(reply: str, *more: Turn) -> Session:
    """Two edits and a closing message, and what the person says then."""
    return session(
        human("rename it"),
        calls(("a", "Edit", {"file_path": "/w/src/cache.py", **EDIT})),
        results(("a", "updated", False)),
        calls(("b", "Edit", {"file_path": "/w/src/store.py", **EDIT})),
        results(("b", "updated", False)),
        calls(bash("c", "cat README.md")),
        results(("c", "text", False)),
        calls("All of it is renamed."),
        *more,
        human(reply),
    )


def test_the_message_that_changed_what_the_correction_names_is_the_site() -> None:
    site = only(worked("no, that is wrong: src/cache.py keeps its name"))
    assert (site.turn, site.evidence, site.rule) == (1, (8,), "corrected_named")
    assert (site.kind, site.category, site.is_target) == ("user_corrected", "corrected", False)
    assert site.bars_lm_ce


def test_if_it_names_nothing_it_is_the_last_change_else_the_last_message() -> None:
    assert only(worked("that's not what I asked")).turn == 3
    claim = session(human("why?"), calls("Because of the cache."), human("that is not correct"))
    assert (only(claim).turn, only(claim).rule) == (1, "corrected_last")


@pytest.mark.parametrize(
    "reply",
    [
        "now rename src/store.py as well",
        "can you use a map instead?",
        "wait, I was wrong about src/cache.py",
        "I changed my mind, keep the old name",
        "no problem, go on",
        "use shorter names from now on",
    ],
)
def test_a_wish_a_question_and_a_change_of_mind_correct_nothing(reply: str) -> None:
    assert find(worked(reply)) == []


@pytest.mark.parametrize(
    ("words", "answer", "rule"),
    [
        ("it was black before, is that gone now?", "A real regression: I broke it.", "admitted"),
        ("the docs list exports only", "You're absolutely right, let me fix it.", "conceded"),
        ("still some failures in ci", "Let me look at the run.", "still"),
        ("is that used?", "You're right to ask: it is.", ""),
        ("can you sort them as well?", "Good catch, I will.", ""),
        ("wait, I was wrong", "You're right, my mistake.", ""),
    ],
)
def test_the_answer_of_the_model_tells_a_correction(words: str, answer: str, rule: str) -> None:
    log = worked(words)
    sites = find(session(*log.turns, calls(answer)))
    assert [(s.turn, s.rule) for s in sites] == ([(3, f"corrected_{rule}")] if rule else [])
    if rule in ("admitted", "conceded"):
        assert sites[0].evidence == (8, 9)


def test_a_file_that_was_edited_before_the_last_request_is_the_site_too() -> None:
    log = worked("thanks, now the readme")
    wrong = session(
        *log.turns,
        calls("It needs no change."),
        human("that is wrong, `src/cache.py` must stay as it was"),
    )
    assert (only(wrong).turn, only(wrong).rule) == (1, "corrected_named")


def test_words_after_a_stop_belong_to_the_message_that_was_cut_off() -> None:
    stop = Turn(
        role="user",
        author=HARNESS,
        blocks=(Text("[Request interrupted by user]"),),
        tag="interrupt",
    )
    assert only(worked("no, I said src/store.py only", stop)).kind == "user_interrupted"


def test_the_hint_is_the_correction() -> None:
    log = worked("no, I asked you for the tests only")
    sites = find(log, train_kinds=("user_corrected",), min_confidence=0.5)
    (hint,) = write_hints(log, sites, settings=HintsSettings()).hints
    assert (
        hint.text == "The user, on the step that comes now: the user asked you for the tests only"
    )
