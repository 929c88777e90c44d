"""The scripted teachers as an asker: what they would have done at a turn of a recorded session.

answers = ask_scripted(session, 4, sandbox)       # an Answer of each of the three families, free
teachers = scripted_teachers(sessions, sandbox)   # the same three, to be asked one by one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from composer_replication.core.site import Answer
from composer_replication.core.teacher import Request
from composer_replication.core.trace import Session, Turn
from composer_replication.data.replay.actions import canonical_action
from composer_replication.data.replay.agree import MIN_AGREED
from composer_replication.data.teachers.scripted import Scripted
from composer_replication.workshop.demonstrators import FAMILIES, teacher_answers
from composer_replication.workshop.recorded_task import env_before
from composer_replication.workshop.sandbox import Sandbox


def ask_scripted(session: Session, turn: int, sandbox: Sandbox) -> tuple[Answer, ...]:
    """The answers of the three scripted families at a turn; `site_id` is "session:turn:-", as of a
    site that means the whole message.

    The session's calls are made again up to there. Raises SessionError where its results are not
    what its task answers.
    """
    env = env_before(session, turn, sandbox=sandbox)
    answers = teacher_answers(env, site_id=f"{session.id}:{turn}:-")
    env.close()
    return answers


def scripted_teachers(sessions: Iterable[Session], sandbox: Sandbox) -> tuple[Scripted, ...]:
    """The three players as teachers. They look into the state of the workshop at the place that a
    request is about, not at its prompt."""
    by_id = {session.id: session for session in sessions}

    @lru_cache(maxsize=256)  # the three are asked about a place one after the other
    def answers(about: str) -> dict[str, Turn]:
        session_id, turn, _ = about.rsplit(":", 2)
        return {
            answer.family: answer.turn
            for answer in ask_scripted(by_id[session_id], int(turn), sandbox)
        }

    def acting(family: str) -> Callable[[Request], Turn]:
        return lambda request: answers(request.about)[family]

    return tuple(Scripted(f"scripted-{family}", family, acting(family)) for family in FAMILIES)


def fails_here(session: Session, turn: int, message: Turn, sandbox: Sandbox) -> bool:
    """Whether a message, said in place of a turn of a recorded session, would be answered with an
    error.

    The three teachers share a habit about names, so they can agree on a call that no tool takes.
    """
    env = env_before(session, turn, sandbox=sandbox)
    reply = env.reply(message)
    env.close()
    return any(result.is_error for answer in reply.turns for result in answer.results)


def gap_here(session: Session, turn: int, message: Turn, sandbox: Sandbox) -> float | None:
    """How many messages further a message leads than the session's own: 1 where its own brought
    nothing, None where that cannot be said.

    Carried out in the workshop: where at least two of the three players would do `message` right
    after the session's own as well, the own one took a message and changed nothing about what has
    to be done. A last word ends the episode, and nothing follows it.
    """
    own = session.turns[turn]
    if not own.calls:
        return None
    env = env_before(session, turn, sandbox=sandbox)
    env.reply(own)
    still = sum(
        canonical_action(answer.turn) == canonical_action(message)
        for answer in teacher_answers(env, site_id="")
    )
    env.close()
    return 1.0 if still >= MIN_AGREED else None
