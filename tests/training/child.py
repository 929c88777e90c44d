"""A training run in its own process: `python -m tests.training.child FOLDER CASE`; it kills itself,
or is one rank of several."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from composer_replication.core.rundir import open_run
from composer_replication.training.loop import train
from tests.training.small_student import (
    make_config,
    make_example,
    make_pair,
    make_rollout,
    make_run,
    make_student,
)

KILL_STEP = 5
FOUR = {"policy": {"weight": 1.0}, "preference": {"weight": 1.0}}
RESUME = {
    "steps": 8,
    "checkpoint_every": 2,
    "starved_steps": 4,
    "max_grad_norm_ratio": 1.0,
    "hint": {"teacher": "ema"},
    **FOUR,
}
RANKS: dict[str, dict[str, Any]] = {
    # the first rank gets the hinted example and the pair, the second only lm_ce
    "empty_channel": {
        "steps": 3,
        "batch_examples": 2,
        "grad_every": 2,
        "preference": {"weight": 1.0},
    },
    # both ranks get actions and anchors, one of them more tokens; one of three rollouts has no
    # advantage
    "rollouts": {
        "steps": 3,
        "batch_examples": 3,
        "grad_every": 2,
        "hint": {"teacher": "ema"},
        **FOUR,
    },
    # the second rank gets nothing at all
    "empty_rank": {"steps": 3, "batch_examples": 1, "grad_every": 2, "lm_ce": {"weight": 1.0}},
}


def resume_run(folder: Path, **options: Any) -> Any:
    """The run that is killed, whole or from its checkpoint on; dropout makes the random numbers
    matter."""
    config = make_config(**RESUME)
    run = (
        open_run(folder / "runs" / "r")
        if options.get("resume")
        else make_run(folder, config, name="r")
    )
    examples = [
        make_rollout(i, advantage=0.5 - i % 2, anchored=i > 3, length=20 + 3 * i, hints=i % 2)
        for i in range(6)
    ]
    student = make_student(dropout=0.3)
    return (
        train(
            config,
            student=student,
            examples=examples,
            pairs=[make_pair(0), make_pair(1)],
            run=run,
            **options,
        ),
        student,
    )


def kill_after(metrics: dict[str, Any]) -> None:
    """kill -9 on oneself in mid-run."""
    if metrics["step"] == KILL_STEP:
        os.kill(os.getpid(), signal.SIGKILL)


def ranked_run(folder: Path, case: str) -> None:
    """One rank's part; rank 0 writes the final weights."""
    config = make_config(**RANKS[case])
    rank = int(os.environ.get("RANK", "0"))
    run = make_run(folder if rank == 0 else folder / "other", config, name="r")
    examples = [
        make_example(0, length=22, hints=2),
        make_example(1, length=35, hints=int(case == "empty_rank")),
    ]
    if case == "rollouts":
        examples = [
            make_rollout(i, advantage=0.5 - 0.5 * i, anchored=i < 2, length=30 + 3 * i, hints=1)
            for i in range(3)
        ]
    student = make_student()
    train(
        config,
        student=student,
        examples=examples,
        pairs=[] if case == "empty_rank" else [make_pair(0)],
        run=run,
    )
    weights = {n: p.detach().contiguous() for n, p in student.model.named_parameters()}
    save_file(weights, str(folder / f"weights_{rank}.safetensors"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2] == "kill":
        resume_run(Path(sys.argv[1]), on_step=kill_after)
    else:
        ranked_run(Path(sys.argv[1]), sys.argv[2])
