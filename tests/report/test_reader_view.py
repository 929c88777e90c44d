"""The reader's verdicts per kind: counts, cost, and agreement with the rules."""

from __future__ import annotations

from composer_replication.core.site import ReaderOutcome, ReaderVerdict
from composer_replication.report.reader_view import MIN_FOR_KAPPA, cohens_kappa, reader_rows


def verdicts(outcome: ReaderOutcome, prior: float, count: int) -> list[ReaderVerdict]:
    return [
        ReaderVerdict(
            session_id="s1",
            turn=turn,
            kind="user_corrected",
            rule="corrected_last",
            evidence=(turn + 1,),
            prior=prior,
            outcome=outcome,
            votes=2,
            readings=2,
            void=1,
            usd=0.001,
        )
        for turn in range(count)
    ]


def test_agreement_is_counted_over_decided_candidates_and_kappa_with_enough_of_them() -> None:
    found = [
        *verdicts("mistake", 0.5, 8),
        *verdicts("wish", 0.3, 6),
        *verdicts("mistake", 0.4, 2),
        *verdicts("elsewhere", 0.7, 3),
        *verdicts("undecided", 0.7, 5),
    ]
    (row,) = reader_rows(found)
    assert (row.read, row.mistaken, row.decided, row.agree) == (24, 10, 19, 14)
    assert (row.votes, row.void, round(row.usd, 6)) == (48, 24, 0.024)
    assert row.kappa is None and row.decided < MIN_FOR_KAPPA
    assert row.cells[-3:] == ("14 of 19", "–", "0.0240")
    (more,) = reader_rows([*found, *verdicts("none", 0.1, 1)])
    # rules 11 + 9, reader 10 + 10: chance .5, observed 15 of 20
    assert (more.agree, more.decided, more.kappa) == (15, 20, 0.5)
    assert more.cells[-2] == "0.50"


def test_there_is_no_kappa_if_one_side_always_says_the_same() -> None:
    assert cohens_kappa([(True, True)] * 30) is None
    assert cohens_kappa([(True, False), (True, True)] * 15) is None
    assert cohens_kappa([(True, False), (False, True)] * 15) == -1.0
