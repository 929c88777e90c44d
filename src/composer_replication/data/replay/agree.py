"""Do the answers agree? The exact tier: two messages are the same where they do the same, whatever they say beside it.

    verdict = agree(own, answers, min_families=3)
    verdict.outcome          # "pair": `verdict.chosen` is preferred to what the student did

Families are counted, not models: models of one family make the same mistakes, and agreement of many models is weak evidence
anyhow (Correlated Errors, arXiv 2506.07962). With two of three, slips of the teachers gave wrong majorities at 5-8 % of the places,
which was enough to destroy the student; so the default of `replay.min_families` is unanimity of three.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from composer_replication.core.site import Answer
from composer_replication.core.trace import Turn

Outcome = Literal["pair", "agreed", "no_consensus", "none"]
MIN_AGREED = 2
"""So many families must give the student's own action before they count as agreeing with it."""
SAY = ""
"""Stands for the name of a tool where a message makes no call."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a message does: its calls as a sorted set, or its words where it makes none.

    Example: Action((("read_file", '{"path":"a.py"}'),)), Action((("", "Done."),))
    """

    parts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of the answers at one turn.

    "pair": `chosen` was given by at least `min_families` families and is not what the student did. "agreed": at least two families
    did what the student did, and no other action has as many. "no_consensus": neither, and no other action has a majority against
    the student's. "none": no pair and no anchor, for `reason`:
    no_text_or_call (the student did nothing that could be compared), too_few_families (fewer than two that are not the student's own),
    outvoted (at least two families, and more than gave the student's action, gave another one: too few for a pair, too many for
    an anchor), after_error (the environment had just said what was wrong, so the student was told and the teachers, too), erred (its own
    call raised an error: never an anchor, even where the teachers would have made the same mistake).
    `families` are those that gave `chosen` or, for "agreed", the student's action.
    """

    outcome: Outcome
    reason: str = ""
    chosen: Answer | None = None
    families: tuple[str, ...] = ()
    teachers: tuple[str, ...] = ()
    num_families: int = 0
    num_own_family: int = 0


def canonical(turn: Turn) -> Action:
    """What a message does, so that equal actions are equal: order of calls and of arguments, spaces and words beside calls do not count.

    >>> from composer_replication.core.trace import Text, ToolCall
    >>> one = Turn(role="assistant", author="a", blocks=(Text("I look."), ToolCall("c1", "edit", {"old": "1", "new": "2"})))
    >>> two = Turn(role="assistant", author="b", blocks=(ToolCall("x", "edit", {"new": "2", "old": "1"}),))
    >>> canonical(one) == canonical(two)
    True
    """
    if turn.calls:
        calls = {(call.name, json.dumps(call.arguments, sort_keys=True, separators=(",", ":"))) for call in turn.calls}
        return Action(tuple(sorted(calls)))
    words = " ".join(turn.text.split())
    return Action(((SAY, words),) if words else ())


def agree(
    own: Turn, answers: Sequence[Answer], *, min_families: int, own_family: str = "", after_error: bool = False, erred: bool = False
) -> Verdict:
    """Weigh the answers to one turn against what the student did there.

    `own_family` is the family of the turn's author: its answers are left out, and counted. `after_error`: the turn follows an error
    result; only agreement counts there. `erred`: the turn's own call raised an error; it can lose a pair, but is no anchor.
    """
    others = [answer for answer in answers if not own_family or answer.family != own_family]
    done = canonical(own)
    supporters = _supporters(others)
    num_families = len({answer.family for answer in others})
    verdict = partial(Verdict, num_families=num_families, num_own_family=len(answers) - len(others))
    if not done.parts:
        return verdict(outcome="none", reason="no_text_or_call")
    if num_families < MIN_AGREED:
        return verdict(outcome="none", reason="too_few_families")
    own_families = supporters.get(done, frozenset())
    rivals = {action: families for action, families in supporters.items() if action != done}
    most = max(map(len, rivals.values()), default=0)
    best = [action for action, families in rivals.items() if len(families) == most]
    if most >= min_families and len(best) == 1 and most > len(own_families):
        if after_error:
            return verdict(outcome="none", reason="after_error")
        given = [answer for answer in others if canonical(answer.turn) == best[0] and answer.family in rivals[best[0]]]
        return verdict(outcome="pair", chosen=given[0], families=_sorted(rivals[best[0]]), teachers=_teachers(given))
    if erred:
        return verdict(outcome="none", reason="erred")
    if len(own_families) >= MIN_AGREED and most < len(own_families):
        given = [answer for answer in others if canonical(answer.turn) == done and answer.family in own_families]
        return verdict(outcome="agreed", families=_sorted(own_families), teachers=_teachers(given))
    if after_error:
        return verdict(outcome="none", reason="after_error")
    if most >= MIN_AGREED and most > len(own_families):
        return verdict(outcome="none", reason="outvoted")
    return verdict(outcome="no_consensus", teachers=_teachers(others))


def _supporters(answers: Sequence[Answer]) -> dict[Action, frozenset[str]]:
    """Which families gave an action. A family has one vote: what most of its models did; where they are divided, it has none."""
    by_family: dict[str, Counter[Action]] = defaultdict(Counter)
    for answer in answers:
        by_family[answer.family][canonical(answer.turn)] += 1
    votes: dict[Action, set[str]] = defaultdict(set)
    for family, actions in by_family.items():
        first, *rest = actions.most_common(2)
        if first[0].parts and (not rest or rest[0][1] < first[1]):
            votes[first[0]].add(family)
    return {action: frozenset(families) for action, families in votes.items()}


def _sorted(families: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(families))


def _teachers(answers: Sequence[Answer]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(answer.teacher for answer in answers))
