"""Episodes that an agent program plays: a copy of a tree, a home, the endpoint, and a time limit.

    with Endpoint(socket=folder / "socket") as endpoint:
        played = play_episode(record, endpoint, player="claude-code", task="Fix it.",
                              tree=tree, folder=folder, timeout_s=600)
    played.exit_code, played.seconds

The program runs without a network but the endpoint (relay.py). It sees the host's files: play only
tasks and programs that you trust with them; `tree` is a copy.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from composer_replication.core.errors import SandboxError
from composer_replication.core.files import make_folder, write_text
from composer_replication.serve.agent_programs import Assignment, launch_of
from composer_replication.serve.endpoint import HOST, Endpoint
from composer_replication.serve.episode_record import EpisodeRecord
from composer_replication.serve.relay import NO_NAMESPACE

_PORT = 8801  # in a namespace of its own every port is free
_RELAY = str(Path(__file__).with_name("relay.py"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedEpisode:
    """How a program ended: its exit code (None = it was stopped at the time limit)."""

    exit_code: int | None
    seconds: float


def play_episode(
    record: EpisodeRecord,
    endpoint: Endpoint,
    *,
    player: str,
    task: str,
    tree: Path,
    folder: Path,
    timeout_s: float,
) -> PlayedEpisode:
    """Let a program play one episode in `tree`; its output is kept in `folder`.

    Raises SandboxError if it cannot be kept off the network here.
    """
    if endpoint.socket is None:
        raise SandboxError("the endpoint has no socket", where=record.name, fix="give it one")
    home = folder / "home"
    make_folder(home)
    endpoint.open(record)
    url = f"http://{HOST}:{_PORT}/e/{quote(record.name, safe='')}"
    assignment = Assignment(
        task=task,
        url=url,
        home=home,
        context_tokens=record.settings.max_context_tokens,
        message_tokens=record.settings.max_new_tokens,
    )
    launch = launch_of(player, assignment)
    for path, text in launch.files.items():
        make_folder((home / path).parent)
        write_text(home / path, text)
    command = [sys.executable, "-I", "-S", _RELAY, str(endpoint.socket), str(_PORT)]
    started = time.monotonic()
    with (
        open(folder / "stdout", "wb") as stdout,
        open(folder / "stderr", "wb") as stderr,
        subprocess.Popen(
            [*command, *launch.command],
            cwd=tree,
            env=dict(launch.env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        ) as process,
    ):
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):  # also what the program has left behind
                os.killpg(process.pid, signal.SIGKILL)
    endpoint.close_episode(record)
    if code == NO_NAMESPACE:
        reason = (folder / "stderr").read_text("utf-8", "replace").strip()
        raise SandboxError(
            reason,
            where=player,
            fix="run on Linux where a process may enter a network namespace",
        )
    return PlayedEpisode(exit_code=code, seconds=time.monotonic() - started)
