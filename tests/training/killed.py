"""Runs that are killed and resumed, in their own process: `python -m tests.training.killed
FOLDER`.

One process imports everything and then forks, so that a launch costs no more than its steps. Each
launch of a run ends by SIGKILL at its place, and the next one resumes; "whole" is the same run
undisturbed. A place is one of

    op TEXT            before the file operation whose line "<event> <path in the run>" holds TEXT
    op #N              before the N-th file operation of the launch, whatever it is
    torn TEXT          in the middle of appending a line that holds TEXT
    half NAME          when the NAME.safetensors of a checkpoint is half written
    reply N            in the N-th answer of an environment

FOLDER/places.json lists the places of each run; the exit statuses of the launches go to
FOLDER/launches.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from composer_replication.core import rundir
from composer_replication.core.rundir import open_run
from composer_replication.core.trace import Turn
from composer_replication.models import pretrained_folder
from composer_replication.rollouts.envs.env import Reply
from composer_replication.training.loop import train
from composer_replication.training.run import checkpoint
from tests.training import taught
from tests.training.small_student import make_run

OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})
TRAIN = {
    "steps": 5,
    "checkpoint_every": 2,
    "keep_checkpoints": 1,
    "policy": {"weight": 1.0, "kl": 0.01, "importance_cap": 2.0},
}


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def on_operation(folder: Path, wanted: Callable[[str, int], bool]) -> None:
    """Die before the first wanted file operation below a folder; each is (line, number in this
    launch)."""
    root, count = str(folder), 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in OPERATIONS or not isinstance(args[0], (str, os.PathLike)):
            return
        path = os.fspath(args[0])
        # rmtree names a file by its folder's descriptor
        if event in ("os.remove", "os.rmdir") and args[1] >= 0:
            path = os.path.join(os.readlink(f"/proc/self/fd/{args[1]}"), path)
        writes = event != "open" or bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        if isinstance(path, str) and path.startswith(root) and writes:
            count += 1
            if wanted(f"{event} {path[len(root) + 1 :]}", count):
                die()

    sys.addaudithook(hook)


def on_append(text: str) -> None:
    """Die in the middle of a line that holds a text."""
    original = os.write

    def write(descriptor: int, raw: bytes) -> int:
        if text.encode() in raw:
            original(descriptor, raw[: len(raw) // 2])
            die()
        return original(descriptor, raw)

    rundir.os.write = write  # the child ends with it


def on_tensors(name: str) -> None:
    """Die when a checkpoint's file is half written."""
    original = checkpoint.save_file

    def save(tensors: Any, path: str, **more: Any) -> None:
        original(tensors, path, **more)
        if Path(path).stem == name and "step_000000" not in path:
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    checkpoint.save_file = pretrained_folder.save_file = save


def on_reply(number: int) -> None:
    """Die while an environment answers."""
    original, left = taught.Desk.reply, iter(range(number))

    def reply(self: taught.Desk, turn: Turn) -> Reply:
        if next(left, None) is None:
            die()
        return original(self, turn)

    taught.Desk.reply = reply


def prepare(place: str, run: Path) -> None:
    """Have this process killed at a place; "" = nowhere."""
    event, _, wanted = place.partition(" ")
    if event == "op" and wanted.startswith("#"):
        on_operation(run, lambda operation, number: number == int(wanted[1:]))
    elif event == "op":
        on_operation(run, lambda operation, number: wanted in operation)
    elif event == "torn":
        on_append(wanted)
    elif event == "half":
        on_tensors(wanted)
    elif event == "reply":
        on_reply(int(wanted))


def launch(folder: Path, name: str, place: str) -> None:
    """One launch: begin the run, or resume it."""
    config = taught.live_config(train=TRAIN, groups=2, group_size=3, max_new_tokens=32)
    path = folder / "runs" / name
    run = open_run(path) if (resume := path.exists()) else make_run(folder, config, name=name)
    student = taught.taught_student(
        dropout=0.2, weights=load_file(str(folder / "taught.safetensors"))
    )
    prepare(place, path)
    train(
        config,
        student=student,
        run=run,
        live=taught.live(config),
        pairs=taught.PAIRS,
        resume=resume,
    )


def forked(work: Callable[[], None]) -> int:
    """The exit status of a child that does the work; minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def teach(folder: Path) -> None:
    save_file(taught._weights(), str(folder / "taught.safetensors"))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    taught.renderer()
    plan = {"whole": [], **json.loads((folder / "places.json").read_text("utf-8"))}
    ended = {"teach": [forked(lambda: teach(folder))]}
    for name, places in plan.items():
        ended[name] = [
            forked(lambda n=name, p=place: launch(folder, n, p)) for place in [*places, ""]
        ]
    (folder / "launches.json").write_text(json.dumps(ended), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
