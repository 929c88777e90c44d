"""`recompose serve`: any agent program plays the student; every sampled token is recorded."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from composer_replication.cli.flags import Common
from composer_replication.cli.job import Job, open_job
from composer_replication.cli.problems import UsageError
from composer_replication.cli.serve_episodes import play_and_check
from composer_replication.core.codec import read_sessions, write_sessions
from composer_replication.core.config.student_settings import TINY
from composer_replication.core.errors import need
from composer_replication.core.files import make_work
from composer_replication.core.trace import Session

if TYPE_CHECKING:
    from composer_replication.serve.endpoint import Endpoint
    from composer_replication.serve.episode_record import EpisodeRecord

FOLDER = "served"
"""The work folder, inside the work folder, whose sessions are those of agent programs."""


def serve_command(
    *,
    player: str = "",
    task: str = "",
    tree: Path | None = None,
    check: str = "",
    episodes: int = 1,
    time_limit: float = 600.0,
    run: str = "",
    script: Path | None = None,
    port: int = 0,
    common: Common = Common(),
) -> int:
    """Put an endpoint in front of the student that speaks OpenAI's chat completions and responses
    and Anthropic's messages, let an agent program play, and write what it played as sessions.

    Parameters
    ----------
    player
        Agent program: "mini-swe-agent", "claude-code", "codex", "opencode", or a command line in
        which {task} and {url} are replaced. Default: only the endpoint, until Ctrl-C.
    task
        Task text given to the program.
    tree
        Folder that is copied for each episode.
    check
        Command line to run in the copy afterwards. Exit code 0 is reward 1, any other 0. The
        program could change what it runs; `recompose tasks` makes tasks with their own judge.
    episodes
        Number of episodes of the task.
    time_limit
        Time limit of one episode in seconds.
    run
        Serve this run's newest checkpoint. Default: student.model.
    script
        File of scripted messages to use instead of the student's, to try out a program.
    port
        Port on 127.0.0.1; 0 = any free port.
    """
    job = open_job(common)
    need("transformers", extra="train")
    if player and not task:
        raise UsageError("a player without a task", where="recompose serve", fix="add --task")
    work = job.work / FOLDER
    sessions = work / "sessions.jsonl"
    if job.dry_run:
        return job.finish({"player": player, "episodes": episodes}, wrote=[sessions])
    from composer_replication.cli.serve_student import serving
    from composer_replication.cli.student_tokenizer import keep_tokenizer
    from composer_replication.rollouts.sampling import Sampling
    from composer_replication.serve.endpoint import Endpoint
    from composer_replication.serve.episode_record import EpisodeRecord

    settings = Sampling.of(job.config.rollouts, seed=job.config.seed)
    chat_format, writer = serving(job, run=run, script=script, settings=settings)
    make_work(work)
    if job.config.student.model == TINY:
        keep_tokenizer(work, chat_format.renderer)
    earlier = list(read_sessions(sessions)) if sessions.exists() else []
    taken = {session.id for session in earlier}
    names = _free_names(tree.resolve().name if tree is not None else "task", taken, count=episodes)
    records = [
        EpisodeRecord(
            name,
            chat_format=chat_format,
            writer=writer,
            settings=settings,
            task_id=name.rpartition(":")[0],
        )
        for name in names
    ]
    played: list[Session] = []
    rows: list[tuple[Any, ...]] = []
    with TemporaryDirectory(prefix="recompose-") as scratch:
        socket = Path(scratch) / "endpoint"
        with Endpoint(port=port, socket=socket if player else None) as endpoint:
            if not player:
                _wait(job, endpoint, records)
            for record in records:
                reward = None
                if player:
                    options = {"player": player, "task": task, "timeout_s": time_limit}
                    place = Path(scratch) / record.name.replace(":", "-")
                    reward = play_and_check(
                        job, endpoint, record, tree, place, check=check, **options
                    )
                new = _recorded(record, reward)
                played += new
                rows.append(_row(record, new, reward))
                write_sessions(sessions, [*earlier, *played])  # after each: nothing is lost
    job.screen.table(rows, head=("episode", "messages", "tokens", "conversations", "reward"))
    return job.finish(
        {
            "episodes": [
                dict(zip(("name", "messages", "tokens", "conversations", "reward"), r, strict=True))
                for r in rows
            ]
        },
        wrote=[sessions],
        next_command=f"recompose sites -o {shlex.quote(str(work))}",
    )


def _wait(job: Job, endpoint: Endpoint, records: list[EpisodeRecord]) -> None:
    """Print the addresses and wait for Ctrl-C."""
    for record in records:
        job.screen.line(f" {record.name}  {endpoint.open(record)}")
    job.screen.line(" Ctrl-C ends the episodes and writes them", style="dim")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        job.screen.line("")


def _recorded(record: EpisodeRecord, reward: float | None) -> list[Session]:
    from composer_replication.serve.recorded_sessions import played_sessions

    return played_sessions(record, reward=reward)


def _row(record: EpisodeRecord, sessions: list[Session], reward: float | None) -> tuple[Any, ...]:
    sampled = [t.sampled for r in record.replies for t in r.turns if t.sampled is not None]
    return record.name, len(sampled), sum(len(s.ids) for s in sampled), len(sessions), reward


def _free_names(task: str, taken: set[str], *, count: int) -> list[str]:
    """Names of new episodes: "calc:0", "calc:1", behind those that are there."""
    names = (f"{task}:{number}" for number in range(len(taken) + count))
    return [name for name in names if name not in taken][:count]
