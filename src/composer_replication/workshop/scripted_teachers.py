"""The scripted players as teachers: what they would have done at a turn of a recorded session.

answers = ask_scripted(session, 4, sandbox)       # an Answer of each of the three families
teachers = scripted_teachers(sessions, sandbox)   # the same three, to be asked one by one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from composer_replication.core.site import Answer, turn_site_id
from composer_replication.core.teacher import Request
from composer_replication.core.trace import Session, Turn
from composer_replication.data.replay.actions import canonical_action
from composer_replication.data.replay.agree import MIN_AGREED
from composer_replication.data.teachers.scripted import Scripted
from composer_replication.workshop.demonstrators import FAMILIES, teacher_answers
from composer_replication.workshop.recorded_task import env_before
from composer_replication.workshop.sandbox import Sandbox


def ask_scripted(session: Session, turn: int, sandbox: Sandbox) -> tuple[Answer, ...]:
    """The answers of the three scripted families at a turn; `site_id` is "session:turn:-", the form
    for a site that is a whole message.

    The session's calls are replayed up to the turn. Raises SessionError if its results are not
    those of its task.
    """
    env = env_before(session, turn, sandbox=sandbox)
    answers = teacher_answers(env, site_id=turn_site_id(session.id, turn))
    env.close()
    return answers


def scripted_teachers(sessions: Iterable[Session], sandbox: Sandbox) -> tuple[Scripted, ...]:
    """The three players as teachers. They read the state of the workshop at the turn that a request
    is about, not its prompt."""
    by_id = {session.id: session for session in sessions}

    @lru_cache(maxsize=256)  # the three are asked about a turn one after the other
    def answers(about: str) -> dict[str, Turn]:
        session_id, turn, _ = about.rsplit(":", 2)
        return {
            answer.family: answer.turn
            for answer in ask_scripted(by_id[session_id], int(turn), sandbox)
        }

    def acts(family: str) -> Callable[[Request], Turn]:
        return lambda request: answers(request.about)[family]

    return tuple(Scripted(f"scripted-{family}", family, acts(family)) for family in FAMILIES)


def fails_here(session: Session, turn: int, message: Turn, sandbox: Sandbox) -> bool:
    """Whether a message, written in place of a turn of a recorded session, would get an error.

    The three teachers share a habit about names, so they can agree on a call that no tool takes.
    """
    env = env_before(session, turn, sandbox=sandbox)
    reply = env.reply(message)
    env.close()
    return any(result.is_error for answer in reply.turns for result in answer.results)


def gap_here(session: Session, turn: int, message: Turn, sandbox: Sandbox) -> float | None:
    """The number of messages that a message saves against the session's own: 1 if the session's
    message made no progress, None if that cannot be decided.

    Both are carried out in the workshop: if at least two of the three players would still write
    `message` right after the session's own, that one made no progress. A message without a call
    ends the episode, and nothing follows it.
    """
    recorded_turn = session.turns[turn]
    if not recorded_turn.calls:
        return None
    env = env_before(session, turn, sandbox=sandbox)
    env.reply(recorded_turn)
    num_agreeing = sum(
        canonical_action(answer.turn) == canonical_action(message)
        for answer in teacher_answers(env, site_id="")
    )
    env.close()
    return 1.0 if num_agreeing >= MIN_AGREED else None
