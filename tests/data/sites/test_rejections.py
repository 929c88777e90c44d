"""Rejected and cut-off messages, and the words that a person gave with them."""

from __future__ import annotations

import pytest

from composer_replication.core.config.data_settings import HintsSettings
from composer_replication.core.site import CATEGORIES, LM_CE_EXCLUDED, SIGNAL_CATEGORIES, Site
from composer_replication.core.trace import HARNESS, Session, Text, Turn
from composer_replication.data.hints.persons_writers import third_person
from composer_replication.data.hints.write import HintReport, write_hints
from composer_replication.data.sites.persons_words import Remark, remark_of
from tests.data.sites.builder import bash, calls, failed, find, human, only, results, session

REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was"
    " a file edit, the new_string was NOT written to the file). "
)
WAIT = "STOP what you are doing and wait for the user to tell you how to proceed."
CANCELLED = "The user doesn't want to take this action right now. " + WAIT
INTERRUPT = Turn(
    role="user", author=HARNESS, blocks=(Text("[Request interrupted by user]"),), tag="interrupt"
)


def rejected(words: str, *, then: str = "git status") -> Session:
    return session(
        human("commit it"),
        calls(bash("c1", "gh pr create --fill")),
        failed("c1", REFUSED + "To tell you how to proceed, the user said:\n" + words),
        calls(bash("c2", then)),
        results(("c2", "ok")),
    )


def hints_of(log: Session, *, no_answers: bool = True) -> HintReport:
    sites = find(log, train_kinds=("user_rejected",), min_confidence=0.4)
    return write_hints(log, sites, settings=HintsSettings(no_answers=no_answers))


def stance(text: str) -> str:
    remark = remark_of(text)
    assert isinstance(remark, Remark)
    return remark.stance


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("correction", "no, that is the wrong branch"),
        ("correction", "the first part is not correct, we use hooks for that"),
        ("correction", "Why did you delete the test?"),
        ("correction", "I said only the docs"),
        ("correction", "nein, das ist falsch"),
        ("correction", "non, ce n'est pas le bon fichier"),
        ("correction", "eso no es lo que pedí"),
        ("correction", "não, o outro arquivo"),
        ("correction", "違います、別のファイルです"),
        ("correction", "不对，应该用另一个文件"),
        ("prohibition", "don't create a pr, just a commit"),
        ("prohibition", "do not stash anything"),
        ("instead", "I'd prefer a map"),
        ("question", "are these anys the way to go?"),
        # a change of mind, an apology and an approval are no mistake of the model
        ("pause", "wait, don't do that yet"),
        ("pause", "sorry, I was wrong about the branch"),
        ("pause", "I changed my mind, use the other one"),
        ("wish", "no problem, go on"),
        ("wish", "no, that's fine"),
        ("wish", "can you also sort them and add a test"),
        ("wish", "now add a page for the settings"),
    ],
)
def test_the_stance_of_a_persons_words(expected: str, text: str) -> None:
    assert stance(text) == expected


def test_pasted_text_is_not_the_persons() -> None:
    assert remark_of("```\nno, that is wrong\n```") is None
    assert remark_of("High Severity\nThis is wrong: the value is not correct") is None
    assert stance("look:\n> no, that is wrong\nand add a test") == "wish"


def test_a_rejection_with_words_names_its_rule_and_is_not_trained_on_by_default() -> None:
    site = only(rejected("don't create a pr, just a commit"))
    assert (site.turn, site.call_id, site.kind, site.category) == (
        1,
        "c1",
        "user_rejected",
        "rejected",
    )
    assert (site.rule, site.confidence, site.evidence) == ("rejected_prohibition", 0.65, (2,))
    assert not site.is_target and site.bars_lm_ce
    assert only(rejected("don't"), signals=()).rule == ""


def test_a_kind_is_trained_only_by_a_rule_that_is_sure_enough() -> None:
    def trained(words: str, **settings: float) -> bool:
        return only(rejected(words), train_kinds=("user_rejected",), **settings).is_target

    words = "don't create a pr, just a commit"
    assert trained(words, min_confidence=0.6) and not trained(words)
    assert not trained("let's cut a branch first", min_confidence=0.6)
    assert trained("let's cut a branch first", min_confidence=0.1)


def test_without_words_a_rejection_is_only_counted() -> None:
    log = session(human("go"), calls(bash("c1", "make")), failed("c1", REFUSED + WAIT))
    site = only(log, train_kinds=("user_rejected",))
    assert (site.category, site.rule, site.confidence) == ("rejected", "", None)


def test_the_words_may_stand_in_the_next_message_if_the_model_wrote_nothing_before_it() -> None:
    start = (human("go"), calls(bash("c1", "make")), failed("c1", REFUSED + WAIT), INTERRUPT)
    site = only(session(*start, human("no, run the tests")))
    assert (site.turn, site.rule, site.evidence) == (1, "rejected_correction", (2, 4))
    assert find(session(*start, calls("ok"), human("no, run the tests")))[0].rule == ""


def test_the_calls_beside_a_rejected_one_are_not_its_mistake() -> None:
    log = session(
        human("go"),
        calls(bash("a", "make fmt"), bash("b", "git push"), bash("c", "make lint")),
        results(
            ("a", CANCELLED, True),
            ("b", REFUSED + "To tell you how to proceed, the user said:\ndon't push", True),
            ("c", CANCELLED, True),
        ),
    )
    sites = find(log, train_kinds=("user_rejected",), min_confidence=0.6)
    assert [(s.call_id, s.category, s.rule) for s in sites] == [
        ("a", "rejected", ""),
        ("b", "mistake", "rejected_prohibition"),
        ("c", "rejected", ""),
    ]


def test_a_message_that_was_cut_off_and_corrected_is_a_site_and_a_new_wish_is_none() -> None:
    start = (human("go"), calls("I will use mocks", bash("c1", "ls")), results(("c1", "x")))
    site = only(session(*start, INTERRUPT, human("no, I said no mocks")))
    assert (site.turn, site.kind, site.category) == (1, "user_interrupted", "interrupted")
    assert site.evidence == (3, 4) and site.bars_lm_ce
    assert find(session(*start, INTERRUPT, human("now look at the other file"))) == []


def test_the_hint_is_what_the_person_said_in_the_third_person() -> None:
    (hint,) = hints_of(rejected("no, I told you: my branch stays, don't open a pr")).hints
    assert hint.text == (
        "The user, on the step that comes now: the user told you: the user's branch stays, don't"
        " open a pr"
    )
    assert hint.knows == ("kind", "later:person")
    assert len(third_person("word " * 200).split()) == 40


def test_words_that_a_later_call_carries_out_give_the_answer_away() -> None:
    log = rejected(
        "no, merge origin/dev/other-state first", then="git merge origin/dev/other-state"
    )
    (refusal,) = hints_of(log).refused
    assert refusal.reason == "gives_the_answer" and "origin/dev/other-state" in refusal.detail
    (hint,) = hints_of(log, no_answers=False).hints
    assert "later:answer" in hint.knows


def test_lm_ce_never_trains_a_message_of_these_categories() -> None:
    assert SIGNAL_CATEGORIES < LM_CE_EXCLUDED and set(CATEGORIES) >= SIGNAL_CATEGORIES
    for category in sorted(SIGNAL_CATEGORIES):
        site = Site(
            session_id="s",
            turn=1,
            kind="user_corrected",
            detector="",
            evidence=(2,),
            category=category,  # pyright: ignore[reportArgumentType]
        )
        assert site.bars_lm_ce and not site.is_target
