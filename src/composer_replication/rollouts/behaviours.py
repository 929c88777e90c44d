"""Behaviour rewards: what is wanted besides success, each a function of a Session, by name.

    train.policy.behaviours = { invalid_calls = 0.1, unfinished_todos = 0.2 }
    behaviour_reward(session, {"invalid_calls": 0.1})          # -0.2 for two invalid calls

Each is 0 if nothing is wrong and negative otherwise, so none can be earned by acting more. An
invalid call counts whatever came of it: Cursor observed a model that wrote broken calls on purpose
while these cost nothing. Works on imported sessions, too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

from composer_replication.core.errors import ConfigError
from composer_replication.core.trace import Session
from composer_replication.data.sites.detectors import tool_error

INVALID = frozenset({"malformed_call", "unknown_tool", "bad_arguments"})
"""Kinds of mistakes (data/sites) that make a call invalid: it cannot be read, names no tool, or has
wrong arguments."""
UNRESOLVABLE = frozenset({"malformed_call", "file_missing", "edit_no_match", "edit_multi_match"})
"""Kinds of mistakes of a call that cannot be read or names something missing; run/health.py
stops a policy with too many of them."""
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


BEHAVIOURS: Mapping[str, Callable[[Session], float]] = MappingProxyType(
    {
        "invalid_calls": invalid_calls,
        "unresolvable_calls": unresolvable_calls,
        "unfinished_todos": unfinished_todos,
        "repeated_calls": repeated_calls,
        "one_tool_only": one_tool_only,
    }
)


def behaviour_reward(session: Session, weights: Mapping[str, float]) -> float:
    """The weighted sum of behaviour rewards; raises ConfigError for an unknown name."""
    check_behaviours(weights)
    return sum(weight * BEHAVIOURS[name](session) for name, weight in weights.items())


def check_behaviours(weights: Mapping[str, float]) -> None:
    """Raise ConfigError for an unknown name, or a weight that would reward unwanted behaviour."""
    for name, weight in weights.items():
        if name not in BEHAVIOURS:
            raise ConfigError(
                f"no behaviour {name!r}",
                where="train.policy.behaviours",
                fix=f"one of: {', '.join(BEHAVIOURS)}",
            )
        if not 0 <= weight < float("inf"):
            raise ConfigError(
                f"the weight of {name} is {weight}",
                where="train.policy.behaviours",
                fix="give 0 or more",
            )
