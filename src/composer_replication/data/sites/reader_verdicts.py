"""How a reader model's verdict changes the confidence of a site, and the sites that it adds.

    weigh_verdict(0.5, "mistake"), weigh_verdict(0.5, "none")     # 0.667, 0.25

Who writes a log can write to its reader. So a verdict only moves the confidence of what a rule
found, and no rule gets over `sites.min_confidence` by default that did not before. A message that
the reader alone names becomes a site, but is never trained on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from composer_replication.core.site import Candidate, ReaderOutcome, ReaderVerdict, Site
from composer_replication.core.trace import Session
from composer_replication.data.sites.corrections import unmatched_replies

Verdicts = Mapping[Candidate, ReaderVerdict]
"""The verdicts on the candidates of a session, by `ReaderVerdict.candidate`."""
AGREED, REFUTED = 1 / 3, 1 / 2
"""A reader that agrees takes away a third of what the confidence lacks to 1; one that names another
message, a wish or nothing halves it. Guessed: no reader was measured."""


def weigh_verdict(confidence: float, outcome: ReaderOutcome) -> float:
    """The confidence of a rule's site after a verdict.

    >>> [weigh_verdict(0.7, outcome) for outcome in ("mistake", "wish", "undecided")]
    [0.8, 0.35, 0.7]
    """
    if outcome == "undecided":
        return confidence
    agrees = outcome == "mistake"
    return round(confidence + AGREED * (1 - confidence) if agrees else confidence * REFUTED, 3)


def with_verdict(site: Site, verdicts: Verdicts) -> Site:
    """A site with the confidence that it has after its verdict, if there is one.

    Example: with_verdict(site, {verdict.candidate: verdict}).confidence -> 0.667
    """
    verdict = verdicts.get(site.candidate)
    if verdict is None or site.confidence is None:
        return site
    confidence = weigh_verdict(site.confidence, verdict.outcome)
    return dataclasses.replace(site, confidence=confidence)


def sites_of_reader(session: Session, verdicts: Verdicts) -> Iterator[Site]:
    """The messages that the reader names for people's words that no rule calls a correction.

    Example: [site.rule for site in sites_of_reader(session, verdicts)] -> ["reader_alone"]
    """
    for reply in unmatched_replies(session) if verdicts else ():
        verdict = verdicts.get(reply.candidate)
        if verdict is None or verdict.outcome != "mistake" or verdict.named is None:
            continue
        message = session.turns[verdict.named]
        if message.role == "assistant":  # the file may be of an earlier state of the session
            yield dataclasses.replace(reply, turn=verdict.named, author=message.author)
