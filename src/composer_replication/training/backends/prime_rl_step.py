"""prime-rl's sum of three components on samples of ours, without prime-rl: what its trainer would
differentiate, for the check beside the reference loop.

    logprobs = [student_logprobs(model, sample) for sample in samples]
    step_loss(samples, logprobs, settings=train).backward()

Each component has its own weights and its own number of tokens over the whole step; `rl` is our
loss_fn. Whether prime-rl's compute_loss is this sum is asked of prime-rl itself: set PRIME_RL_SRC
to a checkout and run `python scripts/run_backend.py prime_rl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from composer_replication.core.config.train_settings import TrainSettings
from composer_replication.losses.policy import token_logprobs
from composer_replication.losses.trust_region import reference_kl
from composer_replication.tokens.example import PreferencePair, TrainingExample
from composer_replication.training.backends.prime_rl_loss import loss_fn
from composer_replication.training.backends.prime_rl_samples import TokenStreams, component_tokens
from composer_replication.training.backends.prime_rl_settings import loss_kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A sample as the fields of prime-rl's LossInputs."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None


def step_loss(
    samples: Sequence[TokenStreams],
    logprobs: Sequence[Tensor],
    *,
    settings: TrainSettings,
    counted: Mapping[str, int] | None = None,
) -> Tensor:
    """rl / N_rl + ce / N_ce + ref_kl / N_ref_kl over the samples of a step, or over a rank's share
    of them: `counted` are then the tokens of all ranks."""
    counted = component_tokens(samples) if counted is None else counted
    divided = {name: max(number, 1) for name, number in counted.items()}
    total = logprobs[0].sum() * 0.0
    for sample, logp_T in zip(samples, logprobs, strict=True):
        for name, value in _components(sample, logp_T, settings):
            total = total + value / divided[name]
    return total


def _components(
    sample: TokenStreams, logp_T: Tensor, settings: TrainSettings
) -> list[tuple[str, Tensor]]:
    """The sums of the components that train a token of the sample."""
    tensors = sample_tensors(sample, like=logp_T)
    values: list[tuple[str, Tensor]] = []
    if (rl_T := tensors["rl_weights"] != 0).any():
        inputs = Inputs(
            trainer_logprobs=logp_T,
            inference_logprobs=tensors["logprobs"],
            ref_logprobs=tensors.get("ref_logprobs"),
            advantages=tensors["advantages"],
            loss_mask=rl_T,
            loss_weights=tensors["rl_weights"],
        )
        values.append(("rl", loss_fn(inputs, **loss_kwargs(settings)).loss))
    if "ce_weights" in tensors:
        values.append(("ce", -(tensors["ce_weights"] * logp_T).sum()))
    if "ref_kl_weights" in tensors:
        kl_T = tensors["ref_kl_weights"] != 0
        value_N = reference_kl(
            logp_T[kl_T], tensors["logprobs"][kl_T], tensors["ref_logprobs"][kl_T]
        )
        values.append(("ref_kl", (tensors["ref_kl_weights"][kl_T] * value_N).sum()))
    return values


def sample_tensors(sample: TokenStreams, *, like: Tensor) -> dict[str, Tensor]:
    """The streams of a sample that are there, in the dtype and on the device of `like`."""
    names = ("logprobs", "advantages", "rl_weights", "ref_logprobs", "ref_kl_weights", "ce_weights")
    return {
        name: torch.tensor(stream, dtype=like.dtype, device=like.device)
        for name in names
        if (stream := getattr(sample, name)) is not None
    }


def student_logprobs(model: Any, token_ids: Sequence[int]) -> Tensor:
    """The log-prob of each token of a sequence; 0 for the first, which nothing predicts."""
    ids_T = torch.tensor(token_ids, device=next(model.parameters()).device)
    logits_TV = model(input_ids=ids_T[None]).logits[0]
    logp_T = token_logprobs(logits_TV[:-1], ids_T[1:])
    return torch.cat([logp_T.new_zeros(1), logp_T])


@torch.no_grad()
def scores_of(
    model: Any,
    teacher: Any,
    examples: Sequence[TrainingExample],
    pairs: Sequence[PreferencePair],
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """What step_samples needs: the teacher's log-probs of the mistaken messages by site, and the
    student's of each pair's sides. On a cluster the orchestrator asks the server for them."""
    hinted: dict[str, list[float]] = {}
    for example in examples:
        for view in example.hints:
            logp_T = student_logprobs(teacher, example.teacher_ids(view))
            places = [place for a, b in example.teacher_spans(view) for place in range(a, b)]
            hinted[view.site_id] = logp_T[places].tolist()
    policy = {
        f"{pair.id}:{side}": student_logprobs(model, pair.prefix_ids + ids)[
            len(pair.prefix_ids) :
        ].tolist()
        for pair in pairs
        for side, ids in (("chosen", pair.chosen_ids), ("rejected", pair.rejected_ids))
    }
    return hinted, policy
