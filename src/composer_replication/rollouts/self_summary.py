"""Self-summaries: an episode that outgrows its context goes on behind the student's own summary.

    request = summary_request()               # behind a result, once the context has so many tokens
    prompt = summary_prompt(message, max_chars=9999)  # what the next segment reads behind the task
    summary_turns(session)                    # where it stands in the session that it ends

A chain of segments is one episode (rollouts/episode.py): each is a session of its own, the final
reward is that of all of them, and the summary is a sampled message like any other. Composer 2
publishes that rollouts are chained by summaries and that "the final reward" is used "for all tokens
produced by the model in the chain" (2603.24477); the words and the place of the request are ours.
"""

from __future__ import annotations

from composer_replication.core.trace import HARNESS, Session, Text, Turn
from composer_replication.rollouts.env_validation import clean_text

SUMMARY = "summary"
"""Event: the last of so many turns is the student's summary, asked for by the turn before it."""
REQUEST, PROMPT = "summary_request", "compact_summary"
"""Tags of the turn that asks for a summary, and of the one that holds it in the next segment."""
_REQUEST_TEXT = (
    "Your context is nearly full. Write a summary of the work so far, without a call: what was"
    " learned, what was changed, and what is left to do. You go on with the task and this summary"
    " alone."
)
_PROMPT_TEXT = "Your summary of the work so far:\n\n"
_EMPTY = "(no words)"


def summary_request() -> Turn:
    """The message that asks for a summary."""
    return Turn(role="user", author=HARNESS, blocks=(Text(_REQUEST_TEXT),), tag=REQUEST)


def summary_prompt(message: Turn, *, max_chars: int) -> Turn:
    """What the student reads of its summary: its words; calls and thinking are left behind."""
    words = clean_text(message.text.strip(), max_chars=max_chars) or _EMPTY
    return Turn(role="user", author=HARNESS, blocks=(Text(_PROMPT_TEXT + words),), tag=PROMPT)


def summary_turns(session: Session) -> frozenset[int]:
    """The places of the summaries in a session: at most one, at its end, in a segment of our own
    player."""
    return frozenset(event.turn - 1 for event in session.events if event.kind == SUMMARY)
