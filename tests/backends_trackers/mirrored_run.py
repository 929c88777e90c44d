"""A run of four steps with every tracker: `python -m tests.backends_trackers.mirrored_run FOLDER`;
with --resume it goes on for two more steps."""

from __future__ import annotations

import sys
from pathlib import Path

from composer_replication.core.rundir import RunDir
from composer_replication.training.loop import train
from tests.training.small_student import make_config, make_example, make_run, make_student

TRACKERS = ["tensorboard", "wandb", "trackio"]


def main(folder: Path, *, resume: bool) -> None:
    config = make_config(steps=6 if resume else 4, trackers=TRACKERS)
    run = RunDir(folder / "runs" / "mirrored")
    if not resume:
        run = make_run(folder, config, name="mirrored")
    examples = [make_example(i, length=20, hints=1) for i in range(4)]
    train(
        config,
        student=make_student(),
        examples=examples,
        run=run,
        resume=resume,
        accept_changes=resume,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), resume="--resume" in sys.argv)
