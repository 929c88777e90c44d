"""Checks that need no numbers: is there an action at all, could the tool take it, does it differ,
is the state a chat?

Each is given a pair and says what is wrong, "" where nothing is. Only the chosen message has to be
a call that could be carried out: the rejected one may be rejected for exactly that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from composer_replication.core.trace import ToolSpec, Turn
from composer_replication.data.curate.pair import Pair, PairSide
from composer_replication.data.sites.arguments import find_misfit

SideCheck = Callable[[PairSide, Mapping[str, ToolSpec]], str]


def no_action(side: PairSide, tools: Mapping[str, ToolSpec]) -> str:
    """A message that says and calls nothing, or of which thinking is all that there is."""
    return "" if side.calls or side.prose.strip() else "says nothing and calls nothing"


def not_offered(side: PairSide, tools: Mapping[str, ToolSpec]) -> str:
    """A call of a tool that nobody offered; where no tools are known nothing is said."""
    return (
        next(
            (f"there is no tool {call.name!r}" for call in side.calls if call.name not in tools), ""
        )
        if tools
        else ""
    )


def misfitting(side: PairSide, tools: Mapping[str, ToolSpec]) -> str:
    """A call whose arguments are no JSON object, or do not fit the schema of the tool."""
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
    """Two calls of one id, or one without: no result could name them."""
    ids = [call.id for call in side.calls]
    return "" if all(ids) and len(set(ids)) == len(ids) else "calls without an id of their own"


def same_action(pair: Pair) -> str:
    """Both messages do the same, whatever they say beside it."""
    return "both do the same" if pair.chosen.action == pair.rejected.action else ""


def no_chat(pair: Pair) -> str:
    """A state that no chat template takes: no request in it, results without calls, or open calls
    before an answer."""
    return chat_problem(pair.context) if pair.context else ""


def chat_problem(context: Sequence[Turn]) -> str:
    """What is wrong with messages as the beginning of a chat.

    >>> chat_problem(())
    'nobody asked for anything'
    """
    if not any(turn.role == "user" for turn in context):
        return "nobody asked for anything"
    waiting: set[str] = set()
    made: set[str] = set()
    for turn in context:
        for result in turn.results if turn.role != "assistant" else ():
            if result.call_id not in made:
                return "a result without its call"
            waiting.discard(result.call_id)
        if turn.role != "assistant":
            continue
        if waiting:
            return "a message before the results of the calls above it"
        ids = [call.id for call in turn.calls]
        waiting.update(ids)
        made.update(ids)
    return "calls that were not answered yet" if waiting else ""
