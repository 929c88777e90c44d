"""Turn the answers to each turn of a session into preferences and anchors.

    for replayed in replay(sessions, ask, min_families=3):
        replayed.answers         # what each teacher would have done there
        replayed.result          # a Preference, an Anchor, or NoResult(reason="outvoted")

`ask(session, turn)` returns the answers to one turn; the caller decides who is asked, and pays.
Three kinds of messages are not asked about: copied ones (their original session is), those without
text or calls, and those that a human interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer_replication.core.site import Anchor, Answer, Preference
from composer_replication.core.trace import Session, Turn
from composer_replication.data.replay.actions import canonical_action, comparison_context
from composer_replication.data.replay.agree import (
    Agreement,
    AnsweredTurn,
    Judge,
    Tier,
    weigh_answers,
)
from composer_replication.data.replay.counter_evidence import GAP, evidence_against
from composer_replication.data.replay.model_families import family_of as maker_of

NOT_WEIGHED = ("no_text_or_call", "too_few_families", "no_judge")
"""Reasons of an agreement that weighed no answer."""
Ask = Callable[[Session, int], tuple[Answer, ...] | None]
"""Returns what each teacher would do at a turn, given the student's context; None = nobody was
asked."""
Fails = Callable[[Session, int, Turn], bool]
"""Whether a message would raise an error at a turn, for environments that can try it."""
Gap = Callable[[Session, int, Turn], float | None]
"""The gain of a message over the student's own (e.g. a difference of rewards); None if that cannot
be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoResult:
    """Neither a preference nor an anchor at a turn.

    Reasons: those of `Agreement`, and copied, interrupted, not_asked, chosen_fails, no_evidence.
    """

    session_id: str
    turn: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTurn:
    """One assistant turn: its answers (none if nobody was asked), its result, what was weighed, and
    the teachers' agreement."""

    session_id: str
    turn: int
    answers: tuple[Answer, ...]
    result: Preference | Anchor | NoResult
    answered: AnsweredTurn | None = None
    agreement: Agreement | None = None

    @property
    def outcome(self) -> str:
        """The result in one word: pair, agreed, no_consensus, or the reason why it is none of them.

        >>> result = NoResult(session_id="s1", turn=3, reason="copied")
        >>> ReplayedTurn(session_id="s1", turn=3, answers=(), result=result).outcome
        'copied'
        """
        return "pair" if isinstance(self.result, Preference) else self.result.reason

    def record(self) -> dict[str, Any]:
        """What `replay.json` keeps of a turn that was asked about, for the page.

        >>> turn = ReplayedTurn(
        ...     session_id="s1",
        ...     turn=3,
        ...     answers=(),
        ...     result=NoResult(session_id="s1", turn=3, reason="outvoted"),
        ...     agreement=Agreement(outcome="none", reason="outvoted", votes={"kimi": 1, "glm": 1}),
        ... )
        >>> turn.record()["votes"], turn.record()["outcome"]
        ({'kimi': 1, 'glm': 1}, 'outvoted')

        `no_votes` says why a usable answer has no vote: own_family, no_action, divided (its family
        gave other actions as often) or not_weighed (too few families, or nothing to compare).
        """
        weighed = self.agreement or Agreement(outcome="none")
        return {
            "outcome": self.outcome,
            "tier": weighed.tier,
            "families": list(weighed.families),
            "of": weighed.num_families,
            "evidence": list(weighed.evidence),
            "judge": weighed.judge,
            "usd": sum(weighed.prices.values()),
            "votes": dict(weighed.votes),
            "no_votes": {
                answer.teacher: self._why_no_vote(answer)
                for answer in self.answers
                if answer.teacher not in weighed.votes
            },
        }

    def _why_no_vote(self, answer: Answer) -> str:
        own_family = self.answered.student_family if self.answered is not None else ""
        if own_family and answer.family == own_family:
            return "own_family"
        if self.agreement is None or self.agreement.reason in NOT_WEIGHED:
            return "not_weighed"
        return "divided" if canonical_action(answer.turn).parts else "no_action"


