"""Ask at every turn of a session what others would have done, and turn their agreement into
preferences and anchors.

    for asked in replay(sessions, ask, min_families=3):
        asked.answers            # what each teacher would have done there
        asked.result             # a Preference, an Anchor, or NoResult(reason="outvoted")

`ask(session, turn)` returns the answers to one turn; who is asked, and what that costs, is the
caller's. Copied turns (they are asked about in the session they come from), messages without words
or calls and those a human cut off are not asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

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

Ask = Callable[[Session, int], tuple[Answer, ...] | None]
"""The asker: what each teacher would do at turn `turn` of a session, given the context the student
had; None = nobody was asked."""
Fails = Callable[[Session, int, Turn], bool]
"""Whether a message would raise an error at a turn, where that can be tried."""
Gap = Callable[[Session, int, Turn], float | None]
"""How much further a message would lead than the student's own, where that can be measured; None
where it cannot."""


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
    """One turn of a model: the answers to it (none where it was not asked about), what they amount
    to, and what was weighed."""

    session_id: str
    turn: int
    answers: tuple[Answer, ...]
    result: Preference | Anchor | NoResult
    answered: AnsweredTurn | None = None

    @property
    def outcome(self) -> str:
        """In one word: pair, agreed, no_consensus, or the reason why none of them.

        >>> Asked(session_id="s1", turn=3, answers=(), result=NoResult(session_id="s1", turn=3, reason="copied")).outcome
        'copied'
        """
        return "pair" if isinstance(self.result, Preference) else self.result.reason


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
    judge: Callable[[AnsweredTurn], Judge | None] = lambda place: None,
) -> Iterator[ReplayedTurn]:
    """Every assistant turn of every session, in order, with its answers and what they amount to.

    `family_of` gives the family of a turn's author, whose answers do not count; "" = of none of the
    teachers' families. With `need_evidence` agreement alone makes no pair: the student's message
    has to have failed (evidence.py), or `gap` has to measure more than 0. `tiers` says how alike
    answers have to be (agree.py), and `judge` who decides at a place (judging.py). `fails` tries a
    message where there is an environment to try it in: teachers may share a mistake, and what
    raises an error is preferred to nothing.
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
                    result=_no(session, number, reason),
                )
                continue
            if (answers := ask(session, number)) is None:
                yield ReplayedTurn(
                    session_id=session.id,
                    turn=number,
                    answers=(),
                    result=_no(session, number, "not_asked"),
                )
                continue
            place = answered_turn(session, number, answers, family_of=family_of, errors=errors)
            verdict = weigh_answers(
                place, min_families=min_families, tiers=tiers, judge=judge(place)
            )
            result = _result(session, number, verdict)
            if isinstance(result, Preference):
                if fails(session, number, result.chosen):
                    result = _no(session, number, "chosen_fails")
                elif (
                    not place.evidence
                    and (further := gap(session, number, result.chosen)) is not None
                    and further > 0
                ):
                    verdict = replace(verdict, evidence=(f"{GAP}:{further:g}",))
                    place, result = (
                        replace(place, evidence=verdict.evidence),
                        _result(session, number, verdict),
                    )
                elif not place.evidence and need_evidence:
                    result = _no(session, number, "no_evidence")
            yield ReplayedTurn(
                session_id=session.id, turn=number, answers=answers, result=result, answered=place
            )


def answered_turn(
    session: Session,
    turn: int,
    answers: Iterable[Answer],
    *,
    family_of: Callable[[str | None], str] = maker_of,
    errors: frozenset[int] | None = None,
) -> AnsweredTurn:
    """A turn with its answers and with all that is weighed beside them; `errors` are the session's
    failed turns, where they are known."""
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
    """The messages of which a call raised an error, found by call id."""
    return frozenset(
        ref.turn
        for ref in session.calls().values()
        if ref.result is not None and ref.result.is_error
    )


def follows_error(session: Session, turn: int) -> bool:
    """Whether an error result stands between a message and the model's message before it, in the
    context that the model had."""
    for seen in reversed(session.context(turn)):
        if seen.role == "assistant":
            return False
        if any(result.is_error for result in seen.results):
            return True
    return False


def why_not_asked(session: Session, number: int) -> str:
    """Why nobody is asked about a message: copied, no_text_or_call or interrupted; "" where it can
    be asked about."""
    turns: tuple[Turn, ...] = session.turns
    if number < session.copied:
        return "copied"
    if not canonical_action(turns[number]).parts:
        return "no_text_or_call"
    if number + 1 < len(turns) and turns[number + 1].is_interrupt:
        return "interrupted"
    return ""


def _result(session: Session, number: int, verdict: Agreement) -> Preference | Anchor | NoResult:
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
    return _no(session, number, verdict.reason)


def _no(session: Session, number: int, reason: str) -> NoResult:
    return NoResult(session_id=session.id, turn=number, reason=reason)
