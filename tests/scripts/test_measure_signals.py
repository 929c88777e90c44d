"""A reader's verdicts beside the rules, on labels: what each calls mistaken, and what both do."""

from __future__ import annotations

from typing import Any

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.site import ReaderVerdict
from composer_replication.core.trace import Session
from composer_replication.data.sites.find_sites import find_sites
from scripts.measure_signals import Candidate, measure_reader, reader_table
from tests.data.hints.test_candidate_reader import read, vote
from tests.data.sites.test_corrections import worked

CORRECTED = worked("no, that is wrong: src/cache.py keeps its name")  # a rule names message 1
UNMATCHED = worked("the shop page shows the old name")  # no rule fires


def labelled(name: str, *, mistaken: str, guilty: tuple[int, ...], turn: int = 8) -> Candidate:
    """A person's message that both readers of the labels judge alike."""
    label = {"verdict": "correction" if mistaken == "yes" else "new_wish", "mistaken": mistaken}
    return Candidate(
        id=name,
        session=name,
        form="a",
        labels=(label, label),
        turn=turn,
        call_id=None,
        named=(frozenset(guilty), frozenset(guilty)),
    )


def verdicts(log: Session, answer: dict[str, Any]) -> list[ReaderVerdict]:
    """What a reader with this answer makes of the candidates of a session."""
    return list(read(log, lambda text, number: answer).verdicts)


def scored(*cases: tuple[Candidate, Session, dict[str, Any] | None]) -> dict[str, list[Any]]:
    """Judge -> right of said, found of mistakes; None in place of an answer: nobody asked."""
    sites = {c.id: find_sites(log, settings=SitesSettings()) for c, log, _ in cases}
    read_by = {c.id: verdicts(log, answer) if answer else [] for c, log, answer in cases}
    measured = measure_reader([c for c, _, _ in cases], sites, read_by)
    assert "all reader" in reader_table(measured)
    return {
        judge: [row[part][count] for part in ("precision", "recall") for count in ("k", "n")]
        for judge, row in measured["all"].items()
    }


def test_a_reader_that_agrees_is_right_where_the_rules_are() -> None:
    case = (labelled("a1", mistaken="yes", guilty=(1,)), CORRECTED, vote(1))
    assert scored(case) == {judge: [1, 1, 1, 1] for judge in ("rules", "reader", "both")}


def test_a_reader_that_names_the_guilty_message_is_right_alone() -> None:
    case = (labelled("a1", mistaken="yes", guilty=(3,)), CORRECTED, vote(3))
    assert scored(case) == {"rules": [0, 1, 0, 1], "reader": [1, 1, 1, 1], "both": [0, 0, 0, 1]}


def test_what_the_rules_call_a_mistake_and_the_reader_a_wish_is_of_the_rules_alone() -> None:
    case = (labelled("a1", mistaken="no", guilty=()), CORRECTED, vote(None, wish=True))
    assert scored(case) == {"rules": [0, 1, 0, 0], "reader": [0, 0, 0, 0], "both": [0, 0, 0, 0]}


def test_words_that_only_the_reader_understands_count_for_it_alone() -> None:
    case = (labelled("a1", mistaken="yes", guilty=(5,)), UNMATCHED, vote(5))
    assert scored(case) == {"rules": [0, 0, 0, 1], "reader": [1, 1, 1, 1], "both": [0, 0, 0, 1]}


def test_a_candidate_that_the_reader_was_not_asked_about_is_not_counted() -> None:
    asked = (labelled("a1", mistaken="yes", guilty=(1,)), CORRECTED, vote(1))
    not_asked = (labelled("a2", mistaken="yes", guilty=(1,)), CORRECTED, None)
    elsewhere = (labelled("a3", mistaken="yes", guilty=(1,), turn=4), CORRECTED, vote(1))
    assert scored(asked, not_asked, elsewhere) == scored(asked)