def replay(
    sessions: Iterable[Session],
    ask: Ask,
    *,
    min_families: int,
    family_of: Callable[[str | None], str] = maker_of,
    fails: Fails = lambda session, turn, chosen: False,
    gap: Gap = lambda session, turn, chosen: None,
    need_evidence: bool = False,
    tiers: Sequence[Tier] = ("exact",),
    judge: Callable[[AnsweredTurn], Judge | None] = lambda answered: None,
) -> Iterator[ReplayedTurn]:
    """Yield every assistant turn of every session, in order, with its answers and their result.

    `family_of` gives the family of a turn's author, whose answers do not count; "" = none of the
    teachers' families. With `need_evidence` agreement alone makes no pair: either the student's
    message failed (counter_evidence.py), or `gap` measures more than 0. `tiers` sets how similar
    answers have to be (agree.py); `judge` returns the judge of a turn (judging.py). `fails` tries
    the chosen message in an environment, if there is one: teachers may share a mistake, and a
    message that raises an error must not be preferred.
    """
    for session in sessions:
        errors = failed_turns(session)
        for number, turn in enumerate(session.turns):
            if turn.role != "assistant":
                continue
            if reason := why_not_asked(session, number):
                yield ReplayedTurn(
                    session_id=session.id,
                    turn=number,
                    answers=(),
                    result=_no_result(session, number, reason),
                )
                continue
            if (answers := ask(session, number)) is None:
                yield ReplayedTurn(
                    session_id=session.id,
                    turn=number,
                    answers=(),
                    result=_no_result(session, number, "not_asked"),
                )
                continue
            answered = answered_turn(session, number, answers, family_of=family_of, errors=errors)
            verdict = weigh_answers(
                answered, min_families=min_families, tiers=tiers, judge=judge(answered)
            )
            result = _result_of(session, number, verdict)
            if isinstance(result, Preference):
                if fails(session, number, result.chosen):
                    result = _no_result(session, number, "chosen_fails")
                elif (
                    not answered.evidence
                    and (measured_gap := gap(session, number, result.chosen)) is not None
                    and measured_gap > 0
                ):
                    verdict = replace(verdict, evidence=(f"{GAP}:{measured_gap:g}",))
                    answered, result = (
                        replace(answered, evidence=verdict.evidence),
                        _result_of(session, number, verdict),
                    )
                elif not answered.evidence and need_evidence:
                    result = _no_result(session, number, "no_evidence")
            yield ReplayedTurn(
                session_id=session.id,
                turn=number,
                answers=answers,
                result=result,
                answered=answered,
                agreement=verdict,
            )


def answered_turn(
    session: Session,
    turn: int,
    answers: Iterable[Answer],
    *,
    family_of: Callable[[str | None], str] = maker_of,
    errors: frozenset[int] | None = None,
) -> AnsweredTurn:
    """Return a turn with its answers and everything weighed beside them.

    `errors` are the session's failed turns, if the caller has counted them already.
    """
    return AnsweredTurn(
        session_id=session.id,
        turn=turn,
        student_turn=session.turns[turn],
        answers=tuple(answers),
        comparison=comparison_context(session, turn),
        student_family=family_of(session.turns[turn].author),
        after_error=follows_error(session, turn),
        erred=turn in (failed_turns(session) if errors is None else errors),
        evidence=evidence_against(session, turn),
    )


def failed_turns(session: Session) -> frozenset[int]:
    """Return the turns of which a call raised an error, found by call id."""
    return frozenset(
        ref.turn
        for ref in session.calls().values()
        if ref.result is not None and ref.result.is_error
    )


def follows_error(session: Session, turn: int) -> bool:
    """Return whether an error result precedes a message, after the model's previous one."""
    for turn_in_view in reversed(session.context(turn)):
        if turn_in_view.role == "assistant":
            return False
        if any(result.is_error for result in turn_in_view.results):
            return True
    return False


def why_not_asked(session: Session, number: int) -> str:
    """Return why a turn is not asked about: copied, no_text_or_call, interrupted; else ""."""
    turns: tuple[Turn, ...] = session.turns
    if number < session.copied:
        return "copied"
    if not canonical_action(turns[number]).parts:
        return "no_text_or_call"
    if number + 1 < len(turns) and turns[number + 1].is_interrupt:
        return "interrupted"
    return ""


def _result_of(session: Session, number: int, verdict: Agreement) -> Preference | Anchor | NoResult:
    if verdict.outcome == "pair" and verdict.chosen is not None:
        return Preference(
            session_id=session.id,
            turn=number,
            chosen=verdict.chosen.turn,
            teachers=verdict.teachers,
            evidence=verdict.record(),
        )  # `rejected` is left out: the session's own turn, with its own ids
    if verdict.outcome == "agreed" or verdict.outcome == "no_consensus":
        return Anchor(
            session_id=session.id, turn=number, reason=verdict.outcome, teachers=verdict.teachers
        )
    return _no_result(session, number, verdict.reason)


def _no_result(session: Session, number: int, reason: str) -> NoResult:
    return NoResult(session_id=session.id, turn=number, reason=reason)
