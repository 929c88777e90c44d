"""What a reader's verdict changes: the confidence of a rule's site, and nothing by itself."""

from __future__ import annotations

from typing import Any

import pytest

from composer_replication.core.config.data_settings import SitesSettings
from composer_replication.core.site import ReaderOutcome, ReaderVerdict, Site
from composer_replication.data.sites import blame, corrections, rejections, taken_back, waste
from composer_replication.data.sites.corrections import READER_ALONE
from composer_replication.data.sites.find_sites import find_sites, reader_candidates
from composer_replication.data.sites.reader_verdicts import weigh_verdict
from tests.data.sites.builder import only
from tests.data.sites.test_corrections import worked

CORRECTED = worked("no, that is wrong: src/cache.py keeps its name")
UNMATCHED = worked("the shop page shows the old name")
TRAINED = {"train_kinds": ("user_corrected",), "min_confidence": 0.7}


def judged(log: Any, outcome: ReaderOutcome, *, named: int = 1, **settings: Any) -> list[Site]:
    (site,) = reader_candidates(log, settings=SitesSettings(**settings))
    found = ReaderVerdict(
        session_id=site.session_id,
        turn=site.turn,
        call_id=site.call_id,
        kind=site.kind,
        rule=site.rule,
        evidence=site.evidence,
        prior=site.confidence or 0.0,
        outcome=outcome,
        named=named,
    )
    verdicts = {found.candidate: found}
    return find_sites(log, settings=SitesSettings(**settings), verdicts=verdicts)


def test_agreement_raises_the_confidence_and_contradiction_halves_it() -> None:
    outcomes: tuple[ReaderOutcome, ...] = ("mistake", "elsewhere", "wish", "none", "undecided")
    found = [judged(CORRECTED, outcome)[0].confidence for outcome in outcomes]
    assert found == [0.733, 0.3, 0.3, 0.3, 0.6]
    assert only(CORRECTED).confidence == 0.6


def test_min_confidence_and_train_kinds_still_decide() -> None:
    assert not only(CORRECTED, **TRAINED).is_target
    assert judged(CORRECTED, "mistake", **TRAINED)[0].is_target
    assert not judged(CORRECTED, "mistake")[0].is_target
    lower = {**TRAINED, "min_confidence": 0.6}
    assert only(CORRECTED, **lower).is_target
    assert not judged(CORRECTED, "elsewhere", **lower)[0].is_target


def test_a_verdict_on_another_candidate_changes_nothing() -> None:
    (site,) = reader_candidates(CORRECTED, settings=SitesSettings())
    for other in ({"turn": 3}, {"evidence": (6,)}, {"rule": "corrected_last"}):
        fields = {"turn": site.turn, "rule": site.rule, "evidence": site.evidence, **other}
        found = ReaderVerdict(
            session_id="s1", kind=site.kind, prior=0.6, outcome="mistake", named=1, **fields
        )
        settings = SitesSettings(**TRAINED)
        (unchanged,) = find_sites(CORRECTED, settings=settings, verdicts={found.candidate: found})
        assert (unchanged.confidence, unchanged.is_target) == (0.6, False)


def test_what_only_the_reader_names_is_shown_and_never_trained_on() -> None:
    """Whatever the settings: else the text of a log could choose what is trained on."""
    (site,) = judged(
        UNMATCHED, "mistake", named=3, train_kinds=("user_corrected",), min_confidence=0.0
    )
    assert (site.turn, site.rule, site.detail) == (3, READER_ALONE, UNMATCHED.turns[-1].text)
    assert (site.category, site.is_target, site.bars_lm_ce) == ("corrected", False, True)
    assert judged(UNMATCHED, "wish") == judged(UNMATCHED, "undecided") == []
    # a verdict on an earlier state of the session: turn 2 is no message of the model
    assert judged(UNMATCHED, "mistake", named=2) == []


def test_no_rule_gets_over_the_bar_by_its_reader() -> None:
    tables = (
        rejections.CONFIDENCE,
        corrections.CONFIDENCE_BY_RULE,
        taken_back.CONFIDENCE_IN_UNDO,
        blame.CONFIDENCE_OF,
        waste.CONFIDENCE_OF_WASTE,
    )
    best = max(confidence for table in tables for confidence in table.values())
    assert weigh_verdict(best, "mistake") < SitesSettings().min_confidence


@pytest.mark.parametrize(
    ("reply", "rules"),
    [
        ("no, that is wrong: src/cache.py keeps its name", ["corrected_named"]),
        ("thanks, now sort them", [READER_ALONE]),
        ("```\nTraceback: pasted\n```", []),
    ],
)
def test_the_candidates_are_what_rules_found_and_the_words_that_none_did(
    reply: str, rules: list[str]
) -> None:
    found = reader_candidates(worked(reply), settings=SitesSettings())
    assert [site.rule for site in found] == rules
    assert reader_candidates(worked(reply), settings=SitesSettings(signals=())) == []
