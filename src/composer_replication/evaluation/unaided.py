"""Checks that the student had no hint: every evaluated episode is inspected and replayed.

    check_unaided(session, task)         # only the task, the student's messages and tool results
    check_task_is_told(session, task)    # an agent program adds words of its own
    check_replay(rollout, task, chat_format=chat_format)    # a fresh environment answers the same

A hint could be a separate message or be appended to another one. A separate message has the wrong
role or author. An appended hint shows in the replay: a fresh environment, which knows no hints,
answers the same tokens with another text.
"""

from __future__ import annotations

from composer_replication.core.errors import DataError
from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    Session,
    ToolResult,
    Turn,
)
from composer_replication.rollouts.chat_format import CUT, MALFORMED, ChatFormat
from composer_replication.rollouts.env_validation import checked_opening
from composer_replication.rollouts.episode import Episode, Rollout
from composer_replication.rollouts.sampling import EpisodeLimits
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.self_summary import summary_prompt, summary_request
from composer_replication.rollouts.task_source import UnseenTask

_FIX = (
    "an evaluated student sees only the task and its own results: remove whatever was added to its"
    " context; an environment of your own must answer the same calls in the same way twice"
)


def check_unaided(
    session: Session, task: UnseenTask, *, summary: Turn | None = None, max_chars: int = 0
) -> None:
    """Raise DataError if the session holds more than the task, the student's turns and results.

    `summary` is the student's message behind which the session goes on: it stands after the task,
    cut at `max_chars`.
    """
    env = task.make()
    opening = checked_opening(env.open(), limits=EpisodeLimits())
    env.close()
    begin = opening.turns
    if summary is not None:
        begin += (summary_prompt(summary, max_chars=max_chars),)
    num_opening_turns = len(begin)
    if session.turns[:num_opening_turns] != begin or session.tools != opening.tools:
        raise DataError(
            "the episode does not begin with the unchanged task", where=session.id, fix=_FIX
        )
    authors = {turn.author for turn in session.turns if turn.role == "assistant"}
    for number, turn in enumerate(session.turns[num_opening_turns:], num_opening_turns):
        if turn.role == "assistant":
            fine = turn.tag in ("", CUT) and len(authors) == 1
        elif turn.role == "tool":
            fine = (
                turn.author == ENVIRONMENT
                and not turn.tag
                and all(isinstance(block, ToolResult) for block in turn.blocks)
            )
        else:  # others say that its call could not be parsed, or ask for a summary
            fine = turn == summary_request() or (
                turn.role == "user" and turn.author == HARNESS and turn.tag == MALFORMED
            )
        if not fine:
            description = ", ".join(filter(None, (turn.role, turn.author or "no author", turn.tag)))
            raise DataError(
                f"turn {number} ({description}) does not belong to the episode",
                where=session.id,
                fix=_FIX,
            )
    answered = {result.call_id for turn in session.turns for result in turn.results}
    if stray := answered - {call.id for turn in session.turns for call in turn.calls}:
        raise DataError(f"a result without a call: {sorted(stray)[0]}", where=session.id, fix=_FIX)


def check_task_is_told(session: Session, task: UnseenTask) -> None:
    """Raise DataError if no message to the student holds the task's last opening message."""
    env = task.make()
    statement = env.open().turns[-1].text
    env.close()
    if not any(statement in turn.text for turn in session.turns if turn.role == "user"):
        raise DataError("the student was not told the task", where=session.id, fix=_FIX)


def check_replay(rollout: Rollout, task: UnseenTask, *, chat_format: ChatFormat) -> None:
    """Replay the sampled tokens in a fresh environment; raise DataError if its answers differ."""
    replayed = Episode(
        task.make(),
        chat_format=chat_format,
        name=rollout.session.id,
        seed=0,
        stats=SamplingStats(),
    )
    for turn in rollout.session.turns:
        if turn.sampled is not None:
            if replayed.ended is not None:
                raise DataError(
                    "the student kept writing after its episode had ended",
                    where=rollout.session.id,
                    fix=_FIX,
                )
            # The context limit took effect when the episode was played; it must not end the replay.
            replayed.take(
                turn.sampled.ids,
                turn.sampled.logprobs,
                ended=turn.tag != CUT,
                max_context_tokens=len(rollout.ids) + 1,
            )
    if replayed.ended is None:
        raise DataError("the episode did not end", where=rollout.session.id, fix="play it again")
    (replayed_rollout,) = replayed.finish()
    for name in ("ids", "reward", "measures"):
        if getattr(replayed_rollout, name) != getattr(rollout, name):
            raise DataError(
                f"the replayed episode has other {name}", where=rollout.session.id, fix=_FIX
            )
    if replayed_rollout.session.turns != rollout.session.turns:
        number = next(
            i
            for i, (a, b) in enumerate(
                zip(replayed_rollout.session.turns, rollout.session.turns, strict=False)
            )
            if a != b
        )
        raise DataError(
            f"turn {number} differs from the environment's answer",
            where=rollout.session.id,
            fix=_FIX,
        )
