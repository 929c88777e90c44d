"""Turn a reader's flags into sites and hints, merged with the sites of the detectors and under the
same leak rules.

    written = write_reader_hints(session, reading, sites=rule_sites, rules=(), max_words=120)
    written.sites, written.hints, written.refused
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from composer_replication.core.site import Hint, Site
from composer_replication.core.trace import Session
from composer_replication.data.hints.context import site_context
from composer_replication.data.hints.hint_reader import Flag, Reading
from composer_replication.data.hints.write import HintDraft, Refusal, check_drafts

DETECTOR, WRITER, KIND = "reader", "reader", "other"
KNOWS = ("kind", "call", "later:reader")
"""The reader has seen the later turns: it knows that a mistake follows, in which call, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderHints:
    """The sites of the flags with their hints; `refused` are flags of which every hint was refused.

    `contradicted` counts the flags that are dropped because a detector says that the call is not a
    mistake (a failed check, a refusal by the human).
    """

    sites: tuple[Site, ...] = ()
    hints: tuple[Hint, ...] = ()
    refused: tuple[Refusal, ...] = ()
    contradicted: int = 0


def write_reader_hints(
    session: Session,
    reading: Reading,
    *,
    sites: Iterable[Site],
    rules: Sequence[str],
    max_words: int,
) -> ReaderHints:
    """Write one hint per flag: the most typical one that passes the leak rules. A site that a
    detector has found keeps its kind."""
    rule_site_of = {(site.turn, site.call_id): site for site in sites if site.detector != DETECTOR}
    calls = session.calls()
    all_sites: list[Site] = []
    drafts: list[HintDraft] = []
    contradicted = 0
    for flag in reading.flags:
        rule_sites = _rule_sites(session, flag, rule_site_of)
        site = next((checked for checked in rule_sites if checked.is_target), None)
        if rule_sites and site is None:
            contradicted += 1
            continue
        site = site or _make_site(session, flag)
        all_sites.append(site)
        context = site_context(session, site, rules=tuple(rules), calls=calls)
        drafts += (
            HintDraft(context=context, text=text, writer=WRITER, knows=KNOWS) for text in flag.hints
        )
    hints: dict[str, Hint] = {}
    refused: dict[str, Refusal] = {}
    for checked in check_drafts(session, drafts, rules=rules, max_words=max_words):
        if isinstance(checked, Hint):
            hints.setdefault(checked.site_id, checked)
        else:
            refused.setdefault(checked.site_id, checked)
    return ReaderHints(
        sites=tuple(all_sites),
        hints=tuple(hints.values()),
        refused=tuple(refusal for site_id, refusal in refused.items() if site_id not in hints),
        contradicted=contradicted,
    )


def _rule_sites(
    session: Session, flag: Flag, rule_site_of: Mapping[tuple[int, str | None], Site]
) -> list[Site]:
    """Return the detectors' sites for a flag: the site of its call or, for a whole message, the
    sites of all its calls if every call has one."""
    if (site := rule_site_of.get((flag.turn, flag.call_id))) is not None:
        return [site]
    calls = session.turns[flag.turn].calls if flag.call_id is None else ()
    sites = [
        rule_site_of[flag.turn, call.id] for call in calls if (flag.turn, call.id) in rule_site_of
    ]
    return sites if len(sites) == len(calls) else []


def _make_site(session: Session, flag: Flag) -> Site:
    """Make a site that no detector has found; its evidence is the result of its call, if any."""
    turn = session.turns[flag.turn]
    call = next((c for c in turn.calls if c.id == flag.call_id), None)
    result = next(
        (
            i
            for i, t in enumerate(session.turns)
            if i > flag.turn and any(r.call_id == flag.call_id for r in t.results)
        ),
        None,
    )
    flagged = result is not None and any(
        r.call_id == flag.call_id and bool(r.is_error) for r in session.turns[result].results
    )
    return Site(
        session_id=session.id,
        turn=flag.turn,
        kind=KIND,
        detector=DETECTOR,
        evidence=(flag.evidence if result is None else result,),
        call_id=flag.call_id,
        tool=call.name if call is not None else "",
        author=turn.author,
        flagged=flagged,
        file=session.source.file,
        repository=session.repository,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reader's score on labelled calls, e.g. Score(labels=154, mistakes=36, found=28, right=28,
    unlabelled=0).

    Only labelled calls count; `unlabelled` is the number of other calls that were named.
    """

    labels: int
    mistakes: int
    found: int
    right: int
    unlabelled: int

    @property
    def precision(self) -> float | None:
        """The share of the named calls that are mistakes; None if none was named."""
        return self.right / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        """The share of the mistakes that were named; None if there are none."""
        return self.right / self.mistakes if self.mistakes else None


def score_named_mistakes(
    named: Iterable[tuple[str, str | None]], labels: Mapping[tuple[str, str], str]
) -> Score:
    """Compare the (file, call id) pairs that were named a mistake with labels.

    >>> labels = {("a", "c1"): "mistake", ("a", "c2"): "benign", ("a", "c3"): "mistake"}
    >>> score_named_mistakes([("a", "c1"), ("a", "c2"), ("a", "c9")], labels)
    Score(labels=3, mistakes=2, found=2, right=1, unlabelled=1)
    """
    keys = set(named)
    judged = [
        labels[file, call] for file, call in keys if call is not None and (file, call) in labels
    ]
    return Score(
        labels=len(labels),
        mistakes=sum(verdict == "mistake" for verdict in labels.values()),
        found=len(judged),
        right=sum(verdict == "mistake" for verdict in judged),
        unlabelled=len(keys) - len(judged),
    )
