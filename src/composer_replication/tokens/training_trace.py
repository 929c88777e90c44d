"""Sessions that our student played, as OpenEnv's TrainingTrace (schema_version 1).

    training_trace(session, renderer=renderer)
    # {"schema_version": 1, "turns": [{"node_id": "tree:0:3", "prompt_token_ids": [...], ...}]}

From `openenv.core.harness.training` (openenv 0.10, BSD-3): one entry per call of the engine, with
the prompt's ids, the sampled ids, their log-probs, and a loss mask over both. The prompt is
rendered again around the sampled ids, which have to stand where the session says.
"""

from __future__ import annotations

from typing import Any

from composer_replication.core.errors import AlignmentError
from composer_replication.core.trace import Session
from composer_replication.tokens.renderer import Renderer

SCHEMA_VERSION = 1


def is_sampled(session: Session) -> bool:
    """Whether the session has a message with the ids and log-probs that our student sampled."""
    return any(turn.sampled is not None for turn in session.turns[session.copied :])


def training_trace(session: Session, *, renderer: Renderer) -> dict[str, Any]:
    """The session as a document of that schema.

    A message that an earlier session holds too (`copied`) is part of prompts only. Raises
    AlignmentError if the sampled ids are not where the session says, e.g. with another tokenizer.
    """
    rendered = renderer.render(session.turns, tools=session.tools)
    entries: list[dict[str, Any]] = []
    for number, turn in enumerate(session.turns):
        if turn.sampled is None or number < session.copied:
            continue
        start, sampled = turn.context_tokens, turn.sampled
        if rendered.ids[start : start + len(sampled.ids)] != sampled.ids:
            raise AlignmentError(
                f"the sampled ids of turn {number} are not at token {start}",
                where=session.id,
                fix="set student.model to the student that played, with its template",
            )
        entries.append(
            {
                "node_id": f"{session.id}:{number}",
                "prompt_token_ids": list(rendered.ids[:start]),
                "completion_token_ids": list(sampled.ids),
                "per_token_logps": list(sampled.logprobs),
                "loss_mask": [0] * start + [1] * len(sampled.ids),
                "metadata": {"session_id": session.id, "turn": number, "reward": session.outcome},
            }
        )
    return {"schema_version": SCHEMA_VERSION, "turns": entries}
