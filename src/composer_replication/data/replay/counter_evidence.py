"""Evidence against a student's message besides the teachers' votes.

    evidence_against(session, 7)       -> ("own_errored:unknown_tool",)

own_errored        a call raised an error that is a mistake: no failed check, no cancelled call
human_rejected     the human rejected one of its calls
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
    """Return the evidence against a turn, with its kind; found by call id, in later turns only."""
    calls = session.calls()
    evidence: dict[str, None] = {}
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
            if label := _OF_CATEGORY.get(verdict.category):
                evidence[f"{label}:{verdict.kind}"] = None
    is_last = turn == len(session.turns) - 1
    if (
        is_last
        and not session.turns[turn].calls
        and session.outcome is not None
        and session.outcome <= 0
    ):
        evidence[ENDED_IN_FAILURE] = None
    return tuple(evidence)
