"""Record the student at work: episodes on training tasks, written as Claude Code logs.

    recording = record_logs(model, renderer=renderer, settings=Sampling(seed=7), seed=7,
                            num_sessions=256, folder=Path("logs"), sandbox=sandbox)
    recording.paths        # logs/-workshop-train-7-0/<session id>.jsonl, ...
    recording.left_out     # {"malformed_call": 3}: episodes that a log cannot hold

An episode passes the secrets filter before it is written: one that the filter would change never
reaches the disk. Each log is read back as `recompose ingest` would read it and must render to the
very ids that the student read and wrote: what is trained on later is what happened. An episode for
which this fails (a call that could not be parsed, a message that a tokenizer would encode
differently, one without any content) is left out and counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_replication.core.errors import DataError, RenderError
from composer_replication.core.redact import Redactor
from composer_replication.core.trace import Session
from composer_replication.data.ingestion.claude_code import ingest
from composer_replication.data.ingestion.claude_code_writer import write_claude_code
from composer_replication.data.ingestion.find_logs import find_logs
from composer_replication.data.ingestion.redaction import redact_session
from composer_replication.rollouts.episode import Rollout
from composer_replication.rollouts.sampler import Sampling, sample_rollouts
from composer_replication.tokens.renderer import Renderer
from composer_replication.workshop.recorded_task import to_log_session
from composer_replication.workshop.sandbox import Sandbox
from composer_replication.workshop.tasks import Task, distinct_tasks
from composer_replication.workshop.workshop_env import WorkshopEnv

AUTHOR = "workshop-student"
SPLIT = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The logs written, and the number of episodes left out, by reason.

    Reasons: malformed_call, cut_off (a message ended by force), no_place (a log cannot hold it),
    other_tokens (it would be read with other ids than were sampled), secret (redaction would change
    it, and it is not written at all). `success` is the share of all episodes that earned the
    reward, including those left out; the slack lets more of them end well than in an evaluation.
    """

    paths: tuple[Path, ...]
    left_out: Mapping[str, int]
    success: float


def record_logs(
    model: Any,
    *,
    renderer: Renderer,
    settings: Sampling,
    seed: int,
    num_sessions: int,
    folder: Path,
    sandbox: Sandbox,
    slack: int = 3,
    author: str = AUTHOR,
) -> Recording:
    """Play `num_sessions` different tasks of the split "train" and write each episode as a log.

    `slack` messages beyond the budget are allowed, so that a log also holds the turns after a
    mistake. `seed` chooses the tasks, `settings.seed` the samples.
    """
    tasks = list(_tasks(seed, num_sessions))
    envs = [WorkshopEnv(task, sandbox=sandbox, slack=slack) for _, task in tasks]
    rollouts = sample_rollouts(
        model,
        envs,
        renderer=renderer,
        settings=settings,
        author=author,
        label=f"recorded-{seed}-{settings.seed}:",
    )
    paths: list[Path] = []
    left_out: Counter[str] = Counter()
    for (name, _), rollout in zip(tasks, rollouts, strict=True):
        session = to_log_session(rollout.session, seed=name, split=SPLIT)
        path_or_reason = write_episode(rollout, session, folder=folder, renderer=renderer)
        if isinstance(path_or_reason, Path):
            paths.append(path_or_reason)
        else:
            left_out[path_or_reason] += 1
    success = sum(rollout.reward for rollout in rollouts) / max(1, len(rollouts))
    return Recording(paths=tuple(paths), left_out=dict(left_out), success=success)


def renders_to(session: Session, rollout: Rollout, *, renderer: Renderer) -> bool:
    """Whether a session renders to the ids that the student of a rollout read and wrote.

    A line break may follow them.
    """
    try:
        ids = renderer.render(session.turns, tools=session.tools).ids
    except RenderError:
        return False
    return ids[: len(rollout.ids)] == rollout.ids


def write_episode(
    rollout: Rollout, session: Session, *, folder: Path, renderer: Renderer
) -> Path | str:
    """The path of the log of an episode, or the reason why there is none; `session` is the episode
    as a log can hold it."""
    if rollout.num_malformed or rollout.num_cut:
        return "malformed_call" if rollout.num_malformed else "cut_off"
    if not renders_to(session, rollout, renderer=renderer):
        return "other_tokens"
    redactor = Redactor()
    # Without the secret it is not what was sampled; with the secret it must not reach the disk.
    if redact_session(session, redactor) != session:
        return "secret"
    try:
        path = write_claude_code(session, folder)
    except DataError:
        return "no_place"
    read_back = [
        session
        for result in ingest(find_logs([path]), redactor=redactor)
        for session in result.sessions
    ]
    if len(read_back) == 1 and (read_back[0].turns, read_back[0].tools, read_back[0].id) == (
        session.turns,
        session.tools,
        session.id,
    ):
        return path
    path.unlink()
    return "no_place"


def _tasks(seed: int, count: int) -> Iterator[tuple[str, Task]]:
    """(seed as it appears in the folder's name, task) of `count` different tasks."""
    names = (f"{seed}-{number}" for number in itertools.count())
    return itertools.islice(distinct_tasks(names, split=SPLIT), count)
