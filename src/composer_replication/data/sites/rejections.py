"""Calls that a person rejected, and messages that they cut off, with their words.

The words stand in the result of the rejected call or, if the person typed none there, in their next
message. Of calls that ran in parallel only the one that was refused is a site of these rules: the
others were cancelled with it. Without words a rejection is counted under its category, and nothing
more: nobody knows what was wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from composer_replication.core.site import STOPPED_CATEGORIES, Category, Site
from composer_replication.core.trace import Session
from composer_replication.data.sites.detectors import answered_calls, make_site
from composer_replication.data.sites.persons_words import (
    Remark,
    is_typed,
    remark_of,
    spoken_in_result,
)
from composer_replication.data.sites.tool_errors import not_the_model
from composer_replication.data.sites.verdict import Verdict, quote

CONFIDENCE = {
    "prohibition": 0.65,
    "correction": 0.5,
    "pause": 0.3,
    "instead": 0.2,
    "wish": 0.1,
    "question": 0.1,
}
"""How sure each stance makes a rejection a mistake: 2 of 3, 0 of 1, 2 of 4, 0 of 1,
1 of 11 and 1 of 9 labelled ones were."""
_REFUSED = "The user doesn't want to proceed"
_STOPPED_BY = frozenset(("correction", "prohibition", "instead"))
_ASKING_TOOLS = frozenset(("AskUserQuestion", "EnterPlanMode"))
"""What a person answers there is no verdict on the question."""


def rejections(session: Session) -> Iterator[Site]:
    """Find the calls and messages that a person stopped with words of their own, in order."""
    stopped: set[int] = set()
    for ref, result, turn in answered_calls(session):
        verdict = not_the_model(result.text) if result.is_error is not False else None
        if verdict is None or verdict.category not in STOPPED_CATEGORIES:
            continue
        stopped.add(ref.turn)
        spoken = spoken_in_result(result.text)
        if ref.call.name in _ASKING_TOOLS or not (
            spoken or (result.text.startswith(_REFUSED) and verdict.category == "rejected")
        ):
            continue
        later = None if spoken else _next_words(session, turn)
        remark = remark_of(spoken) if spoken else later and later[1]
        if remark is not None:
            verdict = Verdict(category="rejected", kind="user_rejected", detail=quote(result.text))
            site = make_site(session, ref, verdict, detector="rejections", evidence=turn)
            evidence = (turn,) if later is None else (turn, later[0])
            yield _with_rule(site, f"rejected_{remark.stance}", remark=remark, evidence=evidence)
    yield from _cut_off(session, stopped)


def _cut_off(session: Session, stopped: set[int]) -> Iterator[Site]:
    """Find messages during which the person stopped the agent, and then corrected it."""
    for index, turn in enumerate(session.turns):
        message = index - 1
        while message >= 0 and session.turns[message].role == "tool":
            message -= 1
        if not turn.is_interrupt or message < 0 or session.turns[message].role != "assistant":
            continue
        later = None if message in stopped else _next_words(session, index)
        if later is not None and later[1].stance in _STOPPED_BY:
            category: Category = "interrupted"
            site = Site(
                session_id=session.id,
                turn=message,
                kind="user_interrupted",
                detector="rejections",
                evidence=(index, later[0]),
                category=category,
                author=session.turns[message].author,
                detail=quote(later[1].words),
                file=session.source.file,
                repository=session.repository,
            )
            rule = f"interrupted_{later[1].stance}"
            yield _with_rule(site, rule, remark=later[1], evidence=site.evidence)


def _next_words(session: Session, turn: int) -> tuple[int, Remark] | None:
    """The person's next message, if the model wrote nothing before it, and what it is."""
    for index in range(turn + 1, len(session.turns)):
        later = session.turns[index]
        if later.role == "assistant":
            return None
        if is_typed(later):
            remark = remark_of(later.text)
            return None if remark is None else (index, remark)
    return None


def _with_rule(site: Site, rule: str, *, remark: Remark, evidence: tuple[int, ...]) -> Site:
    return dataclasses.replace(
        site,
        rule=rule,
        confidence=CONFIDENCE[remark.stance],
        evidence=evidence,
        detail=quote(remark.words),
    )
