"""Behaviour rewards: what is wanted besides success, each a function of a Session, by name.

    train.policy.behaviours = { invalid_calls = 0.1, unfinished_todos = 0.2 }
    behaviour_rewards(session, {"invalid_calls": 0.1})  # {"invalid_calls": -0.2} for two of them

Each is 0 if nothing is wrong and negative otherwise, so none can be earned by acting more. An
invalid call counts whatever came of it: Cursor observed a model that wrote broken calls on purpose
while these cost nothing. Works on imported sessions, too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from composer_replication.core.config.train_settings import BehaviourName
from composer_replication.core.trace import Session, Text, Turn
from composer_replication.data.sites.detectors import tool_error
from composer_replication.rollouts.self_summary import summary_turns

INVALID = frozenset({"malformed_call", "unknown_tool", "bad_arguments"})
"""Kinds of mistakes (data/sites) that make a call invalid: it cannot be read, names no tool, or has
wrong arguments."""
UNRESOLVABLE = frozenset({"malformed_call", "file_missing", "edit_no_match", "edit_multi_match"})
"""Kinds of mistakes of a call that cannot be read or names something missing; run/health.py
stops a policy with too many of them."""
_PROMISE = re.compile(
    r"(?:now|next|then|first|so|ok|okay|and)?,?\s*"
    r"(?:let me (?!know\b)|let's |i(?:'|’)?ll (?!be\b|wait\b|stop\b|leave\b)"
    r"|i will (?!be\b|wait\b|stop\b|leave\b|not\b)|i(?:'|’)?m going to |i am going to )",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_MIN_CALLS = 5  # fewer calls of one tool do not make a habit


def invalid_calls(session: Session) -> float:
    """Minus the number of invalid calls."""
    return -float(sum(site.kind in INVALID for site in tool_error(session)))


def unresolvable_calls(session: Session) -> float:
    """Minus the number of calls that cannot be read or name a missing file or text.

    Such calls guess paths or quote text from memory.
    """
    return -float(sum(site.kind in UNRESOLVABLE for site in tool_error(session)))


def unfinished_todos(session: Session) -> float:
    """Minus the share of items that the last to-do list leaves open.

    A to-do list is a TodoWrite call: a list of items with "status".
    """
    todo_lists = [
        call.arguments.get("todos")
        for _, turn in session.assistant_turns()
        for call in turn.calls
        if call.name == "TodoWrite"
    ]
    items = (
        [item for item in todo_lists[-1] if isinstance(item, dict)]
        if todo_lists and isinstance(todo_lists[-1], list)
        else []
    )
    return -sum(item.get("status") != "completed" for item in items) / len(items) if items else 0.0


def repeated_calls(session: Session) -> float:
    """Minus the number of calls that repeat a call of the same message or the one before.

    A repeated call has the same name and the same arguments.
    """
    count, previous_calls = 0, Counter[str]()
    for _, turn in session.assistant_turns():
        current_calls: Counter[str] = Counter()
        for call in turn.calls:
            call_key = json.dumps([call.name, call.arguments], sort_keys=True)
            count += bool(previous_calls[call_key] or current_calls[call_key])
            current_calls[call_key] += 1
        previous_calls = current_calls
    return -float(count)


def one_tool_only(session: Session) -> float:
    """Minus 1 if several tools are on offer and all of five or more calls use one: a collapse.

    Typically a collapse to the terminal.
    """
    names = [call.name for _, turn in session.assistant_turns() for call in turn.calls]
    return -float(len(session.tools) > 1 and len(names) >= _MIN_CALLS and len(set(names)) == 1)


def broken_promises(session: Session) -> float:
    """Minus the number of messages that announce an action in their last sentence and call no tool.

    For example "The test fails. Let me fix it." at the end of an episode. A summary that was asked
    for (rollouts/self_summary.py) may say what comes next.
    """
    summaries = summary_turns(session)
    return -float(
        sum(
            not turn.calls and _PROMISE.match(_last_sentence(turn)) is not None
            for place, turn in session.assistant_turns()
            if place not in summaries
        )
    )


def _last_sentence(turn: Turn) -> str:
    text = " ".join(block.text for block in turn.blocks if isinstance(block, Text))
    return _SENTENCE_END.split(text.strip())[-1].strip()


BEHAVIOURS: Mapping[BehaviourName, Callable[[Session], float]] = MappingProxyType(
    {
        "invalid_calls": invalid_calls,
        "unresolvable_calls": unresolvable_calls,
        "unfinished_todos": unfinished_todos,
        "repeated_calls": repeated_calls,
        "one_tool_only": one_tool_only,
        "broken_promises": broken_promises,
    }
)


def behaviour_rewards(session: Session, weights: Mapping[BehaviourName, float]) -> dict[str, float]:
    """The weighted behaviour rewards by name."""
    return {name: weight * BEHAVIOURS[name](session) for name, weight in weights.items()}
