"""Checks of structure: is there an action, could the tool take it, is the state a chat?

Each returns what is wrong with a pair, "" if nothing is. Only the chosen message must be a call
that could be executed: the rejected one may have been rejected for exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from composer_replication.core.trace import ToolSpec, Turn
from composer_replication.data.curate.pair import Pair, PairSide
from composer_replication.data.sites.arguments import find_misfit

SideCheck = Callable[[PairSide, Mapping[str, ToolSpec]], str]


def no_action(side: PairSide, tools: Mapping[str, ToolSpec]) -> str:
    """Object to a message without text and calls; thinking alone is no action."""
    return "" if side.calls or side.prose.strip() else "says nothing and calls nothing"


def not_offered(side: PairSide, tools: Mapping[str, ToolSpec]) -> str:
    """Object to a call of a tool that is not on offer, if the tools are known."""
    return (
        next(
            (f"there is no tool {call.name!r}" for call in side.calls if call.name not in tools), ""
        )
        if tools
        else ""
    )


def misfitting(side: PairSide, tools: Mapping[str, ToolSpec]) -> str:
    """Object to arguments that are not a JSON object, or do not fit the tool's schema."""
    for call in side.calls:
        if not isinstance(call.arguments, Mapping):
            return f"{call.name}: the arguments are no JSON object"
        tool = tools.get(call.name)
        if (
            tool is not None
            and tool.parameters
            and (problem := find_misfit(call.arguments, tool.parameters).problem)
        ):
            return f"{call.name}: {problem}"
    return ""


def doubled_ids(side: PairSide, tools: Mapping[str, ToolSpec]) -> str:
    """Object to calls without an id, or with the same one: no result could refer to them."""
    ids = [call.id for call in side.calls]
    return "" if all(ids) and len(set(ids)) == len(ids) else "calls without an id of their own"


def same_action(pair: Pair) -> str:
    """Object to two messages with the same action, whatever their text beside it."""
    return "both do the same" if pair.chosen.action == pair.rejected.action else ""


def no_chat(pair: Pair) -> str:
    """Object to a state that is not a chat; see `chat_problem`."""
    return chat_problem(pair.context) if pair.context else ""


def chat_problem(context: Sequence[Turn]) -> str:
    """Return why messages do not begin a chat: no request, or unmatched calls and results.

    >>> chat_problem(())
    'nobody asked for anything'
    """
    if not any(turn.role == "user" for turn in context):
        return "nobody asked for anything"
    open_calls: set[str] = set()
    call_ids: set[str] = set()
    for turn in context:
        for result in turn.results if turn.role != "assistant" else ():
            if result.call_id not in call_ids:
                return "a result without its call"
            open_calls.discard(result.call_id)
        if turn.role != "assistant":
            continue
        if open_calls:
            return "a message before the results of the calls above it"
        ids = [call.id for call in turn.calls]
        open_calls.update(ids)
        call_ids.update(ids)
    return "calls that were not answered yet" if open_calls else ""
