"""What speaks against a student's message besides the votes of teachers: objective evidence, and
gaps that somebody measured.

    evidence_against(session, 7)       -> ("own_errored:unknown_tool",)

own_errored        a call of it raised an error that is the model's own mistake (not a red test, not a cancelled sibling)
human_rejected     the human refused one of its calls
ended_in_failure   it made no call and ended a session whose outcome was failure
gap                the caller measured that the chosen action leads further (replay's `gap`)
"""

from __future__ import annotations

from composer_replication.core.trace import Session
from composer_replication.data.sites.call_verdict import is_error, judge

OWN_ERRORED, HUMAN_REJECTED, ENDED_IN_FAILURE, GAP = (
    "own_errored",
    "human_rejected",
    "ended_in_failure",
    "gap",
)
_OF_CATEGORY = {"mistake": OWN_ERRORED, "rejected": HUMAN_REJECTED}


def evidence_against(session: Session, turn: int) -> tuple[str, ...]:
    """The objective evidence against a message, each with its kind; found by call id, and only in
    what came later."""
    calls = session.calls()
    found: dict[str, None] = {}
    for call in session.turns[turn].calls:
        ref = calls.get(call.id)
        if (
            ref is None
            or ref.turn != turn
            or ref.result is None
            or ref.result_turn is None
            or ref.result_turn <= turn
        ):
            continue
        if is_error(call, ref.result):
            verdict = judge(call, ref.result)
            if word := _OF_CATEGORY.get(verdict.category):
                found[f"{word}:{verdict.kind}"] = None
    is_last = turn == len(session.turns) - 1
    if (
        is_last
        and not session.turns[turn].calls
        and session.outcome is not None
        and session.outcome <= 0
    ):
        found[ENDED_IN_FAILURE] = None
    return tuple(found)
