"""One of two ranks of prime-rl's own packing and compute_loss: `python -m
tests.backends_prime_rl.ranks OUT`. What its trainer does on CUDA is done here over gloo: global
counts per component, gradients that add over ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.backends_prime_rl.test_prime_rl_source import (
    add_source,
    packed,
    their_counts,
    their_loss,
)
from tests.training.small_student import gradients, make_config, make_student, start_trainer
from tests.training.test_channels import perturbed
from tests.training.test_prime_rl import (
    CHANNELS,
    batch_of,
    difference,
    samples_of,
    train_settings,
)


def rank_gradient(trainer: Any, samples: Any, *, rank: int, own_counts: bool) -> list[torch.Tensor]:
    """The gradient of the step over both ranks."""
    batches = packed(samples, ranks=2)[rank]
    counts = torch.tensor(list(their_counts(batches).values()))
    if not own_counts:
        torch.distributed.all_reduce(counts)
    names = dict(zip(("rl", "ce", "ref_kl"), counts.tolist(), strict=True))
    model = trainer.models.student.model
    loss = their_loss(batches, model, trainer.settings, counts=names)
    found = torch.autograd.grad(loss, trainer.trainable(), allow_unused=True)
    summed = [
        torch.zeros_like(p) if grad is None else grad.clone()
        for p, grad in zip(trainer.trainable(), found, strict=True)
    ]
    for grad in summed:
        torch.distributed.all_reduce(grad)
    return summed


def scenario(channels: tuple[str, ...]) -> tuple[Any, list[torch.Tensor], Any]:
    """A trainer, the reference trainer's gradient of its batch, and the batch as prime-rl's."""
    trainer = perturbed(
        start_trainer(make_config(**train_settings(channels), layout="rows"), make_student())
    )
    examples, pairs = batch_of(trainer)
    pairs = pairs if "preference" in channels else []
    weights = {name: CHANNELS[name] for name in channels}
    expected = gradients(trainer, examples, pairs, weights)
    return trainer, expected, samples_of(trainer, examples, pairs)


def measure(this_rank: int) -> dict[str, float]:
    """How far the gradient of both ranks is from the reference trainer's, per scenario."""
    added = (("policy",), ("policy", "hint"), ("policy", "preference"), tuple(CHANNELS))
    # before the ranks meet: the reference trainer would sum over them
    scenarios = {channels: scenario(channels) for channels in added}
    torch.distributed.init_process_group("gloo", rank=this_rank, world_size=2)
    found: dict[str, float] = {}
    for channels, (trainer, expected, samples) in scenarios.items():
        for own in (False, True):
            theirs = rank_gradient(trainer, samples, rank=this_rank, own_counts=own)
            name = " + ".join(channels) + (" own counts" if own else "")
            found[name] = difference(expected, theirs)
    torch.distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    add_source(Path(os.environ["PRIME_RL_SRC"]))
    rank_here = int(os.environ["RANK"])
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[variable]
    lines = measure(rank_here)
    if rank_here == 0:
        Path(sys.argv[1]).write_text(json.dumps(lines), "utf-8")
