"""Pairs on disk, flat and as chat messages, with their provenance, and back without loss.

    row = row_of(pair)
    row["prompt"], row["chosen"], row["rejected"]          # plain text, for trainers of text
    row["prompt_messages"], row["chosen_messages"], row["rejected_messages"]  # for chat templates
    pair_of(row) == pair                                   # if the context has no thinking

The prompt is in every row, so a file of them is many times as large as its sessions: `curate`
writes it only if asked to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from composer_replication.core.codec import (
    preference_from_json,
    record_to_json,
    turn_from_json,
    turn_to_json,
)
from composer_replication.core.errors import DataError
from composer_replication.core.trace import Turn
from composer_replication.data.chat import from_chat, to_chat, tool_from_chat, tool_to_chat
from composer_replication.data.curate.pair import Pair, PairSide, side_of
from composer_replication.data.replay.actions import MessageAction

SCHEMA = 1


def row_of(pair: Pair) -> dict[str, Any]:
    """Return one pair as a self-contained JSON object."""
    messages = [message for turn in pair.context for message in to_chat(turn)]
    return {
        "schema": SCHEMA,
        "id": pair.id,
        "prompt": flat_prompt(pair.context),
        "chosen": pair.chosen.text,
        "rejected": pair.rejected.text,
        "prompt_messages": messages,
        "chosen_messages": to_chat(pair.chosen.turn),
        "rejected_messages": to_chat(pair.rejected.turn),
        "tools": [tool_to_chat(tool) for tool in pair.tools.values()],
        "provenance": {
            **{name: getattr(pair, name) for name in ("state", "tail", "repository", "held_out")},
            "preference": record_to_json(pair.preference),
            "rejected_turn": turn_to_json(pair.rejected.turn),
            "actions": [pair.chosen.action.parts, pair.rejected.action.parts],
            "authors": {"chosen": pair.chosen.turn.author, "rejected": pair.rejected.turn.author},
        },
    }


def pair_of(row: Mapping[str, Any], *, where: str = "") -> Pair:
    """Invert `row_of`; raises DataError if the row is damaged or its two shapes differ."""
    try:
        if row["schema"] != SCHEMA:
            raise DataError(
                f"schema {row['schema']!r}, this version reads {SCHEMA}",
                where=where,
                fix="curate again",
            )
        provenance = row["provenance"]
        preference = preference_from_json(provenance["preference"], where=where)
        chosen, rejected = (
            MessageAction(tuple((name, text) for name, text in parts))
            for parts in provenance["actions"]
        )
        tools = [tool_from_chat(tool) for tool in row["tools"]]
        pair = Pair(
            id=row["id"],
            chosen=_side(preference.chosen, chosen),
            rejected=_side(turn_from_json(provenance["rejected_turn"]), rejected),
            state=provenance["state"],
            tail=provenance["tail"],
            preference=preference,
            tools={tool.name: tool for tool in tools},
            context=tuple(from_chat(message) for message in row["prompt_messages"]),
            repository=provenance["repository"],
            held_out=provenance["held_out"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"not a pair: {error!r}", where=where, fix="curate again") from error
    for name, side in pair.sides:
        if row[name] != side.text or row[f"{name}_messages"] != to_chat(side.turn):
            raise DataError(
                f"the shapes of the {name} message say different things",
                where=where,
                fix="curate again; do not edit one alone",
            )
    return pair


def _side(turn: Turn, action: MessageAction) -> PairSide:
    return dataclasses.replace(side_of(turn), action=action)


def flat_prompt(context: Sequence[Turn]) -> str:
    """Return the messages in view as plain text, with the role above each."""
    parts = [f"<{m['role']}>\n{_flat(turn, m)}" for turn in context for m in to_chat(turn)]
    return "\n\n".join([*parts, "<assistant>\n"])


def _flat(turn: Turn, message: Mapping[str, Any]) -> str:
    return side_of(turn).text if message["role"] == "assistant" else str(message["content"])


def export_rows(pairs: Iterable[Pair]) -> Iterator[dict[str, Any]]:
    """Yield the rows of some pairs."""
    return map(row_of, pairs)
