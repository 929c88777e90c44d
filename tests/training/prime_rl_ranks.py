"""The check of prime-rl's components in one rank of several, without and with each planted fault:
`python -m tests.training.prime_rl_ranks OUT`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from composer_replication.training.backends import prime_rl_check
from composer_replication.training.backends.prime_rl_samples import (
    TokenStreams,
    component_tokens,
    step_samples,
)
from composer_replication.training.backends.prime_rl_step import step_loss
from composer_replication.training.backends.step_check import check_steps
from composer_replication.training.inputs import StepInputs
from tests.training.small_student import make_config, make_pair, make_student, start_trainer
from tests.training.test_prime_rl import CHANNELS, batch_of, train_settings


def own_counts(samples: Sequence[TokenStreams], logprobs: Any, **options: Any) -> Any:
    """Each rank divides by its own tokens."""
    return step_loss(samples, logprobs, **{**options, "counted": component_tokens(samples)})


def pairs_split_across_ranks(examples: Any, pairs: Any, **options: Any) -> Any:
    """The chosen side is weighed with the rejected side of the next pair, which another rank
    holds."""
    rank_below = [*pairs[1:], *pairs[:1]]
    policy = dict(options["policy"])
    for pair, other in zip(pairs, rank_below, strict=True):
        policy[f"{pair.id}:rejected"] = options["policy"][f"{other.id}:rejected"]
    return step_samples(examples, pairs, **{**options, "policy": policy})


def lost_mask(examples: Any, pairs: Any, **options: Any) -> Any:
    """Every token of a rollout counts as sampled."""
    return [
        replace(
            sample,
            mask=(True,) * len(sample.mask),
            advantages=(max(sample.advantages, key=abs),) * len(sample.mask),
            rl_weights=(0.0, *(1.0,) * (len(sample.mask) - 1)),
        )
        if any(sample.mask)
        else sample
        for sample in step_samples(examples, pairs, **options)
    ]


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "own_counts": ("step_loss", own_counts),
    "pairs_split_across_ranks": ("step_samples", pairs_split_across_ranks),
    "lost_mask": ("step_samples", lost_mask),
}


def compare() -> list[dict[str, Any]]:
    """Every scenario by prime-rl's components and by the reference trainer, on this rank's share.
    The pairs are equally long, so that a side of another one fits."""
    config = make_config(**train_settings(tuple(CHANNELS)), layout="rows")
    student = make_student()
    rollouts, _ = batch_of(start_trainer(config, make_student()))
    examples = [
        replace(rollout, hints=tuple(replace(view, origin="student") for view in rollout.hints))
        for rollout in rollouts
    ]
    pairs = [make_pair(n, chosen=4, rejected=5) for n in range(3)]
    comparisons = check_steps(
        config,
        student=student,
        inputs=StepInputs(examples, pairs),
        open_steps=prime_rl_check.prime_rl_steps,
    )
    return [
        {
            "channels": " + ".join(comparison.channels),
            "passes": comparison.passes,
            "text": comparison.text(),
        }
        for comparison in comparisons
    ]


if __name__ == "__main__":
    found = {"": compare()}
    for fault, (name, planted) in FAULTS.items():
        real = getattr(prime_rl_check, name)
        setattr(prime_rl_check, name, planted)
        found[fault] = compare()
        setattr(prime_rl_check, name, real)
    if torch.distributed.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found), "utf-8")
