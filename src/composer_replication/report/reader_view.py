"""A reader model's verdicts per kind: votes, cost, and agreement with the rules.

    rows = reader_rows(read_verdicts(work / "site_verdicts.jsonl"))
    rows[0]     # ReaderRow(kind="user_corrected", read=31, mistaken=9, agree=24, decided=28, ...)

A rule counts as saying "mistake" if its confidence is .5 or more. People's words on which no rule
fired count as "no mistake" of the rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from composer_replication.core.site import ReaderVerdict
from composer_replication.report.html import Html, el, join, plural, table
from composer_replication.report.kind_titles import kind_title

RULE_SAYS_MISTAKE = 0.5
MIN_FOR_KAPPA = 20
"""With fewer decided candidates of a kind, Cohen's kappa says nothing."""
HEAD = (
    "kind",
    "read",
    "mistaken",
    "not",
    "undecided",
    "votes",
    "void",
    "as the rules",
    "kappa",
    "$",
)
EXPLAINED = (
    "A reader is shown each candidate without the rule's finding; a verdict raises or lowers the"
    ' confidence of the rule, and trains nothing by itself. "As the rules": it says mistaken where'
    f" the rule's confidence is {RULE_SAYS_MISTAKE} or more, and not mistaken elsewhere. Kappa"
    f" from {MIN_FOR_KAPPA} verdicts on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRow:
    """The verdicts on the candidates of one kind.

    `decided` = mistaken or not; of these `agree` are as the rules have it. `votes` are usable
    answers and `void` the others. `kappa` is None for few verdicts, and if either side always says
    the same. Example: ReaderRow(kind="broke_check", read=3, mistaken=2, decided=3, agree=2, ...)
    """

    kind: str
    read: int
    mistaken: int
    decided: int
    agree: int
    votes: int
    void: int
    usd: float
    kappa: float | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as texts, in the order of HEAD."""
        counts = (
            self.read,
            self.mistaken,
            self.decided - self.mistaken,
            self.read - self.decided,
            self.votes,
            self.void,
        )
        kappa = "–" if self.kappa is None else f"{self.kappa:.2f}"
        agreement = f"{self.agree} of {self.decided}"
        return (self.kind, *map(str, counts), agreement, kappa, f"{self.usd:.4f}")


def reader_rows(verdicts: Iterable[ReaderVerdict]) -> tuple[ReaderRow, ...]:
    """Count the verdicts of each kind, the most read first."""
    by_kind: dict[str, list[ReaderVerdict]] = defaultdict(list)
    for verdict in verdicts:
        by_kind[verdict.kind].append(verdict)
    rows = [_row(kind, found) for kind, found in by_kind.items()]
    return tuple(sorted(rows, key=lambda row: (-row.read, row.kind)))


def _row(kind: str, verdicts: Sequence[ReaderVerdict]) -> ReaderRow:
    pairs = [
        (verdict.prior >= RULE_SAYS_MISTAKE, verdict.outcome == "mistake")
        for verdict in verdicts
        if verdict.outcome != "undecided"
    ]
    return ReaderRow(
        kind=kind,
        read=len(verdicts),
        mistaken=sum(reader for _, reader in pairs),
        decided=len(pairs),
        agree=sum(rule == reader for rule, reader in pairs),
        votes=sum(verdict.readings for verdict in verdicts),
        void=sum(verdict.void for verdict in verdicts),
        usd=sum(verdict.usd for verdict in verdicts),
        kappa=cohens_kappa(pairs) if len(pairs) >= MIN_FOR_KAPPA else None,
    )


def cohens_kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Agreement of two judges beyond chance (J. Cohen, 1960); None if either never varies.

    >>> cohens_kappa([(True, True)] * 3 + [(False, False)] * 3 + [(True, False), (False, True)])
    0.5
    """
    n = len(pairs)
    first, second = (sum(pair[side] for pair in pairs) for side in (0, 1))
    if first in (0, n) or second in (0, n):
        return None
    observed = sum(a == b for a, b in pairs) / n
    by_chance = (first * second + (n - first) * (n - second)) / n**2
    return (observed - by_chance) / (1 - by_chance)


def reader_total(rows: Sequence[ReaderRow]) -> str:
    """The rows in one sentence: "12 candidates read by a model, 3 mistaken, for $0.0104"."""
    read, mistaken = sum(row.read for row in rows), sum(row.mistaken for row in rows)
    usd = sum(row.usd for row in rows)
    return f"{plural(read, 'candidate')} read by a model, {mistaken} mistaken, for ${usd:.4f}"


def reader_section(rows: Sequence[ReaderRow]) -> Html:
    """The table of the page."""
    lines = [(kind_title(row.kind), *row.cells[1:]) for row in rows]
    return join(
        el("p", reader_total(rows), "."),
        table(lines, head=HEAD, numbers=range(1, len(HEAD))),
        el("p", EXPLAINED, cls="quiet"),
    )
