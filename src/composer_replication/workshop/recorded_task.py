"""From a recorded session back to its task, by the folder in which it ran, which any log holds.

    session = to_log_session(rollout.session, seed="7-0", split="train")
    session.cwd                             # "/workshop/train/7-0"; call ids as the API gives them
    task_of(session, sandbox=sandbox)       # the Task, after its calls were replayed

No message names the folder, so the student never sees it. That the task is the right one is
checked: every call is replayed, and every result must equal the recorded one.
"""

from __future__ import annotations

import re
from dataclasses import replace

from composer_replication.core.errors import SessionError
from composer_replication.core.trace import Block, Session, ToolCall, ToolResult
from composer_replication.data.ingestion.claude_code_writer import call_id_of, log_id
from composer_replication.workshop.episodes import env_at
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, make_task
from composer_replication.workshop.vocabulary import Split
from composer_replication.workshop.workshop_env import WorkshopEnv

SPLITS: dict[str, Split] = {
    "train": "train",
    "monitor": "monitor",
    "heldout": "heldout",
    "words": "words",
}
_FOLDER = re.compile(rf"/workshop/({'|'.join(SPLITS)})/([0-9A-Za-z_-]+)")


def folder_of(seed: str, *, split: Split) -> str:
    """The folder of a task, e.g. "/workshop/train/7-0"."""
    return f"/workshop/{split}/{seed}"


def was_recorded_here(session: Session) -> bool:
    """Whether a session says that it ran in the workshop; `task_of` checks that it did."""
    return _FOLDER.fullmatch(session.cwd) is not None


def to_log_session(session: Session, *, seed: str, split: Split) -> Session:
    """The session of an episode as a log can hold it: its folder, an id like Claude Code's, and
    call ids that no other session has.

    The sampled ids, the outcome and the events are dropped: a log holds none of them.
    """
    name = log_id(session.id)
    turns = tuple(
        replace(turn, blocks=tuple(_renamed(block, name) for block in turn.blocks), sampled=None)
        for turn in session.turns
    )
    return replace(
        session,
        id=name,
        turns=turns,
        cwd=folder_of(seed, split=split),
        outcome=None,
        events=(),
        origin="trace",
    )


def task_of(session: Session, *, sandbox: Sandbox) -> Task:
    """The task on which a session was played.

    Raises SessionError if its folder names no task, or if the task offers other tools or answers
    its calls differently.
    """
    task = _task_named(session)
    last = max(
        (number for number, turn in enumerate(session.turns) if turn.role == "assistant"),
        default=len(session.turns),
    )
    env_before(session, last, task=task, sandbox=sandbox).close()
    return task


def env_before(
    session: Session, turn: int, *, task: Task | None = None, sandbox: Sandbox
) -> WorkshopEnv:
    """The episode of a recorded session as it was before one of its turns; raises SessionError like
    `task_of`.

    The log does not say how many messages beyond the budget the recording allowed. That changes
    nothing before its last message, so the episode gets as many as it needs.
    """
    task = task or _task_named(session)
    return env_at(
        task,
        session.turns[:turn],
        sandbox=sandbox,
        slack=sum(1 + len(t.calls) for t in session.turns),
    )


def _task_named(session: Session) -> Task:
    folder = _FOLDER.fullmatch(session.cwd)
    if folder is None:
        raise SessionError(
            f"{session.cwd!r} is no folder of the workshop",
            where=session.id,
            fix="give a session recorded there",
        )
    task = make_task(folder[2], split=SPLITS[folder[1]])
    if session.tools != task.tools.specs():
        raise SessionError(
            "the tools are not those of the task that its folder names", where=session.id
        )
    return task


def _renamed(block: Block, session_id: str) -> Block:
    if isinstance(block, ToolCall):
        return replace(block, id=call_id_of(session_id, block.id))
    if isinstance(block, ToolResult):
        return replace(block, call_id=call_id_of(session_id, block.call_id))
    return block
