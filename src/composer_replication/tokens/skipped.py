"""The units that `build` left out, and the reasons: nothing is left out without being counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Channel = Literal["session", "content", "lm_ce", "hint", "preference", "anchor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that was not used, and why; `count` of them if nothing else distinguishes them.

    Reasons per channel:

        session      held_out
        content      what a template has no place for, see `TurnMessages`; straddle; lost_calls,
                     the messages with calls in what the template refused (reason template below)
        lm_ce        author, copied, site, interrupted, dispreferred, no_text_or_call, too_long,
                     template
        hint         no_hint, weak_hint, unmeasured_hint, author, copied, category,
                     not_assistant, no_text_or_call, too_long, template, not_insertable,
                     no_session, second_hint, no_site, evidence_lost
        preference   copied, not_assistant, too_long, template, no_session, same_tokens
        anchor       those of lm_ce, not_assistant, no_session, second_anchor

    Example: Skipped(channel="hint", reason="too_long", session_id="s1", site_id="s1:7:c1",
    detail="5210 tokens")
    """

    channel: Channel
    reason: str
    session_id: str = ""
    site_id: str = ""
    count: int = 1
    detail: str = ""


def format_turns(numbers: Iterable[int]) -> str:
    """Turn numbers in words, at most twenty of them.

    >>> format_turns([7, 3])
    'turns 3, 7'
    """
    ordered = sorted(numbers)
    return "turns " + ", ".join(map(str, ordered[:20])) + (", ..." if len(ordered) > 20 else "")
