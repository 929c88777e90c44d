"""The scripted teachers as an asker: what they would have done at a turn of a recorded session.

answers = ask_scripted(session, 4, sandbox)         # one Answer of each of the three families, free of charge
"""

from __future__ import annotations

from composer_replication.core.site import Answer
from composer_replication.core.trace import Session, Turn
from composer_replication.rollouts.envs.workshop.demonstrators import teacher_answers
from composer_replication.rollouts.envs.workshop.recorded import env_before
from composer_replication.rollouts.envs.workshop.sandbox import Sandbox


def ask_scripted(session: Session, turn: int, sandbox: Sandbox) -> tuple[Answer, ...]:
    """The answers of the three scripted families at a turn; `site_id` is "session:turn:-", as of a site that means the whole message.

    The session's calls are made again up to there. Raises SessionError where its results are not what its task answers.
    """
    env = env_before(session, turn, sandbox=sandbox)
    answers = teacher_answers(env, site_id=f"{session.id}:{turn}:-")
    env.close()
    return answers


def fails_here(session: Session, turn: int, message: Turn, sandbox: Sandbox) -> bool:
    """Whether a message, said in place of a turn of a recorded session, would be answered with an error.

    The three teachers share a habit about names, so they can agree on a call that no tool takes.
    """
    env = env_before(session, turn, sandbox=sandbox)
    reply = env.reply(message)
    env.close()
    return any(result.is_error for answer in reply.turns for result in answer.results)
