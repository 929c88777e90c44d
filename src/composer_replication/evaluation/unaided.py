"""Was the student alone? Every evaluated episode is checked, and played once more from its own
tokens.

    check_unaided(session, task)      # only the opening, the student's own messages, tool results
    check_replay(rollout, task, voice=voice)     # a fresh environment says and rewards the same

A hint could come as a message of its own or be appended to one that is there. The first is seen by
its role and author, the second because the fresh environment, which knows nothing of hints, answers
the same messages with other words.
"""

from __future__ import annotations

from composer_replication.core.errors import DataError
from composer_replication.core.trace import (
    ENVIRONMENT,
    HARNESS,
    Session,
    ToolResult,
)
from composer_replication.rollouts.env_validation import checked_opening
from composer_replication.rollouts.episode import CUT, MALFORMED, ChatFormat, Episode, Rollout
from composer_replication.rollouts.sampling import EpisodeLimits
from composer_replication.rollouts.sampling_stats import SamplingStats
from composer_replication.rollouts.task_source import UnseenTask

_FIX = (
    "an evaluated student sees the task and its own results, never a hint: remove what was added to"
    " its context"
)


def check_unaided(session: Session, task: UnseenTask) -> None:
    """Raise DataError where the context of any message holds more than the task, the student's own
    words and tool results."""
    env = task.make()
    opening = checked_opening(env.open(), limits=EpisodeLimits())
    env.close()
    num_opening_turns = len(opening.turns)
    if session.turns[:num_opening_turns] != opening.turns or session.tools != opening.tools:
        raise DataError(
            "the episode does not begin with the task as it is", where=session.id, fix=_FIX
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
        else:  # that a call could not be read is the only other message to a student
            fine = turn.role == "user" and turn.author == HARNESS and turn.tag == MALFORMED
        if not fine:
            description = ", ".join(filter(None, (turn.role, turn.author or "no author", turn.tag)))
            raise DataError(
                f"turn {number} ({description}) is none of the episode's own",
                where=session.id,
                fix=_FIX,
            )
    answered = {result.call_id for turn in session.turns for result in turn.results}
    if stray := answered - {call.id for turn in session.turns for call in turn.calls}:
        raise DataError(f"a result without a call: {sorted(stray)[0]}", where=session.id, fix=_FIX)


def check_replay(rollout: Rollout, task: UnseenTask, *, chat_format: ChatFormat) -> None:
    """Say the sampled tokens again to a fresh environment; raise DataError where it answers or
    rewards otherwise than was recorded."""
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
                    "the student wrote on after its episode was over",
                    where=rollout.session.id,
                    fix=_FIX,
                )
            # Room is what ended an episode, or not, when it was played; here it is not asked again.
            replayed.take(
                turn.sampled.ids,
                turn.sampled.logprobs,
                ended=turn.tag != CUT,
                max_context_tokens=len(rollout.ids) + 1,
            )
    if replayed.ended is None:
        raise DataError("the episode was broken off", where=rollout.session.id, fix="play it again")
    replayed_rollout = replayed.finish()
    for name in ("ids", "reward", "measures"):
        if getattr(replayed_rollout, name) != getattr(rollout, name):
            raise DataError(
                f"played again, the episode has other {name}", where=rollout.session.id, fix=_FIX
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
            f"turn {number} is not what the environment says", where=rollout.session.id, fix=_FIX
        )
